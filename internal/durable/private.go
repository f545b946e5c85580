package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"palyra/internal/fault"
)

// CheckPrivate refuses a file or directory that isn't private to this user: owned by
// another user, open to group or others, a symbolic link, or of another type. It is
// fault.BadState with the reason "unsafe_file" or "bad_file".
func CheckPrivate(path string) error {
	op := fmt.Sprintf("check %q", path)
	fi, err := os.Lstat(path)
	if err != nil {
		return Fault(op, err)
	}
	return private(op, fi)
}

func private(op string, fi fs.FileInfo) error {
	if !fi.Mode().IsRegular() && !fi.IsDir() {
		return fault.New(fault.BadState, "bad_file", op,
			fmt.Errorf("is %s, want a regular file or a directory", kindOf(fi.Mode())))
	}
	if err := checkOwner(op, fi); err != nil {
		return err
	}
	if p := fi.Mode().Perm(); p&0o077 != 0 {
		want := "0600"
		if fi.IsDir() {
			want = "0700"
		}
		return fault.New(fault.BadState, "unsafe_file", op, fmt.Errorf("mode is %04o: others have access", p)).
			WithHint("chmod " + want + " it, after making sure that no other user changed or read it")
	}
	return nil
}

// CheckOwn is CheckPrivate for a directory that a person named as the place for a program's
// files. A directory that was used before holds one of the names in mine. If dir is plainly
// something else, the hint is to name another directory: changing the mode of /tmp or of a
// home directory would lock others out.
func CheckOwn(dir string, mine ...string) error {
	err := CheckPrivate(dir)
	if e, ok := errors.AsType[*fault.Error](err); ok && foreign(dir, mine) {
		return e.WithHint("name a directory of its own, which need not exist yet: it is made with mode 0700")
	}
	return err
}

// foreign reports whether dir isn't meant for the files that mine names: it holds none of
// them, and it is sticky, a root, a mount, another user's, or not empty.
func foreign(dir string, mine []string) bool {
	fi, err := os.Lstat(dir)
	if err != nil || !fi.IsDir() {
		return false // the error says what it is
	}
	for _, name := range mine {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return false
		}
	}
	if fi.Mode()&fs.ModeSticky != 0 || filepath.Dir(filepath.Clean(dir)) == filepath.Clean(dir) || isMount(dir, fi) || checkOwner("", fi) != nil {
		return true
	}
	f, err := os.Open(dir)
	if err != nil {
		return true
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	return err != io.EOF
}

func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m.IsDir():
		return "a directory"
	}
	return "no regular file"
}

// ReadPrivate reads a regular file of at most max bytes that CheckPrivate would accept. It
// checks and reads through one descriptor.
func ReadPrivate(path string, max int64) ([]byte, error) { return read(path, max, true) }

// ReadRegular reads a regular file of at most max bytes, whoever owns it. It doesn't follow
// a link and doesn't block on a FIFO.
func ReadRegular(path string, max int64) ([]byte, error) { return read(path, max, false) }

func read(path string, max int64, priv bool) ([]byte, error) {
	op := fmt.Sprintf("read %q", path)
	f, err := os.OpenFile(path, os.O_RDONLY|noFollow, 0)
	if isLoop(err) {
		return nil, fault.New(fault.BadState, "bad_file", op, errors.New("is a symbolic link, want a regular file"))
	}
	if err != nil {
		return nil, Fault(op, cause(err))
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, Fault(op, cause(err))
	}
	if !fi.Mode().IsRegular() {
		return nil, fault.New(fault.BadState, "bad_file", op, fmt.Errorf("is %s, want a regular file", kindOf(fi.Mode())))
	}
	if priv {
		if err := private(op, fi); err != nil {
			return nil, err
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, Fault(op, cause(err))
	}
	if int64(len(b)) > max {
		return nil, fault.New(fault.BadState, "too_large", op, fmt.Errorf("more than %d bytes", max))
	}
	return b, nil
}

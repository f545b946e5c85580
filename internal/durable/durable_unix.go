//go:build unix

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"palyra/internal/fault"
)

const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

func isLoop(err error) bool  { return errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EMLINK) }
func isQuota(err error) bool { return errors.Is(err, syscall.EDQUOT) }

// SyncDir makes the names in dir durable.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err == nil {
		err = f.Sync()
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		return fmt.Errorf("sync directory %q: %w", dir, cause(err))
	}
	return nil
}

func checkOwner(op string, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fault.New(fault.Unsupported, "platform_unsupported", op, errors.New("this platform does not tell who owns a file"))
	}
	if euid := os.Geteuid(); uint64(st.Uid) != uint64(euid) {
		return fault.New(fault.BadState, "unsafe_file", op, fmt.Errorf("belongs to user %d, this is user %d", st.Uid, euid)).
			WithHint("run as the owner, or choose another state directory")
	}
	return nil
}

// isMount reports whether dir, whose FileInfo is fi, is on another file system than its
// parent. It doesn't notice a bind mount of the same one.
func isMount(dir string, fi fs.FileInfo) bool {
	up, err := os.Lstat(filepath.Dir(dir))
	if err != nil {
		return false
	}
	a, ok := fi.Sys().(*syscall.Stat_t)
	b, ok2 := up.Sys().(*syscall.Stat_t)
	return ok && ok2 && a.Dev != b.Dev
}

// FileLock is an exclusive lock on a file. It ends with Unlock or with the
// process.
type FileLock struct{ f *os.File }

// Lock takes an exclusive lock on the file at path, which it creates with mode
// 0600 if it is missing. It does not wait: a lock that another process holds is
// fault.Busy. The file stays behind; only the lock matters.
func Lock(path string) (*FileLock, error) {
	op := fmt.Sprintf("lock %q", path)
	for range 8 {
		g, err := OpenGate(path)
		if err != nil {
			return nil, err
		}
		held, err := g.Try(Exclusive)
		if err != nil || !held {
			holder := g.Holder()
			_ = g.Close() // it holds nothing
			if err == nil {
				err = fault.New(fault.Busy, "locked", op, heldBy(holder)).WithHint(busyHint)
			}
			return nil, Fault(op, err)
		}
		// The name may be gone since the file was opened: a lock on a file that no other
		// process can find locks nothing.
		if g.named() {
			return &FileLock{f: g.f}, nil
		}
		_ = g.Close()
	}
	return nil, fault.New(fault.Busy, "locked", op, errors.New("the file is replaced again and again"))
}

// Unlock gives the lock back.
func (l *FileLock) Unlock() error { return l.f.Close() }

// Gate is a lock file that stays open, to be locked again and again (flock(2)).
// The lock belongs to the Gate: two Gates of one file exclude each other, in one
// process too. It ends with Release, with Close, or with the process. One
// goroutine at a time may use a Gate.
type Gate struct {
	f    *os.File
	path string
}

// OpenGate opens the lock file at path, and creates it with mode 0600 if it is
// missing. It locks nothing.
func OpenGate(path string) (*Gate, error) {
	op := fmt.Sprintf("lock %q", path)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	if isLoop(err) {
		return nil, fault.New(fault.BadState, "bad_file", op, errors.New("is a symbolic link"))
	}
	if err != nil {
		return nil, Fault(op, cause(err))
	}
	fi, err := f.Stat()
	if err == nil {
		err = private(op, fi)
	}
	if err != nil {
		f.Close()
		return nil, Fault(op, cause(err))
	}
	return &Gate{f: f, path: path}, nil
}

// named reports whether the file still has its name.
func (g *Gate) named() bool {
	was, err := g.f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(g.path)
	return err == nil && os.SameFile(was, now)
}

// Try takes the lock if it can at once. A Gate that has the lock may ask for the other
// kind; if the answer is false, it has neither.
func (g *Gate) Try(h Hold) (bool, error) {
	how := syscall.LOCK_EX
	if h == Shared {
		how = syscall.LOCK_SH
	}
	switch err := g.flock(how | syscall.LOCK_NB); {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return false, nil
	default:
		return false, Fault(fmt.Sprintf("lock %q", g.path), os.NewSyscallError("flock", err))
	}
}

// Release gives the lock back. It may be called without one.
func (g *Gate) Release() {
	// Unlocking an open file does not fail; if it did, Close would do it.
	_ = g.flock(syscall.LOCK_UN)
}

// Close gives the lock back and closes the file, which stays behind.
func (g *Gate) Close() error {
	if g == nil {
		return nil
	}
	return g.f.Close()
}

func (g *Gate) flock(how int) error {
	for {
		err := syscall.Flock(int(g.f.Fd()), how)
		if err != syscall.EINTR {
			return err
		}
	}
}

// ReadAt and WriteAt reach the content of the lock file, in which the holder of the lock
// may leave a word for the next one.
func (g *Gate) ReadAt(b []byte, off int64) (int, error) { return g.f.ReadAt(b, off) }

// WriteAt implements io.WriterAt; see ReadAt.
func (g *Gate) WriteAt(b []byte, off int64) (int, error) { return g.f.WriteAt(b, off) }

// Holder says which process holds the lock, "" if the kernel does not tell.
func (g *Gate) Holder() string {
	fi, err := g.f.Stat()
	if err != nil {
		return ""
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	b, err := os.ReadFile("/proc/locks") // Linux only, unless /proc is hidden
	if err != nil {
		return ""
	}
	// "1: FLOCK  ADVISORY  WRITE 24415 fe:00:9978574 0 EOF" (proc_locks(5)); the
	// device is that of the file system, which some file systems do not show in stat.
	ino := ":" + strconv.FormatUint(uint64(st.Ino), 10)
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		if len(w) < 6 || w[1] != "FLOCK" || !strings.HasSuffix(w[5], ino) {
			continue
		}
		if pid, err := strconv.Atoi(w[4]); err == nil && pid > 0 {
			return fmt.Sprintf("process %d", pid)
		}
	}
	return ""
}

// Live marks work that goes on, in a way that ends with its process: each piece of work
// locks the byte of a file that its key names (an open file description lock, fcntl(2)),
// and the kernel gives it back. The zero value marks nothing.
type Live struct {
	f    *os.File
	path string
}

// OpenLive opens the file at path, and creates it with mode 0600 if it is missing.
func OpenLive(path string) (*Live, error) {
	g, err := OpenGate(path)
	if err != nil {
		return nil, err
	}
	return &Live{f: g.f, path: path}, nil
}

// Close gives back all marks.
func (l *Live) Close() error {
	if l == nil {
		return nil
	}
	return l.f.Close()
}

//go:build unix

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
		return fault.New(fault.Unsupported, "no_owner", op, errors.New("this platform does not tell who owns a file"))
	}
	if euid := os.Geteuid(); uint64(st.Uid) != uint64(euid) {
		return fault.New(fault.BadState, "wrong_owner", op, fmt.Errorf("belongs to user %d, this is user %d", st.Uid, euid)).
			WithHint("run as the owner, or choose another state directory")
	}
	return nil
}

// isMount reports whether dir, of which fi was read, is on another file system
// than its parent. A bind mount of the same one is not found.
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
// 0600 if it is missing. It does not wait: a lock that somebody holds is
// fault.Busy. The file stays behind; only the lock matters.
func Lock(path string) (*FileLock, error) {
	op := fmt.Sprintf("lock %q", path)
	for range 8 {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
		if isLoop(err) {
			return nil, fault.New(fault.BadState, "wrong_type", op, errors.New("is a symbolic link"))
		}
		if err != nil {
			return nil, Fault(op, cause(err))
		}
		fi, err := f.Stat()
		if err == nil {
			err = private(op, fi)
		}
		if err == nil {
			err = flock(f)
		}
		if err != nil {
			f.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, fault.New(fault.Busy, "locked", op, errors.New("another process holds it")).
					WithHint("wait until the other Palyra on this state directory has ended, or use another one with --state")
			}
			return nil, Fault(op, err)
		}
		// Somebody may have removed the name while we waited for the descriptor:
		// a lock on a file that nobody else can find is none.
		if now, err := os.Lstat(path); err == nil && os.SameFile(fi, now) {
			return &FileLock{f: f}, nil
		}
		f.Close()
	}
	return nil, fault.New(fault.Busy, "lock_unstable", op, errors.New("the file is replaced again and again"))
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EINTR {
			return err
		}
	}
}

// Unlock gives the lock back.
func (l *FileLock) Unlock() error { return l.f.Close() }

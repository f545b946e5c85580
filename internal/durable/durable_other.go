//go:build !unix

package durable

import (
	"errors"
	"fmt"
	"io/fs"

	"palyra/internal/fault"
)

const noFollow = 0

func isLoop(error) bool  { return false }
func isQuota(error) bool { return false }

// errPlatform is the answer of everything that we do not know how to do here.
var errPlatform = errors.New("durable files are not implemented on this platform")

// SyncDir makes the names in dir durable; not on this platform.
func SyncDir(dir string) error {
	return fault.New(fault.Unsupported, "durable_unsupported", fmt.Sprintf("sync directory %q", dir), errPlatform)
}

func isMount(string, fs.FileInfo) bool { return false }

func checkOwner(op string, _ fs.FileInfo) error {
	return fault.New(fault.Unsupported, "durable_unsupported", op, errPlatform)
}

// FileLock is an exclusive lock on a file; none exist on this platform.
type FileLock struct{}

// Lock refuses: not on this platform.
func Lock(path string) (*FileLock, error) {
	return nil, fault.New(fault.Unsupported, "durable_unsupported", fmt.Sprintf("lock %q", path), errPlatform)
}

// Unlock does nothing.
func (l *FileLock) Unlock() error { return nil }

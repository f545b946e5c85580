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

// errPlatform is the answer of every function that this platform lacks.
var errPlatform = errors.New("durable files are not implemented on this platform")

// SyncDir makes the names in dir durable; not on this platform.
func SyncDir(dir string) error {
	return fault.New(fault.Unsupported, "platform_unsupported", fmt.Sprintf("sync directory %q", dir), errPlatform)
}

func isMount(string, fs.FileInfo) bool { return false }

func checkOwner(op string, _ fs.FileInfo) error {
	return fault.New(fault.Unsupported, "platform_unsupported", op, errPlatform)
}

// FileLock is an exclusive lock on a file; none exist on this platform.
type FileLock struct{}

// Lock refuses: not on this platform.
func Lock(path string) (*FileLock, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", fmt.Sprintf("lock %q", path), errPlatform)
}

// Unlock does nothing.
func (l *FileLock) Unlock() error { return nil }

// Gate is a lock file that stays open; none exist on this platform.
type Gate struct{ path string }

// OpenGate refuses: not on this platform.
func OpenGate(path string) (*Gate, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", fmt.Sprintf("lock %q", path), errPlatform)
}

// Try refuses: not on this platform.
func (g *Gate) Try(Hold) (bool, error) { return false, errPlatform }

// Release does nothing.
func (g *Gate) Release() {}

// Close does nothing.
func (g *Gate) Close() error { return nil }

// ReadAt refuses: not on this platform.
func (g *Gate) ReadAt([]byte, int64) (int, error) { return 0, errPlatform }

// WriteAt refuses: not on this platform.
func (g *Gate) WriteAt([]byte, int64) (int, error) { return 0, errPlatform }

// Holder knows none.
func (g *Gate) Holder() string { return "" }

// Live marks work that goes on; not on this platform.
type Live struct{}

// OpenLive refuses: not on this platform.
func OpenLive(path string) (*Live, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", fmt.Sprintf("mark work in %q", path), errPlatform)
}

// Close does nothing.
func (l *Live) Close() error { return nil }

// Mark refuses: not on this platform.
func (l *Live) Mark(string) error { return errPlatform }

// Unmark does nothing.
func (l *Live) Unmark(string) {}

// Marked refuses: not on this platform.
func (l *Live) Marked([]string) (map[string]bool, error) { return nil, errPlatform }

//go:build !linux

package pin

import (
	"context"
	"io"
	"io/fs"
	"os"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// Sealing needs openat2 and memfd_create. What other systems have instead
// belongs to the runners for them; until one exists nothing is pinned here.
func unsupported(op string) error {
	return fault.New(fault.Unsupported, "platform_unsupported", op, nil).WithHint("calls run on Linux only")
}

// At fails.
func At(*Handle, string, How) (*Handle, error) { return nil, unsupported("openat2") }

// Dir fails.
func Dir(string) (*Handle, error) { return nil, unsupported("openat2") }

// Open fails.
func (h *Handle) Open() (*os.File, error) { return nil, unsupported("open") }

// Place fails.
func (h *Handle) Place() (string, error) { return "", unsupported("place") }

// Executable fails.
func (h *Handle) Executable() error { return unsupported("faccessat2") }

// System is false: nothing is trusted.
func (h *Handle) System() bool { return false }

// Settled is false, too.
func (h *Handle) Settled() bool { return false }

// Unmapped is false, too.
func (h *Handle) Unmapped() bool { return false }

// descriptor holds nothing.
type descriptor struct{}

// File returns nil.
func (*descriptor) File(string) *os.File { return nil }

// Close does nothing.
func (*descriptor) Close() error { return nil }

// KeepsTimes is false: nothing is known.
func KeepsTimes(*os.File) bool { return false }

// KeepsContent knows no such file system.
func KeepsContent(*os.File, Stat) bool { return false }

// WritersOf knows nothing.
func WritersOf(*os.File) Writers { return WritersUnknown }

// Changed fails.
func Changed(*os.File, Stat) error { return unsupported("fstat") }

// Digest fails.
func Digest(context.Context, *os.File, int64) (canon.Digest, int64, error) {
	return canon.Digest{}, 0, unsupported("digest")
}

// Seal fails.
func Seal(context.Context, string, io.Reader, int64, fs.FileMode) (*Sealed, error) {
	return nil, unsupported("memfd_create")
}

// Bytes fails.
func Bytes(string, []byte) (*os.File, error) { return nil, unsupported("memfd_create") }

// Copy fails.
func (s *Sealed) Copy(string, fs.FileMode) (*Sealed, error) { return nil, unsupported("memfd_create") }

// Verify fails.
func (s *Sealed) Verify() error { return unsupported("fcntl F_GET_SEALS") }

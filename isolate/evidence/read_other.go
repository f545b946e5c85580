//go:build !linux

package evidence

import (
	"errors"

	"palyra/internal/fault"
)

func unsupported(op string) error {
	return fault.New(fault.Unsupported, "platform_unsupported", op, errors.New("only Linux is observed"))
}

// Reader reads nothing here.
type Reader struct{}

// NewReader returns fault.Unsupported.
func NewReader(string) (*Reader, error) { return nil, unsupported("read evidence") }

// Close does nothing.
func (*Reader) Close() {}

// Read returns fault.Unsupported.
func (*Reader) Read(*Evidence, int, int) error { return unsupported("read evidence") }

// ReadWaiting returns fault.Unsupported.
func (*Reader) ReadWaiting(*Evidence, int, int) error { return unsupported("read evidence") }

// Group returns fault.Unsupported.
func (*Reader) Group(int) (string, error) { return "", unsupported("read cgroup") }

// Forget returns fault.Unsupported.
func (*Reader) Forget() error { return unsupported("forget processes") }

// ReadHost returns fault.Unsupported.
func ReadHost(string) (Host, error) { return Host{}, unsupported("read host") }

// ReadNamespaces returns fault.Unsupported.
func ReadNamespaces(string, int) (map[string]uint64, error) {
	return nil, unsupported("read namespaces")
}

// ReadProcess returns fault.Unsupported.
func ReadProcess(string, int) (Process, error) { return Process{}, unsupported("read process") }

// ReadMounts returns fault.Unsupported.
func ReadMounts(string, int) (Mounts, error) { return Mounts{}, unsupported("read mount table") }

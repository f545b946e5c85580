//go:build !linux

package locked

// New returns n zero bytes on the heap: not locked.
func New(n int) *Memory { return &Memory{b: make([]byte, n)} }

func (m *Memory) free() {}

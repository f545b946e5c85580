package locked

import (
	"bytes"
	"testing"
)

func TestMemory(t *testing.T) {
	for _, n := range []int{0, 1, 4096, 100_000} {
		m := New(n)
		b := m.Bytes()
		if len(b) != n || !bytes.Equal(b, make([]byte, n)) {
			t.Fatalf("%d bytes: %d, or some aren't zero", n, len(b))
		}
		for i := range b {
			b[i] = 1
		}
		_ = append(b, 1) // must not reach the next value
		m.Wipe()
		if m.Bytes() != nil || m.Locked() {
			t.Error("something is left")
		}
		m.Wipe()
	}
}

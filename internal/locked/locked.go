// Package locked has memory for secrets: pages of their own, which the garbage collector never
// copies, a core dump leaves out and, as far as RLIMIT_MEMLOCK goes, the system never swaps.
//
//	m := locked.New(len(value))
//	copy(m.Bytes(), value)
//	defer m.Wipe()
//
// What it does not protect against: one who reads this process's memory, and copies that are made
// of the bytes. On systems other than Linux it's the heap's.
package locked

// Memory is some bytes. Its owner calls Wipe.
type Memory struct {
	b     []byte
	pages []byte // the memory outside the heap that holds b; nil: b is on the heap
	lock  bool
}

// Bytes returns the bytes themselves, valid until Wipe.
func (m *Memory) Bytes() []byte { return m.b }

// Locked reports whether the bytes are kept out of swap.
func (m *Memory) Locked() bool { return m.lock }

// Wipe overwrites the bytes and gives their memory back. It may be called again.
func (m *Memory) Wipe() {
	clear(m.b)
	m.free()
	*m = Memory{}
}

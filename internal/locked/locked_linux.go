package locked

import "syscall"

// madvDontDump is MADV_DONTDUMP (madvise(2), Linux 3.4): core dumps leave the pages out.
const madvDontDump = 16

// New returns n zero bytes on pages of its own, which the garbage collector
// never copies. Without memory to map it takes the heap's.
func New(n int) *Memory {
	if n == 0 {
		return &Memory{b: []byte{}}
	}
	pages, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		return &Memory{b: make([]byte, n)}
	}
	m := &Memory{b: pages[:n:n], pages: pages}
	m.lock = syscall.Mlock(pages) == nil // RLIMIT_MEMLOCK bounds it for users
	_ = syscall.Madvise(pages, madvDontDump)
	return m
}

func (m *Memory) free() {
	if m.pages != nil {
		_ = syscall.Munmap(m.pages) // which unlocks them
	}
}

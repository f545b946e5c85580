package seal

import "syscall"

// madvDontDump is MADV_DONTDUMP (madvise(2), Linux 3.4): core dumps leave the pages out.
const madvDontDump = 16

// newMemory returns n zero bytes on pages of its own, which the garbage collector
// never copies. Without memory to map it takes the heap's.
func newMemory(n int) *memory {
	if n == 0 {
		return &memory{b: []byte{}}
	}
	pages, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		return &memory{b: make([]byte, n)}
	}
	m := &memory{b: pages[:n:n], pages: pages}
	m.lock = syscall.Mlock(pages) == nil // RLIMIT_MEMLOCK bounds it for users
	_ = syscall.Madvise(pages, madvDontDump)
	return m
}

func (m *memory) free() {
	if m.pages != nil {
		_ = syscall.Munmap(m.pages) // which unlocks them
	}
}

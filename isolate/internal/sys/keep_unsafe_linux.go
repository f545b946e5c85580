package sys

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// KeepMemory keeps what only this process writes to (the heap, stacks and
// variables of Go) from children with a memory of their own: MADV_DONTFORK of
// madvise(2). A child that walks a tape reads program text and its arena, which
// is shared, and nothing else. Without it the clone copies page tables, and for as
// long as the child has not executed its program this process takes a fault for
// every page that it writes to. What Go maps later is copied until KeepMemory is
// called again. In a process with a C library it does nothing: see sequenced.
func KeepMemory() error {
	if has, err := sequenced(); has || err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("keep memory: %w", err)
	}
	for line := range strings.Lines(string(maps)) {
		span, rest, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(rest, "rw-p ") {
			continue
		}
		from, to, _ := strings.Cut(span, "-")
		lo, err := strconv.ParseUint(from, 16, strconv.IntSize)
		hi, err2 := strconv.ParseUint(to, 16, strconv.IntSize)
		if err = errors.Join(err, err2); err != nil {
			return fmt.Errorf("keep memory %q: %w", span, err)
		}
		_, _, e := unix.Syscall(unix.SYS_MADVISE, uintptr(lo), uintptr(hi-lo), unix.MADV_DONTFORK)
		if e != 0 && e != unix.ENOMEM { // Go may have unmapped it meanwhile
			return fmt.Errorf("keep memory %q: madvise: %w", span, e)
		}
	}
	return nil
}

// sequenced reports whether this thread has registered restartable sequences,
// rseq(2) (4.18), as a C library does in each thread and Go does not. A child
// inherits that, and when it is preempted the kernel writes into the memory that
// was registered: it would be killed if it has none. It asks by registering, which
// the kernel refuses a second time.
func sequenced() (bool, error) {
	const size, unregister, signature = 32, 1, 0x53053053
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false, fmt.Errorf("look for restartable sequences: mmap: %w", err)
	}
	defer unix.Munmap(page)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	at := uintptr(unsafe.Pointer(&page[0])) // not Go's memory: it stays where it is
	switch _, _, e := unix.Syscall6(unix.SYS_RSEQ, at, size, 0, signature, 0, 0); e {
	case 0:
	case unix.ENOSYS:
		return false, nil
	default: // EINVAL, EBUSY: there is one. Whatever else it is, we do not know.
		return true, nil
	}
	if _, _, e := unix.Syscall6(unix.SYS_RSEQ, at, size, unregister, signature, 0, 0); e != 0 {
		panic("sys: internal error: rseq stays registered in memory that goes: " + e.Error())
	}
	return false, nil
}

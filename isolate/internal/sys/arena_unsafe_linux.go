package sys

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawStep is a step as the walker reads it. The assembly knows the offsets:
// nr 0, args 8..48, flags 56, out 64, alt 72; 80 bytes.
type rawStep struct {
	nr    uintptr
	args  [6]uintptr
	flags uintptr // 0..5: argument is the address of a slot; 8: may fail; 9: clone
	out   uintptr // address of a slot, or 0
	alt   uintptr // clone: where its child goes on
}

// rawStatus is what a child leaves behind. The assembly knows the offsets:
// where 0, errno 8, pid 16, done 24, mode 32, wstatus 40, usage 48, wake 192,
// next 200, parked 208, reaping 216.
type rawStatus struct {
	where   uintptr // address of the step that failed, or 0
	errno   uintptr
	pid     uintptr // of the program, as its reaper sees it
	done    uintptr // 1 once wstatus and usage are the program's
	mode    uintptr // 1: the reaper stays until nobody is left
	wstatus uintptr // low 32 bits
	usage   unix.Rusage
	wake    uint32  // futex: not 0 once a parked child shall go on
	_       uint32  //
	next    uintptr // where a parked child goes on
	parked  uintptr // 1 once the child is in its step Park, and reads its tape no more
	reaping uintptr // 1 once the reaper is in its last step
}

const (
	flagMayFail = 1 << 8
	flagClone   = 1 << 9
)

// Arena is the memory of one child: the encoded tape with everything it points
// to, the slots and the status block. It lies outside the Go heap, so addresses
// in it are plain numbers that stay valid until Free, and it is a shared
// mapping, so that a child with a memory of its own reports through it, too.
// Free it only when the
// child is known to be dead or to have executed the program, and its reaper to
// be dead.
type Arena struct {
	mem    []byte
	used   int
	full   [][]byte // earlier memory, still in use
	status *rawStatus
	tape   uintptr
	slots  map[string]uintptr
	rooms  map[string]place
	parts  []encoded
	steps  int     // of the tape that the child was started with, those of its own child included
	from   *Memory // where mem goes; may be nil
	apart  bool    // the child has a memory of its own: it sees what was mapped before it was
}

// Memory keeps memory of arenas that are free for the next ones: to map and to
// unmap it costs more than the clone of a small process. Its zero value is empty.
// It is safe for concurrent use.
type Memory struct {
	mu   sync.Mutex
	free [][]byte // guarded by mu; blocks of arenaSize, all zero
}

// arenaSize is enough for the tape of most cells, and keepArenas how many stay.
const (
	arenaSize  = 24 << 10
	keepArenas = 8
)

func (m *Memory) take(size int) []byte {
	if m == nil || size > arenaSize {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.free) - 1
	if n < 0 {
		return nil
	}
	b := m.free[n]
	m.free = m.free[:n]
	return b
}

// give keeps a block, or reports that it does not.
func (m *Memory) give(b []byte) bool {
	if m == nil || len(b) != arenaSize {
		return false
	}
	clear(b)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.free) >= keepArenas {
		return false
	}
	m.free = append(m.free, b)
	return true
}

// place is where a step leaves bytes.
type place struct {
	at   int // offset in mem
	size int
}

// encoded says where a tape was encoded to.
type encoded struct {
	at    uintptr
	tape  Tape
	first int // the number of its first step, see StepError
}

// errArena is our own bug: the size is computed from the same tape.
var errArena = errors.New("tape arena: too small")

// errApart is returned for a tape that does not fit into what a child with a
// memory of its own can see.
var errApart = errors.New("tape arena: no room, and the child would not see more")

// sizeOf is how much memory encode takes for t, at most. Each piece is aligned to
// 16 bytes.
func sizeOf(t Tape) int {
	const piece = 16 + 15
	n := int(unsafe.Sizeof(rawStep{}))*len(t) + piece
	for i := range t {
		s := &t[i]
		if s.Out != "" {
			n += piece
		}
		for j := range s.Args {
			a := &s.Args[j]
			switch a.kind {
			case argStr:
				n += len(a.label) + piece
			case argBytes:
				n += len(a.data) + piece
			case argPtr:
				n += len(a.vec[0]) + len(a.data) + 2*piece
			case argVec:
				n += 8*len(a.vec) + piece
				for _, v := range a.vec {
					n += len(v) + piece
				}
			case argSlot:
				n += piece
			case argRoom:
				n += int(a.val) + piece
			}
		}
		if s.Child != nil {
			n += sizeOf(s.Child)
		}
	}
	return n
}

// NewArena encodes t. With wait set, a reaper stays until every descendant is
// gone; otherwise it ends with the program (and takes its PID namespace along).
func NewArena(t Tape, wait bool) (*Arena, error) { return (*Memory)(nil).NewArena(t, wait, 0) }

// NewArena is NewArena with memory of m, to which Free returns it, and room for
// what Resume or Prepare bring later, in bytes. Without room they map more, which
// a child with a memory of its own does not see.
func (m *Memory) NewArena(t Tape, wait bool, room int) (*Arena, error) {
	a := &Arena{from: m, slots: make(map[string]uintptr), rooms: make(map[string]place)}
	err := a.grow(sizeOf(t) + int(unsafe.Sizeof(rawStatus{})) + 2048 + room)
	if err != nil {
		return nil, err
	}
	// The block is at the start of a page, so it is aligned; it lives as long as mem.
	a.status = (*rawStatus)(unsafe.Pointer(&a.mem[a.take(int(unsafe.Sizeof(rawStatus{})))]))
	if wait {
		a.status.mode = 1
	}
	a.slots[PIDSlot] = uintptr(unsafe.Pointer(&a.status.pid))
	a.steps = t.Steps()
	if a.tape, err = a.encode(t, 1); err != nil {
		a.Free()
		return nil, err
	}
	return a, nil
}

// grow adds memory of at least size bytes, in whole pages.
func (a *Arena) grow(size int) error {
	if a.apart {
		return errApart
	}
	page := os.Getpagesize()
	mem := a.from.take(size)
	if mem == nil {
		var err error
		if mem, err = mapShared((max(size, arenaSize) + page - 1) / page * page); err != nil {
			return err
		}
	}
	if a.mem != nil {
		a.full = append(a.full, a.mem)
	}
	a.mem, a.used = mem, 0
	return nil
}

func mapShared(size int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return mem, nil
}

// Trim gives up the tape of a child that waits in its step Park, and of its
// reaper, which waits for it: both read nothing any more but the status block.
// What Resume brings comes in its place. It does nothing while one of the two is
// still on its way there.
func (a *Arena) Trim() error {
	if atomic.LoadUintptr(&a.status.parked) != 1 || atomic.LoadUintptr(&a.status.reaping) != 1 {
		return nil
	}
	a.parts, a.slots, a.rooms = nil, make(map[string]uintptr), make(map[string]place)
	a.used = int(unsafe.Sizeof(rawStatus{}))
	page := os.Getpagesize()
	clear(a.mem[a.used:page])
	if len(a.mem) > page {
		if err := unix.Madvise(a.mem[page:], unix.MADV_REMOVE); err != nil {
			return fmt.Errorf("madvise: %w", err)
		}
	}
	return nil
}

// Resume lets a child that waits in its step Park go on with t, which it has not
// seen before. It can be called once. It fails for a child with a memory of its
// own (see Start) if the arena has no room for t.
func (a *Arena) Resume(t Tape) error {
	if need := sizeOf(t); a.used+need > len(a.mem) {
		if err := a.grow(need); err != nil {
			return err
		}
	}
	next, err := a.encode(t, a.steps+1)
	if err != nil {
		return err
	}
	return a.wake(next)
}

func (a *Arena) wake(next uintptr) error {
	atomic.StoreUintptr(&a.status.next, next)
	atomic.StoreUint32(&a.status.wake, 1)
	const futexWake = 1
	if _, _, e := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&a.status.wake)), futexWake, 1, 0, 0, 0); e != 0 {
		return fmt.Errorf("futex: %w", e)
	}
	return nil
}

// take reserves n bytes, aligned to 16, and returns their offset.
func (a *Arena) take(n int) int {
	at := (a.used + 15) &^ 15
	if at+n > len(a.mem) {
		panic("sys: internal error: " + errArena.Error())
	}
	a.used = at + n
	return at
}

// addr is the address of an offset. mem is never moved: it is not Go memory.
func (a *Arena) addr(off int) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(a.mem))) + uintptr(off)
}

func (a *Arena) put(b []byte) uintptr {
	off := a.take(len(b) + 1)
	copy(a.mem[off:], b)
	a.mem[off+len(b)] = 0
	return a.addr(off)
}

func (a *Arena) putWords(w []uintptr) uintptr {
	off := a.take(len(w) * 8)
	for i, v := range w {
		*(*uintptr)(unsafe.Pointer(&a.mem[off+8*i])) = v // in bounds: take reserved len(w) words, 16-aligned
	}
	return a.addr(off)
}

// putStrings stores a NULL-terminated vector of strings.
func (a *Arena) putStrings(vec []string) uintptr {
	w := make([]uintptr, 0, 32)
	for _, v := range vec {
		w = append(w, a.put([]byte(v)))
	}
	return a.putWords(append(w, 0))
}

func (a *Arena) slot(name string) uintptr {
	if p, ok := a.slots[name]; ok {
		return p
	}
	p := a.putWords([]uintptr{0})
	a.slots[name] = p
	return p
}

// roomFor is the address of room for n bytes.
func (a *Arena) roomFor(name string, n int) uintptr {
	r, ok := a.rooms[name]
	if !ok || r.size != n {
		r = place{a.take(n), n}
		a.rooms[name] = r
	}
	return a.addr(r.at)
}

// encode puts down t, whose first step has that number.
func (a *Arena) encode(t Tape, first int) (uintptr, error) {
	const stepSize = int(unsafe.Sizeof(rawStep{}))
	base := a.take(stepSize * len(t))
	for i := range t {
		s := &t[i]
		nr, ok := numbers[s.Call]
		if !ok {
			return 0, fmt.Errorf("tape step %d: unknown system call %q", i, s.Call)
		}
		if len(s.Args) > 6 {
			return 0, fmt.Errorf("tape step %d: %s with %d arguments", i, s.Call, len(s.Args))
		}
		r := rawStep{nr: nr}
		for j := range s.Args {
			arg := &s.Args[j]
			switch arg.kind {
			case argInt, argFD, argSecret, argID:
				r.args[j] = uintptr(arg.val)
			case argStr:
				r.args[j] = a.put([]byte(arg.label))
			case argBytes:
				r.args[j] = a.put(arg.data)
			case argPtr:
				p := a.put([]byte(arg.vec[0]))
				off := a.take(len(arg.data))
				copy(a.mem[off:], arg.data)
				*(*uintptr)(unsafe.Pointer(&a.mem[off+int(arg.val)])) = p // val is the offset of the pointer, 8-aligned
				r.args[j] = a.addr(off)
			case argVec:
				r.args[j] = a.putStrings(arg.vec)
			case argSlot:
				r.args[j] = a.slot(arg.label)
				r.flags |= 1 << j
			case argRoom:
				r.args[j] = a.roomFor(arg.label, int(arg.val))
			}
		}
		if s.MayFail {
			r.flags |= flagMayFail
		}
		if s.Out != "" {
			r.out = a.slot(s.Out)
		}
		if s.Child != nil {
			alt, err := a.encode(s.Child, first+t[:i].Steps()+1)
			if err != nil {
				return 0, err
			}
			r.alt, r.flags = alt, r.flags|flagClone
		}
		off := base + i*stepSize
		*(*rawStep)(unsafe.Pointer(&a.mem[off])) = r // in bounds: base reserved len(t) steps
	}
	a.parts = append(a.parts, encoded{a.addr(base), t, first})
	return a.addr(base), nil
}

// cloneArgs is struct clone_args of clone3(2), up to cgroup (88 bytes, kernel 5.7).
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

func startTape(args, size, tape, status uintptr) (pid uintptr)

// Start clones a child that walks the arena's tape, with the given CLONE_NEW*
// flags, and returns its PID and a pidfd. The child gets a copy of the caller's
// descriptor table; with CLONE_FILES among the flags it uses the caller's own,
// until a step takes a copy (CLOSE_RANGE_UNSHARE). Start must be called from a goroutine that is
// locked to its thread: the child's parent-death signal is tied to that thread.
//
// cgroup is a descriptor of a cgroup v2 directory to be born in, or -1. Without
// one the child shares the caller's memory (CLONE_VM). With one it gets a copy:
// when the group runs out of memory the kernel kills every process that shares
// a victim's memory, wherever it is (__oom_kill_process in mm/oom_kill.c), and
// the caller must not be among them. KeepMemory makes that copy a small one.
func (a *Arena) Start(flags uint64, cgroup int) (pid, pidfd int, err error) {
	var fd int32 = -1
	// CLONE_CLEAR_SIGHAND (5.5): Go's handlers must never run in the child.
	args := cloneArgs{
		flags: flags | unix.CLONE_PIDFD | unix.CLONE_CLEAR_SIGHAND,
		// No signal at its end: everybody waits for it with __WALL.
	}
	if cgroup >= 0 {
		args.flags |= unix.CLONE_INTO_CGROUP
		args.cgroup = uint64(cgroup)
		a.apart = true
	}
	if !a.apart {
		args.flags |= unix.CLONE_VM
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&fd)
	pin.Pin(&args)
	args.pidfd = uint64(uintptr(unsafe.Pointer(&fd)))
	r := startTape(uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), a.tape, uintptr(unsafe.Pointer(a.status)))
	if int(r) < 0 {
		return 0, -1, fmt.Errorf("clone3: %w", unix.Errno(-int(r)))
	}
	return int(r), int(fd), nil
}

// Slot returns what a step of the child left, -errno if that failed. It is meaningful
// once the child has told that it is behind that step, and until Trim.
func (a *Arena) Slot(name string) (v int64, ok bool) {
	at, ok := a.slots[name]
	if !ok {
		return 0, false
	}
	return int64(atomic.LoadUintptr((*uintptr)(unsafe.Pointer(&a.mem[at-a.addr(0)])))), true // in bounds: a slot of mem, which no tape has outgrown
}

// Room returns the text that a step of the child left in room of that name, up to the
// first NUL. It is meaningful when Slot is.
func (a *Arena) Room(name string) (text string, ok bool) {
	r, ok := a.rooms[name]
	if !ok {
		return "", false
	}
	b, _, _ := bytes.Cut(a.mem[r.at:r.at+r.size], []byte{0})
	return string(b), true
}

// Failed returns the step that ended the child, or nil. It is meaningful once
// the child closed its status pipe.
func (a *Arena) Failed() *StepError {
	e := atomic.LoadUintptr(&a.status.errno)
	if e == 0 {
		return nil
	}
	where := atomic.LoadUintptr(&a.status.where)
	var s Step
	var number int
	for _, p := range a.parts {
		if i := (where - p.at) / unsafe.Sizeof(rawStep{}); where >= p.at && i < uintptr(len(p.tape)) {
			s, number = p.tape[i], p.first+p.tape[:i].Steps()
		}
	}
	return &StepError{Number: number, Step: s.Call, Line: s.String(), Errno: unix.Errno(e)}
}

// Program returns the wait status and resource usage of the program, as its
// reaper saw them; ok is false if the reaper died first. Call it only after the
// reaper was waited for.
func (a *Arena) Program() (ws unix.WaitStatus, ru unix.Rusage, ok bool) {
	if atomic.LoadUintptr(&a.status.done) != 1 {
		return 0, ru, false
	}
	return unix.WaitStatus(uint32(a.status.wstatus)), a.status.usage, true
}

// Free unmaps the arena.
func (a *Arena) Free() {
	for _, m := range a.full {
		unix.Munmap(m)
	}
	if a.mem != nil && !a.from.give(a.mem) {
		unix.Munmap(a.mem)
	}
	a.mem, a.full = nil, nil
}

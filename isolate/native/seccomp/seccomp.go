// Package seccomp compiles the system call policy of a cell into a seccomp
// filter.
//
// A [Policy] is data: rules that name system calls, say under which arguments
// they are allowed, and give a reason. [Cell] is the policy of tiers B and C.
// [Compile] turns a Policy into the BPF program for one architecture; the
// package makes no system call itself and works on every platform.
//
//	f, err := seccomp.Compile(seccomp.Cell(seccomp.Options{Tier: tier.C, ExecCookie: c, AllowInet: true}), seccomp.AMD64)
//	// install f.Bytes() with seccomp(SECCOMP_SET_MODE_FILTER); record f.Digest()
//
// # What the kernel does with it
//
// Every program starts with the architecture check: a call made through
// another system call table (i386 through int 0x80, x32) kills the process,
// because its numbers mean something else. A number that the table knows and
// no rule allows fails with EPERM; a number that the table does not know fails
// with ENOSYS, as on a kernel without it, so that the C library falls back.
//
// # What it does not protect against
//
// Arguments behind pointers cannot be compared: openat2(2) and clone3(2) are
// refused whole for that reason, sendmsg(2) and the rest are not looked into.
// Kernel bugs reachable through the calls that are allowed remain. A filter
// knows nothing of paths; that is what mounts and Landlock are for.
package seccomp

import (
	"encoding/binary"
	"fmt"

	"palyra/internal/canon"
)

// Action is what the kernel does with a system call: the value that the filter
// returns. The zero Action kills the thread.
type Action uint32

// The actions. Errno makes the others.
const (
	Allow       Action = 0x7fff0000 // SECCOMP_RET_ALLOW
	KillProcess Action = 0x80000000 // SECCOMP_RET_KILL_PROCESS
)

// Errno returns the Action that makes the call fail with e.
func Errno(e uint16) Action { return 0x00050000 | Action(e) } // SECCOMP_RET_ERRNO

// Error numbers that policies use; they are the same on amd64 and arm64.
const (
	EPERM           = 1
	ENOMEM          = 12
	EACCES          = 13
	EINVAL          = 22
	ENOTTY          = 25
	EROFS           = 30
	ENOSYS          = 38
	ENOPROTOOPT     = 92
	EPROTONOSUPPORT = 93
	ENOTSUP         = 95
	EAFNOSUPPORT    = 97
)

// String returns "allow", "kill_process", "errno 1", ...
func (a Action) String() string {
	switch {
	case a == Allow:
		return "allow"
	case a == KillProcess:
		return "kill_process"
	case a&0xffff0000 == 0x00050000:
		return fmt.Sprintf("errno %d", uint32(a&0xffff))
	}
	return fmt.Sprintf("action %#x", uint32(a))
}

// Policy is a list of rules. The order of rules does not matter: each system
// call is named by at most one.
type Policy struct {
	Name    string
	Default Action // for a call of the table that no rule names
	Unknown Action // for a number that the table does not have
	Rules   []Rule
}

// Rule says what happens to the named calls. A name that an architecture does
// not have is skipped there; one that none has is an error.
type Rule struct {
	Calls   []string
	Clauses []Clause // first match wins
	Else    Action   // if no clause matches
	Why     string   // one reason for the whole group
}

// Clause is an action under conditions, which must all hold.
type Clause struct {
	When []Cond
	Then Action
}

// Cond compares one argument. Unless Wide, only the low 32 bits are looked at,
// which is what the kernel does with an argument of type int: a filter that
// compared 64 bits could be passed with a garbage high half (CVE-2019-10063).
type Cond struct {
	Arg    int      // 0 to 5
	Wide   bool     // compare all 64 bits; one value, no mask, Op In only
	Mask   uint32   // applied before comparing; 0 means all 32 bits
	Op     Op       //
	Values []uint64 // for In: any of them. For AnyBit: none
}

// Op is how a Cond compares.
type Op uint8

// The comparisons.
const (
	In     Op = iota // argument & Mask is one of Values
	AnyBit           // argument & Mask is not zero
)

// Instr is one BPF instruction, struct sock_filter.
type Instr struct {
	Code   uint16
	Jt, Jf uint8
	K      uint32
}

// Filter is a compiled Policy. Its zero value has no instructions and cannot
// be installed.
type Filter struct {
	instrs []Instr
}

// Instrs returns a copy of the program.
func (f Filter) Instrs() []Instr { return append([]Instr(nil), f.instrs...) }

// Len returns the number of instructions.
func (f Filter) Len() int { return len(f.instrs) }

// Bytes returns the program as the kernel takes it: an array of struct
// sock_filter, little endian (both architectures are).
func (f Filter) Bytes() []byte {
	b := make([]byte, 0, 8*len(f.instrs))
	for _, i := range f.instrs {
		b = binary.LittleEndian.AppendUint16(b, i.Code)
		b = append(b, i.Jt, i.Jf)
		b = binary.LittleEndian.AppendUint32(b, i.K)
	}
	return b
}

// Digest is the SHA-256 of Bytes.
func (f Filter) Digest() canon.Digest { return canon.Sum(f.Bytes()) }

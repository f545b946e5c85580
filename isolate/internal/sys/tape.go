package sys

import (
	"fmt"
	"strconv"
	"strings"

	"palyra/internal/canon"
)

type argKind uint8

const (
	argInt    argKind = iota
	argFD             // descriptor: printed by label, since its number says nothing
	argStr            // pointer to a string in the arena
	argBytes          // pointer to bytes in the arena
	argVec            // pointer to a NULL-terminated vector of strings
	argSlot           // eight bytes that an earlier step stored
	argSecret         // a number that is not printed
	argID             // a user or group, printed by label: another one each time
	argPtr            // pointer to a structure with a pointer in it
	argRoom           // pointer to room that a step fills, val bytes
)

// Arg is one argument of a step. Make it with Int, FD, Str, Bytes, Strings,
// Slot, Room, Secret or ID. It becomes text only when it is printed: most tapes are walked and
// never read.
type Arg struct {
	kind  argKind
	val   uint64
	label string // argStr: the string itself
	text  string // argBytes: what to print instead of the digest; "" for the digest
	data  []byte
	vec   []string
}

// Int is a plain number, printed in hexadecimal above nine.
func Int[T ~int | ~int64 | ~uint64 | ~uint32 | ~uintptr | ~uint](v T) Arg {
	return Arg{kind: argInt, val: uint64(v)}
}

// FD is a descriptor of the parent, inherited by the child.
func FD(label string, n int) Arg { return Arg{kind: argFD, val: uint64(n), label: label} }

// Str is a pointer to a NUL-terminated string.
func Str(s string) Arg {
	return Arg{kind: argStr, label: s}
}

// Bytes is a pointer to a structure. The label and the content's digest are
// printed, or only the given text if text is not empty.
func Bytes(label string, b []byte, text string) Arg {
	return Arg{kind: argBytes, label: label, text: text, data: b}
}

// Strings is a pointer to a NULL-terminated vector, as execve(2) takes it.
func Strings(label string, v []string) Arg {
	return Arg{kind: argVec, vec: v, label: label}
}

// Slot is the result of an earlier step with that Out name.
func Slot(name string) Arg { return Arg{kind: argSlot, label: name} }

// Room is a pointer to n bytes, all zero, that the step fills. Arena.Room returns what is
// there. Steps with the same label and n have the same.
func Room(label string, n int) Arg {
	return Arg{kind: argRoom, val: uint64(n), label: label}
}

// Secret is a number that must not be printed.
func Secret(label string, v uint64) Arg { return Arg{kind: argSecret, val: v, label: label} }

// ID is a user or group id that says nothing, as descriptors do: that of one call.
func ID(label string, n int) Arg { return Arg{kind: argID, val: uint64(n), label: label} }

// ptrIn is a pointer to bytes followed by pointers that are resolved when the
// tape is encoded; it carries a structure with one embedded pointer.
func ptrIn(label string, head []byte, at int, data []byte) Arg {
	return Arg{kind: argPtr, label: label, data: head, val: uint64(at), vec: []string{string(data)}}
}

// SockFprog is a pointer to a struct sock_fprog for a filter given as its
// sock_filter array. Only its size is printed: the program holds the cookie.
func SockFprog(filter []byte) Arg {
	head := make([]byte, 16)
	head[0], head[1] = byte(len(filter)/8), byte(len(filter)/8>>8)
	return ptrIn("sock_fprog", head, 8, filter)
}

// String prints the argument.
func (a Arg) String() string { return string(a.appendTo(nil)) }

func (a *Arg) appendTo(b []byte) []byte {
	switch a.kind {
	case argInt:
		if a.val > 9 && int64(a.val) > 0 {
			return strconv.AppendUint(append(b, "0x"...), a.val, 16)
		}
		return strconv.AppendInt(b, int64(a.val), 10)
	case argFD:
		return append(append(b, "fd:"...), a.label...)
	case argSlot:
		return append(append(b, '$'), a.label...)
	case argSecret:
		return append(append(b, "secret:"...), a.label...)
	case argID:
		return append(append(b, "id:"...), a.label...)
	case argStr:
		return strconv.AppendQuote(b, a.label)
	}
	b = append(b, a.label...)
	switch a.kind {
	case argVec:
		return append(strconv.AppendInt(append(b, '['), int64(len(a.vec)), 10), ']')
	case argRoom:
		return append(strconv.AppendUint(append(b, '['), a.val, 10), ']')
	case argPtr:
		return append(strconv.AppendInt(append(b, '{'), int64(len(a.vec[0])), 10), " bytes}"...)
	}
	b = append(b, '{')
	if a.text == "" {
		b = append(b, canon.Sum(a.data).Hex()[:16]...)
	}
	return append(append(b, a.text...), '}')
}

// Step is one system call of a tape.
type Step struct {
	Call    string // name as in the manual, a key of the number table
	Args    []Arg  // at most six
	Out     string // slot that takes the result; "" for none
	MayFail bool   // an error is not the end; the slot, if any, takes -errno
	Child   Tape   // for "clone": what the new child walks instead of the rest
	Why     string // one sentence: what it is for, and why here
}

// Init is the step in which the first process of a cell waits for the program,
// as its reaper, and then ends. It is the last of its tape.
const Init = "init"

// Park is the step in which a cell that was made ahead waits for its call. The
// steps after it come later, by Arena.Resume, whose tape ends the child's own.
const Park = "park"

// PIDSlot is the slot that the reaper's clone step must store its result in.
const PIDSlot = "program"

// String prints the step as the manual would.
func (s Step) String() string { return string(s.appendTo(nil)) }

func (s *Step) appendTo(b []byte) []byte {
	b = append(append(b, s.Call...), '(')
	for i := range s.Args {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = s.Args[i].appendTo(b)
	}
	b = append(b, ')')
	if s.Out != "" {
		b = append(append(b, " -> $"...), s.Out...)
	}
	if s.MayFail {
		b = append(b, " [may fail]"...)
	}
	return b
}

// Tape is the list of steps that a child walks, in order.
type Tape []Step

// Lines returns the tape as text, one step a line; steps of a child's tape
// follow their clone step, indented. It holds no descriptor numbers, no
// secrets and no argument of the program, so equal confinement prints equally.
func (t Tape) Lines() []string {
	lines := strings.Split(t.Text(), "\n")
	return lines[:len(lines)-1]
}

// Text is Lines, each followed by a newline.
func (t Tape) Text() string { return string(t.appendText(make([]byte, 0, textSize), "")) }

// textSize is more than most tapes have.
const textSize = 8 << 10

func (t Tape) appendText(b []byte, indent string) []byte {
	for i := range t {
		b = append(t[i].appendTo(append(b, indent...)), '\n')
		if t[i].Child != nil {
			b = t[i].Child.appendText(b, indent+"  ")
		}
	}
	return b
}

// Steps counts the steps, those of children included: the lines of Lines.
func (t Tape) Steps() int {
	n := len(t)
	for i := range t {
		n += t[i].Child.Steps()
	}
	return n
}

// Digest is the SHA-256 of Text.
func (t Tape) Digest() canon.Digest { return DigestAfter("", t) }

// DigestAfter is the SHA-256 of the text of earlier steps and of t.
func DigestAfter(text string, t Tape) canon.Digest {
	return canon.Sum(t.appendText(append(make([]byte, 0, len(text)+textSize), text...), ""))
}

// StepError says which step of a tape ended the child.
type StepError struct {
	// Number of the step among the lines of its tape, from 1. The rest that a cell
	// which was made ahead gets with its call goes on where its tape ended.
	Number int
	Step   string // the system call's name
	Line   string // the step as printed
	Errno  error
}

// Error names the step and its system call.
func (e *StepError) Error() string { return fmt.Sprintf("step %d: %s: %v", e.Number, e.Step, e.Errno) }

// Unwrap returns the errno.
func (e *StepError) Unwrap() error { return e.Errno }

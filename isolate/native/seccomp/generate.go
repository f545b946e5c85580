package seccomp

import (
	"errors"
	"slices"
)

// BPF codes, linux/bpf_common.h.
const (
	ldAbs = 0x20 // BPF_LD | BPF_W | BPF_ABS
	andK  = 0x54 // BPF_ALU | BPF_AND | BPF_K
	jaK   = 0x05 // BPF_JMP | BPF_JA
	jeqK  = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	jgeK  = 0x35 // BPF_JMP | BPF_JGE | BPF_K
	jsetK = 0x45 // BPF_JMP | BPF_JSET | BPF_K
	retK  = 0x06 // BPF_RET | BPF_K
)

// Offsets in struct seccomp_data, little endian: low half of an argument first.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

const (
	maxInstrs = 4096 // BPF_MAXINSNS
	maxJump   = 255  // conditional jumps have eight bits
	maxWalk   = 12   // segments; more make the way of a number longer, fewer the program
)

// generator writes a program backwards, so that the target of every jump exists
// when the jump is written: BPF jumps forward only. code is reversed; an
// instruction is known by its index in it.
type generator struct {
	code []Instr
	rets map[Action]int // the last RET written for an action
	memo map[node]int   // equal instructions with equal targets are written once
	err  error
}

type node struct {
	code uint16
	k    uint32
	t, f int
}

// segment is a range of numbers, from lo to the next segment's lo. Neighbours
// have different keys.
type segment struct {
	lo  uint32
	key any
	gen func() int // writes what the range leads to and returns its entry
}

// search writes a search for A in segs and returns its entry: a binary one, down to
// few enough segments to walk them.
func (g *generator) search(segs []segment) int {
	switch {
	case len(segs) == 1:
		return segs[0].gen()
	case len(segs) <= maxWalk:
		return g.walk(segs)
	}
	mid := len(segs) / 2
	right := g.search(segs[mid:])
	left := g.search(segs[:mid])
	return g.jump(jgeK, segs[mid].lo, right, left)
}

// walk writes a search that takes segments one by one: first single numbers in the
// midst of something else, which then is one piece, and then the rest from above.
// The kernel makes two instructions of a jump that goes elsewhere in both cases.
// Here that is the last one only; in a tree it would be half of them.
func (g *generator) walk(segs []segment) int {
	type test struct {
		code uint16
		segment
	}
	var tests []test
	rest := slices.Clone(segs)
	for i := 1; i < len(rest)-1; {
		if rest[i-1].key != rest[i+1].key || rest[i+1].lo != rest[i].lo+1 {
			i++
			continue
		}
		tests = append(tests, test{jeqK, rest[i]})
		rest = slices.Delete(rest, i, i+2)
		i = max(i-1, 1) // what is before it may be one now
	}
	for _, s := range slices.Backward(rest[1:]) {
		tests = append(tests, test{jgeK, s})
	}
	to := make([]int, len(tests))
	for i, t := range slices.Backward(tests) {
		to[i] = t.gen()
	}
	entry := rest[0].gen()
	for i, t := range slices.Backward(tests) {
		entry = g.jump(t.code, t.lo, to[i], entry)
	}
	return entry
}

// ret returns a RET of the action that is near enough to jump to.
func (g *generator) ret(a Action) int {
	if at, ok := g.rets[a]; ok && len(g.code)-at < maxJump-8 {
		return at
	}
	g.rets[a] = g.write(Instr{Code: retK, K: uint32(a)})
	return g.rets[a]
}

// load writes A = word at off, then goes to next.
func (g *generator) load(off uint32, next int) int { return g.then(ldAbs, off, next) }

// and writes A &= k, then goes to next.
func (g *generator) and(k uint32, next int) int { return g.then(andK, k, next) }

func (g *generator) then(code uint16, k uint32, next int) int {
	n := node{code, k, next, next}
	if at, ok := g.memo[n]; ok {
		return at
	}
	if next != len(g.code)-1 { // it would fall into something else
		g.write(Instr{Code: jaK, K: uint32(len(g.code) - next - 1)})
	}
	g.memo[n] = g.write(Instr{Code: code, K: k})
	return g.memo[n]
}

// jump writes a comparison of A with k. If both ways lead to the same place
// there is nothing to compare.
func (g *generator) jump(code uint16, k uint32, t, f int) int {
	if t == f {
		return t
	}
	n := node{code, k, t, f}
	if at, ok := g.memo[n]; ok {
		return at
	}
	// A trampoline for one side moves the jump away from the other by one.
	if len(g.code)-t > maxJump {
		t = g.trampoline(t)
	}
	if len(g.code)-f > maxJump {
		f = g.trampoline(f)
	}
	if len(g.code)-t-1 > maxJump {
		g.err = errors.New("jump too long")
	}
	g.memo[n] = g.write(Instr{Code: code, Jt: uint8(len(g.code) - t - 1), Jf: uint8(len(g.code) - f - 1), K: k})
	return g.memo[n]
}

func (g *generator) trampoline(t int) int {
	return g.write(Instr{Code: jaK, K: uint32(len(g.code) - t - 1)})
}

func (g *generator) write(i Instr) int {
	g.code = append(g.code, i)
	return len(g.code) - 1
}

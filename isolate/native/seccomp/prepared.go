package seccomp

import (
	_ "embed"
	"encoding/binary"
	"fmt"

	"palyra/internal/canon"
	"palyra/isolate/tier"
)

// The programs that cells are made with, compiled ahead: compiling takes half a
// millisecond of every process that starts cells, and gives the same bytes each
// time but for the cookie. TestPrepared compares every byte of them with what
// Compile gives, for both architectures; with -update it writes them.
//
// A file has a section for each of preparedFor, in that order: the SHA-256 of the
// program without a cookie, the number of instructions (2 bytes, little endian)
// and the program with preparedCookie, as [Filter.Bytes] has it.
var (
	//go:embed prepared/amd64
	preparedAMD64 string
	//go:embed prepared/arm64
	preparedARM64 string
)

// preparedFor are the options that have a program, up to the cookie: those of
// isolate/cell.
var preparedFor = prepareFor()

// prepareFor combines the sockets that a call may make, at tier B with how its
// workspace is shown, with what bounds memory: a cgroup, the counting of the host's root or
// of a user, with System V objects or without.
func prepareFor() (all []Options) {
	for _, m := range []Options{{AllowUncounted: true, AllowShared: true, AllowIPC: true}, {AllowShared: true, AllowIPC: true}, {AllowIPC: true}, {}} {
		for _, o := range []Options{{AllowUnix: true}, {}, {NoPair: true}} {
			m.Tier, m.AllowUnix, m.NoPair = tier.C, o.AllowUnix, o.NoPair
			all = append(all, m)
		}
	}
	for _, shared := range []bool{true, false} {
		for _, o := range []Options{{}, {ReadOnly: true}, {NoPair: true}} {
			o.Tier, o.AllowShared = tier.B, shared
			all = append(all, o)
		}
	}
	return all
}

// preparedCookie is a cookie neither half of which any other instruction compares
// with.
const preparedCookie = 0x9e3779b97f4a7c15

// ForCell is Compile(Cell(o), a) with the digest of the same program without the
// cookie, which is its policy's: the cookie differs from one palyra-cell to the
// next. What was compiled ahead is not compiled again.
func ForCell(o Options, a Arch) (f Filter, policy canon.Digest, err error) {
	if f, policy, ok := prepared(o, a); ok {
		return f, policy, nil
	}
	if f, err = Compile(Cell(o), a); err != nil {
		return Filter{}, policy, err
	}
	o.ExecCookie = 0
	plain, err := Compile(Cell(o), a)
	if err != nil {
		return Filter{}, policy, err
	}
	return f, plain.Digest(), nil
}

// prepared finds a program that was compiled ahead.
func prepared(o Options, a Arch) (f Filter, policy canon.Digest, ok bool) {
	cookie := o.ExecCookie
	if cookie == 0 { // another program: without the rule that the cookie opens
		return Filter{}, policy, false
	}
	o.ExecCookie = 0
	if o.Tier == tier.C { // what is ignored
		o.ReadOnly = false
	} else {
		o.AllowUnix, o.AllowIPC = false, false
	}
	var table string
	switch a {
	case AMD64:
		table = preparedAMD64
	case ARM64:
		table = preparedARM64
	}
	for i := 0; table != ""; i++ {
		n := len(policy) + 2 + 8*int(binary.LittleEndian.Uint16([]byte(table[len(policy):len(policy)+2])))
		if i < len(preparedFor) && preparedFor[i] == o {
			copy(policy[:], table)
			return Filter{withCookie(table[len(policy)+2:n], cookie)}, policy, true
		}
		table = table[n:]
	}
	return Filter{}, policy, false
}

// withCookie decodes a program and puts the cookie into its place.
func withCookie(program string, cookie uint64) []Instr {
	instrs := make([]Instr, len(program)/8)
	for i := range instrs {
		b := []byte(program[8*i : 8*i+8])
		x := Instr{Code: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.LittleEndian.Uint32(b[4:])}
		if x.Code == jeqK && x.K == preparedCookie>>32 {
			x.K = uint32(cookie >> 32)
		} else if x.Code == jeqK && x.K == preparedCookie&0xffffffff {
			x.K = uint32(cookie)
		}
		instrs[i] = x
	}
	return instrs
}

// prepare makes the table of an architecture.
func prepare(a Arch) ([]byte, error) {
	var out []byte
	for _, o := range preparedFor {
		plain, err := Compile(Cell(o), a)
		if err != nil {
			return nil, fmt.Errorf("prepare filter for %s: %w", a, err)
		}
		o.ExecCookie = preparedCookie
		f, err := Compile(Cell(o), a)
		if err != nil {
			return nil, fmt.Errorf("prepare filter for %s: %w", a, err)
		}
		digest := plain.Digest()
		out = append(out, digest[:]...)
		out = binary.LittleEndian.AppendUint16(out, uint16(f.Len()))
		out = append(out, f.Bytes()...)
	}
	return out, nil
}

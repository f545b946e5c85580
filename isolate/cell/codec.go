package cell

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/evidence"
)

// A run's request and its Result travel in a fixed layout, not as JSON: both
// stand between a caller and its program. Integers are eight bytes, little
// endian; a string is its length in four bytes and its bytes; a list or a map is
// its length plus one in four bytes, zero for nil, and its elements, a map's in
// the order of its keys. So a value has one form and a form one value.

// errCodec is all that is said of a message that is not of this layout: both
// sides are built together, so it is a bug or the wrong binary.
var errCodec = errors.New("decode cell message: not of this layout")

// codec walks a value in order, either appending it to out or reading it from in.
// What is read shares the memory of in.
type codec struct {
	out     []byte
	in      string
	reading bool
	bad     bool // in was not of the layout
}

// next returns the next n bytes of in.
func (c *codec) next(n int) string {
	if c.bad || n < 0 || n > len(c.in) {
		c.bad = true
		return ""
	}
	s := c.in[:n]
	c.in = c.in[n:]
	return s
}

func (c *codec) word(v uint64) uint64 {
	if !c.reading {
		c.out = binary.LittleEndian.AppendUint64(c.out, v)
		return v
	}
	s := c.next(8)
	if c.bad {
		return 0
	}
	for i := range 8 {
		v = v<<8 | uint64(s[7-i])
	}
	return v
}

func (c *codec) size(v int) int {
	if !c.reading {
		c.out = binary.LittleEndian.AppendUint32(c.out, uint32(v))
		return v
	}
	s := c.next(4)
	if c.bad {
		return 0
	}
	return int(s[0]) | int(s[1])<<8 | int(s[2])<<16 | int(s[3])<<24
}

// integer walks an integer of any type that loses nothing.
func integer[T ~int | ~int64 | ~uint8 | ~uint32 | ~uint64](c *codec, v *T) {
	w := c.word(uint64(*v))
	if c.reading {
		*v = T(w)
		if uint64(*v) != w {
			c.bad = true
		}
	}
}

func text[T ~string](c *codec, v *T) {
	n := c.size(len(*v))
	if c.reading {
		*v = T(c.next(n))
		return
	}
	c.out = append(c.out, *v...)
}

func (c *codec) digest(v *canon.Digest) {
	if c.reading {
		copy(v[:], c.next(len(v)))
		return
	}
	c.out = append(c.out, v[:]...)
}

// list walks a list; least is the least that an element takes.
func list[T any](c *codec, v *[]T, least int, walk func(*codec, *T)) {
	n := c.size(length(*v == nil, len(*v)))
	if c.reading {
		*v = nil
		if n == 0 || c.bad {
			return
		}
		if (n-1)*least > len(c.in) {
			c.bad = true
			return
		}
		*v = make([]T, n-1)
	}
	for i := range *v {
		walk(c, &(*v)[i])
	}
}

// length is a list's length as it travels.
func length(isNil bool, n int) int {
	if isNil {
		return 0
	}
	return n + 1
}

// table walks a map.
func table[V any](c *codec, v *map[string]V, walk func(*codec, *V)) {
	n := c.size(length(*v == nil, len(*v)))
	if !c.reading {
		for _, k := range slices.Sorted(maps.Keys(*v)) {
			x := (*v)[k]
			text(c, &k)
			walk(c, &x)
		}
		return
	}
	*v = nil
	if n == 0 || c.bad {
		return
	}
	if n-1 > len(c.in)/4 {
		c.bad = true
		return
	}
	m := make(map[string]V, n-1)
	last := ""
	for i := range n - 1 {
		var k string
		var x V
		text(c, &k)
		walk(c, &x)
		if c.bad || i > 0 && k <= last {
			c.bad = true
			return
		}
		m[k], last = x, k
	}
	*v = m
}

// call walks what only the call can say: the part of a Result that a cell which
// was made ahead does not have.
func (c *codec) call(r *isolate.Result) {
	e := r.Evidence
	text(c, &r.Outcome)
	text(c, &e.Cell.Basis)
	text(c, &e.Cell.Mode)
	integer(c, &e.Cell.ArmedNS)
	walkExecutable(c, &e.Executable)
	text(c, &e.Tape.Basis)
	c.digest(&e.Tape.Digest)
	integer(c, &e.Tape.Steps)
	x := &e.Exit
	text(c, &x.Basis)
	integer(c, &x.Code)
	integer(c, &x.Signal)
	text(c, &x.LimitHit)
	dead := uint8(0)
	if x.TreeDead {
		dead = 1
	}
	integer(c, &dead)
	x.TreeDead = dead == 1
	c.bad = c.bad || dead > 1
	text(c, &x.TreeBasis)
	u := &e.Usage
	text(c, &u.Basis)
	integer(c, &u.WallNS)
	integer(c, &u.UserNS)
	integer(c, &u.SystemNS)
	integer(c, &u.MaxRSS)
	integer(c, &u.PeakMemory)
	o := &e.Output
	text(c, &o.Basis)
	integer(c, &o.StdoutBytes)
	integer(c, &o.StderrBytes)
	c.digest(&o.StdoutDigest)
	c.digest(&o.StderrDigest)
	integer(c, &o.Cut)
	list(c, &e.Scripts, 4, walkExecutable)
}

func walkExecutable(c *codec, x *evidence.Executable) {
	text(c, &x.Basis)
	text(c, &x.Path)
	c.digest(&x.Digest)
	text(c, &x.Pinned)
	text(c, &x.DigestBasis)
	text(c, &x.DigestTime)
}

// own walks what differs between cells of one kind.
func (c *codec) own(e *evidence.Evidence) {
	text(c, &e.Executor)
	text(c, &e.Tier)
	text(c, &e.Namespaces.Basis)
	table(c, &e.Namespaces.Cell, integer[uint64])
	table(c, &e.Namespaces.Host, integer[uint64])
	list(c, &e.Namespaces.Fresh, 4, text[string])
	text(c, &e.Network.Basis)
	text(c, &e.Network.Mode)
	p := &e.Process
	text(c, &p.Basis)
	integer(c, &p.NoNewPrivs)
	integer(c, &p.Seccomp)
	integer(c, &p.Filters)
	for _, s := range []*string{&p.CapInh, &p.CapPrm, &p.CapEff, &p.CapBnd, &p.CapAmb} {
		text(c, s)
	}
	integer(c, &p.HostUID)
	integer(c, &p.HostGID)
	list(c, &p.Groups, 8, integer[uint32])
	integer(c, &p.Session)
	integer(c, &p.TTY)
	list(c, &p.Descriptors, 4, text[string])
}

// common walks what cells of one kind have in common.
func (c *codec) common(e *evidence.Evidence) {
	for _, s := range []*string{&e.Host.Release, &e.Host.Machine, &e.Host.BootID} {
		text(c, s)
	}
	for _, b := range []*evidence.Basis{&e.Host.Basis, &e.Seccomp.Basis, &e.Landlock.Basis, &e.Limits.Basis, &e.Mounts.Basis, &e.Cgroup.Basis} {
		text(c, b)
	}
	s := &e.Seccomp
	c.digest(&s.Program)
	c.digest(&s.Policy)
	integer(c, &s.Instructions)
	integer(c, &s.DefaultErrno)
	l := &e.Landlock
	integer(c, &l.ABI)
	integer(c, &l.HandledFS)
	integer(c, &l.HandledNet)
	integer(c, &l.Scoped)
	list(c, &l.Rules, 4, text[string])
	table(c, &e.Limits.Soft, integer[int64])
	table(c, &e.Limits.Hard, integer[int64])
	c.digest(&e.Mounts.Digest)
	list(c, &e.Mounts.Table, 4, text[string])
	text(c, &e.Cgroup.State)
	table(c, &e.Cgroup.Values, text[string])
	list(c, &e.Degraded, 4, text[string])
}

// cellForm is what is known of a cell before its call: own, and common.
type cellForm struct {
	own    []byte
	common string // of many cells the same string
}

func formOf(e *evidence.Evidence) (own, common []byte) {
	var c codec
	c.out = make([]byte, 0, 1024)
	c.own(e)
	at := len(c.out)
	c.common(e)
	return c.out[:at:at], c.out[at:]
}

// fill reads what own and common wrote.
func (f *cellForm) fill(e *evidence.Evidence) error {
	a, b := codec{in: string(f.own), reading: true}, codec{in: f.common, reading: true}
	a.own(e)
	b.common(e)
	if a.bad || b.bad || a.in != "" || b.in != "" {
		return errCodec
	}
	return nil
}

// appendCell appends the cell's part of evidence, from f if it is there.
func appendCell(out []byte, e *evidence.Evidence, f *cellForm) []byte {
	if f != nil {
		return append(append(out, f.own...), f.common...)
	}
	c := codec{out: out}
	c.own(e)
	c.common(e)
	return c.out
}

// parseCell is the inverse of appendCell. The evidence shares b's memory.
func parseCell(b string) (*evidence.Evidence, error) {
	e := new(evidence.Evidence)
	c := codec{in: b, reading: true}
	c.own(e)
	c.common(e)
	if c.bad || c.in != "" {
		return nil, errCodec
	}
	return e, nil
}

// appendCall appends what of a Result is not the cell's part of its evidence.
func appendCall(out []byte, r *isolate.Result) []byte {
	c := codec{out: out}
	c.call(r)
	return c.out
}

// parseCall is the inverse of appendCall: it adds to e, which is the Result's. The
// Result shares b's memory.
func parseCall(b string, e *evidence.Evidence) (*isolate.Result, error) {
	r := &isolate.Result{Evidence: e}
	c := codec{in: b, reading: true}
	c.call(r)
	if c.bad || c.in != "" {
		return nil, errCodec
	}
	return r, nil
}

// Bits of a run's request: what descriptors there are besides the three that
// every run has.
const (
	hasSpec = 1 << iota // the Spec is the first one, a sealed memfd
	hasScript
	hasWorkspace
	hasStdin
)

// grantSize is the size of a grant's wire form.
const grantSize = 136

// runHead is what stands before the Spec in a run's request.
const runHead = 1 + 8 + 1 + 8 + grantSize

// appendRun appends a run's request up to the Spec; kind is opRun or opExplain.
func appendRun(out []byte, kind byte, id uint64, has uint8, operands int, grant []byte) []byte {
	out = append(out, kind)
	out = binary.LittleEndian.AppendUint64(out, id)
	out = append(out, has)
	out = binary.LittleEndian.AppendUint64(out, uint64(operands))
	return append(out, grant...)
}

// parseRun is the inverse of appendRun. What it returns shares b's memory.
func parseRun(b []byte) (r request, err error) {
	if len(b) < runHead || b[0] != opRun && b[0] != opExplain {
		return r, errCodec
	}
	r.kind, r.ID = b[0], binary.LittleEndian.Uint64(b[1:])
	has, operands := b[9], binary.LittleEndian.Uint64(b[10:])
	if has >= hasStdin<<1 || operands > maxFiles || has&hasSpec != 0 != (len(b) == runHead) {
		return r, errCodec
	}
	r.has, r.operands = has, int(operands)
	r.grant, r.spec = b[18:runHead], b[runHead:]
	return r, nil
}

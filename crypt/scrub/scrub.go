// Package scrub removes values of secrets from text: what a program prints, and what is logged.
//
//	r := scrub.New()
//	err := r.Add(alice, "token", value)  // from here on
//	clean := r.Of(alice.Name).Bytes(text) // has "[secret token]" in its place
//
// A value belongs to the owner to whom it was given out: it's removed from that owner's text, and
// no other owner's. [Registry.Writer], for the log of a process, removes all of them. A [Stream] is
// for text that comes in parts, whatever their borders.
//
// # Contract
//
// A value of [Min] bytes and more is removed wherever it stands exactly, as it is (with or without
// the newlines at its end, and with "\r\n" for "\n", as terminals print it), in base64 (both
// alphabets, padded or not, at each alignment within other text, or alone in lines of 64 or 76), in
// hexadecimal, with percent escapes, as the content of a JSON string, or quoted for a shell, by
// Python, or in markup. Of the values that begin at a byte the longest is taken, and the text goes
// on behind it. Text that agrees with the first [Sure] bytes of a value is removed as far as it
// agrees, whatever follows. Shorter values stay: they can't be told from other text.
//
// Values stay until Wipe, outside the heap where that is possible ([seal.Secret]). They're counted
// in a [budget.Pool], by owner: one that finds no room isn't added, and must not be given out.
//
// A byte of text takes [Sure] steps at most, however many values there are and whatever they begin
// with, and no owner's text takes longer for another's values but in [Registry.Writer].
//
// # What it does not protect against
//
// A program that means to tell a value: it can print it backwards, compressed, in two parts or
// with a blank between its characters, or write it to a file. Lines that are indented or have
// anything else between them aren't matched either, nor is other base64 in lines. And whoever may
// print text learns, by the mask, that it has guessed a value of its owner's.
package scrub

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"palyra/crypt/seal"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/internal/spelling"
)

// table has the spellings of one owner's values.
type table = spelling.Table

// Min is the length, in bytes, from which on values are removed.
const Min = spelling.Min

// Sure is the length, in bytes, of a value's beginning that stands for the value.
const Sure = spelling.Sure

// The pool that values are taken from, in bytes of spellings and of the tree that finds them: some
// fourteen thousand values of 40 bytes, three and a half thousand of one owner. They aren't given
// back, so that an owner's share is smaller than it is elsewhere.
const (
	poolTotal   = 64 << 20
	poolReserve = 8 << 20
	poolEach    = (poolTotal - poolReserve) / 4
)

// Registry has the values to remove, by owner. It's safe for concurrent use. A nil Registry has
// none.
type Registry struct {
	pool *budget.Pool
	all  atomic.Pointer[[]*owned] // in the order in which they came; swapped, never mutated

	mu sync.Mutex // of Add and Wipe
	by sync.Map   // of owner's names: *owned
}

// owned are the values of one owner.
type owned struct {
	now atomic.Pointer[table] // nil: no value

	// Guarded by Registry.mu.
	held []*seal.Secret
	free []byte // of the last one
	hold []*budget.Hold
}

// NewOwn returns a Registry for a process with one owner, who has all there is.
func NewOwn() *Registry { return newRegistry(poolTotal, poolTotal, 0) }

// New returns a Registry without values.
func New() *Registry { return newRegistry(poolTotal, poolEach, poolReserve) }

func newRegistry(total, each, reserve int64) *Registry {
	return &Registry{pool: budget.New(budget.Limits{Name: "secrets", Total: total, Each: each, Reserve: reserve})}
}

// Pool is the account of what the values take, in bytes.
func (r *Registry) Pool() budget.Account { return r.pool }

// A mask is the name of its value between these.
const (
	maskFront = "[secret "
	maskEnd   = "]"
)

// arena is the size of the memory that values of an owner share.
const arena = 16 << 10

// Add has a value removed from an owner's text from now on. name stands in its mask. The value
// stays the caller's.
func (r *Registry) Add(o budget.Owner, name string, value []byte) error {
	if r == nil || len(value) < Min {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x, size := new(owned), int64(spelling.TableSize)
	if was, ok := r.by.Load(o.Name); ok {
		x, size = was.(*owned), 0
	}
	next := new(table)
	if now := x.now.Load(); now != nil {
		if _, known := now.Has(value); known {
			return nil
		}
		*next = *now
	}
	all := spelling.Of(value)
	defer func() {
		for _, p := range all {
			clear(p)
		}
	}()
	mask := []byte(maskFront + name + maskEnd)
	n, cost := 0, size+int64(len(mask))
	for _, p := range all {
		n += len(p)
		cost += 2 * spelling.NodeSize // its own, and one where it leaves others
	}
	room := x.free
	if fresh := max(n, arena); n > len(room) {
		cost += int64(fresh)
		room = nil
	}
	hold, err := r.pool.Take(o, cost)
	if err != nil {
		return fault.New(fault.KindOf(err), fault.ReasonOf(err), fmt.Sprintf("remember secret %q", name), err).
			WithHint("too many secrets were given out to keep all of them from output and logs: restart palyrad")
	}
	x.hold = append(x.hold, hold)
	if room == nil {
		s := seal.NewSecret(make([]byte, max(n, arena)))
		x.held, room = append(x.held, s), s.Bytes()
	}
	for i, p := range all {
		copy(room, p)
		next.Add(room[:len(p):len(p)], mask, i == 0) // the value comes first
		room = room[len(p):]
	}
	x.free = room
	x.now.Store(next)
	if _, known := r.by.LoadOrStore(o.Name, x); !known {
		var list []*owned
		if was := r.all.Load(); was != nil {
			list = append(list, *was...)
		}
		list = append(list, x)
		r.all.Store(&list)
	}
	return nil
}

// Wipe forgets all values. Nothing else may use r at that time.
func (r *Registry) Wipe() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if all := r.all.Swap(nil); all != nil {
		for _, x := range *all {
			x.now.Store(nil)
			for _, s := range x.held {
				s.Wipe()
			}
			for _, h := range x.hold {
				h.Release()
			}
		}
	}
	r.by.Clear()
}

// Of returns the values of an owner, those that are added later included.
func (r *Registry) Of(owner string) Values { return Values{r, owner} }

// Values are those of one owner. The zero Values has none.
type Values struct {
	r     *Registry
	owner string
}

// table returns the table of the owner, nil if it has no value.
func (v Values) table() *table {
	if v.r == nil {
		return nil
	}
	x, ok := v.r.by.Load(v.owner)
	if !ok {
		return nil
	}
	return x.(*owned).now.Load()
}

// Bytes returns b without values: b itself, if it has none.
func (v Values) Bytes(b []byte) []byte { return clean(b, v.table()) }

// String is Bytes for a string.
func (v Values) String(s string) string { return string(v.Bytes([]byte(s))) }

// Span is a part of a text: from its byte From to before its byte To.
type Span struct{ From, To int }

// Holds reports whether b has a value that isn't within one of the parts but, which are in order.
func (v Values) Holds(b []byte, but ...Span) bool {
	t := v.table()
	if t == nil {
		return false
	}
	for i := 0; i < len(b); i++ {
		n, _, _ := t.At(b, i, true)
		if n == 0 {
			continue
		}
		for len(but) > 0 && but[0].To <= i {
			but = but[1:]
		}
		if len(but) == 0 || i < but[0].From || i+n > but[0].To {
			return true
		}
	}
	return false
}

// clean returns b without the values of ts, b itself if it has none. Of all values that begin at a
// byte the longest is taken.
func clean(b []byte, ts ...*table) []byte {
	var out []byte
	from := 0
	for i := 0; i < len(b); {
		n, mask := 0, []byte(nil)
		for _, t := range ts {
			if t == nil {
				continue
			}
			if m, as, _ := t.At(b, i, true); m > n {
				n, mask = m, as
			}
		}
		if n == 0 {
			i++
			continue
		}
		out = append(append(out, b[from:i]...), mask...)
		i += n
		from = i
	}
	if from == 0 {
		return b
	}
	return append(out, b[from:]...)
}

// Writer returns a writer that passes each Write on to w, as one, without the values of any owner.
func (r *Registry) Writer(w io.Writer) io.Writer { return writer{r, w} }

type writer struct {
	r *Registry
	w io.Writer
}

func (w writer) Write(b []byte) (int, error) {
	var ts []*table
	if w.r != nil {
		if all := w.r.all.Load(); all != nil {
			for _, x := range *all {
				ts = append(ts, x.now.Load())
			}
		}
	}
	text := clean(b, ts...)
	if n, err := w.w.Write(text); err != nil || n < len(text) {
		return min(n, len(b)), err
	}
	return len(b), nil
}

// Stream removes values from text that comes in parts. It's for one goroutine at a time. A nil
// Stream removes none.
type Stream struct {
	v    Values
	held []byte // the end of what came, with which a value may begin
	out  []byte
	tell func(name string) // nil: not told
}

// Tell has found called, with its name, for each value that is removed from now on.
func (s *Stream) Tell(found func(name string)) { s.tell = found }

// Stream returns a Stream of the values.
func (v Values) Stream() *Stream { return &Stream{v: v} }

// Next returns what is certain of the text so far, beyond what it returned before. Only what may be
// the beginning of a value waits. The result is valid until the next call.
func (s *Stream) Next(b []byte) []byte { return s.next(b, false) }

// End returns the rest.
func (s *Stream) End() []byte { return s.next(nil, true) }

func (s *Stream) next(b []byte, last bool) []byte {
	if s == nil {
		return b
	}
	t := s.v.table()
	if t == nil && len(s.held) == 0 {
		return b
	}
	if t == nil { // wiped meanwhile
		t = new(table)
	}
	if len(s.held) > 0 {
		s.held = append(s.held, b...)
		b = s.held
	}
	out, from, i := s.out[:0], 0, 0
	for i < len(b) {
		n, mask, more := t.At(b, i, last)
		if more {
			break
		}
		if n == 0 {
			i++
			continue
		}
		if s.tell != nil {
			s.tell(string(mask[len(maskFront) : len(mask)-len(maskEnd)]))
		}
		out = append(append(out, b[from:i]...), mask...)
		i += n
		from = i
	}
	s.out = append(out, b[from:i]...)
	s.held = append(s.held[:0], b[i:]...) // b may be held: a move to its front
	return s.out
}

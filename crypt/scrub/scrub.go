// Package scrub removes values of secrets from text: what a program prints, and what is logged.
//
//	r := scrub.New()
//	err := r.Add("token", value) // from here on
//	clean := r.Bytes(text)       // has "[secret token]" in its place
//
// A [Stream] does the same for text that comes in parts, whatever their borders.
//
// # Contract
//
// A value of [Min] bytes and more is removed wherever it stands exactly, as it is (with or without
// the newlines at its end, and with "\r\n" for "\n", as terminals print it), in base64 (both
// alphabets, padded or not, at each alignment within other text), in hexadecimal, with percent
// escapes, or as the content of a JSON string. Of the values that begin at a byte the longest is
// taken, and the text goes on behind it. Shorter values stay: they can't be told from other text.
//
// What was added stays until Wipe, outside the heap where that is possible ([seal.Secret]), and
// within a bound: from there on Add fails, and the value must not be given out. One that begins
// with repetitions counts for five times its length.
//
// # What it does not protect against
//
// A program that means to tell a value: it can print it backwards, compressed, in two parts or
// with a blank between its characters, or write it to a file. Base64 that is broken into lines
// isn't matched either. And whoever may print text learns, by the mask, that it has guessed a value.
package scrub

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"palyra/crypt/seal"
	"palyra/internal/fault"
)

// Min is the length, in bytes, from which on values are removed.
const Min = 8

// maxPatterns bounds what a Registry holds, in bytes: some ten thousand values of 40 bytes.
const maxPatterns = 64 << 20

// Registry has the values to remove. It's safe for concurrent use. A nil Registry has none.
type Registry struct {
	now atomic.Pointer[table] // nil: no value

	mu    sync.Mutex
	known map[[sha256.Size]byte]bool // guarded by mu
	held  []*seal.Secret             // guarded by mu
	bytes int                        // guarded by mu
	limit int                        // of bytes; tests have another than maxPatterns
}

// New returns a Registry without values.
func New() *Registry { return &Registry{known: make(map[[sha256.Size]byte]bool), limit: maxPatterns} }

// pattern is one spelling of a value.
type pattern struct {
	text     []byte // of a seal.Secret
	mask     []byte
	overlaps []int32 // nil: compare it as a whole
}

// table finds patterns by their first two bytes. Immutable.
type table struct {
	first [256]bool
	begun [1 << 16 / 64]uint64   // a bit for each key of pairs
	pairs map[[2]byte][]*pattern // longest first
}

// Add has a value removed from now on. name stands in its mask. The value stays the caller's.
func (r *Registry) Add(name string, value []byte) error {
	if r == nil || len(value) < Min {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := sha256.Sum256(value)
	if r.known[sum] {
		return nil
	}
	all := spellings(value)
	defer func() {
		for _, p := range all {
			clear(p)
		}
	}()
	n, more := 0, make([][]int32, len(all))
	cost := 0
	for i, p := range all {
		more[i] = overlaps(p)
		n += len(p)
		cost += len(p) + 4*len(more[i])
	}
	if r.bytes+cost > r.limit {
		return fault.New(fault.Unavailable, "resource_exhausted", fmt.Sprintf("remember secret %q", name), errors.New("too many secrets were given out to keep all of them from output and logs")).
			WithHint("restart palyrad")
	}
	text := make([]byte, 0, n)
	for _, p := range all {
		text = append(text, p...)
	}
	s := seal.NewSecret(text)
	clear(text)
	r.known[sum], r.held, r.bytes = true, append(r.held, s), r.bytes+cost

	next := &table{pairs: make(map[[2]byte][]*pattern)}
	if old := r.now.Load(); old != nil {
		next.first, next.begun = old.first, old.begun
		for k, v := range old.pairs {
			next.pairs[k] = v
		}
	}
	mask := []byte("[secret " + name + "]")
	at := s.Bytes()
	for i, p := range all {
		x := &pattern{at[:len(p):len(p)], mask, more[i]}
		at = at[len(p):]
		k := [2]byte{x.text[0], x.text[1]}
		next.first[k[0]] = true
		next.begun[uint(k[0])<<2|uint(k[1]>>6)] |= 1 << (k[1] & 63)
		list := append(slices.Clone(next.pairs[k]), x)
		slices.SortStableFunc(list, func(a, b *pattern) int { return len(b.text) - len(a.text) })
		next.pairs[k] = list
	}
	r.now.Store(next)
	return nil
}

// Wipe forgets all values. Nothing else may use r at that time.
func (r *Registry) Wipe() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Store(nil)
	for _, s := range r.held {
		s.Wipe()
	}
	r.held, r.bytes = nil, 0
	clear(r.known)
}

// at says what begins at text[i]: a pattern that is all there (n > 0), none (n == 0), or what more text
// decides (n < 0), which last rules out.
func (t *table) at(s *search, i int, last bool) (n int, mask []byte) {
	b := s.text[i:]
	if !t.first[b[0]] {
		return 0, nil
	}
	if len(b) == 1 {
		if last {
			return 0, nil
		}
		return -1, nil
	}
	if t.begun[uint(b[0])<<2|uint(b[1]>>6)]&(1<<(b[1]&63)) == 0 {
		return 0, nil
	}
	for _, p := range t.pairs[[2]byte{b[0], b[1]}] {
		switch {
		case p.overlaps != nil:
			n := s.agrees(p, i)
			if n == len(p.text) {
				return n, p.mask
			}
			if !last && n == len(b) {
				return -1, nil
			}
		case len(b) >= len(p.text):
			if bytes.HasPrefix(b, p.text) {
				return len(p.text), p.mask
			}
		case !last && bytes.HasPrefix(p.text, b):
			return -1, nil
		}
	}
	return 0, nil
}

// scan appends b without values to out, and returns what more text decides.
func (t *table) scan(out, b []byte, last bool) (clean, rest []byte) {
	from, s := 0, search{text: b}
	for i := 0; i < len(b); {
		n, mask := t.at(&s, i, last)
		switch {
		case n < 0:
			return append(out, b[from:i]...), b[i:]
		case n == 0:
			i++
		default:
			out = append(append(out, b[from:i]...), mask...)
			i += n
			from = i
		}
	}
	return append(out, b[from:]...), nil
}

// Bytes returns b without values: b itself, if it has none.
func (r *Registry) Bytes(b []byte) []byte {
	if !r.Holds(b) {
		return b
	}
	out, _ := r.now.Load().scan(nil, b, true)
	return out
}

// String is Bytes for a string.
func (r *Registry) String(s string) string { return string(r.Bytes([]byte(s))) }

// Holds reports whether b has a value.
func (r *Registry) Holds(b []byte) bool {
	if r == nil {
		return false
	}
	t := r.now.Load()
	if t == nil {
		return false
	}
	s := search{text: b}
	for i := range b {
		if n, _ := t.at(&s, i, true); n > 0 {
			return true
		}
	}
	return false
}

// Writer returns a writer that passes each Write on to w, as one, without values.
func (r *Registry) Writer(w io.Writer) io.Writer { return writer{r, w} }

type writer struct {
	r *Registry
	w io.Writer
}

func (w writer) Write(b []byte) (int, error) {
	clean := w.r.Bytes(b)
	if n, err := w.w.Write(clean); err != nil || n < len(clean) {
		return min(n, len(b)), err
	}
	return len(b), nil
}

// Stream removes values from text that comes in parts. It's for one goroutine at a time. A nil
// Stream removes none.
type Stream struct {
	r    *Registry
	held []byte // the end of what came, with which a value may begin
	out  []byte
}

// Stream returns a Stream of r's values, those that are added later included.
func (r *Registry) Stream() *Stream {
	if r == nil {
		return nil
	}
	return &Stream{r: r}
}

// Next returns what is certain of the text so far, beyond what it returned before. Only what may be
// the beginning of a value waits. The result is valid until the next call.
func (s *Stream) Next(b []byte) []byte { return s.next(b, false) }

// End returns the rest.
func (s *Stream) End() []byte { return s.next(nil, true) }

func (s *Stream) next(b []byte, last bool) []byte {
	if s == nil {
		return b
	}
	t := s.r.now.Load()
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
	var rest []byte
	s.out, rest = t.scan(s.out[:0], b, last)
	s.held = append(s.held[:0], rest...) // rest may lie in held: a move to its front
	return s.out
}

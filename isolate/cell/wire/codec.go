package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"slices"
	"strings"
	"sync"

	"palyra/isolate"
)

// A run's request and its Result are on the way between a caller and its program, so they
// travel in a fixed layout, not as JSON. A Result is its fields in the order of their
// declaration. Numbers and booleans are eight bytes, little endian; a digest is its bytes; a
// string is its length in four bytes, then its bytes; a list, map or pointer is its length plus
// one in four bytes (zero for nil), then its elements, a map's in the order of its keys. So a
// value has one form, and a form one value.

// protocol is the version of everything but the fields of a Result.
const protocol = 11

// Version is what both sides must agree on: the protocol, and a checksum of a Result's fields,
// so that a field added to evidence makes a new version.
var Version = sync.OnceValue(func() int {
	return protocol<<32 | int(crc32.ChecksumIEEE(layout(nil, reflect.TypeFor[isolate.Result]())))
})

// layout appends a description of a type, as walk walks it.
func layout(out []byte, t reflect.Type) []byte {
	out = append(append(out, t.Kind().String()...), '(')
	switch t.Kind() {
	case reflect.Struct:
		for f := range t.Fields() {
			out = layout(append(append(out, f.Name...), ' '), f.Type)
		}
	case reflect.Array, reflect.Map, reflect.Pointer, reflect.Slice:
		out = layout(out, t.Elem())
	}
	return append(out, ')')
}

// ErrCodec is the error for any message that isn't of this layout. Both sides are built
// together, so it's a bug or the wrong binary.
var ErrCodec = errors.New("decode cell message: not of this layout")

// AppendResult appends the layout of r to out.
func AppendResult(out []byte, r *isolate.Result) []byte {
	c := codec{out: out}
	c.walk(reflect.ValueOf(r).Elem())
	return c.out
}

// ParseResult is the inverse of AppendResult. The Result shares b's memory.
func ParseResult(b string) (*isolate.Result, error) {
	r := new(isolate.Result)
	c := codec{in: b, reading: true}
	c.walk(reflect.ValueOf(r).Elem())
	if c.bad || c.in != "" {
		return nil, ErrCodec
	}
	return r, nil
}

// codec walks a value in order. It appends the value to out or reads it from in.
type codec struct {
	out     []byte
	in      string
	reading bool
	bad     bool // in isn't of the layout
}

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
	return binary.LittleEndian.Uint64([]byte(s))
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
	return int(binary.LittleEndian.Uint32([]byte(s)))
}

// count walks the number n of elements of v, -1 if v is nil. A number that is read is bounded
// by the rest of in, since each element takes at least four bytes.
func (c *codec) count(v reflect.Value, n int) int {
	if v.IsNil() {
		n = -1
	}
	n = c.size(n+1) - 1
	if c.reading && (n < -1 || n > len(c.in)/4) {
		c.bad = true
		return -1
	}
	return n
}

func (c *codec) text(s string) string {
	n := c.size(len(s))
	if c.reading {
		return c.next(n)
	}
	c.out = append(c.out, s...)
	return s
}

// walk walks a value, which must be zero before it is read. TestResultTravels finds types
// without a layout.
func (c *codec) walk(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			c.walk(v.Field(i))
		}
	case reflect.Array: // of bytes
		if c.reading {
			copy(v.Bytes(), c.next(v.Len()))
		} else {
			c.out = append(c.out, v.Bytes()...)
		}
	case reflect.String:
		if s := c.text(v.String()); c.reading {
			v.SetString(s)
		}
	case reflect.Bool:
		var w uint64
		if v.Bool() {
			w = 1
		}
		if w = c.word(w); c.reading {
			c.bad = c.bad || w > 1
			v.SetBool(w == 1)
		}
	case reflect.Int, reflect.Int64:
		if w := int64(c.word(uint64(v.Int()))); c.reading {
			c.bad = c.bad || v.OverflowInt(w)
			v.SetInt(w)
		}
	case reflect.Uint32, reflect.Uint64:
		if w := c.word(v.Uint()); c.reading {
			c.bad = c.bad || v.OverflowUint(w)
			v.SetUint(w)
		}
	case reflect.Pointer:
		if n := c.count(v, 1); n >= 0 {
			if c.reading {
				c.bad = c.bad || n != 1
				v.Set(reflect.New(v.Type().Elem()))
			}
			c.walk(v.Elem())
		}
	case reflect.Slice:
		n := c.count(v, v.Len())
		if c.reading && n >= 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			c.walk(v.Index(i))
		}
	case reflect.Map:
		c.table(v)
	default:
		panic("wire: internal error: no layout for " + v.Type().String())
	}
}

func (c *codec) table(v reflect.Value) {
	n := c.count(v, v.Len())
	value := reflect.New(v.Type().Elem()).Elem()
	if !c.reading {
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			c.text(k.String())
			value.Set(v.MapIndex(k))
			c.walk(value)
		}
		return
	}
	if n < 0 {
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), n))
	for last, i := "", 0; i < n && !c.bad; i++ {
		k := c.text("")
		value.SetZero()
		c.walk(value)
		c.bad = c.bad || i > 0 && k <= last
		v.SetMapIndex(reflect.ValueOf(k), value)
		last = k
	}
}

// Bits of a run's request: the descriptors besides the executable, standard output and error.
const (
	HasSpec = 1 << iota // the Spec is the first descriptor, a sealed memfd
	HasScript
	HasWorkspace
	HasStdin
	HasLayer
	HasTerminal // instead of standard output and error
	HasEgress
	HasRoots // the last bit
)

// GrantSize is the size of a grant's wire form, in bytes.
const GrantSize = 136

// RunHead is the size of a run's request before the Spec, in bytes.
const RunHead = 1 + 8 + 1 + 8 + GrantSize

// AppendRun appends a run's request up to the Spec; kind is OpRun or OpExplain.
func AppendRun(out []byte, kind byte, id uint64, has uint8, more int, grant []byte) []byte {
	out = append(out, kind)
	out = binary.LittleEndian.AppendUint64(out, id)
	out = append(out, has)
	out = binary.LittleEndian.AppendUint64(out, uint64(more))
	return append(out, grant...)
}

// ParseRun is the inverse of AppendRun. The Request shares b's memory.
func ParseRun(b []byte) (r Request, err error) {
	if len(b) < RunHead || b[0] != OpRun && b[0] != OpExplain {
		return r, ErrCodec
	}
	r.Kind, r.ID = b[0], binary.LittleEndian.Uint64(b[1:])
	has, more := b[9], binary.LittleEndian.Uint64(b[10:])
	if more > MaxFiles || has&HasSpec != 0 != (len(b) == RunHead) {
		return r, ErrCodec
	}
	r.Has, r.More = has, int(more)
	r.Grant, r.Spec = b[18:RunHead], b[RunHead:]
	return r, nil
}

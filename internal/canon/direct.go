package canon

import (
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// The direct way from a value to its canonical form: an encoder per type, which
// knows the order of its members before it sees a value. It takes a fifth of the
// time of printing with encoding/json, parsing that and printing it again. It
// does what it is certain of and nothing else: for every type, value or error
// beyond that it gives up, and Marshal goes the long way, which defines what is
// right. TestDirect and FuzzDirect hold the two to each other.

// encoder appends the canonical form of v, which is nested so deep. It returns
// false if the long way has to be gone.
type encoder func(b []byte, v reflect.Value, depth int) ([]byte, bool)

// encoders is to a type what sync.OnceValue is to a value: what it returns was
// worked out once and depends on the type alone.
var encoders = &memo{}

// memo keeps the encoder of each type that was met, nil for those that go the
// long way.
type memo struct {
	byType  sync.Map  // reflect.Type → encoder
	scratch sync.Pool // *[]byte, to print into
}

// maxScratch bounds what is kept to print into, in bytes.
const maxScratch = 64 << 10

// print is direct into memory that is used again: what is returned is as large as
// it needs to be, and what it grew through is no garbage.
func (m *memo) print(v any) ([]byte, bool) {
	s, _ := m.scratch.Get().(*[]byte)
	if s == nil {
		s = new(slices.Grow([]byte(nil), 8<<10))
	}
	b, ok := own((*s)[:0], v)
	if !ok {
		b, ok = direct((*s)[:0], v)
	}
	if !ok {
		return nil, false
	}
	out := slices.Clone(b)
	if cap(b) <= maxScratch {
		*s = b
		m.scratch.Put(s)
	}
	return out, true
}

// own is for types that print themselves.
func own(b []byte, v any) ([]byte, bool) {
	p, ok := v.(Printer)
	if !ok || reflect.ValueOf(v).IsZero() { // a nil pointer has no members
		return b, false
	}
	w := Writer{b: b}
	p.PrintCanonical(&w)
	return w.b, !w.bad
}

func (m *memo) of(t reflect.Type) encoder {
	if e, ok := m.byType.Load(t); ok {
		return e.(encoder)
	}
	e := (&compiler{memo: m}).encoder(t)
	m.byType.Store(t, e)
	return e
}

// direct appends the canonical form of v, or returns false.
func direct(b []byte, v any) ([]byte, bool) {
	if v == nil {
		return append(b, "null"...), true
	}
	enc := encoders.of(reflect.TypeOf(v))
	if enc == nil {
		return b, false
	}
	return enc(b, reflect.ValueOf(v), 0)
}

// maxDepth is where the long way refuses.
const maxDepth = 1000

// compiler makes encoders. Types that contain themselves go the long way.
type compiler struct {
	memo  *memo
	above []reflect.Type
}

func (c *compiler) encoder(t reflect.Type) encoder {
	if slices.Contains(c.above, t) {
		return nil
	}
	c.above = append(c.above, t)
	defer func() { c.above = c.above[:len(c.above)-1] }()

	switch t {
	case reflect.TypeFor[json.RawMessage]():
		return rawEncoder
	case reflect.TypeFor[json.Number]():
		return nil
	case reflect.TypeFor[Digest]():
		return digestEncoder
	}
	if mayHaveMethods(t) {
		ptr := reflect.PointerTo(t)
		switch {
		case t.Implements(reflect.TypeFor[json.Marshaler]()):
			return marshalerEncoder
		case ptr.Implements(reflect.TypeFor[json.Marshaler]()):
			return nil // depends on whether the value has an address
		case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
			return textEncoder
		case ptr.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
			return nil
		}
	}
	switch t.Kind() {
	case reflect.Bool:
		return func(b []byte, v reflect.Value, _ int) ([]byte, bool) { return strconv.AppendBool(b, v.Bool()), true }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return intEncoder
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return uintEncoder
	case reflect.Float64:
		return floatEncoder
	case reflect.String:
		return func(b []byte, v reflect.Value, _ int) ([]byte, bool) { return appendText(b, v.String()) }
	case reflect.Interface:
		return interfaceEncoder(c.memo)
	case reflect.Pointer:
		return pointerEncoder(c.encoder(t.Elem()))
	case reflect.Slice, reflect.Array:
		return c.list(t)
	case reflect.Map:
		return c.dict(t)
	case reflect.Struct:
		return c.object(t)
	}
	return nil
}

// mayHaveMethods is false for string, []string and what else was not declared in
// a package, which most members are: looking for methods, and for the type of a
// pointer to it, takes most of the time of a process that makes each encoder once.
func mayHaveMethods(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Struct: // those of what is embedded, or pointed to
		return true
	}
	return t.PkgPath() != ""
}

func appendText(b []byte, s string) ([]byte, bool) {
	n := plain(s)
	if n < len(s) && !utf8.ValidString(s[n:]) {
		return b, false
	}
	return appendFrom(append(b, '"'), s, n), true
}

// maxExact is 2^53: below it a double holds every integer.
const maxExact = 1 << 53

func intEncoder(b []byte, v reflect.Value, _ int) ([]byte, bool) {
	return appendInt(b, v.Int())
}

func uintEncoder(b []byte, v reflect.Value, _ int) ([]byte, bool) {
	return appendUint(b, v.Uint())
}

func floatEncoder(b []byte, v reflect.Value, _ int) ([]byte, bool) {
	f := v.Float()
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return b, false
	}
	return appendNumber(b, f), true
}

func digestEncoder(b []byte, v reflect.Value, _ int) ([]byte, bool) {
	d, _ := reflect.TypeAssert[Digest](v)
	b = append(b, '"')
	if !d.IsZero() {
		b = hex.AppendEncode(append(b, "sha256:"...), d[:])
	}
	return append(b, '"'), true
}

// rawEncoder takes a raw message as it is if it is canonical.
func rawEncoder(b []byte, v reflect.Value, depth int) ([]byte, bool) {
	raw := v.Bytes()
	if raw == nil {
		return append(b, "null"...), true
	}
	return append(b, raw...), canonical(raw, depth)
}

func marshalerEncoder(b []byte, v reflect.Value, depth int) ([]byte, bool) {
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return append(b, "null"...), true
	}
	m, ok := reflect.TypeAssert[json.Marshaler](v)
	if !ok {
		return b, false
	}
	raw, err := m.MarshalJSON()
	return append(b, raw...), err == nil && canonical(raw, depth)
}

func textEncoder(b []byte, v reflect.Value, _ int) ([]byte, bool) {
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return append(b, "null"...), true
	}
	m, ok := reflect.TypeAssert[encoding.TextMarshaler](v)
	if !ok {
		return b, false
	}
	text, err := m.MarshalText()
	if err != nil || !utf8.Valid(text) {
		return b, false
	}
	return appendString(b, string(text)), true
}

func interfaceEncoder(m *memo) encoder {
	return func(b []byte, v reflect.Value, depth int) ([]byte, bool) {
		if v.IsNil() {
			return append(b, "null"...), true
		}
		v = v.Elem()
		enc := m.of(v.Type())
		if enc == nil || depth > maxDepth {
			return b, false
		}
		return enc(b, v, depth+1) // counted, so that a cycle ends
	}
}

func pointerEncoder(elem encoder) encoder {
	if elem == nil {
		return nil
	}
	return func(b []byte, v reflect.Value, depth int) ([]byte, bool) {
		if v.IsNil() {
			return append(b, "null"...), true
		}
		return elem(b, v.Elem(), depth)
	}
}

func (c *compiler) list(t reflect.Type) encoder {
	e := t.Elem()
	if e.Kind() == reflect.Uint8 && t.Kind() == reflect.Slice {
		if p := reflect.PointerTo(e); p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return nil
		}
		return bytesEncoder
	}
	elem := c.encoder(e)
	if elem == nil {
		return nil
	}
	return func(b []byte, v reflect.Value, depth int) (_ []byte, ok bool) {
		if v.Kind() == reflect.Slice && v.IsNil() {
			return append(b, "null"...), true
		}
		if depth >= maxDepth {
			return b, false
		}
		b = append(b, '[')
		for i := range v.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			if b, ok = elem(b, v.Index(i), depth+1); !ok {
				return b, false
			}
		}
		return append(b, ']'), true
	}
}

func bytesEncoder(b []byte, v reflect.Value, _ int) ([]byte, bool) {
	if v.IsNil() {
		return append(b, "null"...), true
	}
	b = append(b, '"')
	return append(base64.StdEncoding.AppendEncode(b, v.Bytes()), '"'), true
}

func (c *compiler) dict(t reflect.Type) encoder {
	if enc := mapEncoder(t); enc != nil {
		return enc
	}
	elem := c.encoder(t.Elem())
	if elem == nil || t.Key().Kind() != reflect.String || t.Key().Implements(reflect.TypeFor[encoding.TextMarshaler]()) ||
		reflect.PointerTo(t.Key()).Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return nil
	}
	return func(b []byte, v reflect.Value, depth int) (_ []byte, ok bool) {
		if v.IsNil() {
			return append(b, "null"...), true
		}
		if depth >= maxDepth {
			return b, false
		}
		keys := v.MapKeys()
		for _, k := range keys {
			if !utf8.ValidString(k.String()) {
				return b, false
			}
		}
		slices.SortFunc(keys, func(a, b reflect.Value) int { return compareUTF16(a.String(), b.String()) })
		b = append(b, '{')
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, k.String()), ':')
			if b, ok = elem(b, v.MapIndex(k), depth+1); !ok {
				return b, false
			}
		}
		return append(b, '}'), true
	}
}

// member is a field of a struct.
type member struct {
	name      string
	quoted    string // with the colon
	index     []int
	enc       encoder
	omitEmpty bool
	omitZero  func(reflect.Value) bool // nil: never
}

func (c *compiler) object(t reflect.Type) encoder {
	members, ok := c.members(t, nil, nil)
	if !ok {
		return nil
	}
	slices.SortFunc(members, func(a, b member) int { return compareUTF16(a.name, b.name) })
	for i := 1; i < len(members); i++ {
		if members[i].name == members[i-1].name {
			return nil // which of them counts is for encoding/json to say
		}
	}
	return func(b []byte, v reflect.Value, depth int) (_ []byte, ok bool) {
		if depth >= maxDepth {
			return b, false
		}
		b = append(b, '{')
		first := true
		for i := range members {
			m := &members[i]
			f := v.Field(m.index[0])
			for _, x := range m.index[1:] {
				f = f.Field(x)
			}
			if m.omitEmpty && isEmpty(f) || m.omitZero != nil && m.omitZero(f) {
				continue
			}
			if !first {
				b = append(b, ',')
			}
			first = false
			b = append(b, m.quoted...)
			if b, ok = m.enc(b, f, depth+1); !ok {
				return b, false
			}
		}
		return append(b, '}'), true
	}
}

// members appends the fields of t, and of the structs embedded in it.
func (c *compiler) members(t reflect.Type, path []int, out []member) ([]member, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		index := append(slices.Clone(path), i)
		if tag == "-" {
			continue
		}
		if f.Anonymous && name == "" {
			if f.Type.Kind() != reflect.Struct || options != "" {
				return nil, false
			}
			var ok bool
			if out, ok = c.members(f.Type, index, out); !ok {
				return nil, false
			}
			continue
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		m := member{name: name, index: index, enc: c.encoder(f.Type)}
		if m.enc == nil || strings.ContainsFunc(name, notPlain) {
			return nil, false
		}
		m.quoted = string(appendString(nil, name)) + ":"
		for o := range strings.SplitSeq(options, ",") {
			switch o {
			case "":
			case "omitempty":
				m.omitEmpty = true
			case "omitzero":
				if m.omitZero = zeroTest(f.Type); m.omitZero == nil {
					return nil, false
				}
			default:
				return nil, false
			}
		}
		out = append(out, m)
	}
	return out, true
}

// notPlain finds names that encoding/json may not take from a tag.
func notPlain(r rune) bool {
	return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// isEmpty is omitempty's notion.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// zeroTest is omitzero's notion: the type's own, else that of the language.
func zeroTest(t reflect.Type) func(reflect.Value) bool {
	type zeroer interface{ IsZero() bool }
	switch {
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface:
		return nil
	case t.Implements(reflect.TypeFor[zeroer]()):
		return func(v reflect.Value) bool {
			z, ok := reflect.TypeAssert[zeroer](v)
			return ok && z.IsZero()
		}
	case reflect.PointerTo(t).Implements(reflect.TypeFor[zeroer]()):
		return nil
	}
	return reflect.Value.IsZero
}

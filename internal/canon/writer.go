package canon

import (
	"encoding/hex"
	"slices"
	"strconv"
)

// Printer is a type that prints its own canonical form, as its members stand in
// it: for what a call prints several of, where the way from a value to its members
// by reflection is most of the cost. What it prints must be what Marshal prints of
// the same members without it; canontest holds each Printer to that.
type Printer interface {
	PrintCanonical(w *Writer)
}

// Writer is what a Printer prints to.
type Writer struct {
	b   []byte
	bad bool // something has no canonical form that is certain here: Marshal goes another way
}

// Raw prints what is canonical as it stands: braces, names, constants.
func (w *Writer) Raw(s string) { w.b = append(w.b, s...) }

// String prints a string.
func (w *Writer) String(s string) {
	var ok bool
	w.b, ok = appendText(w.b, s)
	w.bad = w.bad || !ok
}

// Int prints an integer that a double holds.
func (w *Writer) Int(n int64) {
	var ok bool
	w.b, ok = appendInt(w.b, n)
	w.bad = w.bad || !ok
}

// Uint prints an integer that a double holds.
func (w *Writer) Uint(n uint64) {
	var ok bool
	w.b, ok = appendUint(w.b, n)
	w.bad = w.bad || !ok
}

// Bool prints a truth value.
func (w *Writer) Bool(v bool) { w.b = strconv.AppendBool(w.b, v) }

// Digest prints a digest.
func (w *Writer) Digest(d Digest) {
	w.b = append(w.b, '"')
	if !d.IsZero() {
		w.b = hex.AppendEncode(append(w.b, "sha256:"...), d[:])
	}
	w.b = append(w.b, '"')
}

// Strings prints a list, null if it is nil.
func (w *Writer) Strings(list []string) { PrintList(w, list, (*Writer).String) }

// JSON prints a value that is canonical JSON already, null if it is nil.
func (w *Writer) JSON(raw []byte) {
	if raw == nil {
		w.Raw("null")
		return
	}
	const deepest = 16 // that a Printer nests what it prints
	w.bad = w.bad || !canonical(raw, deepest)
	w.b = append(w.b, raw...)
}

// PrintList prints a list, null if it is nil.
func PrintList[E any](w *Writer, list []E, elem func(*Writer, E)) {
	if list == nil {
		w.Raw("null")
		return
	}
	w.b = append(w.b, '[')
	for i := range list {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		elem(w, list[i])
	}
	w.b = append(w.b, ']')
}

// PrintMap prints a map, null if it is nil.
func PrintMap[V any](w *Writer, m map[string]V, elem func(*Writer, V)) {
	if m == nil {
		w.Raw("null")
		return
	}
	var few [16]string
	keys := few[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareUTF16[string])
	w.b = append(w.b, '{')
	for i, k := range keys {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.String(k)
		w.b = append(w.b, ':')
		elem(w, m[k])
	}
	w.b = append(w.b, '}')
}

package canon

import (
	"reflect"
	"slices"
	"strconv"
	"unicode/utf8"
)

// mapEncoder returns the encoder of the maps that evidence is full of, which
// looks into them without reflection, or nil.
func mapEncoder(t reflect.Type) encoder {
	switch t {
	case reflect.TypeFor[map[string]string]():
		return entriesEncoder(func(b []byte, s string) ([]byte, bool) { return appendText(b, s) })
	case reflect.TypeFor[map[string]int64]():
		return entriesEncoder(appendInt)
	case reflect.TypeFor[map[string]uint64]():
		return entriesEncoder(appendUint)
	}
	return nil
}

func appendInt(b []byte, n int64) ([]byte, bool) {
	return strconv.AppendInt(b, n, 10), -maxExact < n && n < maxExact
}

func appendUint(b []byte, n uint64) ([]byte, bool) {
	return strconv.AppendUint(b, n, 10), n < maxExact
}

func entriesEncoder[V any](elem func(b []byte, v V) ([]byte, bool)) encoder {
	return func(b []byte, v reflect.Value, depth int) (_ []byte, ok bool) {
		m, ok := reflect.TypeAssert[map[string]V](v)
		if !ok || depth >= maxDepth {
			return b, false
		}
		if m == nil {
			return append(b, "null"...), true
		}
		var few [16]string
		keys := few[:0]
		for k := range m {
			if !utf8.ValidString(k) {
				return b, false
			}
			keys = append(keys, k)
		}
		slices.SortFunc(keys, compareUTF16[string])
		b = append(b, '{')
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, k), ':')
			if b, ok = elem(b, m[k]); !ok {
				return b, false
			}
		}
		return append(b, '}'), true
	}
}

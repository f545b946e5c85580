// Package canontest holds the types that print their own canonical form to what
// is printed of their members without that.
//
//	canontest.Printer(t, func() canon.Printer { return new(Statement) })
//
// Every member is given values of its own, so that one which is missing, in
// another place or under another name shows; and values that are absent, empty,
// and such that have no canonical form.
//
// What it does not protect against: a member whose own MarshalJSON says less than
// its value.
package canontest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"palyra/internal/canon"
)

// rounds is how many random values are compared.
const rounds = 400

// Printer compares what zero values, which are pointers to structs, print with
// encoding/json, put into canonical form.
func Printer(t *testing.T, zero func() canon.Printer) {
	t.Helper()
	compare(t, zero())
	full := zero()
	fill(reflect.ValueOf(full).Elem(), func(int) int { return 1 }, new(int))
	compare(t, full)
	r := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		v := zero()
		fill(reflect.ValueOf(v).Elem(), r.IntN, new(int))
		compare(t, v)
	}
}

func compare(t *testing.T, v canon.Printer) {
	t.Helper()
	got, err := canon.Marshal(v)
	var want []byte
	raw, werr := marshal(v)
	if werr == nil {
		want, werr = canon.Canonical(raw)
	}
	if (err == nil) != (werr == nil) || err == nil && !bytes.Equal(got, want) {
		t.Fatalf("%T prints\n%s, %v\nits members are\n%s, %v", v, got, err, want, werr)
	}
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// fill sets all of v. choose(n) says which of n kinds of value; the second of them
// is always one that is not zero. Each such value is another.
func fill(v reflect.Value, choose func(int) int, serial *int) {
	*serial++
	n := *serial
	if x, ok := v.Addr().Interface().(*json.RawMessage); ok {
		*x = [][]byte{nil, fmt.Appendf(nil, `{"n":%d}`, n), []byte("null"), []byte(` {"b":1, "a":"\u0041"}`)}[choose(4)]
		return
	}
	if x, ok := v.Addr().Interface().(*canon.Digest); ok {
		*x = []canon.Digest{{}, canon.Sum(fmt.Append(nil, n))}[choose(2)]
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(choose(2) == 1)
	case reflect.String:
		v.SetString([]string{"", fmt.Sprint("text ", n), "\"\\\n\x00<>&", "gr\u00fc\u00dfe \u2028\U0001F600"}[choose(4)])
	case reflect.Int, reflect.Int64:
		v.SetInt([]int64{0, int64(n), -int64(n), 1<<53 - 1, 1<<53 + 1}[choose(5)])
	case reflect.Uint8:
		v.SetUint([]uint64{0, 3, 2}[choose(3)])
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint([]uint64{0, uint64(n), 1<<32 - 1}[choose(3)])
	case reflect.Pointer:
		if choose(2) == 1 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), choose, serial)
		}
	case reflect.Slice:
		if k := choose(4); k > 0 {
			v.Set(reflect.MakeSlice(v.Type(), (k*2)%6, 6)) // 2, 4 or none
			for i := range v.Len() {
				fill(v.Index(i), choose, serial)
			}
		}
	case reflect.Map:
		if k := choose(4); k > 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range (k * 2) % 6 {
				key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				fill(key, choose, serial)
				fill(elem, choose, serial)
				v.SetMapIndex(key, elem)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), choose, serial)
		}
	default:
		panic(fmt.Sprintf("canontest: no values for %v", v.Type()))
	}
}

// Package canon gives a value exactly one byte form, and a byte form exactly
// one reading.
//
// Whatever Palyra decides, signs or compares by digest goes through [Marshal]:
// JSON in the canonical form of RFC 8785 (JCS). Members are sorted by the UTF-16
// code units of their names, numbers are printed as ECMAScript prints them,
// strings escape only what they must, and nothing stands between the tokens.
//
//	b, err := canon.Marshal(capsule)
//	id := canon.Sum(b)
//
// Whatever comes in from outside goes through [Decode], which accepts one
// reading only: unknown, repeated and differently capitalised members, null
// where there is nothing to be null, trailing data, lone surrogates, invalid
// UTF-8, too much and too deep are errors with a reason code. encoding/json
// accepts all of them, each time losing something that another reader sees.
//
// # Limits
//
// RFC 8785 knows numbers only as IEEE 754 doubles. An integer that a double
// cannot hold is an error here, never rounded: two calls that differ must not
// share a digest. For the same reason a string that is not UTF-8 is an error,
// where encoding/json would write U+FFFD.
//
// What it does not protect against: a type whose own MarshalJSON drops what
// distinguishes two values.
package canon

import (
	"bytes"
	"encoding/json"
	"errors"

	"palyra/internal/fault"
)

// Limits bound what Decode reads. A zero field means its default.
type Limits struct {
	Bytes int // length of the input; 1 MiB
	Depth int // nesting of arrays and objects; 32
}

func (l Limits) orDefaults() Limits {
	if l.Bytes == 0 {
		l.Bytes = 1 << 20
	}
	if l.Depth == 0 {
		l.Depth = 32
	}
	return l
}

// inner bounds what we print or compare ourselves. The depth keeps recursion
// small; encoding/json has printed the bytes already.
func inner(n int) Limits { return Limits{Bytes: n, Depth: 1000} }

// Marshal returns the canonical JSON of anything that encoding/json can
// marshal. Strings that are not UTF-8 and integers that a double cannot hold
// are errors; so is U+FFFD spelled as an escape by a MarshalJSON method, which
// cannot be told from what encoding/json makes of invalid UTF-8.
func Marshal(v any) ([]byte, error) {
	if b, ok := encoders.print(v); ok {
		return b, nil
	}
	return marshal(v)
}

// marshal is Marshal the long way, which defines what is right.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fault.New(fault.Internal, "json_marshal", "marshal canonical JSON", err)
	}
	p := parser{in: buf.Bytes(), lim: inner(buf.Len()), printed: true}
	n, err := p.document()
	if err != nil {
		return nil, fault.New(fault.Usage, fault.ReasonOf(err), "marshal canonical JSON", err)
	}
	return n.print(make([]byte, 0, buf.Len())), nil
}

// Canonical returns the canonical form of a JSON text.
func Canonical(data []byte) ([]byte, error) {
	p := parser{in: data, lim: inner(len(data))}
	n, err := p.document()
	if err != nil {
		return nil, err
	}
	return n.print(make([]byte, 0, len(data))), nil
}

// Check returns nil if data is canonical JSON and says otherwise why not.
func Check(data []byte) error {
	c, err := Canonical(data)
	if err != nil {
		return err
	}
	if !bytes.Equal(c, data) {
		return fault.New(fault.Usage, "json_not_canonical", "check canonical JSON", nil)
	}
	return nil
}

// Decode reads exactly one JSON value into v, strictly. Every error is of kind
// fault.Usage and has a reason code: json_too_large, json_too_deep,
// json_syntax, json_utf8, json_number, json_duplicate_member, json_trailing_data,
// json_unknown_member or json_type. v is unspecified after an error.
func Decode(data []byte, v any, lim Limits) error {
	p := parser{in: data, lim: lim.orDefaults()}
	n, err := p.document()
	if err != nil {
		return err
	}
	if err := fits(n, v); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			// Its text quotes the value, which may be anybody's secret.
			return refusal("json_type", te.Offset, "member %q does not hold a %v", te.Field, te.Type)
		}
		return fault.New(fault.Usage, "json_type", "decode JSON", err)
	}
	return nil
}

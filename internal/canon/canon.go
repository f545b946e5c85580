// Package canon gives a value exactly one byte form, and a byte form exactly
// one reading.
//
// Everything that Palyra decides, signs or compares by digest goes through [Marshal], which
// writes JSON in the canonical form of RFC 8785 (JCS): members sorted by the UTF-16 code
// units of their names, numbers as ECMAScript prints them, strings with the fewest escapes,
// and nothing between the tokens.
//
//	b, err := canon.Marshal(capsule)
//	id := canon.Sum(b)
//
// Everything that comes in from outside goes through [Decode], which accepts one reading
// only. Unknown, repeated and differently capitalised members, misplaced nulls, trailing
// data, lone surrogates, invalid UTF-8, and input that is too long, too deep or of too many
// values are errors with a reason code. encoding/json accepts all of these, and each time
// loses something that another reader sees.
//
// The library github.com/go-json-experiment/json reads and prints Go values, with the
// member names, omissions and durations of encoding/json. This package adds the order of
// members, the number rule, the null rule, limits and reason codes.
//
// # Limits
//
// RFC 8785 knows numbers only as IEEE 754 doubles. An integer that a double can't hold is
// an error here, and never rounded: two different calls must not share a digest. For the
// same reason a string that isn't UTF-8 is an error; encoding/json would write U+FFFD.
//
// The package doesn't protect against a type whose own MarshalJSON makes two values equal,
// for example by giving encoding/json strings that aren't UTF-8.
package canon

import (
	"bytes"
	"errors"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	v1 "github.com/go-json-experiment/json/v1"

	"palyra/internal/fault"
)

// Limits bound what Decode reads. A zero field means its default.
type Limits struct {
	Bytes int // length of the input; 1 MiB
	Depth int // nesting of arrays and objects; 32

	// Values is the number of values, all elements and members. A short text can hold
	// many: one MiB of "{}," made a slice of 14 MB, and 75 MB of garbage. Default: one
	// for 16 bytes of Bytes, at least 1024; formats of ours have some 20 bytes for each.
	Values int
}

func (l Limits) orDefaults() Limits {
	if l.Bytes == 0 {
		l.Bytes = 1 << 20
	}
	if l.Depth == 0 {
		l.Depth = 32
	}
	if l.Values == 0 {
		l.Values = max(l.Bytes/16, 1024)
	}
	return l
}

// maxDepth bounds the depth of values that we print or compare ourselves, and so our
// recursion.
const maxDepth = 1000

// spelling prints Go values as encoding/json did when our formats were fixed.
var spelling = json.JoinOptions(
	json.Deterministic(true), // nothing here may depend on the order of a map, errors included
	json.FormatNilSliceAsNull(true),
	json.FormatNilMapAsNull(true),
	v1.OmitEmptyWithLegacySemantics(true), // omitempty leaves out 0 and false, too
	v1.FormatByteArrayAsArray(true),
	v1.FormatDurationAsNano(true),
)

// decoding reads the output of spelling, and one spelling of each name.
var decoding = json.JoinOptions(spelling, json.RejectUnknownMembers(true), json.WithUnmarshalers(json.UnmarshalFromFunc(refuseNull)))

// lenient finds out whether invalid UTF-8 is the only problem. It lets repeated names pass,
// because names that aren't UTF-8 may become equal.
var lenient = json.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))

// Marshal returns the canonical JSON of anything that encoding/json can
// marshal. Strings that are not UTF-8 and integers that a double cannot hold
// are errors.
func Marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v, spelling)
	if err != nil {
		return nil, marshalError(v, err)
	}
	if b, err = arrange(b); err != nil {
		return nil, fault.New(fault.Usage, fault.ReasonOf(err), "marshal canonical JSON", err)
	}
	return b, nil
}

func marshalError(v any, err error) error {
	kind, reason := fault.Internal, "internal"
	if errors.Is(err, jsontext.ErrDuplicateName) {
		kind, reason = fault.Usage, "json_syntax"
	} else if _, lax := json.Marshal(v, spelling, lenient); lax == nil {
		kind, reason = fault.Usage, "json_syntax"
	}
	return fault.New(kind, reason, "marshal canonical JSON", err)
}

// Canonical returns the canonical form of a JSON text.
func Canonical(data []byte) ([]byte, error) {
	if err := scan(data, Limits{Bytes: len(data), Depth: maxDepth, Values: len(data)}); err != nil {
		return nil, err
	}
	b, err := jsontext.AppendFormat(nil, data)
	if err != nil {
		panic("canon: internal error: scanned text does not format") // scan has read all of it
	}
	return arrange(b)
}

// Check returns nil if data is canonical JSON, and otherwise the reason why it isn't.
func Check(data []byte) error {
	c, err := Canonical(data)
	if err != nil {
		return err
	}
	if !bytes.Equal(c, data) {
		return fault.New(fault.Usage, "json_syntax", "check canonical JSON", errors.New("not in canonical form"))
	}
	return nil
}

// Decode reads exactly one JSON value into v, strictly. Every error is of kind
// fault.Usage and has a reason code: json_too_large, json_syntax, or invalid_input for a member
// that v doesn't have or of another type. v is unspecified after an error.
func Decode(data []byte, v any, lim Limits) error {
	if t := reflect.TypeOf(v); t == nil || t.Kind() != reflect.Pointer {
		panic("canon: internal error: Decode into something that is not a pointer")
	}
	if err := scan(data, lim.orDefaults()); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v, decoding); err != nil {
		return typeError(err)
	}
	return nil
}

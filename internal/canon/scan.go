package canon

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"palyra/internal/fault"
)

func refusal(reason string, at int64, format string, args ...any) error {
	return fault.New(fault.Usage, reason, fmt.Sprintf("decode JSON at byte %d", at), fmt.Errorf(format, args...))
}

// scan accepts one value of RFC 7493 (I-JSON) within the limits. Besides bad grammar it
// refuses repeated names, lone surrogates and numbers that a double can't hold.
func scan(data []byte, lim Limits) error {
	if len(data) > lim.Bytes {
		return fault.New(fault.Usage, "json_too_large", "decode JSON", fmt.Errorf("%d bytes, limit %d", len(data), lim.Bytes))
	}
	err := tokens(data, lim)
	bad, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case err == nil || fault.ReasonOf(err) != "":
		return err
	case !ok: // there was no token at all
		return refusal("json_syntax", int64(len(data)), "want a value")
	case bad.Err == jsontext.ErrDuplicateName:
		return refusal("json_syntax", bad.ByteOffset, "member %q twice", bad.JSONPointer.LastToken())
	}
	if lax, ok := errors.AsType[*jsontext.SyntacticError](tokens(data, lim, lenient)); !ok || lax.ByteOffset != bad.ByteOffset {
		return refusal("json_syntax", bad.ByteOffset, "string is not UTF-8")
	}
	return refusal("json_syntax", bad.ByteOffset, "%v", bad.Err)
}

// tokens reads one value and nothing after it but white space. Its errors are
// jsontext's, or refusals.
func tokens(data []byte, lim Limits, opts ...jsontext.Options) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(data), opts...)
	values := 0
	for first := true; first || d.StackDepth() > 0; first = false {
		kind := d.PeekKind()
		in, members := d.StackIndex(d.StackDepth())
		if name := in == '{' && members%2 == 0; !name && kind != '}' && kind != ']' && kind != 0 {
			if values++; values > lim.Values {
				return fault.New(fault.Usage, "json_too_large", "decode JSON", fmt.Errorf("more than %d values", lim.Values))
			}
		}
		if kind == '0' {
			num, err := d.ReadValue()
			if err != nil {
				return err
			}
			if _, ok := double(num); !ok {
				return refusal("json_syntax", d.InputOffset()-int64(len(num)), "number that a double does not hold")
			}
			continue
		}
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		if d.StackDepth() > lim.Depth {
			return refusal("json_syntax", d.InputOffset()-1, "nesting beyond %d", lim.Depth)
		}
	}
	if rest := bytes.TrimLeft(data[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return refusal("json_syntax", int64(len(data)-len(rest)), "data after the value")
	}
	return nil
}

// double returns the number that num spells, and whether the double holds it exactly. A
// double holds every integer below 2^53. From there on several integers share one double;
// only the one that is spelled as the double prints passes.
func double(num []byte) (f float64, ok bool) {
	f, err := strconv.ParseFloat(string(num), 64)
	if err != nil { // beyond the range
		return 0, false
	}
	whole := !bytes.ContainsAny(num, ".eE")
	return f, !whole || math.Abs(f) < 1<<53 || string(num) == strconv.FormatFloat(f, 'f', -1, 64)
}

var errNull = errors.New("null where a value belongs")

// refuseNull runs before any value is read into v. The library reads null into everything,
// as its zero value.
func refuseNull(d *jsontext.Decoder, v any) error {
	if d.PeekKind() == 'n' && !nullable(reflect.TypeOf(v)) {
		return errNull
	}
	return errors.ErrUnsupported // read it as usual
}

// nullable reports whether null has a meaning for what ptr points to.
func nullable(ptr reflect.Type) bool {
	switch {
	case ptr.Implements(reflect.TypeFor[json.Unmarshaler]()):
		return true // reads for itself
	case ptr.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return false
	}
	switch ptr.Elem().Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Slice, reflect.Map:
		return true
	}
	return false
}

// typeError says why a JSON text does not fit a Go type. It does not quote
// values, each of which may be a secret; a type's own method may.
func typeError(err error) error {
	bad, ok := errors.AsType[*json.SemanticError](err)
	switch {
	case !ok:
		return fault.New(fault.Usage, "invalid_input", "decode JSON", err)
	case bad.Err == json.ErrUnknownName:
		return refusal("invalid_input", bad.ByteOffset, "unknown member %q", bad.JSONPointer.LastToken())
	case bad.Err == errNull:
		return refusal("invalid_input", bad.ByteOffset, "%v", errNull)
	case bad.Err == nil || bad.JSONValue != nil:
		return refusal("invalid_input", bad.ByteOffset, "member %q does not hold a %v", bad.JSONPointer, bad.GoType)
	}
	return fault.New(fault.Usage, "invalid_input", "decode JSON", bad.Err)
}

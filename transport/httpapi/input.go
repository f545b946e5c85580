package httpapi

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/transport/api"
)

// input makes the operation's input from the request.
func (x *exchange) input() (any, error) {
	in, v := x.rt.in, reflect.New(x.rt.In).Elem()
	if in.BodyType != nil {
		at(v, in.Body).Set(reflect.ValueOf(x.body).Elem())
	}
	for i := range in.Path {
		f := &in.Path[i]
		if err := setPath(at(v, f.Index), f, x.r.PathValue(f.Name)); err != nil {
			return nil, err
		}
	}
	for i := range in.Query {
		f := &in.Query[i]
		if err := setQuery(at(v, f.Index), f, x.query[f.Name]); err != nil {
			return nil, err
		}
	}
	if in.Match != nil {
		if x.rt.Creates && !x.create && x.version == 0 {
			return nil, usage("invalid_input", x.rt.Verb(), errors.New("If-Match: * says neither which version nor that there is none"))
		}
		at(v, in.Match).SetInt(x.version)
	}
	if in.Key != nil {
		at(v, in.Key).SetString(x.key)
	}
	return v.Interface(), nil
}

// at is FieldByIndex for an input that need not be a struct.
func at(v reflect.Value, index []int) reflect.Value {
	if len(index) == 0 {
		return v
	}
	return v.FieldByIndex(index)
}

// ids are the parameters that are ids, with their prefixes.
var ids = map[string]string{"session": ident.Session, "run": ident.Run, "approval": ident.Approval, "grant": ident.Grant, "token": ident.Token, "pairing": ident.Pairing, "passkey": ident.Passkey}

// checkID refuses what can't be the id of a thing, or the name of a layer, server,
// workspace or device.
func checkID(kind, s string) error {
	letters, more := "abcdefghijklmnopqrstuvwxyz0123456789-", "-"
	switch kind {
	case "layer", "server", "workspace":
	case "device":
		letters, more = letters+"_", "- and _"
	default:
		return ident.Check(ids[kind], s)
	}
	if len(s) == 0 || len(s) > 64 || strings.Trim(s, letters) != "" {
		return usage("invalid_input", "parse "+kind, errors.New("want 1 to 64 of a-z, 0-9 and "+more))
	}
	return nil
}

// setPath sets a field to a parameter of the path.
func setPath(v reflect.Value, f *api.Field, s string) error {
	if f.Number {
		n, err := parseUint(s)
		if err != nil {
			return usage("invalid_input", "parse "+f.Name, err)
		}
		v.SetUint(n)
		return nil
	}
	v.SetString(s)
	switch f.Name {
	case "decision":
		if len(s) < 8 || len(s) > 32 || strings.Trim(s, "0123456789abcdef") != "" {
			return usage("invalid_input", "parse decision", errors.New("want 8 to 32 lower-case hexadecimal digits"))
		}
	case "digest":
		if d, err := canon.ParseDigest(s); err != nil || d.IsZero() {
			return usage("invalid_input", "parse digest", errors.New("want sha256: and 64 lower-case hexadecimal digits"))
		}
	case "principal":
		if s == "" || len(s) > 256 || strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }) {
			return usage("invalid_input", "parse principal", errors.New("want 1 to 256 printable bytes"))
		}
	case "name":
		if !tileName(s) {
			return fault.New(fault.NotFound, "not_found", "parse tile name", errors.New("there is no such tile"))
		}
	default:
		return checkID(f.Name, s)
	}
	return nil
}

// setQuery sets a field to the values of a parameter of the query, which parseQuery
// has found to be of the right form.
func setQuery(v reflect.Value, f *api.Field, vs []string) error {
	switch {
	case len(vs) == 0 && f.Needed:
		return usage("invalid_input", "parse query", fmt.Errorf("parameter %q is missing", f.Name))
	case len(vs) == 0:
	case f.Number:
		n, _ := parseUint(vs[0])
		if f.Max > 0 && (n < 1 || n > f.Max) {
			return usage("invalid_input", "parse query", fmt.Errorf("%s is not between 1 and %d", f.Name, f.Max))
		}
		v.Set(reflect.ValueOf(n).Convert(v.Type()))
	case f.Flag:
		v.SetBool(vs[0] == "true")
	case f.Many:
		v.Set(reflect.ValueOf(vs))
	case f.Of != "" && checkID(f.Of, vs[0]) != nil:
		// A cursor is the id of the last item seen, so it stays good over a restart.
		return usage("invalid_input", "parse query", errors.New("after is not the next of a page of this list"))
	default:
		v.SetString(vs[0])
		if prefix := ids[f.Name]; prefix != "" {
			return ident.Check(prefix, vs[0])
		}
	}
	return nil
}

// tileName reports whether s is a C2SP tlog-tiles path after "tile/": a level or "entries",
// the number in groups of three digits with x before all but the last, and ".p/" and a
// width for a partial tile.
func tileName(s string) bool {
	parts := strings.Split(s, "/")
	level, rest := parts[0], parts[1:]
	if n, err := parseUint(level); level != "entries" && (err != nil || n > 63) {
		return false
	}
	if len(rest) >= 2 && strings.HasSuffix(rest[len(rest)-2], ".p") {
		if n, err := parseUint(rest[len(rest)-1]); err != nil || n < 1 || n > 255 {
			return false
		}
		rest = rest[:len(rest)-1]
		rest[len(rest)-1] = strings.TrimSuffix(rest[len(rest)-1], ".p")
	}
	if len(rest) == 0 || len(rest) > 7 {
		return false
	}
	for i, g := range rest {
		if i < len(rest)-1 {
			var ok bool
			if g, ok = strings.CutPrefix(g, "x"); !ok || i == 0 && g == "000" {
				return false
			}
		}
		if len(g) != 3 || strings.Trim(g, "0123456789") != "" {
			return false
		}
	}
	return true
}

package canon

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// fits reports what encoding/json would let pass when it reads n into v: names
// that match a field only when case is ignored, null for what cannot be nil,
// arrays of another length. Repeated names and unknown fields are found by
// others; unknown ones are found here first and get the better message.
func fits(n *node, v any) error {
	t := reflect.TypeOf(v)
	if t == nil || t.Kind() != reflect.Pointer {
		panic("canon: internal error: Decode into something that is not a pointer")
	}
	return fitsType(n, t.Elem())
}

func fitsType(n *node, t reflect.Type) error {
	if ptr := reflect.PointerTo(t); ptr.Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil // reads for itself
	} else if ptr.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		if n.kind != kindString {
			return refusal("json_type", int64(n.at), "want a string")
		}
		return nil
	}
	switch t.Kind() {
	case reflect.Interface:
		return nil
	case reflect.Pointer:
		if n.kind == kindNull {
			return nil
		}
		return fitsType(n, t.Elem())
	case reflect.Slice, reflect.Map:
		if n.kind == kindNull {
			return nil
		}
	}
	switch {
	case n.kind == kindNull:
		return refusal("json_type", int64(n.at), "null where a value belongs")
	case n.kind == kindArray && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
		if t.Kind() == reflect.Array && len(n.elems) != t.Len() {
			return refusal("json_type", int64(n.at), "array of %d, want %d", len(n.elems), t.Len())
		}
		for i := range n.elems {
			if err := fitsType(&n.elems[i], t.Elem()); err != nil {
				return err
			}
		}
	case n.kind == kindObject && t.Kind() == reflect.Map:
		for i := range n.elems {
			if err := fitsType(&n.elems[i], t.Elem()); err != nil {
				return err
			}
		}
	case n.kind == kindObject && t.Kind() == reflect.Struct:
		known := make(map[string]reflect.Type)
		fields(t, known)
		for i, name := range n.names {
			ft, ok := known[name]
			if !ok {
				return refusal("json_unknown_member", int64(n.elems[i].at), "unknown member %q", name)
			}
			if err := fitsType(&n.elems[i], ft); err != nil {
				return err
			}
		}
	}
	return nil // the rest is for encoding/json, which refuses mismatched kinds
}

// fields collects the members of a struct by their exact names. Of two with
// the same name the outer one counts, as in encoding/json.
func fields(t reflect.Type, known map[string]reflect.Type) {
	var inner []reflect.Type
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		name, _, _ := strings.Cut(tag, ",")
		if f.Anonymous && name == "" {
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Struct {
				inner = append(inner, ft)
				continue
			}
		}
		if !f.IsExported() || tagged && tag == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		known[name] = f.Type
	}
	for _, in := range inner {
		sub := make(map[string]reflect.Type)
		fields(in, sub)
		for name, ft := range sub {
			if _, ok := known[name]; !ok {
				known[name] = ft
			}
		}
	}
}

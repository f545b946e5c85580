package api

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"palyra/internal/canon"
)

// object is JSON in the making; encoding/json sorts its members.
type object = map[string]any

// schemas collects the named types that an OpenAPI document refers to.
type schemas struct {
	defs  object
	types map[string]reflect.Type // which type has a name
}

// of returns the schema of a type as encoding/json writes it and canon.Decode
// reads it: a struct has no members but its own, and those without omitempty or
// omitzero are always there. A nil slice or map counts as an empty one; the
// server writes it so.
func (s *schemas) of(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[time.Duration]():
		return object{"type": "integer", "description": "nanoseconds"}
	case reflect.TypeFor[canon.Digest]():
		return object{"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
	case reflect.TypeFor[json.RawMessage]():
		return object{"description": "any JSON value"}
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return object{"anyOf": []any{s.of(t.Elem()), object{"type": "null"}}}
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()):
		panic(fmt.Sprintf("api: internal error: %v writes its own JSON and has no schema here", t))
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Interface:
		return object{"description": "any JSON value"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Array:
		return object{"type": "array", "items": s.of(t.Elem()), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		if t.Name() == "" {
			return s.structure(t)
		}
		return s.named(t)
	}
	panic(fmt.Sprintf("api: internal error: no schema for %v", t))
}

// named puts a struct among the definitions and refers to it.
func (s *schemas) named(t reflect.Type) object {
	name := schemaName(t)
	switch had, ok := s.types[name]; {
	case !ok:
		s.types[name] = t
		s.defs[name] = nil // a type may hold itself
		s.defs[name] = s.structure(t)
	case had != t:
		panic(fmt.Sprintf("api: internal error: %v and %v are both called %s", had, t, name))
	}
	return object{"$ref": "#/components/schemas/" + name}
}

func (s *schemas) structure(t reflect.Type) object {
	props, required := object{}, []string{}
	s.members(t, props, &required)
	o := object{"type": "object", "properties": props, "additionalProperties": false}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}

// members adds the members of a struct, those of embedded structs among them.
func (s *schemas) members(t reflect.Type, props object, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct {
			s.members(f.Type, props, required)
			continue
		}
		if f.Anonymous && name == "" && f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct {
			var none []string // all of them or none
			s.members(f.Type.Elem(), props, &none)
			continue
		}
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		optional := strings.Contains(opts, "omitempty") || strings.Contains(opts, "omitzero")
		ft := f.Type
		if optional && ft.Kind() == reflect.Pointer {
			ft = ft.Elem() // left out, never null
		}
		sch := s.of(ft)
		if doc := f.Tag.Get("doc"); doc != "" {
			if _, ref := sch["$ref"]; !ref {
				sch["description"] = doc
			}
		}
		props[name] = sch
		if !optional {
			*required = append(*required, name)
		}
	}
}

// paths of packages inside the brackets of a generic type's name
var qualified = regexp.MustCompile(`[\w./-]*\.`)

// schemaName returns the type's name without packages: Page[hub.Run] is PageRun.
func schemaName(t reflect.Type) string {
	n := qualified.ReplaceAllString(t.Name(), "")
	n = strings.NewReplacer("[", "", "]", "", ",", "", "*", "").Replace(n)
	return strings.ToUpper(n[:1]) + n[1:]
}

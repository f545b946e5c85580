package evidence

import (
	"fmt"
	"reflect"
	"strings"
)

// Field is a row of the table of evidence's fields.
type Field struct {
	Name  string // "usage.wall_ns"
	Go    string // "Usage.WallNS", of its type
	Unit  string // of a number; else ""
	Basis string // the bases that it may have, "observed, reported"
}

// Fields returns the table: each field but the bases, in the order of declaration. Those of a
// list's elements follow the list, unless the elements are groups themselves.
func Fields() (out []Field) {
	var walk func(t reflect.Type, prefix, basis string)
	walk = func(t reflect.Type, prefix, basis string) {
		for f := range t.Fields() {
			row := Field{prefix + name(f), t.Name() + "." + f.Name, f.Tag.Get("unit"), basis}
			if b, ok := f.Tag.Lookup("basis"); ok {
				row.Basis = b
			}
			switch {
			case f.Name == "Basis":
				basis = row.Basis
			case f.Type.Kind() == reflect.Struct:
				walk(f.Type, row.Name+".", row.Basis)
			default:
				out = append(out, row)
				if of := f.Type; of.Kind() == reflect.Slice && of.Elem().Kind() == reflect.Struct {
					if _, group := of.Elem().FieldByName("Basis"); !group {
						walk(of.Elem(), row.Name+"[].", row.Basis)
					}
				}
			}
		}
	}
	walk(reflect.TypeFor[Evidence](), "", "")
	return out
}

// Line is what people are shown of a group, and the group's basis.
type Line struct{ Group, Text, Basis string }

// Lines returns what people are shown: of each group that has a basis, in the order of
// declaration, the fields that are to be shown, and the basis.
func (e *Evidence) Lines() (out []Line) {
	for f, group := range reflect.ValueOf(e).Elem().Fields() {
		if f.Type.Kind() != reflect.Struct {
			continue
		}
		var parts []string
		for x, v := range group.Fields() {
			if format := x.Tag.Get("show"); format != "" && (v.Kind() != reflect.Pointer || !v.IsNil()) && !leftOut(x, v) {
				parts = append(parts, shown(format, x.Tag.Get("unit"), reflect.Indirect(v)))
			}
		}
		basis := group.FieldByName("Basis").String()
		if len(parts) == 0 || Basis(basis) == Absent {
			continue
		}
		l := Line{f.Tag.Get("show"), strings.Join(parts, ", "), basis}
		if l.Group == "" {
			l.Group = name(f)
		}
		out = append(out, l)
	}
	return out
}

// leftOut says that JSON hasn't the list, either.
func leftOut(f reflect.StructField, v reflect.Value) bool {
	return v.Kind() == reflect.Slice && v.Len() == 0 && strings.HasSuffix(f.Tag.Get("json"), ",omitempty")
}

// shown puts a value into words. Of a list, %s is its elements and %d their number.
func shown(format, unit string, v reflect.Value) string {
	if v.Kind() == reflect.Slice {
		switch {
		case strings.Contains(format, "%d"):
			return fmt.Sprintf(format, v.Len())
		case v.Len() == 0:
			return fmt.Sprintf(format, "none")
		}
		var words []string
		for i := range v.Len() {
			words = append(words, fmt.Sprint(v.Index(i).Interface()))
		}
		return fmt.Sprintf(format, strings.Join(words, ", "))
	}
	switch x := v.Interface().(type) {
	case int64:
		switch unit {
		case "ns":
			return fmt.Sprintf(format, fmt.Sprintf("%.3f s", float64(x)/1e9))
		case "bytes":
			return fmt.Sprintf(format, fmt.Sprintf("%d KiB", x>>10))
		}
	}
	return fmt.Sprintf(format, fmt.Sprint(v.Interface()))
}

// name is a field's in JSON.
func name(f reflect.StructField) string {
	s, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return s
}

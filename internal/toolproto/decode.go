package toolproto

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"palyra/internal/canon"
)

// Member is one member of an input, with its bounds.
type Member struct {
	Name string
	Doc  string
	Kind Kind
	// Hidden members are set by the kernel and not part of the schema.
	Hidden   bool
	Required bool
	// Min and Max bound an integer, the characters of a string, or the number of
	// strings in a list; MaxLen the characters of each string in a list.
	Min, Max, MaxLen int64
	Default          string // as text; "" is none
	Enum             []string
}

// Kind is the type of a member.
type Kind int

// The kinds of members.
const (
	String  Kind = iota // text
	Integer             // a whole number
	Boolean             // true or false
	Strings             // a list of text
)

// Members returns the members of an input, a struct or a pointer to one. It
// panics if a tag is wrong, which is a mistake in this package.
func Members(v any) []Member {
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	out := make([]Member, 0, t.NumField())
	for i := range t.NumField() {
		out = append(out, member(t.Field(i)))
	}
	return out
}

func member(f reflect.StructField) Member {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	m := Member{Name: name, Doc: f.Tag.Get("doc"), Max: math.MaxInt64, MaxLen: math.MaxInt64}
	bad := func(what string) { panic("toolproto: internal error: " + f.Name + ": " + what) }
	switch f.Type.Kind() {
	case reflect.String:
		m.Kind = String
	case reflect.Int64:
		m.Kind = Integer
	case reflect.Bool:
		m.Kind = Boolean
	case reflect.Slice:
		m.Kind = Strings
	default:
		bad("type")
	}
	tag := f.Tag.Get("tool")
	if tag == "" {
		return m
	}
	for rule := range strings.SplitSeq(tag, ",") {
		key, text, _ := strings.Cut(rule, "=")
		n, err := strconv.ParseInt(text, 10, 64)
		number := err == nil
		switch {
		case key == "required":
			m.Required = true
		case key == "hidden":
			m.Hidden = true
		case key == "min" && number:
			m.Min = n
		case key == "max" && number:
			m.Max = n
		case key == "maxlen" && number:
			m.MaxLen = n
		case key == "default":
			m.Default = text
		case key == "enum":
			m.Enum = strings.Split(text, "|")
		default:
			bad("rule " + rule)
		}
	}
	return m
}

// Decode reads an input strictly, fills in defaults and checks bounds. v is a pointer to
// one of the input types. Hidden members are unknown to it. Every error is of kind
// fault.Usage: those of canon.Decode, path, and invalid_input.
func Decode(data []byte, v any) error { return decode(data, v, false) }

// DecodeInner is Decode for palyra-tool: hidden members, which the kernel has
// set, are read too.
func DecodeInner(data []byte, v any) error { return decode(data, v, true) }

func decode(data []byte, v any, inner bool) error {
	most := MaxInput
	if inner {
		most += maxDefaults
	}
	if err := canon.Decode(data, v, canon.Limits{Bytes: most, Depth: 4}); err != nil {
		return err
	}
	var present map[string]json.RawMessage
	if err := json.Unmarshal(data, &present); err != nil {
		return usage("invalid_input", "decode input", errors.New("not an object"))
	}
	value := reflect.ValueOf(v).Elem()
	for i, m := range Members(v) {
		raw, there := present[m.Name]
		if there && m.Hidden && !inner {
			return usage("invalid_input", "read member "+m.Name, errors.New("unknown"))
		}
		if there && string(raw) == "null" {
			return usage("invalid_input", "read member "+m.Name, errors.New("null where a value belongs"))
		}
		if err := m.apply(value.Field(i), there); err != nil {
			return err
		}
	}
	if c, ok := v.(interface{ Check() error }); ok {
		return c.Check()
	}
	return nil
}

// apply checks one member, or fills it in if it is not there.
func (m *Member) apply(v reflect.Value, there bool) error {
	op := "read member " + m.Name
	if !there {
		if m.Required {
			return usage("invalid_input", op, errors.New("is required"))
		}
		switch m.Kind {
		case String:
			v.SetString(m.Default)
		case Integer:
			if m.Default != "" {
				n, err := strconv.ParseInt(m.Default, 10, 64)
				if err != nil {
					panic("toolproto: internal error: default of " + m.Name)
				}
				v.SetInt(n)
			}
		case Boolean:
			v.SetBool(m.Default == "true")
		}
		return nil
	}
	switch m.Kind {
	case String:
		return m.checkString(op, v.String(), m.Min, m.Max)
	case Integer:
		if n := v.Int(); n < m.Min || n > m.Max {
			return usage("invalid_input", op, fmt.Errorf("%d is not within %d and %d", n, m.Min, m.Max))
		}
	case Strings:
		if n := int64(v.Len()); n < m.Min || n > m.Max {
			return usage("invalid_input", op, fmt.Errorf("%d of them, not within %d and %d", n, m.Min, m.Max))
		}
		for i := range v.Len() {
			if err := m.checkString(op, v.Index(i).String(), 0, m.MaxLen); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Member) checkString(op, s string, least, most int64) error {
	if m.Enum != nil {
		if !slices.Contains(m.Enum, s) {
			return usage("invalid_input", op, fmt.Errorf("want one of %s", strings.Join(m.Enum, ", ")))
		}
		return nil
	}
	if n := int64(utf8.RuneCountInString(s)); n < least || n > most {
		return usage("invalid_input", op, fmt.Errorf("%d characters, not within %d and %d", n, least, most))
	}
	return nil
}

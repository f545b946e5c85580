package openai

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// fields reads the members of an object, each once. A member that's null isn't there. The first
// flaw is kept, and rest adds the members that weren't read.
type fields struct {
	path string // "" or that of the object and a dot
	m    map[string]json.RawMessage
	read map[string]bool
	err  *flaw
}

// open begins to read an object. The text was checked as a whole.
func open(path string, text json.RawMessage) *fields {
	f := &fields{read: make(map[string]bool)}
	if path != "" {
		f.path = path + "."
	}
	if json.Unmarshal(text, &f.m) != nil || f.m == nil {
		f.err = bad(path, "invalid_type", "want an object")
	}
	for name, text := range f.m {
		if string(text) == "null" {
			delete(f.m, name)
		}
	}
	return f
}

func (f *fields) fail(name, code, format string, a ...any) {
	if f.err == nil {
		f.err = bad(f.path+name, code, fmt.Sprintf(format, a...))
	}
}

// add keeps a flaw of a part.
func (f *fields) add(err *flaw) {
	if f.err == nil {
		f.err = err
	}
}

// raw returns a member, nil if it isn't there.
func (f *fields) raw(name string) json.RawMessage {
	f.read[name] = true
	return f.m[name]
}

func value[T any](f *fields, name, kind string) (v T, ok bool) {
	text := f.raw(name)
	if text == nil {
		return v, false
	}
	if json.Unmarshal(text, &v) != nil {
		var none T
		f.fail(name, "invalid_type", "want %s", kind)
		return none, false
	}
	return v, true
}

func (f *fields) text(name string) string {
	v, _ := value[string](f, name, "a string")
	return v
}

func (f *fields) must(name string) string {
	v := f.text(name)
	if v == "" {
		f.fail(name, "missing_required_parameter", "want a string that isn't empty")
	}
	return v
}

func (f *fields) flag(name string) (is, there bool) { return value[bool](f, name, "true or false") }

// yes is a flag that is false where it isn't there.
func (f *fields) yes(name string) bool {
	v, _ := f.flag(name)
	return v
}

func (f *fields) number(name string) *float64 {
	if v, ok := value[float64](f, name, "a number"); ok {
		return &v
	}
	return nil
}

// count is a whole number of at least 1, 0 where it isn't there.
func (f *fields) count(name string) int64 {
	v, ok := value[int64](f, name, "a whole number")
	if ok && v < 1 {
		f.fail(name, "invalid_value", "want at least 1")
	}
	return v
}

func (f *fields) list(name string) []json.RawMessage {
	v, _ := value[[]json.RawMessage](f, name, "a list")
	return v
}

// only refuses a member that has another than one of these values, as they stand in JSON.
func (f *fields) only(name string, values ...string) {
	if text := f.raw(name); text != nil && !slices.Contains(values, string(text)) {
		f.fail(name, "unsupported_value", "want %s, which it is without this member", strings.Join(values, " or "))
	}
}

// rest refuses the members that weren't read, by name, and returns the first flaw. where says in
// which lane.
func (f *fields) rest(where string) *flaw {
	for _, name := range slices.Sorted(maps.Keys(f.m)) {
		if !f.read[name] {
			f.fail(name, "unsupported_parameter", "it isn't supported%s, and nothing is ignored", where)
		}
	}
	return f.err
}

// in names an element of a list.
func in(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// words returns the text of a content: a string, or parts of these types.
func words(f *fields, name string, types ...string) (texts []string) {
	text := f.raw(name)
	if text == nil {
		return nil
	}
	if text[0] == '"' {
		if s := f.text(name); s != "" {
			texts = append(texts, s)
		}
		return texts
	}
	for i, part := range f.list(name) {
		p := open(f.path+in(name, i), part)
		kind := p.text("type")
		key := "text"
		if kind == "refusal" {
			key = kind
		}
		if !slices.Contains(types, kind) {
			p.fail("type", "unsupported_value", "want %s: models here are told text", strings.Join(types, " or "))
		}
		if s := p.text(key); s != "" {
			texts = append(texts, s)
		}
		if kind == "output_text" { // as answers have them
			p.only("annotations", "[]")
			p.only("logprobs", "[]")
		}
		if kind == "text" && slices.Contains(types, "cache") {
			p.raw("cache_control")
		}
		f.add(p.rest(""))
	}
	return texts
}

// metadata reads the client's own labels. What is palyrad's among them is returned apart.
type metadata struct {
	all     map[string]string
	session string
	staged  bool
}

// The labels that are palyrad's.
const (
	labelSession = "palyra_session"
	labelStaged  = "palyra_staged"
)

// isStaged reads the label that has changes land in a layer.
func (f *fields) isStaged() bool {
	v, there := value[string](f, labelStaged, "a string")
	if there && v != "true" && v != "false" {
		f.fail(labelStaged, "invalid_value", `want "true" or "false"`)
	}
	return v == "true"
}

func (f *fields) metadata() (m metadata) {
	m.all, _ = value[map[string]string](f, "metadata", "an object of strings")
	if len(m.all) > 16 {
		f.fail("metadata", "invalid_value", "want at most 16 members")
	}
	for _, name := range slices.Sorted(maps.Keys(m.all)) {
		v := m.all[name]
		switch {
		case len(name) > 64 || len(v) > 512:
			f.fail("metadata", "invalid_value", "want names of at most 64 bytes and values of at most 512")
		case name == labelSession:
			m.session = v
		case name == labelStaged:
			o := open("metadata", f.m["metadata"])
			m.staged = o.isStaged()
			f.add(o.err)
		case strings.HasPrefix(name, "palyra_"):
			f.fail("metadata."+name, "unsupported_parameter", "want %s or %s", labelSession, labelStaged)
		}
	}
	return m
}

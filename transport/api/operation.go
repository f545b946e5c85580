package api

import (
	"reflect"
	"strings"

	"palyra/hub"
)

// Field is a part of an operation's input that has a place in the path or the query.
type Field struct {
	Name   string
	Doc    string
	Enum   []string // allowed values; nil: any
	Many   bool     // may be repeated
	Number bool     // decimal, not negative
	Flag   bool     // true or false
	Max    uint64   // of a number that is at least 1; 0: no bound
	Needed bool     // must be there
	Of     string   // of "after": the kind of the list's items
	Index  []int    // of the field in the input; nil: it is the input
}

// Input says where a request has the parts of an operation's input. Tags of the input's
// fields define it:
//
//	in:"path"   a parameter of the path
//	in:"query"  a parameter of the query, with doc, enum (words), max and needed
//	in:"match"  the version in If-Match
//	in:"key"    the Idempotency-Key
//	in:"body"   the body; a struct with other fields and none of these is the body as a whole
//
// The name is that in the tag json, or as. An input that is a text or a number is the
// parameter of the path.
type Input struct {
	Path, Query []Field
	Match, Key  []int        // index of the field; nil: it has none
	Body        []int        // index of the body's field; nil: the whole
	BodyType    reflect.Type // nil: there is no body
}

// InputOf returns the parts of an operation's input.
func InputOf(o *hub.Operation) *Input {
	in := new(Input)
	switch {
	case o.In == nil:
	case o.In.Kind() == reflect.Struct:
		in.fields(o.In, o.In, nil, "")
	default:
		_, name, _ := strings.Cut(o.Path, "{")
		name, _, _ = strings.Cut(name, "}")
		in.Path = []Field{{Name: strings.TrimSuffix(name, "..."), Number: o.In.Kind() == reflect.Uint64}}
	}
	return in
}

func (in *Input) fields(whole, t reflect.Type, at []int, of string) {
	for i := range t.NumField() {
		f := t.Field(i)
		index := append(at[:len(at):len(at)], i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if as := f.Tag.Get("as"); as != "" {
			name = as
		}
		p := Field{Name: name, Doc: f.Tag.Get("doc"), Many: f.Type.Kind() == reflect.Slice, Needed: f.Tag.Get("needed") != "", Index: index}
		switch f.Tag.Get("in") {
		case "path":
			in.Path = append(in.Path, p)
		case "query":
			if enum := f.Tag.Get("enum"); enum != "" {
				p.Enum = strings.Fields(enum)
			}
			switch f.Type.Kind() {
			case reflect.Int, reflect.Uint64:
				p.Number = true
			case reflect.Bool:
				p.Flag = true
			}
			for _, d := range f.Tag.Get("max") {
				p.Max = 10*p.Max + uint64(d-'0')
			}
			if name == "after" && !p.Number {
				p.Of = of
			}
			in.Query = append(in.Query, p)
		case "match":
			in.Match = index
		case "key":
			in.Key = index
		case "body":
			in.Body, in.BodyType = index, f.Type
		default:
			switch {
			case f.Anonymous && f.Type.Kind() == reflect.Struct:
				in.fields(whole, f.Type, index, f.Tag.Get("of"))
			case name != "-" && name != "":
				in.BodyType = whole
			}
		}
	}
}

// Versioned reports whether the answer has a version, which is its ETag.
func Versioned(o *hub.Operation) bool {
	if o.Out == nil || o.Out.Kind() != reflect.Struct {
		return o.Out == Type[hub.Artifact]() // whose digest it is
	}
	f, ok := o.Out.FieldByName("Version")
	return ok && f.Type.Kind() == reflect.Int64
}

// answer returns the type of the JSON that an operation answers with, nil if it is none.
func answer(o *hub.Operation) reflect.Type {
	switch o.Out {
	case Type[hub.Tape]():
		return Type[hub.Event]()
	case Type[hub.Outputs]():
		return Type[hub.OutputPart]()
	case Type[hub.None](), Type[[]byte](), Type[hub.Artifact]():
		return nil
	}
	return o.Out
}

// Type returns the type T, for the tables.
func Type[T any]() reflect.Type { return reflect.TypeFor[T]() }

// RespondAsync is the value of the header Prefer for an answer that does not wait.
const RespondAsync = "respond-async"

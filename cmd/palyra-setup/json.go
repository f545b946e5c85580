package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// part is a member of an object or an element of an array in a JSON text, by offsets.
type part struct {
	name              string // of a member
	start, value, end int    // start is the name's
}

// jsonText is a JSON text that is edited in place: what isn't touched keeps its bytes. Its
// methods want a text that check accepts.
type jsonText []byte

// check says whether a text is one JSON object, without members of the same name on the way
// to the paths that are edited (parts looks). An empty one counts as {}.
func (t jsonText) check() error {
	var v map[string]json.RawMessage
	err := json.Unmarshal(t.orEmpty(), &v)
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("line %d: not JSON: %w", 1+bytes.Count(t[:min(int(s.Offset), len(t))], []byte("\n")), err)
	}
	if err == nil && v == nil {
		err = errors.New("null")
	}
	if err != nil {
		return fmt.Errorf("not a JSON object: %w", err)
	}
	return nil
}

func (t jsonText) orEmpty() jsonText {
	if len(bytes.TrimSpace(t)) == 0 {
		return jsonText("{}\n")
	}
	return t
}

// parts returns the members or elements of the object or array at an offset, and the offset
// of its closing bracket.
func (t jsonText) parts(at int) (out []part, end int, err error) {
	d := json.NewDecoder(bytes.NewReader(t[at:]))
	open, err := d.Token()
	if err != nil {
		return nil, 0, err
	}
	for d.More() {
		var p part
		if open == json.Delim('{') {
			key, err := d.Token()
			if err != nil {
				return nil, 0, err
			}
			p.name = key.(string)
			p.start = at + t[at:at+int(d.InputOffset())].lastString()
			if slices.ContainsFunc(out, func(q part) bool { return q.name == p.name }) {
				return nil, 0, fmt.Errorf("%q stands twice", p.name)
			}
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, 0, err
		}
		p.end = at + int(d.InputOffset())
		p.value = p.end - len(raw)
		if open == json.Delim('[') {
			p.start = p.value
		}
		out = append(out, p)
	}
	_, err = d.Token()
	return out, at + int(d.InputOffset()) - 1, err
}

// lastString is the offset of the string that a text ends with.
func (t jsonText) lastString() int {
	for i := len(t) - 2; ; i-- {
		back := 0
		for t[i] == '"' && i-back > 0 && t[i-1-back] == '\\' {
			back++
		}
		if t[i] == '"' && back%2 == 0 {
			return i
		}
	}
}

// find walks a path. It returns the offset of the deepest value that there is, its depth,
// and the part that is the whole path's, nil if there is none.
func (t jsonText) find(path []string) (at, depth int, found *part, err error) {
	at = bytes.IndexByte(t, '{')
	for {
		if t[at] != '{' {
			return 0, 0, nil, fmt.Errorf("%q is no object", strings.Join(path[:depth], "."))
		}
		ps, _, err := t.parts(at)
		if err != nil {
			return 0, 0, nil, err
		}
		i := slices.IndexFunc(ps, func(p part) bool { return p.name == path[depth] })
		switch {
		case i < 0:
			return at, depth, nil, nil
		case depth == len(path)-1:
			return at, depth, &ps[i], nil
		}
		at, depth = ps[i].value, depth+1
	}
}

// value returns the bytes at a path, nil if there are none.
func (t jsonText) value(path []string) []byte {
	_, _, p, err := t.orEmpty().find(path)
	if err != nil || p == nil {
		return nil
	}
	return t[p.value:p.end]
}

// put sets the value at a path, and makes the objects on the way.
func (t jsonText) put(path []string, value any) (jsonText, error) {
	t = t.orEmpty()
	at, depth, p, err := t.find(path)
	if err != nil {
		return nil, err
	}
	if p != nil {
		return t.splice(p.value, p.end, render(value, t.indent(p.start))), nil
	}
	for i := len(path) - 1; i > depth; i-- {
		value = map[string]any{path[i]: value}
	}
	name, _ := json.Marshal(path[depth])
	return t.insert(at, string(name)+": ", value)
}

// add appends a string to the array at a path, unless it is there.
func (t jsonText) add(path []string, item string) (jsonText, error) {
	t = t.orEmpty()
	_, _, p, err := t.find(path)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return t.put(path, []string{item})
	}
	if i, _, err := t.item(p, item); err != nil || i >= 0 {
		return t, err
	}
	return t.insert(p.value, "", item)
}

// item returns the index of a string in an array, -1 if it has none, and the elements.
func (t jsonText) item(p *part, item string) (int, []part, error) {
	if t[p.value] != '[' {
		return 0, nil, fmt.Errorf("%q is no array", p.name)
	}
	ps, _, err := t.parts(p.value)
	return slices.IndexFunc(ps, func(e part) bool {
		var s string
		return json.Unmarshal(t[e.value:e.end], &s) == nil && s == item
	}), ps, err
}

// insert puts a value, with what stands before it, behind the last part of the object or
// array at an offset, on a line of its own if that has lines.
func (t jsonText) insert(at int, before string, value any) (jsonText, error) {
	ps, end, err := t.parts(at)
	if err != nil {
		return nil, err
	}
	if len(ps) == 0 {
		outer := t.indent(at)
		inner := outer + "  "
		return t.splice(at+1, end, "\n"+inner+before+render(value, inner)+"\n"+outer), nil
	}
	last := ps[len(ps)-1]
	if !bytes.Contains(t[at:ps[0].start], []byte("\n")) {
		b, err := json.Marshal(value)
		return t.splice(last.end, last.end, ", "+before+string(b)), err
	}
	indent := t.indent(ps[0].start)
	return t.splice(last.end, last.end, ",\n"+indent+before+render(value, indent)), nil
}

// drop removes what is at a path, if there is something.
func (t jsonText) drop(path []string) (jsonText, error) {
	at, _, p, err := t.find(path)
	if err != nil || p == nil {
		return t, err
	}
	return t.cut(at, p.start)
}

// dropItem removes a string from the array at a path.
func (t jsonText) dropItem(path []string, item string) (jsonText, error) {
	_, _, p, err := t.find(path)
	if err != nil || p == nil {
		return t, err
	}
	i, ps, err := t.item(p, item)
	if err != nil || i < 0 {
		return t, err
	}
	return t.cut(p.value, ps[i].start)
}

// cut removes the part that begins at start from the object or array at an offset, with its
// comma.
func (t jsonText) cut(at, start int) (jsonText, error) {
	ps, end, err := t.parts(at)
	if err != nil {
		return nil, err
	}
	switch i := slices.IndexFunc(ps, func(p part) bool { return p.start == start }); {
	case i > 0:
		return t.splice(ps[i-1].end, ps[i].end, ""), nil
	case len(ps) > 1:
		return t.splice(ps[0].start, ps[1].start, ""), nil
	}
	return t.splice(at+1, end, ""), nil
}

func (t jsonText) splice(from, to int, s string) jsonText {
	return slices.Concat(t[:from], jsonText(s), t[to:])
}

// indent is the white space at the beginning of the line with an offset.
func (t jsonText) indent(at int) string {
	line := t[bytes.LastIndexByte(t[:at], '\n')+1:]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

func render(value any, indent string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent(indent, "  ")
	if raw, ok := value.(json.RawMessage); ok {
		return string(raw)
	}
	if err := e.Encode(value); err != nil {
		panic("palyra-setup: internal error: " + err.Error()) // strings, slices and maps of them
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// sameJSON reports whether two texts differ in white space alone.
func sameJSON(a, b jsonText) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a.orEmpty()) == nil && json.Compact(&y, b.orEmpty()) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// span is a value in a JSON text.
type span struct {
	path       string // "a.b[].c"; list elements are all one path
	parent     *span
	start, end int // of the value
	key        int // where the member's name begins; start for a list element
	kind       byte
	children   []*span
}

// parse finds the values of a JSON text that has no white space between tokens.
func parse(b []byte) (*span, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	root := &span{}
	if err := root.read(d, b, 0); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("more than one JSON value")
	}
	return root, nil
}

func (s *span) read(d *json.Decoder, b []byte, from int) error {
	for bytes.IndexByte([]byte(",:"), b[from]) >= 0 {
		from++
	}
	s.start = from
	tok, err := d.Token()
	if err != nil {
		return err
	}
	s.kind = 's'
	switch t := tok.(type) {
	case json.Delim:
		s.kind = byte(t)
		for d.More() {
			c := &span{parent: s, path: s.path + "[]"}
			at := int(d.InputOffset())
			for bytes.IndexByte([]byte(",{["), b[at]) >= 0 && at < int(d.InputOffset())+1 && b[at] == ',' {
				at++
			}
			c.key = at
			if t == '{' {
				name, err := d.Token()
				if err != nil {
					return err
				}
				c.path = strings.TrimPrefix(s.path+"."+name.(string), ".")
			}
			if err := c.read(d, b, int(d.InputOffset())); err != nil {
				return err
			}
			s.children = append(s.children, c)
		}
		if _, err := d.Token(); err != nil {
			return err
		}
	case string:
	default:
		s.kind = 'n' // number, true, false, null
	}
	s.end = int(d.InputOffset())
	return nil
}

// all calls f for every value.
func (s *span) all(f func(*span)) {
	f(s)
	for _, c := range s.children {
		c.all(f)
	}
}

// at says where an offset lies: in the value of a path, in a member's name, or
// between them.
func (s *span) at(off int) string {
	for _, c := range s.children {
		switch {
		case off >= c.start && off < c.end:
			return c.at(off)
		case off >= c.key && off < c.start:
			if c.path != s.path+"[]" {
				return c.path + " (name)"
			}
		}
	}
	if s.kind == 's' || s.kind == 'n' {
		return s.path
	}
	if s.path == "" {
		return "(top) (punctuation)"
	}
	return s.path + " (punctuation)"
}

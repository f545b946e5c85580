package inspect

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	rule "palyra/call/egress"
	"palyra/internal/locked"
	"palyra/internal/spelling"
)

// values are the values of a call's uses. They're immutable until they are wiped, and nothing uses
// them then.
type values struct {
	uses         []rule.Use
	placeholders []string         // of uses
	held         []*locked.Memory // of uses
	table        spelling.Table   // what each value is spelled like, for its placeholder
	spelled      *locked.Memory   // the text of table
}

// newValues takes copies of the values of uses, in their order.
func newValues(uses []rule.Use, placeholders []string, given [][]byte) (*values, error) {
	v := &values{uses: uses, placeholders: placeholders}
	size := 0
	for i, u := range uses {
		val := bytes.TrimRight(given[i], "\r\n") // of a file
		if err := checkValue(u, val); err != nil {
			v.wipe()
			return nil, err
		}
		for j, o := range uses[:i] {
			if o.Name == u.Name && !bytes.Equal(v.held[j].Bytes(), val) {
				v.wipe()
				return nil, fmt.Errorf("uses of %s have different values", u.Name)
			}
		}
		m := locked.New(len(val))
		copy(m.Bytes(), val)
		v.held = append(v.held, m)
		each(val, func(p []byte) { size += len(p) })
	}
	v.spelled = locked.New(size)
	room := v.spelled.Bytes()
	for i := range uses {
		each(v.held[i].Bytes(), func(p []byte) {
			copy(room, p)
			v.table.Add(room[:len(p):len(p)], []byte(placeholders[i]), false)
			room = room[len(p):]
		})
	}
	return v, nil
}

// each gives the spellings of a value to f, and wipes them.
func each(value []byte, f func([]byte)) {
	for _, p := range spelling.Of(value) {
		f(p)
		clear(p)
	}
}

// checkValue refuses a value that its place can't have, without saying anything of it.
func checkValue(u rule.Use, value []byte) error {
	if len(value) < spelling.Min {
		return fmt.Errorf("the value for %s has fewer than %d bytes: it couldn't be told from other text in answers", u.Name, spelling.Min)
	}
	if u.Place.Kind == rule.InHeader && bytes.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return fmt.Errorf("the value for %s has characters that no header has", u.Name)
	}
	if u.Place.Kind == rule.InHeader && len(bytes.Trim(value, " ")) < len(value) {
		return fmt.Errorf("the value for %s begins or ends with a blank, which a header's text doesn't", u.Name) // RFC 9110 §5.5
	}
	return nil
}

func (v *values) wipe() {
	if v == nil {
		return
	}
	v.table = spelling.Table{}
	for _, m := range v.held {
		m.Wipe()
	}
	if v.spelled != nil {
		v.spelled.Wipe()
	}
}

// put returns what out has to become for uses that match the request in, of which it changes
// nothing, and what is left to be looked at: the head without the placeholders that stand in their
// places. path is the request's.
func (v *values) put(in *http.Request, host string, port uint16, path string) (header http.Header, query string, left http.Header, leftQuery string, used []string) {
	header, left = in.Header, in.Header
	query, leftQuery = in.URL.RawQuery, in.URL.RawQuery
	if v == nil {
		return header, query, left, leftQuery, nil
	}
	cloned := false
	for i, u := range v.uses {
		if !u.Matches(host, port, in.Method, path) {
			continue
		}
		hit := false
		switch u.Place.Kind {
		case rule.InHeader:
			key := http.CanonicalHeaderKey(u.Place.Name)
			for j := range left[key] {
				basic := u.Place.Name == "authorization"
				// A place may have placeholders of several uses.
				without, h := inHeader(left[key][j], v.placeholders[i], nil, basic)
				if !h {
					continue
				}
				if !cloned {
					header, left, cloned = header.Clone(), left.Clone(), true
				}
				left[key][j] = without
				header[key][j], _ = inHeader(header[key][j], v.placeholders[i], v.held[i].Bytes(), basic)
				hit = true
			}
		case rule.InQuery:
			if leftQuery, hit = inQuery(leftQuery, u.Place.Name, v.placeholders[i], nil); hit {
				query, _ = inQuery(query, u.Place.Name, v.placeholders[i], v.held[i].Bytes())
			}
		}
		if hit && !slices.Contains(used, u.Name) {
			used = append(used, u.Name)
		}
	}
	return header, query, left, leftQuery, used
}

// inHeader returns a header's text with the value in place of the placeholder, where that is a
// whole word. With basic it's also the user or the password of that scheme.
func inHeader(text, placeholder string, value []byte, basic bool) (string, bool) {
	if basic && len(text) > 6 && strings.EqualFold(text[:6], "basic ") {
		user, password, ok := parseBasic(text[6:])
		if !ok || user != placeholder && password != placeholder {
			return text, false
		}
		if user == placeholder {
			user = string(value)
		}
		if password == placeholder {
			password = string(value)
		}
		if value == nil {
			return text[:6] + user + ":" + password, true // to be looked at, not to be sent
		}
		return text[:6] + base64.StdEncoding.EncodeToString([]byte(user+":"+password)), true
	}
	var out strings.Builder
	hit := false
	for {
		at := strings.Index(text, placeholder)
		if at < 0 {
			break
		}
		end := at + len(placeholder)
		if (at == 0 || strings.IndexByte(" \t=:,;\"'", text[at-1]) >= 0) && (end == len(text) || strings.IndexByte(" \t,;\"'&", text[end]) >= 0) {
			out.WriteString(text[:at])
			out.Write(value)
			hit = true
		} else {
			out.WriteString(text[:end])
		}
		text = text[end:]
	}
	out.WriteString(text)
	return out.String(), hit
}

// parseBasic reads credentials as strictly as they are written: RFC 7617.
func parseBasic(text string) (user, password string, ok bool) {
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimRight(text, " "))
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(b), ":")
}

// inQuery returns a query with the value in place of the placeholder, where that is all of a
// parameter.
func inQuery(query, name, placeholder string, value []byte) (string, bool) {
	parts, hit := strings.Split(query, "&"), false
	for i, p := range parts {
		key, val, _ := strings.Cut(p, "=")
		k, kerr := url.QueryUnescape(key)
		x, verr := url.QueryUnescape(val)
		if kerr == nil && verr == nil && k == name && x == placeholder {
			parts[i] = key + "=" + url.QueryEscape(string(value))
			hit = true
		}
	}
	return strings.Join(parts, "&"), hit
}

// clean returns text with placeholders in place of values.
func (v *values) clean(text string) string {
	if v == nil {
		return text
	}
	b, _ := v.cleanPart(nil, []byte(text), true)
	return string(b)
}

// cleanPart appends b to out with placeholders in place of values. Unless it's the last part, it
// returns the rest with which a value may begin.
func (v *values) cleanPart(out, b []byte, last bool) (cleaned, rest []byte) {
	from := 0
	for i := v.table.Next(b, 0); i < len(b); {
		n, mask, more := v.table.At(b, i, last)
		if more {
			return append(out, b[from:i]...), b[i:]
		}
		if n > 0 {
			out = append(append(out, b[from:i]...), mask...)
			from = i + n
			i = v.table.Next(b, from)
			continue
		}
		i = v.table.Next(b, i+1)
	}
	return append(out, b[from:]...), nil
}

// cleanHeader puts placeholders in place of values in h.
func (v *values) cleanHeader(h http.Header) {
	if v == nil {
		return
	}
	for key, texts := range h {
		if v.clean(key) != key || v.clean(strings.ToLower(key)) != strings.ToLower(key) {
			delete(h, key)
			continue
		}
		for i, text := range texts {
			texts[i] = v.clean(text)
		}
	}
}

// cleaner is a body with placeholders in place of values. It's one goroutine's.
type cleaner struct {
	io.ReadCloser
	v    *values
	held []byte // what was read and isn't certain
	out  []byte // what is certain and isn't read
	room []byte // of out
	err  error  // of the body
	buf  []byte
}

func newCleaner(body io.ReadCloser, v *values) *cleaner {
	return &cleaner{ReadCloser: body, v: v, buf: make([]byte, 16<<10)}
}

func (c *cleaner) Read(p []byte) (int, error) {
	for len(c.out) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		n, err := c.ReadCloser.Read(c.buf)
		c.err = err
		if n == 0 && err == nil {
			return 0, nil
		}
		c.held = append(c.held, c.buf[:n]...)
		if err != nil && !errors.Is(err, io.EOF) {
			continue // what wasn't certain stays so
		}
		var rest []byte
		c.out, rest = c.v.cleanPart(c.room[:0], c.held, err != nil)
		c.room = c.out
		c.held = append(c.held[:0], rest...)
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// Package apitest holds what tests of the HTTP interface need: an in-memory
// hub.Hub ([NewHub]) and a [Checker] that holds traffic against an OpenAPI
// document.
//
//	h := apitest.NewHub()
//	c, err := apitest.NewChecker(document)
//	err = c.Check("POST", "/api/v1/sessions", 201, "application/json", body)
//
// The Checker knows the part of OpenAPI 3.1 and JSON Schema that package api writes. It
// fails on any other keyword, since it wouldn't check a constraint that it doesn't know.
//
// The package doesn't protect against a document that is wrong about the interface as it
// ought to be: document and server come from the same table.
package apitest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

type object = map[string]any

// Checker holds requests and responses against an OpenAPI document. Immutable.
type Checker struct {
	doc   object
	paths []pathItem
}

type pathItem struct {
	template string
	re       *regexp.Regexp
	item     object
}

// NewChecker reads a document.
func NewChecker(doc []byte) (*Checker, error) {
	c := new(Checker)
	if err := json.Unmarshal(doc, &c.doc); err != nil {
		return nil, fmt.Errorf("parse OpenAPI document: %v", err)
	}
	paths, _ := c.doc["paths"].(object)
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		item := paths[p].(object)
		re := regexp.QuoteMeta(p)
		params, _ := item["parameters"].([]any)
		for _, v := range params {
			param, match := v.(object), `[^/]+`
			if param["x-segments"] == true {
				match = `.+`
			}
			re = strings.Replace(re, `\{`+param["name"].(string)+`\}`, match, 1)
		}
		rx, err := regexp.Compile("^" + re + "$")
		if err != nil {
			return nil, fmt.Errorf("path %q: %v", p, err)
		}
		c.paths = append(c.paths, pathItem{p, rx, item})
	}
	if len(c.paths) == 0 {
		return nil, errors.New("parse OpenAPI document: no paths")
	}
	return c, nil
}

// Operation returns the id of the operation that a request asks for, "" if the
// document has none. A path without parameters goes first.
func (c *Checker) Operation(method, path string) string {
	op, _ := c.find(method, path)["operationId"].(string)
	return op
}

func (c *Checker) find(method, path string) object {
	var found object
	for _, p := range c.paths {
		if !p.re.MatchString(path) {
			continue
		}
		if op, ok := p.item[strings.ToLower(method)].(object); ok && (found == nil || !strings.Contains(p.template, "{")) {
			found = op
		}
	}
	return found
}

// Request checks the JSON body of a request that was accepted.
func (c *Checker) Request(method, path string, body []byte) error {
	op := c.find(method, path)
	if op == nil {
		return fmt.Errorf("%s %s is not in the document", method, path)
	}
	rb, _ := op["requestBody"].(object)
	if rb == nil {
		if len(body) > 0 {
			return fmt.Errorf("%s %s has no body in the document", method, path)
		}
		return nil
	}
	return c.media(rb, "application/json", body)
}

// Response checks an answer.
func (c *Checker) Response(method, path string, status int, contentType string, body []byte) error {
	op := c.find(method, path)
	if op == nil {
		if status == 404 || status == 405 {
			return nil
		}
		return fmt.Errorf("%s %s answers %d and is not in the document", method, path, status)
	}
	rs := op["responses"].(object)
	r, ok := rs[strconv.Itoa(status)].(object)
	if !ok {
		if status < 400 {
			return fmt.Errorf("%s %s answers %d, which the document does not have", method, path, status)
		}
		r = rs["default"].(object)
	}
	if err := c.media(c.deref(r), contentType, body); err != nil {
		return fmt.Errorf("%s %s, %d: %v", method, path, status, err)
	}
	return nil
}

func (c *Checker) media(r object, contentType string, body []byte) error {
	content, _ := r["content"].(object)
	if len(body) == 0 && (content == nil || contentType == "") {
		return nil
	}
	base, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return fmt.Errorf("content type %q: %v", contentType, err)
	}
	for m, v := range content {
		if b, _, err := mime.ParseMediaType(m); err != nil || b != base {
			continue
		}
		schema, ok := v.(object)["schema"].(object)
		if !ok {
			return nil
		}
		switch {
		case base == "application/x-ndjson":
			for line := range bytes.Lines(body) {
				if line = bytes.TrimSpace(line); len(line) > 0 {
					if err := c.value(schema, line); err != nil {
						return err
					}
				}
			}
			return nil
		case strings.HasSuffix(base, "json"):
			return c.value(schema, body)
		}
		return nil
	}
	return fmt.Errorf("content type %q is not in the document", contentType)
}

func (c *Checker) value(schema object, body []byte) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("body: %v", err)
	}
	return c.check(schema, v, "$")
}

func (c *Checker) deref(s object) object {
	ref, ok := s["$ref"].(string)
	if !ok {
		return s
	}
	var v any = c.doc
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		o, _ := v.(object)
		v = o[part]
	}
	o, _ := v.(object)
	return o
}

// check holds a value against a schema.
func (c *Checker) check(s object, v any, at string) error {
	if s = c.deref(s); s == nil {
		return fmt.Errorf("%s: reference leads nowhere", at)
	}
	for k := range s {
		switch k {
		case "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "pattern", "format",
			"minimum", "minItems", "maxItems", "contentEncoding", "description":
		default:
			return fmt.Errorf("%s: schema keyword %q is not known to the checker", at, k)
		}
	}
	if any, ok := s["anyOf"].([]any); ok {
		var errs []error
		for _, a := range any {
			err := c.check(a.(object), v, at)
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	switch s["type"] {
	case nil:
		return nil
	case "null":
		if v != nil {
			return fmt.Errorf("%s: %T, want null", at, v)
		}
		return nil
	case "string":
		return checkString(s, v, at)
	case "boolean":
		if _, ok := v.(bool); !ok {
			return fmt.Errorf("%s: %T, want boolean", at, v)
		}
		return nil
	case "integer", "number":
		return checkNumber(s, v, at)
	case "array":
		return c.checkArray(s, v, at)
	case "object":
		return c.checkObject(s, v, at)
	}
	return fmt.Errorf("%s: type %v is not known to the checker", at, s["type"])
}

func checkString(s object, v any, at string) error {
	str, ok := v.(string)
	if !ok {
		return fmt.Errorf("%s: %T, want string", at, v)
	}
	if p, ok := s["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(str) {
		return fmt.Errorf("%s: %.60q does not match %s", at, str, p)
	}
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, any(str)) {
		return fmt.Errorf("%s: %.60q is not among %v", at, str, enum)
	}
	if s["format"] == "date-time" {
		if _, err := time.Parse(time.RFC3339Nano, str); err != nil {
			return fmt.Errorf("%s: %v", at, err)
		}
	}
	if s["contentEncoding"] == "base64" {
		if _, err := base64.StdEncoding.DecodeString(str); err != nil {
			return fmt.Errorf("%s: %v", at, err)
		}
	}
	return nil
}

func checkNumber(s object, v any, at string) error {
	n, ok := v.(json.Number)
	if !ok {
		return fmt.Errorf("%s: %T, want %v", at, v, s["type"])
	}
	if s["type"] == "integer" && strings.ContainsAny(n.String(), ".eE") {
		return fmt.Errorf("%s: %s is no integer", at, n)
	}
	if least, ok := s["minimum"].(float64); ok {
		if f, err := n.Float64(); err != nil || f < least {
			return fmt.Errorf("%s: %s is less than %g", at, n, least)
		}
	}
	return nil
}

func (c *Checker) checkArray(s object, v any, at string) error {
	a, ok := v.([]any)
	if !ok {
		return fmt.Errorf("%s: %T, want array", at, v)
	}
	if n, ok := s["minItems"].(float64); ok && len(a) < int(n) {
		return fmt.Errorf("%s: %d items, want at least %g", at, len(a), n)
	}
	if n, ok := s["maxItems"].(float64); ok && len(a) > int(n) {
		return fmt.Errorf("%s: %d items, want at most %g", at, len(a), n)
	}
	items, ok := s["items"].(object)
	if !ok {
		return nil
	}
	for i, e := range a {
		if err := c.check(items, e, fmt.Sprintf("%s[%d]", at, i)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Checker) checkObject(s object, v any, at string) error {
	o, ok := v.(object)
	if !ok {
		return fmt.Errorf("%s: %T, want object", at, v)
	}
	required, _ := s["required"].([]any)
	for _, r := range required {
		if _, ok := o[r.(string)]; !ok {
			return fmt.Errorf("%s: member %q is missing", at, r)
		}
	}
	props, _ := s["properties"].(object)
	for _, name := range slices.Sorted(maps.Keys(o)) {
		p, ok := props[name].(object)
		if !ok {
			switch more := s["additionalProperties"].(type) {
			case object:
				p = more
			case bool:
				if !more {
					return fmt.Errorf("%s: member %q is not in the schema", at, name)
				}
				continue
			default:
				continue
			}
		}
		if err := c.check(p, o[name], at+"."+name); err != nil {
			return err
		}
	}
	return nil
}

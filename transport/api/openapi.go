package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"palyra/hub"
)

// Document returns the OpenAPI 3.1 document of the operations: the same bytes for the same
// table.
func Document(ops []*hub.Operation) ([]byte, error) {
	s := &schemas{defs: object{}, types: map[string]reflect.Type{}}
	paths := object{}
	for _, o := range ops {
		// OpenAPI has no parameter of several segments.
		path := strings.Replace(o.Full(), "...}", "}", 1)
		item, _ := paths[path].(object)
		if item == nil {
			item = object{}
			paths[path] = item
			if ps := pathParams(o.Path); len(ps) > 0 {
				item["parameters"] = ps
			}
		}
		m := strings.ToLower(o.Method)
		if item[m] != nil {
			return nil, fmt.Errorf("openapi: %s %s twice", o.Method, path)
		}
		item[m] = s.operation(o)
	}
	problem := object{"description": "RFC 9457 problem", "content": object{MediaProblem: object{"schema": s.of(Type[Problem]())}}}
	doc := object{
		"openapi":           "3.1.0",
		"jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
		"info": object{"title": "Palyra", "version": "v1",
			"description": "Decide, approve, run and record tool calls. See docs/formats/http.md."},
		"servers": []any{object{"url": "http://127.0.0.1:7142"}},
		"paths":   paths,
		"components": object{
			"schemas":   s.defs,
			"responses": object{"Problem": problem},
			"securitySchemes": object{
				"token": object{"type": "http", "scheme": "bearer", "description": "an API token; on the unix socket the kernel says who connects"},
			},
		},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(doc); err != nil {
		return nil, fmt.Errorf("openapi: %v", err)
	}
	return b.Bytes(), nil
}

func (s *schemas) operation(o *hub.Operation) object {
	op := object{"operationId": o.ID, "summary": o.Summary, "tags": []string{o.Tag}, "x-permission": o.Permission}
	if o.Doc != "" {
		op["description"] = o.Doc
	}
	op["security"] = []any{object{"token": []string{}}}
	if o.Permission == hub.Public {
		op["security"] = []any{}
	}
	if ps := s.params(o); len(ps) > 0 {
		op["parameters"] = ps
	}
	if body := InputOf(o).BodyType; body != nil {
		op["requestBody"] = object{"required": true, "content": object{hub.MediaJSON: object{"schema": s.of(body)}}}
	}
	responses := object{"default": object{"$ref": "#/components/responses/Problem"}}
	for _, status := range append([]int{o.Status}, o.Also...) {
		responses[strconv.Itoa(status)] = s.response(o)
	}
	if Versioned(o) && o.Method == "GET" {
		responses["304"] = object{"description": "not modified"}
	}
	op["responses"] = responses
	return op
}

func (s *schemas) response(o *hub.Operation) object {
	r := object{"description": o.Summary}
	content := object{}
	media, body := o.Media, answer(o)
	if len(media) == 0 && body != nil {
		media = []string{hub.MediaJSON}
	}
	for _, m := range media {
		switch {
		case body != nil && (m == hub.MediaJSON || m == hub.MediaNDJSON):
			content[m] = object{"schema": s.of(body)}
		case strings.HasPrefix(m, "text/"):
			content[m] = object{"schema": object{"type": "string"}}
		default:
			content[m] = object{}
		}
	}
	if len(content) > 0 {
		r["content"] = content
	}
	if Versioned(o) {
		r["headers"] = object{"ETag": object{"schema": object{"type": "string"}, "description": "version of the resource"}}
	}
	return r
}

func (s *schemas) params(o *hub.Operation) []any {
	var ps []any
	in := InputOf(o)
	for _, q := range in.Query {
		sch := object{"type": "string"}
		switch {
		case q.Number:
			sch = object{"type": "integer", "minimum": 0}
		case q.Flag:
			sch = object{"type": "boolean"}
		case len(q.Enum) > 0:
			sch = object{"type": "string", "enum": q.Enum}
		}
		if q.Many {
			sch = object{"type": "array", "items": sch}
		}
		ps = append(ps, object{"name": q.Name, "in": "query", "description": q.Doc, "schema": sch})
	}
	header := func(name, doc string, required bool) {
		ps = append(ps, object{"name": name, "in": "header", "description": doc, "required": required, "schema": object{"type": "string"}})
	}
	if o.Idempotent || o.Key {
		header("Idempotency-Key", "1 to 128 visible ASCII characters; the same key and the same request give the same answer and happen once", o.Idempotent)
	}
	if in.Match != nil {
		header("If-Match", "the ETag of the version that is meant, or * for whichever there is", !o.Creates)
	}
	if o.Creates {
		header("If-None-Match", "*: there is none yet; instead of If-Match", false)
	}
	if o.Prefer {
		header("Prefer", "respond-async: answer 202 at once", false)
	}
	return ps
}

// pathParams returns the parameters of a path, which all its methods share.
func pathParams(path string) []any {
	var ps []any
	for _, part := range strings.Split(path, "/") {
		name, ok := strings.CutPrefix(part, "{")
		if !ok {
			continue
		}
		name, many := strings.CutSuffix(strings.TrimSuffix(name, "}"), "...")
		p := object{"name": name, "in": "path", "required": true, "schema": object{"type": "string"}}
		if many {
			p["x-segments"] = true
			p["description"] = "may hold slashes, which are not escaped"
		}
		ps = append(ps, p)
	}
	return ps
}

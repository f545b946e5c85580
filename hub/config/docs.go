package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"palyra/internal/fault"
)

// Explain describes one key for people, in plain text.
func Explain(name string) (string, error) {
	keys := Keys()
	i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name || k.each && matches(k.Name, name) })
	if i < 0 {
		var names []string
		for _, k := range keys {
			names = append(names, k.Name)
		}
		e := fault.New(fault.NotFound, "not_found", fmt.Sprintf("explain key %q", clip(name)), fmt.Errorf("there is no such key")).
			WithHint("palyra config schema lists the keys, palyra config show those in force")
		if n := nearest(name, names); n != "" {
			e = e.WithHint(fmt.Sprintf("did you mean %s?", n))
		}
		return "", e
	}
	k := keys[i]
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n\n%s\n\n", k.Name, kindOf(k), k.Doc)
	line := func(label, text string) {
		if text != "" {
			fmt.Fprintf(&b, "%-10s %s\n", label, text)
		}
	}
	line("default", orEmpty(k.Default))
	line("bounds", bounds(k))
	line("variable", k.Env)
	line("applied", applied(k))
	line("weakening", k.Cost)
	for _, f := range k.Floors {
		line("floor", fmt.Sprintf("%s and above want %s: %s", f.Profile, f.Want, f.Why))
	}
	return b.String(), nil
}

// matches reports whether name is "workspaces.x.path" for "workspaces.NAME.path".
func matches(pattern, name string) bool {
	p, n := strings.Split(pattern, "."), strings.Split(name, ".")
	return len(p) == 3 && len(n) == 3 && p[0] == n[0] && p[2] == n[2]
}

func kindOf(k Key) string {
	if len(k.OneOf) > 0 {
		text := "one of " + strings.Join(k.OneOf, ", ")
		for _, a := range k.Aka {
			other, value, _ := strings.Cut(a, "=")
			text += fmt.Sprintf("; %s is %s", other, value)
		}
		return text
	}
	if k.Unit != "" && k.Unit != k.Type {
		return k.Type + ", " + k.Unit
	}
	return k.Type
}

func orEmpty(s string) string {
	if s == "" {
		return "empty"
	}
	return s
}

func bounds(k Key) string {
	if k.Min == "" && k.Max == "" {
		return ""
	}
	return k.Min + " to " + k.Max
}

func applied(k Key) string {
	if k.Reload {
		return "at start and by SIGHUP"
	}
	return "at start"
}

// Schema returns the JSON Schema (2020-12) of the file's data model, indented.
func Schema() []byte {
	root := object("palyrad's configuration")
	props := root["properties"].(map[string]any)
	names, docs := sections()
	tables := map[string]map[string]any{"": props}
	for i, n := range names {
		o := object(docs[i])
		props[n] = o
		tables[n] = o["properties"].(map[string]any)
		if needs := named[n]; needs != nil {
			each := object("one of them")
			each["required"] = needs
			delete(o, "properties")
			delete(o, "additionalProperties")
			o["patternProperties"] = map[string]any{ownNames.String(): each}
			o["additionalProperties"] = false
			tables[n+"."+ownName] = each["properties"].(map[string]any)
		}
	}
	for _, k := range Keys() {
		tables[k.section][leaf(k.Name)] = schemaOf(k)
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("config: internal error: " + err.Error())
	}
	return append(b, '\n')
}

func object(doc string) map[string]any {
	o := map[string]any{"type": "object", "properties": map[string]any{}, "additionalProperties": false}
	if doc != "" {
		o["description"] = doc
	}
	return o
}

func schemaOf(k Key) map[string]any {
	s := map[string]any{"description": k.Doc}
	if k.Cost != "" {
		s["$comment"] = "a weaker value costs: " + k.Cost
	}
	switch k.Type {
	case "boolean":
		s["type"], s["default"] = "boolean", k.Default == "true"
	case "integer":
		s["type"] = "integer"
		s["default"], s["minimum"], s["maximum"] = json.Number(k.Default), json.Number(k.Min), json.Number(k.Max)
	case "size":
		s["type"], s["pattern"], s["default"] = []string{"integer", "string"}, "^[0-9]+([KMG]iB)?$", k.Default
	case "duration":
		s["type"], s["pattern"], s["default"] = "string", `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`, k.Default
	case "mode":
		s["type"], s["pattern"], s["default"] = "string", "^[0-7]{3,4}$", k.Default
	case "list":
		s["type"], s["items"] = "array", map[string]any{"type": "string"}
	default:
		s["type"], s["default"] = "string", k.Default
		if len(k.OneOf) > 0 {
			enum := slices.Clone(k.OneOf)
			for _, a := range k.Aka {
				other, _, _ := strings.Cut(a, "=")
				enum = append(enum, other)
			}
			s["enum"] = enum
		}
	}
	if k.each && k.Default == "" {
		delete(s, "default")
	}
	return s
}

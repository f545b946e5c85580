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
		e := fault.New(fault.NotFound, "config_unknown_key", fmt.Sprintf("explain key %q", clip(name)), fmt.Errorf("there is no such key"))
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

// certificateDocs is what holds from single-vm on beside the floors.
const certificateDocs = `
From single-vm on a call runs only at a tier for which ` + "`context.certificate`" + ` is ` + "`proven`" + `
([certificate.md](certificate.md#what-counts)); other profiles leave that to policy. The rule is the
set's last policy, ` + "`palyra.floor.certificate`" + `; its denials are ` + "`certificate_missing`" + ` and
` + "`certificate_refuted`" + `.
`

// Docs returns docs/formats/config.md.
func Docs() string {
	var b strings.Builder
	b.WriteString(docsHead)
	fmt.Fprintf(&b, "```toml\n%s```\n\n%s", example, docsRules)
	var reload []string
	keys := Keys()
	for _, k := range keys {
		if k.Reload {
			reload = append(reload, "`"+k.Name+"`")
		}
	}
	fmt.Fprintf(&b, "7. SIGHUP reads file and policies again, and applies\n   %s,\n   %s.\n%s",
		strings.Join(reload[:4], ", "), strings.Join(reload[4:], ", "), docsSighup)
	b.WriteString("## Profiles\n\nA profile is a floor: it changes no value, and refuses weaker ones than it and those before it want.\n")
	last := ""
	for _, f := range Floors() {
		if f.Profile != last {
			fmt.Fprintf(&b, "\nFrom `%s` on:\n\n", f.Profile)
			last = f.Profile
		}
		fmt.Fprintf(&b, "- `%s`: %s\n", f.Key, f.Want)
	}
	b.WriteString("\nUnder every profile a listener beyond loopback needs TLS, authentication and a rate limit.\n")
	b.WriteString(certificateDocs)
	b.WriteString("\n## Keys\n\nIn brackets: values, unit or bounds, and the default.\n")
	names, docs := sections()
	last = ""
	for i, k := range keys {
		if k.section != last {
			fmt.Fprintf(&b, "\n### [%s]\n\n", k.section)
			table, _, _ := strings.Cut(k.section, ".")
			if doc := docs[slices.Index(names, table)]; doc != "" {
				b.WriteString(doc + "\n\n")
			}
			last = k.section
		} else if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "- `%s` (%s; `%s`): %s\n", leaf(k.Name), valueOf(k), orQuotes(k), k.Doc)
	}
	return b.String()
}

// valueOf is a key's type, unit and bounds as the page has them: "4KiB to 64MiB".
func valueOf(k Key) string {
	if len(k.OneOf) > 0 {
		return strings.TrimPrefix(kindOf(k), "one of ")
	}
	switch b := bounds(k); {
	case b != "" && k.Type == "integer":
		return b + " " + k.Unit
	case b != "":
		return b + strings.TrimPrefix(k.Unit, map[string]string{"size": "bytes", "duration": "duration"}[k.Type])
	case k.Unit != "":
		return k.Unit
	}
	return k.Type
}

func orQuotes(k Key) string {
	s := k.Default
	switch {
	case k.Type == "list":
		return "[]"
	case s == "":
		return `""`
	}
	return s
}

// example is a complete small configuration; a test loads it.
const example = `profile = "single-vm"

[listen]
socket_group = "palyra-users"

[policy]
dir = "/etc/palyra/policy"

[workspaces.reports]
path = "/srv/palyra/reports"
read_only = false

[approvals]
timeout = "10m"
`

const docsHead = `# Configuration

<!-- Made from the tags of hub/config's struct; rewritten by: make generate -->

palyrad reads one TOML file, ` + "`--config`" + `. Everything has a default; this is a whole configuration:

`

const docsRules = `1. An unknown key, table or ` + "`PALYRA_`" + ` variable MUST be refused, with its line and the nearest name.
2. Case counts: ` + "`Profile`" + ` is not ` + "`profile`" + `.
3. Durations are Go's text (` + "`\"90s\"`" + `), sizes a number of bytes or text (` + "`\"64KiB\"`, `\"16MiB\"`" + `), modes
   octal text.
4. The file MUST be a regular file of at most 256 KiB that only root or palyrad's user may write.
5. A variable ` + "`PALYRA_SECTION_KEY`" + ` overrides ` + "`section.key`" + `, ` + "`PALYRA_PROFILE`" + ` the profile; none
   declares workspaces.
6. Secrets MUST NOT stand in it: no key takes one, and text that looks like a private key or token
   is refused.
`

const docsSighup = `   Other changes are logged as waiting for a restart. After an error everything stays as it was.

` + "`palyra config schema`" + ` prints the JSON Schema, ` + "`palyra config explain KEY`" + ` one key with its floors
and the cost of a weaker value, and ` + "`palyrad --check`" + ` checks a file.

`

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
		if n == "workspaces" {
			each := object("one directory")
			each["required"] = []string{"path"}
			delete(o, "properties")
			delete(o, "additionalProperties")
			o["patternProperties"] = map[string]any{workspaceNames.String(): each}
			o["additionalProperties"] = false
			tables[n+"."+workspaceName] = each["properties"].(map[string]any)
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

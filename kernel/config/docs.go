package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"palyra/internal/fault"
)

// Explain says about one key all that is known: for people, in plain text.
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

const certificateDocs = `
From single-vm on no call runs at a tier that the [sandbox certificate](certificate.md) of this boot does not prove; other profiles
leave that to policy. It is the last of the policies, ` + "`palyra.floor.certificate`" + `, and a call that it alone stops is denied as
certificate_missing or certificate_refuted. A certificate counts that ` + "`palyra sandbox certify`" + ` signed with this state directory's key, as this
user, since this boot, about this kernel and this palyra-cell, and that leaves no claim about the tier open: each is proven in
every kind of cell that is made here. Two exceptions. ` + "`no_new_privs`" + ` may be ` + "`inherited`" + `: systemd 252 sets it for a service whose system calls
are filtered, so that it is set outside, too. On a kernel whose Landlock is older than a mechanism the claim about that is
` + "`absent`" + `, which counts as nothing. That is so of ` + "`landlock_ports`" + ` (ABI 4) and ` + "`landlock_scopes`" + ` (ABI 6). At tier C the network namespace, with a claim of its own,
does the same; at tier B nothing else keeps a program from the host's abstract sockets if it is given a socket.
`

// Docs returns docs/formats/config.md.
func Docs() string {
	var b strings.Builder
	b.WriteString(docsHead)
	fmt.Fprintf(&b, "```toml\n%s```\n\n%s", example, docsRules)
	b.WriteString("## Profiles\n\nA profile is a floor: it changes no value and refuses weaker ones. Each holds to the floors of those before it.\n\n" +
		"| from profile | key | wants | because |\n|---|---|---|---|\n")
	for _, f := range Floors() {
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", f.Profile, f.Key, f.Want, f.Why)
	}
	b.WriteString(certificateDocs)
	b.WriteString("\nFor every profile: a listener beyond loopback needs TLS (1.3), authentication and a rate limit, or palyrad does not\nstart and names what is missing.\n")
	names, docs := sections()
	section := func(title, name, doc string) {
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		if doc != "" {
			b.WriteString(doc + "\n\n")
		}
		b.WriteString("| key | type | default | bounds | SIGHUP | meaning | what a weaker value costs |\n|---|---|---|---|---|---|---|\n")
		for _, k := range Keys() {
			if k.section != name && k.section != name+"."+workspaceName {
				continue
			}
			reload := "–"
			if k.Reload {
				reload = "yes"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", leaf(k.Name), kindOf(k), code(k.Default), dash(bounds(k)), reload, k.Doc, dash(k.Cost))
		}
	}
	section("At the top", "", "")
	for i, n := range names {
		title := "[" + n + "]"
		if n == "workspaces" {
			title = "[workspaces." + workspaceName + "]"
		}
		section(title, n, docs[i])
	}
	return b.String()
}

func code(s string) string {
	if s == "" {
		return "empty"
	}
	return "`" + s + "`"
}

func dash(s string) string {
	if s == "" {
		return "–"
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

<!-- Made from the tags of kernel/config's struct; rewritten by: make generate -->

palyrad reads one TOML file, given with ` + "`--config`" + `. Everything has a default; this is a whole configuration:

`

const docsRules = `1. A key, table or ` + "`PALYRA_`" + ` variable that does not exist MUST be refused, with its line and the nearest name.
2. Names are compared letter by letter: ` + "`Profile`" + ` is not ` + "`profile`" + `.
3. Durations are text as Go writes them (` + "`\"90s\"`" + `), sizes a number of bytes or text (` + "`\"64KiB\"`" + `, ` + "`\"16MiB\"`" + `), modes octal text.
4. The file MUST be a regular file of at most 256 KiB that only root or palyrad's user may write.
5. A variable ` + "`PALYRA_SECTION_KEY`" + ` overrides ` + "`section.key`" + `, ` + "`PALYRA_PROFILE`" + ` the profile. Workspaces stand in the file only.
6. Secrets MUST NOT stand in it. No key takes one; what looks like a private key or token is refused.
7. SIGHUP reads file and policies again. Any error keeps all of the old; keys without a *yes* below are named in the log as
   waiting for a restart.

` + "`palyra config schema`" + ` prints the JSON Schema, ` + "`palyra config explain KEY`" + ` one key, ` + "`palyrad --check`" + ` checks a file.

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
	return map[string]any{"type": "object", "description": doc, "properties": map[string]any{}, "additionalProperties": false}
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

package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The bounds of what a server may list.
const (
	maxTools      = 256
	maxToolName   = 128
	maxDefinition = 64 << 10 // bytes of a tool's, in canonical form
	maxList       = 1 << 20  // bytes of all of them
	maxPages      = 64
)

// definition is the part of a tool that a model or its user is shown, or that a client acts on.
// Other members are left out, and so aren't pinned, and aren't handed on.
type definition struct {
	Name         string          `json:"name"`
	Title        string          `json:"title,omitempty"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema,omitempty"`
	Annotations  json.RawMessage `json:"annotations,omitempty"`
}

// toolOf reads a tool of a server's list.
func toolOf(raw json.RawMessage) (t hub.ServerTool, err error) {
	var d definition
	if err := json.Unmarshal(raw, &d); err != nil {
		return t, errors.New("a tool is no object of the protocol")
	}
	if !validName(d.Name) {
		return t, fmt.Errorf("a tool has the name %.200q: want 1 to %d letters, digits, _, -, . and /", d.Name, maxToolName)
	}
	if !isObject(d.InputSchema) || d.OutputSchema != nil && !isObject(d.OutputSchema) {
		return t, fmt.Errorf("tool %q: a schema is an object", d.Name)
	}
	b, err := canon.Marshal(d)
	if err != nil {
		return t, fmt.Errorf("tool %q: %w", d.Name, err)
	}
	if len(b) > maxDefinition {
		return t, fmt.Errorf("tool %q: a definition of %d bytes, limit %d", d.Name, len(b), maxDefinition)
	}
	if r, ok := hidden(b); ok {
		return t, fmt.Errorf("tool %q: its definition has the character %U, which shows as something else or not at all", d.Name, r)
	}
	return hub.ServerTool{Name: d.Name, Pin: canon.Sum(b), Definition: b}, nil
}

// leftOut says why clients can't read a definition, "" if they can. It isn't refused: a person who
// accepts the server's tools sees it named.
func leftOut(b json.RawMessage) string {
	var d definition
	if err := json.Unmarshal(b, &d); err != nil {
		return "it is no definition"
	}
	if methodOf(d.Name) != nil {
		return "its name is that of a method"
	}
	for name, schema := range map[string]json.RawMessage{"inputSchema": d.InputSchema, "outputSchema": d.OutputSchema} {
		var s map[string]json.RawMessage
		if schema != nil && (json.Unmarshal(schema, &s) != nil || string(s["type"]) != `"object"`) {
			return name + ` has not the type "object"`
		}
	}
	if d.Annotations == nil {
		return ""
	}
	var all map[string]json.RawMessage // a struct would take "ReadOnlyHint", too
	if json.Unmarshal(d.Annotations, &all) != nil || all == nil {
		return "annotations is no object"
	}
	for _, name := range []string{"title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
		switch v := string(all[name]); {
		case v == "":
		case name == "title" && v[0] != '"':
			return "annotations.title is no string"
		case name != "title" && v != "true" && v != "false":
			return "annotations." + name + " is neither true nor false"
		}
	}
	return ""
}

func validName(name string) bool {
	return len(name) >= 1 && len(name) <= maxToolName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") == ""
}

func isObject(b json.RawMessage) bool { return len(b) > 0 && b[0] == '{' }

// hidden finds a character of canonical JSON that a person doesn't see as what it is: one that acts
// on a terminal, turns text, or doesn't show, with which text for a model alone can be spelled. Of
// those that writing systems and emoji need, one may follow a character that shows.
func hidden(b []byte) (rune, bool) {
	// Canonical JSON escapes the first 32 characters, of which \n, \r and \t are text.
	for i := 0; i+1 < len(b); i++ {
		switch {
		case b[i] != '\\':
			continue
		case b[i+1] == 'b' || b[i+1] == 'f':
			return map[byte]rune{'b': '\b', 'f': '\f'}[b[i+1]], true
		case b[i+1] == 'u':
			code, _ := strconv.ParseUint(string(b[i+2:min(i+6, len(b))]), 16, 16)
			return rune(code), true
		}
		i++
	}
	last := '"'
	for _, r := range string(b) {
		joins := r == zeroWidthNonJoiner || r == zeroWidthJoiner
		selects := r == textStyle || r == emojiStyle
		switch {
		case !invisible(r):
		case joins && last > unicode.MaxASCII && (!invisible(last) || last == emojiStyle):
		case selects && !unicode.IsSpace(last) && !invisible(last):
		default:
			return r, true
		}
		last = r
	}
	return 0, false
}

const (
	zeroWidthNonJoiner = '\u200c'
	zeroWidthJoiner    = '\u200d'
	textStyle          = '\ufe0e'
	emojiStyle         = '\ufe0f'
)

func invisible(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) &&
		!unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}

// add appends a page's tools to a list.
func add(list []hub.ServerTool, page []json.RawMessage) ([]hub.ServerTool, error) {
	total := 0
	for i := range list {
		total += len(list[i].Definition)
	}
	for _, raw := range page {
		t, err := toolOf(raw)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(list, func(o hub.ServerTool) bool { return o.Name == t.Name }) {
			return nil, fmt.Errorf("tool %q is listed twice", t.Name)
		}
		if total += len(t.Definition); total > maxList || len(list) >= maxTools {
			return nil, fmt.Errorf("more than %d tools or %d bytes of them", maxTools, maxList)
		}
		list = append(list, t)
	}
	return list, nil
}

// digestOf names a list of tools, in whatever order the server has them, and the server: tools that
// are accepted are those of one program, or URL, with its hosts and secrets.
func digestOf(spec []byte, list []hub.ServerTool) canon.Digest {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b hub.ServerTool) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	b.WriteString("palyra mcp tools v2\n" + canon.Sum(spec).String() + "\n")
	for _, t := range list {
		b.WriteString(t.Name + " " + t.Pin.String() + "\n")
	}
	return canon.Sum([]byte(b.String()))
}

func find(list []hub.ServerTool, name string) *hub.ServerTool {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// changed is the error for a tool that isn't what was accepted.
func changed(server, tool string, err error) error {
	return fault.New(fault.Refused, "tool_changed", fmt.Sprintf("call tool %q of server %q", tool, server), err).
		WithHint("look at what the server lists now and accept it: palyra mcp accept " + server)
}

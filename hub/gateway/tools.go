package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

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

func validName(name string) bool {
	return len(name) >= 1 && len(name) <= maxToolName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") == ""
}

func isObject(b json.RawMessage) bool { return len(b) > 0 && b[0] == '{' }

// hidden finds a character of a JSON text that a person doesn't see as what it is: one that acts
// on a terminal, turns the direction of text, or is a tag. Canonical JSON escapes the first 32;
// \n and \t are text.
func hidden(b []byte) (rune, bool) {
	bad := func(r rune) bool {
		return r != '\n' && r != '\t' && r != '\r' && (unicode.IsControl(r) || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r >= 0xe0000 && r <= 0xe007f)
	}
	text := string(b)
	for i, r := range text {
		if bad(r) && r >= ' ' {
			return r, true
		}
		if r != '\\' || !strings.HasPrefix(text[i:], `\u`) || i > 0 && escaped(text[:i]) {
			continue
		}
		var code rune
		if _, err := fmt.Sscanf(text[i+2:min(i+6, len(text))], "%04x", &code); err == nil && bad(code) {
			return code, true
		}
	}
	return utf8.RuneError, false
}

// escaped reports whether the character behind text is escaped: an odd number of backslashes.
func escaped(text string) bool {
	return (len(text)-len(strings.TrimRight(text, `\`)))%2 == 1
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

// digestOf names a list of tools, in whatever order the server has them.
func digestOf(list []hub.ServerTool) canon.Digest {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b hub.ServerTool) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	b.WriteString("palyra mcp tools v1\n")
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

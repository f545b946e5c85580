package tool

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// schema is a JSON Schema (2020-12) of an input, as far as inputs need it.
type schema struct {
	Schema     string              `json:"$schema"`
	Type       string              `json:"type"`
	Properties map[string]property `json:"properties"`
	Required   []string            `json:"required,omitempty"`
	Additional bool                `json:"additionalProperties"`
}

type property struct {
	Type        string    `json:"type"`
	Description string    `json:"description,omitempty"`
	Default     any       `json:"default,omitempty"`
	Enum        []string  `json:"enum,omitempty"`
	Minimum     *int64    `json:"minimum,omitempty"`
	Maximum     *int64    `json:"maximum,omitempty"`
	MinLength   *int64    `json:"minLength,omitempty"`
	MaxLength   *int64    `json:"maxLength,omitempty"`
	MinItems    *int64    `json:"minItems,omitempty"`
	MaxItems    *int64    `json:"maxItems,omitempty"`
	Items       *property `json:"items,omitempty"`
}

// schema prints the bounds of an input, with the names of the workspaces that
// the tool can be used in.
func (t *Table) schema(e *entry) json.RawMessage {
	s := schema{Schema: "https://json-schema.org/draft/2020-12/schema", Type: "object", Properties: make(map[string]property)}
	for _, m := range toolproto.Members(e.Input()) {
		if m.Hidden {
			continue
		}
		p := describe(&m)
		if m.Name == "workspace" {
			p.MinLength, p.MaxLength = nil, nil
			p.Enum = []string{}
			for _, name := range slices.Sorted(maps.Keys(t.cfg.Workspaces)) {
				if !e.writes() || !t.cfg.Workspaces[name].ReadOnly || t.cfg.Workspaces[name].Staged {
					p.Enum = append(p.Enum, name)
					if e.Name == kernel.ToolRun {
						p.Description += has(name, t.cfg.Workspaces[name])
					}
				}
			}
		}
		s.Properties[m.Name] = p
		if m.Required {
			s.Required = append(s.Required, m.Name)
		}
	}
	b, err := canon.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("tool: internal error: schema of %s: %v", e.Name, err))
	}
	return b
}

// has says what a program finds in a workspace besides it, for whoever writes its command.
func has(name string, w Workspace) string {
	var parts []string
	if w.ReadOnly && !w.Staged {
		parts = append(parts, "read-only, so read_only is true")
	}
	if d := w.Declared; d != nil {
		if d.OwnPath {
			parts = append(parts, "at "+w.Path)
		}
		if len(d.Caches) > 0 {
			parts = append(parts, "caches "+strings.Join(d.Caches, ", ")+" that last")
		}
		if len(d.Mounts) > 0 {
			parts = append(parts, "read-only "+strings.Join(d.Mounts, ", "))
		}
	}
	if w.Network != "" && w.Network != policy.NetworkFresh {
		parts = append(parts, "network "+w.Network)
	}
	if w.Limits.Wall != 0 {
		parts = append(parts, "timeout_ms "+strconv.FormatInt(w.Limits.Wall.Milliseconds(), 10))
	}
	if len(parts) == 0 {
		return ""
	}
	return ". " + name + ": " + strings.Join(parts, "; ")
}

func describe(m *toolproto.Member) property {
	p := property{Description: m.Doc}
	if m.Default != "" {
		p.Default = m.Default
	}
	switch m.Kind {
	case toolproto.Boolean:
		p.Type = "boolean"
		if m.Default != "" {
			p.Default = m.Default == "true"
		}
	case toolproto.Integer:
		p.Type = "integer"
		p.Minimum, p.Maximum = bound(m.Min, math.MinInt64), bound(m.Max, math.MaxInt64)
		if n, err := strconv.ParseInt(m.Default, 10, 64); err == nil {
			p.Default = n
		}
	case toolproto.Strings:
		p.Type = "array"
		p.MinItems, p.MaxItems = bound(m.Min, 0), bound(m.Max, math.MaxInt64)
		p.Items = &property{Type: "string", Enum: m.Enum, MaxLength: bound(m.MaxLen, math.MaxInt64)}
	default:
		p.Type, p.Enum = "string", m.Enum
		if m.Enum == nil {
			p.MinLength, p.MaxLength = bound(m.Min, 0), bound(m.Max, math.MaxInt64)
		}
	}
	return p
}

// bound returns a bound, unless it is none.
func bound(n, none int64) *int64 {
	if n == none {
		return nil
	}
	return &n
}

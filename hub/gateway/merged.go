package gateway

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/isolate/tier"
)

// maxMergedName bounds a merged name in bytes. Models' interfaces take 64 of a-z, A-Z, 0-9, _ and
// -, and clients put the name of their own entry before it.
const maxMergedName = 64 - len("mcp__palyra__")

// MergedName is the name under which a tool stands beside those of other servers. A server's name
// has no _, so what is before the first __ is the server, and no two servers have the same merged
// name. A tool's name that has other characters, or is too long, ends in the digest of both.
func MergedName(server, tool string) string {
	plain := strings.NewReplacer(".", "_", "/", "_").Replace(tool)
	name := server + "__" + plain
	if len(name) <= maxMergedName && plain == tool {
		return name
	}
	sum := canon.Sum([]byte(server + "\x00" + tool))
	tail := "_" + hex.EncodeToString(sum[:4])
	return name[:min(len(name), maxMergedName-len(tail))] + tail
}

// Merged returns the tools of a server as they stand beside others, of those for which may is
// true, and which of these are left out. A tool whose definition in the list that the server gave
// last isn't the accepted one would be refused.
func Merged(row *store.Server, may func(tool string) bool) (tools []hub.Tool, out []hub.ToolLeftOut, err error) {
	if row.AcceptedBy == "" {
		return nil, nil, nil
	}
	v, err := Of(row)
	if err != nil {
		return nil, nil, err
	}
	names := map[string]int{}
	for _, t := range v.Tools {
		names[MergedName(row.Name, t.Name)]++
	}
	for _, t := range v.Tools {
		if !may(t.Name) {
			continue
		}
		name, now := MergedName(row.Name, t.Name), find(v.Listed, t.Name)
		why := t.LeftOut
		switch {
		case now == nil:
			why = "the server no longer lists it"
		case now.Pin != t.Pin:
			why = "its definition has changed since it was accepted"
		case names[name] > 1:
			why = fmt.Sprintf("another tool of the server's has the name %s, too", name)
		}
		if why != "" {
			out = append(out, hub.ToolLeftOut{Server: row.Name, Tool: t.Name, Why: why})
			continue
		}
		var d definition
		if err := json.Unmarshal(t.Definition, &d); err != nil {
			return nil, nil, errors.New("an accepted definition that is none")
		}
		tools = append(tools, hub.Tool{Name: name, Description: d.Description, InputSchema: d.InputSchema, Capabilities: []string{}, Tier: tier.C.String(),
			Limits: json.RawMessage("{}"), Server: row.Name, Definition: t.Definition})
	}
	return tools, out, nil
}

// FirstTool is the name of a server's first accepted tool, "" if there is none.
func FirstTool(row *store.Server) string {
	if row.AcceptedBy == "" {
		return ""
	}
	list, err := toolsOf(row.Accepted)
	if err != nil || len(list) == 0 {
		return ""
	}
	return list[0].Name
}

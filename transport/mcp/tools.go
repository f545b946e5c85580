package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// The tools that stand beside those of the table.
const (
	toolExec = "exec"
	toolWait = "call_wait"
)

// runTool is the tool of the table that runs a program.
const runTool = "process.run"

// Formats of Export.
const (
	FormatMCP       = "mcp"       // what tools/list answers
	FormatOpenAI    = "openai"    // functions, as in a request for chat completions
	FormatAnthropic = "anthropic" // tools, as in a request for messages
)

// table is the tools of palyrad as a client sees them.
type table struct {
	list   []*sdk.Tool
	tools  map[string]hub.Tool // by the name for models
	theirs map[string]their    // those of MCP servers
	staged bool                // palyrad has a workspace that is

	methods  []string // what else the server of Config.Server may be asked for
	revision string   // of palyrad's list
}

// their is a tool of an MCP server's behind palyrad.
type their struct {
	server, tool string
	pin          canon.Digest
}

// fetch asks palyrad for its tools. workspace, if there is one, becomes the default of the
// tools that work in one.
func fetch(ctx context.Context, h hub.Hub, workspace string) (*table, error) {
	l, err := hub.ListTools.Do(ctx, h, hub.Caller{}, hub.ToolQuery{})
	if err != nil {
		return nil, err
	}
	return tableOf(l, workspace)
}

func tableOf(l hub.ToolList, workspace string) (*table, error) {
	t := &table{tools: map[string]hub.Tool{}, theirs: map[string]their{}, revision: l.Revision}
	for _, tool := range l.Items {
		if tool.Server != "" {
			continue
		}
		s, err := schemaOf(tool.InputSchema)
		if err != nil {
			return nil, fault.New(fault.Integrity, "bad_answer", "list tools", fmt.Errorf("tool %q: %w", tool.Name, err))
		}
		if workspace != "" {
			s.fallback("workspace", workspace)
		}
		t.staged = t.staged || len(tool.Staged) > 0
		t.add(hub.NameForModels(tool.Name), tool, s.text())
		if tool.Name == runTool {
			s.shell()
			tool.Description = "Runs a command in a sandbox, without network unless egress_hosts names hosts: a line for the shell (command), or a program with its arguments (argv)."
			t.add(toolExec, tool, s.text())
		}
	}
	t.list = append(t.list, waitTool())
	for _, tool := range t.list {
		// Claude Code hides tools from its model until it searches for them, but these.
		tool.Meta = sdk.Meta{"anthropic/alwaysLoad": true}
	}
	for _, tool := range l.Items {
		if tool.Server != "" && t.tools[tool.Name].Name == "" && tool.Name != toolWait {
			t.merge(tool.Name, tool.Server, tool.Definition)
		}
	}
	return t, nil
}

func (t *table) add(name string, tool hub.Tool, input json.RawMessage) {
	t.tools[name] = tool
	t.list = append(t.list, &sdk.Tool{Name: name, Description: tool.Description, InputSchema: input, Annotations: hints(&tool)})
}

// hints says what a tool can do, by what the table says that it needs. Only http.fetch and what
// process.run runs can have network, and what process.stop ends needs nothing.
func hints(t *hub.Tool) *sdk.ToolAnnotations {
	changes, open := t.Sensitive || len(t.Capabilities) > 0 || t.Name == toolproto.ProcessStop, t.Name == runTool || t.Name == toolproto.Fetch
	return &sdk.ToolAnnotations{ReadOnlyHint: !changes, DestructiveHint: &changes, OpenWorldHint: &open}
}

func waitTool() *sdk.Tool {
	no := false
	return &sdk.Tool{
		Name:        toolWait,
		Description: "Waits for a call whose outcome was pending, and gives its result. Makes no call.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"id":{"type":"string","minLength":1,"maxLength":64,` +
			`"description":"the member wait of the pending result"}},"required":["id"],"additionalProperties":false}`),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, DestructiveHint: &no, OpenWorldHint: &no},
	}
}

// schema is the JSON Schema of a tool's input.
type schema struct {
	all        map[string]json.RawMessage
	properties map[string]json.RawMessage
	required   []string
}

func schemaOf(b []byte) (*schema, error) {
	s := &schema{properties: map[string]json.RawMessage{}}
	if err := json.Unmarshal(b, &s.all); err != nil {
		return nil, err
	}
	if string(s.all["type"]) != `"object"` {
		return nil, errors.New("its input is no object")
	}
	for name, into := range map[string]any{"properties": &s.properties, "required": &s.required} {
		if s.all[name] == nil {
			continue
		}
		if err := json.Unmarshal(s.all[name], into); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// optional says that a member may be left out.
func (s *schema) optional(name string) {
	s.required = slices.DeleteFunc(s.required, func(n string) bool { return n == name })
}

// fallback gives a member, if there is one of that name, a value for when it is left out.
func (s *schema) fallback(name, value string) {
	var p map[string]json.RawMessage
	if json.Unmarshal(s.properties[name], &p) != nil {
		return
	}
	p["default"] = encode(value)
	s.properties[name] = encode(p)
	s.optional(name)
}

// shell makes the input of process.run that of exec.
func (s *schema) shell() {
	s.properties["command"] = json.RawMessage(`{"type":"string","minLength":1,"maxLength":131071,` +
		`"description":"a line for /bin/sh -c; either this or argv"}`)
	s.optional("argv")
}

func (s *schema) text() json.RawMessage {
	s.all["properties"] = encode(s.properties)
	delete(s.all, "required")
	if len(s.required) > 0 {
		s.all["required"] = encode(s.required)
	}
	return encode(s.all)
}

// encode is for values that were read from JSON, and strings.
func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("mcp: internal error: " + err.Error())
	}
	return b
}

// input makes the input of the tool of the table from a call's arguments.
func (t *table) input(name string, at place, arguments json.RawMessage) (json.RawMessage, error) {
	bad := func(why string) error {
		return fault.New(fault.Usage, "invalid_input", "read arguments", errors.New(why))
	}
	m := map[string]json.RawMessage{}
	if arguments != nil && json.Unmarshal(arguments, &m) != nil || m == nil {
		return nil, bad("arguments are an object")
	}
	if line, ok := m["command"]; ok && name == toolExec {
		if m["argv"] != nil {
			return nil, bad("give command or argv, not both")
		}
		if line[0] != '"' {
			return nil, bad("command is a string")
		}
		m["argv"] = slices.Concat(json.RawMessage(`["/bin/sh","-c",`), line, json.RawMessage("]"))
		delete(m, "command")
	}
	if s, err := schemaOf(t.tools[name].InputSchema); err == nil {
		at.apply(s, m)
	}
	return encode(m), nil
}

// Export returns the tools of palyrad in a format, as JSON. The two formats for models have
// the tools of the table, under the names of hub.NameForModels.
func Export(ctx context.Context, h hub.Hub, format string) (json.RawMessage, error) {
	t, err := fetch(ctx, h, "")
	if err != nil {
		return nil, err
	}
	if format == FormatMCP {
		return encode(t.list), nil
	}
	out := []any{}
	for _, tool := range t.list {
		if _, foreign := t.theirs[tool.Name]; foreign || tool.Name == toolExec || tool.Name == toolWait {
			continue
		}
		switch format {
		case FormatOpenAI:
			out = append(out, map[string]any{"type": "function",
				"function": map[string]any{"name": tool.Name, "description": tool.Description, "parameters": tool.InputSchema}})
		case FormatAnthropic:
			out = append(out, map[string]any{"name": tool.Name, "description": tool.Description, "input_schema": tool.InputSchema})
		default:
			return nil, fault.New(fault.Usage, "bad_command", "export tools", fmt.Errorf("no format %.40q", format)).
				WithHint("want " + strings.Join([]string{FormatOpenAI, FormatAnthropic, FormatMCP}, ", "))
		}
	}
	return encode(out), nil
}

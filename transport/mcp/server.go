package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The tools of servers behind palyrad's gateway: of one, served under their own names, or of all,
// beside palyrad's. A client sees the definitions that were accepted. A call is one of mcp.call;
// the server's answer is passed on without questions to the client, and whatever else becomes of
// the call is said in text, as for palyrad's own tools.

// maxPassed bounds an answer that is passed on, in bytes.
const maxPassed = 4 << 20

// fetch asks palyrad for the tools that the connection serves.
func (s *server) fetch(ctx context.Context) (*table, error) {
	if s.cfg.Server == "" {
		return fetch(ctx, s.cfg.Hub, s.cfg.Workspace)
	}
	page, err := hub.ListServerTools.Do(ctx, s.cfg.Hub, hub.Caller{}, s.cfg.Server)
	if err != nil {
		return nil, err
	}
	t := &table{tools: map[string]hub.Tool{}, theirs: map[string]their{}, methods: page.Methods}
	for _, tool := range page.Items {
		if tool.LeftOut == "" {
			t.merge(tool.Name, s.cfg.Server, tool.Definition)
		}
	}
	return t, nil
}

// merge adds a server's tool, unless its definition can't be read.
func (t *table) merge(name, server string, definition json.RawMessage) {
	// The SDK's type would not keep every member of an output schema; these are all there are.
	var d struct {
		Name         string               `json:"name"`
		Title        string               `json:"title"`
		Description  string               `json:"description"`
		InputSchema  json.RawMessage      `json:"inputSchema"`
		OutputSchema json.RawMessage      `json:"outputSchema"`
		Annotations  *sdk.ToolAnnotations `json:"annotations"`
	}
	if json.Unmarshal(definition, &d) != nil {
		return
	}
	out := &sdk.Tool{Name: name, Title: d.Title, Description: d.Description, InputSchema: d.InputSchema, Annotations: d.Annotations}
	if d.OutputSchema != nil {
		out.OutputSchema = d.OutputSchema
	}
	t.tools[name], t.theirs[name] = hub.Tool{Name: hub.ToolMCPCall}, their{server, d.Name, canon.Sum(definition)}
	t.list = append(t.list, out)
}

// input makes the input of the tool of palyrad's table that a call is.
func (s *server) input(t *table, name string, here place, arguments json.RawMessage) (json.RawMessage, error) {
	at, ok := t.theirs[name]
	if !ok {
		return t.input(name, here, arguments)
	}
	m := map[string]json.RawMessage{}
	if arguments != nil && json.Unmarshal(arguments, &m) != nil || m == nil {
		return nil, fault.New(fault.Usage, "invalid_input", "read arguments", errors.New("arguments are an object"))
	}
	return hub.ServerCall(at.server, at.tool, m)
}

// pass puts down the server's answer.
func (s *server) pass(ctx context.Context, c *call, a *Answer, run string, o hub.Output) {
	text := []byte(o.Text)
	if o.Size > int64(len(text)) && !o.Artifact.IsZero() {
		var art io.ReadCloser
		err := s.more(c, o.Size)
		if err == nil {
			art, err = hub.GetArtifact.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.ArtifactQuery{Run: run, Digest: o.Artifact.String()})
		}
		if err == nil {
			text, err = io.ReadAll(io.LimitReader(art, maxPassed+1))
			art.Close()
		}
		if err != nil {
			a.Bad, a.Message = true, "The server answered, but its answer can't be had: "+err.Error()+"."
			return
		}
	}
	a.answered = text
}

// more takes room for an answer that is larger than most.
func (s *server) more(c *call, bytes int64) error {
	if s.hold == nil || bytes <= answerBytes {
		return nil
	}
	release, err := s.hold(min(bytes, maxPassed+1) - answerBytes)
	if err == nil {
		c.room.add(release)
	}
	return err
}

// passed is an answer in the words of the protocol.
func (a *Answer) passed() (*sdk.CallToolResult, error) {
	if a.answered == nil {
		return a.refusal(), nil
	}
	var v struct {
		Result json.RawMessage `json:"result"`
		Error  *jsonrpc.Error  `json:"error"`
	}
	r := new(sdk.CallToolResult)
	err := json.Unmarshal(a.answered, &v)
	if err == nil && v.Error != nil {
		return nil, v.Error
	}
	if err == nil {
		err = json.Unmarshal(v.Result, r)
	}
	if err != nil {
		a.Bad, a.Message = true, "The server's answer is none that this version of the protocol has: "+err.Error()+"."
		return a.refusal(), nil
	}
	// What else there may be asks the client for something: for its model's words, or a person's.
	return &sdk.CallToolResult{Meta: r.Meta, Content: r.Content, StructuredContent: r.StructuredContent, IsError: r.IsError}, nil
}

// refusal is an answer of Palyra's in a server's place, as text alone: clients hold structured
// content against the output schema of the server's tool.
func (a *Answer) refusal() *sdk.CallToolResult {
	r := a.result()
	r.StructuredContent, r.IsError = nil, true
	return r
}

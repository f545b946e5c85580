package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
	"palyra/internal/fault"
)

// The resources and prompts of the server of Config.Server. A request for them is a call of
// mcp.call with the method in place of a tool's name. Every end but the server's answer is an
// error: these results have no other place for it.

// ask answers a request of one of the methods. ok is false for any other request.
func (s *server) ask(ctx context.Context, method string, req sdk.Request) (res sdk.Result, ok bool, err error) {
	args := map[string]any{}
	cursor := func(c string) {
		if c != "" {
			args["cursor"] = c
		}
	}
	var into sdk.Result
	var meta sdk.Meta
	switch r := req.(type) {
	case *sdk.ListResourcesRequest:
		if r.Params != nil {
			cursor(r.Params.Cursor)
		}
		into = &sdk.ListResourcesResult{}
	case *sdk.ListResourceTemplatesRequest:
		if r.Params != nil {
			cursor(r.Params.Cursor)
		}
		into = &sdk.ListResourceTemplatesResult{}
	case *sdk.ListPromptsRequest:
		if r.Params != nil {
			cursor(r.Params.Cursor)
		}
		into = &sdk.ListPromptsResult{}
	case *sdk.ReadResourceRequest:
		args["uri"], meta = r.Params.URI, r.Params.Meta
		into = &sdk.ReadResourceResult{}
	case *sdk.GetPromptRequest:
		args["name"], meta = r.Params.Name, r.Params.Meta
		if len(r.Params.Arguments) > 0 {
			args["arguments"] = r.Params.Arguments
		}
		into = &sdk.GetPromptResult{}
	default:
		return nil, false, nil
	}
	if s.cfg.Server == "" {
		return nil, false, nil
	}
	input := encode(map[string]any{"server": s.cfg.Server, "tool": method, "arguments": args})
	if _, err := s.known(ctx); err != nil {
		return nil, true, unasked(failed(hub.NameCall(method, input), err))
	}
	c, err := s.start(method, hub.ToolMCPCall, input, &their{server: s.cfg.Server, tool: method})
	if err != nil {
		if _, ours := errors.AsType[*fault.Error](err); ours {
			err = unasked(failed(hub.NameCall(method, input), err))
		}
		return nil, true, err
	}
	session, _ := req.GetSession().(*sdk.ServerSession)
	a, err := s.attend(ctx, c, &sdk.CallToolRequest{Session: session, Params: &sdk.CallToolParamsRaw{Name: method}})
	switch {
	case err != nil:
		return nil, true, err
	case a.answered == nil:
		return nil, true, unasked(a)
	}
	err = a.into(into, meta)
	return into, true, err
}

// unasked is the error for a request that has no answer of the server's.
func unasked(a *Answer) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: a.Text()}
}

// into reads the server's answer as the result of a method, without what asks the client for input,
// and as lists of palyrad's are: for this client alone, and stale at once.
func (a *Answer) into(res sdk.Result, meta sdk.Meta) error {
	var v struct {
		Result map[string]json.RawMessage `json:"result"`
		Error  *jsonrpc.Error             `json:"error"`
	}
	err := json.Unmarshal(a.answered, &v)
	if err == nil && v.Error != nil {
		return v.Error
	}
	if err != nil || v.Result == nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the server's answer is no result"}
	}
	for _, name := range []string{"resultType", "inputRequests", "requestState", "ttlMs", "cacheScope"} {
		delete(v.Result, name)
	}
	if version, _ := meta[metaVersion].(string); version >= sessionless {
		v.Result["resultType"] = json.RawMessage(`"complete"`)
	}
	if err := json.Unmarshal(encode(v.Result), res); err != nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf("the server's answer is none that this version of the protocol has: %.200v", err)}
	}
	private := sdk.Cacheable{CacheScope: "private"}
	switch r := res.(type) {
	case *sdk.ListResourcesResult:
		r.Cacheable = private
	case *sdk.ListResourceTemplatesResult:
		r.Cacheable = private
	case *sdk.ListPromptsResult:
		r.Cacheable = private
	case *sdk.ReadResourceResult:
		r.Cacheable = private
	}
	return nil
}

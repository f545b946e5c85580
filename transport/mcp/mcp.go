// Package mcp serves palyrad's tools to an agent in the Model Context Protocol: on two
// streams ([Serve]), and over HTTP ([Handler]). It is a client of the hub, over a socket or
// in palyrad, and decides nothing: a call of a tool is one call of hub.Call, which palyrad
// decides, asks about, confines and records as any other.
//
//	err := mcp.Serve(ctx, mcp.Config{Hub: h}, os.Stdin, os.Stdout)
//
// # Contract
//
// With Config.Server they are the accepted tools of an MCP server. Otherwise:
//
// The tools are those that palyrad lists, under names without dots (hub.NameForModels), with exec
// and call_wait, and those of MCP servers (server.go), whose results are the servers'. A result of
// palyrad's tools holds all that there is to say in structuredContent (Answer); its text says the
// same for clients that show their model nothing else.
//
// A connection has up to eight sessions of palyrad, of which each makes one call at a time,
// and ends them with itself. If a workspace is staged it has one, in which its calls are parallel,
// so that each sees what the others write: a session has one layer. A call belongs to the
// connection: cancelling the request ends the run, and so does the end of the connection. While a
// call isn't done, a request that named a progressToken is told how it stands, with the last line
// that its program wrote; any other one is answered "pending" after Config.Patience, and the same
// call, or call_wait, takes up what goes on meanwhile.
//
// Persons answer questions on palyrad's own ways. Nothing that a client sends is an answer.
//
// A client's roots choose the workspace of calls that name none (roots.go), and give no access.
//
// A line that is no message is answered with an error and changes nothing else. Lines,
// requests without an answer, sessions and results that wait to be fetched are bounded.
//
// # What it does not protect against
//
// An agent that doesn't call these tools. What an agent does by itself, with its own shell
// or file tools, Palyra neither sees nor confines.
package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
	"palyra/internal/fault"
)

// Config says what to serve. Hub is required.
type Config struct {
	Hub hub.Hub
	// Version is told to clients.
	Version string
	// Workspace is that of calls which name none. "": none.
	Workspace string
	// Server is the MCP server whose accepted tools are served, under their own names, instead of
	// palyrad's. "": none.
	Server string
	// Staged has palyrad put what calls write to workspaces into layers, also where its
	// configuration doesn't.
	Staged bool
	// Resolve returns a folder of the host, which the client named as a root, without links; or the
	// same path, if it can't. Default: palyrad alone resolves links, within workspaces.
	Resolve func(path string) string
	// Patience is how long a request waits before it is answered "pending". Zero: 45 s, or
	// without a bound where the request has a progressToken.
	Patience time.Duration
}

// patience stays below the minute after which many clients give a request up.
const patience = 45 * time.Second

// tick is the time between two progress notifications about a call that only goes on.
const tick = 15 * time.Second

// lineEvery is the least time between two notifications about what a program writes.
const lineEvery = time.Second

// cleanup bounds what is left to do for a call, or a connection, that has ended.
const cleanup = 10 * time.Second

// lastAnswers bounds the writes to a client whose connection ends. Its calls have been cleaned up
// before.
const lastAnswers = cleanup + 5*time.Second

const instructions = `Palyra runs each call confined, by its operator's policy, and records it.
A result's outcome says what became of a call: "executed" (see exit, stdout, stderr, result), or why it didn't run.
"pending": a person is being asked, or the program still runs. Make the same call again, or call_wait with the result's wait, to get the outcome.
"started": the program runs in the background (background was true). process_output, process_status and process_stop take the result's run as id.
"denied", "not_approved", "refused": nothing ran. Do not repeat such a call and do not work around it; take another way, or tell the user what you need.
A tool named SERVER__TOOL is one of an MCP server that Palyra runs confined: its result is that server's own, unless the call wasn't made.
If a result names "changes", the workspace is staged: what calls write to it goes to the layer of that name. Later calls see it, the host's files stay as they are, and only the user can bring it over.`

// Serve serves one client until it hangs up, ctx ends or a stream fails.
func Serve(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	s := newServer(ctx, cfg)
	defer s.close()
	m := newSDK(cfg.Version, true, s.offered(ctx))
	m.AddReceivingMiddleware(s.receive)
	s.tell = teller(m)
	s.work.Go(func() { s.look(s.ctx) })
	c := newConn(in, out)
	c.asked, c.answered, s.roots.say = s.roots.notice, s.roots.answered, func(b []byte) error { return c.send(b, nil) }
	session, err := m.Connect(ctx, c, nil)
	if err != nil {
		return fault.New(fault.Internal, "internal", "serve", err)
	}
	over := context.AfterFunc(ctx, func() { c.Close() })
	defer over()
	ended := make(chan error, 1)
	// It outlasts Serve only by a write that no client reads: that can't be interrupted.
	go func() { ended <- session.Wait() }()
	select {
	case err = <-ended:
	case <-c.over:
		late := time.NewTimer(lastAnswers)
		defer late.Stop()
		select {
		case err = <-ended:
		case <-late.C:
			return fault.New(fault.Unavailable, "io_error", "serve", errors.New("the client has left answers unread")).
				WithHint("an agent reads standard output until that ends")
		}
	}
	if err != nil && ctx.Err() == nil {
		return fault.New(fault.Unavailable, "connection_lost", "serve", err)
	}
	return nil
}

// newSDK returns the SDK's server. changes says that clients are told when the tools have changed,
// offered which methods there are besides.
func newSDK(version string, changes bool, offered []string) *sdk.Server {
	can := &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{ListChanged: changes}}
	if slices.Contains(offered, hub.MethodListResources) {
		can.Resources = &sdk.ResourceCapabilities{}
	}
	if slices.Contains(offered, hub.MethodListPrompts) {
		can.Prompts = &sdk.PromptCapabilities{}
	}
	return sdk.NewServer(&sdk.Implementation{Name: "palyra", Title: "Palyra", Version: version}, &sdk.ServerOptions{Instructions: instructions, Capabilities: can})
}

// offered returns the methods that the client is told of. Without palyrad's word there are none.
func (s *server) offered(ctx context.Context) []string {
	if s.cfg.Server == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	t, err := s.known(ctx)
	if err != nil {
		return nil
	}
	return t.methods
}

// methods are what the SDK may answer. By itself it would also list the prompts and
// resources that there aren't, and take levels for a log that isn't sent.
var methods = []string{"initialize", "ping", "server/discover", "notifications/initialized", "notifications/cancelled", "notifications/progress",
	methodRootsChanged}

// methodListen opens a stream of changes, from version sessionless on.
const methodListen = "subscriptions/listen"

// receive answers the requests about tools, and has the SDK answer those that make a
// connection.
func (s *server) receive(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		switch r := req.(type) {
		case *sdk.ListToolsRequest:
			t, err := s.refresh(ctx)
			if err != nil {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: explain(err)}
			}
			var meta sdk.Meta
			if r.Params != nil {
				meta = r.Params.Meta
			}
			at, _ := s.here(ctx, meta, nil, false)
			return &sdk.ListToolsResult{Tools: s.shown(t, at, meta), Cacheable: sdk.Cacheable{CacheScope: "private"}}, nil
		case *sdk.CallToolRequest:
			at := place{workspace: s.cfg.Workspace}
			if t, err := s.known(ctx); err == nil && t.needs(r.Params.Name, r.Params.Arguments) {
				var ask bool
				if at, ask = s.here(ctx, r.Params.Meta, r.Params.InputResponses, true); ask {
					return question(), nil
				}
			}
			a, err := s.callTool(ctx, r, at)
			if err != nil {
				return nil, err
			}
			if a.theirs || s.cfg.Server != "" {
				res, err := a.passed()
				if err != nil {
					return nil, err
				}
				return typed(r, res), nil
			}
			if note := s.roots.note(at); note != "" {
				b := *a
				b.Message, a = strings.TrimSpace(b.Message+" "+note), &b
			}
			return typed(r, a.result()), nil
		}
		if res, ok, err := s.ask(ctx, method, req); ok {
			return res, err
		}
		if !slices.Contains(methods, method) && (method != methodListen || s.tell == nil) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: fmt.Sprintf("%.100q is not served: there are tools alone", method)}
		}
		return next(ctx, method, req)
	}
}

// typed says that a result is whole, in the versions that want it said. The SDK does so for what
// its own handlers return, and lets others set the type only by reading it.
func typed(r *sdk.CallToolRequest, res *sdk.CallToolResult) *sdk.CallToolResult {
	if v, _ := r.Params.Meta[metaVersion].(string); v < sessionless {
		return res
	}
	whole := new(sdk.CallToolResult)
	if json.Unmarshal([]byte(`{"resultType":"complete","content":[]}`), whole) != nil {
		return res
	}
	whole.Meta, whole.Content, whole.StructuredContent, whole.IsError = res.Meta, res.Content, res.StructuredContent, res.IsError
	return whole
}

// explain is an error in a sentence, with what helps.
func explain(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*fault.Error](err); ok && fault.HintOf(e) != "" {
		text += ". For the user: " + fault.HintOf(e)
	}
	return text
}

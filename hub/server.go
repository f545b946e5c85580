package hub

import (
	"encoding/json"
	"time"

	"palyra/internal/canon"
)

// The tools of MCP servers. ToolMCPCall asks a server that runs; ToolMCPServe is the server's own
// call, which palyrad makes when the first one asks.
const (
	ToolMCPCall  = "mcp.call"
	ToolMCPServe = "mcp.serve"
)

// The methods that stand for a tool's name in a call of ToolMCPCall: what a server can be asked for
// besides its tools.
const (
	MethodListResources = "resources/list"
	MethodListTemplates = "resources/templates/list"
	MethodReadResource  = "resources/read"
	MethodListPrompts   = "prompts/list"
	MethodGetPrompt     = "prompts/get"
)

// ServerCall is the input of ToolMCPCall that calls a tool of a server.
func ServerCall(server, tool string, arguments map[string]json.RawMessage) (json.RawMessage, error) {
	if arguments == nil {
		arguments = map[string]json.RawMessage{}
	}
	return canon.Marshal(map[string]any{"server": server, "tool": tool, "arguments": arguments})
}

// ServerTools are the accepted tools of a server.
type ServerTools struct {
	Items []ServerTool `json:"items"` // never null
	// Methods are those that policy lets the caller call without a person's yes: MethodListResources
	// and MethodListPrompts, of which clients are told that there is something to list.
	Methods []string `json:"methods,omitempty"`
}

// ServerSpec says how an MCP server is started: a program in a cell, without network or with one
// that leads to named hosts, that speaks the protocol on its standard input and output. For a
// server that is reached over HTTP it's palyra-fetch, in a cell that leads to the URL's host.
type ServerSpec struct {
	Argv      []string `json:"argv,omitempty" doc:"the program and its arguments; or url"`
	URL       string   `json:"url,omitempty" doc:"of a server that is reached over HTTP (Streamable HTTP)"`
	Headers   []string `json:"headers,omitempty" doc:"\"NAME: VALUE\", sent with each request to url; policy, approvers and the journal see them"`
	Env       []string `json:"env,omitempty" doc:"\"NAME=VALUE\"; policy, approvers and the journal see them"`
	Workspace string   `json:"workspace,omitempty" doc:"of the configuration; none: an empty private one"`
	ReadOnly  bool     `json:"read_only,omitempty" doc:"it can't write the workspace"`
	Mounts    []string `json:"mounts,omitempty" doc:"further folders of the host, read-only, at their own paths"`
	Network   string   `json:"network,omitempty" doc:"fresh (default), loopback or void; none leads anywhere. With egress_hosts it's left out or loopback"`

	EgressHosts   []string `json:"egress_hosts,omitempty" doc:"HOST:PORT, or HOST for port 443, or @LIST: the hosts that it may reach, as of a call of process.run; url's is one by itself"`
	EgressInspect []string `json:"egress_inspect,omitempty" doc:"[METHODS ]HOST[:PORT][/PATH]: the requests that it may make, as of a call of process.run"`
	EgressSecrets []string `json:"egress_secrets,omitempty" doc:"NAME=REF PLACE [METHODS] HOST[:PORT][/PATH]: secrets put into its requests, as of a call of process.run. With url the placeholder is sent in each place"`

	Memory    int64 `json:"memory,omitempty" doc:"bytes; default 1 GiB"`
	PIDs      int64 `json:"pids,omitempty" doc:"processes and threads; default 256"`
	TimeoutMS int64 `json:"timeout_ms,omitempty" doc:"for the answer to a call; default one minute"`
	LifeMS    int64 `json:"life_ms,omitempty" doc:"of a started server; default one hour"`
}

// NewServer is a server to be added.
type NewServer struct {
	Name string     `json:"name" doc:"1 to 32 of a-z, 0-9 and -"`
	Spec ServerSpec `json:"spec"`
}

// ServerTool is a tool as its server defines it.
type ServerTool struct {
	Name       string          `json:"name"`
	Pin        canon.Digest    `json:"pin"`        // of Definition
	Definition json.RawMessage `json:"definition"` // canonical JSON: name, title, description, schemas, annotations
	// LeftOut says why no client is shown it: one definition that clients can't read would cost them
	// the whole list.
	LeftOut string `json:"left_out,omitempty"`
}

// The states of a server.
const (
	ServerNew      = "new"      // no tool of it was accepted
	ServerAccepted = "accepted" // its tools are those that were accepted, as far as is known
	ServerChanged  = "changed"  // it listed other tools since
)

// Server is an MCP server whose tools can be called.
type Server struct {
	Name       string     `json:"name"`
	Spec       ServerSpec `json:"spec"`
	State      string     `json:"state"`
	AddedBy    string     `json:"added_by"`
	Added      time.Time  `json:"added"`
	AcceptedBy string     `json:"accepted_by,omitempty"`
	Accepted   *time.Time `json:"accepted,omitempty"`
	Version    int64      `json:"version"`
	// Tools are those that were accepted, Listed those that it listed last, whose digest is
	// ListedDigest. A list of servers leaves them out.
	Tools        []ServerTool `json:"tools,omitempty"`
	Listed       []ServerTool `json:"listed,omitempty"`
	ListedDigest canon.Digest `json:"listed_digest,omitzero"`
	ToolCount    int          `json:"tool_count"`
}

// Acceptance accepts the tools that a server listed last.
type Acceptance struct {
	Name           string `json:"name" in:"path" as:"server"`
	AcceptanceBody `in:"body"`
}

// AcceptanceBody says which tools are accepted.
type AcceptanceBody struct {
	Digest string `json:"digest" doc:"of the list: listed_digest"`
}

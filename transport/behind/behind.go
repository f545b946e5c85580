// Package behind is the contract between transport/httpapi and a protocol of its own that
// it lets callers speak at a path, behind its checks: palyra/transport/mcp. Neither links
// the other.
//
// The server has read a request whole, within its limits, and knows who asks. What the
// protocol keeps for a caller between requests it counts first ([Visitor.Hold]), and ends
// when the caller may ask no more ([Visitor.May]).
package behind

import (
	"context"
	"net/http"

	"palyra/hub"
)

// Protocol answers requests of callers that were let in.
type Protocol interface {
	// Begin lets requests come until ctx is done. Then all that callers hold ends, and wait
	// returns when it has. It is called once, and wait too.
	Begin(ctx context.Context) (wait func())
	// Serve answers one request. An error is for what it has not answered.
	Serve(w http.ResponseWriter, r *http.Request, v *Visitor) error
}

// Visitor is a caller with one request.
type Visitor struct {
	Caller hub.Caller
	Body   []byte // one JSON document; nil: none
	// Workspace is that of calls which name none. "": none.
	Workspace string
	// Server is the MCP server whose tools the caller wants. "": palyrad's own.
	Server string
	// Hub asks as the caller, whatever caller it is given, also after the request. Its
	// answers hold what this caller may see.
	Hub hub.Hub
	// May returns nil if the caller, with its credential, may still ask. It is quick.
	May func() error
	// Hold counts memory of the caller's, until it is released.
	Hold func(bytes int64) (release func(), err error)
}

// Kept returns the visitor without its request, to be kept.
func (v *Visitor) Kept() *Visitor {
	k := *v
	k.Body = nil
	return &k
}

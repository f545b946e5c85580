// Package behind is the contract between transport/httpapi and a protocol of its own that
// it lets callers speak at a path, behind its checks: palyra/transport/mcp and
// palyra/transport/openai.
// None links another.
//
// The server has read a request whole, within its limits, and knows who asks. What the
// protocol keeps for a caller between requests it counts first ([Visitor.Hold]), and ends
// when the caller may ask no more ([Visitor.May]).
package behind

import (
	"context"
	"net/http"
	"net/url"

	"palyra/hub"
	"palyra/transport/api"
)

// Protocol answers requests of callers that were let in.
type Protocol interface {
	// Begin lets requests come until ctx is done. Then all that callers hold ends, and wait
	// returns when it has. It is called once, and wait too.
	Begin(ctx context.Context) (wait func())
	// Serve answers one request. An error is for what it has not answered.
	Serve(w http.ResponseWriter, r *http.Request, v *Visitor) error
}

// Surface is a protocol with paths and errors of its own: palyra/transport/openai.
type Surface interface {
	Protocol
	// Refuse answers with a problem, in the form that clients of the request's path expect.
	Refuse(w http.ResponseWriter, r *http.Request, p api.Problem)
}

// Pages shows the operations to people, in a browser: palyra/transport/console.
type Pages interface {
	// Page answers a request of a visitor who was let in by the token in its cookie. An error is for
	// what it hasn't answered.
	Page(w http.ResponseWriter, r *http.Request, v *Visitor) error
	// Open answers a request that needs no caller: for an asset, and at the door.
	Open(w http.ResponseWriter, r *http.Request, v *Visitor) error
	// Refuse shows a problem in place of a page.
	Refuse(w http.ResponseWriter, p api.Problem)
}

// Visitor is a caller with one request.
type Visitor struct {
	Caller hub.Caller
	// Form is the body of a page's request, nil for none; Cookie the name of the cookie that holds a
	// browser's token.
	Form   url.Values
	Cookie string
	// User is the user of this machine whose connection a page's request came by, as the kernel says;
	// "" if it came from another machine.
	User string
	Body []byte // one JSON document; nil: none
	// Workspace is that of calls which name none. "": none.
	Workspace string
	// Server is the MCP server whose tools the caller wants. "": palyrad's own.
	Server string
	// Hub asks as the caller, whatever caller it is given, also after the request. Its
	// answers hold what this caller may see.
	Hub hub.Hub
	// May returns nil if the caller, with its credential, may still ask. It is quick.
	May func() error
	// Stay is for an answer that goes on, to a page: it takes the place of a reader, until leave. ctx
	// ends with the request, and before the server does. A client that doesn't take what w is given
	// is cut off. Only a page has it.
	Stay func() (ctx context.Context, w http.ResponseWriter, leave func(), err error)
	// Hold counts memory of the caller's, until it is released.
	Hold func(bytes int64) (release func(), err error)
}

// Kept returns the visitor without its request, to be kept.
func (v *Visitor) Kept() *Visitor {
	k := *v
	k.Body = nil
	return &k
}

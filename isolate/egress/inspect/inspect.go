// Package inspect reads the requests of a call's connections to the hosts that rules say, lets
// those through that a rule has, and puts values of secrets into them.
//
//	g, err := inspect.New(inspect.Config{Inspection: in, Placeholders: ps, Roots: roots, Until: end})
//	err = g.Give(values)                // of the uses, if there are some
//	seen := g.Serve(ctx, conn, target)  // a connection of the program's, to its end
//	ev.Requests, ev.MoreRequests = g.Requests()
//
// The program's TLS ends here, with a certificate of the call's [Authority], and another begins to
// the host, whose certificate is checked with the host's roots for the name that the rule has. If
// rules about the host have pins, its key must be one of theirs; the greeting is all that another
// one gets, 502. Between them is net/http: each request is read whole, as one reader reads it, and
// written anew, so that no other reader can take it for two. HTTP/1.1 and HTTP/2, bodies and
// trailers stream both ways.
//
// # Requests
//
// A connection is for one name and port. Its server name, if it has one, and the host of each
// request must be that name, or they're refused: 421. CONNECT, upgrades and targets that are no
// path are refused, 501 and 400 (but WebSockets that a rule has are let through: their bytes pass,
// watched and counted), and a request that no rule has, 403. The answer says why. Redirects are the
// program's to follow. Headers that are another method or path to some hosts are refused where
// rules name these, 403. A head has 64 KiB at most, and those under way in a connection have 512
// KiB of memory. A body that is longer than rules let it be is refused, a request's by 413 and an
// answer's by 502, or cut off there if its head has passed. A host with a use of a secret gets
// requests without encodings of its answers, and one that comes encoded all the same is refused,
// 502.
//
// # Values
//
// A request that a use matches and that has the placeholder in the use's place goes out with the
// value there. In a header it's a whole word, or user or password of Basic; in a query all of a
// parameter. The answer gets placeholders in place of values, in headers, body and trailers,
// however they're spelled (internal/spelling). A host with a use is asked for no ranges, with a
// value or without: parts of an answer could be parts of a value.
//
// The placeholder anywhere else, in any of the spellings, is a leak: nothing of that request or
// greeting goes further, and the call ends.
//
// # What it does not protect against
//
// A host that means to tell a value: it gets it, and can send it back backwards. A program that
// encodes its placeholder in a way that isn't looked for: it has told a text that is good nowhere
// else. Strings of net/http have copies of values, which are wiped by no one but the collector;
// this process isn't dumpable.
package inspect

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"time"

	rule "palyra/call/egress"
	"palyra/internal/canon"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// Config is what a Guard is made of. All of it but Now is wanted.
type Config struct {
	Inspection   rule.Inspection
	Placeholders []string       // of Inspection.Uses, in their order
	Roots        *x509.CertPool // of hosts
	Until        time.Time      // when the call ends at the latest
	Idle         time.Duration  // how long a connection may be silent between requests
	// Denied is told what was refused, and why in a word of evidence.
	Denied func(host string, port uint16, why string)
	// Limited is told which bound of a rule a body went beyond, by its word there.
	Limited func(host string, port uint16, limit string)
	// Leaked is told where a placeholder was seen. It ends the call.
	Leaked func(evidence.Leak)
}

// Guard serves the inspected connections of one call. The zero Guard inspects nothing. Its methods
// are safe for concurrent use; Give comes before Serve, and Wipe after.
type Guard struct {
	cfg       Config
	authority *Authority
	watch     *Watch
	values    *values

	mu       sync.Mutex
	requests []evidence.Request // guarded by mu
	more     int64              // guarded by mu
}

// New returns a Guard, with an authority of its own if the inspection isn't empty.
func New(c Config) (*Guard, error) {
	g := &Guard{cfg: c}
	if c.Inspection.Empty() {
		return g, nil
	}
	if len(c.Placeholders) != len(c.Inspection.Uses) {
		return nil, errors.New("as many placeholders as uses are wanted")
	}
	var names []string
	for i, u := range c.Inspection.Uses {
		if err := rule.CheckPlaceholder(u.Form, c.Placeholders[i]); err != nil {
			return nil, err
		}
		for j, o := range c.Inspection.Uses[:i] {
			if (o.Name == u.Name) != (c.Placeholders[i] == c.Placeholders[j]) {
				return nil, errors.New("a variable has one placeholder, of its own")
			}
		}
		names = append(names, u.Name)
	}
	if len(names) > 0 {
		g.watch = newWatch(names, c.Placeholders)
	}
	var err error
	g.authority, err = NewAuthority(c.Inspection.Hosts(), time.Now(), c.Until)
	return g, err
}

// Authority returns the certificate that the program must trust, in PEM; "" if nothing is
// inspected.
func (g *Guard) Authority() string {
	if g.authority == nil {
		return ""
	}
	return g.authority.PEM()
}

// Watch finds the placeholders of the call; nil if it has none.
func (g *Guard) Watch() *Watch { return g.watch }

// Names reports whether connections to name, which is canonical, and port are inspected.
func (g *Guard) Names(name string, port uint16) bool { return g.cfg.Inspection.Names(name, port) }

// Give takes copies of the values of the uses, in their order.
func (g *Guard) Give(given [][]byte) error {
	if len(given) != len(g.cfg.Inspection.Uses) {
		return errors.New("as many values as uses are wanted")
	}
	v, err := newValues(g.cfg.Inspection.Uses, g.cfg.Placeholders, given)
	if err != nil {
		return err
	}
	g.values = v
	return nil
}

// Wipe overwrites the values. Nothing is served any more.
func (g *Guard) Wipe() {
	g.values.wipe()
	g.values = nil
}

// Requests returns the requests that were seen, and how many aren't listed.
func (g *Guard) Requests() ([]evidence.Request, int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests, g.more
}

// begin notes a request. It returns -1 if there is no room for it.
func (g *Guard) begin(r evidence.Request) int {
	r.Method, r.Path = wire.Plain(r.Method[:min(len(r.Method), 64)]), wire.Plain(r.Path[:min(len(r.Path), wire.MaxPath)])
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.requests) == evidence.MaxRequests {
		g.more++
		return -1
	}
	g.requests = append(g.requests, r)
	return len(g.requests) - 1
}

// note changes the record of a request.
func (g *Guard) note(at int, change func(*evidence.Request)) {
	if at < 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.requests[at])
}

// Target is where a connection leads.
type Target struct {
	Host string // canonical
	Port uint16
	// Early, unless it's nil, returns a connection to the host that Connect has made, which Serve
	// takes over, or nil. It may wait for one that is being made.
	Early func(ctx context.Context) *Early
	// Dial connects to an address of the host, which was checked. Its error is told to the program.
	Dial func(ctx context.Context) (net.Conn, error)
	// Room waits for n bytes of memory, which what it returns gives back. Cost isn't asked for here.
	Room func(ctx context.Context, n int64) (release func(), err error)
	// Passing, unless it's nil, is told that the body of an answer begins and ends to pass over
	// HTTP/1.1 on both sides. Until then one goroutine reads the host's connection and writes the
	// program's, which may therefore gather what is written until the host's would wait.
	Passing func(bool)
}

// Seen is what a connection showed.
type Seen struct {
	ServerName string       // in the program's greeting
	TLS        string       // the version that the host chose
	Key        canon.Digest // of the host's certificate
	Closed     bool         // the connection ended in order: after requests, or by the program
}

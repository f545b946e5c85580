package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A lookup's bounds. Go's resolver gives each server and attempt the times of /etc/resolv.conf.
const (
	lookupTime = 15 * time.Second
	mostPinned = 32 // addresses of one name that are kept; more are ignored after all are judged
)

// resolver looks names up. It is immutable.
type resolver struct {
	server string // host and port of the one that is asked; "": those of /etc/resolv.conf
}

func newResolver(nameserver netip.AddrPort) *resolver {
	if !nameserver.IsValid() {
		return &resolver{}
	}
	return &resolver{nameserver.String()}
}

// new returns a resolver for one look-up: Go's lets those of one name at one time have one
// answer, which calls would share.
func (r *resolver) new() *net.Resolver { return &net.Resolver{PreferGo: true, Dial: r.dial} }

// dial connects to a name server for as long as ctx lasts. Go's resolver returns when it ends, and
// leaves its sockets open until the server's time is up.
func (r *resolver) dial(ctx context.Context, network, server string) (net.Conn, error) {
	if r.server != "" {
		server = r.server
	}
	c, err := new(net.Dialer).DialContext(ctx, network, server)
	if err == nil {
		context.AfterFunc(ctx, func() { c.Close() })
	}
	return c, err
}

// files finds names in /etc/hosts alone.
var files = net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errNoName }}

// errNoName says that the resolver knows no address of the name; other errors say that it couldn't
// find out.
var errNoName = errors.New("no such name")

// addresses returns all addresses of a name, in the order in which they should be tried. The name
// is taken as it is: no search list is tried.
func (r *resolver) addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	var found []netip.Addr
	err := errNoName
	if !strings.Contains(name, ".") { // with a dot behind, Go finds it in no file
		found, err = files.LookupNetIP(ctx, "ip", name)
	}
	if err != nil {
		found, err = r.new().LookupNetIP(ctx, "ip", name+".")
	}
	var d *net.DNSError
	switch {
	case errors.As(err, &d) && d.IsNotFound:
		return nil, errNoName
	case err != nil:
		return nil, err
	}
	var out []netip.Addr
	for _, a := range found {
		if a = a.Unmap(); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, errNoName
	}
	return out, nil
}

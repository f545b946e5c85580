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
	net   *net.Resolver
	files *net.Resolver // /etc/hosts alone
}

func newResolver(nameserver netip.AddrPort) *resolver {
	r := &resolver{net: &net.Resolver{PreferGo: true}, files: &net.Resolver{PreferGo: true}}
	r.files.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errNoName }
	if nameserver.IsValid() {
		r.net.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, nameserver.String())
		}
	}
	return r
}

// errNoName says that the resolver knows no address of the name; other errors say that it couldn't
// find out.
var errNoName = errors.New("no such name")

// addresses returns all addresses of a name, in the order in which they should be tried. The name is
// taken as it is: no search list is tried.
func (r *resolver) addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	var found []netip.Addr
	err := errNoName
	if !strings.Contains(name, ".") { // with a dot behind, Go finds it in no file
		found, err = r.files.LookupNetIP(ctx, "ip", name)
	}
	if err != nil {
		found, err = r.net.LookupNetIP(ctx, "ip", name+".")
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

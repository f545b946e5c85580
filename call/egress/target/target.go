// Package target reads the URLs that http.fetch is asked for: which host and port each leads to, as
// a rule of a call's egress_hosts.
//
//	t, err := target.Parse("https://docs.example/api")
//	t.Rule().String()                 // "docs.example:443"
//	next, err := t.Follow("/api/2")   // where a redirect leads
//	next.Listed(rules)                // whether the call may go there
//
// The kernel makes the call's hosts of a URL, and palyra-fetch asks the same code where it and each
// redirect lead: the host that is decided about, resolved and asked is one string.
//
// # What is refused
//
// Another scheme than http and https, a user or password, a fragment, and everything that two
// readers may read as two hosts: the spellings that package egress refuses, an empty port,
// backslashes, white space, control characters and bytes that aren't ASCII. [Target.Follow] is
// milder where servers are sloppy and nothing depends on it: a fragment is dropped, other
// characters are encoded.
//
// It doesn't protect against a host that answers for others, nor against what a path or query says.
package target

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"palyra/call/egress"
	"palyra/internal/fault"
)

// MaxURL is the length of the longest URL, in bytes.
const MaxURL = 2048

// Target is where a URL leads. The zero Target is none.
type Target struct {
	url  url.URL
	rule egress.Rule
}

// Parse reads an absolute URL.
func Parse(text string) (Target, error) {
	if strings.Contains(text, "#") {
		return Target{}, refused(errors.New("a fragment is the caller's own and is sent to no server: leave it out"))
	}
	t, err := parse(text)
	if err != nil {
		return Target{}, refused(err)
	}
	return t, nil
}

// refused is an error about a URL, which it doesn't repeat: a URL may hold what no log should.
func refused(err error) error { return fault.New(fault.Usage, "invalid_input", "read url", err) }

func parse(text string) (Target, error) {
	if err := plain(text); err != nil {
		return Target{}, err
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return Target{}, errors.New("not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return Target{}, errors.New("unsupported scheme: want http:// or https://")
	case u.User != nil:
		return Target{}, errors.New("credentials are forbidden in a URL")
	case u.Host == "":
		return Target{}, errors.New("no host")
	}
	host, port, err := split(u)
	if err != nil {
		return Target{}, err
	}
	name, addr, err := egress.Host(host)
	if err != nil {
		return Target{}, errors.Unwrap(err)
	}
	if host = name; addr.IsValid() {
		if host = addr.String(); addr.Is6() {
			host = "[" + host + "]"
		}
	}
	rule, err := egress.ParseRule(host + ":" + port)
	if err != nil {
		return Target{}, errors.Unwrap(err)
	}
	u.Host = host
	if port != standard(u.Scheme) {
		u.Host += ":" + port
	}
	return Target{*u, rule}, nil
}

// split cuts the host of a URL from its port, or the scheme's.
func split(u *url.URL) (host, port string, err error) {
	host, port = u.Host, u.Port()
	switch {
	case port != "":
		host = strings.TrimSuffix(host, ":"+port)
	case strings.HasSuffix(host, ":"):
		return "", "", errors.New("no port after ':'")
	default:
		port = standard(u.Scheme)
	}
	if _, err := egress.Port(port); err != nil {
		return "", "", err
	}
	return host, port, nil
}

func standard(scheme string) string {
	if scheme == "http" {
		return "80"
	}
	return "443"
}

// plain refuses what may not stand in a URL (RFC 3986 §2), as far as readers differ about it.
func plain(text string) error {
	if len(text) > MaxURL {
		return fmt.Errorf("%d bytes, at most %d", len(text), MaxURL)
	}
	for _, c := range []byte(text) {
		switch {
		case c <= ' ' || c == 0x7f:
			return errors.New("white space or a control character in it")
		case c >= 0x80:
			return errors.New("not ASCII: hosts are written as xn--…, other characters as %…")
		case c == '\\':
			return errors.New(`'\' in it, which some read as '/'`)
		}
	}
	return nil
}

// Follow returns where the Location of t's answer leads.
func (t Target) Follow(location string) (Target, error) {
	location, _, _ = strings.Cut(location, "#")
	var b strings.Builder
	for _, c := range []byte(location) {
		if c == ' ' || c >= 0x80 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	if err := plain(b.String()); err != nil {
		return Target{}, refused(err)
	}
	ref, err := url.Parse(b.String())
	if err != nil {
		return Target{}, refused(errors.New("not a URL"))
	}
	next, err := parse(t.url.ResolveReference(ref).String())
	if err != nil {
		return Target{}, refused(err)
	}
	return next, nil
}

// URL returns the URL, its host in the one spelling.
func (t Target) URL() *url.URL { u := t.url; return &u }

// String returns the URL's text.
func (t Target) String() string { return t.url.String() }

// Rule returns the rule that names t's host and port.
func (t Target) Rule() egress.Rule { return t.rule }

// TLS reports whether t is asked over TLS.
func (t Target) TLS() bool { return t.url.Scheme == "https" }

// Listed reports whether rules name t's host and port. A name may still lead to addresses that they
// don't permit: whoever resolves it sees that.
func (t Target) Listed(rules egress.Rules) bool {
	if p := t.rule.Prefix(); p != (netip.Prefix{}) {
		return rules.Network(p.Addr(), t.rule.Port())
	}
	name, _ := t.rule.Name()
	return name != "" && rules.Allows(name, t.rule.Port())
}

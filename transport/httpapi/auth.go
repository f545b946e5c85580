package httpapi

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel/hub"
)

// Failed authentications of one TCP address: this many at once, then this many
// a second.
const (
	failureRate  = 1
	failureBurst = 20
)

// maxToken bounds the text of a token.
const maxToken = 512

// authenticate asks the hub who is calling: by the token that the request
// brings, or by the peer of its unix socket.
func (s *Server) authenticate(x *exchange) error {
	p := peerOf(x.r)
	addr := p.key // of a unix socket the user: who guesses there is limited as well
	if !p.unix {
		if wait, ok := s.peers.take(addr); !ok {
			return tooMany(x, "limit address", wait)
		}
	}
	token, err := bearer(x.r)
	if err != nil {
		x.w.Header().Set("WWW-Authenticate", "Bearer")
		return err
	}
	c := hub.Credential{Token: token, Address: p.address, Surface: p.surface()}
	switch {
	case token != "":
		// An address that guesses is not listened to any more, but for tokens
		// that were good from there before: on loopback all share one.
		if !s.failures.has(addr) && !s.proven.has(addr, token) {
			return tooMany(x, "authenticate", time.Second)
		}
	case p.unix && p.err == nil:
		c.PeerUID, c.PeerPID = &p.uid, p.pid
	default:
		x.w.Header().Set("WWW-Authenticate", "Bearer")
		return fault.New(fault.Denied, "unauthenticated", "authenticate", p.err).WithHint("send Authorization: Bearer palyra_…")
	}
	x.caller, err = s.cfg.Hub.Authenticate(x.r.Context(), c)
	if err != nil {
		if fault.ReasonOf(err) != "unauthenticated" {
			return err
		}
		s.metrics.unauthenticated.Add(1)
		if token != "" {
			s.failures.take(addr)
			s.proven.forget(addr, token)
		}
		x.w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		return err
	}
	if token != "" {
		s.proven.add(addr, token)
	}
	x.known = true
	return nil
}

// bearer returns the token of a request, "" if it brings no credential.
func bearer(r *http.Request) (string, error) {
	vs := r.Header.Values("Authorization")
	if len(vs) == 0 {
		return "", nil
	}
	bad := fault.New(fault.Denied, "unauthenticated", "read Authorization", errors.New("want one header: Bearer and a token"))
	if len(vs) > 1 {
		return "", bad
	}
	scheme, token, _ := strings.Cut(vs[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken ||
		strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", bad
	}
	return token, nil
}

// callerKey names a credential for limits: the token, or the user without one.
func callerKey(c hub.Caller) string {
	if c.Token != "" {
		return "token " + c.Token
	}
	return c.User
}

// trusted reports whether the caller may know why policy and host say no.
func trusted(c hub.Caller) bool {
	if c.Scopes == nil {
		return c.Role != ""
	}
	return holds(c.Scopes, permPolicyRead)
}

func holds(scopes []string, permission string) bool { return slices.Contains(scopes, permission) }

// denied is a refusal of our own: the hub is not asked. Its decision has the id
// of the request, which is the one in the log.
func denied(permission, id string) error {
	return fault.New(fault.Denied, "scope_missing", "authorize", &hub.DenialError{Denial: hub.Denial{
		DecisionID: id, Layer: hub.LayerAccess, Reason: "scope_missing", Policies: []string{"permission:" + permission}, Permission: permission,
		Fix: "use a token with the scope " + permission,
	}}).WithHint("use a token with the scope " + permission)
}

// tooMany refuses a request of somebody who asks too often.
func tooMany(x *exchange, op string, wait time.Duration) error {
	x.w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(wait.Seconds())))))
	return fault.New(fault.Unavailable, "too_many_requests", op, nil)
}

// proven remembers which tokens were good from which address, by digest. It
// decides only whether a token is looked at while its address is being shut
// out; the hub still says whether it is good.
type proven struct {
	mu sync.Mutex
	m  map[provenKey]time.Time // guarded by mu; last use
}

type provenKey struct {
	addr  string
	token canon.Digest
}

// maxProven bounds what is remembered.
const maxProven = 1024

func newProven() *proven { return &proven{m: make(map[provenKey]time.Time)} }

func provenBy(addr, token string) provenKey { return provenKey{addr, canon.Sum([]byte(token))} }

func (p *proven) has(addr, token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.m[provenBy(addr, token)]
	return ok
}

func (p *proven) add(addr, token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m[provenBy(addr, token)] = time.Now()
	if len(p.m) <= maxProven {
		return
	}
	var oldest provenKey
	at := time.Now()
	for k, t := range p.m {
		if !t.After(at) {
			oldest, at = k, t
		}
	}
	delete(p.m, oldest)
}

// forget is for a token that is good no longer.
func (p *proven) forget(addr, token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.m, provenBy(addr, token))
}

// checkHost refuses names that only a page of somebody else would use: on a
// TCP listener the Host must be one of the names that it has. A browser that
// was told by DNS that evil.example is 127.0.0.1 says Host: evil.example.
func checkHost(r *http.Request) error {
	p := peerOf(r)
	if p.unix || p.names == nil {
		return nil
	}
	if slices.Contains(p.names, strings.ToLower(r.Host)) {
		return nil
	}
	return usage("misdirected_host", "check host", fmt.Errorf("host %.80q is not served here", r.Host))
}

// hostNames are the names of a TCP listener: its own address, and on loopback
// those that everybody uses for it.
func hostNames(a net.Addr, more []string) []string {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return more
	}
	port := strconv.Itoa(t.Port)
	names := []string{net.JoinHostPort(t.IP.String(), port)}
	if t.IP.IsLoopback() || t.IP.IsUnspecified() {
		for _, h := range []string{"localhost", "127.0.0.1", "::1"} {
			names = append(names, net.JoinHostPort(h, port))
		}
	}
	for _, n := range more {
		names = append(names, strings.ToLower(n))
	}
	return names
}

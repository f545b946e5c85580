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
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	tlspeer "palyra/transport/peer"
)

// Failed authentications by one key: this many at once, then this many a second, are told
// that they failed, and further ones that there are too many.
const (
	failureRate  = 1
	failureBurst = 20
)

// The bound on the lines that strangers can put into the log: this many at once, then this
// many a second.
const (
	noiseRate  = 1
	noiseBurst = 20
)

// maxToken bounds the text of a token.
const maxToken = 512

// authenticate asks the hub who is calling: by the token that the request brings, or by the
// peer of its unix socket. Other clients' failures never lock a good credential out: it is
// checked first, which costs microseconds, and only failures are counted.
func (s *Server) authenticate(x *exchange) error {
	p := peerOf(x.r)
	switch {
	case p.devices:
		return s.authenticateDevice(x, p)
	case x.rt.page:
		return s.authenticatePage(x, p)
	}
	token, err := bearer(x.r)
	if x.rt.foreign && err == nil {
		token, err = apiKey(x.r, token)
	}
	if err != nil {
		return s.unknown(x, "Bearer", err)
	}
	return s.authenticateToken(x, p, p.surface(), token)
}

// authenticateToken authenticates a token; "" is that of a peer whom the kernel names.
func (s *Server) authenticateToken(x *exchange, p *peer, surface, token string) (err error) {
	c := hub.Credential{Token: token, Address: p.address, Surface: surface}
	switch {
	case token != "":
	case p.unix && p.err == nil:
		c.PeerUID, c.PeerPID = &p.uid, p.pid
	default:
		return s.unknown(x, "Bearer",
			fault.New(fault.Denied, "unauthenticated", "authenticate", p.err).WithHint("send Authorization: Bearer palyra_…"))
	}
	x.caller, err = s.cfg.Hub.Authenticate(x.r.Context(), c)
	if err != nil {
		if !errors.Is(err, fault.ErrUnauthenticated) {
			return err
		}
		s.metrics.unauthenticated.Add(1)
		if wait, ok := s.failures.take(failureKey(p, token)); !ok {
			x.w.Header().Set("Connection", "close")
			return tooMany(x, "authenticate", wait)
		}
		return s.unknown(x, `Bearer error="invalid_token"`, err)
	}
	x.known = true
	return nil
}

// deviceChallenge says that a certificate is wanted; no scheme of HTTP does.
const deviceChallenge = "Palyra-Device"

// authenticateDevice asks the hub whose certificate the connection showed, for each request anew: a
// device that was revoked since is refused.
func (s *Server) authenticateDevice(x *exchange, p *peer) (err error) {
	if x.r.TLS == nil || len(x.r.TLS.PeerCertificates) == 0 || len(x.r.Header.Values("Authorization")) > 0 {
		return s.unknown(x, deviceChallenge, fault.New(fault.Denied, "unauthenticated", "authenticate", errors.New("want a certificate and no other credential")))
	}
	c := hub.Credential{Chain: tlspeer.Chain(x.r.TLS.PeerCertificates), Address: p.address, Surface: p.surface()}
	for known := false; !known; { // again if Cut may have looked for the device's connections before this one was
		if x.caller, err = s.cfg.Hub.Authenticate(x.r.Context(), c); err != nil {
			if errors.Is(err, fault.ErrUnauthenticated) {
				s.metrics.unauthenticated.Add(1)
				return s.unknown(x, deviceChallenge, err)
			}
			return err
		}
		co := connOf(x.r)
		known = co == nil || s.rooms.of(co, x.caller.Device)
	}
	x.known = true
	return nil
}

// Cut closes the connections of a device at once, with what they wait for and the tapes on them.
func (s *Server) Cut(device string) { s.rooms.cut(device) }

// unknown refuses a request of an unknown caller, and closes its connection.
func (s *Server) unknown(x *exchange, challenge string, err error) error {
	h := x.w.Header()
	h.Set("WWW-Authenticate", challenge)
	h.Set("Connection", "close")
	return err
}

// failureKey returns the key that counts failed authentications: the peer and, if all
// clients share one, the id of the token.
func failureKey(p *peer, token string) string {
	if p.loopback && len(token) > tokenIDEnd {
		return p.key + " " + token[:tokenIDEnd]
	}
	return p.key
}

// tokenIDEnd is where the id in a token's text ends: "palyra_" and 32 digits.
const tokenIDEnd = 39

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

// callerKey names a caller for the rate of its requests: the tokens of a principal
// have one together, and the principal at the socket has its own, which a token
// doesn't use up. For the brake, if they may use it, both have another. There each token
// of an owner has its own: one that an owner gave away mustn't use up the others'.
func callerKey(c hub.Caller, brake bool) string {
	switch {
	case brake && c.Token != "" && c.Role == roleOwner:
		return "brake " + c.User + " " + c.Token
	case brake && c.Token != "":
		return "brake tokens " + c.User
	case brake:
		return "brake " + c.User
	case c.Token != "":
		return "tokens " + c.User
	}
	return c.User
}

// may reports whether the caller's token, if it has one, holds a permission.
func (x *exchange) may(permission string) bool {
	return x.caller.Scopes == nil || holds(x.caller.Scopes, permission)
}

func holds(scopes []string, permission string) bool { return slices.Contains(scopes, permission) }

// denied returns a refusal of our own, without asking the hub. Its decision has the id of
// the request, which is the one in the log.
func denied(permission, id string) error {
	return fault.New(fault.Denied, "scope_missing", "authorize", &hub.DenialError{Denial: hub.Denial{
		DecisionID: id, Layer: hub.LayerAccess, Reason: "scope_missing", Policies: []string{"permission:" + permission}, Permission: permission,
		Fix: "use a token with the scope " + permission,
	}}).WithHint("use a token with the scope " + permission)
}

// tooMany refuses a request of a principal that asks too often.
func tooMany(x *exchange, op string, wait time.Duration) error {
	x.w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(wait.Seconds())))))
	return fault.New(fault.Unavailable, "too_many", op, errors.New("more requests a second than this caller may send"))
}

// checkHost refuses names that only a foreign web page would use: on a TCP listener the
// Host must be one of the listener's names. A browser that was told by DNS that
// evil.example is 127.0.0.1 says Host: evil.example.
func checkHost(r *http.Request) error {
	p := peerOf(r)
	if p.unix || p.names == nil {
		return nil
	}
	if slices.Contains(p.names, strings.ToLower(r.Host)) {
		return nil
	}
	return answered(421, "check host", fmt.Errorf("host %.80q is not served here", r.Host))
}

// hostNames are the names of a TCP listener: its own address, and on loopback the usual
// names.
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

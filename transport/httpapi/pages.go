package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
	"palyra/transport/behind"
)

// pages returns the console's routes. They aren't part of the OpenAPI document: a page asks the hub
// for the operations that it shows, each with its own permission.
func pages() (all []route) {
	add := func(id, at, permission, summary string) {
		o := &hub.Operation{Tag: "console", ID: id, Root: true, Permission: permission, Summary: summary, Status: http.StatusOK}
		o.Method, o.Path, _ = strings.Cut(at, " ")
		all = append(all, route{Operation: o, in: api.InputOf(o), page: true, serve: servePage})
	}
	add("consoleRoot", "GET /{$}", hub.Public, "Go to the console")
	add("consoleAsset", "GET /assets/{name}", hub.Public, "Get a part of the console's pages")
	add("consoleDoor", "GET /enter", hub.Public, "Ask whether to enter the console")
	add("consoleEnter", "POST /enter", hub.Public, "Enter the console")
	add("consolePage", "GET /console/{page...}", hub.Authenticated, "Get a page")
	add("consoleAct", "POST /console/{page...}", hub.Authenticated, "Do what a page offers")
	return all
}

// maxForm bounds the body of a form, in bytes. It isn't counted.
const maxForm = 16 << 10

// maxLarge bounds the forms that have a file or a long text in them. They're counted as any body.
const maxLarge = 1 << 20

func isLarge(path string) bool {
	switch path {
	case "/console/policy/try", "/console/receipts", "/console/agent", "/console/memory/add":
		return true
	}
	return false
}

// readPage reads a page's request. Pages judge their own queries.
func (x *exchange) readPage() error {
	if x.r.Method != http.MethodPost {
		return x.noBody()
	}
	const op = "read form"
	media, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	if err != nil || media != "application/x-www-form-urlencoded" || x.r.Header.Get("Content-Encoding") != "" {
		return answered(415, op, errors.New("want Content-Type: application/x-www-form-urlencoded"))
	}
	limit := int64(maxForm)
	if isLarge(x.r.URL.Path) {
		limit = maxLarge
		if err := x.roomForBody(limit); err != nil {
			x.w.Header().Set("Connection", "close")
			return err
		}
	}
	b, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, limit))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return usage("json_too_large", op, fmt.Errorf("more than %d bytes", limit))
	} else if err != nil {
		return usage("invalid_input", op, errors.New("it ended early or came too slowly"))
	}
	if x.form, err = url.ParseQuery(string(b)); err != nil {
		return usage("invalid_input", op, errors.New("malformed"))
	}
	return nil
}

// userOf returns the user of this machine whose connection a request came by, "" for one from
// another machine.
func (s *Server) userOf(r *http.Request, p *peer) (string, error) {
	if p.unix {
		return p.key, p.err
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	own, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if err != nil || !ok {
		return "", fault.New(fault.Internal, "internal", "find the owner of a connection", errors.New("it has no addresses"))
	}
	uid, err := s.cfg.Owners.of(peer, own.AddrPort())
	if errors.Is(err, fs.ErrNotExist) && s.cfg.Owners.foreign(peer.Addr(), own.AddrPort().Addr()) {
		return "", nil
	}
	return "uid:" + strconv.FormatUint(uint64(uid), 10), err
}

func servePage(x *exchange) error {
	x.deadline()
	v := &behind.Visitor{Caller: x.caller, Form: x.form, Cookie: cookieName(x.r), Hub: inner{x.s, x.caller, x.rt.ID}, Stay: x.stay}
	if x.rt.Permission != hub.Public {
		return x.s.cfg.Console.Page(x.w, x.r, v)
	}
	var err error
	if v.User, err = x.s.userOf(x.r, peerOf(x.r)); err != nil {
		return err
	}
	return x.s.cfg.Console.Open(x.w, x.r, v)
}

// stay takes the place of a reader for a page's answer that goes on.
func (x *exchange) stay() (context.Context, http.ResponseWriter, func(), error) {
	s := x.s.streams
	place, err := s.reserve(x.payer(), 0)
	if err != nil {
		x.w.Header().Set("Retry-After", "5")
		return nil, nil, nil, err
	}
	ctx, stop := s.while(x.r.Context())
	leave := func() { stop(); place.Release() }
	w := http.NewResponseController(x.w)
	if err := w.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) { // as in readBody
		leave()
		return nil, nil, nil, err
	}
	return ctx, &timed{ResponseWriter: x.w, limit: x.s.lim.Write, connection: x.w.Header().Get("Connection")}, leave, nil
}

// cookieName returns the name of the cookie with a browser's token. Cookies don't tell ports apart,
// so the name does: two daemons of a machine have a cookie each. The prefix keeps other hosts and
// paths from setting it (RFC 6265bis §4.1.3.2).
func cookieName(r *http.Request) string {
	port := 0
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		port = a.Port
	}
	return "__Host-palyra-" + strconv.Itoa(port)
}

// authenticatePage authenticates a browser by the token in its cookie. A browser sends it to other
// ports of localhost as well, where another user of this machine may listen. So where the
// connection is this machine's, the kernel must say that it's the token's own user's.
func (s *Server) authenticatePage(x *exchange, p *peer) error {
	cs := x.r.CookiesNamed(cookieName(x.r))
	if p.unix && len(cs) == 0 {
		return s.authenticateToken(x, p, p.surface(), "")
	}
	if len(cs) != 1 || len(cs[0].Value) > maxToken {
		return s.unknown(x, "Bearer", fault.New(fault.Denied, "unauthenticated", "authenticate", errors.New("this browser isn't let in")).WithHint("palyra console open"))
	}
	if err := s.authenticateToken(x, p, hub.SurfaceConsole, cs[0].Value); err != nil {
		return err
	}
	user, err := s.userOf(x.r, p)
	if err != nil || user != "" && user != x.caller.User {
		switch _, ok := s.noise.take("cookie"); {
		case !ok:
		case err != nil: // as of a browser that left the page before its answer
			s.log.Info("a browser's connection has no user that the kernel names", "caller", x.caller.User, "error", err)
		default:
			s.log.Warn("a browser's token came from another user's process", "caller", x.caller.User, "user", user)
		}
		x.known, x.caller = false, hub.Caller{}
		return s.unknown(x, "Bearer", fault.New(fault.Denied, "unauthenticated", "authenticate", errors.New("the token isn't this user's")).WithHint("palyra console open"))
	}
	return nil
}

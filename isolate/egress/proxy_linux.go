package egress

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"palyra/call/egress/reach"
	"palyra/isolate/egress/proxy"
	"palyra/isolate/evidence"
)

// proxyTime bounds what a client takes to say where to, and to take an answer.
const proxyTime = 30 * time.Second

// problem is why a proxy doesn't connect. Each protocol has its own answers.
type problem struct {
	status int // of HTTP
	reply  proxy.Reply
	why    string
}

// problems are the answers to outcomes of a dial.
var problems = map[string]problem{
	evidence.ConnRefused:     {502, proxy.ConnRefused, "the host refuses the connection"},
	evidence.ConnUnreachable: {502, proxy.HostUnreachable, "the host can't be reached"},
	evidence.ConnTimedOut:    {504, proxy.HostUnreachable, "the host doesn't answer"},
	evidence.ConnLimit:       {504, proxy.HostUnreachable, "the host doesn't answer in the time that a rule lets a connection last"},
	evidence.ConnEnded:       {503, proxy.Failure, "the call has ended"},
}

var tooMany = &problem{429, proxy.NotAllowed, "a rule's connections are used up, in all, at once or for now"}

// target returns the checked addresses of what a client of a proxy asks for.
func (s *session) target(to proxy.Target) (host string, addrs []netip.Addr, p *problem) {
	deny := func(why, says string) (string, []netip.Addr, *problem) {
		s.deny(host, to.Port, why)
		return "", nil, &problem{403, proxy.NotAllowed, says}
	}
	if to.Name == "" {
		host = to.Addr.String()
		switch {
		case !s.rules.Network(to.Addr, to.Port):
			return deny(evidence.DenyNotListed, fmt.Sprintf("no rule has %s", to))
		case reach.Permit(to.Addr, to.Port, s.rules) != nil:
			return deny(evidence.DenyForbidden, fmt.Sprintf("%s is never connected to", to.Addr))
		}
		return host, []netip.Addr{to.Addr}, nil
	}
	host = to.Name
	if s.leaks(host, evidence.LeakProxy) {
		return "", nil, &problem{503, proxy.Failure, "the call has ended"}
	}
	if !s.rules.Allows(host, to.Port) {
		return deny(evidence.DenyNotListed, fmt.Sprintf("no rule has %s", to))
	}
	n, err := s.find(host)
	switch {
	case errors.Is(err, errEnded):
		return "", nil, &problem{503, proxy.Failure, "the call has ended"}
	case errors.Is(err, errNames), errors.Is(err, errBusy):
		return "", nil, &problem{503, proxy.Failure, err.Error()}
	case errors.Is(err, errNoName):
		return "", nil, &problem{502, proxy.HostUnreachable, "there is no such name"}
	case err != nil:
		return "", nil, &problem{504, proxy.HostUnreachable, "the name's servers don't answer"}
	}
	if !slices.Contains(n.ports, to.Port) { // judged by all addresses, of which n.addrs may be some
		return deny(evidence.DenyForbidden, fmt.Sprintf("%s leads into a range that no rule names", host))
	}
	return host, n.addrs, nil
}

// way is target, and counts the connection by the rules about it until leave is called.
func (s *session) way(to proxy.Target) (host string, addrs []netip.Addr, leave func(), p *problem) {
	if host, addrs, p = s.target(to); p != nil {
		return "", nil, nil, p
	}
	if leave = s.admit(host, to.Port, time.Now()); leave == nil {
		return "", nil, nil, tooMany
	}
	return host, addrs, leave, nil
}

// serveHTTP serves one CONNECT.
func (s *session) serveHTTP(c *net.TCPConn) {
	h := newHead(s, c)
	defer h.release()
	to, ok := readHead(h, proxy.MaxHead, proxy.ParseConnect)
	if !ok {
		return
	}
	host, addrs, leave, p := s.way(to)
	if p != nil {
		h.refuse(proxy.Answer(p.status, p.why))
		return
	}
	defer leave()
	s.connect(h.take(), host, to.Port, addrs, &greeting{h.rest, func(outcome string) error {
		if outcome == "" {
			return h.say([]byte(proxy.Connected))
		}
		p := problems[outcome]
		return h.say(proxy.Answer(p.status, p.why))
	}})
}

// serveSOCKS serves one request of SOCKS5.
func (s *session) serveSOCKS(c *net.TCPConn) {
	h := newHead(s, c)
	defer h.release()
	if _, ok := readHead(h, proxy.MaxSOCKS, func(b []byte) (struct{}, int, error) {
		n, err := proxy.ParseGreeting(b)
		return struct{}{}, n, err
	}); !ok || h.say([]byte(proxy.NoAuthentication)) != nil {
		return
	}
	to, ok := readHead(h, proxy.MaxSOCKS, proxy.ParseSOCKS)
	if !ok {
		return
	}
	host, addrs, leave, p := s.way(to)
	if p != nil {
		h.refuse(p.reply.Bytes())
		return
	}
	defer leave()
	s.connect(h.take(), host, to.Port, addrs, &greeting{h.rest, func(outcome string) error {
		if outcome == "" {
			return h.say(proxy.Granted.Bytes())
		}
		return h.say(problems[outcome].reply.Bytes())
	}})
}

// head is a proxy's connection before anything passes.
type head struct {
	s    *session
	c    *net.TCPConn
	rest []byte // what was read and isn't parsed
	gone bool   // connect has the connection
}

func newHead(s *session, c *net.TCPConn) *head {
	h := &head{s: s, c: c, gone: !s.own(c)}
	c.SetDeadline(time.Now().Add(proxyTime))
	return h
}

func (h *head) take() *net.TCPConn {
	h.gone = true
	return h.c
}

func (h *head) release() {
	if !h.gone {
		h.s.disown(h.c)
		h.c.Close()
	}
}

// readHead reads until parse takes what came. What it refuses is denied by name.
func readHead[T any](h *head, most int, parse func([]byte) (T, int, error)) (v T, ok bool) {
	watch := h.s.Watch().Stream()
	unseen := h.rest
	for {
		if name := watch.Next(unseen); name != "" {
			h.s.leak(evidence.Leak{Name: name, Where: evidence.LeakProxy})
			return v, false
		}
		v, n, err := parse(h.rest)
		if err == nil {
			h.rest = h.rest[n:]
			return v, true
		}
		var no *proxy.Refused
		if errors.As(err, &no) {
			h.s.deny(asked(h.rest), 0, evidence.DenyProxy)
			h.refuse(no.Answer)
			return v, false
		}
		if len(h.rest) >= most {
			return v, false
		}
		more := make([]byte, most-len(h.rest))
		m, err := h.c.Read(more)
		if m == 0 && err != nil {
			return v, false
		}
		unseen = more[:m]
		h.rest = append(h.rest, unseen...)
	}
}

// asked returns the host of a refused request of HTTP as it was spelled. A user in front of it, a
// path and a query may be secret, and stay out of evidence.
func asked(b []byte) string {
	fields := bytes.Fields(b)
	if len(fields) < 2 || b[0] <= ' ' {
		return "proxy"
	}
	target := string(fields[1])
	if _, rest, ok := strings.Cut(target, "://"); ok {
		target = rest
	}
	if end := strings.IndexAny(target, "/?#\\"); end >= 0 {
		target = target[:end]
	}
	return cmp.Or(target[strings.LastIndexByte(target, '@')+1:], "proxy")
}

func (h *head) say(b []byte) error {
	h.c.SetWriteDeadline(time.Now().Add(proxyTime))
	_, err := h.c.Write(b)
	return err
}

// refuse says the last words, and reads what the client has under way: a close with unread bytes
// would be a reset, and take the words back.
func (h *head) refuse(b []byte) {
	if h.say(b) != nil || h.c.CloseWrite() != nil {
		return
	}
	h.c.SetReadDeadline(time.Now().Add(time.Second))
	io.Copy(io.Discard, io.LimitReader(h.c, chunk))
}

// Package proxy reads what programs say to a proxy: HTTP's CONNECT, and SOCKS5 with names. It's
// for those that insist on one; any other program connects to the name's address.
//
//	target, n, err := proxy.ParseConnect(b)  // ErrShort: read more, up to MaxHead
//	to, n, err := proxy.ParseSOCKS(b)
//
// The parsers are functions of the bytes that came so far. They take a prefix that is one whole
// message and say how long it is: what follows belongs to the tunnel. A target has the spelling
// of call/egress. [Refused] has the answer for the client, which closes after it.
//
// HTTP: CONNECT in version 1.0 or 1.1, lines that end in CR LF, a body announced by no header. The
// request's target counts alone, and no header goes anywhere. A request with a URL (http://) is
// refused with a sentence that says how to do without.
//
// SOCKS: version 5 (RFC 1928), CONNECT, no authentication.
//
// What it does not protect against: it decides nothing; who calls it asks the rules. It tells
// nothing of what runs in the tunnel.
package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"palyra/call/egress"
)

// MaxHead is how many bytes the head of a CONNECT request can have.
const MaxHead = 8 << 10

// MaxSOCKS is how many bytes a greeting or a request of SOCKS5 can have.
const MaxSOCKS = 4 + 1 + 255 + 2

// ErrShort says that the bytes are the beginning of a message.
var ErrShort = errors.New("proxy: message ends early")

// Target is where a client wants to be connected: a canonical name or an address, and a port.
type Target struct {
	Name string
	Addr netip.Addr // valid exactly if Name is ""
	Port uint16
}

// String returns HOST:PORT.
func (t Target) String() string {
	if t.Name == "" {
		return netip.AddrPortFrom(t.Addr, t.Port).String()
	}
	return t.Name + ":" + strconv.Itoa(int(t.Port))
}

// Refused is a request that is no CONNECT to a host of the DNS.
type Refused struct {
	Why    string
	Answer []byte // for the client, before the connection is closed; nil if none would be understood
}

// Error returns why.
func (r *Refused) Error() string { return "proxy: " + r.Why }

// ParseConnect reads the head of a CONNECT request. n is its length. The error is ErrShort or
// *Refused.
func ParseConnect(b []byte) (to Target, n int, err error) {
	head := b[:min(len(b), MaxHead)]
	end := bytes.Index(head, []byte("\r\n\r\n"))
	if end < 0 {
		switch {
		case badLine(head):
			return Target{}, 0, refuse(400, "a line of the request doesn't end in CR LF, or has control characters")
		case len(b) >= MaxHead:
			return Target{}, 0, refuse(431, "the head of the request has more than %d bytes", MaxHead)
		}
		return Target{}, 0, ErrShort
	}
	head = head[:end+2]
	if badLine(head) {
		return Target{}, 0, refuse(400, "a line of the request doesn't end in CR LF, or has control characters")
	}
	lines := strings.Split(strings.TrimSuffix(string(head), "\r\n"), "\r\n")
	if to, err = requestLine(lines[0]); err != nil {
		return Target{}, 0, err
	}
	for _, l := range lines[1:] {
		if err := header(l); err != nil {
			return Target{}, 0, err
		}
	}
	return to, end + 4, nil
}

// badLine reports control characters, CR and LF apart from each other included. A CR at the end
// may get its LF yet.
func badLine(b []byte) bool {
	for i, c := range b {
		switch {
		case c == '\r' && i+1 < len(b) && b[i+1] != '\n', c == '\n' && (i == 0 || b[i-1] != '\r'),
			c < ' ' && c != '\r' && c != '\n' && c != '\t', c == 0x7f:
			return true
		}
	}
	return false
}

func requestLine(line string) (Target, error) {
	method, rest, ok := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	switch {
	case !ok || !ok2 || version != "HTTP/1.1" && version != "HTTP/1.0":
		return Target{}, refuse(400, "no request of HTTP/1")
	case method != "CONNECT" && strings.HasPrefix(strings.ToLower(target), "http://"):
		return Target{}, refuse(501, "this proxy serves CONNECT alone: unset http_proxy, since names have addresses here and programs connect to them")
	case method != "CONNECT":
		return Target{}, refuse(405, "this proxy serves CONNECT alone")
	}
	at := strings.LastIndexByte(target, ':')
	if at < 0 {
		return Target{}, refuse(400, "CONNECT without a port")
	}
	var to Target
	var err error
	if to.Name, to.Addr, err = egress.Host(target[:at]); err != nil {
		return Target{}, refuse(400, "%v", err)
	}
	if to.Port, err = egress.Port(target[at+1:]); err != nil {
		return Target{}, refuse(400, "%v", err)
	}
	return to, nil
}

// header checks a header line. None has a meaning here but those that announce a body, which
// would be read as the beginning of the tunnel.
func header(line string) error {
	name, value, ok := strings.Cut(line, ":")
	if !ok || name == "" || strings.Trim(name, tokens) != "" {
		return refuse(400, "a header line without a name")
	}
	value = strings.Trim(value, " \t")
	if strings.EqualFold(name, "Transfer-Encoding") || strings.EqualFold(name, "Content-Length") && value != "0" {
		return refuse(400, "CONNECT with a body")
	}
	return nil
}

// tokens are the characters of a header's name (RFC 9110 §5.6.2).
const tokens = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// Connected is the answer to a CONNECT that is served.
const Connected = "HTTP/1.1 200 Connection established\r\n\r\n"

var reasons = map[int]string{400: "Bad Request", 403: "Forbidden", 405: "Method Not Allowed", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
	501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout"}

// Answer returns a final answer of HTTP with a sentence: 403 for what no rule allows, 429 for what
// comes too fast, 502 for what can't be reached, 503 for what is too much, 504 for what takes too
// long. The sentence must quote what isn't ours.
func Answer(status int, why string) []byte {
	body := why + "\n"
	allow := ""
	if status == 405 {
		allow = "Allow: CONNECT\r\n"
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\n%sContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, reasons[status], allow, len(body), body)
}

func refuse(status int, format string, args ...any) *Refused {
	why := fmt.Sprintf(format, args...)
	return &Refused{why, Answer(status, why)}
}

// NoAuthentication is the answer to a greeting that ParseGreeting takes.
const NoAuthentication = "\x05\x00"

// ParseGreeting reads the greeting of a client of SOCKS5. n is its length. The error is ErrShort
// or *Refused.
func ParseGreeting(b []byte) (n int, err error) {
	switch {
	case len(b) == 0:
		return 0, ErrShort
	case b[0] == 4: // an answer of version 4: request rejected
		return 0, &Refused{"SOCKS4, which has addresses alone: use SOCKS5 with names (socks5h)", []byte{0, 91, 0, 0, 0, 0, 0, 0}}
	case b[0] != 5:
		return 0, &Refused{Why: "no SOCKS5"}
	case len(b) < 2 || len(b) < 2+int(b[1]):
		return 0, ErrShort
	}
	n = 2 + int(b[1])
	if !bytes.Contains(b[2:n], []byte{0}) {
		return 0, &Refused{"SOCKS5 with authentication alone: there is none", []byte{5, 0xff}}
	}
	return n, nil
}

// A Reply is a code of SOCKS5's answer (RFC 1928 §6).
type Reply byte

// The replies.
const (
	Granted         Reply = 0
	Failure         Reply = 1 // too much, or an error without a code
	NotAllowed      Reply = 2 // no rule
	HostUnreachable Reply = 4
	ConnRefused     Reply = 5
	NoCommand       Reply = 7
	NoAddressType   Reply = 8
)

// Bytes returns the answer to a request. It tells no address: clients don't need it.
func (r Reply) Bytes() []byte { return []byte{5, byte(r), 0, 1, 0, 0, 0, 0, 0, 0} }

// ParseSOCKS reads the request after the greeting. n is its length. The error is ErrShort or
// *Refused.
func ParseSOCKS(b []byte) (to Target, n int, err error) {
	no := func(r Reply, format string, args ...any) (Target, int, error) {
		return Target{}, 0, &Refused{fmt.Sprintf(format, args...), r.Bytes()}
	}
	switch {
	case len(b) > 0 && b[0] != 5:
		return no(Failure, "a request of SOCKS5 that begins with %d", b[0])
	case len(b) < 5:
		return Target{}, 0, ErrShort
	case b[1] != 1:
		return no(NoCommand, "command %d of SOCKS5: CONNECT alone is served", b[1])
	case b[2] != 0:
		return no(Failure, "SOCKS5 with %d in a reserved byte", b[2])
	}
	size := map[byte]int{1: 4, 3: 1 + int(b[4]), 4: 16}[b[3]]
	if size == 0 {
		return no(NoAddressType, "address type %d of SOCKS5", b[3])
	}
	n = 4 + size + 2
	if len(b) < n {
		return Target{}, 0, ErrShort
	}
	if b[3] == 3 {
		to.Name, to.Addr, err = egress.Host(string(b[5 : 4+size]))
		if err != nil {
			return no(NotAllowed, "%v", err)
		}
	} else {
		to.Addr, _ = netip.AddrFromSlice(b[4 : 4+size])
		to.Addr = to.Addr.Unmap()
	}
	if to.Port = binary.BigEndian.Uint16(b[4+size:]); to.Port == 0 {
		return no(Failure, "port 0")
	}
	return to, n, nil
}

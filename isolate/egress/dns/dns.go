// Package dns is the server's side of the Domain Name System, as far as a resolver needs it that
// answers with addresses of its own: it reads one query and makes one answer.
//
//	q, err := dns.Parse(packet)
//	if err != nil {
//		answer = dns.Refusal(packet, err) // nil: nothing is to be answered
//	}
//	answer = q.Addresses(addrs, time.Minute) // or q.Empty(), q.NoName("no rule for it")
//
// A query has one question in class IN, no records but EDNS's, and at most MaxQuery bytes. Its
// name isn't compressed. Query.Name is in the spelling of call/egress, and the answer repeats the
// question byte for byte, since resolvers compare it (the case of its letters included). Answers
// say that recursion is available and nothing of DNSSEC. They fit into 512 bytes, so none is cut.
//
// What it does not protect against: it has no socket, counts nothing and decides nothing. A query
// is text of the program's choosing: it may go into evidence, quoted, and to no other resolver
// unless a rule allows the name.
package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"palyra/call/egress"
)

// The bounds of a message and of an answer.
const (
	MaxQuery     = 1232 // bytes; a question has 271 at most, the rest is EDNS with its padding
	MaxAddresses = 8    // in an answer
	payload      = 1232 // what EDNS says that we read: MaxQuery
	header       = 12   // bytes, RFC 1035 §4.1.1
	maxWhy       = 120  // bytes of text in an extended error
)

// Type is what a query asks for.
type Type uint16

// The types that are answered, if the name is allowed.
const (
	A    Type = 1
	AAAA Type = 28
)

// types names the types that programs ask for (IANA's registry of DNS parameters).
var types = map[Type]string{A: "A", 2: "NS", 5: "CNAME", 6: "SOA", 10: "NULL", 12: "PTR", 15: "MX", 16: "TXT", AAAA: "AAAA", 33: "SRV",
	35: "NAPTR", 37: "CERT", 43: "DS", 44: "SSHFP", 48: "DNSKEY", 52: "TLSA", 64: "SVCB", 65: "HTTPS", 252: "AXFR", 255: "ANY", 256: "URI", 257: "CAA"}

// String returns the mnemonic, or TYPE and the number (RFC 3597 §5).
func (t Type) String() string {
	if s, ok := types[t]; ok {
		return s
	}
	return fmt.Sprintf("TYPE%d", uint16(t))
}

// Query is a query that can be answered. Make one with Parse.
type Query struct {
	Name string // canonical; "" if no rule can name it
	Bad  error  // why Name is ""
	Type Type

	asked    dnsmessage.Question
	id       uint16
	recurse  bool
	unsure   bool // CD
	edns     bool
	badEDNS  bool // a version that isn't 0
	original string
}

// Asked returns the name as the program spelled it, for evidence: quote it.
func (q *Query) Asked() string { return q.original }

// refusal is an error of Parse with its code.
type refusal struct {
	error
	code dnsmessage.RCode
}

func malformed(format string, args ...any) error {
	return refusal{fmt.Errorf("query: "+format, args...), dnsmessage.RCodeFormatError}
}

// errSilent marks what isn't answered, lest two servers talk to each other for ever.
var errSilent = errors.New("no query")

// Parse reads a query. Its error goes to Refusal.
func Parse(packet []byte) (*Query, error) {
	if len(packet) < header || len(packet) > MaxQuery {
		return nil, fmt.Errorf("%w: %d bytes", errSilent, len(packet))
	}
	var p dnsmessage.Parser
	h, err := p.Start(packet)
	counts := [4]uint16{}
	for i := range counts {
		counts[i] = binary.BigEndian.Uint16(packet[4+2*i:])
	}
	switch {
	case err != nil || h.Response:
		return nil, errSilent
	case h.OpCode != 0:
		return nil, refusal{fmt.Errorf("query: operation %d", h.OpCode), dnsmessage.RCodeNotImplemented}
	case h.Truncated || h.Authoritative || h.RCode != 0:
		return nil, malformed("bits of an answer")
	case counts[0] != 1 || counts[1] != 0 || counts[2] != 0 || counts[3] > 1:
		return nil, malformed("%d questions, %d+%d+%d records", counts[0], counts[1], counts[2], counts[3])
	}
	end, err := plain(packet)
	if err != nil {
		return nil, err
	}
	question, err := p.Question()
	if err != nil {
		return nil, malformed("question: %v", err)
	}
	if question.Class != dnsmessage.ClassINET {
		return nil, refusal{fmt.Errorf("query: class %d", question.Class), dnsmessage.RCodeRefused}
	}
	q := &Query{Type: Type(question.Type), asked: question, id: h.ID, recurse: h.RecursionDesired, unsure: h.CheckingDisabled,
		original: question.Name.String()}
	q.Name, q.Bad = egress.Name(q.original)
	if counts[3] == 0 && end != len(packet) {
		return nil, malformed("%d bytes after the question", len(packet)-end)
	}
	return q, q.options(&p, packet[end:], counts[3])
}

// plain walks the question's name, which has labels alone, and returns where the question ends.
func plain(packet []byte) (end int, err error) {
	for at := header; at < len(packet); at += 1 + int(packet[at]) {
		switch n := packet[at]; {
		case n > 63:
			return 0, malformed("a compressed name in the question")
		case n == 0 && at+5 <= len(packet):
			return at + 5, nil
		}
	}
	return 0, malformed("the question ends early")
}

// options reads the one additional record that a query may have (RFC 6891 §6.1.1).
func (q *Query) options(p *dnsmessage.Parser, rest []byte, n uint16) error {
	if n == 0 {
		return nil
	}
	// Root's name, type, class, TTL, length: nothing may follow the data.
	if len(rest) < 11 || rest[0] != 0 || len(rest) != 11+int(binary.BigEndian.Uint16(rest[9:])) {
		return malformed("an additional record that isn't EDNS, or bytes after it")
	}
	if err := errors.Join(p.SkipAllQuestions(), p.SkipAllAnswers(), p.SkipAllAuthorities()); err != nil {
		return malformed("%v", err)
	}
	h, err := p.AdditionalHeader()
	if err != nil || h.Type != dnsmessage.TypeOPT {
		return malformed("an additional record that isn't EDNS")
	}
	if _, err := p.OPTResource(); err != nil {
		return malformed("EDNS: %v", err)
	}
	q.edns, q.badEDNS = true, h.TTL>>16&0xff != 0
	return nil
}

// Refusal returns the answer to a packet that Parse refused with err, nil if it isn't answered.
func Refusal(packet []byte, err error) []byte {
	var r refusal
	if !errors.As(err, &r) || len(packet) < header {
		return nil
	}
	out := make([]byte, header)
	copy(out, packet[:3])
	out[2] = 1<<7 | packet[2]&(0xf<<3|1) // an answer; the operation and "recursion desired" come back
	out[3] = 1<<7 | byte(r.code)         // recursion available
	return out
}

// Addresses returns an answer with those of addrs that the query's type asks for, at most
// MaxAddresses. It's Empty for other types.
func (q *Query) Addresses(addrs []netip.Addr, ttl time.Duration) []byte {
	var fit []netip.Addr
	for _, a := range addrs {
		if len(fit) < MaxAddresses && (q.Type == A && a.Is4() || q.Type == AAAA && a.Is6() && !a.Is4In6()) {
			fit = append(fit, a)
		}
	}
	return q.answer(dnsmessage.RCodeSuccess, fit, ttl, "")
}

// Empty returns the answer that the name exists and has nothing of the type.
func (q *Query) Empty() []byte { return q.answer(dnsmessage.RCodeSuccess, nil, 0, "") }

// NoName returns the answer that there's no such name. Programs give up on it at once, while they
// ask again after a refusal. Why is for who reads extended errors (RFC 8914): "Prohibited".
func (q *Query) NoName(why string) []byte {
	return q.answer(dnsmessage.RCodeNameError, nil, 0, why)
}

// Failed returns the answer that the resolver couldn't find out.
func (q *Query) Failed(why string) []byte {
	return q.answer(dnsmessage.RCodeServerFailure, nil, 0, why)
}

// prohibited is the code of an extended error (RFC 8914 §4.19).
const prohibited = 18

func (q *Query) answer(code dnsmessage.RCode, addrs []netip.Addr, ttl time.Duration, why string) []byte {
	const badVersion = 16 // RFC 6891 §6.1.3
	if q.badEDNS {
		code, addrs, why = badVersion, nil, ""
	}
	b := dnsmessage.NewBuilder(make([]byte, 0, 512), dnsmessage.Header{ID: q.id, Response: true, RecursionDesired: q.recurse,
		RecursionAvailable: true, CheckingDisabled: q.unsure, RCode: code & 0xf})
	b.EnableCompression()
	err := errors.Join(b.StartQuestions(), b.Question(q.asked), b.StartAnswers())
	h := dnsmessage.ResourceHeader{Name: q.asked.Name, Class: dnsmessage.ClassINET, TTL: uint32(ttl / time.Second)}
	for _, a := range addrs {
		if a.Is4() {
			err = errors.Join(err, b.AResource(h, dnsmessage.AResource{A: a.As4()}))
		} else {
			err = errors.Join(err, b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: a.As16()}))
		}
	}
	if q.edns {
		var opt dnsmessage.ResourceHeader
		var r dnsmessage.OPTResource
		if why != "" {
			r.Options = []dnsmessage.Option{{Code: 15, Data: append([]byte{0, prohibited}, why[:min(len(why), maxWhy)]...)}}
		}
		err = errors.Join(err, opt.SetEDNS0(payload, code, false), b.StartAdditionals(), b.OPTResource(opt, r))
	}
	packet, last := b.Finish()
	if err = errors.Join(err, last); err != nil {
		panic("dns: internal error: " + err.Error()) // a name that was parsed, and addresses of fixed size
	}
	return packet
}

// ReadStream reads one message of a connection (RFC 1035 §4.2.2). It's io.EOF at its end.
func ReadStream(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n < header || n > MaxQuery {
		return nil, fmt.Errorf("read query: %d bytes, want %d to %d", n, header, MaxQuery)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("read query: %w", io.ErrUnexpectedEOF)
	}
	return b, nil
}

// Stream puts an answer into the form that a connection carries.
func Stream(answer []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)
}

// Package handover is how palyra-cell hands sockets of a cell's network namespace to palyra-egress,
// and how palyra-egress answers.
//
// The sockets are made in the cell's namespace and belong to it for ever, whoever holds them. They
// aren't bound: the addresses in Inside4 and Inside6 of call/egress lead to the cell's loopback
// interface, every port is free for every user there, and palyra-egress binds each socket when it
// knows where. So it serves a namespace that it can't enter, with no capability.
//
// The connection is one SOCK_SEQPACKET pair per call; palyra makes it and hands both ends on.
// palyra-cell sends the sockets in as few messages as the kernel allows, [Receive] takes them, and
// palyra-egress answers once, with [Ready] or [Refuse]. Then palyra-cell opens the gate or ends the
// call.
//
//	'S' tcp4 tcp6 first      UDP socket, then tcp4 sockets, then tcp6 sockets, from number first on
//	"ready"                  the answer: the program may start
//	"refused " reason        it may not
//
// The three numbers take two bytes each, big endian. A socket over IPv6 lets its holder bind an
// address of Inside6 only with IPV6_FREEBIND, which palyra-cell has set, since the interface has
// none of them.
//
// Both ends bound what they wait for; neither trusts the other to be there. Sockets that were sent
// and not received are closed by the kernel with the receiving end.
//
// It doesn't protect the program from palyra-egress, which can answer in place of every host in
// these ranges: it is the program's network.
package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
)

// The addresses of a cell's network that aren't its program's own, in the two
// ranges of call/egress.
const (
	Resolver     = "198.18.0.1" // a name server, at ResolverPort
	ResolverPort = 53
	Proxy        = "198.18.0.2"
	HTTPPort     = 3128 // of Proxy: HTTP CONNECT
	SOCKSPort    = 1080 // of Proxy: SOCKS5

	// Names4 is the first address that may stand for a name. Names6 is what those of Inside6 begin
	// with, of which the last 32 bits are the IPv4 address of the same name.
	Names4 = "198.18.1.0"
	Names6 = "fd70:616c:7972::"
)

// MaxTCP bounds the sockets of each kind.
const MaxTCP = 256

// maxFiles is how many descriptors a message has at most: SCM_MAX_FD is 253.
const maxFiles = 250

// Sockets are the sockets of one call. The holder closes them.
type Sockets struct {
	UDP        *os.File // over IPv4, for the resolver
	TCP4, TCP6 []*os.File
}

// Close closes all of them.
func (s *Sockets) Close() {
	for _, f := range s.files() {
		if f != nil {
			f.Close()
		}
	}
}

func (s *Sockets) files() []*os.File {
	return append(append([]*os.File{s.UDP}, s.TCP4...), s.TCP6...)
}

const headSize = 1 + 3*2

// head is the part of a message that isn't descriptors.
type head struct{ tcp4, tcp6, first int }

// all is how many descriptors the messages have together, in this one and the others.
func (h head) all() int { return 1 + h.tcp4 + h.tcp6 }

// here is how many this one has.
func (h head) here() int { return min(h.all()-h.first, maxFiles) }

func (h head) append(b []byte) []byte {
	b = append(b, 'S')
	for _, n := range [...]int{h.tcp4, h.tcp6, h.first} {
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	}
	return b
}

var errMessage = errors.New("decode sockets of a cell: not a message of palyra-cell's")

// parseHead reads a head. A message that doesn't follow from the one before is an error: first is
// then another than next.
func parseHead(b []byte, before *head, next int) (head, error) {
	if len(b) != headSize || b[0] != 'S' {
		return head{}, errMessage
	}
	h := head{int(binary.BigEndian.Uint16(b[1:])), int(binary.BigEndian.Uint16(b[3:])), int(binary.BigEndian.Uint16(b[5:]))}
	switch {
	case h.tcp4 < 1 || h.tcp4 > MaxTCP || h.tcp6 > MaxTCP || h.first != next || h.first >= h.all():
		return head{}, errMessage
	case before != nil && (before.tcp4 != h.tcp4 || before.tcp6 != h.tcp6):
		return head{}, errMessage
	}
	return h, nil
}

const (
	ready   = "ready"
	refused = "refused "

	// maxReason bounds the reason of a refusal, in bytes.
	maxReason = 64
	// MaxAnswer bounds an answer, in bytes.
	MaxAnswer = len(refused) + maxReason
)

// Refused is palyra-egress's answer that the program may not start. Reason is a code: 1 to 64 of
// a-z, 0-9 and _.
type Refused struct{ Reason string }

// Error names the reason.
func (e *Refused) Error() string { return "palyra-egress refuses the call: " + e.Reason }

// ParseAnswer reads palyra-egress's answer: nil if the program may start, a *Refused if it may not.
func ParseAnswer(b []byte) error {
	s := string(b)
	if s == ready {
		return nil
	}
	reason, ok := strings.CutPrefix(s, refused)
	if !ok || !isReason(reason) {
		return errors.New("palyra-egress answers in another way than ready or refused")
	}
	return &Refused{reason}
}

func isReason(s string) bool {
	return s != "" && len(s) <= maxReason && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

func refusal(reason string) (string, error) {
	if !isReason(reason) {
		return "", fmt.Errorf("refuse a cell: %q is no reason code", reason)
	}
	return refused + reason, nil
}

// Package wire is the protocol between a palyra and palyra-egress, which are built together.
//
// The control connection is a unix socket of type SOCK_SEQPACKET. A palyra sends one message for
// each call, a [Request] in JSON, with two descriptors and nothing else on it:
//
//  1. the session: a unix stream socket. palyra-egress writes an [Answer] as one line. If the order
//     has uses of secrets, palyra writes [Secrets] as one line, and palyra-egress another Answer: the
//     session begins then. When palyra shuts down its side, or closes the socket, or the order's time
//     is over, or a placeholder leaks, palyra-egress ends all that the call has open, writes the
//     call's [evidence.Egress] as one line and closes.
//  2. the cell: a SOCK_SEQPACKET socket, whose other end palyra-cell gets; isolate/egress/handover.
//
// The control connection has no state, so a palyra-egress that takes over another's connection goes
// on where that one ended. Calls of the other are lost, and their sessions end without evidence.
package wire

import (
	"errors"
	"fmt"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
)

// Version is what both sides must agree on.
const Version = 6

// Bounds of messages.
const (
	MaxRequest   = 128 << 10
	MaxAnswer    = 32 << 10
	MaxAuthority = 16 << 10 // of an Answer's Authority
	MaxSecrets   = 512 << 10
	MaxEvidence  = 2 << 20
	MaxText      = 300 // of a host, name or rule
	MaxPath      = 200 // of a request's path in evidence
)

// Descriptors is how many a request carries.
const Descriptors = 2

// Request asks for a session.
type Request struct {
	Version int   `json:"version"`
	Order   Order `json:"order"`
}

// Order is what palyra-egress has to know of a call: where to it may connect, and how much.
type Order struct {
	// Rules are canonical egress rules, of package call/egress. None allow nothing.
	Rules  []string `json:"rules,omitempty"`
	Limits Limits   `json:"limits"`
	// Inspect are canonical rules of package call/egress for requests. A connection to their hosts,
	// and to those of Uses, ends in palyra-egress, which makes another of its own.
	Inspect []string `json:"inspect,omitempty"`
	// Uses say where a secret's value is put in, in place of what the program has.
	Uses []Use `json:"uses,omitempty"`
	// Check has the names and addresses of Rules looked up and judged, and no more: palyra-egress
	// writes the evidence right after its answer, and nothing is done with the cell.
	Check bool `json:"check,omitempty"`
	// Networks has names lead into networks that rules name with the port, and nowhere else: not to
	// the Internet.
	Networks bool `json:"networks,omitempty"`
	// Early has palyra-egress connect to the one inspected host while the cell is made and the program
	// starts, for a program that asks it first of all. If there are more hosts it does nothing.
	Early bool `json:"early,omitempty"`
	// Capsule is the digest of what was decided. The values are sealed for it.
	Capsule canon.Digest `json:"capsule,omitzero"`
	// Owner is the principal that pays. All calls of one together have at most half of what
	// palyra-egress has. Reserve says that the rest of it may be used up: see internal/budget.
	Owner   string `json:"owner,omitempty"`
	Reserve bool   `json:"reserve,omitempty"`
}

// Use is one use of a secret.
type Use struct {
	// Use is the canonical use, of package call/egress.
	Use string `json:"use"`
	// Placeholder is what the program has in place of the value, for this call alone.
	Placeholder string `json:"placeholder"`
}

// Secrets are the values for an order's uses, in their order.
type Secrets struct {
	// Sealed are sealed for the Key of the Answer, each for its use (isolate/egress/sealed).
	Sealed [][]byte `json:"sealed"`
}

// Limits bound one call. A zero takes the default, and none exceeds the most.
type Limits struct {
	// Wall is how long the call may last. Default and most: a day.
	Wall time.Duration `json:"wall_ns,omitempty"`
	// Idle is how long a connection may be silent. Default: 5 minutes, most: a day.
	Idle time.Duration `json:"idle_ns,omitempty"`
	// Open is how many connections may be open at once. Default: 256, most: 1024.
	Open int `json:"open,omitempty"`
	// Connections is how many the call may make in all. Default: 65,536, most: 2^20.
	Connections int64 `json:"connections,omitempty"`
	// Sent bounds the bytes that the program sends, in all. Default: 16 GiB, most: 1 PiB.
	Sent int64 `json:"sent_bytes,omitempty"`
	// Received bounds the bytes that it gets, in all. Default: 64 GiB, most: 1 PiB.
	Received int64 `json:"received_bytes,omitempty"`
	// Names is how many names may be looked up. Default: 256, most: 4096.
	Names int `json:"names,omitempty"`
	// Queries is how many DNS queries are answered. Default: 65,536, most: 2^20.
	Queries int64 `json:"queries,omitempty"`
	// Rate is how many connections the call may make at once and in each second, those of hosts with
	// a rate of their own among them. Default: 1024, most: 2^20.
	Rate int64 `json:"rate,omitempty"`
	// QueryRate is how many DNS queries are answered at once and in each second. Default: 1024, most:
	// 2^20.
	QueryRate int64 `json:"query_rate,omitempty"`
}

// Within returns the limits with defaults in place of zeros, or an error for one beyond the most.
func (l Limits) Within() (Limits, error) {
	var err error
	err = errors.Join(err, bound(&l.Wall, "wall_ns", 24*time.Hour, 24*time.Hour))
	err = errors.Join(err, bound(&l.Idle, "idle_ns", 5*time.Minute, 24*time.Hour))
	err = errors.Join(err, bound(&l.Open, "open", 256, 1024))
	err = errors.Join(err, bound(&l.Connections, "connections", 1<<16, 1<<20))
	err = errors.Join(err, bound(&l.Sent, "sent_bytes", 16<<30, 1<<50))
	err = errors.Join(err, bound(&l.Received, "received_bytes", 64<<30, 1<<50))
	err = errors.Join(err, bound(&l.Names, "names", 256, 4096))
	err = errors.Join(err, bound(&l.Queries, "queries", 1<<16, 1<<20))
	err = errors.Join(err, bound(&l.Rate, "rate", 1024, 1<<20))
	err = errors.Join(err, bound(&l.QueryRate, "query_rate", 1024, 1<<20))
	return l, err
}

func bound[T int | int64 | time.Duration](v *T, name string, otherwise, most T) error {
	switch {
	case *v == 0:
		*v = otherwise
	case *v < 0 || *v > most:
		return fmt.Errorf("limit %s: %d is beyond 1 to %d", name, int64(*v), int64(most))
	}
	return nil
}

// Answer says whether there is a session.
type Answer struct {
	Error *fault.Message `json:"error,omitempty"`
	// Key is the session's public key (isolate/egress/sealed), absent if the order has no uses.
	Key []byte `json:"key,omitempty"`
	// Authority is the certificate, in PEM, that the program must trust for its inspected hosts.
	// It's absent if the order has none.
	Authority string `json:"authority,omitempty"`
}

// Encode returns a message as a line of JSON.
func Encode(v any) ([]byte, error) {
	b, err := canon.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode egress message: %w", err)
	}
	return append(b, '\n'), nil
}

// Decode reads a message of at most most bytes: unknown and repeated members are errors.
func Decode(data []byte, v any, most int) error {
	if err := canon.Decode(data, v, canon.Limits{Bytes: most}); err != nil {
		return fmt.Errorf("decode egress message: %w", err)
	}
	return nil
}

// ParseEvidence reads what palyra-egress counted. It reads bytes of strangers, so what it says is
// held to bounds and plain text.
func ParseEvidence(data []byte) (*evidence.Egress, error) {
	e := new(evidence.Egress)
	if err := Decode(data, e, MaxEvidence); err != nil {
		return nil, err
	}
	if len(e.Kept) > 0 || e.MoreKept != 0 || e.Unread != 0 {
		return nil, errors.New("egress evidence tells of files, of which palyra-egress sees none")
	}
	if len(e.Checked) > evidence.MaxChecked {
		return nil, fmt.Errorf("egress evidence lists %d checked hosts", len(e.Checked))
	}
	if len(e.Connections) > evidence.MaxConnections || len(e.Denied) > evidence.MaxDenied || len(e.Requests) > evidence.MaxRequests || len(e.Leaks) > evidence.MaxLeaks {
		return nil, fmt.Errorf("egress evidence lists %d connections, %d denials, %d requests and %d leaks", len(e.Connections), len(e.Denied), len(e.Requests), len(e.Leaks))
	}
	plain, counts := []string{}, []int64{e.Queries, e.More, e.Sent, e.Received, e.MoreDenied, e.MoreRequests}
	ports := []uint32{}
	for _, c := range e.Connections {
		ports = append(ports, c.Port)
		plain = append(plain, c.Host, c.Address, c.Outcome, c.ServerName, c.TLS)
		counts = append(counts, c.Sent, c.Received, c.DurationNS)
	}
	for _, d := range e.Denied {
		ports = append(ports, d.Port)
		plain = append(plain, d.Host, d.Why, d.Limit)
		counts = append(counts, d.Times)
	}
	for _, r := range e.Requests {
		if len(r.Uses) > evidence.MaxUses || len(r.Path) > MaxPath || r.Status > 999 {
			return nil, fmt.Errorf("egress evidence has a request with %d uses, a path of %d bytes and status %d", len(r.Uses), len(r.Path), r.Status)
		}
		ports = append(ports, r.Port)
		plain = append(append(plain, r.Host, r.Method, r.Path), r.Uses...)
		counts = append(counts, r.Sent, r.Received)
	}
	for _, l := range e.Leaks {
		if l.Path != "" {
			return nil, errors.New("egress evidence tells of a file, of which palyra-egress sees none")
		}
		ports = append(ports, l.Port)
		plain = append(plain, l.Name, l.Host, l.Where)
	}
	for _, c := range e.Checked {
		if len(c.Addresses) > evidence.MaxAddresses {
			return nil, fmt.Errorf("egress evidence has a host with %d addresses", len(c.Addresses))
		}
		plain = append(append(plain, c.Host), c.Addresses...)
	}
	for _, s := range plain {
		if Plain(s) != s {
			return nil, fmt.Errorf("egress evidence has the text %.40q", s)
		}
	}
	for _, p := range ports {
		if p > 65535 {
			return nil, fmt.Errorf("egress evidence has the port %d", p)
		}
	}
	for _, n := range counts {
		if n < 0 {
			return nil, fmt.Errorf("egress evidence counts %d", n)
		}
	}
	e.Basis = evidence.Reported
	return e, nil
}

// Plain returns s as evidence may have it: printable ASCII, with ? in place of all else, cut to
// MaxText bytes.
func Plain(s string) string {
	b := []byte(s[:min(len(s), MaxText)])
	for i, c := range b {
		if c < 0x20 || c > 0x7e {
			b[i] = '?'
		}
	}
	return string(b)
}

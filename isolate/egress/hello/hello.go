// Package hello reads what the two first messages of TLS say in the clear: the server name that a
// client asks for, and the version that a server chose. It's for evidence.
//
//	c, err := hello.ParseClient(b) // ErrShort: more bytes may tell, up to MaxClient
//	c.ServerName                   // "packages.example"
//	s, err := hello.ParseServer(b)
//	hello.VersionName(s.Version)   // "TLS 1.3"
//
// The parsers are functions of the first bytes of a direction. A message may come in several
// records (RFC 8446 §5.1).
//
// What it does not protect against: a client says what it likes, and with encrypted client hello
// (RFC 9849) a name that isn't the one it wants. So the name decides nothing: a connection is for
// the name whose address it went to. What follows the messages isn't looked at.
package hello

import (
	"encoding/binary"
	"errors"
	"fmt"

	"palyra/call/egress"
)

// The bounds of what is read: beyond them a connection counts as one without TLS.
const (
	MaxClient = 16 << 10 // bytes, headers of records included; key shares after quantum computers take 2 KiB
	MaxServer = 4 << 10
)

// ErrShort says that the bytes may be the beginning of a message.
var ErrShort = errors.New("hello: message ends early")

// ErrNotTLS says that the bytes are no hello of TLS 1.0 to 1.3.
var ErrNotTLS = errors.New("hello: not TLS")

// Client is what a ClientHello says.
type Client struct {
	ServerName string // canonical; "" if there is none, or it's no name
	Version    uint16 // the highest that it offers
}

// Server is what a ServerHello says.
type Server struct {
	Version uint16 // the one that it chose
}

// VersionName returns the name of a version, as crypto/tls gives it.
func VersionName(v uint16) string {
	if v >= 0x0301 && v <= 0x0304 {
		return fmt.Sprintf("TLS 1.%d", v-0x0301)
	}
	return fmt.Sprintf("0x%04X", v)
}

// ParseClient reads a ClientHello.
func ParseClient(b []byte) (Client, error) {
	m, err := message(b, 1, MaxClient)
	if err != nil {
		return Client{}, err
	}
	r := reader{m, true}
	c := Client{Version: r.version()}
	legacy := c.Version
	r.skip(32)            // random
	r.vector(1)           // session
	suites := r.vector(2) // cipher suites
	r.vector(1)           // compression
	r.extensions(func(kind uint16, body reader) {
		switch kind {
		case 0:
			c.ServerName = body.serverName()
		case 43:
			list := body.vector(1)
			for len(list.b) > 0 && list.ok {
				// Other values are GREASE (RFC 8701), and drafts.
				if v := list.number(2); v >= 0x0301 && v <= 0x0304 {
					c.Version = max(c.Version, uint16(v))
				}
			}
			body.ok = body.ok && list.ok
		}
		r.ok = r.ok && body.ok
	})
	if !r.ok || len(suites.b) == 0 || !known(legacy) {
		return Client{}, ErrNotTLS
	}
	return c, nil
}

// ParseServer reads a ServerHello. A HelloRetryRequest is one, and tells the version, too.
func ParseServer(b []byte) (Server, error) {
	m, err := message(b, 2, MaxServer)
	if err != nil {
		return Server{}, err
	}
	r := reader{m, true}
	s := Server{Version: r.version()}
	r.skip(32)  // random
	r.vector(1) // session
	r.skip(3)   // cipher suite, compression
	r.extensions(func(kind uint16, body reader) {
		if kind == 43 {
			s.Version = uint16(body.number(2))
		}
		r.ok = r.ok && body.ok
	})
	if !r.ok || !known(s.Version) {
		return Server{}, ErrNotTLS
	}
	return s, nil
}

func known(v uint16) bool { return v >= 0x0301 && v <= 0x0304 }

// message returns the body of the first handshake message, which has the type kind. Records have
// a type (22), a version and a length; a message has a type and a length of 3 bytes.
func message(b []byte, kind byte, most int) ([]byte, error) {
	full := len(b) >= most
	b = b[:min(len(b), most)]
	var m []byte
	for {
		if !record(b) {
			return nil, ErrNotTLS
		}
		if len(b) < 5 {
			break
		}
		size := int(binary.BigEndian.Uint16(b[3:]))
		end := min(len(b), 5+size)
		m = append(m, b[5:end]...)
		if len(m) > 0 && m[0] != kind {
			return nil, ErrNotTLS
		}
		if len(m) >= 4 {
			want := int(m[1])<<16 | int(m[2])<<8 | int(m[3])
			switch {
			case want > most:
				return nil, ErrNotTLS
			case len(m) >= 4+want:
				return m[4 : 4+want], nil
			}
		}
		if end < 5+size {
			break
		}
		b = b[end:]
	}
	if full {
		return nil, ErrNotTLS
	}
	return nil, ErrShort
}

// record reports whether b may begin a record of the handshake, which is never empty (RFC 8446
// §5.1) and has 16 KiB at most.
func record(b []byte) bool {
	return (len(b) < 1 || b[0] == 22) && (len(b) < 2 || b[1] == 3) && (len(b) < 3 || b[2] <= 4) &&
		(len(b) < 5 || binary.BigEndian.Uint16(b[3:]) > 0 && binary.BigEndian.Uint16(b[3:]) <= 1<<14)
}

// reader takes fields off the front of b. After the first that isn't there, ok is false and all
// are empty.
type reader struct {
	b  []byte
	ok bool
}

func (r *reader) skip(n int) []byte {
	if !r.ok || n > len(r.b) {
		r.b, r.ok = nil, false
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) number(size int) int {
	n := 0
	for _, c := range r.skip(size) {
		n = n<<8 | int(c)
	}
	return n
}

func (r *reader) version() uint16 { return uint16(r.number(2)) }

// vector takes a field behind its length.
func (r *reader) vector(size int) reader {
	body := r.skip(r.number(size))
	return reader{body, r.ok}
}

// extensions calls each with each extension. They may be absent, but nothing may follow them, and
// none comes twice.
func (r *reader) extensions(each func(uint16, reader)) {
	if len(r.b) == 0 {
		return
	}
	list := r.vector(2)
	if len(r.b) > 0 {
		r.ok = false
	}
	seen := make(map[uint16]bool)
	for len(list.b) > 0 && list.ok {
		kind := uint16(list.number(2))
		body := list.vector(2)
		if seen[kind] {
			r.ok = false
			return
		}
		seen[kind] = true
		each(kind, body)
	}
	r.ok = r.ok && list.ok
}

// serverName reads a list of names, of which one may be a host's (RFC 6066 §3).
func (r *reader) serverName() string {
	list := r.vector(2)
	kind := list.number(1)
	body := list.vector(2)
	if !r.ok || !list.ok || kind != 0 || len(list.b) > 0 || len(r.b) > 0 {
		return ""
	}
	name, err := egress.Name(string(body.b))
	if err != nil {
		return ""
	}
	return name
}

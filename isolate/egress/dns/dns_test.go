package dns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"palyra/call/egress"
)

// wire makes a query of labels, which may hold anything.
func wire(labels []string, typ, class uint16, more ...byte) []byte {
	b := []byte{0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for _, l := range labels {
		b = append(append(b, byte(len(l))), l...)
	}
	b = append(b, 0, byte(typ>>8), byte(typ), byte(class>>8), byte(class))
	if len(more) > 0 {
		b[11] = 1
	}
	return append(b, more...)
}

// edns is an OPT record of a version with data.
func edns(version byte, data ...byte) []byte {
	return append([]byte{0, 0, 41, 4, 208, 0, version, 0x80, 0, 0, byte(len(data))}, data...)
}

var name = []string{"Packages", "example"}

func parse(t *testing.T, packet []byte) *Query {
	t.Helper()
	q, err := Parse(packet)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func unpack(t *testing.T, packet []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(packet); err != nil {
		t.Fatalf("%x: %v", packet, err)
	}
	return m
}

func TestParse(t *testing.T) {
	q := parse(t, wire(name, 28, 1))
	if q.Name != "packages.example" || q.Asked() != "Packages.example." || q.Type != AAAA || q.Bad != nil || q.Type.String() != "AAAA" {
		t.Errorf("Parse = %+v", q)
	}
	if q := parse(t, wire(name, 4711, 1, edns(0, 0, 10, 0, 2, 1, 2)...)); !q.edns || q.Type.String() != "TYPE4711" {
		t.Errorf("with EDNS: %+v", q)
	}
	// ATTACKS 91: names that end early for readers of C strings, or have a dot within a label.
	for _, labels := range [][]string{{"evil.example\x00", "packages", "example"}, {"a b"}, {}, {"1", "2", "3", "4"}, {"xn--\xff"}} {
		if q, err := Parse(wire(labels, 1, 1)); err == nil && (q.Name != "" || q.Bad == nil) {
			t.Errorf("Parse of %q = %q", labels, q.Name)
		}
	}
}

func TestMalformed(t *testing.T) {
	const silent = dnsmessage.RCode(99)
	good := wire(name, 1, 1)
	with := func(at int, b byte) []byte { c := bytes.Clone(good); c[at] = b; return c }
	for _, c := range []struct {
		what   string
		packet []byte
		want   dnsmessage.RCode
	}{
		{"empty", nil, silent},
		{"eleven bytes", good[:11], silent},
		{"too long", append(bytes.Clone(good), make([]byte, MaxQuery)...), silent},
		{"an answer", with(2, 0x81), silent},
		{"NOTIFY", with(2, 4<<3), dnsmessage.RCodeNotImplemented},
		{"truncated", with(2, 3), dnsmessage.RCodeFormatError},
		{"no question", with(5, 0), dnsmessage.RCodeFormatError},
		{"two questions", with(5, 2), dnsmessage.RCodeFormatError},
		{"257 questions", with(4, 1), dnsmessage.RCodeFormatError},
		{"an answer record", with(7, 1), dnsmessage.RCodeFormatError},
		{"two additional records", with(11, 2), dnsmessage.RCodeFormatError},
		{"an additional record that isn't there", with(11, 1), dnsmessage.RCodeFormatError},
		{"a pointer to itself", append(append(bytes.Clone(good[:12]), 0xc0, 12), 0, 1, 0, 1), dnsmessage.RCodeFormatError},
		{"a pointer after a label", append(append(bytes.Clone(good[:12]), 1, 'a', 0xc0, 12), 0, 1, 0, 1), dnsmessage.RCodeFormatError},
		{"a label of 64", append(append(append(bytes.Clone(good[:12]), 64), make([]byte, 64)...), 0, 0, 1, 0, 1), dnsmessage.RCodeFormatError},
		{"no end of the name", good[:len(good)-5], dnsmessage.RCodeFormatError},
		{"no class", good[:len(good)-1], dnsmessage.RCodeFormatError},
		{"bytes after the question", append(bytes.Clone(good), 0), dnsmessage.RCodeFormatError},
		{"a dot within a label", wire([]string{"packages.example"}, 1, 1), dnsmessage.RCodeFormatError},
		{"a name of 256", wire([]string{strings.Repeat("a", 63), strings.Repeat("a", 63), strings.Repeat("a", 63), strings.Repeat("a", 63)}, 1, 1), dnsmessage.RCodeFormatError},
		{"class CH", wire([]string{"version", "bind"}, 16, 3), dnsmessage.RCodeRefused},
		{"TSIG", wire(name, 1, 1, 0, 0, 250, 0, 255, 0, 0, 0, 0, 0, 0), dnsmessage.RCodeFormatError},
		{"EDNS with a name", wire(name, 1, 1, append([]byte{1, 'a'}, edns(0)...)...), dnsmessage.RCodeFormatError},
		{"EDNS with a cut option", wire(name, 1, 1, edns(0, 0, 10, 0, 9, 1)...), dnsmessage.RCodeFormatError},
		{"bytes after EDNS", wire(name, 1, 1, append(edns(0), 0)...), dnsmessage.RCodeFormatError},
	} {
		q, err := Parse(c.packet)
		if err == nil {
			t.Errorf("%s: %+v", c.what, q)
			continue
		}
		answer := Refusal(c.packet, err)
		if c.want == silent {
			if answer != nil {
				t.Errorf("%s is answered with %x", c.what, answer)
			}
			continue
		}
		m := unpack(t, answer)
		if m.RCode != c.want || !m.Response || m.ID != 0xabcd || len(m.Questions) != 0 {
			t.Errorf("%s (%v): answer %v, want code %v", c.what, err, m.Header, c.want)
		}
	}
}

func TestAnswers(t *testing.T) {
	four, six := netip.MustParseAddr("198.18.1.7"), netip.MustParseAddr("fd70:616c:7972::7")
	both := []netip.Addr{four, six, netip.MustParseAddr("::ffff:192.0.2.7")}
	for _, c := range []struct {
		what   string
		packet []byte
		make   func(*Query) []byte
		code   dnsmessage.RCode
		want   []netip.Addr
	}{
		{"A", wire(name, 1, 1), func(q *Query) []byte { return q.Addresses(both, 5*time.Second) }, 0, []netip.Addr{four}},
		{"AAAA", wire(name, 28, 1, edns(0)...), func(q *Query) []byte { return q.Addresses(both, 5*time.Second) }, 0, []netip.Addr{six}},
		{"HTTPS", wire(name, 65, 1), func(q *Query) []byte { return q.Addresses(both, 5*time.Second) }, 0, nil},
		{"ANY", wire(name, 255, 1), func(q *Query) []byte { return q.Addresses(both, 5*time.Second) }, 0, nil},
		{"empty", wire(name, 1, 1), (*Query).Empty, 0, nil},
		{"no name", wire(name, 1, 1), func(q *Query) []byte { return q.NoName("no rule") }, dnsmessage.RCodeNameError, nil},
		{"no name with EDNS", wire(name, 1, 1, edns(0)...), func(q *Query) []byte { return q.NoName(strings.Repeat("long ", 99)) }, dnsmessage.RCodeNameError, nil},
		{"failed", wire(name, 1, 1), func(q *Query) []byte { return q.Failed("") }, dnsmessage.RCodeServerFailure, nil},
		{"EDNS of the future", wire(name, 1, 1, edns(1)...), func(q *Query) []byte { return q.Addresses(both, 5*time.Second) }, 0, nil},
	} {
		q := parse(t, c.packet)
		packet := c.make(q)
		m := unpack(t, packet)
		if m.ID != 0xabcd || !m.Response || !m.RecursionAvailable || !m.RecursionDesired || m.Authoritative || m.AuthenticData || m.RCode != c.code {
			t.Errorf("%s: header %v", c.what, m.Header)
		}
		if len(packet) > 512 || len(m.Questions) != 1 || m.Questions[0].Name.String() != "Packages.example." {
			t.Errorf("%s: %d bytes, questions %v", c.what, len(packet), m.Questions)
		}
		var got []netip.Addr
		for _, r := range m.Answers {
			if r.Header.TTL != 5 {
				t.Errorf("%s: TTL %d", c.what, r.Header.TTL)
			}
			switch b := r.Body.(type) {
			case *dnsmessage.AResource:
				got = append(got, netip.AddrFrom4(b.A))
			case *dnsmessage.AAAAResource:
				got = append(got, netip.AddrFrom16(b.AAAA))
			}
		}
		if len(got) != len(c.want) || len(got) == 1 && got[0] != c.want[0] {
			t.Errorf("%s: addresses %v, want %v", c.what, got, c.want)
		}
		if (len(m.Additionals) == 1) != q.edns {
			t.Errorf("%s: %d additional records", c.what, len(m.Additionals))
		}
	}
	// The answer to EDNS of another version has an extended code, the rest of it in the record's TTL.
	m := unpack(t, parse(t, wire(name, 1, 1, edns(1)...)).Empty())
	if h := m.Additionals[0].Header; h.ExtendedRCode(m.RCode) != 16 {
		t.Errorf("version 1: extended code %d", h.ExtendedRCode(m.RCode))
	}
	m = unpack(t, parse(t, wire(name, 1, 1, edns(0)...)).NoName("no rule for it"))
	if o := m.Additionals[0].Body.(*dnsmessage.OPTResource).Options; len(o) != 1 || o[0].Code != 15 || string(o[0].Data) != "\x00\x12no rule for it" {
		t.Errorf("extended error %v", o)
	}
	// The longest name and the most addresses still fit.
	longest := []string{strings.Repeat("a", 63), strings.Repeat("b", 63), strings.Repeat("c", 63), strings.Repeat("d", 61)}
	many := make([]netip.Addr, 100)
	for i := range many {
		many[i] = six
	}
	q := parse(t, wire(longest, 28, 1, edns(0)...))
	if q.Name == "" {
		t.Fatal(q.Bad)
	}
	if packet := q.Addresses(many, time.Second); len(packet) > 512 || len(unpack(t, packet).Answers) != MaxAddresses {
		t.Errorf("%d bytes for %d addresses", len(packet), len(unpack(t, packet).Answers))
	}
}

func TestStream(t *testing.T) {
	q := wire(name, 1, 1)
	r := bytes.NewReader(append(Stream(q), Stream(q)...))
	for range 2 {
		if got, err := ReadStream(r); err != nil || !bytes.Equal(got, q) {
			t.Errorf("ReadStream = %x, %v", got, err)
		}
	}
	if _, err := ReadStream(r); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	for _, b := range []string{"\x00", "\x00\x0cx", "\x00\x00", "\xff\xff"} {
		if got, err := ReadStream(strings.NewReader(b)); err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("ReadStream(%q) = %x, %v", b, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(wire(name, 1, 1))
	f.Add(wire(name, 28, 1, edns(0, 0, 10, 0, 2, 1, 2)...))
	f.Add(wire([]string{"a\x00b"}, 65, 1))
	f.Add(append(wire(nil, 1, 1)[:12], 0xc0, 12, 0, 1, 0, 1))
	f.Fuzz(func(t *testing.T, packet []byte) {
		q, err := Parse(packet)
		if err != nil {
			if a := Refusal(packet, err); a != nil && (len(a) != header || a[2]&0x80 == 0 || a[0] != packet[0] || a[1] != packet[1]) {
				t.Errorf("Refusal(%x) = %x", packet, a)
			}
			return
		}
		if (q.Name == "") != (q.Bad != nil) {
			t.Errorf("Parse(%x): name %q, %v", packet, q.Name, q.Bad)
		}
		if n, err := egress.Name(q.Name); q.Name != "" && (err != nil || n != q.Name) {
			t.Errorf("Parse(%x): %q isn't canonical", packet, q.Name)
		}
		for _, a := range [][]byte{q.Addresses([]netip.Addr{netip.MustParseAddr("198.18.1.7"), netip.MustParseAddr("fd70:616c:7972::7")}, time.Second), q.Empty(), q.NoName("x"), q.Failed("y")} {
			end := header + bytes.IndexByte(packet[header:], 0)
			if _, err := plain(packet); err != nil || len(a) < len(packet[:end]) || !bytes.Equal(a[:2], packet[:2]) {
				t.Errorf("answer to %x: %x", packet, a)
			}
			var m dnsmessage.Message
			if err := m.Unpack(a); err != nil || len(m.Questions) != 1 || Type(m.Questions[0].Type) != q.Type || m.Questions[0].Name.String() != q.Asked() {
				t.Errorf("answer to %x: %x, %v", packet, a, err)
			}
			if again, err := Parse(a); err == nil {
				t.Errorf("an answer is a query: %+v", again)
			}
			if binary.BigEndian.Uint16(a[4:]) != 1 {
				t.Errorf("answer to %x has %d questions", packet, a[5])
			}
		}
	})
}

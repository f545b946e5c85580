package world

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// maxChain bounds the CNAMEs that one answer follows.
const maxChain = 10

// serveUDP answers questions until the socket is closed.
func (w *World) serveUDP(c net.PacketConn) {
	b := make([]byte, 4096)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		w.noteHeard(addrPort(c.LocalAddr()), b[:n])
		if a := w.answer(b[:n]); a != nil {
			c.WriteTo(a, from)
		}
	}
}

// serveTCP answers the questions of a connection.
func (w *World) serveTCP(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		w.noteHeard(addrPort(c.LocalAddr()), b)
		if a := w.answer(b); a != nil {
			c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
		}
	}
}

// answer returns the answer to a question, nil if there's none.
func (w *World) answer(packet []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(packet); err != nil || m.Response || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true},
		Questions: m.Questions}
	owner := q.Name
	for range maxChain {
		r, known := w.reply(owner, strings.TrimPrefix(q.Type.String(), "Type"))
		if !known {
			out.RCode = dnsmessage.RCodeNameError
			break
		}
		if r.Silent {
			return nil
		}
		if r.Other {
			out.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName("other.example."), Type: q.Type, Class: q.Class}}
		}
		if r.Fails {
			out.RCode = dnsmessage.RCodeServerFailure
		}
		if r.CNAME != "" {
			to := dnsmessage.MustNewName(r.CNAME + ".")
			out.Answers = append(out.Answers, dnsmessage.Resource{Header: head(owner), Body: &dnsmessage.CNAMEResource{CNAME: to}})
			owner = to
		}
		for _, a := range r.Addrs {
			switch {
			case a.Is4() && q.Type == dnsmessage.TypeA:
				out.Answers = append(out.Answers, dnsmessage.Resource{Header: head(owner), Body: &dnsmessage.AResource{A: a.As4()}})
			case a.Is6() && q.Type == dnsmessage.TypeAAAA:
				out.Answers = append(out.Answers, dnsmessage.Resource{Header: head(owner), Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
		if r.CNAME == "" || r.Addrs != nil {
			break
		}
	}
	b, err := out.Pack()
	if err != nil {
		return nil
	}
	return b
}

// head is the head of a record that may not be kept.
func head(owner dnsmessage.Name) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET}
}

// reply notes a question and asks the name.
func (w *World) reply(name dnsmessage.Name, typ string) (Reply, bool) {
	asked := strings.TrimSuffix(name.String(), ".")
	n := strings.ToLower(asked)
	w.mu.Lock()
	f := w.names[n]
	key := [2]string{n, typ}
	times := w.asked[key]
	w.asked[key]++
	w.queries = append(w.queries, Query{asked, typ})
	w.changedLocked()
	w.mu.Unlock()
	if f == nil {
		return Reply{}, false
	}
	return f(typ, times), true
}

// addrPort returns an address as net has it, IPv4 as IPv4.
func addrPort(a net.Addr) netip.AddrPort {
	ap, _ := netip.ParseAddrPort(a.String())
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

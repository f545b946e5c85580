package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// reachProbes are cases 91 to 93 and 121 to 129: ways to a host that the call may not reach, and
// what a call could do to the way of others.
var reachProbes = map[string]probe{
	"arrive":    arrive,
	"ask":       ask,
	"datagram":  datagram,
	"catch":     catch,
	"late":      late,
	"latecomer": latecomer,
	"starve":    starve,
}

// waited bounds each wait for an answer.
const waited = 3 * time.Second

// bytes returns a word that stands in hexadecimal, since an argument can't hold each byte.
func (a args) bytes(name string) []byte {
	b, err := hex.DecodeString(a.str(name))
	if err != nil {
		panic("attack: internal error: " + name + " is not hexadecimal")
	}
	return b
}

// arrive sends token to a host and succeeds if that says so. The host is a name, whatever its
// bytes; the way is its addresses, or one of the proxies.
func arrive(a args) (string, error) {
	token := a.str("token") + "\n"
	for range a.optional("before") { // the last connection counts
		first := args{word: maps.Clone(a.word)}
		first.word["before"], first.word["token"] = "0", "first"
		if _, err := arrive(first); err != nil {
			return "", err
		}
	}
	switch via := a.str("via"); via {
	case "dns":
		addrs, err := lookup(a.bytes("host"), a.word["types"])
		for range a.optional("again") { // the answers of the last look-up count
			addrs, err = lookup(a.bytes("host"), a.word["types"])
		}
		if err != nil {
			return "", err
		}
		return tellAll(addrs, a.num("port"), token)
	case "literal":
		addr, err := netip.ParseAddr(string(a.bytes("host")))
		if err != nil {
			return "", err
		}
		return tellAll([]netip.Addr{addr}, a.num("port"), token)
	case "redirect":
		return redirected(a, token)
	case "raw":
		return through(a, a.bytes("bytes"), nil, token)
	case "connect":
		head := fmt.Appendf(nil, "CONNECT %s:%s HTTP/1.1\r\nHost: proxy\r\n\r\n", a.bytes("host"), a.str("port"))
		return through(a, head, nil, token)
	case "socks", "socks-address":
		host, kind := a.bytes("host"), byte(3)
		command := byte(max(1, a.optional("command")))
		request := append([]byte{5, command, 0, kind, byte(len(host))}, host...)
		if via == "socks-address" {
			addr, err := netip.ParseAddr(string(host))
			if err != nil {
				return "", err
			}
			if kind = 1; addr.Is6() {
				kind = 4
			}
			request = append([]byte{5, 1, 0, kind}, addr.AsSlice()...)
		}
		port := a.num("port")
		return through(a, []byte{5, 1, 0}, append(request, byte(port>>8), byte(port)), token)
	default:
		return "", fmt.Errorf("no way named %q", via)
	}
}

// redirected asks a host for a path and goes where it sends to.
func redirected(a args, token string) (string, error) {
	addrs, err := lookup(a.bytes("host"), "A")
	if err != nil {
		return "", err
	}
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(addrs[0], uint16(a.num("port"))).String(), waited)
	if err != nil {
		return "", timeout(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(waited))
	fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", a.str("path"))
	b, err := io.ReadAll(c)
	if err != nil {
		return "", timeout(err)
	}
	_, to, ok := strings.Cut(string(b), "Location: http://")
	if !ok {
		return "", said("NOREDIRECT")
	}
	to, _, _ = strings.Cut(to, "/")
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return "", err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return "", err
	}
	if addrs, err = lookup([]byte(host), ""); err != nil {
		return "", err
	}
	return tellAll(addrs, number, token)
}

// optional returns a number that may be left out: as 0.
func (a args) optional(name string) int {
	n, _ := strconv.Atoi(a.word[name])
	return n
}

// tellAll tells token to each address, and succeeds if the last did.
func tellAll(addrs []netip.Addr, port int, token string) (detail string, err error) {
	for _, addr := range addrs {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", netip.AddrPortFrom(addr, uint16(port)).String(), waited); err == nil {
			err = tell(c, nil, token)
			c.Close()
		}
		detail += fmt.Sprintf("%s: %v ", addr, err)
	}
	return detail, timeout(err)
}

// timeout makes errors of deadlines ETIMEDOUT.
func timeout(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %v", syscall.ETIMEDOUT, err)
	}
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		return fmt.Errorf("%w: %v", syscall.ETIMEDOUT, err)
	}
	return err
}

// tell sends token and waits for the word that it was heard. before was read already.
func tell(c net.Conn, before []byte, token string) error {
	c.SetDeadline(time.Now().Add(waited))
	if _, err := io.WriteString(c, token); err != nil {
		return err
	}
	all, b := before, make([]byte, 4096)
	for !bytes.Contains(all, []byte("heard")) {
		n, err := c.Read(b)
		all = append(all, b[:n]...)
		if errors.Is(err, io.EOF) {
			return said("CLOSED")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// through asks a proxy with a message, or with one and then another, for a tunnel, and tells token
// in it.
func through(a args, message, then []byte, token string) (string, error) {
	c, err := net.DialTimeout("tcp", a.str("proxy"), waited)
	if err != nil {
		return "", timeout(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(waited))
	if _, err := c.Write(message); err != nil {
		return "", timeout(err)
	}
	rest, err := granted(c)
	if err == nil && then != nil {
		if _, err := c.Write(then); err != nil {
			return "", timeout(err)
		}
		rest, err = granted(c)
	}
	if err != nil {
		return "", timeout(err)
	}
	return "", timeout(tell(c, rest, token))
}

// granted reads a proxy's answer, which grants or says what it is. It returns what came behind it.
func granted(c net.Conn) ([]byte, error) {
	var all []byte
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		all = append(all, b[:n]...)
		switch {
		case len(all) >= 2 && all[0] == 5 && (len(all) == 2 && all[1] == 0): // the answer to a greeting
			return nil, nil
		case len(all) >= 2 && all[0] == 5 && all[1] != 0:
			return nil, said(fmt.Sprintf("SOCKS%d", all[1]))
		case len(all) >= 10 && all[0] == 5:
			return all[10:], nil
		case len(all) >= 8 && all[0] == 0: // SOCKS4
			if all[1] != 90 {
				return nil, said(fmt.Sprintf("SOCKS4-%d", all[1]))
			}
			return all[8:], nil
		case bytes.HasPrefix(all, []byte("heard")): // not of a proxy
			return all, nil
		case bytes.HasPrefix(all, []byte("HTTP/1.")) && bytes.Contains(all, []byte("\r\n\r\n")):
			head, rest, _ := bytes.Cut(all, []byte("\r\n\r\n"))
			if code := string(head[min(9, len(head)):min(12, len(head))]); code != "200" {
				return nil, said("HTTP" + code)
			}
			return rest, nil
		}
		if errors.Is(err, io.EOF) {
			return nil, said("CLOSED")
		}
		if err != nil {
			return nil, err
		}
	}
}

// resolver returns the name server of this place, with its port.
func resolver() (string, error) {
	b, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "nameserver" {
			return net.JoinHostPort(f[1], "53"), nil
		}
	}
	return "", errors.New("no name server")
}

// Types of the DNS.
const (
	typeA    = 1
	typeAAAA = 28
)

// lookup returns the addresses of a name, whatever bytes it has; of the types "A", "AAAA" or both.
func lookup(name []byte, types string) (out []netip.Addr, err error) {
	for t, number := range map[string]int{"A": typeA, "AAAA": typeAAAA} {
		if types != "" && types != t {
			continue
		}
		var got []netip.Addr
		var e error
		if got, e = lookupType(name, number); e != nil && (err == nil || t == "A") {
			err = e
		}
		out = append(out, got...)
	}
	if len(out) > 0 {
		err = nil
	}
	slices.SortStableFunc(out, func(x, y netip.Addr) int { return x.BitLen() - y.BitLen() })
	return out, err
}

func lookupType(name []byte, kind int) ([]netip.Addr, error) {
	to, err := resolver()
	if err != nil {
		return nil, err
	}
	c, err := net.DialTimeout("udp", to, waited)
	if err != nil {
		return nil, timeout(err)
	}
	defer c.Close()
	answer, err := exchange(c, query(name, kind, 1))
	if err != nil {
		return nil, err
	}
	return addresses(answer)
}

func exchange(c net.Conn, packet []byte) ([]byte, error) {
	c.SetDeadline(time.Now().Add(waited))
	if _, err := c.Write(packet); err != nil {
		return nil, timeout(err)
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	return b[:n], timeout(err)
}

// query makes a question. A label's bytes are those between two dots.
func query(name []byte, kind, class int) []byte {
	b := []byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for _, label := range bytes.Split(bytes.TrimSuffix(name, []byte(".")), []byte(".")) {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, byte(kind>>8), byte(kind), byte(class>>8), byte(class))
}

var rcodes = map[byte]said{1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "DNSREFUSED"}

// addresses reads an answer: the addresses in it, or what it says instead.
func addresses(b []byte) (out []netip.Addr, err error) {
	if len(b) < 12 {
		return nil, said("FORMERR")
	}
	if code := b[3] & 15; code != 0 {
		if s, ok := rcodes[code]; ok {
			return nil, s
		}
		return nil, said(fmt.Sprintf("RCODE%d", code))
	}
	at := 12
	skip := func() {
		for at < len(b) {
			switch n := int(b[at]); {
			case n == 0:
				at++
				return
			case n >= 0xc0:
				at += 2
				return
			default:
				at += n + 1
			}
		}
	}
	for range int(b[4])<<8 | int(b[5]) {
		skip()
		at += 4
	}
	for range int(b[6])<<8 | int(b[7]) {
		skip()
		if at+10 > len(b) {
			break
		}
		kind, size := int(b[at])<<8|int(b[at+1]), int(b[at+8])<<8|int(b[at+9])
		if at += 10; at+size > len(b) {
			break
		}
		if a, ok := netip.AddrFromSlice(b[at : at+size]); ok && (kind == typeA || kind == typeAAAA) {
			out = append(out, a)
		}
		at += size
	}
	if len(out) == 0 {
		return nil, said("NODATA")
	}
	return out, nil
}

// ask sends questions, so many, of any type and class, over UDP or all at once over TCP, and with
// more behind each. It succeeds if the last is answered with addresses.
func ask(a args) (string, error) {
	to, over, times := a.word["server"], a.str("over"), max(1, a.optional("times"))
	if to == "" {
		var err error
		if to, err = resolver(); err != nil {
			return "", err
		}
	}
	kind, class := a.num("type"), max(1, a.optional("class"))
	var packets [][]byte
	for i := range times {
		name := a.bytes("name")
		if times > 1 {
			name = append(fmt.Appendf(nil, "%d.", i), name...)
		}
		q := query(name, kind, class)
		if more := a.word["option"]; more != "" { // an OPT record with a local option, RFC 6891
			q[11] = 1
			q = append(q, 0, 0, 41, 4, 0, 0, 0, 0, 0, byte((len(more)+4)>>8), byte(len(more)+4), 0xfd, 0xe9, byte(len(more)>>8), byte(len(more)))
			q = append(q, more...)
		}
		q = append(q, a.word["behind"]...)
		if op := a.optional("operation"); op != 0 {
			q[2] |= byte(op << 3)
		}
		packets = append(packets, q)
	}
	if over == "http" {
		return askHTTP(to, packets[0])
	}
	c, err := net.DialTimeout(over, to, waited)
	if err != nil {
		return "", timeout(err)
	}
	defer c.Close()
	var last []byte
	if over == "udp" {
		for _, p := range packets {
			if last, err = exchange(c, p); err != nil {
				return "", err
			}
		}
		_, err = addresses(last)
		return "", err
	}
	var all []byte
	for _, p := range packets {
		all = append(append(all, byte(len(p)>>8), byte(len(p))), p...)
	}
	c.SetDeadline(time.Now().Add(waited))
	if _, err := c.Write(all); err != nil {
		return "", timeout(err)
	}
	for range packets {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return "", said("CLOSED")
			}
			return "", timeout(err)
		}
		last = make([]byte, int(size[0])<<8|int(size[1]))
		if _, err := io.ReadFull(c, last); err != nil {
			return "", timeout(err)
		}
	}
	_, err = addresses(last)
	return "", err
}

// askHTTP asks over HTTP, RFC 8484, a server that is named or has an address.
func askHTTP(to string, packet []byte) (string, error) {
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return "", err
	}
	if _, err := netip.ParseAddr(host); err != nil {
		addrs, err := lookup([]byte(host), "A")
		if err != nil {
			return "", err
		}
		host = addrs[0].String()
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort(host, port), waited)
	if err != nil {
		return "", timeout(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(waited))
	fmt.Fprintf(c, "POST /dns-query HTTP/1.0\r\nContent-Type: application/dns-message\r\nContent-Length: %d\r\n\r\n%s", len(packet), packet)
	b, err := io.ReadAll(c)
	if err != nil {
		return "", timeout(err)
	}
	_, answer, _ := bytes.Cut(b, []byte("\r\n\r\n"))
	_, err = addresses(answer)
	return "", err
}

// datagram sends token in a packet that isn't TCP's, and succeeds if the kernel takes it and
// nothing says that it was refused.
func datagram(a args) (string, error) {
	addr, err := netip.ParseAddr(string(a.bytes("host")))
	if err != nil {
		addrs, err := lookup(a.bytes("host"), "A")
		if err != nil {
			return "", err
		}
		addr = addrs[0]
	}
	domain, kind, proto := syscall.AF_INET, syscall.SOCK_DGRAM, 0
	payload := []byte(a.str("token"))
	echo := func() []byte { // an echo request, RFC 792
		b := append([]byte{8, 0, 0, 0, 0, 1, 0, 1}, payload...)
		var sum uint32
		for i, c := range b {
			sum += uint32(c) << (8 * uint(1-i%2))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		b[2], b[3] = byte(^sum>>8), byte(^sum)
		return b
	}
	switch how := a.str("how"); how {
	case "udp":
	case "icmp":
		proto, payload = syscall.IPPROTO_ICMP, echo()
	case "raw":
		kind, proto, payload = syscall.SOCK_RAW, syscall.IPPROTO_ICMP, echo()
	case "sctp":
		kind, proto = syscall.SOCK_SEQPACKET, syscall.IPPROTO_SCTP
	default:
		return "", fmt.Errorf("no datagram named %q", how)
	}
	fd, err := syscall.Socket(domain, kind, proto)
	if err != nil {
		return "", failed("socket", err)
	}
	to := &syscall.SockaddrInet4{Port: a.num("port"), Addr: addr.As4()}
	if err := syscall.Connect(fd, to); err != nil {
		return "", failed("connect", err)
	}
	for range 2 { // the refusal of the first comes with the second
		if _, err := syscall.Write(fd, payload); err != nil {
			return "", failed("write", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return addr.String(), nil
}

// catch listens at every address it can, on a port, and says what callers say who are another call.
func catch(a args) (string, error) {
	var l net.Listener
	var err error
	if l, err = net.Listen("tcp", ":"+a.str("port")); err != nil {
		return "", err
	}
	emit(result{Case: "catch", Outcome: "READY"})
	l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Duration(a.num("seconds")) * time.Second))
	for {
		c, err := l.Accept()
		if err != nil {
			return "", timeout(err)
		}
		c.SetDeadline(time.Now().Add(waited))
		b := make([]byte, 256)
		if n, _ := c.Read(b); n > 0 {
			io.WriteString(c, "heard\n")
			return string(b[:n]), nil
		}
		c.Close()
	}
}

// late leaves a process in a session of its own that reaches the host when the call is over: by its
// name, or on a connection of the call's that it inherits.
func late(a args) (string, error) {
	addrs, err := lookup(a.bytes("host"), "")
	if err != nil {
		return "", err
	}
	to := netip.AddrPortFrom(addrs[0], uint16(a.num("port"))).String()
	child := exec.Command("/proc/self/exe", "latecomer", "how="+a.str("how"), "to="+to, "token="+a.str("token"))
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	alive, ours, err := os.Pipe() // its end is that of this process
	if err != nil {
		return "", err
	}
	child.ExtraFiles = []*os.File{alive}
	if a.str("how") == "connection" {
		c, err := net.DialTimeout("tcp", to, waited)
		if err != nil {
			return "", timeout(err)
		}
		f, err := c.(*net.TCPConn).File()
		if err != nil {
			return "", err
		}
		child.ExtraFiles = append(child.ExtraFiles, f)
	}
	err = child.Start()
	keep(ours)
	return "", err
}

// latecomer is that process.
func latecomer(a args) (string, error) {
	io.Copy(io.Discard, os.NewFile(3, "alive"))
	var c net.Conn
	var err error
	if a.str("how") == "connection" {
		if c, err = net.FileConn(os.NewFile(4, "connection")); err != nil {
			return "", err
		}
	}
	for range 50 { // again and again, since the call may take a while to end
		if a.str("how") != "connection" {
			if c, err = net.DialTimeout("tcp", a.str("to"), waited); err != nil {
				return "", err
			}
		}
		if err := tell(c, nil, a.str("token")+"\n"); err != nil {
			return "", err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", nil
}

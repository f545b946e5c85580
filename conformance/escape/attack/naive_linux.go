package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// naiveProbes are the control of what fools a proxy.
var naiveProbes = map[string]probe{"naive": naive, "neighbour": neighbour, "service": service}

// naive is a proxy for HTTP and SOCKS that judges one spelling of a host and connects to another:
// by the word allow to hosts that have it in them, else to all but the host deny and, if they are
// spelled as usual, private addresses. Of several requests at once it judges the first and serves
// the last. It has room for as many connections as the word room says, connects to the last
// address, and with log says what it was asked. Each habit is one that a proxy was found with.
func naive(a args) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	n := &fool{allow: a.word["allow"], deny: a.word["deny"], room: a.optional("room"), log: a.word["log"] != ""}
	emit(result{Case: "naive", Outcome: "READY", Detail: l.Addr().String()})
	for {
		c, err := l.Accept()
		if err != nil {
			return "", err
		}
		n.mu.Lock()
		full := n.room > 0 && n.open >= n.room
		n.open++
		n.mu.Unlock()
		go func() {
			defer func() {
				c.Close()
				n.mu.Lock()
				n.open--
				n.mu.Unlock()
			}()
			if !full {
				n.serve(c)
			}
		}()
	}
}

// service is one of the host's on the loopback interface. It says what it hears.
func service(args) (string, error) {
	l, err := net.Listen("tcp4", ":0") // at 127.9.9.9 as well
	if err != nil {
		return "", err
	}
	emit(result{Case: "service", Outcome: "READY", Detail: strconv.Itoa(l.Addr().(*net.TCPAddr).Port)})
	for {
		c, err := l.Accept()
		if err != nil {
			return "", err
		}
		b := make([]byte, 256)
		n, _ := c.Read(b)
		emit(result{Case: "service", Outcome: "HEARD", Detail: string(b[:n])})
		io.WriteString(c, "heard\n")
		c.Close()
	}
}

// fool is a naive proxy.
type fool struct {
	allow, deny string
	room        int
	log         bool

	mu   sync.Mutex
	open int // guarded by mu
}

func (n *fool) serve(c net.Conn) {
	b := make([]byte, 16<<10)
	got, err := c.Read(b)
	if err != nil {
		return
	}
	if b[0] == 5 || b[0] == 4 {
		n.serveSOCKS(c, b, got)
		return
	}
	// What is on its way as well comes with it.
	for !bytes.Contains(b[:got], []byte("\n\n")) && !bytes.Contains(b[:got], []byte("\r\n\r\n")) {
		m, err := c.Read(b[got:])
		if err != nil {
			return
		}
		got += m
	}
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	m, _ := c.Read(b[got:])
	c.SetReadDeadline(time.Time{})
	text := string(b[:got+m])
	if n.log {
		emit(result{Case: "naive", Outcome: "ASKED", Detail: text})
	}
	first, _, _ := askedOf(text)
	last, tunnel, request := lastAsked(text)
	if !n.allows(first) {
		io.WriteString(c, "HTTP/1.1 403 Forbidden\r\n\r\n")
		return
	}
	to, err := connectTo(last)
	if err != nil {
		io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer to.Close()
	if tunnel {
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	} else {
		io.WriteString(to, request)
	}
	joined(c, to)
}

// askedOf returns the first host and port that a request of HTTP asks for.
func askedOf(text string) (hostPort string, tunnel bool, request string) {
	if rest, ok := strings.CutPrefix(text, "CONNECT "); ok {
		hostPort, _, _ = strings.Cut(rest, " HTTP/1.")
		return hostPort, true, text
	}
	line, _, _ := strings.Cut(text, "\n")
	if _, url, ok := strings.Cut(line, "http://"); ok {
		hostPort, _, _ = strings.Cut(url, "/")
		hostPort, _, _ = strings.Cut(hostPort, " ")
		return hostPort, false, text
	}
	if _, host, ok := strings.Cut(text, "\nHost: "); ok {
		host, _, _ = strings.Cut(host, "\n")
		return strings.TrimSpace(host), false, text
	}
	return "", false, text
}

// lastAsked returns the last one.
func lastAsked(text string) (hostPort string, tunnel bool, request string) {
	at := strings.LastIndex(text, "CONNECT ")
	for _, method := range []string{"GET http://", "POST http://", "GET /"} {
		at = max(at, strings.LastIndex(text, method))
	}
	if at < 0 {
		return askedOf(text)
	}
	return askedOf(text[at:])
}

func (n *fool) serveSOCKS(c net.Conn, b []byte, got int) {
	if b[0] == 4 {
		hostPort := netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])).String()
		if name, ok := bytes.CutPrefix(b[4:8], []byte{0, 0, 0}); ok && name[0] != 0 { // SOCKS4a
			_, rest, _ := bytes.Cut(b[8:got], []byte{0})
			hostPort = string(bytes.TrimRight(rest, "\x00")) + ":" + strconv.Itoa(int(b[2])<<8|int(b[3]))
		}
		n.finish(c, hostPort, []byte{0, 90, 0, 0, 0, 0, 0, 0}, []byte{0, 91, 0, 0, 0, 0, 0, 0})
		return
	}
	c.Write([]byte{5, 0})
	m, err := c.Read(b)
	if err != nil || m < 10 {
		return
	}
	var host string
	switch b[3] {
	case 1:
		host = netip.AddrFrom4([4]byte(b[4:8])).String()
	case 4:
		host = netip.AddrFrom16([16]byte(b[4:20])).String()
	default:
		host = string(b[5 : 5+int(b[4])])
	}
	port := int(b[m-2])<<8 | int(b[m-1])
	n.finish(c, host+":"+strconv.Itoa(port), []byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0}, []byte{5, 2, 0, 1, 0, 0, 0, 0, 0, 0})
}

func (n *fool) finish(c net.Conn, hostPort string, yes, no []byte) {
	if !n.allows(hostPort) {
		c.Write(no)
		return
	}
	to, err := connectTo(hostPort)
	if err != nil {
		c.Write(no)
		return
	}
	defer to.Close()
	c.Write(yes)
	joined(c, to)
}

// allows judges a host as it is spelled.
func (n *fool) allows(hostPort string) bool {
	if n.allow != "" {
		// A label that decodes to ASCII is taken for that.
		return strings.Contains(strings.ReplaceAll(hostPort, "xn--cdn-.", "cdn."), n.allow)
	}
	at := max(strings.LastIndexByte(hostPort, ':'), 0)
	host := hostPort[:at]
	addr, err := netip.ParseAddr(host)
	return host != n.deny && (err != nil || !addr.Is4() || !addr.IsPrivate() && !addr.IsLinkLocalUnicast())
}

// connectTo connects to a host as C, URLs and browsers understand it.
func connectTo(hostPort string) (net.Conn, error) {
	at := strings.LastIndexByte(hostPort, ':')
	if at < 0 {
		return nil, errors.New("no port")
	}
	host := hostPort[:at]
	number, err := strconv.Atoi(hostPort[at+1:])
	if err != nil {
		return nil, err
	}
	port := uint16(number)
	host = strings.NewReplacer("／", "/", "。", ".", "＃", "#", "＠", "@").Replace(host)
	for i := 0; i+2 < len(host); i++ {
		if host[i] != '%' {
			continue
		}
		if v, err := strconv.ParseUint(host[i+1:i+3], 16, 8); err == nil {
			host = host[:i] + string([]byte{byte(v)}) + host[i+3:]
		}
	}
	if end := strings.IndexAny(host, "\x00\r\n\t #/?\\"); end >= 0 {
		host = host[:end]
	}
	host = host[strings.LastIndexByte(host, '@')+1:]
	if before, after, ok := strings.Cut(host, ":"); ok && netip.IPv6Unspecified() != parsed(after) && !strings.Contains(after, ":") { // HOST:PORT:PORT
		if p, err := strconv.Atoi(after); err == nil {
			host, port = before, uint16(p)
		}
	}
	host = strings.Trim(host, "[]")
	host, _, _ = strings.Cut(host, "%")
	host = strings.ToLower(strings.TrimRight(host, "."))
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(host); err == nil {
		addrs = []netip.Addr{a.Unmap()}
	} else if a, ok := aton(host); ok {
		addrs = []netip.Addr{a}
	} else if addrs, err = lookup([]byte(host), ""); err != nil {
		return nil, err
	}
	return net.DialTimeout("tcp", netip.AddrPortFrom(addrs[len(addrs)-1], port).String(), waited)
}

func parsed(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}

// aton reads an address as inet_aton(3) does.
func aton(s string) (netip.Addr, bool) {
	parts := strings.Split(s, ".")
	if s == "" || len(parts) > 4 {
		return netip.Addr{}, false
	}
	var v uint32
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 0, 64) // 0x and 0 in front as in C
		if err != nil {
			return netip.Addr{}, false
		}
		if i < len(parts)-1 {
			v |= uint32(n) << (24 - 8*i)
		} else {
			v |= uint32(n)
		}
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}

// joined passes bytes both ways until one ends.
func joined(x, y net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() {
		io.Copy(x, y)
		x.Close()
	})
	io.Copy(y, x)
	y.Close()
	wg.Wait()
}

// neighbour is another call that goes about its work: it reaches its host at once, and again
// whenever a flood is on. The first is READY, each further one HEARD or STARVED.
func neighbour(a args) (string, error) {
	once := func() error {
		addrs, err := []netip.Addr(nil), error(nil)
		if a.word["proxy"] == "" {
			if addrs, err = lookup(a.bytes("host"), ""); err != nil {
				return err
			}
			_, err = tellAll(addrs[:1], a.num("port"), "neighbour\n")
			return err
		}
		head := fmt.Appendf(nil, "CONNECT %s:%s HTTP/1.1\r\nHost: proxy\r\n\r\n", a.bytes("host"), a.str("port"))
		_, err = through(a, head, nil, "neighbour\n")
		return err
	}
	if err := once(); err != nil {
		return "", err
	}
	emit(result{Case: "neighbour", Outcome: "READY", Detail: "0 0"})
	for range 40 {
		time.Sleep(100 * time.Millisecond)
		if err := once(); err != nil {
			emit(result{Case: "neighbour", Outcome: "STARVED", Detail: err.Error()})
			continue
		}
		emit(result{Case: "neighbour", Outcome: "HEARD"})
	}
	return "", nil
}

// starve takes what a broker has, so that none is left for others, and holds it.
func starve(a args) (string, error) {
	n := a.num("n")
	var held []net.Conn
	defer func() { keep(held) }()
	var last error
	hold := func(to string, words ...string) {
		c, err := net.DialTimeout("tcp", to, waited)
		if err != nil {
			last = err
			return
		}
		for _, w := range words {
			if _, err := io.WriteString(c, w); err != nil {
				last = err
			}
		}
		held = append(held, c)
	}
	switch how := a.str("how"); how {
	case "slowloris": // a head that doesn't end
		for range n {
			hold(a.str("proxy"), "CONNECT ", "a")
		}
		for range 10 { // byte by byte
			time.Sleep(100 * time.Millisecond)
			for _, c := range held {
				io.WriteString(c, "a")
			}
		}
	case "silent": // connections that say nothing
		for range n {
			hold(a.str("proxy"))
		}
	case "tunnels":
		for range n {
			hold(a.str("proxy"), fmt.Sprintf("CONNECT %s:%s HTTP/1.1\r\n\r\n", a.bytes("host"), a.str("port")))
		}
	case "dead": // to where packets are swallowed: half-open connections of the broker
		for range n {
			hold(a.str("proxy"), fmt.Sprintf("CONNECT %s:%s HTTP/1.1\r\n\r\n", a.bytes("dead"), a.str("port")))
		}
	case "names":
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { lookup(append(fmt.Appendf(nil, "n%d.", i), a.bytes("below")...), "A") })
		}
		wg.Wait()
	default:
		return "", fmt.Errorf("no flood named %q", how)
	}
	time.Sleep(2 * time.Second) // while the neighbour works
	if len(held) == 0 && last != nil {
		return "", last
	}
	return fmt.Sprintf("%d held, %v", len(held), last), nil
}

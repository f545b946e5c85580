package isolatetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"palyra/authz/grant"
	"palyra/call/egress"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/egress/handover"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// Where a Broker answers for names that end in ".example".
const (
	BrokerName4 = "198.18.1.1"
	BrokerName6 = handover.Names6 + "c612:101"
)

// Broker is a palyra-egress that connects nowhere: it takes the sockets of one call and answers in
// the cell itself. Its name server knows ".example" alone.
type Broker struct {
	// Cell is Files.Egress of the call.
	Cell *os.File

	handle  func(net.Conn) // closes it
	egress  *os.File
	stop    context.CancelFunc
	wg      sync.WaitGroup // the goroutines below
	mu      sync.Mutex
	open    []func() error // closes what it holds; guarded by mu
	closed  bool           // what it's given from now on is closed at once; guarded by mu
	err     error          // what went wrong, for Close; guarded by mu
	entries int            // sockets that it was given; guarded by mu
}

// StartBroker starts one that listens at addresses with ports, "198.18.1.1:443". Each connection
// gets an HTTP response of which the body is the address that was called.
func StartBroker(t testing.TB, listen ...string) *Broker {
	t.Helper()
	return StartBrokerOf(t, whereCalled, listen...)
}

// StartBrokerOf starts one that hands each connection to a function, which closes it.
func StartBrokerOf(t testing.TB, handle func(net.Conn), listen ...string) *Broker {
	t.Helper()
	cell, egress, err := handover.Pair()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	b := &Broker{Cell: cell, handle: handle, egress: egress, stop: stop}
	b.wg.Go(func() {
		if err := b.serve(ctx, listen); err != nil {
			b.mu.Lock()
			b.err = err
			b.mu.Unlock()
		}
	})
	return b
}

// Close ends it, Cell included, and returns what went wrong.
func (b *Broker) Close() error {
	b.stop()
	b.Cell.Close()
	b.egress.Close()
	b.mu.Lock()
	for _, f := range b.open {
		f()
	}
	b.open, b.closed = nil, true
	b.mu.Unlock()
	b.wg.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Sockets is how many it was given.
func (b *Broker) Sockets() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entries
}

func (b *Broker) serve(ctx context.Context, listen []string) error {
	s, err := handover.Receive(ctx, b.egress)
	if err != nil {
		return err
	}
	defer s.Close() // those that follow are copies
	b.mu.Lock()
	b.entries = 1 + len(s.TCP4) + len(s.TCP6)
	b.mu.Unlock()
	four, six := s.TCP4, s.TCP6
	for _, text := range listen {
		at := netip.MustParseAddrPort(text)
		of := &four
		if at.Addr().Is6() {
			of = &six
		}
		if len(*of) == 0 {
			if at.Addr().Is6() {
				continue // the host has no IPv6
			}
			return fmt.Errorf("no socket for %s", text)
		}
		f := (*of)[0]
		*of = (*of)[1:]
		if err := bind(f, at); err != nil {
			return fmt.Errorf("bind %s: %w", text, err)
		}
		if err := syscall.Listen(int(f.Fd()), 16); err != nil {
			return fmt.Errorf("listen at %s: %w", text, err)
		}
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		b.keep(l.Close)
		b.wg.Go(func() { b.accept(l) })
	}
	if err := bind(s.UDP, netip.AddrPortFrom(netip.MustParseAddr(handover.Resolver), handover.ResolverPort)); err != nil {
		return fmt.Errorf("bind the name server: %w", err)
	}
	c, err := net.FilePacketConn(s.UDP)
	if err != nil {
		return err
	}
	b.keep(c.Close)
	b.wg.Go(func() { resolve(c) })
	return handover.Ready(b.egress)
}

func (b *Broker) keep(close func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close()
		return
	}
	b.open = append(b.open, close)
}

func bind(f *os.File, at netip.AddrPort) error {
	if at.Addr().Is4() {
		return syscall.Bind(int(f.Fd()), &syscall.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
	}
	return syscall.Bind(int(f.Fd()), &syscall.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())})
}

func (b *Broker) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		b.keep(c.Close)
		b.wg.Go(func() { b.handle(c) })
	}
}

func whereCalled(c net.Conn) {
	defer c.Close()
	if _, err := c.Read(make([]byte, 4<<10)); err != nil {
		return
	}
	body := c.LocalAddr().String() + "\n"
	fmt.Fprintf(c, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// resolve answers questions for the addresses of names, RFC 1035.
func resolve(c net.PacketConn) {
	b := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		if a := answer(b[:n]); a != nil {
			c.WriteTo(a, from)
		}
	}
}

func answer(q []byte) []byte {
	const head = 12
	if len(q) < head {
		return nil
	}
	end, name := head, ""
	for end < len(q) && q[end] != 0 {
		size := int(q[end])
		if end+1+size > len(q) {
			return nil
		}
		name += string(q[end+1:end+1+size]) + "."
		end += 1 + size
	}
	if end += 1 + 4; end > len(q) { // its end, type and class
		return nil
	}
	kind := binary.BigEndian.Uint16(q[end-4:])
	a := append(slices.Clone(q[:2]), 0x85, 0x80, 0, 1, 0, 0, 0, 0, 0, 0) // an answer from who knows, one question
	a = append(a, q[head:end]...)
	if !strings.HasSuffix(strings.ToLower(name), ".example.") {
		a[3] |= 3 // NXDOMAIN
		return a
	}
	var address []byte
	switch kind {
	case 1:
		address = netip.MustParseAddr(BrokerName4).AsSlice()
	case 28:
		address = netip.MustParseAddr(BrokerName6).AsSlice()
	default:
		return a
	}
	a[7] = 1
	a = append(a, 0xc0, head) // the name of the question
	a = binary.BigEndian.AppendUint16(a, kind)
	a = append(a, 0, 1, 0, 0, 0, 5) // class, seconds
	a = binary.BigEndian.AppendUint16(a, uint16(len(address)))
	return append(a, address...)
}

// egressAddresses are what the calls of the contract may name.
var egressAddresses = []string{"192.0.2.7", "2001:db8::7"}

// egressOf is Spec.Egress for a network.
func egressOf(network string) *isolate.Egress {
	if network != isolate.NetworkEgress {
		return nil
	}
	return &isolate.Egress{Addresses: egressAddresses, Sockets: 4}
}

// start has the runner run the call, with a broker if it needs one and has none.
func (c *call) start(ctx context.Context, g grant.Grant) (*isolate.Result, error) {
	f := *c.files
	if c.spec.Egress != nil && f.Egress == nil {
		b := StartBroker(c.t, BrokerName4+":443", "["+BrokerName6+"]:443", "192.0.2.7:5432", "[2001:db8::7]:443")
		defer b.Close() // with an error where the call is refused
		f.Egress = b.Cell
	}
	return c.h.runner.Run(ctx, g, c.spec, &f)
}

// testEgress looks at the network egress from inside: the broker answers at the ordered addresses,
// no other address leads anywhere, and without the broker's consent nothing runs.
func testEgress(t *testing.T, h *harness) {
	if h.sub.Tier != tier.C {
		c := h.shell(t, "echo ran")
		c.spec.Network, c.spec.Egress = isolate.NetworkEgress, &isolate.Egress{Sockets: 1}
		if o := c.run(); fault.KindOf(o.err) != fault.Usage || o.stdout != "" {
			t.Errorf("the network egress at tier %v: %s, %v; want a refusal", h.sub.Tier, o, o.err)
		}
		return
	}
	start := func(script string) *call {
		c := h.program(t, "/bin/bash", "bash", "-c", script)
		c.spec.Network, c.spec.Session, c.spec.Egress = isolate.NetworkEgress, "", egressOf(isolate.NetworkEgress)
		return c
	}
	o := start(`ask() { (exec 3<>/dev/tcp/$1/$2 && echo >&3 && tail -n 1 <&3) 2>&1 | sed 's/^bash: //;s/.*: //' | tail -n 1; }
		ask 198.18.1.1 443; ask 192.0.2.7 5432; ask 198.18.1.1 80; ask 198.19.255.254 443; ask 192.0.2.8 5432; ask 127.0.0.1 443; ask a.example 443; ask example.org 443`).run()
	o.exited(t, 0)
	want := []string{"198.18.1.1:443", "192.0.2.7:5432", "Connection refused", "Connection refused", "Network is unreachable", "Connection refused"}
	got := strings.Split(strings.TrimSpace(o.stdout), "\n")
	if len(got) != 8 || !slices.Equal(got[:6], want) || got[6] != "198.18.1.1:443" && got[6] != "["+BrokerName6+"]:443" || got[7] == got[6] {
		t.Errorf("connections end in %q, want %q, one by name, and no such name", got, want)
	}
	n := o.res.Evidence.Network
	all := append([]string{"127.0.0.1", egress.Inside4.String()}, egressAddresses[0])
	if six := slices.Contains(n.Addresses, "::1"); six {
		all = append(all, "::1", egress.Inside6.String(), egressAddresses[1])
	}
	slices.Sort(all)
	if n.Mode != evidence.NetworkEgress || !slices.Equal(n.Interfaces, []string{"lo"}) || !slices.Equal(n.Addresses, all) || n.Routes == nil || *n.Routes != 0 {
		t.Errorf("evidence %+v, want the addresses %q", n, all)
	}
	testEgressRefused(t, start)
}

// testEgressRefused: the program starts only if the broker says so.
func testEgressRefused(t *testing.T, start func(script string) *call) {
	for name, c := range map[string]struct {
		broker func(egress *os.File) // gets the connection, after the sockets are in it
		reason string
	}{
		"it refuses":           {func(f *os.File) { handover.Refuse(f, "resource_exhausted") }, "egress_lost"},
		"it is gone":           {func(f *os.File) { f.Close() }, "egress_lost"},
		"it answers rubbish":   {func(f *os.File) { f.Write([]byte("yes")) }, "egress_lost"},
		"it answers too much":  {func(f *os.File) { f.Write(make([]byte, 1<<10)) }, "egress_lost"},
		"it answers with more": {func(f *os.File) { sendFiles(f, "ready") }, "egress_lost"},
	} {
		cell, egress, err := handover.Pair()
		if err != nil {
			t.Fatal(err)
		}
		x := start("echo ran")
		x.files.Egress = cell
		var wg sync.WaitGroup
		wg.Go(func() {
			s, err := handover.Receive(t.Context(), egress)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			s.Close()
			c.broker(egress)
		})
		o := x.run()
		wg.Wait()
		if fault.ReasonOf(o.err) != c.reason || fault.KindOf(o.err) != fault.Refused || o.stdout != "" {
			t.Errorf("%s: %s, %v, printed %q; want a refusal for %s", name, o, o.err, o.stdout, c.reason)
		}
		cell.Close()
		egress.Close()
	}
	// Gone before it was asked, or not there at all.
	cell, egress, err := handover.Pair()
	if err != nil {
		t.Fatal(err)
	}
	egress.Close()
	defer cell.Close()
	x := start("echo ran")
	x.files.Egress = cell
	if o := x.run(); fault.ReasonOf(o.err) != "egress_lost" || o.stdout != "" {
		t.Errorf("its end is closed: %s, %v; want egress_lost", o, o.err)
	}
	for name, mend := range map[string]func(*call){
		"a network without": func(c *call) { c.spec.Network = isolate.NetworkLoopback },
		"no sockets":        func(c *call) { c.spec.Egress = &isolate.Egress{} },
		"an address twice":  func(c *call) { c.spec.Egress.Addresses = []string{"192.0.2.7", "192.0.2.7"} },
		"the program's own": func(c *call) { c.spec.Egress = &isolate.Egress{Addresses: []string{"127.0.0.1"}, Sockets: 1} },
	} {
		x := start("echo ran")
		mend(x)
		if o := x.run(); fault.ReasonOf(o.err) != "invalid_input" || o.stdout != "" {
			t.Errorf("%s: %s, %v; want invalid_input", name, o, o.err)
		}
	}
}

// sendFiles sends a message with a descriptor.
func sendFiles(f *os.File, text string) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = syscall.Sendmsg(int(fd), []byte(text), syscall.UnixRights(int(fd)), nil, 0) })
	return errors.Join(cerr, err)
}

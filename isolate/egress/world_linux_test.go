package egress

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rule "palyra/call/egress"
	"palyra/isolate/egress/client"
	"palyra/isolate/egress/dns"
	"palyra/isolate/egress/handover"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
)

// The tests run in a network namespace of their own, which is the host. In it some addresses of the
// Internet lead to the loopback interface, so that servers can listen there. Cells are namespaces of
// threads of this process.
const worldEnv = "PALYRA_TEST_EGRESS_WORLD"

func TestMain(m *testing.M) {
	if os.Getenv(worldEnv) == "" {
		os.Exit(inWorld())
	}
	if err := errors.Join(sys.LoopbackUp(), localRoute("5.5.0.0/16"), localRoute("2a05:5555::/64"), localRoute("10.9.0.0/16")); err != nil {
		fmt.Fprintln(os.Stderr, "make the world:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// inWorld runs this test again in new namespaces.
func inWorld() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), worldEnv+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOSPC):
		fmt.Println("needs user namespaces:", err)
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// localRoute makes all addresses of a prefix the loopback interface's, in the calling thread's
// network namespace: ip route add local PREFIX dev lo.
func localRoute(prefix string) error {
	p := netip.MustParsePrefix(prefix)
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	family := byte(syscall.AF_INET)
	if p.Addr().Is6() {
		family = syscall.AF_INET6
	}
	le := binary.NativeEndian
	attr := func(b []byte, kind uint16, value []byte) []byte {
		b = le.AppendUint16(le.AppendUint16(b, uint16(4+len(value))), kind)
		return append(b, value...)
	}
	body := []byte{family, byte(p.Bits()), 0, 0, syscall.RT_TABLE_LOCAL, syscall.RTPROT_BOOT, syscall.RT_SCOPE_HOST, syscall.RTN_LOCAL, 0, 0, 0, 0}
	body = attr(body, syscall.RTA_DST, p.Addr().AsSlice())
	body = attr(body, syscall.RTA_OIF, le.AppendUint32(nil, 1)) // lo is the first interface of each namespace
	msg := le.AppendUint32(nil, uint32(16+len(body)))
	msg = le.AppendUint16(msg, syscall.RTM_NEWROUTE)
	msg = le.AppendUint16(msg, syscall.NLM_F_REQUEST|syscall.NLM_F_ACK|syscall.NLM_F_CREATE)
	msg = append(msg, make([]byte, 8)...)
	if err := syscall.Sendto(fd, append(msg, body...), 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := syscall.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < 20 {
		return errors.New("netlink: a short answer")
	}
	if e := int32(le.Uint32(answer[16:])); e != 0 {
		return fmt.Errorf("add route %s: %w", prefix, syscall.Errno(-e))
	}
	return nil
}

// cell is a network namespace, and the thread that is in it.
type cell struct {
	t    testing.TB
	work chan func()
	ns   *os.File
}

func newCell(t testing.TB) *cell {
	t.Helper()
	c := &cell{t: t, work: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := errors.Join(sys.UnshareNetwork(), sys.LoopbackUp(), localRoute(rule.Inside4.String()), localRoute(rule.Inside6.String()), anyPort())
		if err == nil {
			c.ns, _, err = sys.Network()
		}
		made <- err
		for f := range c.work {
			f()
		}
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(c.work); c.ns.Close() })
	return c
}

// anyPort lets every user bind each port of the calling thread's network namespace.
func anyPort() error {
	return os.WriteFile("/proc/thread-self/root/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
}

// in runs f on the cell's thread: sockets that it makes are the cell's.
func (c *cell) in(f func()) {
	done := make(chan struct{})
	c.work <- func() { defer close(done); f() }
	<-done
}

func (c *cell) sockets(n int) *handover.Sockets {
	c.t.Helper()
	s := new(handover.Sockets)
	c.in(func() {
		socket := func(family, kind int) *os.File {
			fd, err := syscall.Socket(family, kind|syscall.SOCK_CLOEXEC, 0)
			if err == nil && family == syscall.AF_INET6 {
				err = syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, ipv6FreeBind, 1)
			}
			if err != nil {
				c.t.Error(err)
				return nil
			}
			return os.NewFile(uintptr(fd), "socket")
		}
		s.UDP = socket(syscall.AF_INET, syscall.SOCK_DGRAM)
		for range n {
			s.TCP4 = append(s.TCP4, socket(syscall.AF_INET, syscall.SOCK_STREAM))
			s.TCP6 = append(s.TCP6, socket(syscall.AF_INET6, syscall.SOCK_STREAM))
		}
	})
	if c.t.Failed() {
		c.t.FailNow()
	}
	return s
}

const ipv6FreeBind = 78 // IPV6_FREEBIND

// dial connects from the cell.
func (c *cell) dial(address string) (conn *net.TCPConn, err error) {
	c.in(func() {
		var x net.Conn
		if x, err = net.DialTimeout("tcp", address, 10*time.Second); err == nil {
			conn = x.(*net.TCPConn)
		}
	})
	return conn, err
}

func (c *cell) mustDial(address string) *net.TCPConn {
	c.t.Helper()
	conn, err := c.dial(address)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

// reset connects, and wants a reset at once or after it.
func (c *cell) reset(address string) error {
	conn, err := c.dial(address)
	if err == nil {
		_, err = io.ReadAll(conn)
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("%v, want a reset", err)
	}
	return nil
}

// query is a DNS query as programs send it.
func query(name string, kind dns.Type) []byte {
	b := []byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, byte(kind>>8), byte(kind), 0, 1)
}

// answered reads what an answer says: its code and addresses.
func answered(t testing.TB, b []byte) (code int, addrs []netip.Addr) {
	t.Helper()
	if len(b) < 12 || b[2]&0x80 == 0 {
		t.Fatalf("no answer: %x", b)
	}
	at := 12
	for b[at] != 0 {
		at += 1 + int(b[at])
	}
	at += 5
	for range binary.BigEndian.Uint16(b[6:]) {
		n := int(binary.BigEndian.Uint16(b[at+10:])) // the name is a pointer
		a, _ := netip.AddrFromSlice(b[at+12 : at+12+n])
		addrs = append(addrs, a)
		at += 12 + n
	}
	return int(b[3] & 15), addrs
}

// ask asks the resolver in the cell.
func (c *cell) ask(name string, kind dns.Type) (code int, addrs []netip.Addr) {
	c.t.Helper()
	var conn net.Conn
	var err error
	c.in(func() {
		conn, err = net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(handover.Resolver), 53).String())
	})
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Write(query(name, kind)); err != nil {
		c.t.Fatal(err)
	}
	b := make([]byte, 1500)
	n, err := conn.Read(b)
	if err != nil {
		c.t.Fatalf("ask for %s: %v", name, err)
	}
	return answered(c.t, b[:n])
}

// address asks for the one address of a name.
func (c *cell) address(name string, kind dns.Type) string {
	c.t.Helper()
	code, addrs := c.ask(name, kind)
	if code != 0 || len(addrs) != 1 {
		c.t.Fatalf("%s: code %d, %v", name, code, addrs)
	}
	return addrs[0].String()
}

// nameServer is the world's: it has addresses by name, and counts the queries.
type nameServer struct {
	mu    sync.Mutex
	zone  map[string][]string
	asked map[string]int
	hold  chan struct{} // not nil: answers wait for its end
	soon  string        // a name whose answers don't
	held  chan struct{} // gets one for each answer that does
	at    netip.AddrPort
}

func newNameServer(t testing.TB, zone map[string][]string) *nameServer {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{zone: zone, asked: make(map[string]int), held: make(chan struct{}, 64), at: netip.MustParseAddrPort(c.LocalAddr().String())}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			q, err := dns.Parse(b[:n])
			if err != nil {
				continue
			}
			s.mu.Lock()
			s.asked[q.Name]++
			list, ok := s.zone[q.Name]
			hold := s.hold
			s.mu.Unlock()
			var addrs []netip.Addr
			for _, a := range list {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			answer := q.Addresses(addrs, 0)
			if !ok {
				answer = q.NoName("")
			}
			if slices.Contains(list, "0.0.0.1") {
				answer = q.Failed("")
			}
			if hold != nil && q.Name != s.soon {
				s.held <- struct{}{}
				wg.Go(func() { <-hold; c.WriteTo(answer, from) })
				continue
			}
			c.WriteTo(answer, from)
		}
	})
	t.Cleanup(func() { c.Close(); wg.Wait() })
	return s
}

func (s *nameServer) set(name string, addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone[name] = addrs
}

func (s *nameServer) times(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[name]
}

// broker is a server in this process, with a client.
type broker struct {
	t       testing.TB
	control *net.UnixConn
	client  client.Broker
	owner   string // of the calls that begin
	ended   chan error
}

func newBroker(t testing.TB, c Config) *broker {
	t.Helper()
	if c.Log == nil {
		c.Log = func(s string) { t.Log(s) }
	}
	dir, err := os.MkdirTemp("", "egress")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at := &net.UnixAddr{Name: dir + "/s", Net: "unixpacket"}
	l, err := net.ListenUnix("unixpacket", at)
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{t: t, ended: make(chan error, 1)}
	listener := client.Listen(l)
	b.client = listener
	if b.control, err = net.DialUnix("unixpacket", nil, at); err != nil {
		t.Fatal(err)
	}
	go func() { b.ended <- Serve(context.Background(), b.control, c) }()
	t.Cleanup(func() {
		listener.Close()
		if err := <-b.ended; err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	return b
}

// call is a session with its cell.
type call struct {
	*cell
	session *client.Session
}

// begin opens a session and hands sockets of a new cell over.
func (b *broker) begin(sockets int, limits wire.Limits, rules ...string) *call {
	b.t.Helper()
	slices.Sort(rules)
	s, err := b.client.Open(context.Background(), &Order{Rules: rules, Limits: limits, Owner: b.owner})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { s.Close() })
	c := newCell(b.t)
	parsed, err := rule.ParseRules(rules)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, a := range parsed.Addresses() {
		c.in(func() { err = localRoute(netip.PrefixFrom(a, a.BitLen()).String()) })
		if err != nil {
			b.t.Fatal(err)
		}
	}
	if err := handOver(s.Cell(), c.sockets(sockets)); err != nil {
		b.t.Fatal(err)
	}
	return &call{c, s}
}

// handOver does what palyra-cell does.
func handOver(to *os.File, s *handover.Sockets) error {
	defer s.Close()
	if err := handover.Send(to, s); err != nil {
		return err
	}
	b := make([]byte, 256)
	n, err := to.Read(b)
	if err != nil {
		return err
	}
	return handover.ParseAnswer(b[:n])
}

func (c *call) end() *evidence.Egress {
	c.t.Helper()
	e, err := c.session.Close()
	if err != nil {
		c.t.Fatal(err)
	}
	return e
}

// serveTCP serves an address of the world.
func serveTCP(t testing.TB, address string, serve func(*net.TCPConn)) {
	t.Helper()
	free := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) (err error) {
		if network == "tcp6" {
			c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, ipv6FreeBind, 1) })
		}
		return err
	}}
	l, err := free.Listen(context.Background(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
}

// echo sends back what comes, and ends when the other side does.
func echo(c *net.TCPConn) {
	b := make([]byte, 64<<10)
	for {
		n, err := c.Read(b)
		if n > 0 {
			c.Write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

// goroutines returns those of this package's code that ships and haven't ended: one in goexit1 has,
// and so has one of net/http's that says that its connection is closed, unless something holds it.
func goroutines() string {
	b := make([]byte, 1<<20)
	b = b[:runtime.Stack(b, true)]
	var out []string
	for g := range bytes.SplitSeq(b, []byte("\n\n")) {
		head, _, _ := bytes.Cut(g, []byte("\n"))
		free := bytes.Contains(head, []byte("[runnable")) || bytes.Contains(head, []byte("[running"))
		if bytes.Contains(g, []byte("\nruntime.goexit1()")) || free && bytes.Contains(g, []byte("\nnet/http.(*conn).setState(")) {
			continue
		}
		if bytes.Contains(g, []byte("egress.(*session)")) || bytes.Contains(g, []byte("egress.(*relay)")) || bytes.Contains(g, []byte("egress.dial")) || bytes.Contains(g, []byte("inspect.(*link)")) {
			out = append(out, string(g))
		}
	}
	return strings.Join(out, "\n\n")
}

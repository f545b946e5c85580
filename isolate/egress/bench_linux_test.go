package egress

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/isolate/egress/client"
	"palyra/isolate/egress/dns"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// build builds palyra-egress as it ships.
func build(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "egress")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "palyra-egress")
	build := exec.Command("go", "build", "-o", path, "palyra/cmd/palyra-egress")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// newProcess is newBroker with palyra-egress as it ships.
func newProcess(t testing.TB, nameserver string) (*broker, int) {
	t.Helper()
	path := build(t)
	at := &net.UnixAddr{Name: path + ".sock", Net: "unixpacket"}
	ul, err := net.ListenUnix("unixpacket", at)
	if err != nil {
		t.Fatal(err)
	}
	l := client.Listen(ul)
	cmd := exec.Command(path, "-connect", at.Name, "-nameserver", nameserver)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		cmd.Wait()
	})
	return &broker{t: t, client: l}, cmd.Process.Pid
}

// resident returns a process's resident memory, without what files back.
func resident(t testing.TB, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\nRssAnon:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkBeside measures a connection with one byte each way, and the passing of 64 MiB, through
// palyra-egress beside a direct one over the loopback interface, in turns, as ratios of medians.
func BenchmarkBeside(b *testing.B) {
	const bulk = 64 << 20
	serveTCP(b, "5.5.0.1:443", echo)
	serveTCP(b, "5.5.0.1:444", func(c *net.TCPConn) {
		for p, n := make([]byte, 256<<10), 0; n < bulk; n += len(p) {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	})
	ns := newNameServer(b, map[string][]string{"a.example": {"5.5.0.1"}})
	br, _ := newProcess(b, ns.at.String())
	c := br.begin(9, wire.Limits{Received: 1 << 50, Connections: 1 << 20, Rate: 1 << 20}, "a.example:443", "a.example:444")
	at := c.address("a.example", dns.A)
	p := make([]byte, 1<<20)
	for _, m := range []struct {
		name, port string
		use        func(*net.TCPConn) error
	}{
		{"connect", ":443", func(c *net.TCPConn) error {
			if _, err := c.Write(p[:1]); err != nil {
				return err
			}
			_, err := io.ReadFull(c, p[:1])
			return err
		}},
		{"64MiB", ":444", func(c *net.TCPConn) error {
			n := 0
			for {
				m, err := c.Read(p)
				if n += m; err == io.EOF && n == bulk {
					return nil
				}
				if err != nil {
					return fmt.Errorf("%d bytes: %w", n, err)
				}
			}
		}},
	} {
		b.Run(m.name, func(b *testing.B) {
			var direct, through []time.Duration
			for b.Loop() {
				for i, dial := range []func() (net.Conn, error){
					func() (net.Conn, error) { return net.Dial("tcp", "5.5.0.1"+m.port) },
					func() (net.Conn, error) { return c.dial(at + m.port) },
				} {
					began := time.Now()
					conn, err := dial()
					if err == nil {
						err = m.use(conn.(*net.TCPConn))
					}
					if err != nil {
						b.Fatal(err)
					}
					if took := time.Since(began); i == 0 {
						direct = append(direct, took)
					} else {
						through = append(through, took)
					}
					conn.Close()
				}
			}
			d, t := median(direct), median(through)
			b.ReportMetric(float64(d.Nanoseconds()), "direct-ns")
			b.ReportMetric(float64(t.Nanoseconds()), "through-ns")
			b.ReportMetric(float64(t)/float64(d), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStart measures palyra-egress from its start to its first session, as a command pays for it.
func BenchmarkStart(b *testing.B) {
	path := build(b)
	for b.Loop() {
		p, err := client.Start(path)
		if err != nil {
			b.Fatal(err)
		}
		s, err := p.Open(b.Context(), new(Order))
		if err == nil {
			_, err = s.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		p.Close()
		b.StartTimer()
	}
}

// BenchmarkOpen measures a session from its opening to its evidence.
func BenchmarkOpen(b *testing.B) {
	br, pid := newProcess(b, "127.0.0.1")
	for b.Loop() {
		s, err := br.client.Open(b.Context(), &Order{Rules: []string{"a.example:443"}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(resident(b, pid)), "rest-bytes")
}

// TestParallel: 500 connections of one call at once each pass what they are given, and take a
// bounded part of palyra-egress's memory when they are silent.
func TestParallel(t *testing.T) {
	const n = 500
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}})
	serveTCP(t, "5.5.0.1:443", echo)
	br, pid := newProcess(t, ns.at.String())
	c := br.begin(9, wire.Limits{Open: n}, "a.example:443")
	at := c.address("a.example", dns.A) + ":443"
	before := resident(t, pid)
	conns := make([]*net.TCPConn, n)
	for i := range conns {
		conns[i] = c.mustDial(at)
	}
	var wg sync.WaitGroup
	for i, conn := range conns {
		wg.Go(func() {
			text := []byte(fmt.Sprintf("connection %d", i))
			conn.Write(text)
			got := make([]byte, len(text))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != string(text) {
				t.Errorf("%q, %v, want %q", got, err, text)
			}
		})
	}
	wg.Wait()
	each := (resident(t, pid) - before) / n
	t.Logf("%d bytes for each silent connection, %d KiB before", each, before>>10)
	if each > 64<<10 {
		t.Errorf("a silent connection takes %d KiB", each>>10)
	}
	for _, conn := range conns {
		conn.Close()
	}
	e := c.end()
	if len(e.Connections) != evidence.MaxConnections || e.More != n-evidence.MaxConnections || e.Sent != e.Received || e.Sent != 10*12+90*13+400*14 {
		t.Errorf("%d listed and %d more, %d sent, %d received", len(e.Connections), e.More, e.Sent, e.Received)
	}
}

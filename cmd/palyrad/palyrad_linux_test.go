package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/built"
)

// binaries builds the programs once for all tests, as they ship: without cgo,
// which confinement on all threads needs.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "palyrad-test-")
	if err != nil {
		return "", err
	}
	return dir, built.Into(dir, "palyrad", "palyra", "palyra-cell", "palyra-tool", "palyra-fetch", "palyra-ctl", "palyra-admin")
})

func TestMain(m *testing.M) {
	if spec := os.Getenv(asVictim); spec != "" {
		os.Exit(beVictim(spec))
	}
	if targets := os.Getenv(asFlood); targets != "" {
		os.Exit(beFlood(targets))
	}
	code := m.Run()
	if os.Getenv("PALYRA_TEST_BIN") == "" {
		if dir, _ := binaries(); dir != "" {
			os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// patience is how long anything may take on a busy machine.
const patience = 60 * time.Second

// place is where the palyrads of a test live.
type place struct {
	t              *testing.T
	bin, dir, sock string
	config         string
}

func newPlace(t *testing.T, more string) *place {
	t.Helper()
	bin := os.Getenv("PALYRA_TEST_BIN") // prebuilt ones, where there is no go command
	if bin == "" {
		var err error
		if bin, err = binaries(); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "pd-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &place{t: t, bin: bin, dir: dir, sock: filepath.Join(dir, "p.sock"), config: filepath.Join(dir, "palyrad.toml")}
	p.write(more)
	return p
}

// write makes the configuration: the test's places and what it adds.
func (p *place) write(more string) {
	p.t.Helper()
	text := fmt.Sprintf("state.dir = %q\nlisten.socket = %q\n", filepath.Join(p.dir, "state"), p.sock)
	if !strings.Contains(more, "http") {
		text += "listen.http = \"off\"\n"
	}
	if err := os.WriteFile(p.config, []byte(text+more), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// running is a palyrad process.
type running struct {
	*place
	cmd    *exec.Cmd
	states chan string // what it tells the service manager; closed by start's reader
	log    *buffer
	done   chan struct{} // closed when it has ended
}

// buffer is written to by one goroutine and read by another.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// launch starts palyrad with a service manager that listens.
func (p *place) launch(env ...string) *running {
	p.t.Helper()
	return p.launchAs(exec.Command(filepath.Join(p.bin, "palyrad"), "--config", p.config), env...)
}

// launchAs is launch for a command that is palyrad in the end.
func (p *place) launchAs(cmd *exec.Cmd, env ...string) *running {
	p.t.Helper()
	notify := filepath.Join(p.dir, "n")
	os.Remove(notify)
	m, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		p.t.Fatal(err)
	}
	r := &running{place: p, states: make(chan string, 1024), log: &buffer{}, done: make(chan struct{})}
	go func() {
		defer close(r.states)
		buf := make([]byte, 4096)
		for {
			n, err := m.Read(buf)
			if err != nil {
				return
			}
			r.states <- string(buf[:n])
		}
	}()
	r.cmd = cmd
	r.cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + p.dir, "NOTIFY_SOCKET=" + notify}, env...)
	r.cmd.Stderr = r.log
	if err := r.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		r.cmd.Wait()
		close(r.done)
		m.Close()
	}()
	p.t.Cleanup(func() {
		r.cmd.Process.Kill()
		<-r.done
	})
	return r
}

// start launches palyrad and waits until it is ready.
func (p *place) start(env ...string) *running {
	p.t.Helper()
	r := p.launch(env...)
	r.await("READY=1")
	return r
}

// await waits for a state that begins so, and returns it.
func (r *running) await(prefix string) string {
	r.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case s, ok := <-r.states:
			if !ok {
				r.t.Fatalf("palyrad ended before %s:\n%s", prefix, r.log)
			}
			if strings.HasPrefix(s, prefix) {
				return s
			}
		case <-limit:
			r.t.Fatalf("no %s in time:\n%s", prefix, r.log)
		}
	}
}

func (r *running) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// exit waits for the end and returns the status, -1 for a signal.
func (r *running) exit() int {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.t.Fatalf("palyrad does not end:\n%s", r.log)
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *running) client() *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.sock)
	}}}
}

// ask makes a request over the socket and decodes the answer into out.
func (r *running) ask(method, path, body string, out any) (int, error) {
	req, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", rand.Text())
	}
	resp, err := r.client().Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && out != nil {
		if err = json.Unmarshal(b, out); err != nil {
			err = fmt.Errorf("%w in %q", err, b)
		}
	}
	return resp.StatusCode, err
}

// must is ask that wants a status.
func (r *running) must(want int, method, path, body string, out any) {
	r.t.Helper()
	if status, err := r.ask(method, path, body, out); err != nil || status != want {
		r.t.Fatalf("%s %s: status %d, %v, want %d; %+v\n%s", method, path, status, err, want, out, r.log)
	}
}

const echo = `{"tool":"palyra.echo","input":{"text":"hi"}}`

// call makes a call that has to be executed.
func (r *running) call(body string) hub.Run {
	r.t.Helper()
	var run hub.Run
	r.must(200, "POST", "/api/v1/calls", body, &run)
	if run.State != hub.RunDone || len(run.Steps) != 1 || run.Steps[0].Outcome != "executed" {
		r.t.Fatalf("call ended as %+v\n%s", run, r.log)
	}
	return run
}

func (r *running) status() (s hub.Status) {
	r.t.Helper()
	r.must(200, "GET", "/api/v1/status", "", &s)
	return s
}

// sleeper starts a run that sleeps and returns its id once it is under way.
func (r *running) sleeper(ms int) string {
	r.t.Helper()
	var s hub.Session
	r.must(201, "POST", "/api/v1/sessions", "{}", &s)
	var run hub.Run
	r.must(201, "POST", "/api/v1/runs", fmt.Sprintf(`{"session":%q,"steps":[{"tool":"palyra.sleep","input":{"ms":%d}}]}`, s.ID, ms), &run)
	limit := time.Now().Add(patience)
	for run.State != hub.RunInProgress || len(run.Steps) == 0 || run.Steps[0].State != hub.StepRunning {
		if time.Now().After(limit) || run.State == hub.RunFailed {
			r.t.Fatalf("the sleeper is %+v\n%s", run, r.log)
		}
		r.must(200, "GET", "/api/v1/runs/"+run.ID, "", &run)
	}
	return run.ID
}

// problem is an RFC 9457 document, as far as these tests look at it.
type problem struct {
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

func (r *running) refused(status int, reason, method, path, body string) {
	r.t.Helper()
	var p problem
	if got, err := r.ask(method, path, body, &p); err != nil || got != status || p.Reason != reason {
		r.t.Errorf("%s %s: status %d, %+v, %v; want %d %s", method, path, got, p, err, status, reason)
	}
}

var errAlive = errors.New("still there")

// gone waits until no process of this test's programs is left but want.
func gone(t *testing.T, bin string, want int) {
	t.Helper()
	limit := time.Now().Add(patience)
	var err error
	for err = errAlive; err != nil && time.Now().Before(limit); {
		exes, globErr := filepath.Glob("/proc/[0-9]*/exe")
		if globErr != nil {
			t.Fatal(globErr)
		}
		n := 0
		for _, e := range exes {
			if to, lerr := os.Readlink(e); lerr == nil && strings.HasPrefix(to, bin+"/") {
				n++
			}
		}
		if err = nil; n > want {
			err = fmt.Errorf("%d processes, want %d: %w", n, want, errAlive)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
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

	"palyra/crypt/receipt"
	"palyra/hub"
)

// TestFullDisk: the disk of journal and working state is full while 16 clients
// call. Reads and status go on, new calls are refused by name, and when there is
// room again everything that had begun comes to an end that is on record.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	p := newCrowdedPlace(t)
	// Otherwise calls are refused before the disk is full: TestDiskLow.
	p.crowded("journal.min_free = 0\n")
	p.smallDisk()
	r := p.start()
	c := newCrowd(p, 16)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		c.work(r, 1000, stop)
		close(over)
	}()
	first := r.call(echo)
	ballast := p.fillDisk()
	// It fits nowhere into the remaining space.
	big := fmt.Sprintf(`{"tool":"palyra.echo","input":{"text":%q}}`, strings.Repeat("x", 700<<10))
	r.refused(503, "disk_full", "POST", "/api/v1/calls", big)
	if s := r.status(); s.Mode != "normal" || s.Journal.Size == 0 {
		t.Errorf("status is %+v", s)
	}
	r.must(200, "GET", "/api/v1/runs/"+first.ID, "", nil)
	r.must(200, "GET", "/api/v1/runs", "", nil)
	r.must(200, "GET", "/api/v1/journal/entries", "", nil)
	r.must(200, "GET", fmt.Sprintf("/api/v1/receipts/%d", *first.Steps[0].LogIndex), "", nil)

	if err := ballast.Truncate(0); err != nil {
		t.Fatal(err)
	}
	close(stop)
	<-over
	r.call(echo)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	if err := os.Remove(ballast.Name()); err != nil {
		t.Fatal(err)
	}
	c.check(true)
}

// smallDisk has a file system of its own for the state.
func (p *place) smallDisk() {
	p.t.Helper()
	state := filepath.Join(p.dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", state, "tmpfs", 0, "size=16m,mode=0700"); err != nil {
		p.t.Skip("needs root with CAP_SYS_ADMIN: mounts a tmpfs")
	}
	p.t.Cleanup(func() { syscall.Unmount(state, syscall.MNT_DETACH) })
}

// fillDisk leaves no block free beside the state.
func (p *place) fillDisk() *os.File {
	p.t.Helper()
	ballast, err := os.OpenFile(filepath.Join(p.dir, "state", "ballast"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { ballast.Close() })
	for _, n := range []int{64 << 10, 4 << 10} {
		for err = nil; err == nil; {
			_, err = ballast.Write(make([]byte, n))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		p.t.Fatal(err)
	}
	return ballast
}

// TestStartOnFullDisk: a start that can't write only reads, says why, and isn't counted as
// a failed one however often it is killed. Status and stop answer. With room again the next
// start is an ordinary one.
func TestStartOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	p := newPlace(t, "journal.min_free = 0\n")
	p.smallDisk()
	r := p.start()
	r.call(echo)
	slow := r.sleeper(60000)
	kill := func() {
		t.Helper()
		r.signal(syscall.SIGKILL)
		r.exit()
		gone(t, p.bin, 0)
	}
	kill()
	ballast := p.fillDisk()
	for range safeAfter + 1 {
		r = p.launch()
		if s := r.await("READY=1"); !strings.Contains(s, "SAFE MODE") {
			t.Errorf("state is %q", s)
		}
		if s := r.status(); s.Mode != "safe" || len(s.Warnings) == 0 || !strings.Contains(s.Warnings[0], "its disk was full at the start") || !s.Confinement.Enforced {
			t.Errorf("status is %+v", s)
		}
		r.refused(503, "disk_full", "POST", "/api/v1/calls", echo)
		r.refused(503, "disk_full", "POST", "/api/v1/tokens", `{"name":"x","scopes":["run.read"],"ttl_ns":3600000000000}`)
		r.must(200, "GET", "/api/v1/runs/"+slow, "", nil)
		resp, err := r.client().Post("http://localhost/api/v1/stop", "application/json", strings.NewReader(`{"all":true,"deny_new":true}`))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != 200 {
			t.Errorf("stop: status %d", resp.StatusCode)
		}
		kill()
	}
	if err := ballast.Truncate(0); err != nil {
		t.Fatal(err)
	}
	r = p.start()
	r.must(200, "POST", "/api/v1/resume", "", nil)
	if s := r.status(); s.Mode != "normal" || len(s.Warnings) != 0 {
		t.Errorf("with room again status is %+v", s)
	}
	var was hub.Run
	if r.must(200, "GET", "/api/v1/runs/"+slow, "", &was); was.State != hub.RunFailed || was.Reason != "interrupted" {
		t.Errorf("the run at work is %s %s", was.State, was.Reason)
	}
	r.call(echo)
}

// TestFewDescriptors: connections take all descriptors that palyrad may have
// while clients call. It does not end, and works when they are gone.
func TestFewDescriptors(t *testing.T) {
	p := newCrowdedPlace(t)
	r := p.start()
	r.call(echo)
	// Afterwards, and not for palyra-cell: a limit that a cell inherits is another test's.
	if out, err := exec.Command("prlimit", "--nofile=128", "--pid", fmt.Sprint(r.cmd.Process.Pid)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := newCrowd(p, 16)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		c.work(r, 1000, stop)
		close(over)
	}()
	r.call(echo)
	var idle []net.Conn
	for range 300 {
		d := net.Dialer{Timeout: patience}
		conn, err := d.DialContext(t.Context(), "unix", p.sock)
		if errors.Is(err, syscall.EAGAIN) { // the kernel's line is full, too
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, conn)
	}
	if len(idle) < 128 {
		t.Errorf("%d connections", len(idle))
	}
	for _, conn := range idle {
		conn.Close()
	}
	r.call(echo)
	close(stop)
	<-over
	r.call(echo)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	c.check(true)
}

// http is the address of the HTTP listener. The log has it a moment after the
// service manager has been told.
func (r *running) http() string {
	r.t.Helper()
	for limit := time.Now().Add(patience); time.Now().Before(limit); r.status() {
		if _, after, ok := strings.Cut(r.log.String(), `"http":"`); ok {
			addr, _, _ := strings.Cut(after, `"`)
			return addr
		}
	}
	r.t.Fatalf("the log does not say where it listens:\n%s", r.log)
	return ""
}

// TestHostileClients: on both listeners there are clients that stall and clients that send
// bad bodies; others are served meanwhile.
func TestHostileClients(t *testing.T) {
	p := newPlace(t, "listen.http = \"127.0.0.1:0\"\n")
	r := p.start()
	addr := r.http()
	var token hub.TokenSecret
	r.must(201, "POST", "/api/v1/tokens", `{"name":"x","scopes":["config.read","run.start","session.read"],"ttl_ns":3600000000000}`, &token)
	for _, at := range [][2]string{{"unix", p.sock}, {"tcp", addr}} {
		var d net.Dialer
		for i := range 32 {
			conn, err := d.DialContext(t.Context(), at[0], at[1])
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			begun := []string{"", "G", "POST /api/v1/calls HTTP/1.1\r\nHost: localhost\r\nX: ", "POST /api/v1/calls HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"}
			if _, err := conn.Write([]byte(begun[i%len(begun)])); err != nil {
				t.Fatal(err)
			}
		}
	}
	tcp := &http.Client{Timeout: patience}
	for _, body := range []struct{ name, text, reason string }{
		{"10 MB", `{"tool":"palyra.echo","input":{"text":"` + strings.Repeat("x", 10<<20) + `"}}`, "json_too_large"},
		{"duplicate key", `{"tool":"palyra.sleep","tool":"palyra.echo","input":{}}`, "json_syntax"},
		{"unknown field", `{"tool":"palyra.echo","input":{},"principal":"uid:0"}`, "invalid_input"},
		{"deep", `{"tool":"palyra.echo","input":` + strings.Repeat(`{"a":`, 100000) + "1" + strings.Repeat("}", 100000) + `}`, "json_syntax"},
	} {
		for name, client := range map[string]*http.Client{"http://localhost": r.client(), "http://" + addr: tcp} {
			req, err := http.NewRequest("POST", name+"/api/v1/calls", strings.NewReader(body.text))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if client == tcp {
				req.Header.Set("Authorization", "Bearer "+token.Secret)
			}
			resp, err := client.Do(req)
			if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
				continue // it was refused before it was sent
			}
			if err != nil {
				t.Fatal(err)
			}
			var pr problem
			err = json.NewDecoder(resp.Body).Decode(&pr)
			resp.Body.Close()
			if err != nil || pr.Reason != body.reason {
				t.Errorf("%s to %s: %d %+v, %v", body.name, name, resp.StatusCode, pr, err)
			}
		}
	}
	r.call(echo)
	var j struct{ Items []hub.Run }
	if r.must(200, "GET", "/api/v1/runs", "", &j); len(j.Items) != 1 {
		t.Errorf("%d runs came of it", len(j.Items))
	}
}

// TestReplayedKeys: 16 clients make one call with one key at the same time, and
// then again after a restart: it is one run with one effect.
func TestReplayedKeys(t *testing.T) {
	p := newCrowdedPlace(t)
	r := p.start()
	c := newCrowd(p, 16)
	all := func() {
		for _, cl := range c.clients {
			cl.name, cl.n = "same", 0
		}
		var wg sync.WaitGroup
		for _, cl := range c.clients {
			wg.Go(func() {
				if !c.one(r, cl) {
					t.Error("no answer")
				}
			})
		}
		wg.Wait()
	}
	all()
	id := c.told["same-0"].ID
	r.signal(syscall.SIGKILL)
	r.exit()
	r = p.start()
	all()
	if again := c.told["same-0"].ID; again != id || id == "" {
		t.Errorf("it is run %q and %q", id, again)
	}
	r.signal(syscall.SIGTERM)
	r.exit()
	c.check(true)
}

// TestPolicyReloadUnderLoad: the policies are replaced again and again while
// clients call. Each call was decided by one of the sets, whole, and ended as
// that one says.
func TestPolicyReloadUnderLoad(t *testing.T) {
	p := newCrowdedPlace(t)
	r := p.start()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if status, err := r.ask("POST", "/api/v1/calls", echo, nil); err != nil || status != 200 {
					t.Errorf("call: %d, %v", status, err)
					return
				}
			}
		})
	}
	permits := map[string]string{r.status().PolicySet.String(): receipt.Executed}
	for i := range 12 {
		text, outcome := "permit (principal, action, resource);", receipt.Executed
		if i%2 == 0 {
			text, outcome = "permit (principal, action, resource == Palyra::Tool::\"palyra.sleep\");", receipt.Denied
		}
		at := filepath.Join(p.dir, "policy")
		if err := os.WriteFile(at+"/.new", fmt.Appendf(nil, "@id(\"set%d\") %s\n", i, text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at+"/.new", at+"/all.cedar"); err != nil {
			t.Fatal(err)
		}
		r.signal(syscall.SIGHUP)
		if s := r.await("READY=1"); strings.Contains(s, "refused") {
			t.Errorf("reload %d: %q", i, s)
		}
		permits[r.status().PolicySet.String()] = outcome
	}
	close(stop)
	wg.Wait()
	if len(permits) != 13 {
		t.Errorf("%d sets", len(permits))
	}
	seen := make(map[string]int)
	for next := "/api/v1/journal/entries?limit=200"; next != ""; {
		var j struct {
			Items []hub.JournalEntry
			Next  string
		}
		r.must(200, "GET", next, "", &j)
		for _, e := range j.Items {
			st, _, err := receipt.ParsePayload(e.Statement)
			if err != nil {
				t.Fatal(err)
			}
			if st == nil || st.IsIntent() {
				continue
			}
			set := st.Predicate.Decision.PolicySet.String()
			seen[set]++
			if e.Outcome != permits[set] {
				t.Errorf("entry %d was %s by set %s, which wants %q", e.Index, e.Outcome, set, permits[set])
			}
		}
		if next = ""; j.Next != "" {
			next = "/api/v1/journal/entries?limit=200&from=" + j.Next
		}
	}
	if len(seen) < 2 {
		t.Errorf("calls were decided by %d sets", len(seen))
	}
	r.signal(syscall.SIGTERM)
	r.exit()
}

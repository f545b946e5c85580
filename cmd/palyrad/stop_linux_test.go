package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/crypt/receipt"
	"palyra/hub"
)

// TestStopAmidEverything: the emergency stop answers while requests hold all that
// they can hold, before any of it is released: files of which one hangs are being
// sealed, policies are tested, questions wait, connections idle at their limit, an
// answer is not read, and as root the disk is full, strangers fill the socket, and a
// member does with bodies that do not come. So it does while another process keeps
// the journal locked. It is in force after kill -9.
func TestStopAmidEverything(t *testing.T) {
	p := newCrowdedPlace(t)
	root, more := os.Geteuid() == 0, ""
	if root {
		more = fmt.Sprintf("listen.socket_group = \"%d\"\n", strangers)
		for dir := p.dir; dir != os.TempDir(); dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.crowded(more + "journal.min_free = 0\nlimits.concurrency = 64\nlimits.sealed = \"16GiB\"\nlimits.sealed_per_principal = \"8GiB\"\nlisten.http = \"127.0.0.1:0\"\n")
	if err := os.WriteFile(filepath.Join(p.dir, "policy", "all.cedar"), []byte(`@id("most")
permit (principal, action, resource) unless { resource == Palyra::Tool::"fs.write_file" };
@id("asked")
permit (principal, action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"fs.write_file") when { context.approved };
`), 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(p.dir, "state")
	if root {
		if err := os.Mkdir(state, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", state, "tmpfs", 0, "size=24m,mode=0700"); err != nil {
			t.Skip("needs root with CAP_SYS_ADMIN: mounts a tmpfs")
		}
		t.Cleanup(func() { syscall.Unmount(state, syscall.MNT_DETACH) })
	}
	head, err := os.ReadFile(filepath.Join(p.bin, "palyra-tool"))
	if err != nil {
		t.Fatal(err)
	}
	const sparse = 512 << 20
	big := filepath.Join(p.dir, "work", "big")
	if err := errors.Join(os.WriteFile(big, head, 0o755), os.Truncate(big, sparse)); err != nil {
		t.Fatal(err)
	}
	r, at, release := p.victim(point{"sealing", 1})
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // after the process is dead
	t.Cleanup(func() { r.cmd.Process.Kill() })
	inBackground := func(path, body string) {
		wg.Go(func() { r.ask("POST", path, body, nil) })
	}

	// A file system that does not answer.
	inBackground("/api/v1/calls", echo)
	if step := <-at; step != "sealing" {
		t.Fatalf("it is at %q\n%s", step, r.log)
	}
	// A program that runs, and one that waits for a person.
	r.sleeper(60_000)
	inBackground("/api/v1/calls", `{"tool":"fs.write_file","input":{"workspace":"w","path":"a","mode":"create","content":"x"}}`)
	r.until("a question", func(s hub.Status) bool { return s.Counts.ApprovalsPending == 1 })
	// Connections of a client without a credential, and an answer that isn't read.
	addr := r.http()
	for range 1200 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			break // at its limit
		}
		defer conn.Close()
		fmt.Fprint(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	if root {
		const member = strangers - 1
		r.makeOperator(member)
		for _, conn := range p.dialAs(strangers, 600) {
			defer conn.Close()
		}
		for _, conn := range p.dialAs(member, 1100) {
			defer conn.Close()
			fmt.Fprint(conn, "POST /api/v1/calls HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{")
		}
	}
	conn, err := net.Dial("unix", p.sock)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 200 {
		fmt.Fprint(conn, "GET /api/v1/journal/entries HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	// Policies that take their time, and large files that are hashed.
	base := `"` + strings.Repeat(`a","`, 4000) + `a"`
	var cases []string
	for i := range 300 {
		cases = append(cases, fmt.Sprintf(`{"name":"%d","request":{},"effect":"allow"}`, i))
	}
	file := fmt.Sprintf(`{"version":1,"base":{"principal":{"type":"Palyra::User","id":"u"},"action":"tool.execute","resource":{"type":"Palyra::Tool","id":"x"},"context":{"args":[%s]}},"tests":[%s]}`,
		base, strings.Join(cases, ","))
	candidate, err := json.Marshal(map[string]any{"files": map[string]string{"a.cedar": `@id("a") permit (principal, action, resource);`, "a.test.json": file}})
	if err != nil {
		t.Fatal(err)
	}
	inBackground("/api/v1/policy/test", string(candidate))
	call := `{"tool":"process.run","input":{"argv":["./big"],"workspace":"w"}}`
	for range 4 {
		inBackground("/api/v1/policy/explain", call)
	}
	for range 8 {
		inBackground("/api/v1/calls", call)
	}
	r.until("calls that are sealed", func(s hub.Status) bool {
		return s.Counts.RunsActive+s.Counts.ApprovalsPending >= 2 && r.held("sealed") > sparse
	})

	// A full disk.
	var ballast *os.File
	if root {
		if ballast, err = os.Create(filepath.Join(state, "ballast")); err != nil {
			t.Fatal(err)
		}
		defer ballast.Close()
		for _, n := range []int{64 << 10, 4 << 10} {
			for err = nil; err == nil; {
				_, err = ballast.Write(make([]byte, n))
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}

	began := time.Now()
	var s hub.Stopped
	r.stop(&s)
	took := time.Since(began)
	t.Logf("stopped after %v: %+v", took, s)
	if took > prompt {
		t.Errorf("the stop took %v", took)
	}
	if !s.DenyNew || s.Left != 0 || s.Cancelled < 3 || slices.Contains(s.Pending, "brake") {
		t.Errorf("%+v", s)
	}
	if root && !slices.Contains(s.Pending, "store") { // the journal has room put by
		t.Errorf("the disk is full, and this is pending: %q", s.Pending)
	}
	r.refused(403, "stopped", "POST", "/api/v1/calls", echo)
	// A second one answers, too, while a process that stands still has the journal.
	lock, err := os.OpenFile(filepath.Join(state, "journal", "lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	r.stop(&s)
	if took := time.Since(began); took > prompt || !s.DenyNew || !slices.Contains(s.Pending, "journal") || slices.Contains(s.Pending, "brake") {
		t.Errorf("while the journal is locked: after %v: %+v", took, s)
	}

	r.signal(syscall.SIGKILL)
	r.exit()
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	release() // the client is gone
	if root {
		if err := ballast.Truncate(0); err != nil {
			t.Fatal(err)
		}
	}
	r = p.start()
	if s := r.status(); s.Mode != "stopped" || !s.DenyNew {
		t.Errorf("after a restart: %q, %v", s.Mode, s.DenyNew)
	}
	r.refused(403, "stopped", "POST", "/api/v1/calls", echo)
	logged := func() bool {
		var j struct{ Items []hub.JournalEntry }
		r.must(200, "GET", "/api/v1/journal/entries?limit=200", "", &j)
		return slices.ContainsFunc(j.Items, func(e hub.JournalEntry) bool { return e.Type == receipt.ActType && e.Act == "stop" })
	}
	r.until("the stop in the journal", func(hub.Status) bool { return logged() })
	r.must(200, "POST", "/api/v1/resume", "", &s)
	r.call(echo)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	r = p.start()
	r.call(echo)
}

// prompt is less than a stop takes that waits for another process to leave the journal
// or for a client to take its answer, 10 s each, and more than a machine stalls. The
// test logs how long it takes where nothing stalls.
const prompt = 9 * time.Second

// makeOperator makes a user a member.
func (r *running) makeOperator(uid int) {
	r.t.Helper()
	req, err := http.NewRequest("PUT", fmt.Sprintf("http://localhost/api/v1/members/uid:%d", uid), strings.NewReader(`{"role":"operator"}`))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("If-None-Match", "*")
	resp, err := r.client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		r.t.Fatalf("make %d an operator: %d\n%s", uid, resp.StatusCode, r.log)
	}
}

// strangers is a user without a role, and the group that may open the socket.
const strangers = 65534

// dialAs opens connections to the socket as another user, for which it must be root.
// Only the thread that does it is that user, and ends with it.
func (p *place) dialAs(uid uintptr, n int) (conns []net.Conn) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good
		same := ^uintptr(0)
		_, _, group := syscall.RawSyscall(syscall.SYS_SETRESGID, same, strangers, same)
		_, _, user := syscall.RawSyscall(syscall.SYS_SETRESUID, same, uid, same)
		if group != 0 || user != 0 {
			done <- errors.Join(group, user)
			return
		}
		for range n {
			c, err := net.Dial("unix", p.sock)
			if err != nil {
				done <- err
				return
			}
			conns = append(conns, c)
		}
		done <- nil
	}()
	if err := <-done; err != nil {
		p.t.Fatal(err)
	}
	return conns
}

// stop is the emergency stop, which has no idempotency key.
func (r *running) stop(s *hub.Stopped) {
	r.t.Helper()
	resp, err := r.client().Post("http://localhost/api/v1/stop", "application/json", strings.NewReader(`{"all":true,"deny_new":true}`))
	if err != nil {
		r.t.Fatalf("stop: %v\n%s", err, r.log)
	}
	defer resp.Body.Close()
	*s = hub.Stopped{}
	if err := json.NewDecoder(resp.Body).Decode(s); err != nil || resp.StatusCode != 200 {
		r.t.Fatalf("stop: %d, %v", resp.StatusCode, err)
	}
}

// TestStopOnFullDisk: on a full disk the emergency stop answers, and is in force
// after kill -9.
func TestStopOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	p := newPlace(t, "journal.min_free = 0\n")
	state := filepath.Join(p.dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", state, "tmpfs", 0, "size=16m,mode=0700"); err != nil {
		t.Skip("needs root with CAP_SYS_ADMIN: mounts a tmpfs")
	}
	t.Cleanup(func() { syscall.Unmount(state, syscall.MNT_DETACH) })
	r := p.start()
	r.sleeper(60_000)
	ballast, err := os.Create(filepath.Join(state, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer ballast.Close()
	for _, n := range []int{64 << 10, 4 << 10, 1} {
		for err = nil; err == nil; {
			_, err = ballast.Write(make([]byte, n))
		}
	}
	answered := make(chan hub.Stopped, 1)
	go func() {
		resp, err := r.client().Post("http://localhost/api/v1/stop", "application/json", strings.NewReader(`{"all":true,"deny_new":true}`))
		if err != nil {
			return
		}
		defer resp.Body.Close()
		var s hub.Stopped
		if json.NewDecoder(resp.Body).Decode(&s) == nil {
			answered <- s
		}
	}()
	select {
	case s := <-answered:
		if !s.DenyNew || s.Cancelled != 1 {
			t.Errorf("%+v", s)
		}
	case <-time.After(prompt):
		t.Error("the stop does not answer")
	}
	r.signal(syscall.SIGKILL)
	r.exit()
	if err := ballast.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if s := p.start().status(); s.Mode != "stopped" || !s.DenyNew {
		t.Errorf("after a restart: %q, %v", s.Mode, s.DenyNew)
	}
}

// until asks for the status until it is as wanted.
func (r *running) until(what string, ok func(hub.Status) bool) {
	r.t.Helper()
	late := time.After(patience)
	for range time.Tick(5 * time.Millisecond) {
		if ok(r.status()) {
			return
		}
		select {
		case <-late:
			r.t.Fatalf("%s: not in time\n%s", what, r.log)
		default:
		}
	}
}

// held is what requests hold of a budget, by the metrics.
func (r *running) held(budget string) (n int64) {
	r.t.Helper()
	_, after, _ := strings.Cut(r.metrics(), fmt.Sprintf("\npalyra_budget_held{budget=%q} ", budget))
	fmt.Sscan(after, &n)
	return n
}

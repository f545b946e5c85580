package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/hub"
)

// ctl runs a command of palyra-ctl, which must end with this status, and returns what it printed.
func (r *running) ctl(status int, args ...string) (stdout, stderr string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), filepath.Join(r.bin, "palyra-ctl"), append(args, "--socket", r.sock)...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	_ = cmd.Run() // its status says it
	if got := cmd.ProcessState.ExitCode(); got != status {
		r.t.Fatalf("%v: status %d, want %d\n%s%s", args, got, status, &out, &complaint)
	}
	return out.String(), complaint.String()
}

// alive returns the processes of the host with a text among their arguments.
func alive(text string) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(text)) {
			n++
		}
	}
	return n
}

// TestKillBackground: programs in the background by command line and over MCP. They end with palyrad:
// after SIGTERM at once, with a result, and after kill -9 their outcome is unknown, as the next start
// says.
func TestKillBackground(t *testing.T) {
	p := newPlace(t, "[daemon]\ndrain_timeout = \"10m\"\n")
	r := p.start()
	secs := fmt.Sprintf("98%d", os.Getpid())
	input := `{"argv":["/usr/bin/sleep",` + fmt.Sprintf("%q", secs) + `],"background":true}`
	if _, stderr := r.ctl(2, "call", "process.run", input); !strings.Contains(stderr, "palyra sessions new") {
		t.Errorf("without a session: %s", stderr)
	}
	start := func() string {
		t.Helper()
		s, _ := r.ctl(0, "sessions", "new")
		out, _ := r.ctl(0, "call", "--session", strings.TrimSpace(s), "process.run", input)
		if id := strings.TrimSpace(out); strings.HasPrefix(id, "run_") && alive(secs) > 0 {
			return id
		}
		t.Fatalf("started: %q, %d processes", out, alive(secs))
		return ""
	}
	ended := func(id, outcome, reason string) {
		t.Helper()
		var run hub.Run
		r.must(200, "GET", "/api/v1/runs/"+id, "", &run)
		if run.State != hub.RunFailed || run.Reason != "interrupted" || !run.Background || run.Steps[0].Outcome != outcome || run.Steps[0].LogIndex == nil {
			t.Errorf("%s: %+v, want %s %s", id, run, outcome, reason)
		}
	}
	id := start()
	if out, _ := r.ctl(0, "runs", "ls", "--background"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "in_progress, background") {
		t.Errorf("runs ls: %s", out)
	}
	var list struct{ Runs []hub.Run }
	if out, _ := r.ctl(0, "runs", "ls", "--background", "--json"); json.Unmarshal([]byte(out), &list) != nil || len(list.Runs) != 1 || list.Runs[0].ID != id {
		t.Errorf("runs ls --json: %s", out)
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	if n := alive(secs); n > 0 {
		t.Errorf("%d are left after SIGTERM", n)
	}
	r = p.start()
	ended(id, "killed", "interrupted")

	id = start()
	r.signal(syscall.SIGKILL)
	r.exit()
	gone(t, p.bin, 0)
	if n := alive(secs); n > 0 {
		t.Errorf("%d are left after SIGKILL", n)
	}
	r = p.start()
	ended(id, "outcome_unknown", "interrupted")
	if out, _ := r.ctl(0, "runs", "ls", "--background"); strings.Contains(out, "run_") {
		t.Errorf("runs ls: %s", out)
	}

	status, text, session := r.message("", hello)
	if status != 200 || session == "" {
		t.Fatalf("initialize: %d %s", status, text)
	}
	call := func(name, arguments string) (a struct {
		Outcome, Message, Run string
		Result                json.RawMessage
	}) {
		t.Helper()
		_, text, _ := r.message(session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, name, name, arguments))
		i := strings.Index(text, "{")
		var m struct {
			Result struct{ StructuredContent json.RawMessage }
		}
		if i < 0 || json.NewDecoder(strings.NewReader(text[i:])).Decode(&m) != nil || json.Unmarshal(m.Result.StructuredContent, &a) != nil {
			t.Fatalf("%s: %s", name, text)
		}
		return a
	}
	a := call("exec", input)
	if a.Outcome != "started" || !strings.HasPrefix(a.Run, "run_") || !strings.Contains(a.Message, "process_output") || alive(secs) == 0 {
		t.Errorf("exec: %+v", a)
	}
	if b := call("palyra_echo", `{"text":"meanwhile"}`); b.Outcome != "executed" {
		t.Errorf("meanwhile: %+v", b)
	}
	for _, name := range []string{"process_status", "process_output", "process_stop"} {
		if b := call(name, `{"id":"`+a.Run+`"}`); b.Outcome != "executed" || !strings.Contains(string(b.Result), `"state":"running"`) {
			t.Errorf("%s: %+v", name, b)
		}
	}
	if n := alive(secs); n > 0 {
		t.Errorf("%d are left after process_stop", n)
	}
	if b := call("process_list", `{}`); string(b.Result) != `{"processes":[]}` {
		t.Errorf("process_list: %+v", b)
	}
	// The end of the session is the end of what was started in it.
	call("exec", input)
	r.signal(syscall.SIGTERM)
	r.exit()
	if n := alive(secs); n > 0 {
		t.Errorf("%d are left at last", n)
	}
}

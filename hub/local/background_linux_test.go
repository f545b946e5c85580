package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/evidence"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// openRules permits any program, and asks about those with the argument "ask".
const openRules = `@id("any")
permit (principal in Palyra::Role::"operator", action == Palyra::Action::"tool.execute", resource);
@id("asked")
forbid (principal, action == Palyra::Action::"tool.execute", resource) when { context.args.contains("ask") } unless { context.approved };
@id("answers")
permit (principal in Palyra::Role::"admin", action == Palyra::Action::"approval.resolve", resource);
@id("use")
permit (principal, action == Palyra::Action::"permission.use", resource) when { principal in resource };
`

// rule is a set in dir with a test that shows its forbid at work.
func rule(t *testing.T, dir, name, text, context, id, effect string) {
	t.Helper()
	shows := `{"version":1,"tests":[{"name":"shows it","request":{"principal":{"type":"Palyra::User","id":"a","roles":["operator"]},
		"action":"tool.execute","resource":{"type":"Palyra::Tool","id":"process.run"},"context":` + context + `},"effect":"` + effect + `","policies":["` + id + `"]}]}`
	for file, b := range map[string]string{name + ".cedar": text, name + ".test.json": shows} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// backgroundHouse is a house with the tools for processes in the background, a workspace and the same
// one staged, where any program may run.
func backgroundHouse(t *testing.T, change func(*Config)) *house {
	t.Helper()
	rules := t.TempDir()
	rule(t, rules, "open", openRules, `{"args":["ask"]}`, "asked", "needs_approval")
	return newHouse(t, func(c *Config, k *kernel.Config) {
		work := filepath.Join(filepath.Dir(k.StateDir), "work")
		c.Processes, c.PolicyDir, k.PolicyDir = NewProcesses(), rules, rules
		k.Tools = tool.New(tool.Config{Program: filepath.Join(bin(t), "palyra-tool"), Processes: c.Processes, State: k.StateDir,
			Workspaces: map[string]tool.Workspace{"src": {Path: work}, "staged": {Path: work, Staged: true}}})
		if change != nil {
			change(c)
		}
	})
}

// word is a number that no other process has among its arguments.
func word(t *testing.T) string {
	return fmt.Sprintf("%d%d", 4000+os.Getpid(), time.Now().UnixNano()%1e9)
}

func background(more obj, args ...string) json.RawMessage {
	in := obj{"argv": args, "background": true}
	for k, v := range more {
		in[k] = v
	}
	b, err := json.Marshal(in)
	if err != nil {
		panic(err)
	}
	return b
}

func (h *house) tryBackground(c hub.Caller, session string, input json.RawMessage) (hub.Run, error) {
	return hub.Call.Do(h.t.Context(), h, c, hub.NewCall{Session: session, Tool: kernel.ToolRun, Input: input})
}

// background starts a program in the background, which must be running then.
func (h *house) background(c hub.Caller, session string, input json.RawMessage) string {
	h.t.Helper()
	r, err := h.tryBackground(c, session, input)
	if err != nil {
		h.t.Fatal(err)
	}
	if r.State != hub.RunInProgress || !r.Background || len(r.Steps) != 1 || r.Steps[0].State != hub.StepRunning {
		h.t.Fatalf("started: %s %s, %+v", r.State, r.Reason, r.Steps)
	}
	return r.ID
}

// tool makes a call of a tool for processes and reads its result.
func toolIn[R any](h *house, c hub.Caller, session, name string, input obj) (out R) {
	h.t.Helper()
	b, _ := json.Marshal(input)
	s := h.in(c, session, name, string(b), false)
	if err := json.Unmarshal([]byte(s.Stdout.Text), &out); err != nil {
		h.t.Fatalf("%s: %v in %s", name, err, s.Stdout.Text)
	}
	return out
}

// over reads a run that has ended, and checks its receipt.
func (h *house) over(c hub.Caller, id, outcome, reason string) hub.StepResult {
	h.t.Helper()
	r := h.ended(c, id)
	s := r.Steps[0]
	if s.Outcome != outcome || reason != "" && r.Reason != reason {
		h.t.Errorf("run %s: %s %s, step %s %s %s; want %s %s", id, r.State, r.Reason, s.Outcome, s.Reason, s.Error, outcome, reason)
	}
	if s.LogIndex != nil {
		if v := h.verify(s); !v.Statement.Predicate.Capsule.Background {
			h.t.Error("the receipt doesn't say that it ran in the background")
		}
	} else {
		h.t.Error("no receipt")
	}
	return s
}

// TestBackground: an agent starts a program, goes on with other calls, reads its output and stops it.
func TestBackground(t *testing.T) {
	h := backgroundHouse(t, nil)
	c, w := h.member(1001, access.Operator), word(t)
	s := h.session(c)
	id := h.background(c, s, background(nil, "/bin/sh", "-c", "echo up; echo no >&2; exec sleep "+w))
	h.until(c, id, hub.EventStepOutput)
	if len(withWord(w)) == 0 {
		t.Fatal("it doesn't run")
	}
	// The session isn't busy with it, for calls that aren't parallel either.
	if got := h.in(c, s, "palyra.echo", `{"text":"x"}`, false); got.Exit != 0 {
		t.Error(got)
	}
	list := toolIn[toolproto.ProcessListResult](h, c, s, toolproto.ProcessList, obj{})
	if len(list.Processes) != 1 || list.Processes[0].ID != id || list.Processes[0].State != toolproto.ProcessRunning || !strings.Contains(list.Processes[0].Command, w) {
		t.Errorf("list: %+v", list)
	}
	out := toolIn[toolproto.ProcessOutputResult](h, c, s, toolproto.ProcessOutput, obj{"id": id})
	if out.Stdout.Content.Text != "up\n" || out.Stdout.Next != 3 || out.Process.State != toolproto.ProcessRunning {
		t.Errorf("output: %+v", out)
	}
	if next := toolIn[toolproto.ProcessOutputResult](h, c, s, toolproto.ProcessOutput, obj{"id": id, "stdout": 3, "stderr": 1}); next.Stdout.Content.Text != "" || next.Stderr.Content.Text != "o\n" {
		t.Errorf("the rest: %+v", next)
	}
	if p, err := hub.ListRuns.Do(t.Context(), h, c, hub.RunQuery{Only: hub.OnlyBackground}); err != nil || len(p.Items) != 1 || p.Items[0].ID != id || !p.Items[0].Background {
		t.Errorf("runs: %+v, %v", p.Items, err)
	}
	was := toolIn[toolproto.Process](h, c, s, toolproto.ProcessStop, obj{"id": id})
	if was.State != toolproto.ProcessRunning {
		t.Errorf("stop: %+v", was)
	}
	if left := withWord(w); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	h.over(c, id, "killed", reasonCancelled)
	now := toolIn[toolproto.Process](h, c, s, toolproto.ProcessStatus, obj{"id": id})
	if now.State != toolproto.ProcessEnded || now.Outcome != "killed" || now.Receipt == nil {
		t.Errorf("status: %+v", now)
	}
	if out := toolIn[toolproto.ProcessOutputResult](h, c, s, toolproto.ProcessOutput, obj{"id": id, "stdout": 0}); out.Stdout.Content.Text != "up\n" || out.Stderr.Content.Text != "no\n" {
		t.Errorf("afterwards: %+v", out)
	}
	if again := toolIn[toolproto.Process](h, c, s, toolproto.ProcessStop, obj{"id": id}); again.State != toolproto.ProcessEnded {
		t.Errorf("stopped again: %+v", again)
	}
	if list := toolIn[toolproto.ProcessListResult](h, c, s, toolproto.ProcessList, obj{}); len(list.Processes) != 0 {
		t.Errorf("list: %+v", list)
	}
}

// TestBackgroundFails: a program that doesn't start, or ends at once, isn't told as started.
func TestBackgroundFails(t *testing.T) {
	h := backgroundHouse(t, func(c *Config) { c.Background.Settled = time.Hour }) // the end comes first
	c := h.member(1001, access.Operator)
	s := h.session(c)
	for name, x := range map[string]struct {
		args    []string
		outcome string
		exit    int
	}{"ends": {[]string{"false"}, "executed", 1}, "absent": {[]string{"/nowhere"}, "", 0}} {
		r, err := h.tryBackground(c, s, background(nil, x.args...))
		if err != nil || !r.Background || r.Steps[0].State == hub.StepRunning || r.Steps[0].Outcome != x.outcome || r.Steps[0].Exit != x.exit {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	for name, n := range map[string]hub.NewCall{
		"no session": {Tool: kernel.ToolRun, Input: background(nil, "sleep", "9")},
		"no boolean": {Session: s, Tool: kernel.ToolRun, Input: json.RawMessage(`{"argv":["sleep","9"],"background":1}`)},
		"twice":      {Session: s, Tool: kernel.ToolRun, Input: json.RawMessage(`{"argv":["sleep","9"],"background":false,"background":true}`)},
	} {
		r, err := hub.Call.Do(t.Context(), h, c, n)
		if err == nil && (len(r.Steps) != 1 || r.Steps[0].Outcome != "" || r.Steps[0].State != hub.StepFailed) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if _, err := hub.StartRun.Do(t.Context(), h, c, hub.NewRun{Session: s, Steps: []hub.Step{argv("true"), {Tool: kernel.ToolRun, Input: background(nil, "true")}}}); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("two steps: %v", err)
	}
}

// TestBackgroundSurvivor: processes that leave their session and their parent, and ignore signals,
// end with the rest.
func TestBackgroundSurvivor(t *testing.T) {
	h := backgroundHouse(t, nil)
	c, w := h.member(1001, access.Operator), word(t)
	s := h.session(c)
	const stubborn = `trap "" TERM HUP INT QUIT; `
	line := stubborn + `(setsid sh -c '` + stubborn + `(sleep W & ) ; exec sleep W' & ) & (setsid setsid sleep W &); echo up; exec sleep W`
	for how, end := range map[string]func(id string) error{
		"process.stop": func(id string) error {
			h.in(c, s, toolproto.ProcessStop, `{"id":"`+id+`"}`, false)
			return nil
		},
		"cancel": func(id string) error { _, err := hub.CancelRun.Do(t.Context(), h, c, id); return err },
		"stop":   func(string) error { _, err := hub.Stop.Do(t.Context(), h, c, hub.StopRequest{}); return err },
	} {
		id := h.background(c, s, background(nil, "/bin/sh", "-c", strings.ReplaceAll(line, "W", w)))
		h.until(c, id, hub.EventStepOutput)
		waitFor(t, func() bool { return len(withWord("sleep\x00"+w)) >= 3 }) // setsid(1) may still be on its way
		if err := end(id); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		if left := withWord(w); len(left) > 0 {
			t.Errorf("%s: left: %v", how, left)
		}
		h.over(c, id, "killed", "")
	}
}

// TestBackgroundIsOnesOwn: other principals don't see or stop a process.
func TestBackgroundIsOnesOwn(t *testing.T) {
	h := backgroundHouse(t, nil)
	alice, mallory, w := h.member(1001, access.Operator), h.member(1002, access.Operator), word(t)
	id := h.background(alice, h.session(alice), background(nil, "sleep", w))
	s := h.session(mallory)
	if list := toolIn[toolproto.ProcessListResult](h, mallory, s, toolproto.ProcessList, obj{}); len(list.Processes) != 0 {
		t.Errorf("list: %+v", list)
	}
	for _, name := range []string{toolproto.ProcessStatus, toolproto.ProcessOutput, toolproto.ProcessStop} {
		for _, other := range []string{id, "run_" + strings.Repeat("0a", 16)} {
			r, err := hub.Call.Do(t.Context(), h, mallory, hub.NewCall{Session: s, Tool: name, Input: json.RawMessage(`{"id":"` + other + `"}`)})
			if err != nil || r.Steps[0].Outcome != "" || r.Steps[0].Reason != "not_found" || strings.Contains(strings.ReplaceAll(r.Steps[0].Error, other, ""), alice.User) {
				t.Errorf("%s of %s: %+v, %v", name, other, r.Steps, err)
			}
		}
	}
	if p, err := hub.ListRuns.Do(t.Context(), h, mallory, hub.RunQuery{Only: hub.OnlyBackground}); err != nil || len(p.Items) != 0 {
		t.Errorf("runs: %+v, %v", p.Items, err)
	}
	if _, err := hub.CancelRun.Do(t.Context(), h, mallory, id); fault.KindOf(err) != fault.NotFound {
		t.Errorf("cancel: %v", err)
	}
	if _, err := h.tryBackground(mallory, h.read(alice, id).Session, background(nil, "sleep", w)); fault.KindOf(err) != fault.NotFound {
		t.Errorf("in another's session: %v", err)
	}
	// A run of one's own that isn't in the background is none of these.
	mine := h.call(mallory, argv("true"))
	if r, err := hub.Call.Do(t.Context(), h, mallory, hub.NewCall{Session: s, Tool: toolproto.ProcessStatus, Input: json.RawMessage(`{"id":"` + mine.ID + `"}`)}); err != nil || r.Steps[0].Reason != "not_found" {
		t.Errorf("a run in the foreground: %+v, %v", r.Steps, err)
	}
	if len(withWord(w)) == 0 {
		t.Error("it doesn't run any more")
	}
}

func (h *house) read(c hub.Caller, id string) hub.Run {
	h.t.Helper()
	r, err := hub.GetRun.Do(h.t.Context(), h, c, id)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// TestBackgroundSession: a process ends with its session, also one that starts meanwhile.
func TestBackgroundSession(t *testing.T) {
	h := backgroundHouse(t, nil)
	c, w := h.member(1001, access.Operator), word(t)
	s := h.session(c)
	id := h.background(c, s, background(nil, "sleep", w))
	if _, err := hub.EndSession.Do(t.Context(), h, c, hub.SessionChange{ID: s}); err != nil {
		t.Fatal(err)
	}
	h.over(c, id, "killed", reasonSessionEnded)
	if _, err := h.tryBackground(c, s, background(nil, "sleep", w)); fault.ReasonOf(err) != "no_such_session" {
		t.Errorf("in an ended session: %v", err)
	}
	for range 10 {
		s := h.session(c)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				r, err := h.tryBackground(c, s, background(nil, "sleep", w))
				if reason := fault.ReasonOf(err); err != nil && reason != "no_such_session" {
					t.Errorf("start: %v", err)
				} else if err == nil && r.Reason != reasonSessionEnded && r.State != hub.RunInProgress {
					t.Errorf("start: %+v", r)
				}
			})
		}
		if _, err := hub.EndSession.Do(t.Context(), h, c, hub.SessionChange{ID: s}); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if p, err := hub.ListRuns.Do(t.Context(), h, c, hub.RunQuery{Session: s, Only: hub.OnlyBackground}); err != nil || len(p.Items) != 0 {
			t.Errorf("left: %+v, %v", p.Items, err)
		}
	}
	if left := withWord(w); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestBackgroundBounds: of a hundred starts at once as many are made as there are places, the others
// are refused at once and leave nothing behind, and other calls go on.
func TestBackgroundBounds(t *testing.T) {
	h := backgroundHouse(t, func(c *Config) { c.Background.Session = 5 })
	c, w := h.member(1001, access.Operator), word(t)
	one, two, three := h.session(c), h.session(c), h.session(c)
	var mu sync.Mutex
	reasons := map[string]int{}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			_, err := h.tryBackground(c, []string{one, two, three}[i%3], background(nil, "sleep", w))
			mu.Lock()
			defer mu.Unlock()
			reasons[fault.ReasonOf(err)]++
			if err != nil && fault.HintOf(err) == "" {
				t.Errorf("no hint: %v", err)
			}
		})
	}
	wg.Wait()
	if reasons[""] != 8 || reasons["budget"]+reasons["too_many"] != 92 {
		t.Errorf("%v", reasons)
	}
	if p := h.runs.BackgroundPlaces(); p.Held() != 8 {
		t.Errorf("%d places are held", p.Held())
	}
	// Eight places for runs are free all the same, and another principal has places of its own.
	h.in(c, one, "palyra.echo", `{"text":"x"}`, false)
	other := h.member(1002, access.Operator)
	s := h.session(other)
	for range 5 {
		h.background(other, s, background(nil, "sleep", w))
	}
	if _, err := h.tryBackground(other, s, background(nil, "sleep", w)); fault.ReasonOf(err) != "too_many" {
		t.Errorf("the sixth of a session: %v", err)
	}
	// The emergency stop ends them all.
	st, err := hub.Stop.Do(t.Context(), h, h.owner, hub.StopRequest{All: true, DenyNew: true})
	if err != nil || st.Cancelled != 13 {
		t.Errorf("stop: %+v, %v", st, err)
	}
	if left := withWord(w); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := h.tryBackground(c, one, background(nil, "sleep", w)); fault.ReasonOf(err) != "stopped" {
		t.Errorf("after the stop: %v", err)
	}
	p, err := hub.ListRuns.Do(t.Context(), h, c, hub.RunQuery{PageQuery: hub.PageQuery{Limit: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range p.Items {
		if len(h.read(c, r.ID).Steps) == 1 && h.read(c, r.ID).Steps[0].Tool == kernel.ToolRun {
			h.over(c, r.ID, "killed", "stopped")
		}
	}
	if p := h.runs.BackgroundPlaces(); p.Held() != 0 {
		t.Errorf("%d places are held at last", p.Held())
	}
}

// TestBackgroundFlood: a program that writes for ever runs on; what it writes first is kept, up to its
// limit, and the receipt counts the rest.
func TestBackgroundFlood(t *testing.T) {
	h := backgroundHouse(t, nil)
	c := h.member(1001, access.Operator)
	s := h.session(c)
	const limit = 400_000
	const sure = limit - 64<<10 // the rest waits for the end: it may be the other stream's
	id := h.background(c, s, background(obj{"output": limit}, "yes"))
	out, err := hub.ReadOutput.Do(t.Context(), h, c, hub.OutputQuery{Run: id})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for got := int64(0); got < sure; {
		p, err := out.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got += int64(len(p.Bytes()))
	}
	r := toolIn[toolproto.ProcessOutputResult](h, c, s, toolproto.ProcessOutput, obj{"id": id, "limit": 1000})
	if r.Process.State != toolproto.ProcessRunning || r.Process.Stdout != sure || r.Process.Output != limit || r.Stdout.Offset != sure-16384 || len(r.Stdout.Content.Text) != 1000 {
		t.Errorf("%+v of %+v, from %d", len(r.Stdout.Content.Text), r.Process, r.Stdout.Offset)
	}
	h.in(c, s, toolproto.ProcessStop, `{"id":"`+id+`"}`, false)
	st := h.over(c, id, "killed", reasonCancelled)
	if st.Stdout.Size != limit {
		t.Errorf("%d bytes were kept", st.Stdout.Size)
	}
	var ev struct {
		Output struct {
			Cut int64 `json:"cut_bytes"`
		}
	}
	if err := json.Unmarshal(h.verify(st).Statement.Predicate.Evidence, &ev); err != nil || ev.Output.Cut <= 0 {
		t.Errorf("%+v, %v", ev, err)
	}
}

// TestBackgroundClose: the end of palyrad waits for no program in the background, and each has a
// result and a receipt.
func TestBackgroundClose(t *testing.T) {
	h := backgroundHouse(t, nil)
	c, w := h.member(1001, access.Operator), word(t)
	s := h.session(c)
	var ids []string
	for range 3 {
		ids = append(ids, h.background(c, s, background(nil, "sleep", w)))
	}
	if err := h.Close(t.Context()); err != nil { // it has all the time in the world
		t.Fatal(err)
	}
	if left := withWord(w); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for _, id := range ids {
		r := h.read(c, id)
		if s := r.Steps[0]; r.State != hub.RunFailed || r.Reason != "interrupted" || s.Outcome != "killed" || s.LogIndex == nil || h.verify(s) == nil {
			t.Errorf("%+v", r)
		}
	}
}

// TestBackgroundLimit: the limit of a call ends it as that of any call.
func TestBackgroundLimit(t *testing.T) {
	h := backgroundHouse(t, nil)
	c, w := h.member(1001, access.Operator), word(t)
	id := h.background(c, h.session(c), background(obj{"timeout_ms": 1500}, "sleep", w))
	h.over(c, id, "timed_out", "")
	plain := h.background(c, h.session(c), background(nil, "sleep", w))
	r := h.read(c, plain)
	if r.Budget.Wall != 8*time.Hour {
		t.Errorf("the run may take %v", r.Budget.Wall)
	}
	if _, err := hub.CancelRun.Do(t.Context(), h, c, plain); err != nil {
		t.Fatal(err)
	}
	if l := h.verify(h.read(c, plain).Steps[0]).Statement.Predicate.Capsule.Limits; l.Wall != time.Hour || l.CPU != 20*time.Minute {
		t.Errorf("limits %+v", l)
	}
}

// TestBackgroundAuthority: a revoked token ends what was started with it. Policies end what they give
// no right to begin runs for, and not a program that they would deny now.
func TestBackgroundAuthority(t *testing.T) {
	h := backgroundHouse(t, nil)
	c, w := h.member(1001, access.Operator), word(t)
	tok, err := hub.CreateToken.Do(t.Context(), h, c, hub.NewToken{Name: "t", Scopes: []string{"run.start", "session.read", "session.write"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	by, err := h.Authenticate(t.Context(), hub.Credential{Token: tok.Secret, Surface: "http"})
	if err != nil {
		t.Fatal(err)
	}
	s := h.session(c)
	stays, goes := h.background(c, s, background(nil, "sleep", w)), h.background(by, s, background(nil, "sleep", w))
	if _, err := hub.RevokeToken.Do(t.Context(), h, c, hub.TokenChange{ID: tok.Token.ID}); err != nil {
		t.Fatal(err)
	}
	h.over(c, goes, "killed", "")
	rules := h.cfg.PolicyDir
	rule(t, rules, "no", `@id("no") forbid (principal, action == Palyra::Action::"tool.execute", resource) when { context.background };`,
		`{"background":true}`, "no", "deny")
	if _, err := hub.Reload.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
		t.Fatal(err)
	}
	r, err := h.tryBackground(c, s, background(nil, "sleep", w))
	if err != nil || r.Steps[0].Outcome != "denied" {
		t.Errorf("a new one: %+v, %v", r.Steps, err)
	}
	if p := toolIn[toolproto.Process](h, c, s, toolproto.ProcessStatus, obj{"id": stays}); p.State != toolproto.ProcessRunning || len(withWord(w)) == 0 {
		t.Errorf("the old one: %+v", p)
	}
	for file, text := range map[string]string{
		"none.cedar": `@id("none") forbid (principal == Palyra::User::"uid:1001", action == Palyra::Action::"permission.use", resource == Palyra::Permission::"run.start");`,
		"none.test.json": `{"version":1,"tests":[{"name":"shows it","request":{"principal":{"type":"Palyra::User","id":"uid:1001","roles":["operator"]},
			"action":"permission.use","resource":{"type":"Palyra::Permission","id":"run.start"},"context":{}},"effect":"deny","policies":["none"]}]}`,
	} {
		if err := os.WriteFile(filepath.Join(rules, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := hub.Reload.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
		t.Fatal(err)
	}
	h.over(h.owner, stays, "killed", "")
}

// TestBackgroundApproval: a person is asked before the start, which comes after the answer; a caller
// who goes meanwhile leaves nothing behind.
func TestBackgroundApproval(t *testing.T) {
	h := backgroundHouse(t, nil)
	c, w := h.member(1001, access.Operator), word(t)
	s := h.session(c)
	ask := background(nil, "/bin/sh", "-c", "exec sleep "+w, "ask")
	type answer struct {
		r   hub.Run
		err error
	}
	got := make(chan answer, 1)
	call := func(ctx context.Context) {
		r, err := hub.Call.Do(ctx, h, c, hub.NewCall{Session: s, Tool: kernel.ToolRun, Input: ask})
		got <- answer{r, err}
	}
	asked := func() (string, hub.Approval) {
		t.Helper()
		for {
			p, err := hub.ListRuns.Do(t.Context(), h, c, hub.RunQuery{Only: hub.OnlyBackground})
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Items) == 1 {
				h.until(c, p.Items[0].ID, hub.EventRunWaitingApproval)
				return p.Items[0].ID, h.question(h.owner)
			}
		}
	}
	go call(t.Context())
	id, q := asked()
	if !q.Card.Background || !strings.Contains(q.Text, "background") {
		t.Errorf("the card: %+v\n%s", q.Card, q.Text)
	}
	if p := toolIn[toolproto.Process](h, c, h.session(c), toolproto.ProcessStatus, obj{"id": id}); p.State != toolproto.ProcessWaiting {
		t.Errorf("status: %+v", p)
	}
	select {
	case a := <-got:
		t.Fatalf("answered before the person: %+v", a)
	default:
	}
	if len(withWord("sleep\x00"+w)) > 0 {
		t.Error("it runs before the answer")
	}
	if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Answer: hub.Answer{Approve: true}}); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.err != nil || a.r.ID != id || a.r.State != hub.RunInProgress || len(withWord(w)) == 0 {
		t.Errorf("%+v", a)
	}
	if _, err := hub.CancelRun.Do(t.Context(), h, c, id); err != nil {
		t.Fatal(err)
	}
	h.over(c, id, "killed", "")

	ctx, gone := context.WithCancel(t.Context())
	go call(ctx)
	id, _ = asked()
	gone()
	<-got
	h.over(c, id, "not_approved", "caller_gone")
	// A yes that stands for the session starts the next one without a question. Its end ends no
	// program, and the next start asks again.
	go call(t.Context())
	id, q = asked()
	if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Answer: hub.Answer{Approve: true, Scope: "session"}}); err != nil {
		t.Fatal(err)
	}
	<-got
	next := h.background(c, s, ask)
	grants, err := hub.ListGrants.Do(t.Context(), h, h.owner, hub.None{})
	if err != nil || len(grants.Items) != 1 {
		t.Fatalf("%+v, %v", grants.Items, err)
	}
	if _, err := hub.RevokeGrant.Do(t.Context(), h, h.owner, grants.Items[0].ID); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return len(withWord("sleep\x00"+w)) >= 2 }) // the one that has just begun
	if r := h.read(c, next); r.State != hub.RunInProgress {
		t.Errorf("%+v", r)
	}
	for _, id := range []string{id, next} {
		if _, err := hub.CancelRun.Do(t.Context(), h, c, id); err != nil {
			t.Fatal(err)
		}
		h.over(c, id, "killed", "")
	}
	go call(t.Context())
	_, q = asked()
	if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Answer: hub.Answer{}}); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.err != nil || a.r.Steps[0].Outcome != "not_approved" {
		t.Errorf("%+v", a)
	}
}

// TestBackgroundLayer: a program in the background has its session's layer mounted. Later calls see
// what it writes, and it sees theirs; who wants to read or apply the layer is told which program it is.
func TestBackgroundLayer(t *testing.T) {
	h := backgroundHouse(t, nil)
	c := h.member(1001, access.Operator)
	s := h.session(c)
	line := "echo hers > one; until [ -e two ]; do sleep 0.05; done; cat two; echo done; exec sleep 1000"
	id := h.background(c, s, background(obj{"workspace": "staged"}, "/bin/sh", "-c", line))
	in := func(line string) hub.StepResult {
		b, _ := json.Marshal(obj{"argv": []string{"/bin/sh", "-c", line}, "workspace": "staged"})
		return h.in(c, s, kernel.ToolRun, string(b), false)
	}
	st := in("until [ -s one ]; do sleep 0.05; done; cat one; echo his > two.tmp; mv two.tmp two")
	if st.Stdout.Text != "hers\n" || st.Layer == "" {
		t.Errorf("%+v", st)
	}
	out, err := hub.ReadOutput.Do(t.Context(), h, c, hub.OutputQuery{Run: id})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for text := ""; text != "his\ndone\n"; {
		p, err := out.Next(t.Context())
		if err != nil {
			t.Fatalf("%q, %v", text, err)
		}
		text += p.Text
	}
	apply := func() hub.Run {
		t.Helper()
		d := "sha256:" + strings.Repeat("0a", 32)
		if v, err := hub.GetLayer.Do(t.Context(), h, c, st.Layer); err == nil {
			d = v.Digest.String()
		}
		r, err := hub.ApplyLayer.Do(t.Context(), h, h.owner, hub.LayerList{Layer: st.Layer, LayerListBody: hub.LayerListBody{Digest: d}})
		if err != nil {
			t.Fatal(err)
		}
		return h.ended(h.owner, r.ID)
	}
	if _, err := hub.GetLayer.Do(t.Context(), h, c, st.Layer); fault.ReasonOf(err) != "locked" || !strings.Contains(fault.HintOf(err), id) {
		t.Errorf("read: %v, hint %q", err, fault.HintOf(err))
	}
	if r := apply(); r.Steps[0].Reason != "locked" || !strings.Contains(r.Steps[0].Hint, id) {
		t.Errorf("apply: %+v", r.Steps)
	}
	if _, err := hub.DiscardLayer.Do(t.Context(), h, c, st.Layer); fault.ReasonOf(err) != "locked" {
		t.Errorf("discard: %v", err)
	}
	h.in(c, s, toolproto.ProcessStop, `{"id":"`+id+`"}`, false)
	if r := apply(); r.Steps[0].Outcome != "executed" || r.Steps[0].Exit != 0 {
		t.Errorf("apply afterwards: %+v", r.Steps)
	}
	for name, want := range map[string]string{"one": "hers\n", "two": "his\n"} {
		if b, err := os.ReadFile(filepath.Join(h.work(), name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if _, err := out.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
}

// TestProcessToolsNeedPermission: a token can't read or end its principal's programs by tools if it
// can't by operations.
func TestProcessToolsNeedPermission(t *testing.T) {
	h := backgroundHouse(t, nil)
	ctx := t.Context()
	r, err := hub.Call.Do(ctx, h, h.owner, hub.NewCall{Session: h.session(h.owner), Tool: kernel.ToolRun, Input: background(nil, "/usr/bin/sleep", "1000")})
	if err != nil || r.State != hub.RunInProgress {
		t.Fatalf("%+v, %v", r, err)
	}
	id := obj{"id": r.ID}
	for _, c := range []struct {
		tool  string
		in    obj
		weak  []string
		lacks string
		good  []string
	}{
		{toolproto.ProcessList, obj{}, []string{"artifact.read", "session.write"}, "session.read", []string{"session.read"}},
		{toolproto.ProcessStatus, id, []string{"artifact.read", "session.write"}, "session.read", []string{"session.read"}},
		{toolproto.ProcessOutput, id, []string{"artifact.read"}, "session.read", []string{"session.read", "artifact.read"}},
		{toolproto.ProcessOutput, id, []string{"session.read"}, "artifact.read", []string{"session.read", "artifact.read"}},
		{toolproto.ProcessStop, id, []string{"run.cancel"}, "session.read", []string{"session.read", "run.cancel"}},
		{toolproto.ProcessStop, id, []string{"session.read", "artifact.read"}, "session.write", []string{"session.read", "session.write"}},
	} {
		in, _ := json.Marshal(c.in)
		n := hub.NewCall{Tool: c.tool, Input: in}
		weak, _ := h.token(h.owner, append(c.weak, "run.start")...)
		_, err := hub.Call.Do(ctx, h, weak, n)
		if d := hub.DenialOf(err); fault.KindOf(err) != fault.Denied || d == nil || d.Permission != c.lacks {
			t.Errorf("%s by a token with %q: %v", c.tool, c.weak, err)
		}
		if got := h.read(h.owner, r.ID); c.tool != toolproto.ProcessStop && got.State != hub.RunInProgress {
			t.Fatalf("%+v", got)
		}
		good, _ := h.token(h.owner, append(c.good, "run.start")...)
		if r, err := hub.Call.Do(ctx, h, good, n); err != nil || r.Steps[0].Exit != 0 {
			t.Errorf("%s by a token with %q: %+v, %v", c.tool, c.good, r, err)
		}
	}
	h.ended(h.owner, r.ID)
}

// TestSessionNetwork: a call reaches a server in the background of its own session, if both ask for
// the session's network, and none of another session's. The receipts say that it was shared.
func TestSessionNetwork(t *testing.T) {
	h := backgroundHouse(t, nil)
	c := h.member(1001, access.Operator)
	s, other := h.session(c), h.session(c)
	cmd := exec.Command("go", "build", "-o", filepath.Join(h.work(), "talk"), "palyra/isolate/cell/testdata/talk")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build talk: %v\n%s", err, out)
	}
	id := h.background(c, s, background(obj{"network": "session", "workspace": "src"}, "./talk", "stay"))
	h.until(c, id, hub.EventStepOutput)
	port, _, _ := strings.Cut(toolIn[toolproto.ProcessOutputResult](h, c, s, toolproto.ProcessOutput, obj{"id": id}).Stdout.Content.Text, " ")
	look := func(session, network string) (hub.StepResult, string) {
		t.Helper()
		b, err := json.Marshal(obj{"argv": []string{"./talk", "look", port}, "network": network, "workspace": "src"})
		if err != nil {
			t.Fatal(err)
		}
		step := h.in(c, session, kernel.ToolRun, string(b), false)
		found, _, _ := strings.Cut(step.Stdout.Text, "\n")
		return step, found
	}
	got, found := look(s, "session")
	if found != "tcp hello" {
		t.Errorf("in the server's session: %q, %q", got.Stdout.Text, got.Stderr.Text)
	}
	v := h.verify(got)
	p := v.Statement.Predicate
	var e evidence.Evidence
	if err := json.Unmarshal(p.Evidence, &e); err != nil {
		t.Fatal(err)
	}
	if n := e.Network; p.Capsule.Network != "session" || p.SessionID != s || n.Mode != evidence.NetworkSession || n.Sharers == nil || *n.Sharers != 2 {
		t.Errorf("the receipt has network %q, session %q, evidence %+v", p.Capsule.Network, p.SessionID, n)
	}
	for _, x := range []struct{ session, network, want string }{{other, "session", "tcp ECONNREFUSED"}, {s, "loopback", "tcp ECONNREFUSED"}, {s, "fresh", "tcp EAFNOSUPPORT"}} {
		if got, found := look(x.session, x.network); found != x.want {
			t.Errorf("from %s in session %s: %q, %q, want %q", x.network, x.session, got.Stdout.Text, got.Stderr.Text, x.want)
		}
	}
	// The session's end ends the server, and with it the network.
	if _, err := hub.EndSession.Do(t.Context(), h, c, hub.SessionChange{ID: s}); err != nil {
		t.Fatal(err)
	}
	h.over(c, id, "killed", reasonSessionEnded)
}

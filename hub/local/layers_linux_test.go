package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/isolate/stage"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// staged is a house whose workspace src is staged, unless plain, and where any program may run.
func staged(t *testing.T, plain bool, change func(*Config)) *house {
	t.Helper()
	var set func(c *Config, kc *kernel.Config)
	h := &house{t: t, base: t.TempDir()}
	policies := filepath.Join(h.base, "policy")
	for _, d := range []string{h.work(), policies} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(policies, "all.cedar"), []byte("@id(\"all\")\npermit (principal, action, resource);\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	set = func(c *Config, kc *kernel.Config) {
		kc.PolicyDir = policies
		kc.Tools = tool.New(tool.Config{Program: filepath.Join(bin(t), "palyra-tool"),
			Workspaces: map[string]tool.Workspace{"src": {Path: h.work(), ReadOnly: !plain, Staged: !plain}}})
		if change != nil {
			change(c)
		}
	}
	h.set = set
	h.reopen(set)
	t.Cleanup(func() { h.stop() })
	return h
}

// in makes a call in a session, which must be executed and exit with 0.
func (h *house) in(c hub.Caller, session, name, input string, staged bool) hub.StepResult {
	h.t.Helper()
	r, err := hub.Call.Do(h.t.Context(), h, c, hub.NewCall{Session: session, Tool: name, Input: json.RawMessage(input), Staged: staged})
	if err != nil {
		h.t.Fatal(err)
	}
	s := r.Steps[0]
	if s.Outcome != "executed" || s.Exit != 0 {
		h.t.Fatalf("%s %s: %s, %d, %s %s\n%s%s", name, input, s.Outcome, s.Exit, s.Reason, s.Error, s.Stdout.Text, s.Stderr.Text)
	}
	return s
}

func sh(line string) string {
	b, err := json.Marshal(map[string]any{"argv": []string{"/bin/sh", "-c", line}, "workspace": "src"})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (h *house) layersOf(c hub.Caller) (names []string) {
	h.t.Helper()
	p, err := hub.ListLayers.Do(h.t.Context(), h, c, hub.LayerQuery{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, l := range p.Items {
		names = append(names, l.Layer)
	}
	return names
}

func (h *house) put(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.work(), name), []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// TestSessionLayer: a session has one layer. Programs and built-in tools write to it and see what
// earlier calls wrote; the host's folder stays as it is, and what changes there is seen.
func TestSessionLayer(t *testing.T) {
	h := staged(t, false, nil)
	h.put("a.txt", "one\n")
	ses, other := h.session(h.owner), h.session(h.owner)
	if s := h.in(h.owner, ses, "fs.read_file", `{"workspace":"src","path":"a.txt"}`, false); s.Layer != "" || len(h.layersOf(h.owner)) != 0 {
		t.Errorf("a call that only reads left %q, %q", s.Layer, h.layersOf(h.owner))
	}
	s := h.in(h.owner, ses, "process.run", sh("echo two >>a.txt; mkdir d; echo x >d/new; rm -f gone"), false)
	if s.Layer != layerName(ses, "src") {
		t.Errorf("layer %q", s.Layer)
	}
	h.in(h.owner, ses, "fs.write_file", `{"workspace":"src","path":"d/tool.txt","mode":"create","content":"tool\n"}`, false)
	h.in(h.owner, ses, "fs.apply_patch", `{"workspace":"src","patch":"--- a/d/new\n+++ b/d/new\n@@ -1 +1 @@\n-x\n+y\n"}`, false)
	for input, want := range map[string]string{
		`{"workspace":"src","path":"a.txt"}`:      `two`,
		`{"workspace":"src","path":"d/tool.txt"}`: `tool`,
		`{"workspace":"src","path":"d/new"}`:      `y`,
	} {
		if s := h.in(h.owner, ses, "fs.read_file", input, false); !strings.Contains(s.Stdout.Text, want) {
			t.Errorf("%s: %s", input, s.Stdout.Text)
		}
	}
	if s := h.in(h.owner, ses, "fs.list_dir", `{"workspace":"src","path":"d"}`, false); !strings.Contains(s.Stdout.Text, "tool.txt") {
		t.Errorf("list_dir: %s", s.Stdout.Text)
	}
	if s := h.in(h.owner, ses, "fs.search", `{"workspace":"src","pattern":"two"}`, false); !strings.Contains(s.Stdout.Text, "a.txt") {
		t.Errorf("search: %s", s.Stdout.Text)
	}
	if s := h.in(h.owner, other, "process.run", sh("cat a.txt; ls"), false); s.Stdout.Text != "one\na.txt\n" {
		t.Errorf("another session sees %q", s.Stdout.Text)
	}
	names, err := os.ReadDir(h.work())
	if b, _ := os.ReadFile(filepath.Join(h.work(), "a.txt")); err != nil || len(names) != 1 || string(b) != "one\n" {
		t.Errorf("the host has %v, %q", names, b)
	}

	// The host's side.
	h.put("later.txt", "later\n")
	if s := h.in(h.owner, ses, "process.run", sh("cat later.txt"), false); s.Stdout.Text != "later\n" {
		t.Errorf("a file that came later: %q", s.Stdout.Text)
	}
	h.put("a.txt", "else\n")
	v, err := hub.GetLayer.Do(t.Context(), h, h.owner, s.Layer)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range v.Changes {
		got = append(got, fmt.Sprint(c.Kind, " ", c.Path, " ", c.Stale))
	}
	if want := "modify a.txt true, create d false, create d/new false, create d/tool.txt false"; strings.Join(got, ", ") != want {
		t.Errorf("changes %q, want %s", got, want)
	}
	p, err := hub.GetPatch.Do(t.Context(), h, h.owner, hub.PatchQuery{Layer: s.Layer})
	if err != nil || !strings.Contains(string(p.Patch), "+++ b/d/tool.txt\n@@ -0,0 +1 @@\n+tool\n") || len(p.Stale) != 1 || p.Digest != v.Digest {
		t.Errorf("patch %q, %+v, %v", p.Patch, p, err)
	}

	// It outlives the session and the process, and goes when it's discarded.
	if _, err := hub.EndSession.Do(t.Context(), h, h.owner, hub.SessionChange{ID: ses}); err != nil {
		t.Fatal(err)
	}
	h.stop()
	h.reopen(nil)
	if got := h.layersOf(h.owner); len(got) != 1 || got[0] != s.Layer {
		t.Fatalf("after a restart: %q", got)
	}
	if _, err := hub.DiscardLayer.Do(t.Context(), h, h.owner, s.Layer); err != nil || len(h.layersOf(h.owner)) != 0 {
		t.Errorf("discard: %v, %q", err, h.layersOf(h.owner))
	}
	if _, err := hub.DiscardLayer.Do(t.Context(), h, h.owner, s.Layer); fault.ReasonOf(err) != "not_found" {
		t.Errorf("discard again: %v", err)
	}
}

// TestCallStaged: a call can want its workspace staged that the operator declared writable, and
// not the reverse; what a process.run wants read-only is refused.
func TestCallStaged(t *testing.T) {
	h := staged(t, true, nil)
	ses := h.session(h.owner)
	h.in(h.owner, ses, "process.run", sh("echo x >layer"), true)
	h.in(h.owner, ses, "process.run", sh("ls; echo y >host"), false)
	if _, err := os.Stat(filepath.Join(h.work(), "layer")); err == nil {
		t.Error("a staged call wrote to the host")
	}
	if _, err := os.Stat(filepath.Join(h.work(), "host")); err != nil {
		t.Error(err)
	}
	r, err := hub.Call.Do(t.Context(), h, h.owner, hub.NewCall{Session: ses, Tool: "process.run", Staged: true,
		Input: json.RawMessage(`{"argv":["ls"],"workspace":"src","read_only":true}`)})
	if err != nil || r.Steps[0].Reason != "invalid_input" || !strings.Contains(r.Steps[0].Error, "staged") {
		t.Errorf("read-only and staged: %+v, %v", r, err)
	}
	// A call without a session keeps its layer, too.
	s := h.in(h.owner, "", "process.run", sh("echo x >one"), true)
	if s.Layer == "" || len(h.layersOf(h.owner)) != 2 {
		t.Errorf("layer %q of %q", s.Layer, h.layersOf(h.owner))
	}
}

// TestLayersTogether: parallel calls of one session are made at the same time over its layer. One
// that is cancelled takes none of the others with it.
func TestLayersTogether(t *testing.T) {
	h := staged(t, false, nil)
	ses := h.session(h.owner)
	start := func(script string) string {
		t.Helper()
		r, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: ses, Parallel: true, Steps: []hub.Step{{Tool: "process.run", Input: json.RawMessage(sh(script))}}})
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	call := func(script string) hub.StepResult {
		t.Helper()
		r, err := hub.Call.Do(t.Context(), h, h.owner, hub.NewCall{Session: ses, Tool: "process.run", Parallel: true, Input: json.RawMessage(sh(script))})
		if err != nil || len(r.Steps) != 1 || r.Steps[0].Outcome != "executed" {
			t.Fatalf("%s: %+v, %v", script, r, err)
		}
		return r.Steps[0]
	}
	const until = "until test -e %s; do sleep .01; done; "
	var waiting []string
	for i := range 4 {
		waiting = append(waiting, start(fmt.Sprintf("touch began%d; "+until+"cat go", i, "go")))
	}
	victim := start("touch victim; sleep 1000")
	if s := call(fmt.Sprintf(until, "victim") + "echo x"); s.Stdout.Text != "x\n" || s.Layer != layerName(ses, "src") {
		t.Errorf("beside others: %+v", s)
	}
	if _, err := hub.GetLayer.Do(t.Context(), h, h.owner, layerName(ses, "src")); fault.ReasonOf(err) != "locked" {
		t.Errorf("a reader meanwhile: %v", err)
	}
	ls, err := hub.ListLayers.Do(t.Context(), h, h.owner, hub.LayerQuery{})
	if err != nil || len(ls.Items) != 1 || ls.Items[0].State != hub.LayerInUse {
		t.Errorf("%+v, %v", ls, err)
	}
	if r, err := hub.CancelRun.Do(t.Context(), h, h.owner, victim); err != nil || r.State != hub.RunCancelled {
		t.Errorf("cancelled: %+v, %v", r, err)
	}
	// A run that isn't parallel waits for them, and they don't wait for it.
	last, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: ses, Steps: []hub.Step{{Tool: "process.run", Input: json.RawMessage(sh("ls"))}}})
	if err != nil || last.State != hub.RunPending {
		t.Fatalf("%+v, %v", last, err)
	}
	if r, err := hub.CancelRun.Do(t.Context(), h, h.owner, last.ID); err != nil || r.State != hub.RunCancelled {
		t.Errorf("cancelled: %+v, %v", r, err)
	}
	call("echo now >new; mv new go")
	for _, id := range waiting {
		h.ended(h.owner, id)
		if r, err := hub.GetRun.Do(t.Context(), h, h.owner, id); err != nil || r.Steps[0].Stdout.Text != "now\n" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	v, err := hub.GetLayer.Do(t.Context(), h, h.owner, layerName(ses, "src"))
	if err != nil || len(v.Changes) != 6 || v.Layer.Bytes == 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestLayersInParallel: calls of one session take turns with those that read its layer, and with
// each other unless they are parallel; none is refused.
func TestLayersInParallel(t *testing.T) {
	h := staged(t, false, nil)
	ses := h.session(h.owner)
	const n = 6
	done := make(chan error, 3*n)
	h.in(h.owner, ses, "process.run", sh("echo x >0"), false)
	for i := range n {
		go func() {
			r, err := hub.Call.Do(t.Context(), h, h.owner, hub.NewCall{Session: ses, Tool: "process.run", Parallel: i%3 > 0, Input: json.RawMessage(sh(fmt.Sprintf("echo x >>all; ls >%d", i)))})
			if err == nil && r.Steps[0].Outcome != "executed" {
				err = fmt.Errorf("%+v", r.Steps[0])
			}
			done <- err
		}()
		go func() {
			_, err := hub.ListLayers.Do(t.Context(), h, h.owner, hub.LayerQuery{})
			done <- err
		}()
		go func() {
			_, err := hub.GetLayer.Do(t.Context(), h, h.owner, layerName(ses, "src"))
			if fault.ReasonOf(err) == "locked" {
				err = nil
			}
			done <- err
		}()
	}
	for range 3 * n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if s := h.in(h.owner, ses, "process.run", sh("wc -l <all"), false); strings.TrimSpace(s.Stdout.Text) != fmt.Sprint(n) {
		t.Errorf("%s lines, want %d", s.Stdout.Text, n)
	}

	// Another process reads the layer: the call waits for its end.
	l, err := stage.Open(h.k.StateDir(), layerName(ses, "src"))
	if err != nil {
		t.Fatal(err)
	}
	run, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: ses, Steps: []hub.Step{{Tool: "process.run", Input: json.RawMessage(sh("echo after"))}}})
	if err != nil {
		t.Fatal(err)
	}
	h.until(h.owner, run.ID, hub.EventStepStarted)
	l.Close()
	h.ended(h.owner, run.ID)
	if r, err := hub.GetRun.Do(t.Context(), h, h.owner, run.ID); err != nil || r.Steps[0].Stdout.Text != "after\n" {
		t.Errorf("%+v, %v", r, err)
	}

	// One that waits for it can be cancelled.
	if l, err = stage.Open(h.k.StateDir(), layerName(ses, "src")); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if run, err = hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: ses, Steps: []hub.Step{{Tool: "process.run", Input: json.RawMessage(sh("true"))}}}); err != nil {
		t.Fatal(err)
	}
	h.until(h.owner, run.ID, hub.EventStepStarted)
	if r, err := hub.CancelRun.Do(t.Context(), h, h.owner, run.ID); err != nil || r.State != hub.RunCancelled {
		t.Errorf("cancelled: %+v, %v", r, err)
	}
}

// TestLayersAreTheirOwners: members see the layers of their own sessions, owners all.
func TestLayersAreTheirOwners(t *testing.T) {
	h := staged(t, false, nil)
	alice, bob := h.member(70001, access.Operator), h.member(70002, access.Operator)
	name := h.in(alice, h.session(alice), "process.run", sh("echo x >a"), false).Layer
	if got := h.layersOf(alice); len(got) != 1 || len(h.layersOf(bob)) != 0 || len(h.layersOf(h.owner)) != 1 {
		t.Errorf("alice %q, bob %q, owner %q", got, h.layersOf(bob), h.layersOf(h.owner))
	}
	for what, err := range map[string]error{
		"show":    second(hub.GetLayer.Do(t.Context(), h, bob, name)),
		"diff":    second(hub.GetPatch.Do(t.Context(), h, bob, hub.PatchQuery{Layer: name})),
		"discard": second(hub.DiscardLayer.Do(t.Context(), h, bob, name)),
	} {
		if fault.ReasonOf(err) != "not_found" {
			t.Errorf("bob's %s: %v", what, err)
		}
	}
	if _, err := hub.GetLayer.Do(t.Context(), h, h.owner, name); err != nil {
		t.Error(err)
	}
	// One of palyra exec in the same state directory is none of the hub's.
	if _, err := hub.GetLayer.Do(t.Context(), h, h.owner, "fix"); fault.ReasonOf(err) != "not_found" {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestLayerBounds: a principal that has as many layers, or bytes in them, as it may is refused
// more, by name; layers go with their sessions, and the journal knows.
func TestLayerBounds(t *testing.T) {
	h := staged(t, false, func(c *Config) { c.Layers = Layers{Each: 2, BytesEach: 1 << 20} })
	refused := func(session string) {
		t.Helper()
		r, err := hub.Call.Do(t.Context(), h, h.owner, hub.NewCall{Session: session, Tool: "process.run", Input: json.RawMessage(sh("true"))})
		if err != nil || r.Steps[0].Reason != "quota" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	one, two := h.session(h.owner), h.session(h.owner)
	h.in(h.owner, one, "process.run", sh("echo x >a"), false)
	h.in(h.owner, two, "process.run", sh("echo x >a"), false)
	refused("")
	big := h.in(h.owner, two, "process.run", sh("head -c 2000000 /dev/urandom >big"), false).Layer
	refused(two)
	if _, err := hub.DiscardLayer.Do(t.Context(), h, h.owner, big); err != nil {
		t.Fatal(err)
	}
	h.in(h.owner, "", "process.run", sh("echo x >a"), false) // its session has ended with it
	before := len(h.sweeps())
	if err := h.Retain(t.Context(), Keep{Runs: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	if got := h.layersOf(h.owner); len(got) != 1 || got[0] != layerName(one, "src") {
		t.Errorf("after a sweep: %q", got)
	}
	if names, err := stage.Names(h.k.StateDir()); err != nil || len(names) != 1 {
		t.Errorf("on disk: %q, %v", names, err)
	}
	if found := h.sweeps(); len(found) != before+2 || !strings.Contains(found[len(found)-1]["statement"], `"layers":"1"`) {
		t.Errorf("the journal knows of %v", found)
	}
}

// TestLayersAtStart: a start looks into no layer, which would take as long as its program wants. The
// principal's next call does, so its quota holds as before.
// TestLayerTime: a layer is read for a bounded time, whatever its program put there, and no answer to
// another request waits for that.
func TestLayerTime(t *testing.T) {
	h := staged(t, false, nil)
	ses := h.session(h.owner)
	h.in(h.owner, ses, "process.run", sh("echo x >a"), false)
	err := h.readLayerFor(t.Context(), h.owner, layerName(ses, "src"), 0, func(context.Context, *stage.Layer, *stage.List) error { return nil })
	if fault.ReasonOf(err) != "too_large" || h.pools.layers.Held() != 0 {
		t.Errorf("%v, %d held", err, h.pools.layers.Held())
	}
	err = h.readLayerFor(t.Context(), h.owner, layerName(ses, "src"), time.Hour, func(context.Context, *stage.Layer, *stage.List) error {
		if p, l := h.pools.proofs.Held(), h.pools.layers.Held(); p != 0 || l != 1 {
			t.Errorf("reading a layer holds %d of the places of answers, and %d of layers", p, l)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := hub.GetLayer.Do(t.Context(), h, h.owner, layerName(ses, "src")); err != nil {
		t.Error(err)
	}
}

func TestLayersAtStart(t *testing.T) {
	set := func(c *Config) { c.Layers = Layers{Each: 8, BytesEach: 1 << 20} }
	h := staged(t, false, set)
	small := h.in(h.owner, h.session(h.owner), "process.run", sh("echo x >a"), false).Layer
	again := func() {
		h.stop()
		h.reopen(h.set)
		h.layers.mu.Lock()
		defer h.layers.mu.Unlock()
		for name, k := range h.layers.known {
			if !k.unsized {
				t.Errorf("%s was looked into: %+v", name, k)
			}
		}
		if len(h.layers.known) == 0 {
			t.Error("no layer is known")
		}
	}
	again()
	big := h.in(h.owner, h.session(h.owner), "process.run", sh("head -c 2000000 /dev/urandom >big"), false).Layer
	again()
	r, err := hub.Call.Do(t.Context(), h, h.owner, hub.NewCall{Tool: "process.run", Input: json.RawMessage(sh("true"))})
	if err != nil || r.Steps[0].Reason != "quota" {
		t.Errorf("%+v, %v", r, err)
	}
	h.layers.mu.Lock()
	defer h.layers.mu.Unlock()
	if k := h.layers.known[small]; k.unsized || k.bytes == 0 || k.bytes > 1<<16 {
		t.Errorf("the small one: %+v", k)
	}
	if k := h.layers.known[big]; k.unsized || k.bytes < 2000000 || k.bytes > 3000000 {
		t.Errorf("the big one: %+v", k)
	}
}

// TestLayerOfLongNames: names and the targets of links count, and not only how many there are. They
// may be thousands of bytes long, and are copied for list, digest and answer.
func TestLayerOfLongNames(t *testing.T) {
	h := staged(t, false, nil)
	s := h.session(h.owner)
	name := h.in(h.owner, s, "process.run", sh(`t=$(head -c 4000 /dev/zero | tr '\0' '\1'); i=0; while [ $i -lt 150 ]; do ln -s "$t" $i; i=$((i + 1)); done`), false).Layer
	if _, err := hub.GetLayer.Do(t.Context(), h, h.owner, name); fault.ReasonOf(err) != "too_large" {
		t.Errorf("the list: %v", err)
	}
	if _, err := hub.GetPatch.Do(t.Context(), h, h.owner, hub.PatchQuery{Layer: name}); fault.ReasonOf(err) != "too_large" {
		t.Errorf("the patch: %v", err)
	}
	h.in(h.owner, s, "process.run", sh(`rm 1??`), false)
	if l, err := hub.GetLayer.Do(t.Context(), h, h.owner, name); err != nil || len(l.Changes) != 100 {
		t.Errorf("%d changes, %v", len(l.Changes), err)
	}
}

// TestIdleSessions: an open session without a run for so long ends, and no other.
func TestIdleSessions(t *testing.T) {
	h := newHouse(t, nil)
	idle := h.session(h.owner)
	live := h.start(h.owner, argv("sleep", "60"))
	h.until(h.owner, live.ID, hub.EventStepStarted)
	state := func(id string) string {
		s, err := hub.GetSession.Do(t.Context(), h, h.owner, id)
		if err != nil {
			t.Fatal(err)
		}
		return s.State
	}
	if err := h.Retain(t.Context(), Keep{Sessions: time.Hour}); err != nil || state(idle) != hub.SessionOpen {
		t.Errorf("too early: %v", err)
	}
	if err := h.Retain(t.Context(), Keep{}); err != nil || state(idle) != hub.SessionOpen {
		t.Errorf("never: %v", err)
	}
	if err := h.Retain(t.Context(), Keep{Sessions: time.Nanosecond}); err != nil || state(idle) != hub.SessionEnded || state(live.Session) != hub.SessionOpen {
		t.Errorf("%v, %s, %s", err, state(idle), state(live.Session))
	}
	if s, err := hub.GetStatus.Do(t.Context(), h, h.owner, hub.None{}); err != nil || s.Retention.EndedSessions != 1 || len(h.sweeps()) != 1 {
		t.Errorf("%+v, %v", s.Retention, err)
	}
	if _, err := hub.CancelRun.Do(t.Context(), h, h.owner, live.ID); err != nil {
		t.Fatal(err)
	}
}

// TestStagedIsExplained: policy sees that nothing of the host changes. What only reads is
// permitted as in a read-only workspace, and a tool that writes is neither sensitive nor has the
// capability.
func TestStagedIsExplained(t *testing.T) {
	h := newHouse(t, nil)
	for _, x := range []struct {
		tool, input string
		staged      bool
		want        string
	}{
		{"fs.read_file", `{"workspace":"src","path":"a"}`, true, "allow [read_only_tools]"},
		{"fs.write_file", `{"workspace":"src","path":"a","mode":"create","content":"x"}`, true, "needs_approval [approved_tools]"},
		{"fs.write_file", `{"workspace":"src","path":"a","mode":"create","content":"x"}`, false, "needs_approval [approved_tools host_write_unless_approved sensitive_unless_approved]"},
	} {
		e, err := hub.ExplainPolicy.Do(t.Context(), h, h.owner, hub.NewCall{Tool: x.tool, Input: json.RawMessage(x.input), Staged: x.staged})
		if got := fmt.Sprint(e.Effect, " ", e.Policies); err != nil || got != x.want {
			t.Errorf("%s, staged %v: %s, %v", x.tool, x.staged, got, err)
		}
	}
	if got := h.layersOf(h.owner); len(got) != 0 {
		t.Errorf("explaining left %q", got)
	}
}

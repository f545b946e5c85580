package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// asks permits every call, and has a person asked about changes.
const asks = `@id("all") permit (principal, action, resource);
@id("ask") @untested("a test") forbid (principal, action == Palyra::Action::"tool.execute", resource)
when { resource == Palyra::Tool::"changes.apply" || resource == Palyra::Tool::"changes.undo" } unless { context.approved };
`

// appliable returns how to open a hub whose workspace src is staged and can be applied to. Its
// policies are those in base.
func appliable(base, bins string) func(*Config, *kernel.Config) {
	return func(c *Config, kc *kernel.Config) {
		c.AllowSelf = true
		kc.PolicyDir = filepath.Join(base, "policy")
		kc.Tools = tool.New(tool.Config{Program: filepath.Join(bins, "palyra-tool"), State: kc.StateDir, ChangesBeside: true,
			Workspaces: map[string]tool.Workspace{"src": {Path: filepath.Join(base, "work"), Staged: true}}})
	}
}

func applyHouse(t *testing.T, policies string) *house {
	t.Helper()
	h := &house{t: t, base: t.TempDir()}
	for _, d := range []string{h.work(), filepath.Join(h.base, "policy")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(h.base, "policy", "p.cedar"), []byte(policies), 0o600); err != nil {
		t.Fatal(err)
	}
	h.reopen(appliable(h.base, bin(t)))
	t.Cleanup(func() { h.stop() })
	return h
}

// answer answers the one question that waits.
func (h *house) answer(yes bool) hub.Approval {
	h.t.Helper()
	q := h.question(h.owner)
	if _, err := hub.ResolveApproval.Do(h.t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: yes}}); err != nil {
		h.t.Fatal(err)
	}
	return q
}

func (h *house) changes(c hub.Caller, layer string) hub.LayerChanges {
	h.t.Helper()
	v, err := hub.GetLayer.Do(h.t.Context(), h, c, layer)
	if err != nil {
		h.t.Fatal(err)
	}
	return v
}

// has returns the content of a file of the workspace, "-" if there is none.
func (h *house) has(name string) string {
	b, err := os.ReadFile(filepath.Join(h.work(), name))
	if err != nil {
		return "-"
	}
	return strings.TrimSpace(string(b))
}

// did waits for a run of one call of changes.apply or the like, which must have come to this.
func (h *house) did(r hub.Run, err error, outcome, reason string) hub.StepResult {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
	s := h.ended(h.owner, r.ID).Steps[0]
	if s.Outcome != outcome || s.Reason != reason {
		h.t.Fatalf("%s %q %s\n%s; want %s %q", s.Outcome, s.Reason, s.Error, s.Stdout.Text, outcome, reason)
	}
	return s
}

// newest returns the newest run.
func (h *house) newest() hub.Run {
	h.t.Helper()
	p, err := hub.ListRuns.Do(h.t.Context(), h, h.owner, hub.RunQuery{PageQuery: hub.PageQuery{Limit: 1}})
	if err != nil || len(p.Items) != 1 {
		h.t.Fatalf("%+v, %v", p.Items, err)
	}
	return p.Items[0]
}

// TestApplyLayer: what a person looked at is brought to the workspace after a yes to exactly that,
// and taken back likewise. It's a run of the hub's own in every respect.
func TestApplyLayer(t *testing.T) {
	h := applyHouse(t, asks)
	ses := h.session(h.owner)
	h.put("a.txt", "one\n")
	s := h.in(h.owner, ses, "process.run", sh("echo two >a.txt; echo x >.envrc"), false)
	v := h.changes(h.owner, s.Layer)
	apply := func(digest string) (hub.Run, error) {
		return hub.ApplyLayer.Do(t.Context(), h, h.owner, hub.LayerList{Layer: s.Layer, LayerListBody: hub.LayerListBody{Digest: digest}})
	}
	undo := func(digest string) (hub.Run, error) {
		return hub.UndoLayer.Do(t.Context(), h, h.owner, hub.LayerList{Layer: s.Layer, LayerListBody: hub.LayerListBody{Digest: digest}})
	}
	if v.Undo != nil || len(v.Changes) != 2 {
		t.Fatalf("%+v", v)
	}

	// Not what was looked at.
	r, err := apply(canon.Sum(nil).String())
	h.did(r, err, "", "changed")
	if _, err := apply("sha256:x"); fault.ReasonOf(err) != "invalid_input" {
		t.Error(err)
	}
	r, err = undo(v.Digest.String())
	h.did(r, err, "", "not_found")

	// A no, and a layer that changes while a person thinks.
	r, err = apply(v.Digest.String())
	if err != nil {
		t.Fatal(err)
	}
	h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
	q := h.answer(false)
	for _, want := range []string{"layer=" + s.Layer, "digest=" + v.Digest.String(), "modify=a.txt", "path=.envrc"} {
		if !strings.Contains(q.Text, want) {
			t.Errorf("the card lacks %q: %s", want, q.Text)
		}
	}
	h.did(r, err, "not_approved", "denied")
	r, err = apply(v.Digest.String())
	h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
	h.in(h.owner, ses, "process.run", sh("echo three >a.txt"), false) // its session isn't held meanwhile
	h.answer(true)
	h.did(r, err, "refused", "changed")
	if got := h.has("a.txt") + h.has(".envrc"); got != "one-" {
		t.Fatalf("the workspace has %s", got)
	}

	// A yes, and the way back, and forth.
	v = h.changes(h.owner, s.Layer)
	r, err = apply(v.Digest.String())
	h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
	h.answer(true)
	done := h.did(r, err, "executed", "")
	h.verify(done)
	if got := h.has("a.txt") + h.has(".envrc"); got != "threex" || done.Tool != "changes.apply" {
		t.Fatalf("the workspace has %s after %s", got, done.Tool)
	}
	for i, want := range []string{"one-", "threex"} {
		v = h.changes(h.owner, s.Layer)
		if v.Layer.State != hub.LayerEmpty || len(v.Changes) != 0 || v.Undo == nil || v.Undo.Digest == "" || len(v.Undo.Changes) != 2 {
			t.Fatalf("%+v, undo %+v", v, v.Undo)
		}
		if kind := v.Undo.Changes[0].Kind; kind != []string{"delete", "create"}[i] || v.Undo.Changes[0].Path != ".envrc" {
			t.Errorf("undo %+v", v.Undo.Changes)
		}
		if r, err = undo(v.Undo.Digest); err != nil {
			t.Fatal(err)
		}
		h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
		h.answer(true)
		h.did(r, err, "executed", "")
		if got := h.has("a.txt") + h.has(".envrc"); got != want {
			t.Fatalf("the workspace has %s, want %s", got, want)
		}
	}
	// A call that writes nothing doesn't take the undo away, and counts what it keeps.
	h.in(h.owner, ses, "process.run", sh("cat a.txt"), false)
	if v = h.changes(h.owner, s.Layer); v.Undo == nil || v.Layer.Bytes < 4096 {
		t.Errorf("%+v, undo %+v", v.Layer, v.Undo)
	}
	h.put("a.txt", "else\n")
	r, err = undo(v.Undo.Digest)
	h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
	h.answer(true)
	if s := h.did(r, err, "refused", "changed"); h.has("a.txt") != "else" {
		t.Errorf("%+v, the workspace has %s", s, h.has("a.txt"))
	}
	if h.pools.applies.Held() != 0 || h.pools.layers.Held() != 0 {
		t.Errorf("%d, %d places are held", h.pools.applies.Held(), h.pools.layers.Held())
	}
}

// TestApplyBelongsToPeople: agents can't apply a layer. No call names these tools, no token but one
// that was made for it begins them, and roles, members' own layers and a stop count.
func TestApplyBelongsToPeople(t *testing.T) {
	h := applyHouse(t, "@id(\"all\") permit (principal, action, resource);\n")
	ses := h.session(h.owner)
	s := h.in(h.owner, ses, "process.run", sh("echo x >new"), false)
	digest := h.changes(h.owner, s.Layer).Digest.String()
	list := hub.LayerList{Layer: s.Layer, LayerListBody: hub.LayerListBody{Digest: digest}}
	for _, name := range []string{"changes.apply", "changes.undo", "changes.recover"} {
		in, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hub.Call.Do(t.Context(), h, h.owner, hub.NewCall{Tool: name, Input: in}); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("call %s: %v", name, err)
		}
		if _, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: ses, Steps: []hub.Step{argv("/bin/true"), {Tool: name, Input: in}}}); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("run %s: %v", name, err)
		}
		if _, err := hub.ExplainPolicy.Do(t.Context(), h, h.owner, hub.NewCall{Tool: name, Input: in}); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("explain %s: %v", name, err)
		}
		// Past that, what comes beside it is missing.
		if _, err := h.k.CallAs(t.Context(), kernel.Caller{}, kernel.Proposal{Tool: name, Input: in}, kernel.IO{}); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("call %s past the hub: %v", name, err)
		}
	}
	token := func(scopes ...string) hub.Caller {
		t.Helper()
		tok, err := hub.CreateToken.Do(t.Context(), h, h.owner, hub.NewToken{Name: "agent", Scopes: scopes, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		c, err := h.Authenticate(t.Context(), hub.Credential{Token: tok.Secret, Surface: "http"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	agent := token("run.start", "run.cancel", "session.read", "session.write", "artifact.read", "approval.resolve")
	for what, err := range map[string]error{
		"apply":                   second(hub.ApplyLayer.Do(t.Context(), h, agent, list)),
		"undo":                    second(hub.UndoLayer.Do(t.Context(), h, agent, list)),
		"recover":                 second(hub.RecoverLayer.Do(t.Context(), h, agent, s.Layer)),
		"without run.start":       second(hub.ApplyLayer.Do(t.Context(), h, token("layer.apply", "session.read"), list)),
		"one who is no member":    second(hub.ApplyLayer.Do(t.Context(), h, h.peer(4242), list)),
		"a caller without a name": second(hub.ApplyLayer.Do(t.Context(), h, hub.Caller{}, list)),
	} {
		if fault.ReasonOf(err) != "permission_denied" {
			t.Errorf("%s: %v", what, err)
		}
	}
	bob := h.member(1001, access.Operator)
	if _, err := hub.ApplyLayer.Do(t.Context(), h, bob, list); fault.ReasonOf(err) != "not_found" {
		t.Errorf("another's layer: %v", err)
	}
	if _, err := hub.Stop.Do(t.Context(), h, h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.ApplyLayer.Do(t.Context(), h, h.owner, list); fault.ReasonOf(err) != "stopped" {
		t.Errorf("during a stop: %v", err)
	}
	if _, err := hub.Resume.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
		t.Fatal(err)
	}
	if h.has("new") != "-" {
		t.Fatal("the workspace has it")
	}
	r, err := hub.ApplyLayer.Do(t.Context(), h, token("layer.apply", "run.start", "session.read"), list)
	h.did(r, err, "executed", "")
	if h.has("new") != "x" {
		t.Errorf("the workspace has %s", h.has("new"))
	}
}

// asApplier is the variable that makes this test binary a daemon that is killed in the middle of an
// apply: base, binaries, layer, digest and step.
const asApplier = "PALYRA_TEST_HUB_APPLIER"

func beApplier(spec string) int {
	f := strings.Split(spec, "\n")
	ctx := context.Background()
	h, err := open(ctx, f[0], f[1], func(c *Config, kc *kernel.Config) {
		appliable(f[0], f[1])(c, kc)
		kc.TestOnlyStep = func(name string) {
			if name == f[4] {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // until the signal arrives
			}
		}
	})
	if err == nil {
		uid := uint32(os.Geteuid())
		var me hub.Caller
		if me, err = h.Authenticate(ctx, hub.Credential{PeerUID: &uid, Surface: "unix"}); err == nil {
			if _, err = hub.ApplyLayer.Do(ctx, h, me, hub.LayerList{Layer: f[2], LayerListBody: hub.LayerListBody{Digest: f[3]}}); err == nil {
				select {}
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestApplyKilled: a palyrad that is killed in the middle of an apply leaves it whole, or as if it
// had never been, or half: the next one says so, keeps calls from the layer, and ends it when it's
// asked to, or to apply it.
func TestApplyKilled(t *testing.T) {
	for _, c := range []struct {
		step, want string
		half       bool
	}{{"intent", "-", false}, {"begun", "-", true}, {"executed", "x", true}, {"ended", "x", false}} {
		t.Run(c.step, func(t *testing.T) {
			h := applyHouse(t, "@id(\"all\") permit (principal, action, resource);\n")
			ses := h.session(h.owner)
			s := h.in(h.owner, ses, "process.run", sh("echo x >new"), false)
			digest := h.changes(h.owner, s.Layer).Digest.String()
			h.stop()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), asApplier+"="+strings.Join([]string{h.base, bin(t), s.Layer, digest, c.step}, "\n"))
			out, _ := cmd.CombinedOutput()
			if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !st.Signaled() || st.Signal() != syscall.SIGKILL {
				t.Fatalf("it was not killed: %s", out)
			}
			h.reopen(appliable(h.base, bin(t)))
			v := h.changes(h.owner, s.Layer)
			if (v.Layer.State == hub.LayerUnfinished) != c.half {
				t.Fatalf("the layer is %q", v.Layer.State)
			}
			if c.half {
				r, err := hub.Call.Do(t.Context(), h, h.owner, hub.NewCall{Session: ses, Tool: "process.run", Input: json.RawMessage(sh("ls"))})
				if err != nil || r.Steps[0].Reason != "apply_unfinished" {
					t.Errorf("a call meanwhile: %+v, %v", r.Steps, err)
				}
				if _, err := hub.DiscardLayer.Do(t.Context(), h, h.owner, s.Layer); fault.ReasonOf(err) != "apply_unfinished" {
					t.Errorf("discard: %v", err)
				}
				if p, err := hub.ListLayers.Do(t.Context(), h, h.owner, hub.LayerQuery{}); err != nil || p.Items[0].State != hub.LayerUnfinished {
					t.Errorf("%+v, %v", p.Items, err)
				}
				reason := "exit_status" // undone
				if c.want == "-" {
					r, err = hub.RecoverLayer.Do(t.Context(), h, h.owner, s.Layer)
				} else {
					reason = ""
					r, err = hub.ApplyLayer.Do(t.Context(), h, h.owner, hub.LayerList{Layer: s.Layer, LayerListBody: hub.LayerListBody{Digest: digest}})
					h.did(r, err, "", "apply_unfinished")
					r = h.newest()
				}
				if end := h.did(r, err, "executed", reason); end.Tool != "changes.recover" {
					t.Errorf("%+v", end)
				}
			}
			if _, err := hub.RecoverLayer.Do(t.Context(), h, h.owner, s.Layer); fault.ReasonOf(err) != "not_found" {
				t.Errorf("nothing to recover: %v", err)
			}
			if got := h.has("new"); got != c.want {
				t.Errorf("the workspace has %s, want %s", got, c.want)
			}
			if v = h.changes(h.owner, s.Layer); c.want == "-" {
				r, err := hub.ApplyLayer.Do(t.Context(), h, h.owner, hub.LayerList{Layer: s.Layer, LayerListBody: hub.LayerListBody{Digest: v.Digest.String()}})
				h.did(r, err, "executed", "")
			}
			if v = h.changes(h.owner, s.Layer); v.Undo == nil || h.has("new") != "x" {
				t.Errorf("%+v, the workspace has %s", v, h.has("new"))
			}
		})
	}
}

// TestApplyCancelled: an apply whose run is cancelled when its tool is about to run is ended at
// once, by a run of its own.
func TestApplyCancelled(t *testing.T) {
	h := applyHouse(t, asks)
	s := h.in(h.owner, h.session(h.owner), "process.run", sh("echo x >new; for i in $(seq 500); do echo x >n$i; done"), false)
	digest := h.changes(h.owner, s.Layer).Digest.String()
	h.stop()
	id := make(chan string, 1)
	h.reopen(func(c *Config, kc *kernel.Config) {
		appliable(h.base, bin(t))(c, kc)
		kc.TestOnlyStep = func(name string) {
			if name != "begun" {
				return
			}
			select {
			case id := <-id:
				now, over := context.WithCancel(context.Background())
				over() // the run can't end before this returns
				_ = h.runs.Cancel(now, id, run.Stop{Reason: reasonCancelled})
			default:
			}
		}
	})
	r, err := hub.ApplyLayer.Do(t.Context(), h, h.owner, hub.LayerList{Layer: s.Layer, LayerListBody: hub.LayerListBody{Digest: digest}})
	if err != nil {
		t.Fatal(err)
	}
	h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
	id <- r.ID
	h.answer(true)
	h.did(r, nil, "killed", "canceled")
	if end := h.did(h.newest(), nil, "executed", "exit_status"); end.Tool != "changes.recover" || end.Approval != "" {
		t.Errorf("%+v", end)
	}
	if v := h.changes(h.owner, s.Layer); v.Layer.State != hub.LayerChanged || v.Digest.String() != digest || h.has("new") != "-" {
		t.Errorf("%+v, the workspace has %s", v.Layer, h.has("new"))
	}
}

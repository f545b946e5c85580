package run

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/agentloop/turn"
	"palyra/authz/approval"
	"palyra/call"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/toolproto"
)

// reads returns what the gate was told of each call since the last time.
func (h *house) reads() []string {
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	r := h.g.read
	h.g.read = nil
	return r
}

func (h *house) label(session string) call.Inputs {
	h.t.Helper()
	in, err := store.View(h.t.Context(), h.st, func(tx *store.Tx) (call.Inputs, error) { return tx.Inputs(session) })
	if err != nil {
		h.t.Fatal(err)
	}
	return in
}

func (h *house) session() string {
	h.t.Helper()
	s, err := session.Create(h.t.Context(), h.st, alice, "", 100)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.ID
}

func wantReads(t *testing.T, h *house, want ...string) {
	t.Helper()
	if got := h.reads(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLabel: each call is told what its session has read by then, in the same run, in a later one
// and after a restart. What didn't run, and another session, brings nothing.
func TestLabel(t *testing.T) {
	h := open(t, nil)
	id := h.start(Request{KeepGoing: true, Steps: steps("deny {\"from\":\"hosts\"}", "ok", "fs {\"from\":\"files\"}", turn.Tool+" {\"from\":\"hosts\"}",
		"exit {\"from\":\"hosts files\"}", "mcp {\"from\":\"server\"}", "ok")})
	h.ended(id)
	wantReads(t, h, "deny", "ok", "fs", turn.Tool+" project", "exit model project", "mcp model project web", "ok model project tool web")
	in := h.label(h.sess)
	if len(in) != 4 || in[3].Origin != call.OriginWeb || in[3].Tool != "exit" || in[3].Run != id || in[3].Step != 4 || time.Since(in[3].Time) > time.Minute {
		t.Errorf("got %+v", in)
	}
	h.ended(h.start(Request{User: alice, Session: h.session(), Steps: steps("ok")}))
	h.ended(h.start(Request{User: alice, Steps: steps("ok")}))
	wantReads(t, h, "ok", "ok")
	if n := len(h.labels); n != 0 {
		t.Errorf("%d labels are in memory", n)
	}
	h.stop()
	h.reopen(nil)
	h.ended(h.start(Request{Steps: steps("ok")}))
	wantReads(t, h, "ok model project tool web")
}

// TestLabelBeside: what a program that is running may have read is in its session's label already,
// for runs beside it.
func TestLabelBeside(t *testing.T) {
	h := open(t, nil)
	slow := h.start(Request{Parallel: true, Steps: steps("hold {\"from\":\"hosts\"}")})
	<-h.g.in
	h.until(slow, hub.EventStepDecided) // flushed behind the intent
	h.ended(h.start(Request{Parallel: true, Steps: steps("ok")}))
	wantReads(t, h, "hold", "ok web")
	h.g.free <- struct{}{}
	h.ended(slow)
	h.ended(h.start(Request{Steps: steps("ok")}))
	wantReads(t, h, "ok web")
}

// TestLabelGrowsWhileAsked: a call whose question waits is told by then what has come in meanwhile.
func TestLabelGrowsWhileAsked(t *testing.T) {
	h := open(t, nil)
	asking := h.start(Request{Parallel: true, Steps: steps("ask {\"from\":\"files\"}", "ok")})
	h.until(asking, hub.EventRunWaitingApproval)
	h.ended(h.start(Request{Parallel: true, Steps: steps("fetch {\"from\":\"hosts\"}")}))
	q := h.question()
	if _, err := h.Approvals().Resolve(t.Context(), q.ID, 0, approval.By{Principal: "uid:0", Surface: "unix"}, approval.Reply{Approve: true}); err != nil {
		t.Fatal(err)
	}
	h.ended(asking)
	wantReads(t, h, "ask", "fetch", "ok project web")
}

// TestLabelOfComment: a person's words with a no are read.
func TestLabelOfComment(t *testing.T) {
	h := open(t, nil)
	id := h.start(Request{KeepGoing: true, Steps: steps("ask", "ok")})
	h.until(id, hub.EventRunWaitingApproval)
	if _, err := h.Approvals().Resolve(t.Context(), h.question().ID, 0, approval.By{Principal: "uid:0", Surface: "unix"}, approval.Reply{Comment: "use the other one"}); err != nil {
		t.Fatal(err)
	}
	h.ended(id)
	wantReads(t, h, "ask", "ok person")
}

// TestLabelOfOutput: the output of another session of the user's brings what that has read, and
// another user's brings nothing.
func TestLabelOfOutput(t *testing.T) {
	h := open(t, nil)
	long := fmt.Sprintf("print {\"from\":\"hosts\",\"bytes\":%d}", 1<<20)
	r := h.ended(h.start(Request{Steps: steps(long)}))
	d := r.Steps[0].Stdout.Artifact
	if d.IsZero() {
		t.Fatalf("no artifact: %+v", r.Steps[0].Stdout)
	}
	h.reads()
	read := fmt.Sprintf(`%s {"digest":%q}`, toolproto.ArtifactRead, d)
	watch := fmt.Sprintf(`%s {"id":%q}`, toolproto.ProcessOutput, r.ID)
	for _, step := range []string{read, watch} {
		s := h.session()
		h.ended(h.start(Request{User: alice, Session: s, Steps: steps(step, "ok")}))
		name, _, _ := strings.Cut(step, " ")
		wantReads(t, h, name, "ok web")
		if in := h.label(s); len(in) != 1 || in[0].Run != r.ID {
			t.Errorf("%s: %+v", name, in)
		}
		h.ended(h.start(Request{User: "uid:1001", Steps: steps(step, "ok")}))
		wantReads(t, h, name, "ok")
	}
}

// TestLabelRecovered: a process died while a program ran that could reach hosts. The journal has
// its intent, and so the session has read from the web, whatever became of it.
func TestLabelRecovered(t *testing.T) {
	h := open(t, nil)
	id := h.start(Request{Steps: steps("hold {\"from\":\"hosts\"}")})
	h.until(id, hub.EventStepStarted)
	<-h.g.in
	h.dies()
	h.outcomeUnknown(id, "a.example:443")
	h.reopen(nil)
	if r := h.ended(id); r.Steps[0].Outcome != receipt.OutcomeUnknown {
		t.Fatalf("%+v", r.Steps[0])
	}
	if in := h.label(h.sess); len(in) != 1 || in[0].Origin != call.OriginWeb || in[0].Run != id {
		t.Errorf("got %+v", in)
	}
	h.reads()
	h.ended(h.start(Request{Steps: steps("ok")}))
	wantReads(t, h, "ok web")
}

// TestLabelNeverShrinks: no sequence of runs and restarts takes an origin out of a label, and each
// call is told exactly what those before it brought.
func TestLabelNeverShrinks(t *testing.T) {
	h := open(t, nil)
	sessions := []string{h.sess, h.session()}
	want := make([]call.Inputs, len(sessions))
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 40 {
		i := rnd.IntN(len(sessions))
		var plan []hub.Step
		var told []string
		for range 1 + rnd.IntN(3) {
			tool := []string{"ok", "deny", "exit", "print", turn.Tool}[rnd.IntN(5)]
			from := []string{"", "files", "hosts", "server", "files hosts"}[rnd.IntN(5)]
			in, _ := json.Marshal(map[string]string{"from": from})
			plan = append(plan, hub.Step{Tool: tool, Input: in})
			told = append(told, strings.Join(append([]string{tool}, want[i].Origins()...), " "))
			switch {
			case tool == "deny":
			case tool == turn.Tool:
				want[i] = want[i].Join(call.Input{Origin: call.OriginModel})
			default:
				for word, origin := range map[string]string{"files": call.OriginProject, "hosts": call.OriginWeb, "server": call.OriginTool} {
					if strings.Contains(from, word) {
						want[i] = want[i].Join(call.Input{Origin: origin})
					}
				}
			}
		}
		h.ended(h.start(Request{User: alice, Session: sessions[i], KeepGoing: true, Steps: plan}))
		wantReads(t, h, told...)
		if rnd.IntN(8) == 0 {
			h.stop()
			h.reopen(nil)
		}
		for n, s := range sessions {
			if got := h.label(s).Origins(); !slices.Equal(got, want[n].Origins()) {
				t.Fatalf("session %d: got %q, want %q", n, got, want[n].Origins())
			}
		}
	}
}

// dies ends the engine as a crash does: its store is closed under it.
func (h *house) dies() {
	h.t.Helper()
	if err := h.st.Close(); err != nil {
		h.t.Fatal(err)
	}
	dead := h.Engine
	h.Engine = nil
	h.t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		dead.Close(now)
	})
}

// outcomeUnknown puts into the journal that the call of a run had an intent, and no more.
func (h *house) outcomeUnknown(run string, hosts ...string) {
	h.t.Helper()
	zero := canon.Sum(nil)
	st := receipt.NewStatement(receipt.Predicate{Version: receipt.PredicateVersion, CallID: "call_00000000000000000000000000000001", Time: "2026-01-01T00:00:00Z",
		Tool: "hold", Principal: `Palyra::User::"` + alice + `"`, SessionID: h.sess, RunID: run, Outcome: receipt.OutcomeUnknown, Intent: new(uint64),
		Capsule:  receipt.Capsule{Digest: zero, Argv: []string{"/bin/x"}, EgressHosts: hosts, TierFloor: "c"},
		Question: &receipt.Question{Roles: []string{}}, Decision: receipt.Decision{Effect: "allow", PolicySet: zero},
		Error: &receipt.Error{Kind: "unknown", Reason: "interrupted"}}, canon.Digest{}, canon.Digest{})
	payload, err := canon.Marshal(st)
	if err != nil {
		h.t.Fatal(err)
	}
	entry, err := canon.Marshal(receipt.Envelope{Payload: payload, PayloadType: keyring.StatementType, Signatures: []receipt.Signature{{Sig: []byte{1}}}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.g.past = slices.Repeat([][]byte{entry}, int(h.g.log)+1) // behind those of earlier calls
}

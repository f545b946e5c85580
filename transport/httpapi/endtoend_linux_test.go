package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/hub/local"
	"palyra/hub/store"
	"palyra/internal/built"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/tool"
	"palyra/transport/client"
)

// newHouse opens the real hub over kernel, store and cells, as palyrad does.
func newHouse(t testing.TB) (h *local.Hub, work string) {
	t.Helper()
	bins := os.Getenv("PALYRA_TEST_BIN")
	if bins == "" {
		bins = t.TempDir()
		if err := built.Into(bins, "palyra-cell", "palyra-tool"); err != nil {
			t.Fatal(err)
		}
	}
	base := t.TempDir()
	work = filepath.Join(base, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	table := tool.New(tool.Config{Program: filepath.Join(bins, "palyra-tool"), Workspaces: map[string]tool.Workspace{"src": {Path: work}}})
	k, err := kernel.Open(t.Context(), kernel.Config{StateDir: filepath.Join(base, "state"), CellPath: filepath.Join(bins, "palyra-cell"), Tools: table})
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(base, "store"), store.Options{})
	if err != nil {
		t.Fatal(errors.Join(err, k.Close()))
	}
	h, err = local.Open(t.Context(), local.Config{Kernel: k, Store: st, AllowSelf: true, Version: "test", Profile: "local", Tools: func() (out []hub.Tool) {
		for _, i := range table.List() {
			limits, err := json.Marshal(i.Limits)
			if err != nil {
				panic(err)
			}
			out = append(out, hub.Tool{Name: i.Name, InputSchema: i.InputSchema, Limits: limits})
		}
		return out
	}})
	if err != nil {
		t.Fatal(errors.Join(err, st.Close(), k.Close()))
	}
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		if err := errors.Join(h.Close(now), st.Close(), k.Close()); err != nil {
			t.Error(err)
		}
	})
	return h, work
}

// TestEndToEnd puts calls through socket, hub, kernel and cell: what is sent and
// answered is as the document says with the real hub too.
func TestEndToEnd(t *testing.T) {
	h, work := newHouse(t)
	r := newRig(t, func(c *Config) { c.Hub = h })
	c, err := client.New(client.Config{Socket: r.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	me := hub.Caller{}

	// A call, its receipt and its place in the journal.
	var run hub.Run
	r.want(r.send(post, "/api/v1/calls", `{"tool":"palyra.echo","input":{"text":"a <b>"}}`), 200).into(t, &run)
	s := run.Steps[0]
	if run.State != hub.RunDone || s.Outcome != "executed" || !strings.Contains(s.Stdout.Text, "a <b>") || s.LogIndex == nil {
		t.Fatalf("run %+v", run)
	}
	if b, err := hub.GetReceipt.Do(ctx, c, me, *s.LogIndex); err != nil || !json.Valid(b) {
		t.Errorf("receipt: %v", err)
	}
	if p, err := hub.ProveJournalEntry.Do(ctx, c, me, *s.LogIndex); err != nil || p.Index != *s.LogIndex {
		t.Errorf("proof: %+v, %v", p, err)
	}
	// A call that waits for an answer, followed from the beginning in both formats.
	id, _ := r.session()
	body := `{"session":"` + id + `","steps":[{"tool":"fs.write_file","input":{"workspace":"src","path":"a.txt","mode":"create","content":"hi"}}]}`
	key := r.key()
	r.want(r.send(post, "/api/v1/runs", body, key), 201).into(t, &run)
	r.want(r.send(post, "/api/v1/runs", body, key), 201)
	r.refused(r.send(post, "/api/v1/runs", strings.Replace(body, "hi", "ho", 1), key), 422, "idempotency_key_reused")
	tape, err := hub.ReadTape.Do(ctx, c, me, hub.TapeQuery{Run: run.ID})
	if err != nil {
		t.Fatal(err)
	}
	defer tape.Close()
	var kinds []string
	for {
		ev, err := tape.Next(ctx)
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, ev.Kind)
		if ev.Kind != hub.EventApprovalRequested {
			continue
		}
		var a hub.Approval
		if err := json.Unmarshal(ev.Data, &a); err != nil {
			t.Fatal(err)
		}
		r.refused(r.send(post, "/api/v1/approvals/"+a.ID+"/resolve", `{"approve":true}`), 428, "invalid_input")
		r.want(r.send(post, "/api/v1/approvals/"+a.ID+"/resolve", `{"approve":true}`, "If-Match: "+etag(a.Version)), 200)
		r.refused(r.send(post, "/api/v1/approvals/"+a.ID+"/resolve", `{"approve":false}`, "If-Match: "+etag(a.Version)), 412, "version_conflict")
	}
	if b, err := os.ReadFile(filepath.Join(work, "a.txt")); err != nil || string(b) != "hi" {
		t.Errorf("what was approved: %q, %v; tape %v", b, err, kinds)
	}
	a := r.want(r.send(get, "/api/v1/runs/"+run.ID+"/tape", "", "Accept: application/x-ndjson"), 200)
	if got := strings.Count(string(a.body), "\n"); got != len(kinds) || kinds[len(kinds)-1] != hub.EventRunDone {
		t.Errorf("%d events read again, %d followed: %v", got, len(kinds), kinds)
	}
	// The same in the words of the original, from the records and the receipt.
	view, err := hub.ReadTape.Do(ctx, c, me, hub.TapeQuery{Run: run.ID, View: hub.ViewTools})
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	data := map[string]string{}
	for {
		ev, err := view.Next(ctx)
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		data[ev.Kind] = string(ev.Data)
	}
	if !strings.Contains(data[hub.EventToolProposal], `"content":"hi"`) || !strings.Contains(data[hub.EventToolDecision], `"approval_required":true`) ||
		!strings.Contains(data[hub.EventToolAttestation], `"executor":"sandbox_tier_c_linux_native"`) || len(data) < 8 {
		t.Errorf("view: %q", data)
	}
	// Cancel a program that runs.
	run, err = hub.StartRun.Do(ctx, c, me, hub.NewRun{Session: id, Steps: []hub.Step{{Tool: "palyra.sleep", Input: json.RawMessage(`{"ms":30000}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	if run, err = hub.CancelRun.Do(ctx, c, me, run.ID); err != nil || run.State != hub.RunCancelled {
		t.Errorf("cancelled: %+v, %v", run, err)
	}
	// Everything that can be read, held against the document.
	for _, p := range []string{"/status", "/config", "/tools", "/policy", "/journal", "/journal/entries?limit=3", "/journal/consistency?old=1",
		"/journal/checkpoint", "/tokens", "/members", "/approvals", "/runs?state=done", "/sessions", "/openapi.json"} {
		r.want(r.send(get, "/api/v1"+p, ""), 200)
	}
	r.want(r.send(get, "/metrics", ""), 200)
	r.want(r.send(post, "/api/v1/policy/explain", `{"tool":"process.run","input":{"argv":["/bin/sh","-c","true"]}}`), 200)
	r.want(r.send(post, "/api/v1/policy/test", `{}`), 200)
	r.want(r.send(post, "/api/v1/policy/diff", `{"candidate":{"files":{"a.cedar":"@id(\"a\") permit (principal, action, resource);"}},"last":10}`), 200)

	// A token over TCP does what its scopes say, and nothing after it was revoked.
	tok, err := hub.CreateToken.Do(ctx, c, me, hub.NewToken{Name: "ci", Scopes: []string{"session.read", "run.start"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	auth := "Authorization: Bearer " + tok.Secret
	r.want(r.sendTCP(post, "/api/v1/calls", `{"tool":"palyra.echo","input":{"text":"x"}}`, auth), 200)
	r.refused(r.sendTCP(get, "/api/v1/members", "", auth), 403, "scope_missing")
	var denied hub.Run
	r.want(r.sendTCP(post, "/api/v1/calls", `{"tool":"process.run","input":{"argv":["/bin/sh","-c","true"]}}`, auth), 200).into(t, &denied)
	// Without policy.read it is told the decision's id, here and on the tape.
	if d := denied.Steps[0].Denial; denied.Steps[0].Outcome != "denied" || d == nil || d.DecisionID == "" || len(d.Policies) > 0 || d.Fix != "" || denied.Steps[0].Error != "" {
		t.Errorf("denied call: %+v, %+v", denied.Steps[0], d)
	}
	told := r.want(r.sendTCP(get, "/api/v1/runs/"+denied.ID+"/tape", "", auth, "Accept: application/x-ndjson"), 200)
	whole := r.want(r.send(get, "/api/v1/runs/"+denied.ID+"/tape", "", "Accept: application/x-ndjson"), 200)
	rules := `"policies":["interpreters_unless_permitted"`
	if strings.Contains(string(told.body), rules) || !strings.Contains(string(whole.body), rules) || strings.Contains(string(whole.body), `"fix":`) || !strings.Contains(string(told.body), denied.Steps[0].Denial.DecisionID) {
		t.Errorf("tape of a denied call: told %s\nwhole %s", told.body, whole.body)
	}
	// A program that failed in its cell has a diagnosis: in the answer, in the run and on the tape.
	for _, f := range []struct{ input, code, basis, setting string }{
		{`{"argv":["/bin/sleep","600"],"timeout_ms":50}`, "time_limit", "observed", "timeout_ms"},
		{`{"argv":["/bin/cat","/srv/x/y"]}`, "not_shown", "guess", "workspace"},
		{`{"argv":["/bin/false"]}`, "", "", ""},
	} {
		var run hub.Run
		r.want(r.sendTCP(post, "/api/v1/calls", `{"tool":"process.run","input":`+f.input+`}`, auth), 200).into(t, &run)
		if run.Steps[0].Exit == 0 {
			t.Errorf("%s: %+v", f.input, run.Steps[0])
		}
		kept, err := hub.GetRun.Do(ctx, c, me, run.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []*hub.Diagnosis{run.Steps[0].Diagnosis, kept.Steps[0].Diagnosis} {
			if d == nil {
				d = new(hub.Diagnosis)
			}
			if d.Code != f.code || d.Basis != f.basis || d.Input != f.setting || strings.Contains(d.Text, "/srv") {
				t.Errorf("%s: diagnosis %+v of %+v", f.input, d, run.Steps[0])
			}
		}
		tape := r.want(r.sendTCP(get, "/api/v1/runs/"+run.ID+"/tape", "", auth, "Accept: application/x-ndjson"), 200)
		if said := strings.Contains(string(tape.body), `"diagnosis":{"code":"`+f.code+`"`); said != (f.code != "") {
			t.Errorf("%s: tape %s", f.input, tape.body)
		}
	}
	if _, err := hub.RevokeToken.Do(ctx, c, me, hub.TokenChange{ID: tok.ID, Version: tok.Version}); err != nil {
		t.Fatal(err)
	}
	r.refused(r.sendTCP(get, "/api/v1/status", "", auth), 401, "unauthenticated")
	if strings.Contains(r.log.String(), tok.Secret) {
		t.Error("the token is in the log")
	}
	r.refused(r.send(http.MethodDelete, "/api/v1/members/uid:0", "", `If-Match: "v99"`), 412, "version_conflict")
	if _, err := hub.StartRun.Do(ctx, c, me, hub.NewRun{Session: id}); fault.KindOf(err) != fault.Usage {
		t.Errorf("run without steps: %v", err)
	}
}

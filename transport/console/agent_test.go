package console

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"palyra/hub"
)

// TestAgentAsked: the form begins one run of an agent, in the session that it names or a new one.
func TestAgentAsked(t *testing.T) {
	var begun []hub.NewRun
	var made int
	h := hub.NewTable(
		answer(hub.ListModels, hub.Page[hub.Model]{Items: []hub.Model{{Name: "main", Model: "gpt", Default: true}, {Name: "off", Reason: "egress_lost"}}}, nil),
		hub.CreateSession.By(func(context.Context, hub.Caller, hub.NewSession) (hub.Session, error) {
			made++
			return hub.Session{ID: "ses_new"}, nil
		}),
		hub.StartRun.By(func(_ context.Context, _ hub.Caller, n hub.NewRun) (hub.Run, error) {
			begun = append(begun, n)
			return hub.Run{ID: "run_1"}, nil
		}))
	w, err := visit(t, h, "agent?session=ses_old", nil)
	if err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), `name="session" value="ses_old"`, `<option value="main" selected>`, `<option value="off" disabled>`)
	for _, session := range []string{"ses_old", ""} {
		w, err = visit(t, h, "agent", url.Values{"session": {session}, "key": {"K"}, "prompt": {"do it"}, "model": {"main"}, "staged": {"on"}})
		if err != nil || w.Code != http.StatusSeeOther || !strings.HasPrefix(w.Header().Get("Location"), "/console/runs/run_1") {
			t.Errorf("%d %q: %v", w.Code, w.Header().Get("Location"), err)
		}
	}
	if made != 1 || len(begun) != 2 || begun[0].Session != "ses_old" || begun[1].Session != "ses_new" {
		t.Fatalf("%d sessions made; begun %+v", made, begun)
	}
	if n := begun[0]; n.Agent.Prompt != "do it" || n.Agent.Model != "main" || !n.Staged || n.IdempotencyKey != "console-K" {
		t.Errorf("%+v", n)
	}
	h = hub.NewTable(answer(hub.ListModels, hub.Page[hub.Model]{}, nil))
	if w, err = visit(t, h, "agent", nil); err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), "No model is declared", "-<textarea")
}

// TestAgentRun: a run of an agent shows its prompt, what the model said in words, and its answer.
func TestAgentRun(t *testing.T) {
	lines := `{"text":"I look "}` + "\n" + `{"text":"into <b>it</b>."}` + "\n" + `{"call":{"arguments":"{\"path\":\".\"}","id":"1","name":"fs_list_dir"}}` + "\n" +
		`{"end":"calls","usage":{"input":7,"output":3}}` + "\n"
	at := "run_" + strings.Repeat("a", 32)
	r := hub.Run{ID: at, State: hub.RunDone, Agent: &hub.Agent{Prompt: "what <i>is</i> it"}, Answer: &hub.AgentEnded{Text: "it is fine", Turns: 2, Usage: hub.AgentUsage{Input: 7, Output: 3}},
		Steps: []hub.StepResult{{Tool: hub.ToolModel, State: hub.StepDone, Outcome: "executed", Input: json.RawMessage(`{"digest":"sha256:0"}`), Stdout: hub.Output{Text: lines, Size: int64(len(lines))}}}}
	h := hub.NewTable(answer(hub.GetRun, r, nil), answer(hub.ListApprovals, hub.Page[hub.Approval]{}, nil))
	w, err := visit(t, h, "runs/"+at, nil)
	if err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), "what &lt;i&gt;is&lt;/i&gt; it", "it is fine", "I look into &lt;b&gt;it&lt;/b&gt;.", "<code>fs_list_dir</code>", "-&#34;text&#34;")
}

// TestSaid: what a model said is read from a part of its output, too.
func TestSaid(t *testing.T) {
	whole := `{"text":"one "}` + "\n" + `{"text":"two"}` + "\n" + `{"error":{"class":"rate_limited","message":"later"}}` + "\n"
	for _, c := range []struct {
		in   string
		want hub.Said
	}{
		{whole, hub.Said{Text: "one two", Error: "rate_limited: later"}},
		{whole[3:], hub.Said{Text: "two", Error: "rate_limited: later", Cut: true}},
		{whole[:len(whole)-3], hub.Said{Text: "one two", Cut: true}},
		{"", hub.Said{}},
		{"not a line of it\n", hub.Said{Cut: true}},
	} {
		if got := hub.SaidIn(c.in); got.Text != c.want.Text || got.Error != c.want.Error || got.Cut != c.want.Cut {
			t.Errorf("%q: %+v", c.in, got)
		}
	}
}

package console

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/canon"
)

// TestAgentAsked: the form begins one run of an agent, in the session that it names or a new one.
func TestAgentAsked(t *testing.T) {
	var begun []hub.NewRun
	var made int
	h := hub.NewTable(
		answer(hub.ListModels, hub.Page[hub.Model]{Items: []hub.Model{{Name: "main", Model: "gpt", Default: true}, {Name: "off", Reason: "egress_lost"}}}, nil),
		answer(hub.GetUsage, hub.Usage{}, nil), answer(hub.ListInstructions, hub.Page[hub.Instructions]{}, nil),
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
	h = hub.NewTable(answer(hub.ListModels, hub.Page[hub.Model]{}, nil), answer(hub.GetUsage, hub.Usage{}, nil), answer(hub.ListInstructions, hub.Page[hub.Instructions]{}, nil))
	if w, err = visit(t, h, "agent", nil); err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), "No model is declared", "-<textarea", "None.")
}

// TestAgentTook: the page says what the visitor's turns took today, and what is left of budgets.
func TestAgentTook(t *testing.T) {
	var asked hub.UsageQuery
	h := hub.NewTable(answer(hub.ListModels, hub.Page[hub.Model]{}, nil), answer(hub.ListInstructions, hub.Page[hub.Instructions]{}, nil),
		hub.GetUsage.By(func(_ context.Context, _ hub.Caller, q hub.UsageQuery) (hub.Usage, error) {
			asked = q
			return hub.Usage{Items: []hub.DayUsage{{Model: "<b>m", Took: hub.UsageCount{Turns: 3, Sized: 1, AgentUsage: hub.AgentUsage{Input: 1234, Output: 56, Cost: 2500000}}}},
				Budgets: []hub.UsageBudget{{Of: hub.UsageDay, Unit: hub.UsageTokens, Most: 1290, Used: 1290}, {Of: hub.UsageDay, Unit: hub.UsageCost, Most: 10000000, Used: 2500000, Left: 7500000}}}, nil
		}))
	w, err := visit(t, h, "agent", nil)
	if err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), "&lt;b&gt;m", "3, 1 by size", "1234", "56", `<p class="warn">Tokens: 1290 of 1290, 0 left.`, `<p class="soft">Cost: 2.5 of 10, 7.5 left.`)
	if (asked != hub.UsageQuery{Days: 1}) {
		t.Errorf("%+v", asked)
	}
}

// TestInstructionsPage: instructions are read by a click, shown as text with what they hide, and
// accepted by the digest that the page had: those with hidden text with a second word.
func TestInstructionsPage(t *testing.T) {
	digest := canon.Sum([]byte("x"))
	i := hub.Instructions{Workspace: "src", State: hub.InstructionsNew, File: "AGENTS.md", Digest: digest, Text: "do <b>it</b>\u202e\n"}
	var looked []string
	var accepted []hub.InstructionsAcceptance
	h := hub.NewTable(answer(hub.ListModels, hub.Page[hub.Model]{}, nil), answer(hub.GetUsage, hub.Usage{}, nil),
		answer(hub.ListInstructions, hub.Page[hub.Instructions]{Items: []hub.Instructions{{Workspace: "<i>w", Accepted: &hub.Instructed{File: "CLAUDE.md", Digest: digest, Anyway: true}}}}, nil),
		hub.InspectInstructions.By(func(_ context.Context, _ hub.Caller, w string) (hub.Instructions, error) {
			looked = append(looked, w)
			return i, nil
		}),
		hub.AcceptInstructions.By(func(_ context.Context, _ hub.Caller, a hub.InstructionsAcceptance) (hub.Instructions, error) {
			accepted = append(accepted, a)
			return i, nil
		}),
		hub.RevokeInstructions.By(func(_ context.Context, _ hub.Caller, w string) (hub.None, error) {
			looked = append(looked, "revoke "+w)
			return hub.None{}, nil
		}))
	show := func() string {
		t.Helper()
		w, err := visit(t, h, "agent/instructions", url.Values{"workspace": {"src"}})
		if err != nil {
			t.Fatal(err)
		}
		return w.Body.String()
	}
	w, err := visit(t, h, "agent", nil)
	if err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), "&lt;i&gt;w", "CLAUDE.md", "with hidden text", "/console/agent/instructions/revoke")
	if len(looked) != 0 {
		t.Error("the agent's page made calls")
	}
	const accept = `action="/console/agent/instructions/accept"`
	has(t, show(), "do &lt;b&gt;it&lt;/b&gt;⟦U+202E⟧", digest.String(), "you have accepted none", accept, `-name="anyway"`)
	i.Signals, i.State, i.Accepted = []hub.Signal{{Code: "hidden_text.bidi", From: 12, To: 15}}, hub.InstructionsChanged, &hub.Instructed{File: "AGENTS.md", By: "uid:1"}
	has(t, show(), "hidden_text.bidi", "bytes 12 to 15", `name="anyway" required`, "by uid:1")
	i.State = hub.InstructionsAccepted
	has(t, show(), "-"+accept)
	i = hub.Instructions{Workspace: "src", State: hub.InstructionsNone}
	has(t, show(), "has none", "-"+accept)

	yes := url.Values{"workspace": {"src"}, "digest": {"sha256:d"}}
	for at, did := range map[string]string{"accept": "accepted", "revoke": "disowned"} {
		w, err := visit(t, h, "agent/instructions/"+at, yes)
		if err != nil || w.Header().Get("Location") != "/console/agent?said="+did {
			t.Errorf("%s: %v, %v", at, w.Header(), err)
		}
	}
	yes.Set("anyway", "on")
	if _, err := visit(t, h, "agent/instructions/accept", yes); err != nil {
		t.Error(err)
	}
	if len(accepted) != 2 || accepted[0].Anyway || !accepted[1].Anyway || accepted[0].Workspace != "src" || accepted[0].Digest != "sha256:d" || looked[len(looked)-1] != "revoke src" {
		t.Errorf("%+v, %q", accepted, looked)
	}
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

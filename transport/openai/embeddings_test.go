package openai

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"palyra/agentloop/turn"
	"palyra/hub"
)

// newVectors is a palyrad with a model that makes embeddings. Each run answers with these vectors.
func newVectors(t *testing.T, vectors ...[]float32) *fake {
	var events []turn.Event
	for _, v := range vectors {
		events = append(events, turn.Event{Vector: turn.NewVector(v)})
	}
	f := newFake(t, step{tool: turn.Tool, output: lines(append(events, turn.Event{End: turn.EndStop, Usage: &turn.Usage{Input: 6}})...)})
	f.Table = hub.NewTable(
		hub.ListModels.By(func(context.Context, hub.Caller, hub.None) (hub.Page[hub.Model], error) {
			return hub.Page[hub.Model]{Items: []hub.Model{{Name: "main", Provider: turn.Chat, Kind: hub.ModelTurns, Default: true}, {Name: "vectors", Provider: turn.Responses, Model: "large", Kind: hub.ModelEmbeddings}}}, nil
		}),
		hub.CreateSession.By(f.createSession), hub.EndSession.By(f.endSession), hub.StartRun.By(f.startRun), hub.GetRun.By(f.getRun), hub.CancelRun.By(f.cancelRun),
		hub.ReadTape.By(f.readTape), hub.ReadOutput.By(f.readOutput),
	)
	return f
}

// TestEmbeddings: vectors come in the order of the texts and in the form that is asked for, of a run
// of one step.
func TestEmbeddings(t *testing.T) {
	for _, cut := range []int{0, 1, 7} {
		f, h := newVectors(t, []float32{0.5, -1.25}, []float32{3e-9, 7}), NewHandler()
		f.cut = cut
		w := f.ask(h, "POST", pathEmbeddings, `{"model":"vectors","input":["a","b"],"dimensions":2,"user":"u"}`)
		o := f.object(w, 200)
		if o["object"] != "list" || o["model"] != "vectors" || len(o["data"].([]any)) != 2 || at(o, "data", 1, "index") != 1.0 || at(o, "data", 0, "object") != "embedding" ||
			!strings.Contains(w.Body.String(), `"embedding":[0.5,-1.25]`) || !strings.Contains(w.Body.String(), `"embedding":[3e-9,7]`) ||
			at(o, "usage", "prompt_tokens") != 6.0 || at(o, "usage", "total_tokens") != 6.0 || at(o, "palyra", "receipts", 0) != 40.0 || at(o, "palyra", "lane") != "raw" {
			t.Errorf("cut at %d: %s", cut, w.Body)
		}
		if got := f.started[0]; got.Agent != nil || len(got.Steps) != 1 || string(got.Steps[0].Input) != `{"model":"vectors","request":{"embed":{"dimensions":2,"input":["a","b"]}}}` || f.sessions[got.Session] != hub.SessionEnded {
			t.Errorf("%+v", got)
		}
		o = f.object(f.ask(h, "POST", pathEmbeddings, `{"model":"vectors","input":["a","b"],"encoding_format":"base64"}`), 200)
		text, _ := at(o, "data", 1, "embedding").(string)
		if b, err := base64.StdEncoding.DecodeString(text); err != nil || !slices.Equal(turn.Vector(b).Numbers(), []float32{3e-9, 7}) {
			t.Errorf("cut at %d: %v", cut, o)
		}
	}
	f := newVectors(t, []float32{1})
	if o := f.object(f.ask(NewHandler(), "POST", pathEmbeddings, `{"model":"vectors","input":"a"}`), 200); len(o["data"].([]any)) != 1 || string(f.started[0].Steps[0].Input) != `{"model":"vectors","request":{"embed":{"input":["a"]}}}` {
		t.Error(o)
	}
	if o := f.object(f.ask(NewHandler(), "POST", pathEmbeddings, `{"model":"vectors","input":["a","b"]}`), 502); at(o, "error", "code") != turn.Malformed {
		t.Errorf("one of two: %v", o)
	}
	var ids []string
	for _, m := range f.object(f.ask(NewHandler(), "GET", pathModels, ""), 200)["data"].([]any) {
		ids = append(ids, at(m, "id").(string))
	}
	if got := strings.Join(ids, " "); got != "main vectors agent/main agent" {
		t.Error(got)
	}
	if o := f.object(f.ask(NewHandler(), "GET", pathModels+"/vectors", ""), 200); at(o, "palyra", "kind") != hub.ModelEmbeddings || o["owned_by"] != turn.Responses {
		t.Error(o)
	}
}

// TestEmbeddingsRefused: what isn't supported is refused by name, and no run begins.
func TestEmbeddingsRefused(t *testing.T) {
	f, h := newVectors(t, []float32{1}), NewHandler()
	for _, c := range []struct{ path, body, param, code string }{
		{pathEmbeddings, `{}`, "model", "missing_required_parameter"},
		{pathEmbeddings, `{"model":"vectors"}`, "input", "missing_required_parameter"},
		{pathEmbeddings, `{"model":"vectors","input":""}`, "input", "missing_required_parameter"},
		{pathEmbeddings, `{"model":"vectors","input":[]}`, "input", "invalid_value"},
		{pathEmbeddings, `{"model":"vectors","input":7}`, "input", "invalid_type"},
		{pathEmbeddings, `{"model":"vectors","input":["a",""]}`, "input[1]", "invalid_value"},
		{pathEmbeddings, `{"model":"vectors","input":["a",null]}`, "input[1]", "invalid_value"},
		{pathEmbeddings, `{"model":"vectors","input":[1,2]}`, "input[0]", "unsupported_value"},
		{pathEmbeddings, `{"model":"vectors","input":["a",[1,2]]}`, "input[1]", "unsupported_value"},
		{pathEmbeddings, `{"model":"vectors","input":[{}]}`, "input[0]", "invalid_type"},
		{pathEmbeddings, fmt.Sprintf(`{"model":"vectors","input":[%s"a"]}`, strings.Repeat(`"a",`, turn.MaxInputs)), "input", "invalid_value"},
		{pathEmbeddings, `{"model":"vectors","input":"a","dimensions":0}`, "dimensions", "invalid_value"},
		{pathEmbeddings, `{"model":"vectors","input":"a","dimensions":4097}`, "dimensions", "invalid_value"},
		{pathEmbeddings, `{"model":"vectors","input":"a","encoding_format":"int8"}`, "encoding_format", "unsupported_value"},
		{pathEmbeddings, `{"model":"vectors","input":"a","input_type":"query"}`, "input_type", "unsupported_parameter"},
		{pathEmbeddings, `{"model":"main","input":"a"}`, "model", "unsupported_value"},
		{pathEmbeddings, `{"model":"agent","input":"a"}`, "model", "unsupported_value"},
		{pathChat, `{"model":"vectors","messages":[{"role":"user","content":"a"}]}`, "model", "unsupported_value"},
		{pathResponses, `{"model":"vectors","input":"a"}`, "model", "unsupported_value"},
	} {
		o := f.object(f.ask(h, "POST", c.path, c.body), 400)
		if at(o, "error", "param") != c.param || at(o, "error", "code") != c.code {
			t.Errorf("%s %.80s: %v", c.path, c.body, o)
		}
	}
	if o := f.object(f.ask(h, "POST", pathEmbeddings, `{"model":"agent/vectors","input":"a"}`), 404); at(o, "error", "code") != "model_not_found" {
		t.Error(o)
	}
	if len(f.started) > 0 || len(f.sessions) > 0 {
		t.Errorf("%d runs began in %d sessions", len(f.started), len(f.sessions))
	}
	for class, status := range map[string]int{turn.AuthInvalid: 502, turn.RateLimited: 429, turn.ContextWindow: 400, turn.Malformed: 502, turn.TimedOut: 504} {
		f := newVectors(t)
		f.steps = []step{{tool: turn.Tool, output: lines(turn.Event{Error: &turn.Error{Class: class, Message: "m", RetryAfter: 1500}}), result: hub.StepResult{Exit: 1}}}
		f.end = hub.Run{State: hub.RunFailed, Reason: "step_failed"}
		w := f.ask(NewHandler(), "POST", pathEmbeddings, `{"model":"vectors","input":"a"}`)
		if o := f.object(w, status); at(o, "error", "code") == nil || w.Header().Get("Retry-After") != "2" {
			t.Errorf("%s: %v", class, o)
		}
	}
	f = newVectors(t)
	f.steps = []step{{tool: turn.Tool, result: hub.StepResult{State: "failed", Reason: "budget_tokens", Error: "it has taken enough", Denial: &hub.Denial{Layer: hub.LayerBudget, Reason: "budget_tokens"}}}}
	f.end = hub.Run{State: hub.RunFailed, Reason: "budget_tokens"}
	if o := f.object(f.ask(NewHandler(), "POST", pathEmbeddings, `{"model":"vectors","input":"a"}`), 429); at(o, "error", "code") != "insufficient_quota" || at(o, "error", "palyra", "reason") != "budget_tokens" {
		t.Error(o)
	}
}

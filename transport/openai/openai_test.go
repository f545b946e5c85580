package openai

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/transport/behind"
)

const hello = `{"model":"main","messages":[{"role":"user","content":"hello"}]}`

// TestModels: a model that can't be asked isn't there.
func TestModels(t *testing.T) {
	f, h := newFake(t), NewHandler()
	var ids []string
	list, _ := f.object(f.ask(h, "GET", "/v1/models", ""), 200)["data"].([]any)
	for _, m := range list {
		ids = append(ids, at(m, "id").(string))
	}
	if got := strings.Join(ids, " "); got != "main claude gpt agent/main agent agent/claude agent/gpt" {
		t.Error(got)
	}
	if o := f.object(f.ask(h, "GET", "/v1/models/gone", ""), 404); at(o, "error", "code") != "model_not_found" {
		t.Error(o)
	}
}

// TestChat: an answer is the same however its output is cut, whole or as a stream, and where it
// can't be followed while it comes.
func TestChat(t *testing.T) {
	for _, cut := range []int{0, 1, 7, 100} {
		f, h := newFake(t, says("I am here é.")), NewHandler()
		f.cut, f.noOutput = cut, cut == 100
		o := f.object(f.ask(h, "POST", pathChat, hello), 200)
		if at(o, "choices", 0, "message", "content") != "I am here é." || at(o, "choices", 0, "finish_reason") != "stop" || at(o, "usage", "total_tokens") != 8.0 || at(o, "palyra", "receipts", 0) != 40.0 {
			t.Errorf("cut at %d: %v", cut, o)
		}
		w := f.ask(h, "POST", pathChat, strings.Replace(hello, "{", `{"stream":true,"stream_options":{"include_usage":true},`, 1))
		text := ""
		for _, d := range data(w) {
			var o object
			if json.Unmarshal([]byte(d), &o) == nil {
				s, _ := at(o, "choices", 0, "delta", "content").(string)
				text += s
			}
		}
		if !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") || text != "I am here é." || !strings.Contains(w.Body.String(), `"total_tokens":8`) {
			t.Errorf("cut at %d: %s", cut, w.Body)
		}
		for id, state := range f.sessions {
			if state != hub.SessionEnded {
				t.Errorf("the session %s stays open", id)
			}
		}
	}
}

// data returns the data of a stream's events.
func data(w *httptest.ResponseRecorder) (out []string) {
	for line := range strings.Lines(w.Body.String()) {
		if d, ok := strings.CutPrefix(line, "data: "); ok {
			out = append(out, strings.TrimSpace(d))
		}
	}
	return out
}

// TestAsked: what the model is asked is what the request says, whichever protocol says it.
func TestAsked(t *testing.T) {
	const want = `{"choice":"any","max_tokens":9,"messages":[{"parts":[{"text":"q"}],"role":"user"},{"parts":[{"text":"a"},{"call":{"arguments":"{\"x\":1}","id":"c","name":"f"}}],"role":"assistant"},` +
		`{"parts":[{"result":{"id":"c","text":"r"}},{"text":"more"}],"role":"user"}],"one_call":true,"system":"s","temperature":0.5,"tools":[{"description":"d","name":"f","schema":{"type":"object"}}],"top_p":1}`
	for path, body := range map[string]string{
		pathChat: `{"model":"main","temperature":0.5,"top_p":1,"max_completion_tokens":9,"parallel_tool_calls":false,"tool_choice":"required","n":1,"user":"me","store":false,
			"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],
			"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"q"}]},
			{"role":"assistant","content":"a","refusal":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
			{"role":"tool","tool_call_id":"c","content":"r"},{"role":"user","content":"more"}]}`,
		pathResponses: `{"model":"main","temperature":0.5,"top_p":1,"max_output_tokens":9,"parallel_tool_calls":false,"tool_choice":"required","instructions":"s","store":false,
			"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"}}],
			"input":[{"role":"user","content":"q"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]}]},
			{"type":"function_call","call_id":"c","name":"f","arguments":"{\"x\":1}"},{"type":"function_call_output","call_id":"c","output":"r"},{"role":"user","content":[{"type":"input_text","text":"more"}]}]}`,
		pathMessages: `{"model":"main","temperature":0.5,"top_p":1,"max_tokens":9,"system":"s","tool_choice":{"type":"any","disable_parallel_tool_use":true},
			"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],
			"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"c","name":"f","input":{"x":1}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"},{"type":"text","text":"more"}]}]}`,
	} {
		f := newFake(t, says("yes"))
		f.object(f.ask(NewHandler(), "POST", path, body), 200)
		got, err := canon.Canonical(f.started[0].Steps[0].Input)
		if err != nil || string(got) != `{"model":"main","request":`+want+`}` || !f.started[0].Parallel {
			t.Errorf("%s: %v\n%s\n%s", path, err, got, want)
		}
	}
}

// TestEffort: how much a model reasons, and instructions in the middle, reach its provider.
func TestEffort(t *testing.T) {
	const want = `{"effort":"high","messages":[{"parts":[{"text":"q"}],"role":"user"},{"parts":[{"text":"s"}],"role":"system"}]`
	for path, c := range map[string]struct{ body, more string }{
		pathChat:      {`{"model":"main","reasoning_effort":"high","messages":[{"role":"user","content":"q"},{"role":"developer","content":"s"}]}`, ""},
		pathResponses: {`{"model":"gpt","reasoning":{"effort":"high","summary":"auto"},"client_metadata":{"a":"b"},"store":false,"input":[{"role":"user","content":"q"},{"role":"system","content":"s"}]}`, `,"summary":"auto"`},
		pathMessages + "?beta=true": {`{"model":"claude","max_tokens":9,"output_config":{"effort":"high"},"thinking":{"type":"adaptive","display":"omitted"},"messages":[{"role":"user","content":"q"},
			{"role":"system","content":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}]}]}`, `,"thinking":{"display":"omitted"}`},
	} {
		f := newFake(t, says("yes"))
		o := f.object(f.ask(NewHandler(), "POST", path, c.body), 200)
		got := string(f.started[0].Steps[0].Input)
		got = strings.NewReplacer(`"model":"claude"`, `"model":"main"`, `"model":"gpt"`, `"model":"main"`, `,"max_tokens":9`, "", `"max_tokens":9,`, "", `,"cache_key":"palyra"`, "", `"cache_key":"palyra",`, "").Replace(got)
		if got != `{"model":"main","request":`+want+c.more+`}}` {
			t.Errorf("%s:\n%s", path, got)
		}
		if path == pathResponses && (at(o, "reasoning", "effort") != "high" || at(o, "reasoning", "summary") != "auto") {
			t.Errorf("it repeats %v", o["reasoning"])
		}
	}
}

// TestFormat: the schema of an answer, and that a tool's is kept to, reach a provider that has such.
func TestFormat(t *testing.T) {
	const schema = `"schema":{"type":"object"}`
	for path, body := range map[string]string{
		pathChat:      `"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,` + schema + `}},"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{}}}],"messages"`,
		pathResponses: `"text":{"format":{"type":"json_schema","name":"n","strict":true,` + schema + `}},"tools":[{"type":"function","name":"f","strict":true,"parameters":{}}],"store":false,"input"`,
		pathMessages:  `"output_config":{"format":{"type":"json_schema",` + schema + `}},"tools":[{"name":"f","strict":true,"input_schema":{}}],"max_tokens":9,"messages"`,
	} {
		for _, model := range []string{"main", "claude"} {
			f := newFake(t, says("{}"))
			f.object(f.ask(NewHandler(), "POST", path, `{"model":"`+model+`",`+body+`:[{"role":"user","content":"q"}]}`), 200)
			want := `"format":{"name":"n",` + schema + `,"strict":true}`
			if path == pathMessages {
				want = `"format":{` + schema + `,"strict":true}`
			}
			if got := string(f.started[0].Steps[0].Input); !strings.Contains(got, want) || !strings.Contains(got, `"name":"f","schema":{},"strict":true`) {
				t.Errorf("%s, %s: %s", path, model, got)
			}
		}
	}
}

// TestRefused: what isn't supported is refused by the name of the member, before anything begins.
func TestRefused(t *testing.T) {
	f, h := newFake(t, says("yes")), NewHandler()
	for _, c := range []struct{ path, body, param string }{
		{pathChat, `{"messages":[]}`, "model"},
		{pathChat, `{"model":"main","messages":[]}`, "messages"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a"}],"seed":1}`, "seed"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a"}],"n":2}`, "n"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a"}],"stream_options":{}}`, "stream_options"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a","x":1}]}`, "messages[0].x"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "messages[0].content[0].type"},
		{pathChat, `{"model":"main","messages":[{"role":"system","content":"a"},{"role":"system","content":"b"}]}`, "messages"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"system","content":"c"}]}`, "messages"},
		{pathChat, `{"model":"agent","messages":[{"role":"user","content":"a"}],"reasoning_effort":"low"}`, "reasoning_effort"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a"}],"tool_choice":"required"}`, "tool_choice"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a"}],"temperature":3}`, "temperature"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a"}],"temperature":"hot"}`, "temperature"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"a.b"}}]}`, "tools[0].function.name"},
		{pathChat, `{"model":"agent","messages":[{"role":"user","content":"a"}],"temperature":1}`, "temperature"},
		{pathChat, `{"model":"agent","messages":[{"role":"user","content":"a"}],"tools":[]}`, "tools"},
		{pathChat, `{"model":"agent","messages":[{"role":"tool","tool_call_id":"a","content":"b"}]}`, "messages[0]"},
		{pathChat, `{"model":"main","messages":[{"role":"user","content":"a"}],"metadata":{"palyra_x":"1"}}`, "metadata.palyra_x"},
		{pathResponses, `{"model":"main"}`, "input"},
		{pathResponses, `{"model":"main","input":"a","conversation":"c"}`, "conversation"},
		{pathResponses, `{"model":"main","input":"a","background":true,"store":false}`, "background"},
		{pathResponses, `{"model":"main","input":[{"type":"item_reference","id":"x"}]}`, "input[0].type"},
		{pathResponses, `{"model":"main","input":"a","tools":[{"type":"web_search"}]}`, "tools[0].type"},
		{pathResponses, `{"model":"main","input":"a","previous_response_id":"resp_none"}`, "previous_response_id"},
		{pathResponses, `{"model":"main","input":"a","include":["file_search_call.results"]}`, "include"},
		{pathMessages, `{"model":"main","messages":[{"role":"user","content":"a"}]}`, "max_tokens"},
		{pathMessages, `{"model":"main","max_tokens":1,"messages":[{"role":"user","content":"a"}],"thinking":{"type":"enabled"}}`, "thinking.budget_tokens"},
		{pathMessages, `{"model":"main","max_tokens":1,"messages":[{"role":"user","content":"a"}],"thinking":{"type":"deep"}}`, "thinking.type"},
		{pathMessages, `{"model":"agent","max_tokens":1,"messages":[{"role":"user","content":"a"}],"thinking":{"type":"adaptive"}}`, "thinking"},
		{pathMessages, `{"model":"main","max_tokens":1,"messages":[{"role":"user","content":"a"}],"output_config":{"format":{}}}`, "output_config.format.type"},
		{pathMessages, `{"model":"main","max_tokens":1,"messages":[{"role":"user","content":"a"}],"output_config":{"format":{"type":"json_schema"}}}`, "output_config.format.schema"},
		{pathMessages, `{"model":"agent","max_tokens":1,"messages":[{"role":"user","content":"a"}],"output_config":{"format":{"type":"json_schema","schema":{}}}}`, "output_config"},
		{pathMessages, `{"model":"main","max_tokens":1,"messages":[{"role":"user","content":"a"}],"thread":{"type":"create"}}`, "thread"},
		{pathResponses, `{"model":"gpt","input":"a","reasoning":{"context":"all_turns"}}`, "reasoning.context"},
		{pathResponses, `{"model":"main","input":"a","client_metadata":"b"}`, "client_metadata"},
		{pathMessages, `{"model":"main","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}]}`, "messages[0].content[0].type"},
	} {
		o := f.object(f.ask(h, "POST", c.path, c.body), 400)
		param, _ := at(o, "error", "param").(string)
		if c.path == pathMessages {
			param, _, _ = strings.Cut(at(o, "error", "message").(string), ": ")
		}
		if param != c.param {
			t.Errorf("%s %s: %v", c.path, c.body, o)
		}
	}
	w := f.ask(h, "POST", pathChat, `{"model":"claude","messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"}}`)
	if o := f.object(w, 400); !strings.Contains(at(o, "error", "message").(string), "format") {
		t.Error(o)
	}
	if len(f.started) > 0 {
		t.Errorf("%d runs began", len(f.started))
	}
}

// TestFailures: a provider's failure has the status that clients act on, in a stream too until it has
// begun.
func TestFailures(t *testing.T) {
	for class, status := range map[string]int{turn.AuthInvalid: 502, turn.RateLimited: 429, turn.Quota: 429, turn.ContextWindow: 400, turn.ContentBlocked: 400, turn.TimedOut: 504, turn.Transient: 503, turn.Unreachable: 502} {
		f := newFake(t, step{tool: turn.Tool, output: lines(turn.Event{Error: &turn.Error{Class: class, Message: "m", RetryAfter: 1500}}), result: hub.StepResult{Exit: 1}})
		f.end = hub.Run{State: hub.RunFailed, Reason: "step_failed"}
		for _, stream := range []string{"", `"stream":true,`} {
			w := f.ask(NewHandler(), "POST", pathChat, strings.Replace(hello, "{", "{"+stream, 1))
			if o := f.object(w, status); at(o, "error", "code") == nil || w.Header().Get("Retry-After") != "2" {
				t.Errorf("%s: %v %v", class, o, w.Header())
			}
		}
	}
	f := newFake(t, step{tool: turn.Tool, output: lines(turn.Event{Text: "It "}, turn.Event{Error: &turn.Error{Class: turn.Transient, Message: "m"}}), result: hub.StepResult{Exit: 1}})
	f.end = hub.Run{State: hub.RunFailed, Reason: "step_failed"}
	w := f.ask(NewHandler(), "POST", pathChat, strings.Replace(hello, "{", `{"stream":true,`, 1))
	if ds := data(w); w.Code != 200 || !strings.HasPrefix(ds[len(ds)-1], `{"error":`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if o := f.object(f.ask(NewHandler(), "POST", pathResponses, `{"model":"main","input":"a"}`), 200); at(o, "status") != "failed" || at(o, "error", "code") != turn.Transient || at(o, "output", 0, "status") != "incomplete" {
		t.Error(o)
	}
	f = newFake(t, step{tool: turn.Tool, result: hub.StepResult{Outcome: "denied", Denial: &hub.Denial{Layer: hub.LayerPolicy, DecisionID: "d1"}}})
	f.end = hub.Run{State: hub.RunFailed}
	if o := f.object(f.ask(NewHandler(), "POST", pathChat, hello), 403); at(o, "error", "code") != "access_denied" || at(o, "error", "palyra", "decision") != "d1" {
		t.Error(o)
	}
	for _, reason := range []string{"budget_tokens", "budget_cost"} {
		f = newFake(t, step{tool: turn.Tool, result: hub.StepResult{State: "failed", Reason: reason, Error: "ask model: it has taken enough", Denial: &hub.Denial{Layer: hub.LayerBudget, Reason: reason}}})
		f.end = hub.Run{State: hub.RunFailed, Reason: reason}
		w := f.ask(NewHandler(), "POST", pathChat, hello)
		if o := f.object(w, 429); at(o, "error", "code") != "insufficient_quota" || at(o, "error", "palyra", "reason") != reason || w.Header().Get("X-Should-Retry") != "false" ||
			!strings.Contains(fmt.Sprint(at(o, "error", "message")), "taken enough") {
			t.Errorf("%v %v", o, w.Header())
		}
	}
	weak := &behind.Visitor{Caller: hub.Caller{Scopes: []string{"run.start", "session.read", "session.write", "artifact.read"}}}
	if no, ok := needs(weak).(*flaw); !ok || no.code != "missing_scope" || !strings.Contains(no.text, "run.cancel") {
		t.Errorf("%v", no)
	}
}

// TestResponse: a response is the same as it comes and as it's read from its run, and one that goes
// on has what came before.
func TestResponse(t *testing.T) {
	reasons := json.RawMessage(`{"encrypted_content":"x","id":"rs","summary":[],"type":"reasoning"}`)
	f := newFake(t, step{tool: turn.Tool, output: lines(turn.Event{Opaque: reasons}, turn.Event{Text: "I "}, turn.Event{Text: "ask."}, turn.Event{Call: &turn.Call{ID: "c", Name: "f", Arguments: "{}"}},
		turn.Event{End: turn.EndCalls, Usage: &turn.Usage{Input: 1, Output: 2}})})
	h := NewHandler()
	o := f.object(f.ask(h, "POST", pathResponses, `{"model":"main","input":"a","tools":[{"type":"function","name":"f"}]}`), 200)
	got := f.object(f.ask(h, "GET", pathResponses+"/"+o["id"].(string), ""), 200)
	for _, member := range []string{"id", "output", "status", "usage", "tools", "palyra"} {
		a, _ := encode(o[member])
		b, _ := encode(got[member])
		if string(a) != string(b) {
			t.Errorf("%s: %s, and on record %s", member, a, b)
		}
	}
	if len(o["output"].([]any)) != 3 || at(o, "output", 0, "encrypted_content") != "x" || at(o, "output", 2, "call_id") != "c" {
		t.Error(o)
	}
	f.object(f.ask(h, "POST", pathResponses, `{"model":"main","previous_response_id":"`+o["id"].(string)+`","input":[{"type":"function_call_output","call_id":"c","output":"r"}]}`), 200)
	input := string(f.started[1].Steps[0].Input)
	for _, part := range []string{`{"text":"a"}`, `"encrypted_content":"x"`, `"name":"f"`, `{"result":{"id":"c","text":"r"}}`} {
		if !strings.Contains(input, part) {
			t.Errorf("%s isn't in %s", part, input)
		}
	}
	if f.started[0].Session != f.started[1].Session || len(f.sessions) != 1 {
		t.Errorf("sessions %v", f.sessions)
	}
	f.runs[runOf("resp_", o["id"].(string))].Principal = "bob"
	f.object(f.ask(h, "GET", pathResponses+"/"+o["id"].(string), ""), 404)
}

// TestSummary: the parts of a summary of reasoning are events, and its item is passed on as it is.
func TestSummary(t *testing.T) {
	const item = `{"encrypted_content":"x","id":"rs","summary":[{"text":"One.","type":"summary_text"},{"text":"Two.","type":"summary_text"}],"type":"reasoning"}`
	f := newFake(t, step{tool: turn.Tool, output: lines(turn.Event{Opaque: json.RawMessage(item)}, turn.Event{Text: "yes"}, turn.Event{End: turn.EndStop, Usage: new(turn.Usage)})})
	h := NewHandler()
	first := f.ask(h, "POST", pathResponses, `{"model":"gpt","stream":true,"reasoning":{"summary":"auto"},"input":"a"}`)
	var told []string
	var last object
	for _, d := range data(first) {
		var ev object
		if err := json.Unmarshal([]byte(d), &ev); err != nil {
			t.Fatal(err)
		}
		if kind, of := strings.CutPrefix(ev["type"].(string), "response.reasoning_summary_"); of {
			if ev["item_id"] != "rs" || ev["output_index"] != 0.0 {
				t.Error(d)
			}
			told = append(told, strings.TrimSpace(fmt.Sprintln(kind, ev["summary_index"], ev["delta"], ev["text"], at(ev, "part", "text"))))
		}
		if none, _ := at(ev, "item", "summary").([]any); ev["type"] == "response.output_item.added" && len(none) > 0 {
			t.Error(d)
		}
		last, _ = ev["response"].(object)
	}
	want := []string{"part.added 0 <nil> <nil>", "text.delta 0 One. <nil> <nil>", "text.done 0 <nil> One. <nil>", "part.done 0 <nil> <nil> One.",
		"part.added 1 <nil> <nil>", "text.delta 1 Two. <nil> <nil>", "text.done 1 <nil> Two. <nil>", "part.done 1 <nil> <nil> Two."}
	if !slices.Equal(told, want) {
		t.Errorf("%q", told)
	}
	if got, err := encode(at(last, "output", 0)); err != nil || string(got) != item {
		t.Errorf("%v: %s", err, got)
	}
	if all := numbered(t, f.ask(h, "GET", pathResponses+"/"+last["id"].(string)+"?stream=true", "")); !maps.Equal(all, numbered(t, first)) {
		t.Error(all)
	}
}

// TestNamespace: a tool in a namespace is called by both names, which a provider has as one.
func TestNamespace(t *testing.T) {
	f := newFake(t, step{tool: turn.Tool, output: lines(turn.Event{Call: &turn.Call{ID: "c", Name: "n__g", Arguments: "{}"}}, turn.Event{Call: &turn.Call{ID: "d", Name: "n__f", Arguments: "{}"}},
		turn.Event{End: turn.EndCalls, Usage: &turn.Usage{Input: 1, Output: 2}})})
	h := NewHandler()
	const tools = `"tools":[{"type":"function","name":"n__f"},{"type":"namespace","name":"n","description":"about n","tools":[{"type":"function","name":"e","description":"about e"},{"type":"function","name":"g"}]}]`
	o := f.object(f.ask(h, "POST", pathResponses, `{"model":"main","input":[{"role":"user","content":"a"},{"type":"function_call","namespace":"n","call_id":"b","name":"e","arguments":"{}"},`+
		`{"type":"function_call_output","call_id":"b","output":"r"}],`+tools+`}`), 200)
	input := string(f.started[0].Steps[0].Input)
	for _, part := range []string{`"call":{"arguments":"{}","id":"b","name":"n__e"}`, `"description":"about n\n\nabout e","name":"n__e"`, `"name":"n__g","namespace":"n"`} {
		if !strings.Contains(input, part) {
			t.Errorf("%s isn't in %s", part, input)
		}
	}
	for _, o := range []object{o, f.object(f.ask(h, "GET", pathResponses+"/"+o["id"].(string), ""), 200)} {
		if at(o, "output", 0, "namespace") != "n" || at(o, "output", 0, "name") != "g" || at(o, "output", 1, "namespace") != nil || at(o, "output", 1, "name") != "n__f" ||
			at(o, "tools", 1, "type") != "namespace" || at(o, "tools", 1, "tools", 1, "name") != "g" {
			t.Error(o)
		}
	}
	f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","input":"a",`+tools+`}`), 400)
}

// TestReasoning: an item of another provider's goes out in a form that the protocol has, and comes
// back as it was. Nothing else hides in one.
func TestReasoning(t *testing.T) {
	thinks := json.RawMessage(`{"signature":"s","thinking":"t","type":"thinking"}`)
	f := newFake(t, step{tool: turn.Tool, output: lines(turn.Event{Opaque: thinks}, turn.Event{Text: "yes"}, turn.Event{End: turn.EndStop, Usage: &turn.Usage{}})})
	o := f.object(f.ask(NewHandler(), "POST", pathResponses, `{"model":"main","input":"a"}`), 200)
	item, err := encode(at(o, "output", 0))
	if err != nil || at(o, "output", 0, "type") != "reasoning" {
		t.Fatalf("%s, %v", item, err)
	}
	f.object(f.ask(NewHandler(), "POST", pathResponses, `{"model":"main","store":false,"input":[{"role":"user","content":"a"},`+string(item)+`,{"role":"user","content":"b"}]}`), 200)
	if got := string(f.started[1].Steps[0].Input); !strings.Contains(got, `{"opaque":`+string(thinks)+`}`) {
		t.Error(got)
	}
	for _, hidden := range []string{`{"type":"item_reference","id":"x"}`, `{"type":"thinking","type":"thinking"}`, `no JSON`} {
		text := sealed + base64.StdEncoding.EncodeToString([]byte(hidden))
		if got := unwrap(json.RawMessage(`{"type":"reasoning","encrypted_content":"` + text + `"}`)); !strings.Contains(string(got), sealed) {
			t.Errorf("%s hides in an item", hidden)
		}
	}
	m := f.object(f.ask(NewHandler(), "POST", pathMessages, `{"model":"main","max_tokens":1,"messages":[{"role":"user","content":"a"}]}`), 200)
	if at(m, "content", 0, "thinking") != "t" || at(m, "content", 1, "text") != "yes" || at(m, "stop_reason") != "end_turn" {
		t.Error(m)
	}
}

// TestWaits: a response that waits for a person is incomplete, and goes on without input.
func TestWaits(t *testing.T) {
	asks := step{tool: "process.run", asked: &hub.Approval{ID: "apr_1", Text: "?", Created: time.Now().Add(time.Hour)}}
	f, h := newFake(t, says("I do."), asks), NewHandler()
	f.hang = true
	o := f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","input":"a"}`), 200)
	if at(o, "status") != "incomplete" || at(o, "incomplete_details", "reason") != waitsForApproval || at(o, "output", 1, "type") != itemCall || at(o, "output", 2, "type") != itemApproval || len(f.cancelled) > 0 {
		t.Fatalf("%v, cancelled %v", o, f.cancelled)
	}
	same := func(made object) {
		t.Helper()
		if got := f.object(f.ask(h, "GET", pathResponses+"/"+made["id"].(string), ""), 200); !reflect.DeepEqual(got, made) {
			t.Errorf("made\n%v, got\n%v", made, got)
		}
	}
	f.runs[runOf("resp_", o["id"].(string))].State = hub.RunWaitingApproval
	same(o)
	f.hang, asks.asked.Created = false, time.Now().Add(-time.Hour)
	f.end.Answer = &hub.AgentEnded{Text: "done"}
	o2 := f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","previous_response_id":"`+o["id"].(string)+`"}`), 200)
	if o2["id"] != o["id"] || at(o2, "status") != "completed" || at(o2, "output", 2, "state") != hub.ApprovalApproved || len(f.started) != 1 {
		t.Error(o2)
	}
	same(o2)
}

// TestGone: a client that goes cancels its run; a run in the background goes on.
func TestGone(t *testing.T) {
	for path, body := range map[string]string{pathChat: hello, pathResponses: `{"model":"main","input":"a"}`, pathMessages: `{"model":"main","max_tokens":1,"messages":[{"role":"user","content":"a"}]}`} {
		f, h := newFake(t, step{tool: turn.Tool, output: lines(turn.Event{Text: "a"})}), NewHandler()
		f.hang = true
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		f.askIn(ctx, h, "POST", path, body)
		if len(f.cancelled) != 1 {
			t.Errorf("%s: cancelled %v", path, f.cancelled)
		}
	}
	f, h := newFake(t, says("a")), NewHandler()
	f.hang = true
	if o := f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","background":true,"input":"a"}`), 200); at(o, "status") != "queued" || len(f.cancelled) > 0 {
		t.Error(o, f.cancelled)
	}
}

// TestServerEnds: a server that ends leaves the run alone, which goes on when palyrad is back; a token
// that ends takes its run along.
func TestServerEnds(t *testing.T) {
	f, h := newFake(t, step{tool: turn.Tool, output: lines(turn.Event{Text: "a"})}), NewHandler()
	f.hang = true
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(fault.New(fault.Unavailable, "not_ready", "serve", nil)) })
	if w := f.askIn(ctx, h, "POST", pathChat, strings.Replace(hello, "main", "agent", 1)); w.Code != 503 || len(f.cancelled) > 0 {
		t.Errorf("%d %s, cancelled %v", w.Code, w.Body, f.cancelled)
	}
	f.may = fault.New(fault.Denied, "unauthenticated", "look", nil)
	if w := f.ask(h, "POST", pathChat, hello); w.Code != 401 || len(f.cancelled) == 0 {
		t.Errorf("%d %s, cancelled %v", w.Code, w.Body, f.cancelled)
	}
}

// TestFunctions: an agent's run that ends with calls of the client's ends as calls.
func TestFunctions(t *testing.T) {
	f, h := newFake(t, says("I ask.")), NewHandler()
	f.end.Answer = &hub.AgentEnded{Calls: []hub.AgentCall{{ID: "c", Name: "f", Arguments: "{}"}}}
	session := ident.New(ident.Session)
	f.sessions[session] = hub.SessionOpen
	o := f.object(f.ask(h, "POST", pathChat, `{"model":"agent","metadata":{"palyra_session":"`+session+`"},"messages":[{"role":"developer","content":"d"},{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}]}`), 200)
	if at(o, "choices", 0, "finish_reason") != "tool_calls" || at(o, "choices", 0, "message", "tool_calls", 0, "id") != "c" || f.sessions[session] != hub.SessionOpen {
		t.Error(o)
	}
	if a := f.started[0].Agent; a.Prompt != "a" || a.Instructions != "d" || len(a.Functions) != 1 {
		t.Errorf("%+v", a)
	}
	f.object(f.ask(h, "POST", pathChat, `{"model":"agent","metadata":{"palyra_session":"`+session+`"},"messages":[{"role":"tool","tool_call_id":"c","content":"r"}]}`), 200)
	if a := f.started[1].Agent; a.Prompt != "" || len(a.Results) != 1 || a.Results[0].Text != "r" {
		t.Errorf("%+v", a)
	}
	f.object(f.ask(h, "POST", pathChat, `{"model":"agent","metadata":{"palyra_session":"ses_none"},"messages":[{"role":"user","content":"a"}]}`), 404)
}

// TestMessagesFunctions: an agent asks for the tools of a client of Messages, too, and goes on with
// their results.
func TestMessagesFunctions(t *testing.T) {
	f, h := newFake(t, says("I ask.")), NewHandler()
	f.end.Answer = &hub.AgentEnded{Calls: []hub.AgentCall{{ID: "c", Name: "f", Arguments: `{"x":1}`}}}
	session := ident.New(ident.Session)
	f.sessions[session] = hub.SessionOpen
	head := `{"model":"agent","max_tokens":9,"metadata":{"palyra_session":"` + session + `","palyra_staged":"true"},"tools":[{"name":"f","input_schema":{"type":"object"}}],`
	ask := head + `"tool_choice":{"type": "auto"},"system":"d","messages":[{"role":"user","content":"a"}]}`
	o := f.object(f.ask(h, "POST", pathMessages, ask), 200)
	if at(o, "stop_reason") != "tool_use" || at(o, "content", 0, "text") != "I ask." || at(o, "content", 1, "type") != "tool_use" || at(o, "content", 1, "id") != "c" || at(o, "content", 1, "input", "x") != 1.0 {
		t.Error(o)
	}
	if a := f.started[0].Agent; a.Prompt != "a" || a.Instructions != "d" || a.MaxTokens != 9 || len(a.Functions) != 1 || a.Functions[0].Name != "f" || !f.started[0].Staged {
		t.Errorf("%+v", a)
	}
	var kinds []string
	for _, d := range data(f.ask(h, "POST", pathMessages, strings.Replace(ask, "{", `{"stream":true,`, 1))) {
		var ev object
		if json.Unmarshal([]byte(d), &ev) != nil {
			t.Error(d)
		}
		kinds = append(kinds, ev["type"].(string))
		if d := at(ev, "delta", "partial_json"); d != nil && d != `{"x":1}` || ev["type"] == "message_delta" && at(ev, "delta", "stop_reason") != "tool_use" {
			t.Error(ev)
		}
	}
	if got := strings.Join(kinds, " "); got != "message_start content_block_start content_block_delta content_block_delta content_block_stop content_block_start content_block_delta content_block_stop message_delta message_stop" {
		t.Error(got)
	}
	f.object(f.ask(h, "POST", pathMessages, head+`"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r","is_error":true}]}]}`), 200)
	if a := f.started[2].Agent; a.Prompt != "" || len(a.Results) != 1 || a.Results[0].ID != "c" || a.Results[0].Text != "r" || !a.Results[0].Failed {
		t.Errorf("%+v", a)
	}
	for part, param := range map[string]string{`"tool_choice":{"type":"any"},`: "tool_choice.type", `"tool_choice":{"type":"auto","disable_parallel_tool_use":true},`: "tool_choice.disable_parallel_tool_use", `"top_k":1,`: "top_k"} {
		w := f.ask(h, "POST", pathMessages, head+part+`"messages":[{"role":"user","content":"a"}]}`)
		if w.Code != 400 || !strings.Contains(w.Body.String(), param+": ") {
			t.Errorf("%s: %d %s", part, w.Code, w.Body)
		}
	}
	w := f.ask(h, "POST", pathMessages, strings.Replace(head, `"metadata":{"palyra_session":"`+session+`","palyra_staged":"true"},`, "", 1)+`"messages":[{"role":"user","content":"a"}]}`)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "tools: ") || len(f.started) != 3 {
		t.Errorf("without a session: %d %s", w.Code, w.Body)
	}
}

// TestWhole: a client that sends its conversation whole goes on with an agent's session all the same,
// if its assistant's last message is what the session's last run ended with.
func TestWhole(t *testing.T) {
	f, h := newFake(t, says("I ask.")), NewHandler()
	session := ident.New(ident.Session)
	f.sessions[session] = hub.SessionOpen
	ask := func(path, messages string, status int) (n hub.NewRun) {
		t.Helper()
		before := len(f.started)
		head := `{"model":"agent","max_tokens":9,"metadata":{"palyra_session":"` + session + `"},"messages":[`
		f.object(f.ask(h, "POST", path, head+messages+`]}`), status)
		if status == 200 && len(f.started) > before {
			return f.started[before]
		}
		return n
	}
	f.end.Answer = &hub.AgentEnded{Calls: []hub.AgentCall{{ID: "c", Name: "f", Arguments: "{}"}}}
	ask(pathChat, `{"role":"user","content":"a"}`, 200)
	var after string
	for id := range f.runs {
		after = id
	}
	const asked = `{"role":"system","content":"s"},{"role":"user","content":"a"},`
	n := ask(pathChat, asked+`{"role":"assistant","content":"I ask.","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"r"}`, 200)
	if a := n.Agent; a == nil || a.Prompt != "" || a.Instructions != "s" || len(a.Results) != 1 || a.Results[0].Text != "r" || a.After != after {
		t.Errorf("%+v", a)
	}
	n = ask(pathMessages, `{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"I ask."},{"type":"tool_use","id":"c","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"},{"type":"text","text":"b"}]}`, 200)
	if a := n.Agent; a == nil || a.Prompt != "b" || len(a.Results) != 1 || a.After == "" {
		t.Errorf("%+v", a)
	}
	for _, other := range []string{`"content":"I ask."`, `"content":null,"tool_calls":[{"id":"d","type":"function","function":{"name":"f"}}]`} {
		ask(pathChat, asked+`{"role":"assistant",`+other+`},{"role":"user","content":"b"}`, 400)
	}
	f.end.Answer = &hub.AgentEnded{Text: "done."}
	if a := ask(pathChat, asked+`{"role":"assistant","content":"I look.\n\ndone."},{"role":"user","content":"b"}`, 200).Agent; a == nil || a.Prompt != "b" || a.Instructions != "s" {
		t.Errorf("%+v", a)
	}
	ask(pathChat, asked+`{"role":"assistant","content":"I did nothing"},{"role":"user","content":"b"}`, 400)
	ask(pathChat, asked+`{"role":"assistant","content":"done."}`, 400)
	f.sessions[session] = hub.SessionEnded
	ask(pathChat, asked+`{"role":"assistant","content":"done."},{"role":"user","content":"b"}`, 404)
}

// FuzzRequest: whatever a request has, it's answered, and nothing that was refused began.
func FuzzRequest(f *testing.F) {
	f.Add(hello)
	f.Add(`{"model":"agent","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}],"tools":[{"type":"function","name":"f"}]}`)
	f.Add(`{"model":"main","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c"}]}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		if canon.Decode([]byte(body), new(json.RawMessage), canon.Limits{}) != nil || strings.TrimSpace(body) == "" {
			return // the server refuses it
		}
		for _, path := range []string{pathChat, pathResponses, pathMessages} {
			p := newFake(t, says("yes"))
			w := p.ask(NewHandler(), "POST", path, body)
			if w.Code >= 500 || w.Code >= 400 && len(p.started) > 0 || w.Code == 200 && len(p.started) != 1 {
				t.Errorf("%s: %d, %d runs: %s", path, w.Code, len(p.started), w.Body)
			}
		}
	})
}

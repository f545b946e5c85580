package openai

import (
	"context"
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
	"palyra/internal/fault"
)

// TestStored: a stored response is fetched with all that it repeated of its request when it was made.
func TestStored(t *testing.T) {
	const tools = `"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"}}],"metadata":{"mine":"1","palyra_staged":"false"},"safety_identifier":"s1","max_output_tokens":9,"instructions":"Be brief.",`
	for lane, body := range map[string]string{
		"main":  `"temperature":0.5,"tool_choice":"required","input":[{"role":"system","content":"And polite."},{"role":"user","content":"a"}]}`,
		"agent": `"input":[{"role":"developer","content":"And polite."},{"role":"user","content":"a"}]}`,
	} {
		f, h := newFake(t, says("yes")), NewHandler()
		head := `{"model":"` + lane + `",` + tools
		id := ""
		for range 2 {
			made := f.object(f.ask(h, "POST", pathResponses, head+body), 200)
			got := f.object(f.ask(h, "GET", pathResponses+"/"+made["id"].(string), ""), 200)
			if !reflect.DeepEqual(made, got) {
				t.Errorf("%s: made\n%v, got\n%v", lane, made, got)
			}
			if at(got, "instructions") != "Be brief." || at(got, "metadata", "mine") != "1" || at(got, "metadata", "palyra_staged") != "false" || len(got["metadata"].(object)) != 2 ||
				at(got, "safety_identifier") != "s1" || at(got, "tools", 0, "name") != "f" || at(got, "max_output_tokens") != 9.0 || at(got, "background") != false {
				t.Errorf("%s: %v", lane, got)
			}
			if want := any(id); id != "" && at(got, "previous_response_id") != want {
				t.Errorf("%s: %v", lane, got)
			}
			id = made["id"].(string)
			body = strings.Replace(body, `{"role":"system","content":"And polite."},`, "", 1) // it stands before all others
			head = `{"model":"` + lane + `","previous_response_id":"` + id + `",` + tools
		}
		first := ""
		if n := f.started[0]; n.Agent != nil {
			first = n.Agent.Instructions
		} else if _, asked, err := askedOf(&hub.Run{Steps: []hub.StepResult{{Input: n.Steps[0].Input}}}); err != nil {
			t.Error(err)
		} else {
			first = asked.System
		}
		if first != "Be brief.\n\nAnd polite." {
			t.Errorf("%s: it's told %q", lane, first)
		}
		o := f.object(f.ask(h, "POST", pathResponses, `{"model":"`+lane+`","background":true,"input":"a"}`), 200)
		if got := f.object(f.ask(h, "GET", pathResponses+"/"+o["id"].(string), ""), 200); at(got, "background") != true || at(got, "instructions") != nil || len(got["metadata"].(object)) != 0 {
			t.Errorf("%s: %v", lane, got)
		}
		for _, more := range []string{`"metadata":{"a":"b"}`, `"instructions":"b"`, `"safety_identifier":"b"`, `"background":true`} {
			n := len(f.started)
			w := f.ask(h, "POST", pathResponses, `{"model":"`+lane+`","previous_response_id":"`+id+`",`+more+`}`)
			if w.Code != 400 || len(f.started) != n {
				t.Errorf("%s resumed with %s: %d %s", lane, more, w.Code, w.Body)
			}
		}
		if o := f.object(f.ask(h, "POST", pathResponses, `{"model":"`+lane+`","previous_response_id":"`+id+`"}`), 200); at(o, "metadata", "mine") != "1" || at(o, "instructions") != "Be brief." {
			t.Errorf("%s resumed: %v", lane, o)
		}
	}
}

// TestInputItems: the input of a response is listed, with what came before, and in pages.
func TestInputItems(t *testing.T) {
	reasons := json.RawMessage(`{"encrypted_content":"x","id":"rs","summary":[],"type":"reasoning"}`)
	f := newFake(t, step{tool: turn.Tool, output: lines(turn.Event{Opaque: reasons}, turn.Event{Text: "I ask."}, turn.Event{Call: &turn.Call{ID: "c", Name: "f", Arguments: "{}"}}, turn.Event{End: turn.EndCalls, Usage: &turn.Usage{}})})
	h := NewHandler()
	list := func(id, query string) (types []string, page object) {
		t.Helper()
		page = f.object(f.ask(h, "GET", pathResponses+"/"+id+"/input_items"+query, ""), 200)
		for _, o := range page["data"].([]any) {
			types = append(types, fmt.Sprint(at(o, "type"), " ", at(o, "role")))
		}
		return types, page
	}
	o := f.object(f.ask(h, "POST", pathResponses, `{"model":"main","instructions":"i","input":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]}],"tools":[{"type":"function","name":"f"}]}`), 200)
	o = f.object(f.ask(h, "POST", pathResponses, `{"model":"main","previous_response_id":"`+o["id"].(string)+`","instructions":"j","input":[{"type":"function_call_output","call_id":"c","output":"r"}]}`), 200)
	id := o["id"].(string)
	types, page := list(id, "?order=asc")
	// The system message was the first request's: what a model is told first is each request's own.
	if got := strings.Join(types, ", "); got != "message user, reasoning <nil>, message assistant, function_call <nil>, function_call_output <nil>" || page["has_more"] != false {
		t.Errorf("%s: %v", got, page)
	}
	d := page["data"].([]any)
	if at(d, 0, "content", 1, "text") != "b" || at(d, 1, "id") != "rs" || at(d, 2, "content", 0, "type") != "output_text" || at(d, 3, "call_id") != "c" || at(d, 4, "output") != "r" || page["first_id"] != at(d, 0, "id") || page["last_id"] != at(d, 4, "id") {
		t.Error(page)
	}
	var back []string
	after := ""
	for {
		types, page := list(id, "?limit=2"+after)
		back = append(back, types...)
		if page["has_more"] != true {
			break
		}
		after = "&after=" + page["last_id"].(string)
	}
	if slices.Reverse(back); !slices.Equal(back, types) {
		t.Errorf("in pages: %v", back)
	}
	for _, query := range []string{"?after=msg_none", "?limit=0", "?limit=101", "?limit=x"} {
		f.object(f.ask(h, "GET", pathResponses+"/"+id+"/input_items"+query, ""), 400)
	}
	o = f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","instructions":"i","input":[{"role":"developer","content":"d"},{"role":"user","content":"a"}]}`), 200)
	if types, page := list(o["id"].(string), "?order=asc"); strings.Join(types, ", ") != "message developer, message user" || at(page, "data", 0, "content", 0, "text") != "d" {
		t.Errorf("%v", page)
	}
	// What is listed can be asked again.
	again, err := encode(page["data"])
	if err != nil {
		t.Fatal(err)
	}
	f.object(f.ask(h, "POST", pathResponses, `{"model":"main","store":false,"input":`+string(again)+`}`), 200)
	f.runs[runOf("resp_", id)].Principal = "bob"
	f.object(f.ask(h, "GET", pathResponses+"/"+id+"/input_items", ""), 404)
}

// numbered returns a stream's events by number.
func numbered(t *testing.T, w *httptest.ResponseRecorder) map[int]string {
	t.Helper()
	all, last := make(map[int]string), -1
	for _, d := range data(w) {
		var ev object
		if err := json.Unmarshal([]byte(d), &ev); err != nil {
			t.Fatalf("%v: %s", err, d)
		}
		n := int(ev["sequence_number"].(float64))
		if n <= last {
			t.Errorf("event %d behind %d", n, last)
		}
		last, all[n] = n, ev["type"].(string)+fmt.Sprint(ev["delta"])
	}
	return all
}

// TestReplay: the events of a response come again with their numbers, from any one on, however its
// output is cut, also of one that stopped where a person was asked.
func TestReplay(t *testing.T) {
	asks := step{tool: "process.run", asked: &hub.Approval{ID: "apr_1", Text: "?", Created: time.Now().Add(time.Hour)}}
	for _, cut := range []int{0, 1, 7, 100} {
		f, h := newFake(t, says("I do é."), asks, says("I did.")), NewHandler()
		f.end.Answer = &hub.AgentEnded{Text: "I did."}
		f.cut, f.noOutput = cut, cut == 100
		first := f.ask(h, "POST", pathResponses, `{"model":"agent","stream":true,"input":"a"}`)
		begun := numbered(t, first)
		var o object
		if err := json.Unmarshal([]byte(data(first)[0]), &o); err != nil || begun[len(begun)-1] != "response.incomplete<nil>" {
			t.Fatalf("%v: %v", err, begun)
		}
		at := pathResponses + "/" + at(o, "response", "id").(string) + "?stream=true"
		all := numbered(t, f.ask(h, "GET", at, ""))
		stopped := len(begun) - 1
		delete(begun, stopped)
		for n, kind := range begun {
			if all[n] != kind {
				t.Errorf("cut at %d: event %d is %q, and was %q", cut, n, all[n], kind)
			}
		}
		most := slices.Max(slices.Collect(maps.Keys(all)))
		if _, there := all[stopped]; there || all[most] != "response.completed<nil>" || all[stopped+1] != "response.output_item.done<nil>" || len(all) != most {
			t.Errorf("cut at %d: stopped at %d, then %v", cut, stopped, all)
		}
		for after := range most + 1 {
			rest := numbered(t, f.ask(h, "GET", fmt.Sprintf("%s&starting_after=%d", at, after), ""))
			for n, kind := range all {
				if got, there := rest[n]; there != (n > after) || there && got != kind {
					t.Errorf("cut at %d, behind %d: event %d is %q, want %q", cut, after, n, got, kind)
				}
			}
		}
	}
	f, h := newFake(t, says("yes")), NewHandler()
	o := f.object(f.ask(h, "POST", pathResponses, `{"model":"main","input":"a"}`), 200)
	at := pathResponses + "/" + o["id"].(string)
	if all := numbered(t, f.ask(h, "GET", at+"?stream=true", "")); len(all) != 9 || all[8] != "response.completed<nil>" {
		t.Error(all)
	}
	f.object(f.ask(h, "GET", at+"?starting_after=1", ""), 400)
	f.object(f.ask(h, "GET", at+"?stream=true&starting_after=99999999999999999999", ""), 400)
	f.object(f.ask(h, "GET", pathResponses+"/resp_none?stream=true", ""), 404)
}

// TestBackgroundStream: a stream of a response in the background names it at once, doesn't stop where
// a person is asked, and its client may go and come back.
func TestBackgroundStream(t *testing.T) {
	asks := step{tool: "process.run", asked: &hub.Approval{ID: "apr_1", Text: "?", Created: time.Now().Add(time.Hour)}}
	f, h := newFake(t, says("I do."), asks, says("I did.")), NewHandler()
	f.end.Answer = &hub.AgentEnded{Text: "I did."}
	const body = `{"model":"agent","background":true,"stream":true,"input":"a"}`
	first := f.ask(h, "POST", pathResponses, body)
	all := numbered(t, first)
	var o object
	if err := json.Unmarshal([]byte(data(first)[0]), &o); err != nil || at(o, "response", "background") != true || all[slices.Max(slices.Collect(maps.Keys(all)))] != "response.completed<nil>" {
		t.Fatalf("%v: %v", err, all)
	}
	if again := numbered(t, f.ask(h, "GET", pathResponses+"/"+at(o, "response", "id").(string)+"?stream=true", "")); !maps.Equal(all, again) {
		t.Errorf("%v, again %v", all, again)
	}
	f, h = newFake(t, step{tool: turn.Tool}), NewHandler()
	f.hang = true // and says nothing
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if ds := data(f.askIn(ctx, h, "POST", pathResponses, body)); len(ds) != 2 || len(f.cancelled) > 0 {
		t.Errorf("%q, cancelled %v", ds, f.cancelled)
	}
}

// TestDeleted: a response that was given up can't be fetched, gone on with or given up again, and its
// run has ended. Responses that went on with it stay.
func TestDeleted(t *testing.T) {
	f, h := newFake(t, says("yes")), NewHandler()
	first := f.object(f.ask(h, "POST", pathResponses, `{"model":"main","input":"a","metadata":{"a":"b"}}`), 200)["id"].(string)
	second := f.object(f.ask(h, "POST", pathResponses, `{"model":"main","previous_response_id":"`+first+`","input":"b"}`), 200)["id"].(string)
	if o := f.object(f.ask(h, "DELETE", pathResponses+"/"+first, ""), 200); o["id"] != first || o["object"] != "response" || o["deleted"] != true || len(f.cancelled) > 0 {
		t.Errorf("%v, cancelled %v", o, f.cancelled)
	}
	for _, a := range [][2]string{{"GET", ""}, {"GET", "?stream=true"}, {"GET", "/input_items"}, {"POST", "/cancel"}, {"DELETE", ""}} {
		if o := f.object(f.ask(h, a[0], pathResponses+"/"+first+a[1], ""), 404); at(o, "error", "code") != "response_not_found" {
			t.Errorf("%s: %v", a, o)
		}
	}
	if o := f.object(f.ask(h, "POST", pathResponses, `{"model":"main","previous_response_id":"`+first+`","input":"c"}`), 400); at(o, "error", "param") != "previous_response_id" {
		t.Error(o)
	}
	if o := f.object(f.ask(h, "GET", pathResponses+"/"+second, ""), 200); at(o, "previous_response_id") != first {
		t.Error(o)
	}
	f.runs[runOf("resp_", second)].Principal = "bob"
	f.object(f.ask(h, "DELETE", pathResponses+"/"+second, ""), 404)
	f.hang = true
	id := f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","background":true,"input":"a"}`), 200)["id"].(string)
	if f.object(f.ask(h, "DELETE", pathResponses+"/"+id, ""), 200); len(f.cancelled) != 1 || f.cancelled[0] != runOf("resp_", id) {
		t.Errorf("cancelled %v", f.cancelled)
	}
}

// TestConversations: where as many sessions are open as may be, a new conversation with the agent
// ends the one that was used least recently, and none in which something is under way, nor a
// session of another kind.
func TestConversations(t *testing.T) {
	f, h := newFake(t, says("yes")), NewHandler()
	id := f.object(f.ask(h, "POST", pathResponses, `{"model":"main","input":"a"}`), 200)["id"].(string)
	of := func(id string) string { return f.runs[runOf("resp_", id)].Session }
	kept := []string{of(id)}
	id = f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","input":"a","metadata":{"palyra_session":"new"}}`), 200)["id"].(string)
	kept = append(kept, of(id))
	begin := func() string {
		return f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","input":"a"}`), 200)["id"].(string)
	}
	var all []string
	for i := range 3 {
		all = append(all, begin())
		ended := time.Now().Add(time.Duration(3-i) * time.Minute) // the last one was used least recently,
		f.runs[runOf("resp_", all[i])].Ended = &ended
	}
	f.runs[runOf("resp_", all[2])].Ended = nil // but it's at work
	f.most = 5
	fourth := begin()
	for i, id := range append(all, fourth) {
		if state := f.sessions[of(id)]; (state == hub.SessionEnded) != (i == 1) {
			t.Errorf("conversation %d: %s", i, state)
		}
	}
	for _, id := range kept {
		if f.sessions[id] != hub.SessionOpen {
			t.Errorf("session %s: %s", f.titles[id], f.sessions[id])
		}
	}
	if o := f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","previous_response_id":"`+all[1]+`","input":"b"}`), 400); at(o, "error", "code") != "previous_response_not_found" {
		t.Error(o)
	}
	f.runs["run_beside"] = &hub.Run{Session: of(all[0]), Created: time.Now().Add(-time.Hour)} // a parallel one, and longer than the last
	if o := f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","input":"a"}`), 429); at(o, "error", "code") != "too_many" {
		t.Error(o) // all are at work
	}
}

// TestRefusedLeavesNoSession: a request whose run can't begin leaves no session open that was made
// for it, and all that were open before.
func TestRefusedLeavesNoSession(t *testing.T) {
	f, h := newFake(t, says("yes")), NewHandler()
	id := f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","input":"a"}`), 200)["id"].(string)
	session := f.runs[runOf("resp_", id)].Session
	f.refuses = fault.New(fault.Unavailable, "quota", "start run", nil)
	for _, more := range []string{
		``, `,"store":false`, `,"metadata":{"palyra_session":"new"}`, `,"metadata":{"palyra_session":"` + session + `"}`, `,"previous_response_id":"` + id + `"`,
	} {
		f.object(f.ask(h, "POST", pathResponses, `{"model":"agent","input":"a"`+more+`}`), 429)
		if n := len(f.openSessions()); n != 1 || f.sessions[session] != hub.SessionOpen {
			t.Errorf("%s: %d sessions are open", more, n)
		}
	}
}

package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"palyra/agentloop/turn"
)

// TestOpenResponses: the cases of Open Responses' compliance tests, by their names there and with
// requests of our own: each answer has the members that the schema wants (specification of
// 2026-04-24), of their types. Pictures and files are refused by name, since models here are told
// text, and so are hosted tools, whose cases are optional there.
func TestOpenResponses(t *testing.T) {
	const (
		user    = `"input":[{"type":"message","role":"user","content":"a"}]`
		tool    = `"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"}}]`
		message = "message"
		call    = "function_call"
	)
	calls := step{tool: turn.Tool, output: lines(turn.Event{Call: &turn.Call{ID: "c", Name: "f", Arguments: "{}"}}, turn.Event{End: turn.EndCalls, Usage: &turn.Usage{}})}
	number, text, list, null, object := "float64", "string", "[]interface {}", "<nil>", "map[string]interface {}"
	members := map[string]string{"id": text, "object": text, "created_at": number, "completed_at": number + null, "status": text, "incomplete_details": null, "model": text, "previous_response_id": text + null,
		"instructions": null, "output": list, "error": null, "tools": list, "tool_choice": text + object, "truncation": text, "parallel_tool_calls": "bool", "text": object, "top_p": number,
		"presence_penalty": number, "frequency_penalty": number, "top_logprobs": number, "temperature": number, "reasoning": null, "usage": object, "max_output_tokens": null,
		"max_tool_calls": null, "store": "bool", "background": "bool", "service_tier": text, "metadata": object, "safety_identifier": null, "prompt_cache_key": null}
	// answered is one request and the item that answers it. What goes on has the id before.
	type answered struct {
		body string
		step step
		item string
	}
	for _, c := range []struct {
		name    string
		all     []answered
		events  string // of a stream
		refused string // member
	}{
		{"basic-response", []answered{{user, says("yes"), message}}, "", ""},
		{"streaming-response", []answered{{`"stream":true,` + user, says("yes"), message}},
			"created in_progress output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done completed", ""},
		{"system-prompt", []answered{{`"input":[{"type":"message","role":"system","content":"s"},{"type":"message","role":"user","content":"a"}]`, says("yes"), message}}, "", ""},
		{"tool-calling", []answered{{tool + `,` + user, calls, call}}, "", ""},
		{"tool-calling-streaming", []answered{{`"stream":true,` + tool + `,` + user, calls, call}},
			"created in_progress output_item.added function_call_arguments.delta function_call_arguments.done output_item.done completed", ""},
		{"function-call-roundtrip", []answered{{tool + `,"tool_choice":{"type":"function","name":"f"},` + user, calls, call},
			{`"input":[{"type":"function_call_output","call_id":"c","output":"r"}]`, says("yes"), message}}, "", ""},
		{"image-input", []answered{{`"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:,"}]}]`, step{}, ""}}, "", "input[0].content[1].type"},
		{"file-input", []answered{{`"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_file","filename":"a","file_data":"data:,"}]}]`, step{}, ""}}, "", "input[0].content[1].type"},
		{"multi-turn", []answered{{`"input":[{"type":"message","role":"user","content":"a"},{"type":"message","role":"assistant","content":"b"},{"type":"message","role":"user","content":"c"}]`, says("yes"), message}}, "", ""},
		{"previous-response-id", []answered{{`"input":"a"`, says("yes"), message}, {`"input":"b"`, says("no"), message}}, "", ""},
		{"file-search", []answered{{`"tools":[{"type":"file_search","vector_store_ids":["v"]}],"tool_choice":{"type":"file_search"},"input":"a"`, step{}, ""}}, "", "tools[0].type"},
		{"offline-web-search", []answered{{`"tools":[{"type":"web_search","external_web_access":false}],"tool_choice":{"type":"web_search"},"input":"a"`, step{}, ""}}, "", "tools[0].type"},
	} {
		f, h := newFake(t), NewHandler()
		previous := ""
		for _, a := range c.all {
			f.steps = []step{a.step}
			w := f.ask(h, "POST", pathResponses, `{"model":"main",`+previous+a.body+`}`)
			if c.refused != "" {
				if w.Code != 400 || !strings.Contains(w.Body.String(), `"param":"`+c.refused+`"`) || len(f.started) > 0 {
					t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
				}
				continue
			}
			var o map[string]any
			if c.events == "" {
				o = f.object(w, 200)
			} else {
				var kinds []string
				for n, d := range data(w) {
					var ev map[string]any
					if json.Unmarshal([]byte(d), &ev) != nil || ev["sequence_number"] != float64(n) {
						t.Errorf("%s: event %d: %s", c.name, n, d)
					}
					kinds = append(kinds, strings.TrimPrefix(ev["type"].(string), "response."))
					o, _ = ev["response"].(map[string]any)
				}
				if got := strings.Join(kinds, " "); got != c.events {
					t.Errorf("%s: %s", c.name, got)
				}
			}
			for name, want := range members {
				v, there := o[name]
				if got := fmt.Sprintf("%T", v); !there || !strings.Contains(want, got) {
					t.Errorf("%s: %s is %s, want %s", c.name, name, got, want)
				}
			}
			if at(o, "status") != "completed" || at(o, "output", 0, "type") != a.item {
				t.Errorf("%s: %v", c.name, o)
			}
			previous = fmt.Sprintf(`"previous_response_id":%q,`, o["id"])
		}
		if n := len(c.all); n == 2 && !strings.Contains(string(f.started[1].Steps[0].Input), `{"text":"a"}`) {
			t.Errorf("%s: the second question is %s", c.name, f.started[1].Steps[0].Input)
		}
	}
}

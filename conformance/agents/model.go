package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

type object = map[string]any

// step is one call of the script, and a part of what the model must hear of it.
type step struct {
	tool string
	args object
	want string
}

// name is that of a step's tool in Claude Code: of Palyra's, or its own.
func (s *step) name() string {
	if s.tool[0] <= 'Z' {
		return s.tool
	}
	return "mcp__palyra__" + s.tool
}

// script is what a model calls. name is that of the file it writes.
func script(name string) []step {
	return []step{
		{"exec", object{"command": "echo made in a cell; grep -c : /proc/net/dev", "workspace": "src"}, `made in a cell\n1\n`},
		{"exec", object{"argv": []string{"tac"}}, "Do not repeat it"},
		{"exec", object{"argv": []string{"rev"}, "stdin": "abc\n"}, `cba\n`},
		{"fs_write_file", object{"workspace": "src", "path": name, "mode": "create", "content": "by an agent\n"}, "executed"},
	}
}

// shellScript is what a model does with its own shell; cd says whether that remembers a
// folder.
func shellScript(name string, cd bool) []step {
	shell := func(line, want string) step { return step{"Bash", object{"command": line}, want} }
	second := shell(`pwd; printf 'by %s agent\n' "an" >../`+name, "/workspace/d-"+name)
	if !cd {
		second = shell(`pwd; printf 'by %s agent\n' "an" >`+name, "/workspace")
	}
	return []step{
		shell(`mkdir "d-`+name+`" && cd *-`+name+` && echo "it's $HOME"; grep -c : /proc/net/dev && cd ../"d-`+name+`"`, `it's /tmp\n1`),
		second,
		shell("tac", "Do not repeat it"),
		shell("echo abc | rev", "cba"),
		shell("exit 7", "7"),
	}
}

// model is the endpoint of a model that plays a script, for Anthropic's messages and
// OpenAI's responses. How far it is follows from the results that a request holds.
type model struct {
	steps []step

	mu     sync.Mutex
	heard  []string // guarded by mu; the results of the calls
	errors []string // guarded by mu
}

// ServeHTTP implements http.Handler.
func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body object
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			m.fail("%s %s: %v", r.Header.Get("Content-Encoding"), r.URL.Path, err)
		}
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/count_tokens"):
		fmt.Fprint(w, `{"input_tokens":10}`)
	case r.Method == http.MethodPost && r.URL.Path == "/v1/messages":
		m.messages(w, body)
	case r.Method == http.MethodPost && r.URL.Path == "/v1/responses":
		m.responses(w, body)
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"data":[],"models":[]}`)
	}
}

func (m *model) fail(format string, a ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errors = append(m.errors, fmt.Sprintf(format, a...))
}

// next notes the results and returns the step to take, nil after the last.
func (m *model) next(results []any) *step {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(m.heard); i < len(results); i++ {
		b, err := json.Marshal(results[i])
		if err != nil {
			m.errors = append(m.errors, err.Error())
		}
		m.heard = append(m.heard, string(b))
	}
	if len(results) < len(m.steps) {
		return &m.steps[len(results)]
	}
	return nil
}

func sse(w http.ResponseWriter, events ...object) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		b, err := json.Marshal(e)
		if err != nil {
			panic("agents: internal error: " + err.Error())
		}
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e["type"], b)
	}
}

func list(v any) []any { l, _ := v.([]any); return l }

func field(v any, name string) any { o, _ := v.(object); return o[name] }

// messages answers as Anthropic does.
func (m *model) messages(w http.ResponseWriter, body object) {
	var results []any
	for _, msg := range list(body["messages"]) {
		for _, c := range list(field(msg, "content")) {
			if field(c, "type") == "tool_result" {
				results = append(results, field(c, "content"))
			}
		}
	}
	reason, block, delta := "end_turn", object{"type": "text", "text": ""}, object{"type": "text_delta", "text": "all done"}
	if len(list(body["tools"])) > 0 {
		if s := m.next(results); s != nil {
			args, err := json.Marshal(s.args)
			if err != nil {
				m.fail("%v", err)
			}
			reason = "tool_use"
			block = object{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", len(results)), "name": s.name(), "input": object{}}
			delta = object{"type": "input_json_delta", "partial_json": string(args)}
		}
	}
	sse(w, object{"type": "message_start", "message": object{"id": fmt.Sprintf("msg_%d", len(results)), "type": "message", "role": "assistant", "model": body["model"],
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": 1, "output_tokens": 1}}},
		object{"type": "content_block_start", "index": 0, "content_block": block},
		object{"type": "content_block_delta", "index": 0, "delta": delta},
		object{"type": "content_block_stop", "index": 0},
		object{"type": "message_delta", "delta": object{"stop_reason": reason, "stop_sequence": nil}, "usage": object{"output_tokens": 1}},
		object{"type": "message_stop"})
}

// responses answers as OpenAI does.
func (m *model) responses(w http.ResponseWriter, body object) {
	var results []any
	for _, item := range list(body["input"]) {
		if t, _ := field(item, "type").(string); strings.HasSuffix(t, "_output") {
			results = append(results, field(item, "output"))
		}
	}
	item := object{"type": "message", "id": "m_1", "role": "assistant", "content": []any{object{"type": "output_text", "text": "all done", "annotations": []any{}}}}
	if s := m.next(results); s != nil {
		in := s.args
		if s.tool == "Bash" {
			in = object{"cmd": in["command"]}
		}
		args, err := json.Marshal(in)
		if err != nil {
			m.fail("%v", err)
		}
		item = object{"type": "function_call", "id": fmt.Sprintf("fc_%d", len(results)), "call_id": fmt.Sprintf("call_%d", len(results)),
			"namespace": "mcp__palyra", "name": s.tool, "arguments": string(args)}
		switch s.tool {
		case "Bash":
			delete(item, "namespace")
			item["name"] = "exec_command"
		case "apply_patch": // Codex's own, which takes text
			item = object{"type": "custom_tool_call", "id": item["id"], "call_id": item["call_id"], "name": s.tool, "input": s.args["input"]}
		}
	}
	sse(w, object{"type": "response.created", "response": object{"id": "resp_1"}},
		object{"type": "response.output_item.done", "output_index": 0, "item": item},
		object{"type": "response.completed", "response": object{"id": "resp_1", "usage": object{"input_tokens": 1, "input_tokens_details": nil,
			"output_tokens": 1, "output_tokens_details": nil, "total_tokens": 2}}})
}

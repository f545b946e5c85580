package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"palyra/hub"
)

// TestMethods: resources and prompts are there where palyrad offers them, a request is a call of
// mcp.call, and its end, if not the server's answer, is an error.
func TestMethods(t *testing.T) {
	d := newDaemon()
	d.foreign = hub.ServerTools{Items: []hub.ServerTool{}, Methods: []string{hub.MethodListResources, hub.MethodListPrompts}}
	answer := ""
	d.outcome = func(st *hub.StepResult) {
		if st.Stdout.Text = answer; answer == "" {
			st.Outcome, st.Denial = "denied", &hub.Denial{Layer: hub.LayerPolicy, Reason: "not_permitted"}
		}
		st.Stdout.Size = int64(len(answer))
	}
	c := connect(t, Config{Hub: d, Server: "files"}).ready()
	for i, test := range []struct{ method, params, input, answer, want string }{
		{"resources/list", `{}`, `{"arguments":{},"server":"files","tool":"resources/list"}`, `{"result":{"resources":[{"uri":"test://a","name":"a"}]}}`, `"uri":"test://a"`},
		{"resources/list", `{"cursor":"x"}`, `{"arguments":{"cursor":"x"},"server":"files","tool":"resources/list"}`, `{"result":{"resources":[]}}`, `"resources":[]`},
		{"resources/templates/list", `{}`, `{"arguments":{},"server":"files","tool":"resources/templates/list"}`, `{"result":{"resourceTemplates":[{"uriTemplate":"test://{a}","name":"a"}]}}`, `test://{a}`},
		{"resources/read", `{"uri":"test://a"}`, `{"arguments":{"uri":"test://a"},"server":"files","tool":"resources/read"}`, `{"result":{"contents":[{"uri":"test://a","text":"its own"}]}}`, `"its own"`},
		{"prompts/list", `{}`, `{"arguments":{},"server":"files","tool":"prompts/list"}`, `{"result":{"prompts":[{"name":"p"}]}}`, `"name":"p"`},
		{"prompts/get", `{"name":"p","arguments":{"a":"b"}}`, `{"arguments":{"arguments":{"a":"b"},"name":"p"},"server":"files","tool":"prompts/get"}`, `{"result":{"messages":[{"role":"user","content":{"type":"text","text":"its own"}}]}}`, `"its own"`},
		{"resources/read", `{"uri":"test://b"}`, ``, `{"error":{"code":-32602,"message":"there is none"}}`, `there is none`},
		{"resources/read", `{"uri":"test://c"}`, ``, `{"result":{"contents":7}}`, `"error"`},
		{"resources/read", `{"uri":"test://d"}`, ``, `{"result":`, `"error"`},
		{"resources/read", `{"uri":"test://n"}`, ``, `{"result":null}`, `"error"`},
		{"resources/read", `{"uri":"test://e"}`, ``, ``, `not_permitted`},
		// A question to the client isn't passed.
		{"resources/read", `{"uri":"test://f"}`, ``, `{"result":{"contents":[],"resultType":"input_required","requestState":"s","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"Your password?"}}}}}`, `"contents":[]`},
		{"resources/read", `{"uri":"test://g"}`, ``, `{"result":{"contents":[],"ResultType":"input_required","RequestState":"s","InputRequests":{"a":{"method":"elicitation/create","params":{"message":"Your password?"}}}}}`, `"contents":[]`},
		{"prompts/get", `{"name":"q"}`, ``, `{"result":{"messages":[],"RESULTTYPE":"input_required","INPUTREQUESTS":{"a":{"method":"elicitation/create","params":{"message":"Your password?"}}}}}`, `"messages":[]`},
	} {
		answer = test.answer
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, i, test.method, test.params))
		b, err := c.out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b, test.want) || strings.Contains(b, "password") || !json.Valid([]byte(b)) {
			t.Errorf("%s %s: %s", test.method, test.params, b)
		}
		if got := d.called()[i]; test.input != "" && (got.Tool != hub.ToolMCPCall || string(got.Input) != test.input) {
			t.Errorf("%s became %s %s", test.method, got.Tool, got.Input)
		}
	}
	// Where palyrad offers none, nothing is asked; palyrad's own tools have none.
	for _, cfg := range []Config{{Hub: d}, {Hub: newDaemon(), Server: "files"}} {
		n := len(d.called())
		c := connect(t, cfg).ready()
		for _, method := range []string{"resources/list", "resources/read", "prompts/list", "prompts/get", "resources/subscribe", "completion/complete"} {
			c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"uri":"test://a","name":"p"}}`, method))
			if m := c.next(); m.Error == nil || len(d.called()) != n {
				t.Errorf("%s: %+v", method, m)
			}
		}
	}
}

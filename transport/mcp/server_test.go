package mcp

import (
	"encoding/json"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestPassed: a server's answer is passed on as it is, an error of its as an error, and what isn't
// its answer as text alone, marked as wrong.
func TestPassed(t *testing.T) {
	for text, want := range map[string]string{
		`{"result":{"content":[{"type":"text","text":"a"}],"structuredContent":{"n":1}}}`: `{"content":[{"type":"text","text":"a"}],"structuredContent":{"n":1}}`,
		`{"result":{"content":[],"isError":true}}`:                                        `{"content":[],"isError":true}`,
	} {
		r, err := (&Answer{answered: []byte(text)}).passed()
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := json.Marshal(r); string(b) != want {
			t.Errorf("%s became %s", text, b)
		}
	}
	if _, err := (&Answer{answered: []byte(`{"error":{"code":-32602,"message":"bad"}}`)}).passed(); err == nil {
		t.Error("an error is no error")
	}
	for _, a := range []*Answer{{Outcome: outcomePending}, {Outcome: "denied", bad: true}, {answered: []byte(`{"result":{"content":[{"type":"nonsense"}]}}`)}, {answered: []byte("{")}} {
		r, err := a.passed()
		if c, ok := r.(*sdk.CallToolResult); err != nil || !ok || c.StructuredContent != nil || !c.IsError || len(c.Content) != 1 {
			t.Errorf("%+v: %+v, %v", a, r, err)
		}
	}
}

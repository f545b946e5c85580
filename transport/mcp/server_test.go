package mcp

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"palyra/hub"
)

// TestPassed: a server's answer is passed on as it is, an error of its as an error, and what isn't
// its answer as text alone, marked as wrong.
func TestPassed(t *testing.T) {
	for text, want := range map[string]string{
		`{"result":{"content":[{"type":"text","text":"a"}],"structuredContent":{"n":1}}}`: `{"content":[{"type":"text","text":"a"}],"structuredContent":{"n":1}}`,
		`{"result":{"content":[],"isError":true}}`:                                        `{"content":[],"isError":true}`,
		// A question to the client isn't.
		`{"result":{"content":[],"resultType":"input_required","requestState":"s","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"Your password?"}}}}}`: `{"content":[]}`,
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
	for _, a := range []*Answer{{Told: hub.Told{Outcome: outcomePending}}, {Told: hub.Told{Outcome: "denied", Bad: true}}, {answered: []byte(`{"result":{"content":[{"type":"nonsense"}]}}`)}, {answered: []byte("{")}} {
		r, err := a.passed()
		if err != nil || r == nil || r.StructuredContent != nil || !r.IsError || len(r.Content) != 1 {
			t.Errorf("%+v: %+v, %v", a, r, err)
		}
	}
}

// TestRoom: a large answer has room of its principal's until it's fetched, and is none without.
func TestRoom(t *testing.T) {
	held, most := int64(0), int64(1<<20)
	s := &server{hold: func(n int64) (func(), error) {
		if held+n > most {
			return nil, errors.New("no room")
		}
		held += n
		return func() { held -= n }, nil
	}}
	var c call
	if err := s.more(&c, answerBytes); err != nil || held != 0 {
		t.Errorf("a small answer: %v, %d held", err, held)
	}
	if err := s.more(&c, 1<<20); err != nil || held != 1<<20-answerBytes {
		t.Errorf("a large one: %v, %d held", err, held)
	}
	if err := s.more(&c, 1<<20); err == nil {
		t.Error("there is no room, and it's had")
	}
	if c.room.free(); held != 0 {
		t.Errorf("fetched, %d held", held)
	}
	if err := s.more(&c, 1<<20); err != nil || held != 0 {
		t.Errorf("an answer that no one fetches: %v, %d held", err, held)
	}
	if err := (&server{}).more(&c, 1<<30); err != nil {
		t.Error(err)
	}
}

// TestForeign: a tool that the SDK or palyrad can't read is left out, and its neighbours are not.
func TestForeign(t *testing.T) {
	list := []hub.ServerTool{
		{Name: "a", Definition: json.RawMessage(`{"inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`)},
		{Name: "b", Definition: json.RawMessage(`{"inputSchema":{"type":"object"},"annotations":{"readOnlyHint":"yes"}}`)},
		{Name: "c", Definition: json.RawMessage(`{"inputSchema":{}}`), LeftOut: "inputSchema"},
		{Name: "d", Definition: json.RawMessage(`{"inputSchema":{"type":"object"},"outputSchema":{"type":"object","x":1}}`)},
	}
	d := newDaemon()
	d.foreign.Items = list
	c := connect(t, Config{Hub: d, Server: "files"}).ready()
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	var names []string
	for _, tool := range c.next().Result.Tools {
		names = append(names, tool["name"].(string))
	}
	if strings.Join(names, " ") != "a d" {
		t.Errorf("listed %q", names)
	}
	c.tool(3, "b", "{}", "")
	if m := c.next(); m.Error == nil || !strings.Contains(m.Error.Message, "unknown tool") {
		t.Errorf("a call of a tool that is left out: %+v", m)
	}
}

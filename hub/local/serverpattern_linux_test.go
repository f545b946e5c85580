package local

import (
	"testing"
	"time"

	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestServerPattern: a yes to one tool of a server, however wide its giver means it, is none to
// another tool.
func TestServerPattern(t *testing.T) {
	h := newHouse(t, func(c *Config, _ *kernel.Config) { c.AllowSelf = true })
	h.addServer("bad", hub.ServerSpec{})
	yes := func(run string, with hub.Answer) error {
		t.Helper()
		h.until(h.owner, run, hub.EventApprovalRequested)
		a := h.question(h.owner)
		_, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: a.ID, Version: a.Version, Answer: with})
		return err
	}
	other := func(than string) string {
		for {
			for _, id := range h.unended() {
				if id != than {
					return id
				}
			}
		}
	}
	once := hub.Answer{Approve: true}
	accepted := make(chan hub.Server)
	go func() { accepted <- h.accept("bad") }()
	shown := other("")
	if err := yes(shown, once); err != nil {
		t.Fatal(err)
	}
	<-accepted
	h.ended(h.owner, shown)
	session := h.session(h.owner)
	start := func(tool string) string {
		t.Helper()
		r, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: session, Parallel: true,
			Steps: []hub.Step{{Tool: hub.ToolMCPCall, Input: []byte(`{"server":"bad","tool":"` + tool + `","arguments":{}}`)}}})
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	first := start("echo")
	if err := yes(other(first), once); err != nil {
		t.Fatal(err)
	}
	wide := hub.Answer{Approve: true, Scope: "timed", For: time.Hour, Pattern: &hub.Pattern{Content: true}}
	if err := yes(first, wide); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("a pattern of any question: %v", err)
	}
	// This very question may have a yes for longer.
	wide.Pattern = nil
	if err := yes(first, wide); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{first, start("echo")} {
		if st := h.ended(h.owner, id).Steps[0]; st.Outcome != receipt.Executed {
			t.Errorf("%+v", st)
		}
	}
	second := start("count")
	h.until(h.owner, second, hub.EventApprovalRequested)
	if _, err := hub.CancelRun.Do(t.Context(), h, h.owner, second); err != nil {
		t.Fatal(err)
	}
}

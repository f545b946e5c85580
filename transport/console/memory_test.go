package console

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/behind"
)

// remembering is a hub with a memory that answers every call with result, and counts the calls in
// asked.
func remembering(result *hub.MemoryResult, asked *[]any) hub.Table {
	return hub.NewTable(
		answer(hub.GetMemory, hub.MemoryState{Items: 2, MaxItems: 9}, nil), answer(hub.GetVault, hub.VaultState{Vault: "V"}, nil),
		by(hub.SearchMemory, result, asked), by(hub.ListMemory, result, asked), by(hub.AddMemory, result, asked), by(hub.ForgetMemory, result, asked))
}

func by[In any](op hub.Op[In, hub.MemoryResult], result *hub.MemoryResult, asked *[]any) hub.Entry {
	return op.By(func(_ context.Context, _ hub.Caller, in In) (hub.MemoryResult, error) {
		*asked = append(*asked, in)
		return *result, nil
	})
}

func made(outcome, reason string) hub.Run {
	index := uint64(0)
	return hub.Run{ID: "run_x", Steps: []hub.StepResult{{Outcome: outcome, Reason: reason, LogIndex: &index}}}
}

// TestMemoryFound: the page makes no call before a click, and then shows items as text, whoever wrote
// them, and the way to older ones.
func TestMemoryFound(t *testing.T) {
	past := time.Unix(1, 0)
	var asked []any
	result := hub.MemoryResult{Run: made("executed", ""), Next: 7, Items: []hub.MemoryItem{
		{ID: "mem_1", Scope: "session", Session: "ses_abcdefghij", Source: "agent", Origins: []string{"web", "<i>"}, Tags: []string{"<b>x"}, Confidence: 40, Expires: &past,
			Text: "<script>x</script> " + strings.Repeat("long ", 50), Score: &hub.MemoryScore{Total: 321, Embedding: "vectors"}},
		{ID: "mem_2", Scope: "principal", Source: "person", Origins: []string{"person"}, Confidence: 100, Text: "short\u202etrohs"}}}
	h := remembering(&result, &asked)
	show := func(form url.Values) string {
		t.Helper()
		w, err := visit(t, h, "memory", form)
		if err != nil {
			t.Fatal(err)
		}
		return w.Body.String()
	}
	has(t, show(nil), "2 of at most 9 items", `action="/console/memory"`, `action="/console/memory/add"`, "-mem_1", "-There are none", "-/console/memory/forget")
	if len(asked) != 0 {
		t.Error("looking made a call")
	}
	has(t, show(url.Values{"query": {" how <to> "}}), "&lt;script&gt;x&lt;/script&gt; long", "<summary>", "&lt;b&gt;x", "web, &lt;i&gt;", "expired", "score 321 of 1000 by vectors",
		"40 % sure", "for that alone", `value="how &lt;to&gt;"`, `name="item" value="mem_2"`, "short⟦U+202E⟧trohs", "never", `name="before" value="7"`, "/console/runs/run_x")
	show(url.Values{"before": {"7"}})
	result = hub.MemoryResult{Run: made("executed", "")}
	has(t, show(url.Values{"query": {""}}), "There are none", "-name=\"before\"")
	if len(asked) != 3 || asked[0].(hub.MemorySearch).Query != "how <to>" || asked[1].(hub.MemoryQuery).Before != 7 || asked[2].(hub.MemoryQuery).Before != 0 {
		t.Errorf("%+v", asked)
	}
	if _, err := visit(t, h, "memory", url.Values{"before": {"x"}}); fault.KindOf(err) != fault.Usage {
		t.Error(err)
	}
}

// TestMemoryChanged: items are remembered and forgotten by exactly the call that the form says, and
// one that isn't made is shown with its reason and receipt, and what was written.
func TestMemoryChanged(t *testing.T) {
	var asked []any
	result := hub.MemoryResult{Run: made("executed", ""), Count: 1}
	h := remembering(&result, &asked)
	written := url.Values{"text": {"one\r\ntwo"}, "tags": {" a, ,b "}, "expires": {"2027-01-02"}}
	for at, did := range map[string]string{"memory/add": "remembered", "memory/forget": "forgotten"} {
		form := written
		if did == "forgotten" {
			form = url.Values{"item": {"mem_1", "mem_2"}}
		}
		asked = nil
		w, err := visit(t, h, at, form)
		if err != nil || w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/console/memory?said="+did || len(asked) != 1 {
			t.Errorf("%s: %d %v, %v; %v", at, w.Code, w.Header(), err, asked)
			continue
		}
		switch in := asked[0].(type) {
		case hub.MemoryAdd:
			if n := in.Items[0]; len(in.Items) != 1 || n.Text != "one\ntwo" || strings.Join(n.Tags, "|") != "a|b" || n.Expires != "2027-01-02T00:00:00Z" || in.Import {
				t.Errorf("%+v", in)
			}
		case hub.MemoryForget:
			if strings.Join(in.IDs, "|") != "mem_1|mem_2" || in.All {
				t.Errorf("%+v", in)
			}
		}
		if _, err := visit(t, h, at, nil); fault.KindOf(err) != fault.NotFound {
			t.Errorf("a link to %s: %v", at, err)
		}
	}
	w, err := visit(t, h, "memory?said=forgotten", nil)
	if err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), "What was ticked is forgotten")
	asked = nil
	if _, err := visit(t, h, "memory/forget", url.Values{"item": {""}}); fault.KindOf(err) != fault.Usage || len(asked) != 0 {
		t.Errorf("nothing is ticked: %v, %v", err, asked)
	}
	for outcome, run := range map[string]hub.Run{"denied": made("denied", "policy_denied"), "couldn’t be made": {ID: "run_x", Reason: "stopped", Steps: []hub.StepResult{{}}}} {
		result = hub.MemoryResult{Run: run}
		if w, err = visit(t, h, "memory/add", written); err != nil {
			t.Fatal(err)
		}
		has(t, w.Body.String(), outcome, run.Reason+run.Steps[0].Reason, "/console/runs/run_x", "one\ntwo</textarea>", `value="a, b"`, `value="2027-01-02"`)
		if run.Steps[0].LogIndex != nil {
			has(t, w.Body.String(), `href="/console/receipts/0"`)
		}
	}
	// Its program failed, and without its step, for which palyrad had no room.
	run := made("executed", "")
	run.Steps[0].Exit = 1
	e := answer(hub.GetRun, run, nil)
	h[e.Operation] = e
	result = hub.MemoryResult{Run: hub.Run{ID: "run_x"}}
	if w, err = visit(t, h, "memory/forget", url.Values{"item": {"mem_1"}}); err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), `role="alert"`, "/console/receipts/0")
}

// TestMemoryLocked: without a vault the page says how to get one and offers no call; who may not read
// the vault's state isn't told that there's none.
func TestMemoryLocked(t *testing.T) {
	for _, c := range []struct {
		kind fault.Kind
		text []string
	}{{fault.NotFound, []string{"palyra vault init", "-<form method=\"post\" action=\"/console/memory"}}, {fault.Denied, []string{"-palyra vault init", "/console/memory/add"}}} {
		h := remembering(new(hub.MemoryResult), new([]any))
		e := answer(hub.GetVault, hub.VaultState{}, fault.New(c.kind, "x", "x", nil))
		h[e.Operation] = e
		w, err := visit(t, h, "memory", nil)
		if err != nil {
			t.Fatal(err)
		}
		has(t, w.Body.String(), c.text...)
	}
}

// TestAttended: a page that waits for a call has a place of those that stay, and leaves it when the
// call has ended.
func TestAttended(t *testing.T) {
	c, err := New(Config{Door: struct{ hub.Door }{}})
	if err != nil {
		t.Fatal(err)
	}
	var asked []any
	h := remembering(&hub.MemoryResult{Run: made("executed", "")}, &asked)
	status := answer(hub.GetStatus, hub.Status{}, nil)
	h[status.Operation] = status
	first, second := httptest.NewRecorder(), httptest.NewRecorder()
	stayed, left := 0, 0
	v := &behind.Visitor{Hub: h, Form: url.Values{}, Stay: func() (context.Context, http.ResponseWriter, func(), error) {
		ctx, cancel := context.WithCancel(t.Context())
		stayed++
		return ctx, second, func() { cancel(); left++ }, nil
	}}
	if err := c.Page(first, httptest.NewRequest(http.MethodPost, root+"memory", nil), v); err != nil || stayed != 1 || left != 1 {
		t.Errorf("%v; stayed %d, left %d", err, stayed, left)
	}
	if first.Body.Len() != 0 || !strings.Contains(second.Body.String(), "There are none") {
		t.Errorf("the answer is %q and %q", first.Body, second.Body)
	}
	v.Stay = func() (context.Context, http.ResponseWriter, func(), error) {
		return nil, nil, nil, fault.New(fault.Unavailable, "too_many", "x", nil)
	}
	asked = nil
	if err := c.Page(first, httptest.NewRequest(http.MethodPost, root+"memory", nil), v); fault.ReasonOf(err) != "too_many" || len(asked) != 0 {
		t.Errorf("without a place: %v, %v", err, asked)
	}
}

package console

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/transport/behind"
)

// visit makes a visitor's request to a console over h, which needn't have GetStatus. A form makes it
// a POST. The error is the page's.
func visit(t *testing.T, h hub.Table, at string, form url.Values) (*httptest.ResponseRecorder, error) {
	t.Helper()
	c, err := New(Config{Door: struct{ hub.Door }{}})
	if err != nil {
		t.Fatal(err)
	}
	status := hub.GetStatus.By(func(context.Context, hub.Caller, hub.None) (hub.Status, error) { return hub.Status{}, nil })
	h[status.Operation] = status
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	w := httptest.NewRecorder()
	return w, c.Page(w, httptest.NewRequest(method, root+at, nil), &behind.Visitor{Caller: hub.Caller{User: "uid:1"}, Hub: h, Form: form})
}

// has fails if a page lacks a text, or has one that is wanted to be absent: "-text".
func has(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, x := range texts {
		if absent, ok := strings.CutPrefix(x, "-"); ok == strings.Contains(page, absent) && ok || !ok && !strings.Contains(page, x) {
			t.Errorf("want %q in\n%s", x, page)
		}
	}
}

// answer is an operation that always gives the same.
func answer[In, Out any](op hub.Op[In, Out], out Out, err error) hub.Entry {
	return op.By(func(context.Context, hub.Caller, In) (Out, error) { return out, err })
}

// TestPageDoesNotWaitForItself: a page that asks for several answers holds the room of one, until
// it's written.
func TestPageDoesNotWaitForItself(t *testing.T) {
	room := budget.New(budget.Limits{Name: "reads", Total: 1})
	took := 0
	take := func(ctx context.Context) error {
		hold, err := room.Take(budget.Owner{Name: "uid:1"}, 1)
		if err == nil {
			took++
			hold.Keep(ctx)
		}
		return err
	}
	h := hub.NewTable(
		hub.GetLayer.By(func(ctx context.Context, _ hub.Caller, name string) (hub.LayerChanges, error) {
			return hub.LayerChanges{Layer: hub.Layer{Layer: name}}, take(ctx)
		}),
		hub.GetPatch.By(func(ctx context.Context, _ hub.Caller, _ hub.PatchQuery) (hub.LayerPatch, error) {
			return hub.LayerPatch{}, take(ctx)
		}))
	if _, err := visit(t, h, "changes/l-1", nil); err != nil || took != 2 || room.Held() != 0 {
		t.Errorf("%v; took %d, held %d", err, took, room.Held())
	}
}

// TestPacked: a browser that takes gzip gets a page and its parts in it, with the same validator, and
// another one gets them plain.
func TestPacked(t *testing.T) {
	c, err := New(Config{Door: struct{ hub.Door }{}})
	if err != nil {
		t.Fatal(err)
	}
	h := hub.NewTable(answer(hub.GetStatus, hub.Status{}, nil), answer(hub.GetRun, hub.Run{ID: "run_1", State: hub.RunDone, Principal: strings.Repeat("x", 5000)}, nil),
		answer(hub.ListApprovals, hub.Page[hub.Approval]{}, nil))
	get := func(encodings string) *httptest.ResponseRecorder {
		t.Helper()
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, root+"runs/run_1", nil)
		r.Header.Set("Accept-Encoding", encodings)
		if err := c.Page(w, r, &behind.Visitor{Hub: h}); err != nil {
			t.Fatal(err)
		}
		return w
	}
	unpack := func(w *httptest.ResponseRecorder) string {
		t.Helper()
		if w.Header().Get("Content-Encoding") != "gzip" {
			t.Fatalf("%v", w.Header())
		}
		z, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	plain, packed := get("br, deflate"), get("br, gzip")
	size := packed.Body.Len()
	if text := plain.Body.String(); unpack(packed) != text || size*3 > len(text) || plain.Header().Get("Content-Encoding") != "" {
		t.Errorf("%d bytes packed, %d plain", size, len(text))
	}
	if a, b := plain.Header().Get("ETag"), packed.Header().Get("ETag"); a != b || plain.Header().Get("Vary") != "Accept-Encoding" {
		t.Errorf("validators %s and %s, %v", a, b, plain.Header())
	}
	for name, a := range c.assets {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/assets/"+name, nil)
		r.SetPathValue("name", name)
		r.Header.Set("Accept-Encoding", "gzip")
		if err := c.Open(w, r, &behind.Visitor{}); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".png") {
			if w.Header().Get("Content-Encoding") != "" || w.Body.String() != string(a.body) {
				t.Errorf("%s: %v", name, w.Header())
			}
		} else if unpack(w) != string(a.body) {
			t.Errorf("%s has changed", name)
		}
	}
}

// TestOldestFirst: of the questions that wait the oldest is on top; the hub lists the newest first.
// If more wait than a page shows, a link leads to the others.
func TestOldestFirst(t *testing.T) {
	asked := func(tool string) hub.Approval {
		return hub.Approval{ID: "apr_" + tool, State: hub.ApprovalPending, Card: hub.Card{Tool: tool}}
	}
	h := hub.NewTable(hub.ListApprovals.By(func(_ context.Context, _ hub.Caller, q hub.ApprovalQuery) (hub.Page[hub.Approval], error) {
		switch {
		case q.State == "":
			return hub.Page[hub.Approval]{}, nil
		case q.After == "apr_older":
			return hub.Page[hub.Approval]{Items: []hub.Approval{asked("oldest")}}, nil
		}
		return hub.Page[hub.Approval]{Items: []hub.Approval{asked("newer"), asked("older")}, Next: "apr_older"}, nil
	}), answer(hub.ListGrants, hub.Page[hub.StandingGrant]{}, nil))
	w, err := visit(t, h, "questions", nil)
	if err != nil {
		t.Fatal(err)
	}
	if page := w.Body.String(); strings.Index(page, "older") > strings.Index(page, "newer") || !strings.Contains(page, "newer") {
		t.Errorf("in\n%s", page)
	}
	has(t, w.Body.String(), `href="/console/questions?waiting=apr_older"`)
	if w, err = visit(t, h, "questions?waiting=apr_older", nil); err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), "oldest", "-newer", "-waiting=")
}

// TestSecrets: the page makes no call before a click, and then shows what was listed, with the uses
// that the visitor may see.
func TestSecrets(t *testing.T) {
	gone := time.Unix(1, 0)
	calls := 0
	entry := hub.JournalEntry{Index: 0, CallID: "c", Statement: []byte(`{"predicate":{"capsule":{"secrets":[{"ref":"vault://global/<b>a","version":2}]}}}`)}
	var result hub.VaultResult
	h := hub.NewTable(
		answer(hub.GetVault, hub.VaultState{Vault: "V", Epoch: 3, OpenedBy: "palyrad"}, nil),
		answer(hub.GetJournal, hub.JournalStatus{Size: 1}, nil),
		answer(hub.ListJournalEntries, hub.Page[hub.JournalEntry]{Items: []hub.JournalEntry{entry}}, nil),
		hub.ListSecrets.By(func(context.Context, hub.Caller, hub.SecretQuery) (hub.VaultResult, error) {
			calls++
			return result, nil
		}))
	show := func(form url.Values) string {
		t.Helper()
		w, err := visit(t, h, "secrets", form)
		if err != nil {
			t.Fatal(err)
		}
		return w.Body.String()
	}
	has(t, show(nil), "opened as", "palyra vault set", "-<table>")
	if calls != 0 {
		t.Error("looking made a call")
	}
	result = hub.VaultResult{Run: hub.Run{ID: "run_x", Steps: []hub.StepResult{{Outcome: "executed"}}}, Value: []byte("the value"),
		Secrets: []hub.SecretInfo{{Ref: "vault://global/<b>a", Version: 2, Expires: &gone, By: "uid:7"}, {Ref: "vault://global/b", Version: 1}}}
	has(t, show(url.Values{"ref": {""}}), "vault://global/&lt;b&gt;a", "expired", "uid:7", "read by 1", "/console/journal/0", "-the value", "never", "newest 1 calls")
	result = hub.VaultResult{Run: hub.Run{ID: "run_x", Steps: []hub.StepResult{{Outcome: "denied", Error: "no policy"}}}}
	has(t, show(url.Values{}), "denied", "no policy", "/console/runs/run_x", "-There are none")
	for _, e := range []hub.Entry{answer(hub.ListJournalEntries, hub.Page[hub.JournalEntry]{}, fault.New(fault.Denied, "permission_denied", "x", nil)),
		answer(hub.GetVault, hub.VaultState{}, fault.New(fault.NotFound, "not_found", "x", nil))} {
		h[e.Operation] = e
		has(t, show(nil), "palyra vault")
	}
	has(t, show(nil), "opens no vault", `-action="/console/secrets"`)
	if _, err := visit(t, h, "secrets", url.Values{}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a list without a vault: %v", err)
	}
	denied := answer(hub.GetVault, hub.VaultState{}, fault.New(fault.Denied, "permission_denied", "x", nil))
	h[denied.Operation] = denied
	if _, err := visit(t, h, "secrets", nil); fault.KindOf(err) != fault.Denied {
		t.Errorf("without the permission: %v", err)
	}
}

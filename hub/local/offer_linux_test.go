package local

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/kernel"
)

// offered returns the merged names of a caller's list of tools, and its revision.
func (h *house) offered(c hub.Caller) (names []string, l hub.ToolList) {
	h.t.Helper()
	l, err := hub.ListTools.Do(h.t.Context(), h, c, hub.ToolQuery{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, t := range l.Items {
		if t.Server != "" {
			names = append(names, t.Name)
		}
	}
	return names, l
}

// TestOffer: a caller is listed the tools of servers that policy lets them call, under their merged
// names, without a right to the servers themselves; the revision changes with that, and not else.
func TestOffer(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/a.cedar", []byte(`@id("rest") permit (principal in Palyra::Role::"operator", action, resource) unless { resource == Palyra::Tool::"mcp.call" };
		@id("calls") permit (principal in Palyra::Role::"operator", action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"mcp.call")
			when { context.mcp.server == "other" || ["echo", "count"].contains(context.mcp.tool) };`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(c *Config, k *kernel.Config) { c.PolicyDir, k.PolicyDir = dir, dir })
	op := h.member(2001, access.Operator)
	if names, _ := h.offered(op); names != nil {
		t.Errorf("without servers: %q", names)
	}
	h.addServer("bad", hub.ServerSpec{})
	if names, _ := h.offered(op); names != nil {
		t.Errorf("nothing is accepted: %q", names)
	}
	h.accept("bad")
	names, l := h.offered(op)
	if got := strings.Join(names, " "); got != "bad__echo bad__count" {
		t.Errorf("listed %s", got)
	}
	if t0 := l.Items[slices.IndexFunc(l.Items, func(t hub.Tool) bool { return t.Name == "bad__echo" })]; t0.Server != "bad" || t0.Description != "Gives its arguments back." || !strings.Contains(string(t0.Definition), `"name":"echo"`) {
		t.Errorf("%+v", t0)
	}
	// What is listed can be called, what isn't can't.
	if st := h.ask(op, "", "bad", "count", nil); st.Outcome != receipt.Executed {
		t.Errorf("%+v", st)
	}
	if st := h.ask(op, "", "bad", "fail", nil); st.Outcome != receipt.Denied {
		t.Errorf("%+v", st)
	}
	same, err := hub.ListTools.Do(t.Context(), h, op, hub.ToolQuery{Known: l.Revision})
	if err != nil || same.Revision != l.Revision || len(same.Items) != 0 {
		t.Errorf("nothing has changed: %v, %+v", err, same)
	}
	// Another's list is another one, also where it has the same tools.
	if o, err := hub.ListTools.Do(t.Context(), h, h.member(2002, access.Operator), hub.ToolQuery{Known: l.Revision}); err != nil || len(o.Items) == 0 || o.Revision == l.Revision {
		t.Errorf("another caller with that revision: %v, %d tools", err, len(o.Items))
	}
	program, err := badServer()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(program)
	other := h.base + "/other"
	if err == nil {
		err = os.WriteFile(other, b, 0o755)
	}
	if err == nil {
		_, err = hub.AddServer.Do(t.Context(), h, h.owner, hub.NewServer{Name: "other", Spec: hub.ServerSpec{Argv: []string{other}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	h.accept("other")
	names, more := h.offered(op)
	if more.Revision == l.Revision || !slices.Contains(names, "other__fail") || !slices.Contains(names, "bad__echo") {
		t.Errorf("another server has come: %q", names)
	}
	// The program is gone: a call could not be made.
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if names, l := h.offered(op); slices.Contains(names, "other__fail") || len(l.LeftOut) != 1 || l.LeftOut[0].Server != "other" || !slices.Contains(names, "bad__echo") {
		t.Errorf("a program that is gone: %q, without %+v", names, l.LeftOut)
	}
	if _, err := hub.RemoveServer.Do(t.Context(), h, h.owner, "other"); err != nil {
		t.Fatal(err)
	}
	_, gone := h.offered(op)
	if gone.Revision == more.Revision || len(gone.LeftOut) != 0 {
		t.Errorf("it was removed: %+v", gone.LeftOut)
	}
	// A right to see sessions is none to make calls.
	secret, err := hub.CreateToken.Do(t.Context(), h, op, hub.NewToken{Name: "reads", TTL: time.Hour, Scopes: []string{string(access.SessionRead)}})
	if err != nil {
		t.Fatal(err)
	}
	reads := op
	reads.Token = secret.Token.ID
	if names, _ := h.offered(reads); names != nil {
		t.Errorf("without run.start: %q", names)
	}
}

// TestOfferBounds: servers with thousands of tools cost a list no more than its bound, and what
// doesn't fit is named.
func TestOfferBounds(t *testing.T) {
	h := newHouse(t, permitServers(t))
	for i := range 8 {
		name := fmt.Sprintf("many%d", i)
		h.addServer(name, hub.ServerSpec{})
		var list []hub.ServerTool
		for j := range 250 {
			b, err := canon.Marshal(map[string]any{"name": fmt.Sprintf("t%d", j), "inputSchema": map[string]any{"type": "object"}})
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, hub.ServerTool{Name: fmt.Sprintf("t%d", j), Pin: canon.Sum(b), Definition: b})
		}
		if err := h.st.Update(t.Context(), func(tx *store.Tx) error {
			row, err := tx.Server(name)
			if err == nil {
				row.Accepted, err = json.Marshal(list)
				row.Listed, row.AcceptedBy, row.AcceptedAt = row.Accepted, "uid:0", row.Added
			}
			if err == nil {
				err = tx.UpdateServer(row, h.owner.User)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	names, l := h.offered(h.owner)
	if len(names) != 500 || len(l.LeftOut) != 6 || l.LeftOut[0].Server != "many2" || !strings.Contains(l.LeftOut[0].Why, "512") {
		t.Errorf("%d tools, without %+v", len(names), l.LeftOut)
	}
}

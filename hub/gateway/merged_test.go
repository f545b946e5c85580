package gateway

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// rowOf is a server that listed and had accepted these tools.
func rowOf(t testing.TB, server string, tools ...string) *store.Server {
	t.Helper()
	var list []hub.ServerTool
	for _, name := range tools {
		tool, err := toolOf(fmt.Appendf(nil, `{"name":%q,"inputSchema":{"type":"object"}}`, name))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, tool)
	}
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return &store.Server{Name: server, Spec: []byte("{}"), Listed: b, Accepted: b, AcceptedBy: "uid:0"}
}

func all(string) bool { return true }

// TestMergedName: a name is one that models' interfaces take, begins with the server's, and is of
// one server alone, whatever trick the others' names are.
func TestMergedName(t *testing.T) {
	for _, c := range []struct{ server, tool, want string }{
		{"files", "read", "files__read"},
		{"a", "b__c", "a__b__c"},
		{"a-b", "_c", "a-b___c"},
		{"a", "b.c", "a__b_c_" + tail("a", "b.c")},
		{"a", "b/c", "a__b_c_" + tail("a", "b/c")},
		{"a", strings.Repeat("x", 48), "a__" + strings.Repeat("x", 48)},
		{"a", strings.Repeat("x", 49), "a__" + strings.Repeat("x", 39) + "_" + tail("a", strings.Repeat("x", 49))},
	} {
		if got := MergedName(c.server, c.tool); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.server, c.tool, got, c.want)
		}
	}
	valid := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,51}$`)
	servers := []string{"a", "a-", "a-b", "ab", "b", strings.Repeat("s", maxName), strings.Repeat("s", maxName-1)}
	tools := []string{"b", "_b", "__b", "b__", "a__b", "b__c", "a-b__c", "-", "_", "__", ".", "/", "b.c", "b/c", "b_c", strings.Repeat("t", maxToolName), strings.Repeat("t", maxToolName-1) + "."}
	of := map[string]string{}
	for _, s := range servers {
		for _, tool := range tools {
			name := MergedName(s, tool)
			if !valid.MatchString(name) || !strings.HasPrefix(name, s+"__") {
				t.Errorf("%s %s: %s", s, tool, name)
			}
			if other, ok := of[name]; ok {
				t.Errorf("%s is of %s and of %s %s", name, other, s, tool)
			}
			of[name] = s + " " + tool
		}
	}
	// What keeps servers apart: no server's name has what ends it.
	g := New(Config{})
	for _, name := range []string{"a_", "a__b", "_", "A", "a.b", "a/b", ""} {
		if _, err := g.Row(hub.NewServer{Name: name, Spec: hub.ServerSpec{Argv: []string{"/bin/cat"}}}, "uid:0"); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("a server with the name %q: %v", name, err)
		}
	}
}

func tail(server, tool string) string {
	return strings.TrimPrefix(canon.Sum([]byte(server+"\x00"+tool)).String(), "sha256:")[:8]
}

// TestMergedLeavesOut: of two tools with one merged name neither is there; nor is one that changed,
// went, can't be read, or may not be used. Those that may not be used aren't named.
func TestMergedLeavesOut(t *testing.T) {
	imitation := "b_c_" + tail("a", "b.c")
	tools, out, err := Merged(rowOf(t, "a", "b.c", imitation, "ok"), all)
	if err != nil || len(tools) != 1 || tools[0].Name != "a__ok" || len(out) != 2 || !strings.Contains(out[0].Why, "a__"+imitation) {
		t.Errorf("%v: %+v, without %+v", err, tools, out)
	}
	if tools, _, _ := Merged(rowOf(t, "a", "b.c", "ok"), all); len(tools) != 2 {
		t.Errorf("without the imitation: %+v", tools)
	}
	// A tool that may not be used can take another one's name away, not its place.
	tools, out, _ = Merged(rowOf(t, "a", "b.c", imitation), func(tool string) bool { return tool == imitation })
	if len(tools) != 0 || len(out) != 1 || out[0].Tool != imitation {
		t.Errorf("%+v, without %+v", tools, out)
	}
	row := rowOf(t, "a", "stays", "changes", "goes")
	pins := rowOf(t, "a", "stays", "other")
	list, err := toolsOf(pins.Listed)
	if err != nil {
		t.Fatal(err)
	}
	list[1].Name = "changes" // with the pin of another definition
	if err := SetListed(row, list); err != nil {
		t.Fatal(err)
	}
	tools, out, err = Merged(row, all)
	if err != nil || len(tools) != 1 || tools[0].Name != "a__stays" || len(out) != 2 || !strings.Contains(out[0].Why, "changed") || !strings.Contains(out[1].Why, "no longer") {
		t.Errorf("%v: %+v, without %+v", err, tools, out)
	}
	tools, out, err = Merged(rowOf(t, "a", "x", "y"), func(tool string) bool { return tool == "y" })
	if err != nil || len(tools) != 1 || tools[0].Name != "a__y" || len(out) != 0 {
		t.Errorf("%v: %+v, without %+v", err, tools, out)
	}
	row = rowOf(t, "a", "x")
	row.AcceptedBy = ""
	if tools, out, err = Merged(row, all); err != nil || len(tools)+len(out) != 0 {
		t.Errorf("nobody accepted it: %v, %+v, %+v", err, tools, out)
	}
}

// TestTooManyTools: a list of ten thousand ends where the bound is, on one page or on many, and the
// names of escapes and prefixes never get as far.
func TestTooManyTools(t *testing.T) {
	page := func(from, n int) (raw []json.RawMessage) {
		for i := range n {
			raw = append(raw, fmt.Appendf(nil, `{"name":"t%d","inputSchema":{"type":"object"}}`, from+i))
		}
		return raw
	}
	if _, err := add(nil, page(0, 10_000)); err == nil || !strings.Contains(err.Error(), "more than 256") {
		t.Errorf("10,000 at once: %v", err)
	}
	list, err := add(nil, page(0, maxTools))
	if err != nil || len(list) != maxTools {
		t.Fatalf("%v, %d", err, len(list))
	}
	if _, err := add(list, page(maxTools, 1)); err == nil {
		t.Error("one more is taken")
	}
	for _, name := range []string{"x\x1b[2J", "x\u202ey", "x y", "x\n", "é", "", strings.Repeat("x", maxToolName+1), `x\u001b`} {
		b, err := json.Marshal(map[string]any{"name": name, "inputSchema": map[string]any{"type": "object"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := toolOf(b); err == nil || strings.ContainsAny(err.Error(), "\x1b\u202e\n") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestListChangedFlood: a server that says its list has changed, again and again, is ended, like
// one that floods with anything else, and what it says counts anew after an answer to a call.
func TestListChangedFlood(t *testing.T) {
	line := []byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` + "\n")
	s := newServing("bad", "ses_1", "uid:1", "id")
	for range maxUnasked {
		if _, err := s.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	s.heard()
	for range maxUnasked {
		if _, err := s.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Write(line); fault.ReasonOf(err) != "server_protocol" || !s.over() {
		t.Errorf("one more: %v", err)
	}
}

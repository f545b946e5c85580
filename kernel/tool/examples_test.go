package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"palyra/authz/policy"
	"palyra/call/egress"
	"palyra/crypt/vault"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/internal/tools"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel"
)

type obj = map[string]any

// store is artifacts in memory. A content that is not that of its digest is
// what a damaged store would give.
type store map[canon.Digest][]byte

func (s store) Open(_ context.Context, _ policy.Entity, d canon.Digest) (io.ReadCloser, int64, error) {
	b, ok := s[d]
	if !ok {
		return nil, 0, fault.New(fault.NotFound, "not_found", "open artifact", nil)
	}
	return io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
}

// processes has any process that is asked for.
type processes struct{}

func (processes) List(context.Context, policy.Entity, string) ([]toolproto.Process, error) {
	return []toolproto.Process{{ID: "run_1"}}, nil
}

func (processes) Status(_ context.Context, _ policy.Entity, id string) (toolproto.Process, error) {
	return toolproto.Process{ID: id, State: toolproto.ProcessRunning, Command: `["yes"]`}, nil
}

func (processes) Output(_ context.Context, _ policy.Entity, in *toolproto.ProcessOutputInput) (toolproto.ProcessOutputResult, error) {
	return toolproto.ProcessOutputResult{Process: toolproto.Process{ID: in.ID}, Stdout: toolproto.ProcessStream{Next: 2, Content: toolproto.Content{Text: "y\n"}}}, nil
}

func (processes) Stop(context.Context, policy.Entity, string) error { return nil }

func (processes) Holding(string) []string { return nil }

func testTable() *Table {
	return New(Config{Program: "/usr/libexec/palyra/palyra-tool", Fetch: "/usr/libexec/palyra/palyra-fetch", Artifacts: store{}, Processes: processes{}, Memory: memories{}, State: "/nonexistent/state", Vault: noVault(),
		Workspaces: map[string]Workspace{"src": {Path: "/srv/src"}, "ro": {Path: "/srv/ro", ReadOnly: true}}})
}

// noVault is one that can't be opened.
func noVault() *Vault {
	return &Vault{Open: func(context.Context) (*vault.Vault, error) {
		return nil, fault.New(fault.Usage, "invalid_input", "open vault", errors.New("there is none"))
	}}
}

// valid says what is wrong with a value by a schema, as far as our schemas go:
// a reader of them that shares nothing with the decoder.
func valid(s map[string]any, v any) string {
	num := func(key string, none float64) float64 {
		if n, ok := s[key].(float64); ok {
			return n
		}
		return none
	}
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, v) {
		return "enum"
	}
	const most = 1e300
	switch x := v.(type) {
	case string:
		n := float64(utf8.RuneCountInString(x))
		if s["type"] != "string" || n < num("minLength", 0) || n > num("maxLength", most) {
			return "string"
		}
	case float64:
		if s["type"] != "integer" || x != float64(int64(x)) || x < num("minimum", -most) || x > num("maximum", most) {
			return "number"
		}
	case bool:
		if s["type"] != "boolean" {
			return "boolean"
		}
	case []any:
		if s["type"] != "array" || float64(len(x)) < num("minItems", 0) || float64(len(x)) > num("maxItems", most) {
			return "array"
		}
		for _, e := range x {
			if why := valid(s["items"].(map[string]any), e); why != "" {
				return why
			}
		}
	case map[string]any:
		props, ok := s["properties"].(map[string]any)
		if !ok {
			return "object"
		}
		required, _ := s["required"].([]any)
		for _, name := range required {
			if _, ok := x[name.(string)]; !ok {
				return "required"
			}
		}
		for name, e := range x {
			p, ok := props[name].(map[string]any)
			if !ok {
				return "unknown"
			}
			if why := valid(p, e); why != "" {
				return why
			}
		}
	default:
		return "null"
	}
	return ""
}

// fine is an input for each tool.
func fine() map[string]obj {
	out := make(map[string]obj)
	for _, e := range table() {
		var in obj
		if err := json.Unmarshal([]byte(e.Example), &in); err != nil {
			panic(e.Name + ": its example: " + err.Error())
		}
		out[e.Name] = in
	}
	return out
}

// beyond reports whether no schema expresses why an input is refused: what a
// string means, or what the operator declared.
func beyond(err error) bool {
	if err == nil {
		return false
	}
	if fault.KindOf(err) == fault.NotFound || fault.ReasonOf(err) == "read_only" {
		return true // process.run may read in a read-only workspace
	}
	return slices.ContainsFunc([]string{"read patch", "read path ", "decode content: ", "check workspace: ", "check expected_digest: ", "read digest: ",
		"compile pattern: ", "read glob ", "name a layer: ", "parse reference ", "read expires: ", "find version: ", "open vault: ", "read member query: is required", "read member text: ", "read member tags: ", "add recipient: ", "read recipient: ", "import secrets: ", "read url: ", "check body: ", "check headers: ", "check credential_bindings: ", "check allowed_content_types: "}, func(op string) bool { return strings.HasPrefix(err.Error(), op) })
}

// TestSchema puts inputs through schema and table, which must agree: around
// every bound of every member, with members of every type, missing and unknown.
func TestSchema(t *testing.T) {
	table := testTable()
	infos := table.List()
	if want := len(tools.All()) + 1; len(infos) != want { // and process.run
		t.Fatalf("%d tools, want %d", len(infos), want)
	}
	taken, refused := 0, 0
	for _, info := range infos {
		var schema map[string]any
		if err := json.Unmarshal(info.InputSchema, &schema); err != nil {
			t.Fatal(err)
		}
		if schema["additionalProperties"] != false || schema["type"] != "object" {
			t.Errorf("%s: %s", info.Name, info.InputSchema)
		}
		check := func(in obj) {
			b, err := json.Marshal(in)
			if err != nil {
				t.Fatal(err)
			}
			_, err = table.Expand(t.Context(), policy.Entity{}, info.Name, b)
			why := valid(schema, map[string]any(in))
			if why != "" != (err != nil) && !beyond(err) {
				t.Errorf("%s %.200s: the schema says %q, the table %v", info.Name, b, why, err)
			}
			if err == nil {
				taken++
			} else {
				refused++
				if k := fault.KindOf(err); k != fault.Usage && k != fault.NotFound {
					t.Errorf("%s %.200s: kind %v", info.Name, b, k)
				}
			}
		}
		base := fine()[info.Name]
		check(base)
		check(obj{})
		for name, p := range schema["properties"].(map[string]any) {
			p := p.(map[string]any)
			values := []any{nil, "", "x", 0.0, 1.0, -1.0, 1.5, true, []any{}, []any{"x"}, []any{nil}, map[string]any{}, strings.Repeat("x", 65)}
			for _, key := range []string{"minimum", "maximum"} {
				if n, ok := p[key].(float64); ok {
					values = append(values, n, n-1, n+1)
				}
			}
			for _, key := range []string{"minLength", "maxLength"} {
				if n, ok := p[key].(float64); ok {
					values = append(values, strings.Repeat("ü", int(n)), strings.Repeat("ü", int(n)+1), strings.Repeat("x", max(0, int(n)-1)))
				}
			}
			if n, ok := p["maxItems"].(float64); ok {
				values = append(values, slices.Repeat([]any{"file"}, int(n)), slices.Repeat([]any{"file"}, int(n)+1))
			}
			if enum, ok := p["enum"].([]any); ok {
				values = append(values, enum...)
			}
			for _, v := range values {
				in := maps.Clone(base)
				in[name] = v
				check(in)
			}
			in := maps.Clone(base)
			delete(in, name)
			check(in)
		}
		in := maps.Clone(base)
		in["Unknown"] = 1.0
		check(in)
	}
	if taken < 60 || refused < 500 {
		t.Errorf("%d taken, %d refused", taken, refused)
	}
}

func TestExpand(t *testing.T) {
	table := testTable()
	for _, c := range []struct{ tool, in, reason string }{
		{"fs.remove", `{}`, "not_found"},
		{"", `{}`, "not_found"},
		{toolproto.ReadFile, ``, "json_syntax"},
		{toolproto.ReadFile, `{"workspace":"/srv/src","path":"a"}`, "not_found"},
		{toolproto.ReadFile, `{"workspace":"other","path":"a"}`, "not_found"},
		{toolproto.WriteFile, `{"workspace":"ro","path":"a","mode":"create","content":""}`, "read_only"},
		{toolproto.ApplyPatch, `{"workspace":"ro","patch":"--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n"}`, "read_only"},
		{toolproto.ApplyPatch, `{"workspace":"src","patch":"--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-a\n+b\n"}`, "invalid_input"},
		{toolproto.Fetch, `{"url":"file:///etc/passwd"}`, "invalid_input"},
		{toolproto.Fetch, `{"url":"https://docs.example/","headers":["authorization: x"]}`, "invalid_input"},
		{toolproto.Fetch, `{"url":"http://docs.example/","credential_bindings":["authorization: vault://global/a"]}`, "invalid_input"},
		{toolproto.Fetch, `{"url":"https://docs.example/","workspace":"src"}`, "invalid_input"},
		{kernel.ToolRun, `{"argv":["id"],"workspace":"ro"}`, "read_only"},
		{kernel.ToolRun, `{"argv":["id"],"workspace":"src","cwd":"../x"}`, "invalid_input"},
	} {
		x, err := table.Expand(t.Context(), policy.Entity{}, c.tool, []byte(c.in))
		if x != nil || fault.ReasonOf(err) != c.reason || fault.KindOf(err) != fault.Usage {
			t.Errorf("%s %s: %+v, %v; want %s", c.tool, c.in, x, err, c.reason)
		}
	}
	x, err := table.Expand(t.Context(), policy.Entity{}, kernel.ToolRun, []byte(`{"argv":["cat","-"],"workspace":"ro","read_only":true,"cwd":"a/b","stdin":"x","timeout_ms":1500}`))
	if err != nil || !slices.Equal(x.Argv, []string{"cat", "-"}) || x.Workspace != "/srv/ro" || !x.WorkspaceReadOnly || x.Cwd != "a/b" ||
		string(x.Stdin) != "x" || x.Limits.Wall != 1_500_000_000 || x.Sensitive || x.LeaveOperands || x.Network != isolate.NetworkFresh {
		t.Errorf("%+v, %v", x, err)
	}
	x, err = table.Expand(t.Context(), policy.Entity{}, toolproto.Fetch, []byte(`{"url":"https://Docs.example:8443/a","egress_hosts":["*.cdn.example"],"allow_redirects":false}`))
	if err != nil || !slices.Equal(x.EgressHosts, []string{"docs.example:8443", "*.cdn.example"}) || !slices.Equal(x.Capabilities, []string{policy.CapNetwork}) ||
		!slices.Equal(x.Argv[2:], []string{"method=GET", "url=https://Docs.example:8443/a"}) || !strings.Contains(string(x.Stdin), `"allow_redirects":false`) {
		t.Errorf("%+v, %v", x, err)
	}
	// Credential bindings are uses of secrets, for the URL's host alone.
	for method, methods := range map[string]string{"GET": "GET", "HEAD": "HEAD", "POST": "GET,POST"} {
		x, err = table.Expand(t.Context(), policy.Entity{}, toolproto.Fetch, []byte(`{"url":"https://Docs.example:8443/a","method":"`+method+`","egress_hosts":["*.cdn.example"],"credential_bindings":["Authorization: Bearer vault://global/a","x-key: vault://global/b"]}`))
		want := []string{"CREDENTIAL_1=vault://global/a header:authorization " + methods + " docs.example:8443", "CREDENTIAL_2=vault://global/b header:x-key " + methods + " docs.example:8443"}
		if err != nil || !slices.Equal(x.EgressSecrets, want) {
			t.Errorf("%+v, %v, want %q", x, err, want)
		} else if _, err := egress.ParseUses(x.EgressSecrets); err != nil {
			t.Error(err)
		}
	}
	declared := &kernel.Declared{OwnPath: true, Mounts: []string{"/opt/x"}, Caches: []string{"go"}}
	kit := New(Config{Workspaces: map[string]Workspace{"kit": {Path: "/srv/kit", Network: "loopback", Declared: declared,
		Limits: isolate.Limits{Wall: 10 * time.Minute, Memory: 4 << 30}}, "void": {Path: "/srv/void", Network: "void"}}})
	for _, i := range kit.List() {
		const want = ". kit: at /srv/kit; caches go that last; read-only /opt/x; network loopback; timeout_ms 600000. void: network void"
		if got := strings.Contains(string(i.InputSchema), want); got != (i.Name == kernel.ToolRun) {
			t.Errorf("%s: %s", i.Name, i.InputSchema)
		}
	}
	for in, want := range map[string]struct {
		network  string
		declared *kernel.Declared
	}{
		`{"argv":["id"],"workspace":"kit"}`:                                   {isolate.NetworkLoopback, declared},
		`{"argv":["id"],"workspace":"kit","network":"fresh"}`:                 {isolate.NetworkFresh, declared},
		`{"argv":["id"],"workspace":"kit","bare":true}`:                       {isolate.NetworkLoopback, nil},
		`{"argv":["id"],"workspace":"kit","bare":true,"network":"void"}`:      {isolate.NetworkVoid, nil},
		`{"argv":["id"],"workspace":"void"}`:                                  {isolate.NetworkVoid, nil},
		`{"argv":["id"],"workspace":"void","network":"loopback","bare":true}`: {isolate.NetworkLoopback, nil},
		`{"argv":["id"],"workspace":"void","network":"session"}`:              {isolate.NetworkSession, nil},
		// Hosts are a network of the call's own, which the kernel gives it.
		`{"argv":["id"],"workspace":"void","egress_hosts":["a.example"]}`:                     {isolate.NetworkFresh, nil},
		`{"argv":["id"],"workspace":"kit","egress_hosts":["a.example"]}`:                      {isolate.NetworkFresh, declared},
		`{"argv":["id"],"workspace":"kit","egress_hosts":["a.example"],"network":"loopback"}`: {isolate.NetworkLoopback, declared},
		`{"argv":["id"]}`: {isolate.NetworkFresh, nil},
	} {
		x, err := kit.Expand(t.Context(), policy.Entity{}, kernel.ToolRun, []byte(in))
		if err != nil || x.Network != want.network || x.Declared != want.declared {
			t.Errorf("%s: %+v, %v", in, x, err)
		}
	}
	// What a call names counts, then what its workspace does, then the kernel.
	for in, want := range map[string]isolate.Limits{
		`{"argv":["id"]}`:                    {},
		`{"argv":["id"],"workspace":"void"}`: {},
		`{"argv":["id"],"workspace":"kit"}`:  {Wall: 10 * time.Minute, Memory: 4 << 30},
		`{"argv":["id"],"workspace":"kit","timeout_ms":1000,"cpu_ms":2000,"memory":1048576,"pids":3,"output":4}`: {
			Wall: time.Second, CPU: 2 * time.Second, Memory: 1 << 20, PIDs: 3, Output: 4},
	} {
		all := kernel.DefaultLimits()
		limit(&all, want)
		if want.Output != 0 {
			all.Output = want.Output
		}
		if x, err := kit.Expand(t.Context(), policy.Entity{}, kernel.ToolRun, []byte(in)); err != nil || x.Limits != all {
			t.Errorf("%s: %+v, %v; want %+v", in, x, err, all)
		}
	}
	// What a workspace gives programs that are waited for isn't for those in the background.
	for in, want := range map[string][2]time.Duration{
		`{"argv":["id"],"workspace":"kit","background":true}`:                   {time.Hour, 20 * time.Minute},
		`{"argv":["id"],"background":true,"timeout_ms":5000,"cpu_ms":86400000}`: {5 * time.Second, 24 * time.Hour},
		`{"argv":["id"],"background":false}`:                                    {time.Minute, time.Minute},
	} {
		x, err := kit.Expand(t.Context(), policy.Entity{}, kernel.ToolRun, []byte(in))
		if err != nil || x.Background != strings.Contains(in, "true") || [2]time.Duration{x.Limits.Wall, x.Limits.CPU} != want {
			t.Errorf("%s: %+v, %v", in, x, err)
		}
	}
	for _, in := range []string{`{"argv":["id"],"bare":true}`, `{"argv":["id"],"workspace":"kit","mounts":["/etc"]}`, `{"argv":["id"],"workspace":"kit","caches":["x"]}`} {
		if x, err := kit.Expand(t.Context(), policy.Entity{}, kernel.ToolRun, []byte(in)); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %+v, %v", in, x, err)
		}
	}
	// Every other tool: the program is the operator's, nothing of it the caller's.
	for name, in := range fine() {
		b, _ := json.Marshal(in)
		x, err := table.Expand(t.Context(), policy.Entity{}, name, b)
		if name == kernel.ToolRun || name == toolproto.ArtifactRead {
			continue
		}
		row, _ := tools.Find(name)
		if row.Access.Layered() { // TestChanges has layers
			if fault.ReasonOf(err) != "not_found" {
				t.Errorf("%s: %+v, %v", name, x, err)
			}
			continue
		}
		writes := row.Access.Writing()
		program, network := "/usr/libexec/palyra/palyra-tool", isolate.NetworkVoid
		if row.Reaches {
			program, network = "/usr/libexec/palyra/palyra-fetch", isolate.NetworkFresh
		}
		if err != nil || x.Argv[0] != program || row.Reaches != (len(x.EgressHosts) > 0) || x.Argv[1] != name || !x.LeaveOperands || x.Sensitive != (writes || row.Destroys || name == toolproto.MemoryForget) || (row.Vault || row.Remembers || name == toolproto.ProcessStop) != (x.Effect != nil) ||
			x.Network != network || x.TierFloor != tier.C || x.Workspace != "" && x.WorkspaceReadOnly == writes || len(x.Env) > 0 {
			t.Errorf("%s: %+v, %v", name, x, err)
		}
	}
	if n := len(New(Config{}).List()); n != len(tools.All())-3-4-8-1-4 { // process.run, but no artifact.read, no changes, no processes, no vault, no http.fetch and no memory
		t.Errorf("%d tools without artifacts, layers, processes, vault and memory", n)
	}
}

// FuzzExpand: whatever comes in, it is refused as the caller's mistake or becomes
// our program in one of the operator's folders.
func FuzzExpand(f *testing.F) {
	table := testTable()
	for name, in := range fine() {
		b, _ := json.Marshal(in)
		f.Add(name, b)
	}
	f.Fuzz(func(t *testing.T, name string, in []byte) {
		x, err := table.Expand(t.Context(), policy.Entity{}, name, in)
		if err != nil {
			if fault.KindOf(err) != fault.Usage && fault.KindOf(err) != fault.NotFound {
				t.Fatalf("%v", err)
			}
			return
		}
		if !slices.Contains([]string{"", "/srv/src", "/srv/ro"}, x.Workspace) || x.Workspace == "/srv/ro" && !x.WorkspaceReadOnly {
			t.Fatalf("%+v", x)
		}
		program := "/usr/libexec/palyra/palyra-tool"
		if name == toolproto.Fetch {
			program = "/usr/libexec/palyra/palyra-fetch"
		}
		if name != kernel.ToolRun && x.Argv[0] != program {
			t.Fatalf("%+v", x)
		}
	})
}

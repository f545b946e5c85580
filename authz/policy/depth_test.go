package policy

import (
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"

	"palyra/internal/fault"
)

// chains are what a policy can nest without brackets, as often as it likes: begin,
// then each so many times, then end.
var chains = []struct{ name, begin, each, end string }{
	{"not", "", "!", "true"},
	{"minus", "0 == ", "-", "context.arg_count"},
	{"plus", "0 == 1", "+1", ""},
	{"times", "0 == context.arg_count", "*1", ""},
	{"and", "context.sensitive", "&&context.sensitive", ""},
	{"or", "context.sensitive", "||context.sensitive", ""},
	{"else", "", "if context.sensitive then false else ", "false"},
	{"word", "", "if principal has a then false else ", "principal has a"},
	{"member", "context", ".a", ""},
	{"index", "context", `["a"]`, ""},
	{"call", "context", `.isIpv4()`, ""},
	{"has", "context has a", ".a", ""},
	{"spaced", "context", " . // .\n a", ""},
	{"path", "resource is Palyra", "::A", ""},
}

// TestDepth: no policy drives what reads, decides and examines policies so deep
// that a stack ends. What ends would be the process: nothing could recover it.
func TestDepth(t *testing.T) {
	// A quarter of what a process has: callers have frames, too.
	defer debug.SetMaxStack(debug.SetMaxStack(256 << 20))
	set := func(c int, size int) fstest.MapFS {
		x := chains[c]
		head := permitAll + `@id("x") @untested("deep") forbid (principal, action == Palyra::Action::"tool.execute", resource) when { ` + x.begin
		body := strings.Repeat(x.each, (size-len(head)-len(x.end))/len(x.each))
		return fstest.MapFS{"a.cedar": &fstest.MapFile{Data: []byte(head + body + x.end + " };")}}
	}
	for i, c := range chains {
		t.Run(c.name, func(t *testing.T) {
			if _, err := LoadFS(set(i, maxFile-100)); fault.KindOf(err) != fault.BadState || !strings.Contains(err.Error(), "names in a row") && fault.ReasonOf(err) != "policy_too_large" {
				t.Errorf("of %d bytes: %v", maxFile, err)
			}
			if _, err := LintFS(set(i, maxFile-100)); err != nil {
				t.Errorf("lint: %v", err)
			}
			files := set(i, maxPolicy)
			s, err := LoadFS(files)
			if err != nil && fault.KindOf(err) != fault.BadState {
				t.Errorf("of %d bytes: %v", maxPolicy, err)
			}
			if _, err := LintFS(files); err != nil {
				t.Errorf("lint: %v", err)
			}
			if rows := c.name == "member" || c.name == "spaced" || c.name == "has" || c.name == "path"; rows != (err != nil && strings.Contains(err.Error(), "names in a row")) {
				t.Errorf("of %d bytes: %v", maxPolicy, err)
			}
			if s == nil {
				return
			}
			r := benchRequest()
			s.Decide(r)
			s.Explain(r)
			if _, err := s.Coverage(); err != nil {
				t.Errorf("coverage: %v", err)
			}
			if _, err := s.Bundle(r, "x"); err != nil {
				t.Errorf("bundle: %v", err)
			}
		})
	}
}

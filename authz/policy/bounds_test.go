package policy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"palyra/internal/fault"
	"palyra/internal/sample"
)

// testsOf is a test file with n tests on a base with this many arguments.
func testsOf(n, args int) string {
	var tests []string
	for i := range n {
		tests = append(tests, fmt.Sprintf(`{"name":"%d","request":{},"effect":"allow"}`, i))
	}
	return fmt.Sprintf(`{"version":1,"base":{"principal":{"type":"Palyra::User","id":"u"},"action":"tool.execute",`+
		`"resource":{"type":"Palyra::Tool","id":"x"},"context":{"args":["a"%s]}},"tests":[%s]}`, strings.Repeat(`,"a"`, args-1), strings.Join(tests, ","))
}

const permitsAll = `@id("a") permit (principal, action, resource);`

// TestTestsAreBounded: the cost of tests is their number times the base of their file, and is
// bounded over all files.
func TestTestsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		tests int
	}{
		"few":          {[]string{testsOf(3, 100)}, 3},
		"many":         {[]string{testsOf(1000, 100)}, 1000},
		"large":        {[]string{testsOf(2, 50_000)}, 2},
		"both":         {[]string{testsOf(120, 50_000)}, -1},
		"in two files": {[]string{testsOf(45, 50_000), testsOf(45, 50_000)}, -1},
	} {
		if name == "both" && sample.Of(0, 1) == 0 { // the same bound as in two files
			continue
		}
		dir := fstest.MapFS{"a.cedar": {Data: []byte(permitsAll)}}
		for i, text := range c.files {
			dir[fmt.Sprintf("%d.test.json", i)] = &fstest.MapFile{Data: []byte(text)}
		}
		s, err := LoadFS(dir)
		switch {
		case c.tests < 0:
			if fault.ReasonOf(err) != "too_large" || !strings.Contains(err.Error(), "test") || fault.HintOf(err) == "" {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil || s.Tests() != c.tests:
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPatternsAreBounded: what matching a request with patterns may take is bounded, since no deadline
// ends it.
func TestPatternsAreBounded(t *testing.T) {
	test := func(text, pattern int) error {
		policy := fmt.Sprintf("@id(\"a\") permit (principal, action, resource) when { context has executable && context.executable.path like \"*%s\" };", strings.Repeat("a", pattern))
		tests := fmt.Sprintf(`{"version":1,"base":{"principal":{"type":"Palyra::User","id":"u"},"action":"tool.execute",`+
			`"resource":{"type":"Palyra::Tool","id":"x"},"context":{"executable":{"path":"/%s","system":true}}},"tests":[{"name":"t","request":{},"effect":"allow"}]}`, strings.Repeat("a", text))
		_, err := LoadFS(fstest.MapFS{"a.cedar": {Data: []byte(policy)}, "a.test.json": {Data: []byte(tests)}})
		return err
	}
	if err := test(8<<10, 4<<10); err != nil {
		t.Error(err)
	}
	if err := test(800_000, 60_000); fault.ReasonOf(err) != "too_large" {
		t.Error(err)
	}
}

// TestTestsEnd: Load stops when its caller leaves.
func TestTestsEnd(t *testing.T) {
	dir := fstest.MapFS{"a.cedar": {Data: []byte(permitsAll)}, "a.test.json": {Data: []byte(testsOf(150, 20_000))}}
	s, err := LoadFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, f := range map[string]func(context.Context) error{
		"load":  func(ctx context.Context) error { _, err := LoadFSContext(ctx, dir); return err },
		"tests": func(ctx context.Context) error { _, err := s.RunTestsContext(ctx); return err },
		"patch": func(ctx context.Context) error {
			_, err := s.PatchContext(ctx, []byte("--- /dev/null\n+++ b/x.cedar\n@@ -0,0 +1 @@\n+@id(\"x\") permit (principal, action, resource);\n"))
			return err
		},
	} {
		if err := f(ctx); fault.KindOf(err) != fault.Canceled {
			t.Errorf("%s, canceled: %v", name, err)
		}
		why := fault.New(fault.Unavailable, "budget", "test", nil)
		short, stop := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, why)
		begin := time.Now()
		err := f(short)
		stop()
		if d := time.Since(begin); fault.ReasonOf(err) != "budget" || d > 8*time.Second {
			t.Errorf("%s, too slow: %v after %v", name, err, d)
		}
	}
}

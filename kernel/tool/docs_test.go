package tool

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"palyra/internal/toolproto"
)

var update = flag.Bool("update", false, "rewrite the generated part of docs/formats/tools.md")

const page = "../../docs/formats/tools.md"

// described prints the table for the page.
func described() string {
	var b strings.Builder
	for _, e := range table() {
		fmt.Fprintf(&b, "### %s\n\n%s", e.Name, e.Description)
		if e.sensitive() {
			b.WriteString(" Sensitive.")
		}
		if len(e.capabilities) > 0 {
			fmt.Fprintf(&b, " Capabilities: `%s`.", strings.Join(e.capabilities, "`, `"))
		}
		fmt.Fprintf(&b, " At most %v.\n\n", e.limits.Wall)
		for _, m := range toolproto.Members(e.Input()) {
			if !m.Hidden {
				fmt.Fprintf(&b, "- `%s` (%s): %s\n", m.Name, kind(&m), m.Doc)
			}
		}
		fmt.Fprintf(&b, "\n```json\n%s\n```\n\n", e.Example)
	}
	return b.String()
}

// kind is the type and the bounds of a member in words.
func kind(m *toolproto.Member) string {
	var parts []string
	switch {
	case m.Kind == toolproto.Boolean:
		parts = append(parts, "boolean")
	case m.Kind == toolproto.Integer:
		parts = append(parts, fmt.Sprintf("%d to %d", m.Min, m.Max))
	case m.Kind == toolproto.Strings:
		parts = append(parts, fmt.Sprintf("list of %d to %d", m.Min, m.Max))
		if m.MaxLen != math.MaxInt64 {
			parts = append(parts, fmt.Sprintf("each to %d", m.MaxLen))
		}
	case m.Enum == nil && m.Max == math.MaxInt64:
		parts = append(parts, "string")
	case m.Enum == nil && m.Min == m.Max:
		parts = append(parts, fmt.Sprintf("string of %d", m.Max))
	case m.Enum == nil:
		parts = append(parts, fmt.Sprintf("string of %d to %d", m.Min, m.Max))
	}
	if m.Enum != nil {
		parts = append(parts, "`"+strings.Join(m.Enum, "`, `")+"`")
	}
	if m.Default != "" {
		parts = append(parts, "default `"+m.Default+"`")
	}
	if m.Required {
		parts = append(parts, "required")
	}
	return strings.Join(parts, "; ")
}

// TestDocumentation prints the table into the page that shows it.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- generated: tools -->\n", "<!-- end -->\n"
	pre, rest, ok := bytes.Cut(doc, []byte(begin))
	_, post, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		t.Fatal("no markers")
	}
	got := string(pre) + begin + described() + end + string(post)
	switch {
	case got == string(doc):
	case *update:
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is stale: go test ./kernel/tool -run TestDocumentation -update", page)
	}
}

var reasonCode = regexp.MustCompile(`(?:usage\(|fault\.\w+, |reason = |mismatch\(|refused\()"([a-z_]+)"`)

// TestReasonsDocumented wants every reason code of the tools on the page.
func TestReasonsDocumented(t *testing.T) {
	doc, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, dir := range []string{".", "../../internal/toolproto", "../../internal/patch",
		"../../cmd/palyra-tool/internal/tree", "../../cmd/palyra-tool/internal/builtin", "../../cmd/palyra-fetch/internal/fetch", "../../call/egress/target"} {
		names, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range reasonCode.FindAllSubmatch(src, -1) {
				n++
				if r := string(m[1]); !strings.HasPrefix(r, "json_") && !bytes.Contains(doc, []byte("`"+r+"`")) {
					t.Errorf("%s: reason %s is not on the page", name, r)
				}
			}
		}
	}
	if n < 40 {
		t.Errorf("found %d reasons; has the code changed its form?", n)
	}
}

package policy

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"palyra/internal/sample"
)

func TestShape(t *testing.T) {
	const want = `permit (principal == Palyra::User::"", action == Palyra::Action::"tool.execute", resource) when { context.tier == "" && context.limits.memory < 0 };`
	for _, text := range []string{
		`@id("p1") @reason("a \" ; //") permit (principal == Palyra::User::"eve", action == Palyra::Action::"tool.execute", resource) when { context.tier == "c" && context.limits.memory < 12 };`,
		"@id(\"p2\")\n// a comment \"\npermit (principal == Palyra::User::\"a\\\"b\",\n  action == Palyra::Action::\"tool.execute\", resource) when { context.tier == \"\" && context.limits.memory < 7 };",
	} {
		if got := strings.TrimSpace(shape([]byte(text))); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	// Literals that types depend on stay apart.
	for _, pair := range [][2]string{
		{`permit (principal, action == Palyra::Action::"a", resource);`, `permit (principal, action == Palyra::Action::"b", resource);`},
		{`permit (principal, action in [Palyra::Action::"a"], resource);`, `permit (principal, action in [Palyra::Action::"b"], resource);`},
		{`permit (principal, action, resource) when { context["a"] == "x" };`, `permit (principal, action, resource) when { context["b"] == "x" };`},
		{`permit (principal, action, resource) when { context has "a" };`, `permit (principal, action, resource) when { context has "b" };`},
		{`permit (principal, action, resource) when { {"a": 1} == {"a": 1} };`, `permit (principal, action, resource) when { {"a": 1} == {"b": 1} };`},
		{`permit (principal, action, resource) when { context.x1 == 1 };`, `permit (principal, action, resource) when { context.x2 == 1 };`},
		{`permit (principal, action, resource) when { context.x == 1 };`, `permit (principal, action, resource) when { context.x == "1" };`},
		{`permit (principal == Palyra::User::"a", action, resource);`, `permit (principal == Palyra::Agent::"a", action, resource);`},
		{`permit (principal, action, resource) when { ip("a") == ip("a") };`, `permit (principal, action, resource) when { ip("b") == ip("a") };`},
		{`permit (principal, action, resource);`, `forbid (principal, action, resource);`},
		{`permit (principal, action, resource) when { "a" == "a" };`, `permit (principal, action, resource) when { "a" == "b" };`},
		{`permit (principal, action, resource) when { 1 == 1 };`, `permit (principal, action, resource) when { 1 == 2 };`},
		{`permit (principal, action, resource) when { A::"a" == A::"a" };`, `permit (principal, action, resource) when { A::"a" == A::"b" };`},
		{`permit (principal, action, resource) when { ("a") == "a" };`, `permit (principal, action, resource) when { ("a") == "b" };`},
		{`permit (principal, action, resource) when { true };`, `permit (principal, action, resource) when { false };`},
	} {
		if a, b := shape([]byte(pair[0])), shape([]byte(pair[1])); a == b {
			t.Errorf("%s and %s have one shape: %s", pair[0], pair[1], a)
		}
	}
}

var literalText = regexp.MustCompile(`([!=]= |::)"([^"\\]*)"|\b\d+\b`)

// TestShapeSaysAsMuch: the validator judges policies of one shape alike.
func TestShapeSaysAsMuch(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	v := validate.New(resolvedSchema())
	same, tries := 0, sample.Of(600, 3000)
	for i := range tries {
		text := randomPolicy(rng, "p")
		if i%3 == 0 { // often wrong
			text = strings.Replace(text, "context.", "context.limits.", 1)
		}
		other := literalText.ReplaceAllStringFunc(text, func(m string) string {
			if at := strings.IndexByte(m, '"'); at >= 0 && !strings.Contains(m, ".") {
				return m[:at] + fmt.Sprintf(`"v%d"`, rng.IntN(9))
			}
			return m
		})
		if shape([]byte(text)) != shape([]byte(other)) {
			continue
		}
		a, err := compile([]file{{"a.cedar", kindPolicy, []byte(text)}})
		if err != nil {
			t.Fatal(err, text)
		}
		b, err := compile([]file{{"a.cedar", kindPolicy, []byte(other)}})
		if err != nil {
			t.Fatal(err, other)
		}
		x, y := a.rules[0].ast, b.rules[0].ast
		if ok := guarded(v, x) == nil; ok != (guarded(v, y) == nil) || ok && neverMatches(v, x) != neverMatches(v, y) {
			t.Fatalf("one shape, two judgements:\n%s\n%s", text, other)
		}
		if text != other {
			same++
		}
	}
	if same < tries/15 {
		t.Errorf("%d policies had a sibling of their shape", same)
	}
}

func FuzzShape(f *testing.F) {
	f.Add([]byte(`@id("p") permit (principal == A::"x", action, resource) when { 1 < 2 }; // "`))
	f.Add([]byte(`"\`))
	f.Add([]byte(`@`))
	f.Fuzz(func(t *testing.T, text []byte) { shape(text) }) // ends, and reads no further than the text
}

package console

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// safe fails if a page has an element that foreign text made, or a character that hides.
func safe(t *testing.T, page func() (title, text string, heads, odd int)) {
	t.Helper()
	title, text, heads, odd := page()
	if strings.Contains(title, "pwned") || heads != 1 || odd != 0 {
		t.Errorf("title %q, %d h1, %d images and scripts", title, heads, odd)
	}
	if i := strings.IndexFunc(text, func(c rune) bool { return c >= 0x200b && c <= 0x200f || c >= 0x202a && c <= 0x202e }); i >= 0 {
		t.Errorf("%+q is in the page", text[max(0, i-20):min(len(text), i+20)])
	}
}

func command(bin, name string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(bin, name), args...)
}

// fits fails if a page is wider than a phone, a table's header has no scope, or a field no label.
func fits(t *testing.T, ctx context.Context, h *house, pages ...string) {
	t.Helper()
	for _, p := range pages {
		do(t, ctx, chromedp.EmulateViewport(360, 800), goTo(h.url+"/console/"+p), shown("main h1"))
		if wide := get(t, ctx, js[int64]("document.documentElement.scrollWidth")); wide > 360 {
			t.Errorf("%s is %d wide in a window of 360", p, wide)
		}
		if n := get(t, ctx, js[int]("[...document.querySelectorAll('main th')].filter(h => !h.scope).length")); n != 0 {
			t.Errorf("%s has %d table headers without a scope", p, n)
		}
		if n := get(t, ctx, js[int]("[...document.querySelectorAll('main input:not([type=hidden]), main textarea, main select')].filter(f => !f.labels.length && !f.ariaLabel).length")); n != 0 {
			t.Errorf("%s has %d fields without a label", p, n)
		}
	}
	do(t, ctx, chromedp.EmulateViewport(1440, 900))
}

// wide fails if the open page is wider than its window, at the width of a phone and of a desk, light
// and dark.
func wide(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, width := range []int64{360, 1440} {
		for _, dark := range []string{"light", "dark"} {
			do(t, ctx, chromedp.EmulateViewport(width, 900), send(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: dark}}}))
			if have := get(t, ctx, js[int64]("document.documentElement.scrollWidth")); have > width {
				t.Errorf("%s is %d wide in a window of %d", get(t, ctx, chromedp.Location()), have, width)
			}
		}
	}
}

// TestPolicyScreen: the set in force with its texts, a decision explained, a change tried and the
// files read again. What a policy's author writes stays text.
func TestPolicyScreen(t *testing.T) {
	dir, me := filepath.Join(t.TempDir(), "policy"), fmt.Sprintf("Palyra::User::\"uid:%d\"", os.Geteuid())
	h := newHouse(t, func(bin string) string {
		if out, err := command(bin, "palyra", "policy", "init", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		evil := "// <script>document.title='pwned'</script> a\u202egpj.sh </textarea><h1>pwned</h1>\n" +
			`@id("evil")` + "\n" + `@reason("\"><h1>pwned</h1><img src=x onerror=document.title='pwned'>")` + "\n" +
			`forbid (principal, action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"palyra.echo")` + "\n" +
			`when { principal in [Palyra::User::"alice", ` + me + `] };` + "\n"
		if err := os.WriteFile(filepath.Join(dir, "95-evil.cedar"), []byte(evil), 0o600); err != nil {
			t.Fatal(err)
		}
		tests := filepath.Join(dir, "10-read-only.test.json") // they want this policy to forbid it to alice
		b, err := os.ReadFile(tests)
		if err == nil {
			b = []byte(strings.Replace(string(b), `"effect": "allow", "policies": ["read_only_tools"]`, `"effect": "deny", "policies": ["evil"]`, 1))
			err = os.WriteFile(tests, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return "[policy]\ndir = \"" + dir + "\"\n"
	})
	ctx := browser(t)
	h.enter(ctx)
	check := func() {
		t.Helper()
		safe(t, func() (string, string, int, int) {
			return get(t, ctx, chromedp.Title()), get(t, ctx, js[string]("document.documentElement.textContent")),
				get(t, ctx, js[int]("document.querySelectorAll('main h1').length")), get(t, ctx, js[int]("document.querySelectorAll('main img, main script').length"))
		})
	}
	denied := h.command("call", "palyra.echo", `{"text":"x"}`)
	if err := denied.Run(); err == nil || denied.ProcessState.ExitCode() != 126 {
		t.Fatalf("control: the call is not denied: %v", err)
	}
	do(t, ctx, goTo(h.url+"/console/policy"), see("95-evil.cedar"), see("palyra.echo"), see("deny"))
	check()
	do(t, ctx, click(`main a[href^="/console/policy/decisions/"]`), see("What the policies say"), see("onerror"))
	check()
	id := get(t, ctx, js[string]("location.pathname.split('/').pop()"))
	do(t, ctx, goTo(h.url+"/console/policy"), shown("#decision"), chromedp.SendKeys(chromedp.CSS("#decision"), id[:8]), click("#decision + button"), see("What the policies say"))
	do(t, ctx, goTo(h.url+"/console/policy"), click(`main a[href^="/console/policy/sets/"]`), see("forbid (principal"), see("⟦U+202E⟧"))
	check()
	do(t, ctx, click(`main a[href$="95-evil.cedar"]`), shown("textarea"))
	check()
	do(t, ctx, run(`document.querySelector('textarea').value = document.querySelector('textarea').value.replace(', `+me+`', '')`), click("button.yes"), see("1 would be decided otherwise"), see("palyra.echo"))
	check()
	do(t, ctx, run(`document.querySelector('textarea').value = 'permit (<h1>pwned</h1>'`), click("button.yes"), see("doesn't load"))
	check()
	evil := filepath.Join(dir, "95-evil.cedar")
	b, err := os.ReadFile(evil)
	if err == nil {
		err = os.WriteFile(evil, []byte(strings.Replace(string(b), ", "+me, "", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	do(t, ctx, goTo(h.url+"/console/policy"), click(`form[action="/console/policy/reload"] button`), shown(".said"))
	do(t, ctx, click(`form[action="/console/policy/test"] button`), see("0 failures"))
	h.palyra("call", "palyra.echo", `{"text":"x"}`) // the policies that were read again allow it
	fits(t, ctx, h, "policy", "policy/try")
}

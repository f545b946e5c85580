package console

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// TestAgentScreen: a person asks an agent in the browser, sees its model's words as words, and goes on
// in the session.
func TestAgentScreen(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(string) string { return "[models.first]\nprovider = \"scripted\"\n[agent]\nday_tokens = 100000\n" })
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, goTo(h.url+"/console/agent"), chromedp.SendKeys(chromedp.CSS("textarea"), "what <b>is</b> in src?"), click("button.yes"),
		see("what <b>is</b> in src?"), see("each decided, confined and attested"), see("3 turns of the model"), see("It proposes fs_list_dir"))
	wide(t, ctx)
	do(t, ctx, click(`main a[href^="/console/agent?session="]`), see("which this goes on with"))
	do(t, ctx, goTo(h.url+"/console/agent"), until("main tbody", "first"), see("of 100000"))
	fits(t, ctx, h, "agent")
}

// TestInstructionsScreen: a person looks at a project's instructions, which stay text and hide
// nothing there, accepts them with what they hide, and revokes that, without scripts.
func TestInstructionsScreen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHouseIn(t, dir)
	file := filepath.Join(dir, "src", "AGENTS.md")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("Tests first.\n")
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	look := func() {
		t.Helper()
		do(t, ctx, goTo(h.url+"/console/agent"), see("No model is declared"), chromedp.SendKeys(chromedp.CSS("input[name=workspace]"), "src\r"), see("Instructions of src"))
	}
	look()
	do(t, ctx, see("you have accepted none"), see("Tests first."))
	write("Tests first.\n\u202e</pre><h1>pwned</h1><script>document.title='pwned'</script>\n")
	do(t, ctx, click("button.yes"), see("the file has another digest now"))
	look()
	do(t, ctx, see("hidden_text.bidi"), see("⟦U+202E⟧</pre><h1>"))
	safe(t, func() (string, string, int, int) {
		return get(t, ctx, chromedp.Title()), get(t, ctx, js[string]("document.documentElement.textContent")),
			get(t, ctx, js[int]("document.querySelectorAll('main h1').length")), get(t, ctx, js[int]("document.querySelectorAll('main img, main script').length"))
	})
	wide(t, ctx)
	do(t, ctx, run("document.querySelector('main form').noValidate = true"), click("button.no"), see("text that people don't see"))
	look()
	do(t, ctx, click("input[name=anyway]"), click("button.no"), until(".said", "accepted"), until("main tbody", "with hidden text"))
	if out := h.palyra("agent", "instructions", "ls"); !strings.Contains(out, "AGENTS.md") {
		t.Error(out)
	}
	do(t, ctx, click(`button[aria-label="Look at src"]`), see("although it had hidden text"))
	if n := get(t, ctx, js[int]("document.querySelectorAll('main form').length")); n != 0 {
		t.Errorf("%d forms for what is accepted", n)
	}
	fits(t, ctx, h, "agent")
	do(t, ctx, goTo(h.url+"/console/agent"), click("button.no"), until(".said", "count for your agents no more"))
	if out := h.palyra("agent", "instructions", "ls"); strings.Contains(out, "AGENTS.md") {
		t.Error(out)
	}
	look()
	do(t, ctx, send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{}))
	for _, f := range axe(t, ctx) {
		t.Errorf("%+v", f)
	}
}

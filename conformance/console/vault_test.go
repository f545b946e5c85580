package console

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// vaulted makes a vault in the state of a house in dir, and the configuration that opens it.
func vaulted(t testing.TB, dir string) func(bin string) string {
	return func(bin string) string {
		key := filepath.Join(dir, "vault.key")
		if out, err := command(bin, "palyra", "vault", "init", "--state", filepath.Join(dir, "state"), "--key", key).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return "[vault]\nidentity = \"" + key + "\"\n"
	}
}

// TestSecretsScreen: a click lists secrets and the versions of one, without their values, by a call
// with a receipt.
func TestSecretsScreen(t *testing.T) {
	dir := t.TempDir()
	h := newHouseIn(t, dir, vaulted(t, dir))
	const value = "correct horse battery staple"
	set := func(ref string) {
		t.Helper()
		cmd := h.command("vault", "set", ref)
		cmd.Stdin = strings.NewReader(value)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	set("vault://global/token")
	set("vault://global/token")
	set("vault://global/other")
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, goTo(h.url+"/console/secrets"), see("opened as"))
	if text := mainText(t, ctx); strings.Contains(text, "global/token") {
		t.Errorf("before a click:\n%s", text)
	}
	do(t, ctx, chromedp.Focus(chromedp.CSS("button.yes")), chromedp.KeyEvent("\r"), see("vault://global/other"), see("vault://global/token"))
	do(t, ctx, chromedp.SendKeys(chromedp.CSS("input[name=ref]"), "vault://global/token\r"), see("Listed by"), until("main tbody", "never"))
	if n := get(t, ctx, js[int]("document.querySelectorAll('main tbody tr').length")); n != 2 {
		t.Errorf("%d versions", n)
	}
	if page := get(t, ctx, js[string]("document.documentElement.outerHTML")); strings.Contains(page, value) {
		t.Error("the page has the value")
	}
	wide(t, ctx)
	do(t, ctx, chromedp.SendKeys(chromedp.CSS("input[name=ref]"), "\x08<script>document.title='pwned'</script>\r"), see("want vault://SCOPE/KEY"))
	if title := get(t, ctx, chromedp.Title()); strings.Contains(title, "pwned") {
		t.Error("an input became a script")
	}
	do(t, ctx, goTo(h.url+"/console/runs"), see("done"), click("main tbody tr:nth-child(2) a"), see("vault.list"), see("executed"))
	fits(t, ctx, h, "secrets")
}

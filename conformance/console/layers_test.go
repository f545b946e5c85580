package console

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestChangesScreen: a layer's page has its files and patch, names and contents of which stay text,
// and removes it.
func TestChangesScreen(t *testing.T) {
	dir := t.TempDir()
	h := newHouseIn(t, dir)
	session := h.palyra("sessions", "new")
	ctx := browser(t)
	h.enter(ctx)
	write := func(path, content string) {
		t.Helper()
		in, err := json.Marshal(map[string]string{"path": path, "content": content, "workspace": "src", "mode": "create"})
		if err != nil {
			t.Fatal(err)
		}
		cmd := h.command("call", "--staged", "--session", session, "fs.write_file", string(in))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		do(t, ctx, see("fs.write_file"), click("article a"), see("May this run?"), click("button.yes"), shown(".said"))
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	write("<b>a.txt", "a\u202egpj </pre><h1>pwned</h1><script>document.title='pwned'</script>\n")
	do(t, ctx, goTo(h.url+"/console/changes"), click("main tbody a"), see("palyra changes apply"), see("Patch"))
	safe(t, func() (string, string, int, int) {
		return get(t, ctx, chromedp.Title()), get(t, ctx, js[string]("document.documentElement.textContent")),
			get(t, ctx, js[int]("document.querySelectorAll('main h1').length")), get(t, ctx, js[int]("document.querySelectorAll('main img, main script').length"))
	})
	wide(t, ctx)
	do(t, ctx, click(`form[action$="/discard"] button`), shown(".said"), see("No session has changed anything"))
	if files, err := os.ReadDir(filepath.Join(dir, "src")); err != nil || len(files) != 0 {
		t.Errorf("the workspace has %v, %v", files, err)
	}
}

// TestHostsAndJournal: the screens of hosts and of the journal's verification read and fit.
func TestHostsAndJournal(t *testing.T) {
	h := newHouse(t)
	h.palyra("call", "palyra.echo", `{"text":"x"}`)
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, goTo(h.url+"/console/hosts"), see("the journal on: 1"), see("May reach no host"))
	wide(t, ctx)
	do(t, ctx, goTo(h.url+"/console/journal"), shown(`form[action="/console/journal/verify"] button`), chromedp.Focus(chromedp.CSS(`form[action="/console/journal/verify"] button`)),
		chromedp.KeyEvent("\r"), see("The journal is sound"), see("palyra journal verify --state COPY --trust DIR"))
	wide(t, ctx)
	fits(t, ctx, h, "hosts")
}

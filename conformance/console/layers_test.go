package console

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
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
	do(t, ctx, goTo(h.url+"/console/changes"), click("main tbody a"), see("Apply"), see("Patch"))
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

// TestApplyScreen: what a call staged is brought to the workspace by clicks, after the question, and
// taken back by clicks. All of it works without scripts, too.
func TestApplyScreen(t *testing.T) {
	t.Parallel()
	for name, scripts := range map[string]bool{"with scripts": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			h := newHouseIn(t, dir)
			ctx := browser(t)
			h.enter(ctx)
			if !scripts {
				do(t, ctx, send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
			}
			has := func() string {
				b, err := os.ReadFile(filepath.Join(dir, "src", "notes.txt"))
				if err != nil {
					return "nothing"
				}
				return string(b)
			}
			answered := func(outcome string) {
				t.Helper()
				do(t, ctx, until(".said", "The call is made"))
				again(t, ctx, "A question waits")
				do(t, ctx, press(`main a[href^="/console/questions/"]`), see("May this run?"), see("notes.txt"), click("button.yes"), shown(".said"))
				do(t, ctx, goTo(h.url+"/console/runs"), press("main tbody a"), see("0. changes."))
				again(t, ctx, "done")
				do(t, ctx, see(outcome))
			}
			cmd := h.command("call", "--session", h.palyra("sessions", "new"), "fs.write_file", `{"workspace":"src","path":"notes.txt","mode":"create","content":"staged\n"}`)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			do(t, ctx, goTo(h.url+"/console/questions"))
			again(t, ctx, "fs.write_file")
			do(t, ctx, click("article a"), see("May this run?"), click("button.yes"), shown(".said"))
			if err := cmd.Wait(); err != nil || has() != "nothing" {
				t.Fatalf("%v; the workspace has %s", err, has())
			}
			do(t, ctx, goTo(h.url+"/console/changes"), click("main tbody a"), see("1 new, 0 changed and 0 deleted"))
			if scripts {
				wide(t, ctx)
			}
			do(t, ctx, click(`form[action$="/apply"] button`))
			answered("executed")
			if has() != "staged\n" {
				t.Fatalf("the workspace has %s", has())
			}
			do(t, ctx, press(`main section a[href^="/console/changes/"]`), see("Takes back"), see("0 new, 0 changed and 1 deleted"), click(`form[action$="/undo"] button`))
			answered("executed")
			if has() != "nothing" {
				t.Fatalf("after the undo the workspace has %s", has())
			}
		})
	}
}

// press is click for a page that may be replaced meanwhile.
func press(selector string) action {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		return run("document.querySelector("+strconv.Quote(selector)+").click()")(ctx, t)
	}
}

// again loads a page until it has a text, as a visitor without scripts does.
func again(t *testing.T, ctx context.Context, text string) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for main := ""; !strings.Contains(main, text); {
		select {
		case <-tick.C:
			do(t, ctx, chromedp.Reload(), shown("main"))
			main = mainText(t, ctx)
		case <-ctx.Done():
			t.Fatalf("no %q in %s", text, main)
		}
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

package console

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestReceiptScreen: a run leads to its receipt, which palyrad has verified; a changed one, and one
// with hostile text, is refused or stays text.
func TestReceiptScreen(t *testing.T) {
	h := newHouse(t)
	ctx := browser(t)
	h.enter(ctx)
	over := h.call(append([]string{"touch", "--"}, hostile...)...)
	do(t, ctx, see("onerror"), click("article a"), see("May this run?"), click("button.no"), shown(".said"))
	<-over
	check := func() {
		t.Helper()
		safe(t, func() (string, string, int, int) {
			return get(t, ctx, chromedp.Title()), get(t, ctx, js[string]("document.documentElement.textContent")),
				get(t, ctx, js[int]("document.querySelectorAll('main h1').length")), get(t, ctx, js[int]("document.querySelectorAll('main img, main script').length"))
		})
	}
	do(t, ctx, goTo(h.url+"/console/runs"), click("main tbody a"), see("Receipt"), click(`main a[href^="/console/receipts/"]`), see("Verified by palyrad"), see("not_approved"))
	check()
	wide(t, ctx)
	ran := h.call("true")
	do(t, ctx, goTo(h.url+"/console/questions"), see("None waits"))
	<-ran
	do(t, ctx, goTo(h.url+"/console/journal"), click("main tbody a"), see("Receipt"), click(`main a[href^="/console/receipts/"]`), see("Verified by palyrad"), see("seccomp"), see("observed"))
	wide(t, ctx)
	file := get(t, ctx, js[string](`(() => { const x = new XMLHttpRequest(); x.open('GET', document.querySelector('a[download]').href, false); x.send();
		return JSON.stringify([x.responseText, x.getResponseHeader('Content-Disposition')]) })()`))
	var got [2]string
	if err := json.Unmarshal([]byte(file), &got); err != nil || !strings.HasPrefix(got[1], "attachment") || !json.Valid([]byte(got[0])) {
		t.Fatalf("the file: %.200q, %v", file, err)
	}
	paste := func(text string) {
		t.Helper()
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		do(t, ctx, goTo(h.url+"/console/receipts"), shown("textarea"), run(fmt.Sprintf("document.querySelector('textarea').value = %s", quoted)),
			chromedp.Focus(chromedp.CSS("button.yes")), chromedp.KeyEvent("\r"))
	}
	paste(got[0])
	do(t, ctx, see("Verified by palyrad"))
	paste(strings.Replace(got[0], `"payload":"ey`, `"payload":"ez`, 1))
	do(t, ctx, see("doesn't verify"))
	paste(strings.Join(hostile, " "))
	do(t, ctx, see("doesn't verify"))
	check()
	other := newHouse(t)
	other.palyra("call", "palyra.echo", `{"text":"x"}`)
	theirs := other.palyra("attest", "get", "0")
	paste(theirs)
	do(t, ctx, see("another palyrad"))
	fits(t, ctx, h, "receipts", "receipts/1")
}

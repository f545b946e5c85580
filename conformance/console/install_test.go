package console

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// ask is a command of the protocol as an action, with its result.
func ask[P, R any](c cdp.Command[P, R], params P) chromedp.Action[R] {
	return func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, c, params) }
}

// TestInstallable: Chromium takes the console for an app. The browser keeps the console's looks and
// nothing of a run, and has a page of its own when palyrad is gone.
func TestInstallable(t *testing.T) {
	h := newHouse(t)
	ctx := wholeBrowser(t)
	h.enter(ctx)
	const secret = "only palyrad shows this"
	over := h.call("touch", "/tmp/"+secret)
	do(t, ctx, see(secret), click("article a"), see("May this run?"), click("button.yes"), shown(".said"))
	<-over

	m := get(t, ctx, ask(page.GetAppManifest, page.GetAppManifestParams{}))
	for _, e := range m.Errors {
		t.Errorf("the manifest: %s", e.Message)
	}
	if !strings.Contains(m.Data, `"start_url": "/console/questions"`) {
		t.Errorf("the manifest at %q is %s", m.URL, m.Data)
	}
	for _, e := range get(t, ctx, ask(page.GetInstallabilityErrors, cdp.Empty{})).InstallabilityErrors {
		t.Errorf("not installable: %s %v", e.ErrorID, e.ErrorArguments)
	}

	do(t, ctx, wait("navigator.serviceWorker.controller && navigator.serviceWorker.controller.state === 'activated'"))
	// With the worker: pages, their parts, and an act.
	denied := h.call("touch", "/tmp/another")
	do(t, ctx, goTo(h.url+"/console/questions"), see("/tmp/another"), click("article a"), click("button.no"), shown(".said"))
	if status := <-denied; status != 126 {
		t.Errorf("a denied call ended with %d", status)
	}
	do(t, ctx, goTo(h.url+"/console/runs"), click("main tbody tr:last-child a"), see(secret))
	do(t, ctx, run(`window.kept = null, (async () => {
		const found = [];
		for (const name of await caches.keys()) {
			const c = await caches.open(name);
			for (const q of await c.keys()) found.push({at: new URL(q.url).pathname, text: await (await c.match(q)).text()});
		}
		window.kept = JSON.stringify(found);
	})()`), wait("window.kept"))
	var kept []struct{ At, Text string }
	if err := json.Unmarshal([]byte(get(t, ctx, js[string]("window.kept"))), &kept); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range kept {
		names = append(names, k.At)
		if !strings.HasPrefix(k.At, "/assets/") || strings.Contains(k.Text, secret) {
			t.Errorf("the browser keeps %s", k.At)
		}
	}
	if all := strings.Join(names, " "); !strings.Contains(all, "/offline-") || !strings.Contains(all, "/style-") {
		t.Errorf("the browser keeps %s", all)
	}

	var st struct{ Status struct{ PID int } }
	if err := json.Unmarshal([]byte(h.palyra("status", "--json")), &st); err != nil || st.Status.PID <= 1 {
		t.Fatalf("palyrad's process: %+v, %v", st, err)
	}
	p, err := os.FindProcess(st.Status.PID)
	if err == nil {
		err = p.Signal(syscall.SIGTERM)
	}
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			break
		}
		c.Close()
	}
	do(t, ctx, goTo(h.url+"/console/runs"), see("palyrad doesn’t answer"))
	if back := get(t, ctx, js[string]("getComputedStyle(document.querySelector('pre')).whiteSpace")); back != "pre-wrap" {
		t.Errorf("without palyrad the page has no style: %q", back)
	}
	if text := get(t, ctx, js[string]("document.documentElement.textContent")); strings.Contains(text, secret) {
		t.Errorf("without palyrad the browser shows %q", text)
	}
}

// wait waits until an expression is true.
func wait(expression string) action {
	look := js[bool]("!!(" + expression + ")")
	return func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if ok, err := look(ctx, t); err == nil && ok {
				return none, nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return none, ctx.Err()
			}
		}
	}
}

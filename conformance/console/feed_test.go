package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	permissions "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
)

// ask sends a request to palyrad's socket and returns the answer's body. head are names of headers,
// each with its value.
func (h *house) ask(method, path, body string, head ...string) string {
	h.t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.socket)
	}}}
	req, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(head); i += 2 {
		req.Header.Set(head[i], head[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		h.t.Fatalf("%s %s: %s, %v: %s", method, path, resp.Status, err, b)
	}
	return string(b)
}

// quit ends what waits, for which palyrad would wait, too.
func (h *house) quit() { h.ask("POST", "/api/v1/stop", `{"all":true}`) }

// feeds returns how many there are.
func (h *house) feeds() int {
	h.t.Helper()
	for line := range strings.Lines(h.ask("GET", "/metrics", "")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.Contains(name, `"notices"`) && strings.Contains(name, "held") {
			n, err := strconv.Atoi(value)
			if err != nil {
				h.t.Fatal(err)
			}
			return n
		}
	}
	h.t.Fatal("no metric of notices")
	return 0
}

// tab is another page of ctx's browser.
func tab(t testing.TB, ctx context.Context, address string) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	do(t, ctx, goTo(address), shown("main h1"))
	return ctx, cancel
}

// asked is how often a page has asked for itself.
const asked = "performance.getEntriesByType('resource').filter(e => e.initiatorType === 'xmlhttprequest').length"

// fed waits until a page has the feed, and has looked at what it had missed.
func fed(t testing.TB, ctx context.Context) {
	t.Helper()
	before := -1
	for {
		now := get(t, ctx, js[int](asked))
		if now == before && now > 0 {
			return
		}
		before = now
		pause(t, ctx, 1500*time.Millisecond)
	}
}

func pause(t testing.TB, ctx context.Context, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}

// TestFeed: an open page doesn't ask while nothing happens, and a question comes into it by itself.
func TestFeed(t *testing.T) {
	h := newHouse(t)
	defer h.quit()
	ctx := browser(t)
	h.enter(ctx)
	fed(t, ctx)
	before := get(t, ctx, js[int](asked))
	pause(t, ctx, 4*time.Second)
	if now := get(t, ctx, js[int](asked)); now != before {
		t.Errorf("while nothing happened the page asked %d times", now-before)
	}
	begun := time.Now()
	h.call("touch", "/tmp/by the feed")
	do(t, ctx, see("by the feed"))
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("it took %v: that's the page's own asking", took)
	}
	if title := get(t, ctx, chromedp.Title()); !strings.HasPrefix(title, "(1) ") {
		t.Errorf("title %q", title)
	}
}

// TestFeedShared: the pages of a browser share a feed, and when the page that has it goes, another
// one takes it over.
func TestFeedShared(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	defer h.quit()
	first := browser(t)
	h.enter(first)
	fed(t, first)
	second, _ := tab(t, first, h.url+"/console/questions")
	third, leave := tab(t, first, h.url+"/console/runs")
	fed(t, second)
	if n := h.feeds(); n != 1 {
		t.Errorf("three pages of a browser have %d feeds", n)
	}
	h.call("touch", "/tmp/for all")
	do(t, first, see("for all"))
	do(t, second, see("for all"))
	do(t, third, see("waiting approval"))
	leave()
	do(t, first, goTo("about:blank"))
	fed(t, second)
	if n := h.feeds(); n != 1 {
		t.Errorf("the page that is left has %d feeds", n)
	}
	before := get(t, second, js[int](asked))
	h.call("touch", "/tmp/for the last")
	do(t, second, see("for the last"))
	if now := get(t, second, js[int](asked)); now == before {
		t.Error("control: the page hasn't asked")
	}
}

// TestNoFeed: a page that gets no feed asks once a second, and takes the next place there is.
func TestNoFeed(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	defer h.quit()
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, goTo(h.url+"/assets/none"), shown("main"))
	cookie := ""
	do(t, ctx, func(ctx context.Context, tg *chromedp.Target) (none chromedp.Void, err error) {
		got, err := cdp.Call(ctx, tg, network.GetCookies, network.GetCookiesParams{})
		for _, k := range got.Cookies {
			cookie = k.Name + "=" + k.Value
		}
		return none, err
	})
	others, leave := context.WithCancel(ctx)
	for n := 0; h.follow(others, cookie) == http.StatusOK; n++ {
		if n > 100 {
			t.Fatal("a token has as many feeds as it likes")
		}
	}
	full := h.feeds()
	do(t, ctx, goTo(h.url+"/console/questions"), shown("main h1"))
	pause(t, ctx, 4*time.Second)
	if n := get(t, ctx, js[int](asked)); n < 2 || h.feeds() != full {
		t.Errorf("without a feed the page asked %d times; %d feeds, there were %d", n, h.feeds(), full)
	}
	h.call("touch", "/tmp/by asking")
	do(t, ctx, see("by asking"))
	leave()
	fed(t, ctx)
	if n := h.feeds(); n != 1 {
		t.Errorf("%d feeds", n)
	}
}

// follow opens a feed until ctx ends, and returns the status.
func (h *house) follow(ctx context.Context, cookie string) int {
	h.t.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", h.url+"/console/feed", nil)
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Cookie", cookie)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { resp.Body.Close() })
	return resp.StatusCode
}

// TestLost: a page says that palyrad doesn't answer, and finds it again by itself.
func TestLost(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	defer h.quit()
	ctx := browser(t)
	h.enter(ctx)
	fed(t, ctx)
	do(t, ctx, run("window.mark = 1"))
	h.stop()
	do(t, ctx, until("#note", "doesn’t answer"))
	h.start()
	h.call("touch", "/tmp/after the pause")
	do(t, ctx, see("after the pause"))
	if note := get(t, ctx, js[string]("document.querySelector('#note').textContent")); note != "" {
		t.Errorf("the note still says %q", note)
	}
	if !get(t, ctx, js[bool]("window.mark === 1")) {
		t.Error("the page was loaded again")
	}
	fed(t, ctx)
	if n := h.feeds(); n != 1 {
		t.Errorf("%d feeds", n)
	}
}

// TestLongDay: after many notices a page holds no more than after a few, and still follows.
func TestLongDay(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	defer h.quit()
	ctx := browser(t)
	h.enter(ctx)
	fed(t, ctx)
	do(t, ctx, send(performance.Enable, performance.EnableParams{}))
	change := func(times int) {
		for range times {
			h.ask("POST", "/api/v1/stop", `{"all":true,"deny_new":true}`)
			do(t, ctx, until("#banner", "Palyra is stopped"), run("document.querySelector('main h1').textContent = 'Questions'"))
			h.ask("POST", "/api/v1/resume", "")
			do(t, ctx, func(ctx context.Context, tg *chromedp.Target) (none chromedp.Void, err error) {
				for {
					if gone, err := js[bool]("document.querySelector('#banner').textContent === ''")(ctx, tg); err != nil || gone {
						return none, err
					}
					pause(t, ctx, 10*time.Millisecond)
				}
			})
		}
	}
	held := func() (nodes, listeners int) {
		t.Helper()
		do(t, ctx, func(ctx context.Context, tg *chromedp.Target) (none chromedp.Void, err error) {
			for range 2 {
				if _, err := cdp.Call(ctx, tg, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
					return none, err
				}
			}
			got, err := cdp.Call(ctx, tg, performance.GetMetrics, cdp.Empty{})
			for _, m := range got.Metrics {
				switch m.Name {
				case "Nodes":
					nodes = int(m.Value)
				case "JSEventListeners":
					listeners = int(m.Value)
				}
			}
			return none, err
		})
		return nodes, listeners
	}
	change(5)
	fed(t, ctx)
	nodes, listeners := held()
	change(100)
	fed(t, ctx)
	after, more := held()
	t.Logf("%d nodes and %d listeners after 10 changes, %d and %d after 210", nodes, listeners, after, more)
	if nodes == 0 || listeners == 0 || after > nodes+nodes/10 || more > listeners {
		t.Errorf("%d nodes and %d listeners, want no more than %d and %d", after, more, nodes, listeners)
	}
	h.call("touch", "/tmp/in the evening")
	do(t, ctx, see("in the evening"))
}

// TestNotification: after a click on the button, a question comes as a notification where no page of
// the console is in sight, with a number and no text of the call's.
func TestNotification(t *testing.T) {
	h := newHouse(t)
	defer h.quit()
	ctx := wholeBrowser(t)
	h.enter(ctx)
	permit := func(s permissions.PermissionSetting) action {
		return func(ctx context.Context, tg *chromedp.Target) (none chromedp.Void, err error) {
			_, err = cdp.Call(ctx, chromedp.FromContext(ctx).Browser, permissions.SetPermission, permissions.SetPermissionParams{
				Permission: &permissions.PermissionDescriptor{Name: "notifications"}, Setting: s})
			return none, err
		}
	}
	// told notes what is shown besides.
	told := `window.told = []; window.Notification = class extends window.Notification { constructor(t, o) { super(t, o); told.push(t + ': ' + o.body); } };`
	do(t, ctx, permit("prompt"), func(ctx context.Context, tg *chromedp.Target) (none chromedp.Void, err error) {
		_, err = cdp.Call(ctx, tg, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: told})
		return none, err
	}, goTo(h.url+"/console/runs"), shown("#tell"), permit("granted"), click("#tell"), chromedp.WaitNotVisible(chromedp.CSS("#tell")))
	fed(t, ctx)
	h.call("touch", "/tmp/in sight")
	do(t, ctx, until("#count", "1"))
	if n := get(t, ctx, js[int]("told.length")); n != 0 {
		t.Errorf("%d notifications for a page in sight", n)
	}
	do(t, ctx, run(`Object.defineProperty(document, 'hidden', { value: true, configurable: true }), document.dispatchEvent(new Event('visibilitychange'))`))
	h.call("touch", "/tmp/out of sight")
	do(t, ctx, until("#count", "2"))
	for len(get(t, ctx, js[[]string]("told"))) == 0 {
		pause(t, ctx, 20*time.Millisecond)
	}
	if all := get(t, ctx, js[[]string]("told")); !slices.Equal(all, []string{"Palyra: 2 questions wait for an answer."}) {
		t.Errorf("%q", all)
	}
	if title := get(t, ctx, chromedp.Title()); !strings.HasPrefix(title, "(2) ") {
		t.Errorf("title %q", title)
	}
}

// BenchmarkEventToPixel is the time from a question's beginning, as palyrad writes it down, to the
// frame of an open page that shows it; and palyrad's memory with 50 open feeds.
//
//	go test -run NONE -bench EventToPixel -benchtime 60x .
func BenchmarkEventToPixel(b *testing.B) {
	h := newHouse(b)
	ctx := browser(b)
	h.enter(ctx)
	fed(b, ctx)
	do(b, ctx, run(`window.at = {}, new MutationObserver(() => {
		const have = [...document.querySelectorAll('article a[id]')].map((a) => a.id.slice(2)).filter((id) => !(id in at));
		if (have.length) requestAnimationFrame(() => requestAnimationFrame(() => have.forEach((id) => { at[id] ??= performance.timeOrigin + performance.now(); })));
	}).observe(document.querySelector('main'), { childList: true, subtree: true })`))
	var took []float64
	for i := 0; b.Loop(); i++ {
		over := h.call("touch", fmt.Sprintf("/tmp/question %d", i))
		do(b, ctx, see(fmt.Sprintf("question %d'", i)))
		var list struct {
			Items []struct {
				ID      string
				Created time.Time
			}
		}
		if err := json.Unmarshal([]byte(h.ask("GET", "/api/v1/approvals?state=pending", "")), &list); err != nil || len(list.Items) != 1 {
			b.Fatalf("%+v, %v", list, err)
		}
		q := list.Items[0]
		at := 0.0
		for at == 0 {
			at = get(b, ctx, js[float64](fmt.Sprintf("at[%q] ?? 0", q.ID)))
		}
		took = append(took, at-float64(q.Created.UnixNano())/1e6)
		h.palyra("approvals", "deny", q.ID)
		<-over
		do(b, ctx, see("None waits"))
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2], "p50-ms")
	b.ReportMetric(took[len(took)*95/100], "p95-ms")
	b.ReportMetric(took[len(took)-1], "max-ms")
	b.ReportMetric(0, "ns/op")

	before := h.memory()
	at, hold := context.WithCancel(b.Context())
	defer hold()
	cookie := ""
	for i := range 50 {
		if i%4 == 0 {
			cookie = h.cookie()
		}
		if status := h.follow(at, cookie); status != http.StatusOK {
			b.Fatalf("feed %d: %d", i, status)
		}
	}
	if n := h.feeds(); n < 50 {
		b.Fatalf("%d feeds", n)
	}
	b.ReportMetric(float64(before)/1024, "MiB-before")
	b.ReportMetric(float64(h.memory())/1024, "MiB-50-feeds")
}

// cookie enters as a browser and returns its cookie.
func (h *house) cookie() string {
	h.t.Helper()
	address := h.palyra("console", "open", "--print")
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	_, code, _ := strings.Cut(address, "?code=")
	resp, err := c.Get(address)
	if err != nil {
		h.t.Fatal(err)
	}
	resp.Body.Close()
	req, err := http.NewRequest("POST", h.url+"/enter", strings.NewReader("code="+code))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, k := range resp.Cookies() {
		req.AddCookie(&http.Cookie{Name: k.Name, Value: k.Value})
	}
	if resp, err = c.Do(req); err != nil {
		h.t.Fatal(err)
	}
	resp.Body.Close()
	for _, k := range resp.Cookies() {
		if k.MaxAge >= 0 {
			return k.Name + "=" + k.Value
		}
	}
	h.t.Fatalf("not let in: %s", resp.Status)
	return ""
}

// memory returns palyrad's resident memory, in KiB.
func (h *house) memory() int {
	h.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.pid))
	if err != nil {
		h.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

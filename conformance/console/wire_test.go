package console

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// wire is between a browser and palyrad: it passes everything, or stalls, cuts, and eats answers.
type wire struct {
	t    *testing.T
	l    net.Listener
	to   string
	wg   sync.WaitGroup
	eats string // an answer to a request that begins so is cut off instead; "": none

	mu    sync.Mutex
	turn  *sync.Cond
	state string // "", "stalls" or "is cut"
	conns map[net.Conn]bool
	sent  int // requests that begin with eats
}

// newWire returns a wire to palyrad, and the option of a browser that goes over it.
func newWire(t *testing.T, h *house) (*wire, chromedp.ExecAllocatorOption) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := strings.TrimPrefix(h.url, "http://")
	_, port, _ := net.SplitHostPort(at)
	w := &wire{t: t, l: l, to: "127.0.0.1:" + port, eats: "POST /console/questions/", conns: make(map[net.Conn]bool)}
	w.turn = sync.NewCond(&w.mu)
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); w.set("is cut"); w.wg.Wait() })
	return w, chromedp.Flag("host-resolver-rules", fmt.Sprintf("MAP %s %s", at, l.Addr()))
}

// set changes what the wire does, for each connection there is and each that comes.
func (w *wire) set(state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state = state; state == "is cut" {
		for c := range w.conns {
			c.Close()
		}
	}
	w.turn.Broadcast()
}

// hold adds a connection, and reports whether it may be.
func (w *wire) hold(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == "is cut" {
		return false
	}
	w.conns[c] = true
	return true
}

// pass waits while the wire stalls, and reports whether bytes pass.
func (w *wire) pass() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.state == "stalls" {
		w.turn.Wait()
	}
	return w.state != "is cut"
}

func (w *wire) serve(c net.Conn) {
	defer c.Close()
	p, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer p.Close()
	if !w.hold(c) || !w.hold(p) {
		return
	}
	defer func() {
		w.mu.Lock()
		delete(w.conns, c)
		delete(w.conns, p)
		w.mu.Unlock()
	}()
	var mu sync.Mutex
	eat := false // guarded by mu
	w.wg.Go(func() {
		defer c.Close()
		w.copy(c, p, func([]byte) bool {
			mu.Lock()
			defer mu.Unlock()
			return !eat
		})
	})
	w.copy(p, c, func(b []byte) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if bytes.HasPrefix(b, []byte(w.eats)) {
			w.sent++
			mu.Lock()
			eat = w.state == "eats"
			mu.Unlock()
		}
		return true
	})
}

// copy copies while look is content with what comes.
func (w *wire) copy(to, from net.Conn, look func([]byte) bool) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if !w.pass() || n == 0 || !look(b[:n]) { // an end stalls, too
			return
		}
		if _, werr := to.Write(b[:n]); werr != nil || err != nil {
			return
		}
	}
}

// TestWire: a page whose connection stalls or is cut says so and comes back by itself, with what came
// meanwhile. An answer that is sent over such a connection, however often, is one answer.
func TestWire(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	defer h.quit()
	w, over := newWire(t, h)
	ctx := browser(t, over)
	h.enter(ctx)
	fed(t, ctx)
	silent := func() {
		t.Helper()
		do(t, ctx, until("#note", "doesn’t answer"))
	}
	back := func(text string) {
		t.Helper()
		do(t, ctx, see(text), func(ctx context.Context, tg *chromedp.Target) (none chromedp.Void, err error) {
			for {
				if quiet, err := js[bool]("document.querySelector('#note').textContent === ''")(ctx, tg); err != nil || quiet {
					return none, err
				}
				pause(t, ctx, 20*time.Millisecond)
			}
		})
		if !get(t, ctx, js[bool]("window.mark === 1")) {
			t.Error("the page was loaded again")
		}
	}
	do(t, ctx, run("window.mark = 1"))

	w.set("is cut")
	first := h.call("touch", "/tmp/asked while it was cut")
	silent()
	w.set("")
	back("asked while it was cut")

	w.set("stalls")
	second := h.call("touch", "/tmp/asked while it stalled")
	do(t, ctx, run("document.dispatchEvent(new Event('visibilitychange'))")) // the person looks
	silent()
	w.set("")
	back("asked while it stalled")

	// A yes that palyrad has, whose answer is lost: the browser may send it again by itself.
	do(t, ctx, click("article a"), shown("button.yes"))
	at := get(t, ctx, chromedp.Location())
	w.set("eats")
	do(t, ctx, run("document.querySelector('button.yes').click()"))
	for !slices.Contains(h.questions(), "approved") {
		pause(t, ctx, 20*time.Millisecond)
	}
	do(t, ctx, wait("location.protocol === 'chrome-error:'")) // it has given up
	w.set("")
	do(t, ctx, goTo(at), see("Question, approved"))
	if n := w.posts(); n < 1 {
		t.Errorf("control: %d answers went over the wire", n)
	} else {
		t.Logf("the answer was sent %d times", n)
	}

	// A no by two clicks while it stalls.
	do(t, ctx, goTo(h.url+"/console/questions"), click("article a"), shown("button.no"))
	before := w.posts()
	w.set("stalls")
	do(t, ctx, run("document.querySelector('button.no').click(), document.querySelector('button.no').click()"))
	pause(t, ctx, time.Second)
	w.set("")
	do(t, ctx, until("main", "None waits"))
	q := h.questions()
	slices.Sort(q)
	if !slices.Equal(q, []string{"approved", "denied"}) || w.posts() == before {
		t.Errorf("the questions are %q, after %d answers over the wire", q, w.posts()-before)
	}
	if status := []int{<-first, <-second}; status[0]+status[1] != 126 || status[0]*status[1] != 0 {
		t.Errorf("the calls ended with %d, want one with 0 and one with 126", status)
	}
}

// posts returns how many answers went over the wire.
func (w *wire) posts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent
}

// TestSlow: over a slow connection a question comes, is answered once, and what it ran is shown.
func TestSlow(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	defer h.quit()
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, func(ctx context.Context, tg *chromedp.Target) (none chromedp.Void, err error) {
		_, err = cdp.Call(ctx, tg, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{
			MatchedNetworkConditions: []*network.Conditions{{Latency: 800, DownloadThroughput: 8 << 10, UploadThroughput: 8 << 10}}})
		return none, err
	}, goTo(h.url+"/console/questions"), shown("main h1"))
	if took := get(t, ctx, js[float64]("performance.getEntriesByType('navigation')[0].responseEnd")); took < 800 {
		t.Fatalf("control: the page took %.0f ms", took)
	}
	over := h.call("touch", "/tmp/slowly")
	do(t, ctx, see("slowly"), click("article a"), see("May this run?"), click("button.yes"), shown(".said"))
	if status := <-over; status != 0 {
		t.Errorf("the call ended with %d", status)
	}
	do(t, ctx, goTo(h.url+"/console/runs"), click("main tbody a"), see("executed"))
	if q := h.questions(); len(q) != 1 || q[0] != "approved" {
		t.Errorf("the questions are %q", q)
	}
}

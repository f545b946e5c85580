package console

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// BenchmarkFirstView is what the first view of Questions takes of a browser that has nothing of the
// console, while 1,000 runs are open: bytes over the wire with headers, and palyrad's time
// for the page alone.
//
//	go test -run NONE -bench FirstView -benchtime 50x .
func BenchmarkFirstView(b *testing.B) {
	const open, most, slowest = 1000, 60e3, 100.0 // runs, bytes, ms
	h := newHouse(b, func(string) string {
		return "timeout = \"1h\"\n[limits]\nqueue = 2000\nqueue_per_principal = 1500\nruns_per_session = 1024\nrequests_per_second = 0\n"
	})
	b.Cleanup(h.quit)
	session := h.palyra("sessions", "new")
	for i := range open {
		in, err := json.Marshal(map[string]any{"session": session, "parallel": true,
			"steps": []any{call("process.run", map[string]any{"argv": []string{"touch", fmt.Sprintf("/tmp/file %d", i)}})}})
		if err != nil {
			b.Fatal(err)
		}
		h.ask("POST", "/api/v1/runs", string(in), "Idempotency-Key", rand.Text())
	}
	for h.waiting() < 256 { // the others wait for a place
		pause(b, b.Context(), time.Second)
	}

	ctx := browser(b)
	yes := true
	name, value, _ := strings.Cut(h.cookie(), "=")
	do(b, ctx, func(ctx context.Context, tg *chromedp.Target) (none chromedp.Void, err error) {
		if _, err = cdp.Call(ctx, tg, network.SetBypassServiceWorker, network.SetBypassServiceWorkerParams{Bypass: true}); err == nil {
			_, err = cdp.Call(ctx, tg, network.SetCookie, network.SetCookieParams{Name: name, Value: value, URL: h.url + "/", Path: "/", Secure: &yes, HTTPOnly: &yes})
		}
		return none, err
	}, goTo(h.url+"/console/questions"), shown("article"))
	const all = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource').filter(e => e.initiatorType !== 'xmlhttprequest')]"
	bytes, files := get(b, ctx, js[float64](all+".reduce((n, e) => n + e.transferSize, 0)")), get(b, ctx, js[[]string](all+".map((e) => new URL(e.name).pathname + ' ' + e.transferSize)"))
	if len(files) < 4 || slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, "s 0") }) { // styles or a script
		b.Fatalf("control: not a first view: %q", files)
	}

	cookie := h.cookie()
	var took []float64
	for b.Loop() {
		req, err := http.NewRequest("GET", h.url+"/console/questions", nil)
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Cookie", cookie)
		req.Header.Set("Accept-Encoding", "gzip")
		begun := time.Now()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if took = append(took, float64(time.Since(begun))/1e6); err != nil || resp.StatusCode != 200 {
			b.Fatalf("%s, %v", resp.Status, err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(bytes, "bytes")
	b.ReportMetric(took[len(took)/2], "p50-ms")
	b.ReportMetric(took[len(took)*95/100], "p95-ms")
	b.ReportMetric(0, "ns/op")
	if bytes > most || took[len(took)/2] > slowest {
		b.Errorf("%.0f bytes and %.0f ms, want at most %.0f and %.0f", bytes, took[len(took)/2], most, slowest)
	}
}

// waiting returns how many questions wait.
func (h *house) waiting() int {
	h.t.Helper()
	var st struct {
		Counts struct {
			Pending int `json:"approvals_pending"`
		}
	}
	if err := json.Unmarshal([]byte(h.ask("GET", "/api/v1/status", "")), &st); err != nil {
		h.t.Fatal(err)
	}
	return st.Counts.Pending
}

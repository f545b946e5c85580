package console

import (
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// shells lets members run dash, so that a program writes what a test wants when it wants it.
func shells(t testing.TB) func(bin string) string {
	dir := filepath.Join(t.TempDir(), "policy")
	return func(bin string) string {
		if out, err := command(bin, "palyra", "policy", "init", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		const policy = `@id("dash") permit (principal in Palyra::Role::"operator", action == Palyra::Action::"interpreter.run", resource == Palyra::Executable::"dash");
			@id("dash_runs") permit (principal in Palyra::Role::"operator", action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"process.run")
			when { context.executable.name == "dash" };`
		err := os.WriteFile(filepath.Join(dir, "90-dash.cedar"), []byte(policy), 0o600)
		tests := filepath.Join(dir, "40-interpreters.test.json") // which want another shell denied, then
		var b []byte
		if err == nil {
			b, err = os.ReadFile(tests)
		}
		if err == nil {
			err = os.WriteFile(tests, []byte(strings.ReplaceAll(string(b), "/dash", "/bash")), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("[policy]\ndir = %q\n", dir)
	}
}

// begin makes a run of calls, and returns its id.
func (h *house) begin(session string, calls ...map[string]any) string {
	h.t.Helper()
	b, err := json.Marshal(map[string]any{"session": session, "steps": calls})
	if err != nil {
		h.t.Fatal(err)
	}
	var run struct{ ID string }
	if err := json.Unmarshal([]byte(h.ask("POST", "/api/v1/runs", string(b), "Idempotency-Key", rand.Text())), &run); err != nil || run.ID == "" {
		h.t.Fatalf("%+v, %v", run, err)
	}
	return run.ID
}

func call(tool string, input any) map[string]any { return map[string]any{"tool": tool, "input": input} }

// TestLiveOutput: an open page shows what a running program writes as it comes, its newest part, as
// text; a part that the person has selected stays; without scripts each reload shows it.
func TestLiveOutput(t *testing.T) {
	h := newHouse(t, shells(t))
	defer h.quit()
	ctx := browser(t)
	h.enter(ctx)
	script := `printf '<h1>pwned</h1><script>document.title="pwned"</script>\033[2J\342\200\256gpj\n'; echo careful >&2; i=0; while :; do i=$((i+1)); echo "line $i."; sleep 0.05; done`
	id := h.begin(h.palyra("sessions", "new"), call("process.run", map[string]any{"argv": []string{"dash", "-c", script}}), call("palyra.echo", map[string]string{"text": "x"}))
	at := h.url + "/console/runs/" + id
	do(t, ctx, goTo(at), until("#stdout", "line 3."), until("#stderr", "careful"), run("window.mark = 1"), run("document.querySelector('h1').mark = 1"))
	safe(t, func() (string, string, int, int) {
		return get(t, ctx, chromedp.Title()), get(t, ctx, js[string]("document.documentElement.textContent")),
			get(t, ctx, js[int]("document.querySelectorAll('main h1').length")), get(t, ctx, js[int]("document.querySelectorAll('main img, main script').length"))
	})
	if text := mainText(t, ctx); !strings.Contains(text, "⟦U+001B⟧[2J⟦U+202E⟧") {
		t.Errorf("%q", text)
	}
	do(t, ctx, until("#stdout", "line 20."))
	if !get(t, ctx, js[bool]("window.mark === 1 && document.querySelector('h1').mark === 1")) {
		t.Error("the page was made again to show more")
	}
	if !get(t, ctx, js[bool]("(({ bottom }, pre) => Math.abs(bottom - pre.bottom) < 2)(document.querySelector('.tail').getBoundingClientRect(), document.querySelector('#stdout').getBoundingClientRect())")) {
		t.Error("the newest line isn't in sight")
	}
	wide(t, ctx)
	do(t, ctx, run("getSelection().selectAllChildren(document.querySelector('#stdout'))"))
	before := get(t, ctx, js[string]("getSelection().toString()"))
	pause(t, ctx, 1500*time.Millisecond)
	if after := get(t, ctx, js[string]("getSelection().toString()")); before == "" || after != before {
		t.Errorf("selected %q, and then %q", before, after)
	}
	do(t, ctx, run("getSelection().removeAllRanges()"), until("#stdout", "line 50."))

	off := send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	do(t, ctx, off, goTo(at), until("#stdout", "line 50"), click("#output + p a"), see("Output of step 0"))
	lines := func() int { return strings.Count(mainText(t, ctx), "line ") }
	first := lines()
	do(t, ctx, goTo(at+"/output/0"), shown("#stdout"))
	if n := lines(); n <= first {
		t.Errorf("a reload shows %d lines, %d before", n, first)
	}
	h.ask("POST", "/api/v1/runs/"+id+"/cancel", "")
	do(t, ctx, goTo(at), see("cancelled"), see("line 1."))
}

// TestLongOutput: of a program that writes much a page shows the end, while it runs, and all is a file.
func TestLongOutput(t *testing.T) {
	h := newHouse(t, shells(t))
	defer h.quit()
	ctx := browser(t)
	h.enter(ctx)
	script := `seq 100000; echo over; while :; do sleep 0.1; done`
	id := h.begin(h.palyra("sessions", "new"), call("process.run", map[string]any{"argv": []string{"dash", "-c", script}}))
	at := h.url + "/console/runs/" + id
	do(t, ctx, goTo(at), until("#stdout", "over"), until("#stdout-said", "the end of 575"))
	if n := get(t, ctx, js[int]("document.querySelector('#stdout').textContent.length")); n > 16<<10 || n < 16<<10-4 {
		t.Errorf("%d bytes of it are in the page", n)
	}
	req, err := http.NewRequest("GET", at+"/output/0/stdout", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cookie", h.cookie())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if want := 588895 + len("over\n"); err != nil || len(b) != want || !strings.HasSuffix(string(b), "100000\nover\n") {
		t.Errorf("the file has %d bytes, want %d: %v, %s", len(b), want, err, resp.Status)
	}
	h.ask("POST", "/api/v1/runs/"+id+"/cancel", "")
	do(t, ctx, see("cancelled"), see("the beginning of 575"), click(`main section a[href$="/output/0/stdout"]`))
}

var events = flag.Int("events", 1, "how many a session makes while its page is open: as many runs of 256 steps as that takes")

// TestManyEvents: the open page of a run with as many steps as there may be stays small and quick.
// 10,000 events take three minutes:
//
//	go test -run ManyEvents . -args -events 10000
func TestManyEvents(t *testing.T) {
	h := newHouse(t)
	defer h.quit()
	ctx := browser(t)
	h.enter(ctx)
	session := h.palyra("sessions", "new")
	steps := make([]map[string]any, 256)
	for i := range steps {
		steps[i] = call("palyra.echo", map[string]string{"text": strings.Repeat("x", 4000)})
	}
	begun, made, nodes, slowest := time.Now(), 0, 0, 0.0
	for made < *events {
		id := h.begin(session, steps...)
		do(t, ctx, goTo(h.url+"/console/runs/"+id), shown("main section"), run(`window.most = 0, window.slow = 0, window.last = performance.now(),
			requestAnimationFrame(function f(now) {
				most = Math.max(most, document.querySelectorAll('*').length);
				slow = Math.max(slow, now - last);
				last = now;
				requestAnimationFrame(f);
			})`), until("main .state", "done"), see("255. palyra.echo"))
		nodes, slowest = max(nodes, get(t, ctx, js[int]("most"))), max(slowest, get(t, ctx, js[float64]("slow")))
		var r struct {
			LastSeq int `json:"last_seq"`
		}
		if err := json.Unmarshal([]byte(h.ask("GET", "/api/v1/runs/"+id, "")), &r); err != nil || r.LastSeq < len(steps) {
			t.Fatalf("%+v, %v", r, err)
		}
		made += r.LastSeq
	}
	t.Logf("%d events in %v: %d elements at most, %.0f ms between two frames at most", made, time.Since(begun), nodes, slowest)
	if nodes == 0 || nodes > 1000 || slowest > 2000 {
		t.Errorf("%d elements, want 1000 at most; %.0f ms between two frames, want 2000 at most", nodes, slowest)
	}
}

package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var pictures = flag.String("pictures", "", "write a picture of each page into this directory")

// house is a palyrad of the test's own, with the built-in policies, which ask about touch, and whose
// user may answer their own questions.
type house struct {
	t      *testing.T
	bin    string
	socket string
	url    string
}

func newHouse(t *testing.T) *house {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "palyrad")); err != nil {
		t.Fatalf("%v: make build makes it", err)
	}
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr)
	l.Close() // palyrad takes it
	h := &house{t: t, bin: bin, socket: filepath.Join(dir, "sock"), url: fmt.Sprintf("http://localhost:%d", at.Port)}
	for _, sub := range []string{"state", "policy", "src"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(dir, "palyrad.toml")
	text := fmt.Sprintf("[state]\ndir = %q\n[listen]\nsocket = %q\nhttp = %q\n[workspaces.src]\npath = %q\nstaged = true\n[approvals]\nallow_self = true\n",
		filepath.Join(dir, "state"), h.socket, at.String(), filepath.Join(dir, "src"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "palyrad"), "--config", config)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan bool, 1)
	var log bytes.Buffer
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			fmt.Fprintln(&log, s.Text())
			if strings.Contains(s.Text(), `"msg":"ready"`) {
				ready <- true
			}
		}
		close(ready)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		for range ready {
		}
		if t.Failed() {
			t.Logf("palyrad: %v\n%s", err, log.String())
		}
	})
	if !<-ready {
		t.Fatal("palyrad ended")
	}
	return h
}

// palyra runs a command and returns its output.
func (h *house) palyra(args ...string) string {
	h.t.Helper()
	out, err := h.command(args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("palyra %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (h *house) command(args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(h.bin, "palyra"), append(args, "--socket", h.socket)...)
}

// call makes a call that waits for an answer. The channel has its status when it has ended.
func (h *house) call(argv ...string) <-chan int {
	h.t.Helper()
	in, err := json.Marshal(map[string]any{"argv": argv})
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := h.command("call", "process.run", string(in))
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	over := make(chan int, 1)
	go func() {
		_ = cmd.Wait()
		over <- cmd.ProcessState.ExitCode()
	}()
	return over
}

// action is a step that gives nothing.
type action = chromedp.Action[chromedp.Void]

// browser returns a Chromium with a profile of its own. As root it can't be a sandbox of its own.
func browser(t *testing.T) context.Context {
	t.Helper()
	alloc, stop := chromedp.NewExecAllocator(t.Context(), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.Headless, chromedp.NoSandbox,
		chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1440, 1000))
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("%v: apt install chromium", err)
	}
	ctx, end := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(end)
	return ctx
}

func do(t *testing.T, ctx context.Context, actions ...action) {
	t.Helper()
	if err := chromedp.Do(ctx, actions...); err != nil {
		now, end := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer end()
		at, _ := chromedp.Run(now, chromedp.Location())
		text, _ := chromedp.Run(now, js[string]("document.body.innerText"))
		t.Fatalf("%v\nat %s:\n%s", err, at, text)
	}
}

// send is a command of the protocol as an action.
func send[P, R any](c cdp.Command[P, R], params P) action {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

func get[T any](t *testing.T, ctx context.Context, a chromedp.Action[T]) T {
	t.Helper()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func js[T any](expression string) chromedp.Action[T] { return chromedp.Evaluate[T](expression) }

// goTo, click and shown take an address or a CSS selector.
func goTo(address string) action   { return chromedp.Navigate(address) }
func click(selector string) action { return chromedp.Click(chromedp.CSS(selector)) }
func shown(selector string) action { return chromedp.WaitVisible(chromedp.CSS(selector)) }

func mainText(t *testing.T, ctx context.Context) string {
	t.Helper()
	return get(t, ctx, js[string]("document.querySelector('main').textContent"))
}

// enter lets the browser in as a person does.
func (h *house) enter(ctx context.Context) {
	h.t.Helper()
	do(h.t, ctx, goTo(h.palyra("console", "open", "--print")), click("button.yes"), shown("nav"))
}

// run is js without a value.
func run(expression string) action {
	return func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		_, err = chromedp.Evaluate[bool]("("+expression+", true)")(ctx, t)
		return none, err
	}
}

// see waits until the main part of the page has a text, whatever page that is by then.
func see(text string) action { return until("main", text) }

func until(selector, text string) action {
	look := chromedp.Evaluate[bool](fmt.Sprintf("!!document.querySelector(%q) && document.querySelector(%[1]q).textContent.includes(%[2]q)", selector, text))
	return func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if ok, err := look(ctx, t); err == nil && ok { // an error: the page is about to change
				return none, nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return none, fmt.Errorf("no %q in %s: %w", text, selector, ctx.Err())
			}
		}
	}
}

// TestAnswer: a question comes into an open page by itself, its card says what runs, and a yes by
// keyboard lets exactly that run. The journal's page has the receipt.
func TestAnswer(t *testing.T) {
	h := newHouse(t)
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, see("None waits"))
	over := h.call("touch", "/tmp/hello from the call")
	do(t, ctx, see("/tmp/hello from the call'"), click("article a"), see("May this run?"), see("hello from the call"))
	do(t, ctx, chromedp.Focus(chromedp.CSS("button.yes")), chromedp.KeyEvent("\r"), shown(".said"))
	if status := <-over; status != 0 {
		t.Errorf("the call ended with %d", status)
	}
	do(t, ctx, goTo(h.url+"/console/runs"), click("main tbody a"), see("hello from the call"), see("executed"),
		click(`main a[href^="/console/journal/"]`), see(`"subject"`))
	denied := h.call("touch", "/tmp/not this")
	do(t, ctx, goTo(h.url+"/console/questions"), see("/tmp/not this'"), click("article a"), click("button.no"), shown(".said"))
	if status := <-denied; status != 126 {
		t.Errorf("a denied call ended with %d", status)
	}
}

// hostile are texts that agents may put into a call. None may become an element or look like another.
var hostile = []string{
	`<script>document.title="pwned"</script>`, `"><img src=x onerror="document.title='pwned'">`, "</pre><h1>pwned</h1>", `javascript:document.title='pwned'`,
	"a\u202egpj.sh", "a\u200bb\ufeff", "x\x1b[2Jy", "é\u0301\u0338", "{{.Status}}", "\u3164",
}

func TestHostileText(t *testing.T) {
	h := newHouse(t)
	ctx := browser(t)
	h.enter(ctx)
	over := h.call(append([]string{"touch", "--"}, hostile...)...)
	check := func(where string) {
		t.Helper()
		title, text := get(t, ctx, chromedp.Title()), get(t, ctx, js[string]("document.documentElement.textContent"))
		heads, images, scripts := get(t, ctx, js[int]("document.querySelectorAll('main h1').length")), get(t, ctx, js[int]("document.querySelectorAll('main img').length")),
			get(t, ctx, js[int]("document.querySelectorAll('main script').length"))
		if strings.Contains(title, "pwned") || heads != 1 || images != 0 || scripts != 0 {
			t.Errorf("%s: title %q, %d h1, %d img, %d script", where, title, heads, images, scripts)
		}
		if i := strings.IndexFunc(text, func(c rune) bool {
			return c < ' ' && c != '\n' && c != '\t' || c >= 0x200b && c <= 0x200f || c >= 0x202a && c <= 0x202e || c == 0xfeff || c == 0x3164
		}); i >= 0 {
			t.Errorf("%s: %+q is in the page", where, text[max(0, i-20):min(len(text), i+20)])
		}
	}
	do(t, ctx, see("onerror"))
	check("questions")
	do(t, ctx, click("article a"), see("May this run?"))
	check("question")
	do(t, ctx, chromedp.SendKeys(chromedp.CSS(`input[name=comment]`), `<script>document.title="pwned"</script>`), click("button.no"), shown(".said"))
	check("answered")
	<-over
	do(t, ctx, goTo(h.url+"/console/runs"), click("main tbody a"), see("onerror"))
	check("run")
	do(t, ctx, goTo(h.url+"/console/journal"), click("main tbody a"), see("subject"))
	check("journal entry")
}

// TestWithoutScripts: without scripts each page reads, and a question can be answered.
func TestWithoutScripts(t *testing.T) {
	h := newHouse(t)
	ctx := browser(t)
	h.enter(ctx)
	over := h.call("touch", "/tmp/quiet")
	do(t, ctx, see("quiet")) // by the script
	do(t, ctx, send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}), goTo(h.url+"/console/questions"), click("article a"), shown("button.yes"),
		click("button.yes"), shown(".said"))
	if status := <-over; status != 0 {
		t.Errorf("the call ended with %d", status)
	}
}

// TestStrangers: pages of others can neither frame the console nor send its forms, the cookie alone
// isn't enough for another user's process, and a code is good for one browser and once.
func TestStrangers(t *testing.T) {
	h := newHouse(t)
	address := h.palyra("console", "open", "--print")
	first, second := browser(t), browser(t)
	if os.Geteuid() == 0 { // the address is in a browser's arguments, which every user may read
		out, err := exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "curl", "-s", "-o", os.DevNull, "-w", "%{http_code}", address).CombinedOutput()
		if err != nil || string(out) != "401" {
			t.Errorf("another user with the code: %s, %v", out, err)
		}
	}
	do(t, first, goTo(address), shown("button.yes"))
	do(t, second, goTo(address), shown("main"))
	text := mainText(t, second)
	if !strings.Contains(text, "palyra console open") || strings.Contains(text, "gets a token") {
		t.Errorf("a second browser with the code sees %q", text)
	}
	do(t, first, click("button.yes"), shown("nav"))
	do(t, first, goTo(address), shown("main"))
	text = mainText(t, first)
	if strings.Contains(text, "gets a token") {
		t.Errorf("a spent code shows %q", text)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0") // another port is the same site for cookies
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := serveEvil(t, l, h.url)
	evil := fmt.Sprintf("http://localhost:%d/", l.Addr().(*net.TCPAddr).Port)
	do(t, first, goTo(evil), shown("body"))
	framed := get(t, first, js[bool](`(() => { try { return document.querySelector('iframe').contentDocument.querySelector('nav') !== null } catch { return false } })()`))
	if framed {
		t.Error("the console is in a frame of another page")
	}
	do(t, first, run("document.querySelector('#send').click()"), until("body", "cross-origin"))
	if st := h.palyra("status"); strings.Contains(st, "stopped") {
		t.Errorf("another page's form stopped palyrad:\n%s", st)
	}
	cookie := <-got
	if !strings.Contains(cookie, "__Host-palyra-") {
		t.Fatalf("control: another port got %q: the case proves nothing", cookie)
	}
	for uid, want := range map[string]string{"0": "200", "65534": "401"} {
		if os.Geteuid() != 0 {
			t.Log("another user's process is tried as root alone")
			break
		}
		out, err := exec.Command("setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "curl", "-s", "-o", os.DevNull, "-w", "%{http_code}", "-H", "Cookie: "+cookie, h.url+"/console/questions").CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("uid %s with the stolen cookie: %s, %v; want %s", uid, out, err, want)
		}
		_, token, _ := strings.Cut(cookie, "=")
		out, err = exec.Command("setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "curl", "-s", "-o", os.DevNull, "-w", "%{http_code}", "-H", "Authorization: Bearer "+token, h.url+"/api/v1/status").CombinedOutput()
		if err != nil || string(out) != "401" {
			t.Errorf("uid %s with the stolen cookie's token at the API: %s, %v", uid, out, err)
		}
	}
}

// serveEvil serves a page that frames the console and sends its form, and returns the first cookies
// that came.
func serveEvil(t *testing.T, l net.Listener, console string) <-chan string {
	got := make(chan string, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			for {
				line, err := r.ReadString('\n')
				if err != nil || line == "\r\n" {
					break
				}
				if v, ok := strings.CutPrefix(line, "Cookie: "); ok {
					select {
					case got <- strings.TrimSpace(v):
					default:
					}
				}
			}
			body := fmt.Sprintf(`<body><iframe src="%[1]s/console/questions"></iframe><form method="post" action="%[1]s/console/stop"><button id="send">x</button></form>`, console)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
			c.Close()
		}
	}()
	return got
}

// TestLeave: leaving revokes the browser's token, and so does revoking it elsewhere.
func TestLeave(t *testing.T) {
	h := newHouse(t)
	ctx := browser(t)
	h.enter(ctx)
	do(t, ctx, click(`form[action="/console/leave"] button`), see("palyra console open"))
	do(t, ctx, goTo(h.url+"/console/runs"), shown("main"))
	text := mainText(t, ctx)
	if !strings.Contains(text, "palyra console open") {
		t.Errorf("after leaving: %q", text)
	}
	if out := h.palyra("token", "ls", "--json"); strings.Contains(out, `"active"`) {
		t.Errorf("the token is still active: %s", out)
	}
}

// TestPictures takes a picture of each page, wide and narrow, and holds that none is wider than its
// window.
func TestPictures(t *testing.T) {
	h := newHouse(t)
	ctx := browser(t)
	h.enter(ctx)
	over := h.call("touch", "/tmp/one file", "/tmp/and another")
	do(t, ctx, see("and another"), click("article a"), see("May this run?"))
	question := get(t, ctx, chromedp.Location())
	shoot := func(name, at string) {
		t.Helper()
		for _, width := range []int64{360, 1440} {
			for _, dark := range []string{"light", "dark"} {
				do(t, ctx, chromedp.EmulateViewport(width, 900), send(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: dark}}}), goTo(at), shown("main h1"))
				if wide := get(t, ctx, js[int64]("document.documentElement.scrollWidth")); wide > width {
					t.Errorf("%s is %d wide in a window of %d", name, wide, width)
				}
				if *pictures == "" {
					continue
				}
				png := get(t, ctx, chromedp.CaptureScreenshot())
				if err := os.WriteFile(filepath.Join(*pictures, fmt.Sprintf("%s-%d-%s.png", name, width, dark)), png, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	shoot("questions", h.url+"/console/questions")
	shoot("question", question)
	do(t, ctx, goTo(question), click("button.yes"), shown(".said"))
	<-over
	do(t, ctx, goTo(h.url+"/console/runs"), click("main tbody a"), see("executed"))
	run := get(t, ctx, chromedp.Location())
	for name, at := range map[string]string{"run": run, "runs": h.url + "/console/runs", "changes": h.url + "/console/changes", "journal": h.url + "/console/journal",
		"entry": h.url + "/console/journal/2", "access": h.url + "/console/access", "host": h.url + "/console/host"} {
		shoot(name, at)
	}
}

package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
)

// house is a palyrad of the test's own, with the built-in policies, which ask about touch, and whose
// user may answer their own questions.
type house struct {
	t      testing.TB
	bin    string
	socket string
	url    string
	config string
	pid    int
	stop   func() // ends palyrad; start begins another
}

// more add to its configuration.
func newHouse(t testing.TB, more ...func(bin string) string) *house {
	t.Helper()
	return newHouseIn(t, t.TempDir(), more...)
}

// newHouseIn is newHouse in a directory of the caller's: more may work on its folder "state".
func newHouseIn(t testing.TB, dir string, more ...func(bin string) string) *house {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "palyrad")); err != nil {
		t.Fatalf("%v: make build makes it", err)
	}
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
	h.config = filepath.Join(dir, "palyrad.toml")
	text := fmt.Sprintf("[state]\ndir = %q\n[listen]\nsocket = %q\nhttp = %q\n[workspaces.src]\npath = %q\nstaged = true\n[approvals]\nallow_self = true\n",
		filepath.Join(dir, "state"), h.socket, at.String(), filepath.Join(dir, "src"))
	for _, f := range more {
		text += f(bin)
	}
	if err := os.WriteFile(h.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	return h
}

// start begins palyrad and returns when it's ready.
func (h *house) start() {
	h.t.Helper()
	t := h.t
	cmd := exec.Command(filepath.Join(h.bin, "palyrad"), "--config", h.config)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.pid = cmd.Process.Pid
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
		if err := s.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
			fmt.Fprintln(&log, err)
		}
		close(ready)
	}()
	h.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		for range ready {
		}
		if t.Failed() {
			t.Logf("palyrad: %v\n%s", err, log.String())
		}
	})
	t.Cleanup(h.stop)
	if !<-ready {
		t.Fatal("palyrad ended")
	}
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

// browser returns a Chromium with a profile of its own: where it's installed, the one that has pages
// and nothing around them, which takes a third of the time to start.
func browser(t testing.TB, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	if shell, err := exec.LookPath("chromium-headless-shell"); err == nil {
		more = append(more, chromedp.ExecPath(shell))
	}
	return wholeBrowser(t, more...)
}

// wholeBrowser has notifications and apps, too. As root it can't be a sandbox of its own.
func wholeBrowser(t testing.TB, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	alloc, stop := chromedp.NewExecAllocator(t.Context(), append(more, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.Headless, chromedp.NoSandbox,
		chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1440, 1000))...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("%v: apt install chromium", err)
	}
	ctx, end := context.WithTimeout(ctx, 5*time.Minute) // of a test that hangs
	t.Cleanup(end)
	return ctx
}

func do(t testing.TB, ctx context.Context, actions ...action) {
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

func get[T any](t testing.TB, ctx context.Context, a chromedp.Action[T]) T {
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
func shown(selector string) action { return chromedp.WaitVisible(chromedp.CSS(selector)) }

// click waits until the page is whole: before that it moves under the pointer. It looks again for an
// element that a script has replaced meanwhile.
func click(selector string) action {
	whole := chromedp.Evaluate[bool]("document.readyState === 'complete'")
	press := chromedp.Click(chromedp.CSS(selector))
	return func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if ok, err := whole(ctx, t); err == nil && ok { // an error: the page is about to change
				if _, err = press(ctx, t); err == nil || !strings.Contains(err.Error(), "Could not find node") {
					return none, err
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return none, fmt.Errorf("click on %s: %w", selector, ctx.Err())
			}
		}
	}
}

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

// follow clicks what leads to another page, and waits until that is whole.
func follow(selector string) action {
	mark, press := run("document.documentElement.dataset.left = ''"), click(selector)
	there := holds("another page", "document.readyState === 'complete' && document.documentElement.dataset.left === undefined")
	return func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		for _, a := range []action{mark, press, there} {
			if _, err = a(ctx, t); err != nil {
				break
			}
		}
		return none, err
	}
}

// see waits until the main part of the page has a text, whatever page that is by then.
func see(text string) action { return until("main", text) }

func until(selector, text string) action {
	return holds(fmt.Sprintf("%q in %s", text, selector),
		fmt.Sprintf("!!document.querySelector(%q) && document.querySelector(%[1]q).textContent.includes(%[2]q)", selector, text))
}

// holds waits until a condition does, which has a name.
func holds(what, condition string) action {
	look := chromedp.Evaluate[bool](condition)
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
				return none, fmt.Errorf("no %s: %w", what, ctx.Err())
			}
		}
	}
}

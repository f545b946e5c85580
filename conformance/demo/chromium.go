package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// chromium is a headless Chromium with a profile of its own. It's asked over two pipes, with
// messages of the DevTools Protocol that a zero byte ends (--remote-debugging-pipe): no port of
// the host is open meanwhile. Owned by its user.
type chromium struct {
	cmd     *exec.Cmd
	profile string
	out     *os.File // to its descriptor 3
	in      *os.File // from its descriptor 4
	lines   *bufio.Reader
	id      int
	page    string // id of the protocol's session with the page
}

// findChromium returns the path of an installed Chromium, "" if there is none.
func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// startChromium starts one with an empty page. It ends with ctx, which has a deadline.
func (d *demo) startChromium(ctx context.Context, path string) (_ *chromium, err error) {
	c := &chromium{profile: filepath.Join(d.dir, "chromium")}
	if err := os.Mkdir(c.profile, 0o700); err != nil {
		return nil, err
	}
	argv := []string{path, "--headless", "--remote-debugging-pipe", "--user-data-dir=" + c.profile, "--window-size=1000,1400", "--no-first-run",
		"--disable-gpu", "--disable-dev-shm-usage", "--disable-breakpad", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"}
	if os.Geteuid() == 0 {
		argv = append(argv, "--no-sandbox") // its own: root can't have it
	}
	c.cmd = d.command(ctx, d.dir, argv...)
	c.cmd.Env = append(c.cmd.Env, "TMPDIR="+c.profile)
	c.cmd.Cancel = func() error { return killSession(c.cmd.Process.Pid) }
	log, err := os.Create(filepath.Join(d.dir, "chromium.log")) // not a pipe: its end isn't waited for
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd.Stderr = log
	from, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer from.Close()
	in, to, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	defer to.Close()
	c.out, c.in, c.lines, c.cmd.ExtraFiles = out, in, bufio.NewReader(in), []*os.File{from, to}
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(err, out.Close(), in.Close())
	}
	deadline, _ := ctx.Deadline()
	err = errors.Join(out.SetDeadline(deadline), in.SetDeadline(deadline), to.Close()) // with that, its end ends the reading
	var target struct{ TargetID string }
	var session struct{ SessionID string }
	if err == nil {
		err = c.ask("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	}
	if err == nil {
		err = c.ask("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	}
	if err != nil {
		c.close()
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w: %s", err, lastLines(string(said), 3))
	}
	c.page = session.SessionID
	return c, nil
}

// close ends the browser with all its processes, and removes its profile.
func (c *chromium) close() {
	_ = c.ask("Browser.close", nil, nil) // with a profile that's whole; killSession ends it in any case
	c.out.Close()
	c.in.Close()
	ended := time.AfterFunc(5*time.Second, func() { _ = killSession(c.cmd.Process.Pid) })
	_ = c.cmd.Wait()
	ended.Stop()
	_ = killSession(c.cmd.Process.Pid) // those of its processes that are left
	_ = os.RemoveAll(c.profile)
}

// ask sends a command and decodes its result. Events are passed over.
func (c *chromium) ask(method string, params, result any) error {
	c.id++
	m := map[string]any{"id": c.id, "method": method}
	if params != nil {
		m["params"] = params
	}
	if c.page != "" && method != "Browser.close" {
		m["sessionId"] = c.page
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := c.out.Write(append(b, 0)); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	for {
		b, err := c.lines.ReadBytes(0)
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		switch err := json.Unmarshal(bytes.TrimSuffix(b, []byte{0}), &answer); {
		case err != nil:
			return fmt.Errorf("%s: %w", method, err)
		case answer.ID != c.id:
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", method, answer.Error.Message)
		case result == nil:
			return nil
		default:
			return json.Unmarshal(answer.Result, result)
		}
	}
}

// goTo opens an address in the page.
func (c *chromium) goTo(address string) error {
	var r struct{ ErrorText string }
	err := c.ask("Page.navigate", map[string]any{"url": address}, &r)
	if err == nil && r.ErrorText != "" {
		err = errors.New(r.ErrorText)
	}
	return err
}

// place is where an element is in the window.
type place struct{ X, Y float64 }

// shown waits for an element and returns its middle, in view.
func (c *chromium) shown(ctx context.Context, selector string) (at place, err error) {
	q, err := json.Marshal(selector)
	if err != nil {
		return at, err
	}
	look := map[string]any{"returnByValue": true, "expression": `(() => {
		const e = document.readyState === 'complete' && document.querySelector(` + string(q) + `);
		if (!e) return null;
		e.scrollIntoView({block: 'center', behavior: 'instant'});
		const r = e.getBoundingClientRect();
		return r.width ? {x: r.x + r.width / 2, y: r.y + r.height / 2} : null;
	})()`}
	for {
		var r struct{ Result struct{ Value *place } }
		if err := c.ask("Runtime.evaluate", look, &r); err == nil && r.Result.Value != nil { // an error: the page is about to change
			return *r.Result.Value, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return at, fmt.Errorf("no %s in the page: %w", selector, ctx.Err())
		}
	}
}

// click waits for an element and clicks it with the mouse.
func (c *chromium) click(ctx context.Context, selector string) error {
	at, err := c.shown(ctx, selector)
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		if err == nil {
			err = c.ask("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}, nil)
		}
	}
	return err
}

// picture writes what the window shows into a file, as PNG.
func (c *chromium) picture(file string) error {
	var r struct{ Data []byte }
	if err := c.ask("Page.captureScreenshot", map[string]any{"format": "png"}, &r); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, r.Data, 0o644)
}

// authenticator gives the page a passkey holder of software, whose person is there and verified.
func (c *chromium) authenticator() error {
	err := c.ask("WebAuthn.enable", map[string]any{}, nil)
	if err == nil {
		err = c.ask("WebAuthn.addVirtualAuthenticator", map[string]any{"options": map[string]any{"protocol": "ctap2", "transport": "internal",
			"hasResidentKey": true, "hasUserVerification": true, "automaticPresenceSimulation": true, "isUserVerified": true}}, nil)
	}
	return err
}

// inBrowser has a person add a passkey on the console's page and answer a question with it, by the
// mouse.
func (p *daemon) inBrowser(ctx context.Context, path string, ask *request) error {
	ctx, cancel := context.WithTimeout(ctx, 25*time.Second)
	defer cancel()
	c, err := p.startChromium(ctx, path)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.authenticator(); err != nil {
		return err
	}
	argv := []string{p.palyra, "console", "open", "--print", "--socket", p.socket}
	fmt.Fprintf(p.out, "     # %s\n", p.spell(argv))
	r := p.quiet(ctx, argv...) // its address has a code
	if r.status != 0 {
		return errors.New(r.stderr)
	}
	if err := c.goTo(strings.TrimSpace(r.stdout)); err != nil {
		return err
	}
	fmt.Fprintln(p.out, "       (the person clicks Enter, adds a passkey, and clicks the question and Yes, with a passkey)")
	question := "/console/questions/" + ask.ID
	yes := fmt.Sprintf("form[action=%q] button.yes", question)
	for _, selector := range []string{`form[action="/enter"] button`, `a[href="/console/access"]`, `a[href="/console/access/passkey"]`, "input[name=name]"} {
		if err := c.click(ctx, selector); err != nil {
			return err
		}
	}
	if err := c.ask("Input.insertText", map[string]any{"text": "this machine"}, nil); err != nil {
		return err
	}
	if err := c.click(ctx, "#passkey button"); err != nil {
		return err
	}
	if _, err := c.shown(ctx, ".said"); err != nil { // it's added
		return err
	}
	for _, selector := range []string{`a[href="/console/questions"]`, fmt.Sprintf("a[href=%q]", question)} {
		if err := c.click(ctx, selector); err != nil {
			return err
		}
	}
	if _, err := c.shown(ctx, yes); err != nil {
		return err
	}
	if err := c.picture(p.picture); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "       | the page with the question: %s\n", p.picture)
	if err := c.click(ctx, yes); err != nil {
		return err
	}
	_, err = c.shown(ctx, ".said")
	return err
}

package console

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

var pictures = flag.String("pictures", "", "write a picture of each page into this directory")

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
	t.Parallel()
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

// picture is what the window shows, as WebP: a page takes 20 KB.
func picture(ctx context.Context, tab *chromedp.Target) ([]byte, error) {
	quality := int64(80)
	r, err := cdp.Call(ctx, tab, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: &quality})
	return r.Data, err
}

// TestPictures holds that no page, narrow or wide, light or dark, is wider than its window, and that
// axe-core finds nothing serious against one. make pictures has it take their pictures, too.
func TestPictures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHouseIn(t, dir, vaulted(t, dir), func(string) string { return "[models.first]\nprovider = \"scripted\"\n" })
	ctx := browser(t)
	// look judges the open page, and takes its picture if it has a name.
	look := func(name string) {
		t.Helper()
		at := get(t, ctx, chromedp.Location())
		for _, width := range []int64{360, 1440} {
			for _, scheme := range []string{"light", "dark"} {
				do(t, ctx, chromedp.EmulateViewport(width, 900), send(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
				if wide := get(t, ctx, js[int64]("document.documentElement.scrollWidth")); wide > width {
					t.Errorf("%s is %d wide in a window of %d", at, wide, width)
				}
				for _, f := range axe(t, ctx) {
					t.Errorf("%s, %d, %s: %s, %s: %s: %+v", at, width, scheme, f.Impact, f.ID, f.Help, f.Nodes)
				}
				if *pictures == "" || name == "" {
					continue
				}
				file := get(t, ctx, picture)
				if err := os.WriteFile(filepath.Join(*pictures, fmt.Sprintf("%s-%d-%s.webp", name, width, scheme)), file, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	shoot := func(name, at string) {
		t.Helper()
		do(t, ctx, goTo(at), shown("main h1"))
		look(name)
	}
	do(t, ctx, goTo(h.url+"/console/questions"), shown("main h1"), run("document.querySelector('main').append(new Image())"))
	if found := axe(t, ctx); len(found) != 1 || found[0].ID != "image-alt" {
		t.Errorf("control: of an image without a text axe says %+v", found)
	}
	shoot("", h.url+"/console/questions") // of a stranger
	do(t, ctx, goTo(h.palyra("console", "open", "--print")), shown("main h1"))
	look("")
	h.enter(ctx)
	over := h.call("touch", "/tmp/one file", "/tmp/and another")
	do(t, ctx, see("and another"), click("article a"), see("May this run?"))
	question := get(t, ctx, chromedp.Location())
	shoot("questions", h.url+"/console/questions")
	shoot("question", question)
	do(t, ctx, goTo(question), click("button.yes"), shown(".said"))
	<-over
	do(t, ctx, goTo(h.url+"/console/runs"), click("main tbody a"), see("executed"))
	run := get(t, ctx, chromedp.Location())
	shoot("run", run)
	for _, name := range []string{"runs", "agent", "changes", "receipts", "policy", "secrets", "hosts", "access", "journal", "host"} {
		shoot(name, h.url+"/console/"+name)
	}
	h.palyra("memory", "add", "Releases are built by make dist.", "--tag", "build")
	h.palyra("call", "memory.retain", `{"text":"The tests of the parser take a minute."}`)
	do(t, ctx, goTo(h.url+"/console/memory"), click("button.yes"), see("make dist"))
	look("memory")
	shoot("entry", h.url+"/console/journal/2")
	do(t, ctx, goTo(run), click(`main a[href^="/console/receipts/"]`), see("Verified by palyrad"))
	shoot("receipt", get(t, ctx, chromedp.Location()))
	for _, name := range []string{"access/passkey", "policy/try", "changes/none"} {
		shoot("", h.url+"/console/"+name)
	}
	shoot("", run+"/output/0")
	shoot("", question)
	for _, act := range []string{"journal/verify", "policy/test"} {
		place, _, _ := strings.Cut(act, "/")
		do(t, ctx, goTo(h.url+"/console/"+place), follow(fmt.Sprintf("form[action=%q] button", "/console/"+act)), shown("main h1"))
		look("")
	}
	do(t, ctx, goTo(h.url+"/console/policy"), follow(`main a[href^="/console/policy/sets/"]`), shown("main h1"))
	look("")
	do(t, ctx, goTo(h.url+"/console/policy"), follow(`main a[href^="/console/policy/decisions/"]`), shown("main h1"))
	look("")
}

package console

import (
	"bufio"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestPairing: a device comes with the code that a page shows, its digits are typed into another
// that says by itself that it came, and Access has it. Other digits end a pairing.
func TestPairing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close() // palyrad takes it
	h := newHouse(t, func(string) string { return "[pairing]\nlisten = \"" + at + "\"\n" })
	ctx := browser(t)
	h.enter(ctx)
	pair := func(id string, digits func(string) string) (came error) {
		t.Helper()
		do(t, ctx, goTo(h.url+"/console/access"), click(`form[action="/console/access/pairings"] button`), see("The code is shown once"))
		words := strings.Fields(get(t, ctx, js[string](`document.querySelector("main pre").textContent`)))
		dir := filepath.Join(t.TempDir(), id)
		for i, w := range words {
			words[i] = strings.NewReplacer("DIRECTORY", dir, "NAME", id).Replace(w)
		}
		do(t, ctx, click(`main p a`), see("No device has come"))
		device := h.command() // without the socket: it's another machine
		device.Args = append([]string{"palyra"}, words[1:]...)
		says, err := device.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := device.Start(); err != nil {
			t.Fatal(err)
		}
		shows := ""
		for s := bufio.NewScanner(says); shows == "" && s.Scan(); {
			if d, ok := strings.CutPrefix(s.Text(), "digits"); ok {
				shows = strings.Join(strings.Fields(d), " ")
			}
		}
		do(t, ctx, see("six digits that the device shows"), chromedp.SendKeys(chromedp.CSS("input[name=digits]"), digits(shows)), click("button.yes"))
		return device.Wait()
	}
	if err := pair("laptop", func(d string) string { return d }); err != nil {
		t.Errorf("the device: %v", err)
	}
	do(t, ctx, see("the pairing is completed"), goTo(h.url+"/console/access"), see("laptop"), see("All are on"))
	wide(t, ctx)
	wrong := func(d string) string { return string('0'+(d[0]-'0'+1)%10) + d[1:] }
	if err := pair("stranger", wrong); err == nil {
		t.Error("a device is paired by other digits")
	}
	do(t, ctx, goTo(h.url+"/console/access"), see("Devices"))
	if text := get(t, ctx, js[string]("document.body.innerText")); strings.Contains(text, "stranger") {
		t.Errorf("the other device is there:\n%s", text)
	}
}

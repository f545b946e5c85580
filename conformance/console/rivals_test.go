package console

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestTwoBrowsers: a question that one browser answers says so in the others at once, also where a form
// was being filled in. The answer of such a form is refused by name and changes nothing.
func TestTwoBrowsers(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	defer h.quit()
	one, other, third := browser(t), browser(t), browser(t)
	h.enter(one)
	h.enter(other)
	h.enter(third)
	over := h.call("touch", "/tmp/asked of all")
	do(t, one, see("asked of all"), click("article a"), shown("button.yes"))
	at := get(t, one, chromedp.Location())
	do(t, other, goTo(at), shown("button.yes"))
	do(t, third, goTo(at), shown("button.yes"))
	fed(t, other)
	fed(t, third)
	do(t, other, chromedp.SendKeys(chromedp.CSS("input[name=comment]"), "I think"))
	before := get(t, third, js[int](asked))
	do(t, one, click("button.no"), shown(".said"))
	answered := time.Now()
	do(t, other, until("#note", "Question, denied. Reload it"))
	do(t, third, see("Question, denied"), see("over console"))
	if took, n := time.Since(answered), get(t, third, js[int](asked))-before; took > 10*time.Second || n > 4 {
		t.Errorf("it took %v and %d requests: that's the page's own asking", took, n)
	}
	if status := <-over; status != 126 {
		t.Errorf("the call ended with %d", status)
	}
	if v := get(t, other, js[string]("document.querySelector('input[name=comment]').value")); v != "I think" {
		t.Errorf("the form was taken away: %q", v)
	}
	do(t, other, click("button.yes"), see("version_conflict"))
	do(t, other, goTo(at), see("Question, denied"))
	if q := h.questions(); len(q) != 1 || q[0] != "denied" {
		t.Errorf("the questions are %q", q)
	}
}

// questions returns the states of all of them, newest first.
func (h *house) questions() (states []string) {
	h.t.Helper()
	var list struct{ Items []struct{ State string } }
	if err := json.Unmarshal([]byte(h.ask("GET", "/api/v1/approvals", "")), &list); err != nil {
		h.t.Fatal(err)
	}
	for _, a := range list.Items {
		states = append(states, a.State)
	}
	return states
}

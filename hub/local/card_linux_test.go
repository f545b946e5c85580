package local

import (
	"strings"
	"testing"

	"palyra/hub"
)

// TestCardShowsInput: who answers sees what the program will read, with the
// digest that it is bound to, and nothing in it can draw on the terminal.
func TestCardShowsInput(t *testing.T) {
	h := newHouse(t, nil)
	r := h.start(h.owner, appendTo("first\n\x1b[2Jsecond"))
	h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
	q := h.question(h.owner)
	if c := q.Card; c.StdinDigest.IsZero() || c.StdinSize == 0 || !strings.Contains(c.StdinText, "second") || strings.Contains(c.StdinText, "\x1b") {
		t.Errorf("the card has %q, %d bytes, %s", c.StdinText, c.StdinSize, c.StdinDigest)
	}
	if !strings.Contains(q.Text, q.Card.StdinText) || !strings.Contains(q.Text, q.Card.StdinDigest.String()) || strings.Contains(q.Text, "\x1b") {
		t.Errorf("the text is %q", q.Text)
	}
	if _, err := hub.CancelRun.Do(t.Context(), h, h.owner, r.ID); err != nil {
		t.Fatal(err)
	}
}

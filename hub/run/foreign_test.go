package run

import (
	"strings"
	"testing"
	"time"

	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// TestForeignSessionTold: a start in another's session is refused in the words for
// one that does not exist.
func TestForeignSessionTold(t *testing.T) {
	h := open(t, nil)
	none := ident.New(ident.Session)
	start := func(session string) string {
		_, err := h.Start(t.Context(), Request{User: "uid:1001", Session: session, Steps: steps("x")})
		if fault.ReasonOf(err) != "no_such_session" {
			t.Fatal(err)
		}
		return err.Error() + "\n" + fault.HintOf(err)
	}
	if got, want := strings.ReplaceAll(start(h.sess), h.sess, none), start(none); got != want {
		t.Errorf("%s for another's, %s for none", got, want)
	}
}

// TestForeignSession: starts in another's session take no place in its line, not
// even while the store is at work.
func TestForeignSession(t *testing.T) {
	h := open(t, func(c *Config) { c.Bounds.Line = 2; c.Bounds.Each = 100 })
	blocked, free := make(chan struct{}), make(chan struct{})
	writer := make(chan error, 1)
	go func() {
		writer <- h.st.Update(t.Context(), func(*store.Tx) error { close(blocked); <-free; return nil })
	}()
	<-blocked
	const bobs = 8
	refused := make(chan error, bobs)
	for range bobs {
		go func() {
			_, err := h.Start(t.Context(), Request{User: "uid:1001", Session: h.sess, Steps: steps("x")})
			refused <- err
		}()
	}
	for range bobs {
		select {
		case err := <-refused:
			if fault.ReasonOf(err) != "no_such_session" {
				t.Errorf("a start in another's session: %v", err)
			}
		case <-time.After(time.Minute): // it stands in the line and waits for the store
			t.Error("a start in another's session waits for the store")
		}
		if t.Failed() {
			break
		}
	}
	own := make(chan error, 1)
	go func() {
		_, err := h.Start(t.Context(), Request{User: alice, Session: h.sess, Steps: steps("x")})
		own <- err
	}()
	close(free)
	if err := <-own; err != nil {
		t.Errorf("a start in one's own session: %v", err)
	}
	if err := <-writer; err != nil {
		t.Error(err)
	}
}

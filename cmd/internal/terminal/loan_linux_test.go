package terminal

import (
	"testing"
	"time"
)

// TestLoanUntaken: a loan that waits for a terminal, which another process has for a question, is
// returned at once, and an exit meanwhile leaves the terminal's modes alone.
func TestLoanUntaken(t *testing.T) {
	s := newScreen(t)
	asker, err := Open(t.Context(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer asker.Close()
	tty := s.open(t)
	before, err := modesOf(tty)
	if err != nil {
		t.Fatal(err)
	}
	l := Lend(t.Context(), tty, Guard(t.Context(), tty), false)
	if l == nil || !l.Keys() {
		t.Fatalf("no loan of a terminal: %+v", l)
	}
	taken := make(chan error)
	go func() { taken <- l.Take() }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for l.mu.TryLock() { // until it waits
		l.mu.Unlock()
		<-tick.C
	}
	l.Rescue()
	if now, err := modesOf(tty); err != nil || now != before {
		t.Errorf("an exit left the modes %+v, %v; want %+v", now, err, before)
	}
	returned := make(chan struct{})
	go func() { l.Return(); close(returned) }()
	if err := <-taken; err == nil {
		t.Error("it took a terminal that another has")
	}
	<-returned
	if _, err := l.Write([]byte("x")); err == nil {
		t.Error("it writes when it's over")
	}
}

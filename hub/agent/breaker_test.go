package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"palyra/agentloop/turn"
)

// TestBreaker: after three failures in a row a provider is left alone for half a minute, after one
// more again, and an answer ends that. Failures that aren't the provider's don't count.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		down, key := &turn.Error{Class: turn.Transient}, &turn.Error{Class: turn.AuthInvalid}
		for i, e := range []*turn.Error{down, down, key, down} {
			if !b.rests("a").IsZero() {
				t.Errorf("after %d answers it rests", i)
			}
			b.told("a", e)
		}
		if got := time.Until(b.rests("a")); got != rests || !b.rests("b").IsZero() {
			t.Errorf("it rests for %v", got)
		}
		<-time.After(rests)
		if !b.rests("a").IsZero() {
			t.Error("it rests for longer")
		}
		b.told("a", down)
		if b.rests("a").IsZero() {
			t.Error("it's asked on, and still doesn't answer")
		}
		b.told("a", nil)
		b.told("a", down)
		if !b.rests("a").IsZero() {
			t.Error("an answer doesn't count")
		}
	})
}

// TestBreakerPlaces: a fifth question waits for an answer to another.
func TestBreakerPlaces(t *testing.T) {
	var b breaker
	var leave func()
	for range maxTurns {
		var err error
		if leave, err = b.enter(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.enter(gone, "a"); err == nil {
		t.Error("a fifth is asked")
	}
	if _, err := b.enter(t.Context(), "b"); err != nil {
		t.Errorf("another provider: %v", err)
	}
	leave()
	leave()
	if _, err := b.enter(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if _, err := b.enter(gone, "a"); err == nil {
		t.Error("what left twice gave two places")
	}
}

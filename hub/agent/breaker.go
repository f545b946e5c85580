package agent

import (
	"context"
	"sync"
	"time"

	"palyra/agentloop/turn"
)

// The bounds of turns at one provider, of all runs together.
const (
	maxTurns   = 4 // at a time
	tripsAfter = 3 // failures in a row
	rests      = 30 * time.Second
)

// breaker leaves providers alone that don't answer, and asks each a few questions at a time. It is
// safe for concurrent use.
type breaker struct {
	mu        sync.Mutex
	providers map[string]*provider // guarded by mu
}

type provider struct {
	places chan struct{} // a token for each turn under way
	failed int           // in a row; guarded by breaker.mu
	until  time.Time     // no turn is sent before; guarded by breaker.mu
}

func (b *breaker) provider(name string) *provider {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.providers[name]
	if p == nil {
		if b.providers == nil {
			b.providers = make(map[string]*provider) // of the configuration's models: few
		}
		p = &provider{places: make(chan struct{}, maxTurns)}
		b.providers[name] = p
	}
	return p
}

// rests returns until when a provider is left alone; the zero time if it isn't.
func (b *breaker) rests(name string) time.Time {
	p := b.provider(name)
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Now().Before(p.until) {
		return p.until
	}
	return time.Time{}
}

// enter waits until a provider may be asked one more question. leave is called when it has
// answered.
func (b *breaker) enter(ctx context.Context, name string) (leave func(), err error) {
	p := b.provider(name)
	select {
	case p.places <- struct{}{}:
		return sync.OnceFunc(func() { <-p.places }), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// told counts an answer. Failures that are the question's, or the key's, say nothing of the
// provider. Behind a rest one failure more is enough for the next.
func (b *breaker) told(name string, e *turn.Error) {
	p := b.provider(name)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case e == nil:
		p.failed, p.until = 0, time.Time{}
	case e.Again():
		if p.failed++; p.failed >= tripsAfter {
			p.until = time.Now().Add(rests)
		}
	}
}

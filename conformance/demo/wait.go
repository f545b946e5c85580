package main

import (
	"bytes"
	"context"
	"sync"
)

// waitFor collects the text written to it and lets a reader wait for a part.
type waitFor struct {
	mu      sync.Mutex
	buf     bytes.Buffer  // guarded by mu
	changed chan struct{} // guarded by mu: closed and replaced at each write
}

func (w *waitFor) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
	return w.buf.Write(b)
}

// wait returns when text was written or ctx is done.
func (w *waitFor) wait(ctx context.Context, text string) {
	for {
		w.mu.Lock()
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		changed, found := w.changed, bytes.Contains(w.buf.Bytes(), []byte(text))
		w.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

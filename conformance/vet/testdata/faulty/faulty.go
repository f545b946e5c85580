// Package faulty has a fault of each kind that vet looks for in its own way.
package faulty

import (
	"context"
	"log"
	"sync"

	"faulty/say"
)

func formats(n int) { say.Sayf("%s", n) }

func copies(mu sync.Mutex) { mu.Lock() }

func leaves(ctx context.Context, n int) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	if n > 0 {
		return ctx
	}
	cancel()
	return ctx
}

// ends has no fault: it doesn't return without a call of cancel.
func ends(ctx context.Context) {
	_, cancel := context.WithCancel(ctx)
	if ctx.Err() != nil {
		log.Fatal("ended")
	}
	cancel()
}

func adds(x int64) int64

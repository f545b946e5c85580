package httpapi

import (
	"sync"
	"time"
)

// buckets are token buckets by key. A key that wasn't seen for as long as its bucket needs
// to fill up is forgotten. When there are too many keys at once, new ones share a bucket,
// so inventing keys makes no client faster.
type buckets struct {
	rate  float64 // a second; not positive: no bound
	burst float64

	mu    sync.Mutex
	m     map[string]*bucket // guarded by mu
	rest  bucket             // guarded by mu; of those that m has no room for
	swept time.Time          // guarded by mu
}

type bucket struct {
	level float64
	at    time.Time
}

// maxBuckets bounds the keys with a bucket of their own.
const maxBuckets = 8192

func newBuckets(rate float64, burst int) *buckets {
	b := &buckets{rate: rate, burst: float64(burst), m: make(map[string]*bucket)}
	b.rest.level = b.burst
	return b
}

// take takes one from the key's bucket. Without one it says how long to wait.
func (b *buckets) take(key string) (wait time.Duration, ok bool) {
	if b.rate <= 0 {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.bucketLocked(key)
	if t.level < 1 {
		return time.Duration((1 - t.level) / b.rate * float64(time.Second)), false
	}
	t.level--
	return 0, true
}

// bucketLocked returns the key's bucket, filled up to now.
func (b *buckets) bucketLocked(key string) *bucket {
	now := time.Now()
	t := b.m[key]
	if t == nil {
		if len(b.m) >= maxBuckets {
			b.sweepLocked(now)
		}
		if len(b.m) >= maxBuckets {
			t = &b.rest
		} else {
			t = &bucket{level: b.burst, at: now}
			b.m[key] = t
		}
	}
	if d := now.Sub(t.at); d > 0 {
		t.level = min(b.burst, t.level+d.Seconds()*b.rate)
		t.at = now
	}
	return t
}

// sweepLocked forgets full buckets, at most once a second.
func (b *buckets) sweepLocked(now time.Time) {
	if now.Sub(b.swept) < time.Second {
		return
	}
	b.swept = now
	for k, t := range b.m {
		if t.level+now.Sub(t.at).Seconds()*b.rate >= b.burst {
			delete(b.m, k)
		}
	}
}

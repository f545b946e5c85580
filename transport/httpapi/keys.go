package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// Keys remembers the answers to requests with an Idempotency-Key, for operations whose keys
// the hub doesn't keep itself, as it does for runs and calls. Call Begin, then either
// Finish or Abandon.
type Keys interface {
	// Begin reserves a key for a request. It returns the recorded answer if the same
	// request came before. One that is still under way is fault.Busy
	// "locked", another request with the key is fault.Usage
	// "idempotency_key_reused". A principal that has used up its quota gets no new key, but
	// still the answers of its old ones.
	Begin(ctx context.Context, principal, key string, request canon.Digest) (answer []byte, err error)
	// Finish records the answer.
	Finish(ctx context.Context, principal, key string, answer []byte) error
	// Abandon gives back a key whose request changed nothing.
	Abandon(ctx context.Context, principal, key string) error
}

// once calls do, once for a key: the second time it repeats the first answer. keep returns
// the part of the answer to record; nil: all of it.
func (x *exchange) once(do func() (answer any, keep any, err error)) (any, []byte, error) {
	ctx, who := x.r.Context(), x.caller.User
	key := x.rt.ID + " " + x.key
	had, err := x.s.cfg.Keys.Begin(ctx, who, key, x.digest())
	if err != nil || had != nil {
		return nil, had, err
	}
	// From here on the key is answered or given back, even if the client goes: a reserved
	// one is kept for a day, and doesn't tell the outcome.
	ctx = context.WithoutCancel(ctx)
	work, cancel := context.WithTimeout(ctx, onceTime)
	defer cancel()
	defer func(r *http.Request) { x.r = r }(x.r)
	x.r = x.r.WithContext(work) // which do asks for
	v, keep, err := do()
	if err != nil {
		// An error that may have come after the effect leaves the key reserved.
		if mayHaveHappened(err) {
			return nil, nil, err
		}
		return nil, nil, errors.Join(err, x.s.cfg.Keys.Abandon(ctx, who, key))
	}
	if keep == nil {
		keep = v
	}
	b, err := encode(keep)
	if err != nil {
		return nil, nil, err
	}
	if err := x.s.cfg.Keys.Finish(ctx, who, key, b); err != nil {
		x.s.log.Error("answer not recorded under its key", "request", idOf(x.r), "operation", x.rt.ID, "error", err)
	}
	return v, nil, nil
}

// onceTime bounds a request with a key, even if its client has gone. It is longer than the
// journal waits for another process that holds it.
const onceTime = time.Minute

// mayHaveHappened reports whether err may have come after the request took effect. A
// refusal at the door came before it, and leaves no key behind: keys are kept for a day.
func mayHaveHappened(err error) bool {
	switch fault.KindOf(err) {
	case fault.Internal, fault.Timeout, fault.Canceled:
		return true
	case fault.Unavailable:
		return !slices.ContainsFunc(atTheDoor, func(c fault.Code) bool { return errors.Is(err, c) })
	}
	return false
}

// atTheDoor are the refusals of a daemon that has no room now, or takes nothing.
var atTheDoor = []fault.Code{fault.ErrNotReady, fault.ErrSafeMode, fault.ErrDiskLow, fault.ErrQuota, fault.ErrBudget}

// digest names the request: the same operation on the same thing with the same body.
func (x *exchange) digest() canon.Digest {
	return canon.Sum([]byte(x.rt.Method + "\n" + x.r.URL.EscapedPath() + "\n" + string(x.raw)))
}

// MemoryKeys are Keys that last as long as the process, at most a day.
type MemoryKeys struct {
	mu sync.Mutex
	m  map[string]*memoryKey // guarded by mu
}

type memoryKey struct {
	request canon.Digest
	answer  []byte // nil: under way
	begun   time.Time
}

// How long a key is kept in memory, and how many are.
const (
	keyLife = 24 * time.Hour
	maxKeys = 16384
)

// NewMemoryKeys returns empty Keys.
func NewMemoryKeys() *MemoryKeys { return &MemoryKeys{m: make(map[string]*memoryKey)} }

var _ Keys = (*MemoryKeys)(nil)

// Begin implements Keys. Too many keys at once are fault.Unavailable.
func (k *MemoryKeys) Begin(_ context.Context, principal, key string, request canon.Digest) ([]byte, error) {
	const op = "begin idempotent request"
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	had := k.m[principal+"\n"+key]
	if had != nil && now.Sub(had.begun) < keyLife {
		switch {
		case had.request != request:
			return nil, fault.New(fault.Usage, "idempotency_key_reused", op, errors.New("the key was used for another request"))
		case had.answer == nil:
			return nil, fault.New(fault.Busy, "locked", op, errors.New("a request with the key is under way"))
		}
		return had.answer, nil
	}
	if len(k.m) >= maxKeys {
		for n, e := range k.m {
			if now.Sub(e.begun) >= keyLife {
				delete(k.m, n)
			}
		}
	}
	if len(k.m) >= maxKeys {
		return nil, fault.New(fault.Unavailable, "queue_full", op, errors.New("too many keys are in use"))
	}
	k.m[principal+"\n"+key] = &memoryKey{request: request, begun: now}
	return nil, nil
}

// Finish implements Keys.
func (k *MemoryKeys) Finish(_ context.Context, principal, key string, answer []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.m[principal+"\n"+key]; e != nil {
		e.answer = answer
	}
	return nil
}

// Abandon implements Keys.
func (k *MemoryKeys) Abandon(_ context.Context, principal, key string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.m, principal+"\n"+key)
	return nil
}

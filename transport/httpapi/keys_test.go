package httpapi

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"palyra/internal/fault"
)

// onceExchange is a request with a key, as far as once looks at it.
func onceExchange(ctx context.Context, keys Keys) *exchange {
	x := &exchange{s: &Server{cfg: Config{Keys: keys}, log: slog.New(slog.DiscardHandler)}, rt: &table()[0], key: "k"}
	x.caller.User = "uid:1"
	x.r = httptest.NewRequest(post, "/", nil).WithContext(ctx)
	return x
}

// TestOnceClientGone: a key whose client goes while its request is under way is
// answered, or given back, and never left reserved.
func TestOnceClientGone(t *testing.T) {
	for _, refused := range []error{nil, fault.New(fault.Busy, "too_many", "create session", nil)} {
		keys := NewMemoryKeys()
		ctx, leave := context.WithCancel(t.Context())
		x := onceExchange(ctx, keys)
		deed := func(x *exchange) func() (any, any, error) {
			return func() (any, any, error) {
				leave()
				if err := x.r.Context().Err(); err != nil {
					// As the hub would, before it does anything.
					return nil, nil, fault.New(fault.Canceled, "canceled", "create session", err)
				}
				return "made", nil, refused
			}
		}
		if _, _, err := x.once(deed(x)); fault.ReasonOf(err) != fault.ReasonOf(refused) {
			t.Errorf("the client went: %v", err)
		}
		if x.r.Context() != ctx {
			t.Error("the request goes on with another context")
		}
		x = onceExchange(t.Context(), keys)
		_, had, err := x.once(deed(x))
		switch {
		case refused == nil && (err != nil || string(had) != "\"made\"\n"):
			t.Errorf("again: %q, %v", had, err)
		case refused != nil && fault.ReasonOf(err) != "too_many":
			t.Errorf("a key that was given back: %v", err)
		}
	}
}

// TestOnceEnds: a request ends even if its client no longer waits.
func TestOnceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		leave()
		x, began := onceExchange(ctx, NewMemoryKeys()), time.Now()
		_, _, err := x.once(func() (any, any, error) {
			<-x.r.Context().Done()
			return nil, nil, fault.New(fault.Timeout, "timeout", "create session", nil)
		})
		if fault.KindOf(err) != fault.Timeout || time.Since(began) != onceTime {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

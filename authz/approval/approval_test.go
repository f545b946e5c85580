package approval

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"palyra/internal/canon"
)

var (
	capsule   = canon.Sum([]byte("capsule"))
	policySet = canon.Sum([]byte("policies"))
	decision  = [16]byte{1, 2, 3}
)

func question() Request {
	return Request{Decision: decision, Capsule: capsule, PolicySet: policySet, Call: Call{Principal: "u", Tool: "process.run"}}
}

// approverFunc is an Approver in a line.
type approverFunc func(ctx context.Context, r Request) (Answer, error)

func (f approverFunc) Ask(ctx context.Context, r Request) (Answer, error) { return f(ctx, r) }

func yes(context.Context, Request) (Answer, error) {
	return Answer{Approved: true, Approver: "bob", Surface: "test"}, nil
}

func TestResolve(t *testing.T) {
	var missing *Terminal
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	tests := []struct {
		name   string
		ctx    context.Context
		a      Approver
		answer string
	}{
		{"yes", context.Background(), approverFunc(yes), Approved},
		{"no", context.Background(), approverFunc(func(context.Context, Request) (Answer, error) {
			return Answer{Approver: "bob", Surface: "test"}, nil
		}), Denied},
		{"nobody", context.Background(), nil, Unreachable},
		{"nil of a type", context.Background(), missing, Unreachable},
		{"error", context.Background(), approverFunc(func(context.Context, Request) (Answer, error) {
			return Answer{}, errors.New("no terminal")
		}), Unreachable},
		{"yes with an error", context.Background(), approverFunc(func(context.Context, Request) (Answer, error) {
			return Answer{Approved: true}, errors.New("half an answer")
		}), Unreachable},
		{"panic", context.Background(), approverFunc(func(context.Context, Request) (Answer, error) { panic("boom") }), Unreachable},
		{"caller gone", canceled, approverFunc(yes), Withdrawn},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := Resolve(test.ctx, test.a, question())
			v := r.View()
			if v.Answer != test.answer || r.Approved() != (test.answer == Approved) {
				t.Errorf("got %q approved %v, want %q", v.Answer, r.Approved(), test.answer)
			}
			if v.Capsule != capsule || v.PolicySet != policySet || v.Scope != ScopeOnce || !strings.HasPrefix(v.ID, "apr_") ||
				v.Decision != "01020300000000000000000000000000" || v.Requested.IsZero() || v.Answered.Before(v.Requested) {
				t.Errorf("record is incomplete: %+v", v)
			}
			if (v.Detail == "") != (test.answer == Approved || test.answer == Denied) {
				t.Errorf("detail %q for %q", v.Detail, v.Answer)
			}
			if err := r.Use(decision, capsule, policySet); (err == nil) != (test.answer == Approved) {
				t.Errorf("Use: %v", err)
			}
		})
	}
}

func TestResolveTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := time.Duration(0)
		slow := approverFunc(func(ctx context.Context, r Request) (Answer, error) {
			asked = r.Timeout
			<-ctx.Done()
			return Answer{Approved: true, Approver: "bob"}, nil // a yes after the end is a no
		})
		for _, test := range []struct{ timeout, want time.Duration }{
			{0, DefaultTimeout}, {-1, DefaultTimeout}, {time.Second, time.Second}, {1000 * time.Hour, MaxTimeout},
		} {
			q := question()
			q.Timeout = test.timeout
			start := time.Now()
			r := Resolve(context.Background(), slow, q)
			if r.View().Answer != Expired || r.Approved() {
				t.Errorf("timeout %v: %+v", test.timeout, r.View())
			}
			if got := time.Since(start); got != test.want || asked != test.want {
				t.Errorf("timeout %v: waited %v, asked with %v, want %v", test.timeout, got, asked, test.want)
			}
			if r.Use(decision, capsule, policySet) == nil {
				t.Error("an expired record is usable")
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if r := Resolve(ctx, slow, question()); r.View().Answer != Expired {
			t.Errorf("the caller's deadline: %+v", r.View())
		}
	})
}

func TestUse(t *testing.T) {
	fresh := func() *Record { return Resolve(context.Background(), approverFunc(yes), question()) }
	other := canon.Sum([]byte("other"))
	for name, test := range map[string]struct {
		r         *Record
		decision  [16]byte
		capsule   canon.Digest
		policySet canon.Digest
		want      error
	}{
		"good":               {fresh(), decision, capsule, policySet, nil},
		"another decision":   {fresh(), [16]byte{9}, capsule, policySet, ErrMismatch},
		"another capsule":    {fresh(), decision, other, policySet, ErrMismatch},
		"another policy set": {fresh(), decision, capsule, other, ErrMismatch},
		"no capsule":         {Resolve(context.Background(), approverFunc(yes), Request{}), [16]byte{}, canon.Digest{}, canon.Digest{}, ErrMismatch},
		"zero":               {new(Record), decision, capsule, policySet, ErrNotApproved},
		"nil":                {nil, decision, capsule, policySet, ErrNotApproved},
	} {
		if err := test.r.Use(test.decision, test.capsule, test.policySet); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
	r := fresh()
	if r.Use([16]byte{9}, capsule, policySet) == nil || r.Use(decision, capsule, policySet) != nil {
		t.Error("a failed use spends the record")
	}
	if err := r.Use(decision, capsule, policySet); !errors.Is(err, ErrUsed) {
		t.Errorf("second use: %v", err)
	}
	if (*Record)(nil).View().Answer != Denied {
		t.Error("no record is not a denial")
	}
}

func TestUseOnceConcurrently(t *testing.T) {
	r := Resolve(context.Background(), approverFunc(yes), question())
	var mu sync.Mutex
	var wg sync.WaitGroup
	used := 0
	for range 32 {
		wg.Go(func() {
			if r.Use(decision, capsule, policySet) == nil {
				mu.Lock()
				used++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if used != 1 {
		t.Errorf("used %d times", used)
	}
}

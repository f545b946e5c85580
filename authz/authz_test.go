package authz

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"palyra/authz/approval"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

var (
	capsule = canon.Sum([]byte("capsule"))
	spec    = canon.Sum([]byte("spec"))
)

func request(path string) policy.Request {
	return policy.Request{
		Principal: policy.LocalUser("alice"), Action: policy.ToolExecute, Resource: policy.Tool("process.run"),
		Context: policy.Context{CapsuleDigest: capsule, Tier: "c", Executable: policy.Executable{Path: path, System: true}},
	}
}

// The calls that the default set allows, asks about and denies.
const (
	allowed = "/usr/bin/true"
	asked   = "/usr/bin/jq"
	refused = "/usr/bin/bash"
)

// person answers with one word.
type person string

func (p person) Ask(context.Context, approval.Request) (approval.Answer, error) {
	return approval.Answer{Approved: p == "yes\n", Approver: "bob", Surface: "terminal"}, nil
}

// resolve asks a person who types line about d.
func resolve(d Decision, line string) *approval.Record {
	v := d.View()
	return approval.Resolve(context.Background(), person(line),
		approval.Request{Decision: v.ID, Capsule: v.Capsule, PolicySet: v.PolicySet})
}

func TestGrant(t *testing.T) {
	key := grant.NewKey()
	a := New(policy.Default(), key)
	other := New(policy.Default(), key)
	tests := []struct {
		name   string
		do     func() (grant.Grant, error)
		kind   fault.Kind
		reason string // "" is a grant; of an error of ours, its text
	}{
		{"allowed", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(allowed)), nil, capsule, spec, time.Minute)
		}, 0, ""},
		{"approved", func() (grant.Grant, error) {
			d := a.Decide(request(asked))
			return a.Grant(d, resolve(d, "yes\n"), capsule, spec, time.Minute)
		}, 0, ""},
		{"approver says no", func() (grant.Grant, error) {
			d := a.Decide(request(asked))
			return a.Grant(d, resolve(d, "no\n"), capsule, spec, time.Minute)
		}, fault.NotApproved, "not_approved"},
		{"nobody asked", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(asked)), nil, capsule, spec, time.Minute)
		}, fault.NotApproved, "not_approved"},
		{"zero record", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(asked)), new(approval.Record), capsule, spec, time.Minute)
		}, fault.NotApproved, "not_approved"},
		{"approval of another decision", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(asked)), resolve(a.Decide(request(asked)), "yes\n"), capsule, spec, time.Minute)
		}, fault.NotApproved, "not_approved"},
		{"approval used twice", func() (grant.Grant, error) {
			d := a.Decide(request(asked))
			rec := resolve(d, "yes\n")
			if _, err := a.Grant(d, rec, capsule, spec, time.Minute); err != nil {
				return grant.Grant{}, err
			}
			return a.Grant(d, rec, capsule, spec, time.Minute)
		}, fault.NotApproved, "not_approved"},
		{"approval does not lift a denial", func() (grant.Grant, error) {
			d := a.Decide(request(refused))
			return a.Grant(d, resolve(d, "yes\n"), capsule, spec, time.Minute)
		}, fault.Denied, "policy_denied"},
		{"bad request", func() (grant.Grant, error) {
			return a.Grant(a.Decide(policy.Request{Context: policy.Context{CapsuleDigest: capsule}}), nil, capsule, spec, time.Minute)
		}, fault.Denied, "policy_denied"},
		{"zero decision", func() (grant.Grant, error) { return a.Grant(Decision{}, nil, capsule, spec, time.Minute) },
			fault.Denied, "policy_denied"},
		{"decision of another authority", func() (grant.Grant, error) {
			return a.Grant(other.Decide(request(allowed)), nil, capsule, spec, time.Minute)
		}, fault.Internal, "decision of another authority"},
		{"another capsule", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(allowed)), nil, canon.Sum([]byte("x")), spec, time.Minute)
		}, fault.Internal, "decision is about another capsule"},
		{"no capsule", func() (grant.Grant, error) {
			r := request(allowed)
			r.Context.CapsuleDigest = canon.Digest{}
			return a.Grant(a.Decide(r), nil, canon.Digest{}, spec, time.Minute)
		}, fault.Internal, "capsule or spec digest is missing"},
		{"no spec", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(allowed)), nil, capsule, canon.Digest{}, time.Minute)
		}, fault.Internal, "capsule or spec digest is missing"},
		{"no time", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(allowed)), nil, capsule, spec, 0)
		}, fault.Internal, "ttl 0s"},
		{"too much time", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(allowed)), nil, capsule, spec, MaxTTL+1)
		}, fault.Internal, "ttl "},
		{"decision used twice", func() (grant.Grant, error) {
			d := a.Decide(request(allowed))
			copied := d
			if _, err := a.Grant(d, nil, capsule, spec, time.Minute); err != nil {
				return grant.Grant{}, err
			}
			return a.Grant(copied, nil, capsule, spec, time.Minute)
		}, fault.Internal, "was minted for this decision before"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, err := test.do()
			if test.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := grant.NewVerifier(key).Verify(g, capsule, spec); err != nil {
					t.Error(err)
				}
				return
			}
			why := fault.ReasonOf(err)
			if test.kind == fault.Internal {
				why = err.Error()
			}
			if fault.KindOf(err) != test.kind || !strings.Contains(why, test.reason) {
				t.Errorf("got %v %s, want %v %s: %v", fault.KindOf(err), why, test.kind, test.reason, err)
			}
			if err := grant.NewVerifier(key).Verify(g, capsule, spec); !errors.Is(err, grant.ErrInvalid) {
				t.Errorf("a refusal came with a grant: %v", err)
			}
		})
	}
}

func TestGrantIsBound(t *testing.T) {
	key := grant.NewKey()
	a := New(policy.Default(), key)
	d := a.Decide(request(allowed))
	g, err := a.Grant(d, nil, capsule, spec, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if g.Body().Decision != d.View().ID {
		t.Error("grant names another decision")
	}
	for name, v := range map[string]struct {
		key           grant.Key
		capsule, spec canon.Digest
		want          error
	}{
		"another key":     {grant.NewKey(), capsule, spec, grant.ErrInvalid},
		"another capsule": {key, spec, spec, grant.ErrMismatch},
		"another spec":    {key, capsule, capsule, grant.ErrMismatch},
	} {
		if err := grant.NewVerifier(v.key).Verify(g, v.capsule, v.spec); !errors.Is(err, v.want) {
			t.Errorf("%s: got %v, want %v", name, err, v.want)
		}
	}
}

// A grant lives as long as it was asked to, not up to a second less.
func TestGrantLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := grant.NewKey()
		a := New(policy.Default(), key)
		mint := func() grant.Grant {
			g, err := a.Grant(a.Decide(request(allowed)), nil, capsule, spec, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		for range 10 {
			g := mint()
			<-time.After(999 * time.Millisecond)
			if err := grant.NewVerifier(key).Verify(g, capsule, spec); err != nil {
				t.Fatalf("within its second: %v", err)
			}
			<-time.After(1100 * time.Millisecond)
			if err := grant.NewVerifier(key).Verify(g, capsule, spec); !errors.Is(err, grant.ErrExpired) {
				t.Fatalf("long after: %v", err)
			}
		}
	})
}

// A yes is not good for ever.
func TestApprovalGoesStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(policy.Default(), grant.NewKey())
		d := a.Decide(request(asked))
		rec := resolve(d, "yes\n")
		<-time.After(2 * time.Minute)
		if _, err := a.Grant(d, rec, capsule, spec, time.Minute); !errors.Is(err, approval.ErrStale) {
			t.Errorf("got %v, want %v", err, approval.ErrStale)
		}
	})
}

// Of many who try at once, one gets the grant.
func TestGrantOnce(t *testing.T) {
	a := New(policy.Default(), grant.NewKey())
	for _, path := range []string{allowed, asked} {
		d := a.Decide(request(path))
		rec := resolve(d, "yes\n")
		var mu sync.Mutex
		var wg sync.WaitGroup
		granted := 0
		for range 16 {
			wg.Go(func() {
				if _, err := a.Grant(d, rec, capsule, spec, time.Minute); err == nil {
					mu.Lock()
					granted++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if granted != 1 {
			t.Errorf("%s: %d grants, want 1", path, granted)
		}
	}
}

func TestViewIsACopy(t *testing.T) {
	a := New(policy.Default(), grant.NewKey())
	d := a.Decide(request(refused))
	v := d.View()
	v.Effect, v.Policies[0] = policy.Allow, "mine"
	if d.View().Effect != policy.Deny || slices.Contains(d.View().Policies, "mine") {
		t.Error("a view changes its decision")
	}
	if _, err := a.Grant(d, nil, capsule, spec, time.Minute); fault.KindOf(err) != fault.Denied {
		t.Errorf("got %v", err)
	}
}

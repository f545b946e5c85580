package authz

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
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
		reason string // "" is a grant
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
			fault.Denied, "denied_by_default"},
		{"decision of another authority", func() (grant.Grant, error) {
			return a.Grant(other.Decide(request(allowed)), nil, capsule, spec, time.Minute)
		}, fault.Internal, "foreign_decision"},
		{"another capsule", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(allowed)), nil, canon.Sum([]byte("x")), spec, time.Minute)
		}, fault.Internal, "capsule_mismatch"},
		{"no capsule", func() (grant.Grant, error) {
			r := request(allowed)
			r.Context.CapsuleDigest = canon.Digest{}
			return a.Grant(a.Decide(r), nil, canon.Digest{}, spec, time.Minute)
		}, fault.Internal, "no_capsule"},
		{"no spec", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(allowed)), nil, capsule, canon.Digest{}, time.Minute)
		}, fault.Internal, "no_capsule"},
		{"no time", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(allowed)), nil, capsule, spec, 0)
		}, fault.Internal, "bad_ttl"},
		{"too much time", func() (grant.Grant, error) {
			return a.Grant(a.Decide(request(allowed)), nil, capsule, spec, MaxTTL+1)
		}, fault.Internal, "bad_ttl"},
		{"decision used twice", func() (grant.Grant, error) {
			d := a.Decide(request(allowed))
			copied := d
			if _, err := a.Grant(d, nil, capsule, spec, time.Minute); err != nil {
				return grant.Grant{}, err
			}
			return a.Grant(copied, nil, capsule, spec, time.Minute)
		}, fault.Internal, "decision_used"},
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
			if fault.KindOf(err) != test.kind || fault.ReasonOf(err) != test.reason {
				t.Errorf("got %v %s, want %v %s: %v", fault.KindOf(err), fault.ReasonOf(err), test.kind, test.reason, err)
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

// A second grant is for another runner, for what was granted, by the same policies,
// and the last one.
func TestRegrant(t *testing.T) {
	set := policy.Default()
	again, err := policy.Restore(set.Texts(), set.Decide(request(allowed)).PolicySet)
	if err != nil {
		t.Fatal(err)
	}
	key := grant.NewKey()
	first, second := New(set, grant.NewKey()), New(set, key)
	other := canon.Sum([]byte("less time"))
	granted := func(path, line string) Decision {
		d := first.Decide(request(path))
		var rec *approval.Record
		if line != "" {
			rec = resolve(d, line)
		}
		_, _ = first.Grant(d, rec, capsule, spec, time.Minute)
		return d
	}
	for _, path := range []string{allowed, asked} {
		d := granted(path, "yes\n")
		g, err := second.Regrant(d, capsule, other, time.Minute)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := grant.NewVerifier(key).Verify(g, capsule, other); err != nil || g.Body().Decision != d.View().ID {
			t.Errorf("%s: %v", path, err)
		}
		for _, a := range []*Authority{second, New(set, key)} {
			if _, err := a.Regrant(d, capsule, other, time.Minute); fault.ReasonOf(err) != "decision_used" {
				t.Errorf("%s, a third time: %v", path, err)
			}
		}
	}
	fine := granted(allowed, "")
	for name, c := range map[string]struct {
		a       *Authority
		d       Decision
		capsule canon.Digest
		spec    canon.Digest
		ttl     time.Duration
		reason  string
	}{
		"no decision":      {second, Decision{}, capsule, spec, time.Minute, "foreign_decision"},
		"same runner":      {first, fine, capsule, spec, time.Minute, "foreign_decision"},
		"another set":      {New(again, key), fine, capsule, spec, time.Minute, "foreign_decision"},
		"another capsule":  {second, fine, spec, spec, time.Minute, "capsule_mismatch"},
		"no spec":          {second, fine, capsule, canon.Digest{}, time.Minute, "no_capsule"},
		"too much time":    {second, fine, capsule, spec, MaxTTL + 1, "bad_ttl"},
		"never granted":    {second, first.Decide(request(allowed)), capsule, spec, time.Minute, "not_granted"},
		"denied":           {second, granted(refused, ""), capsule, spec, time.Minute, "not_granted"},
		"not approved":     {second, granted(asked, ""), capsule, spec, time.Minute, "not_granted"},
		"approver said no": {second, granted(asked, "no\n"), capsule, spec, time.Minute, "not_granted"},
	} {
		g, err := c.a.Regrant(c.d, c.capsule, c.spec, c.ttl)
		if fault.KindOf(err) != fault.Internal || fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v, want %s", name, err, c.reason)
		}
		if err := grant.NewVerifier(key).Verify(g, c.capsule, c.spec); !errors.Is(err, grant.ErrInvalid) {
			t.Errorf("%s: a refusal came with a grant: %v", name, err)
		}
	}
	// None of that used it up.
	var wg sync.WaitGroup
	var n atomic.Int64
	for range 16 {
		wg.Go(func() {
			if _, err := second.Regrant(fine, capsule, spec, time.Minute); err == nil {
				n.Add(1)
			}
		})
	}
	if wg.Wait(); n.Load() != 1 {
		t.Errorf("%d second grants, want 1", n.Load())
	}
}

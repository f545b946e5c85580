package grant_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"palyra/authz/grant"
	"palyra/authz/internal/mint"
	"palyra/internal/canon"
)

var (
	capsule = canon.Sum([]byte("capsule"))
	spec    = canon.Sum([]byte("spec"))
	other   = canon.Sum([]byte("other"))
)

func TestVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := grant.NewKey()
		v := grant.NewVerifier(key)
		fresh := func(ttl time.Duration) grant.Grant {
			return mint.Mint(key, capsule, spec, [16]byte{1}, time.Now().Add(ttl))
		}
		g := fresh(time.Minute)
		for _, step := range []struct {
			name          string
			g             grant.Grant
			capsule, spec canon.Digest
			want          error
		}{
			{"zero", grant.Grant{}, canon.Digest{}, canon.Digest{}, grant.ErrInvalid},
			{"another key", mint.Mint(grant.NewKey(), capsule, spec, [16]byte{1}, time.Now().Add(time.Minute)), capsule, spec, grant.ErrInvalid},
			{"another capsule", g, other, spec, grant.ErrMismatch},
			{"another spec", g, capsule, other, grant.ErrMismatch},
			{"expired", fresh(-2 * time.Second), capsule, spec, grant.ErrExpired},
			{"good, and not spent by the refusals", g, capsule, spec, nil},
			{"again", g, capsule, spec, grant.ErrReplayed},
			{"another of the same call", fresh(time.Minute), capsule, spec, nil},
		} {
			if err := v.Verify(step.g, step.capsule, step.spec); !errors.Is(err, step.want) {
				t.Errorf("%s: got %v, want %v", step.name, err, step.want)
			}
		}
		<-time.After(2 * time.Minute) // a nonce is forgotten only when its grant has expired
		if err := v.Verify(fresh(time.Minute), capsule, spec); err != nil {
			t.Error(err)
		}
		if err := v.Verify(g, capsule, spec); !errors.Is(err, grant.ErrExpired) {
			t.Errorf("replay after expiry: %v", err)
		}
	})
}

func TestVerifyOnceConcurrently(t *testing.T) {
	key := grant.NewKey()
	v := grant.NewVerifier(key)
	g := mint.Mint(key, capsule, spec, [16]byte{1}, time.Now().Add(time.Minute))
	var mu sync.Mutex
	var wg sync.WaitGroup
	ok := 0
	for range 32 {
		wg.Go(func() {
			if v.Verify(g, capsule, spec) == nil {
				mu.Lock()
				ok++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if ok != 1 {
		t.Errorf("verified %d times", ok)
	}
}

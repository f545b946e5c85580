package keystore

import (
	"path/filepath"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/internal/clock"
	"palyra/internal/fault"
	"palyra/kernel/store"
	"palyra/transport/httpapi"
)

// TestKeys puts both implementations through the same: each key once, for one
// request, of one principal.
func TestKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	st, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	one, two := canon.Sum([]byte("1")), canon.Sum([]byte("2"))
	for name, k := range map[string]httpapi.Keys{"store": New(st), "memory": httpapi.NewMemoryKeys()} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			begin := func(who, key string, d canon.Digest) string {
				t.Helper()
				b, err := k.Begin(ctx, who, key, d)
				if err != nil {
					return fault.ReasonOf(err)
				}
				return string(b)
			}
			for i, step := range []struct{ got, want string }{
				{begin("a", "op k 1", one), ""},
				{begin("a", "op k 1", one), "idempotency_key_in_progress"},
				{begin("a", "op k 1", two), "idempotency_key_reused"},
				{begin("b", "op k 1", two), ""},
				{begin("a", "op k 2", one), ""},
			} {
				if step.got != step.want {
					t.Errorf("step %d: %q, want %q", i, step.got, step.want)
				}
			}
			if err := k.Finish(ctx, "a", "op k 1", []byte("answer")); err != nil {
				t.Fatal(err)
			}
			if err := k.Abandon(ctx, "a", "op k 2"); err != nil {
				t.Fatal(err)
			}
			if got := begin("a", "op k 1", one); got != "answer" {
				t.Errorf("answered: %q", got)
			}
			if got := begin("a", "op k 1", two); got != "idempotency_key_reused" {
				t.Errorf("another request with an answered key: %q", got)
			}
			if got := begin("a", "op k 2", two); got != "" {
				t.Errorf("given back: %q", got)
			}
		})
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	// They outlive the process.
	if st, err = store.Open(dir, store.Options{}); err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if b, err := New(st).Begin(t.Context(), "a", "op k 1", one); err != nil || string(b) != "answer" {
		t.Errorf("after a restart: %q, %v", b, err)
	}
	if _, err := New(st).Begin(t.Context(), "b", "op k 1", two); fault.ReasonOf(err) != "idempotency_key_in_progress" {
		t.Errorf("under way when the process ended: %v", err)
	}
}

// TestKeysClock: a step of the host's clock makes nobody's request happen twice.
func TestKeysClock(t *testing.T) {
	const year = 365 * 24 * time.Hour
	host, c := clock.TestOnlyNew(time.Now())
	st, err := store.Open(filepath.Join(t.TempDir(), "store"), store.Options{Clock: c})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	d := canon.Sum([]byte("1"))
	k := New(st)
	if _, err := k.Begin(t.Context(), "a", "k", d); err != nil {
		t.Fatal(err)
	}
	if err := k.Finish(t.Context(), "a", "k", []byte("answer")); err != nil {
		t.Fatal(err)
	}
	again := func(want string) {
		t.Helper()
		err := st.Update(t.Context(), func(tx *store.Tx) error { _, err := tx.ExpireIdempotent(); return err })
		if err != nil {
			t.Fatal(err)
		}
		if b, err := k.Begin(t.Context(), "a", "k", d); err != nil || string(b) != want {
			t.Errorf("%q, %v, want %q", b, err, want)
		}
	}
	host.Step(year)
	again("answer")
	host.Step(-2 * year)
	again("answer")
	host.Step(year)
	host.Pass(life + time.Minute)
	again("") // a day later it is forgotten
}

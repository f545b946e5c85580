package keystore

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/clock"
	"palyra/internal/fault"
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
	for name, k := range map[string]httpapi.Keys{"store": New(st, anybody), "memory": httpapi.NewMemoryKeys()} {
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
				{begin("a", "op k 1", one), "locked"},
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
	if b, err := New(st, anybody).Begin(t.Context(), "a", "op k 1", one); err != nil || string(b) != "answer" {
		t.Errorf("after a restart: %q, %v", b, err)
	}
	if _, err := New(st, anybody).Begin(t.Context(), "b", "op k 1", two); fault.ReasonOf(err) != "locked" {
		t.Errorf("under way when the process ended: %v", err)
	}
}

// any principal may leave more behind.
func anybody(string) error { return nil }

// TestKeysQuota: a principal that may leave no more behind gets no new key, and nothing of
// its request is written. An earlier answer is given again.
func TestKeysQuota(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "store"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	told := make(map[string]int64)
	st.OnWritten(func(who string, n int64) { told[who] += n })
	full := fault.New(fault.Unavailable, "quota", "use journal", nil)
	over := map[string]error{}
	k := New(st, func(who string) error { return over[who] })
	d := canon.Sum([]byte("1"))
	if _, err := k.Begin(t.Context(), "a", "k1", d); err != nil {
		t.Fatal(err)
	}
	reserved := told["a"]
	if err := k.Finish(t.Context(), "a", "k1", []byte(strings.Repeat("x", 1000))); err != nil {
		t.Fatal(err)
	}
	if reserved < 100 || told["a"] != reserved+1000 || len(told) != 1 {
		t.Errorf("accounted %v, a reserved key %d", told, reserved)
	}
	over["a"] = full
	for range 2 { // a key that was reserved is in progress the second time
		if _, err := k.Begin(t.Context(), "a", "k2", d); fault.ReasonOf(err) != "quota" {
			t.Errorf("a new key: %v", err)
		}
	}
	if b, err := k.Begin(t.Context(), "a", "k1", d); err != nil || len(b) != 1000 {
		t.Errorf("its answer: %d bytes, %v", len(b), err)
	}
	if told["a"] != reserved+1000 {
		t.Errorf("accounted %d for what was not written", told["a"]-reserved-1000)
	}
	if _, err := k.Begin(t.Context(), "b", "k2", d); err != nil {
		t.Errorf("another's: %v", err)
	}
}

// TestKeysSweep: each request removes some of the keys that are over, until none
// is left.
func TestKeysSweep(t *testing.T) {
	host, c := clock.TestOnlyNew(time.Now())
	st, err := store.Open(filepath.Join(t.TempDir(), "store"), store.Options{Clock: c})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	d, day := canon.Sum([]byte("1")), time.Now()
	err = st.Update(t.Context(), func(tx *store.Tx) error {
		for i := range 2*batch + batch/2 {
			if _, err := tx.BeginIdempotent(store.Idempotency{Principal: "a", Key: fmt.Sprint(i), Request: d, Created: day, Expires: day.Add(life)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	host.Pass(life + time.Minute)
	k := New(st, anybody)
	left := func() (n int) { // with those of the test's own requests, whose date is the host's
		var undo = errors.New("undo")
		err := st.Update(t.Context(), func(tx *store.Tx) (err error) {
			if n, err = tx.ExpireIdempotent(1 << 30); err == nil {
				err = undo
			}
			return err
		})
		if !errors.Is(err, undo) {
			t.Fatal(err)
		}
		return n
	}
	var got []int
	for i := range 5 {
		if _, err := k.Begin(t.Context(), "b", fmt.Sprint(i), d); err != nil {
			t.Fatal(err)
		}
		got = append(got, left())
	}
	if want := []int{batch + batch/2 + 1, batch/2 + 2, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
}

// TestKeysClock: a step of the host's clock makes no request happen twice.
func TestKeysClock(t *testing.T) {
	const year = 365 * 24 * time.Hour
	host, c := clock.TestOnlyNew(time.Now())
	st, err := store.Open(filepath.Join(t.TempDir(), "store"), store.Options{Clock: c})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	d := canon.Sum([]byte("1"))
	k := New(st, anybody)
	if _, err := k.Begin(t.Context(), "a", "k", d); err != nil {
		t.Fatal(err)
	}
	if err := k.Finish(t.Context(), "a", "k", []byte("answer")); err != nil {
		t.Fatal(err)
	}
	again := func(want string) {
		t.Helper()
		err := st.Update(t.Context(), func(tx *store.Tx) error { _, err := tx.ExpireIdempotent(10); return err })
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

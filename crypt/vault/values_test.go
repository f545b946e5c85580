package vault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"palyra/crypt/seal"
)

// filled makes a vault of n secrets with two versions each, the second of which expires.
func filled(t *testing.T, h *house, n int) *Vault {
	t.Helper()
	v := h.create(t)
	for i := range n {
		r := ref(t, fmt.Sprintf("vault://global/s%d", i))
		for _, expires := range []time.Time{{}, time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)} {
			if _, err := v.Set(t.Context(), r, fmt.Appendf(nil, "value %d %v", i, expires.IsZero()), expires); err != nil {
				t.Fatal(err)
			}
		}
	}
	return v
}

// holds checks what filled has stored.
func holds(t *testing.T, v *Vault, n int) {
	t.Helper()
	for i := range n {
		name := fmt.Sprintf("vault://global/s%d", i)
		wants(t, v, name, 1, fmt.Sprintf("value %d true", i))
		wants(t, v, name, 2, fmt.Sprintf("value %d false", i))
		l, err := v.History(t.Context(), ref(t, name))
		if err != nil || l[0].Expires != nil || l[1].Expires == nil || l[1].Expires.Year() != 2100 {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	if got, err := v.Check(t.Context()); err != nil || got != 2*n {
		t.Errorf("check: %d, %v", got, err)
	}
}

// TestRotateValues: every record is another file under another key, which the keys of before don't
// open, and values, versions and expiries are what they were.
func TestRotateValues(t *testing.T) {
	h := newHouse(t)
	const n = each // two versions each: more than one head
	v := filled(t, h, n)
	type old struct {
		key    *seal.Key
		record string
	}
	var before []old
	for _, s := range v.idx.Secrets {
		for i := range s.Versions {
			k, err := v.recordKey(s.Ref, &s.Versions[i])
			if err != nil {
				t.Fatal(err)
			}
			before = append(before, old{k, s.Versions[i].Record})
		}
	}
	epoch := v.Epoch()
	if left, err := v.RotateValues(t.Context()); err != nil || left != 0 || v.Stale() != 0 || v.idx.Renew != 0 {
		t.Fatalf("%d left, %v", left, err)
	}
	if got := v.Epoch() - epoch; got != 2 {
		t.Errorf("%d heads, want 2", got)
	}
	i := 0
	for _, s := range v.idx.Secrets {
		for j := range s.Versions {
			x := &s.Versions[j]
			b, err := os.ReadFile(v.record(x))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := seal.Open(before[i].key, x.context("vault/record", s.Ref, x.Generation), b); err == nil || x.Record == before[i].record {
				t.Errorf("version %d of %v opens under its old key, or is the old file", x.Version, s.Ref)
			}
			i++
		}
	}
	if es, err := os.ReadDir(filepath.Join(h.dir, recordsDir)); err != nil || len(es) != 2*n {
		t.Errorf("%d files, %v", len(es), err)
	}
	holds(t, v, n)
	holds(t, h.open(t), n)
}

// ended is a ledger that ends a context at a commit.
type ended struct {
	*log
	at   int
	stop context.CancelFunc
}

func (l *ended) Commit(ctx context.Context, r Root) error {
	if l.at--; l.at == 0 {
		l.stop()
	}
	return l.log.Commit(context.WithoutCancel(ctx), r)
}

// TestRotateValuesLazily: what an interrupted rotation leaves opens, and later changes of any kind,
// and by other processes, go on with it.
func TestRotateValuesLazily(t *testing.T) {
	h := newHouse(t)
	const n = 3 * each / 2 // three heads
	filled(t, h, n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	v, err := Open(ctx, h.dir, &ended{log: h.log, at: 1, stop: cancel}, h.id)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	left, err := v.RotateValues(ctx)
	if err != nil || left != 2*n-each || v.Stale() != left {
		t.Fatalf("%d left, %v", left, err)
	}
	o := h.open(t)
	holds(t, o, n)
	r := ref(t, "vault://global/other")
	if _, err := o.Set(t.Context(), r, []byte("value"), time.Time{}); err != nil || o.Stale() != left-each {
		t.Errorf("%d left, %v", o.Stale(), err)
	}
	if err := o.Remove(t.Context(), r); err != nil || o.Stale() != 0 || o.idx.Renew != 0 {
		t.Errorf("%d left, %v", o.Stale(), err)
	}
	holds(t, o, n)
	holds(t, h.open(t), n)
}

// TestRotateValuesDamaged: a record that is damaged keeps its place, and stops neither the rotation
// nor later changes.
func TestRotateValuesDamaged(t *testing.T) {
	h := newHouse(t)
	v := filled(t, h, 2)
	if err := os.WriteFile(v.record(&v.idx.Secrets[0].Versions[0]), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if left, err := v.RotateValues(t.Context()); err != nil || left != 1 {
		t.Errorf("%d left, %v", left, err)
	}
	if _, err := v.Set(t.Context(), ref(t, "vault://global/other"), []byte("value"), time.Time{}); err != nil {
		t.Error(err)
	}
	wants(t, v, "vault://global/s0", 2, "value 0 false")
	if _, err := v.Check(t.Context()); err == nil {
		t.Error("the oracle finds nothing")
	}
	h.err = errors.New("no")
	if _, err := v.RotateValues(t.Context()); !errors.Is(err, h.err) {
		t.Errorf("without a journal: %v", err)
	}
}

package store

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// TestArtifactShare: the runs of a principal hold no more than its share, however
// many they are; what another holds already counts as well. The count
// survives a restart and follows what is released.
func TestArtifactShare(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	o := Options{ArtifactQuota: 1000, ArtifactShare: func(p string) int64 {
		if p == "owner" {
			return 1000
		}
		return 100
	}}
	s := openStore(t, dir, o)
	ctx := context.Background()
	start := func(principal string) string {
		sess := Session{Principal: principal}
		r := Run{Principal: principal, Plan: []byte("{}")}
		do(t, s, func(tx *Tx) error {
			err := tx.CreateSession(&sess)
			r.Session = sess.ID
			return errors.Join(err, tx.CreateRun(&r))
		})
		return r.ID
	}
	put := func(run, text string) error {
		_, err := s.PutArtifact(ctx, run, "text/plain", strings.NewReader(text))
		return err
	}
	over := func(err error) { t.Helper(); wants(t, err, fault.Unavailable, "quota") }
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	one, two, bob, owner := start("alice"), start("alice"), start("bob"), start("owner")
	a, b, c := strings.Repeat("a", 60), strings.Repeat("b", 60), strings.Repeat("c", 40)
	ok(put(one, a))
	over(put(two, b))
	ok(put(bob, b))
	over(put(two, b)) // it is there, and would be alice's, too
	ok(put(two, c))
	over(put(two, "x"))
	ok(put(owner, strings.Repeat("d", 700)))
	ok(put(bob, c))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, o)
	over(put(one, "x"))
	over(put(bob, "x"))
	do(t, s, func(tx *Tx) error { return tx.ReleaseArtifacts(one) })
	if _, _, err := s.SweepArtifacts(ctx); err != nil {
		t.Fatal(err)
	}
	ok(put(one, "x"))
	over(put(bob, "y"))
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
}

// TestDraftsCount: what runs are writing counts as what they wrote, however many write at a time.
func TestDraftsCount(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "store"), Options{ArtifactQuota: 250, ArtifactShare: func(string) int64 { return 100 }})
	ctx := context.Background()
	begin := func(principal string) *Draft {
		sess := Session{Principal: principal}
		r := Run{Principal: principal, Plan: []byte("{}")}
		do(t, s, func(tx *Tx) error {
			err := tx.CreateSession(&sess)
			r.Session = sess.ID
			return errors.Join(err, tx.CreateRun(&r))
		})
		d, err := s.Draft(ctx, r.ID, "text/plain")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	write := func(d *Draft, n int, reason string) {
		t.Helper()
		if _, err := d.Write(make([]byte, n)); fault.ReasonOf(err) != reason {
			t.Errorf("%d bytes: %v, want %q", n, err, reason)
		}
	}
	a, b := begin("alice"), begin("alice")
	write(a, 60, "")
	write(b, 30, "")
	write(b, 30, "quota")
	write(begin("bob"), 90, "")
	write(begin("carol"), 90, "disk_full")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	write(a, 30, "")
	if _, err := a.Commit(ctx); err != nil {
		t.Error(err)
	}
	write(begin("alice"), 20, "quota")
	if x := &s.artifacts; x.drafts != 90 || x.bytes != 90 || len(x.drafted) != 1 {
		t.Errorf("%d bytes of drafts %v, %d of artifacts", x.drafts, x.drafted, x.bytes)
	}
}

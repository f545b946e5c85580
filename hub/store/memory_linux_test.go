package store

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/internal/ident"
)

// sealedItem is an item whose sealed bytes are found nowhere else.
func sealedItem(who string, n int) Memory {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return Memory{ID: ident.New(ident.Memory), Principal: who, Scope: MemoryOfPrincipal, Source: "person", Origins: []string{"person"}, Created: time.Now().UTC(), Sealed: b}
}

func itemsOf(t *testing.T, s *Store, who string) (ids []string) {
	t.Helper()
	_, err := View(t.Context(), s, func(tx *Tx) (any, error) {
		return nil, tx.Memories(who, 0, func(m *Memory) bool { ids = append(ids, m.ID); return true })
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// TestMemoryIsOnesOwn: no statement about one principal's items reads or removes another's.
func TestMemoryIsOnesOwn(t *testing.T) {
	s := newStore(t)
	mine, theirs := sealedItem("uid:1", 300), sealedItem("uid:2", 300)
	do(t, s, func(tx *Tx) error { return tx.AddMemories([]Memory{mine}, MemoryBounds{}) })
	do(t, s, func(tx *Tx) error { return tx.AddMemories([]Memory{theirs}, MemoryBounds{}) })
	do(t, s, func(tx *Tx) error {
		if _, err := tx.Memory("uid:2", mine.ID); fault.KindOf(err) != fault.NotFound {
			t.Errorf("read: %v", err)
		}
		gone, err := tx.RemoveMemories("uid:2", []string{mine.ID, theirs.ID})
		if !slices.Equal(gone, []string{theirs.ID}) {
			t.Errorf("removed %v", gone)
		}
		return err
	})
	if got := itemsOf(t, s, "uid:1"); !slices.Equal(got, []string{mine.ID}) {
		t.Errorf("left %v", got)
	}
	if err := s.Update(t.Context(), func(tx *Tx) error {
		return tx.AddMemories([]Memory{sealedItem("uid:1", 9), sealedItem("uid:3", 9)}, MemoryBounds{})
	}); fault.KindOf(err) != fault.Usage {
		t.Errorf("of two principals: %v", err)
	}
}

// TestMemoryBounds: what goes beyond is refused whole.
func TestMemoryBounds(t *testing.T) {
	s := newStore(t)
	add := func(n int, most MemoryBounds) error {
		var items []Memory
		for range n {
			items = append(items, sealedItem("uid:1", 100))
		}
		return s.Update(t.Context(), func(tx *Tx) error { return tx.AddMemories(items, most) })
	}
	for _, tt := range []struct {
		n    int
		most MemoryBounds
		want string
	}{{2, MemoryBounds{Items: 2}, ""}, {1, MemoryBounds{Items: 2}, "quota"}, {1, MemoryBounds{Items: 3, Bytes: 299}, "quota"}, {1, MemoryBounds{Items: 3, Bytes: 300}, ""}} {
		if err := add(tt.n, tt.most); fault.ReasonOf(err) != tt.want {
			t.Errorf("%d more within %+v: %v", tt.n, tt.most, err)
		}
	}
	if n := len(itemsOf(t, s, "uid:1")); n != 3 {
		t.Errorf("%d items", n)
	}
}

// TestMemoryOfSession: an item of a session goes with it, and can't be another principal's.
func TestMemoryOfSession(t *testing.T) {
	s := newStore(t)
	ses := &Session{Principal: "uid:1", State: SessionEnded, Ended: time.Now()}
	do(t, s, func(tx *Tx) error { return tx.CreateSession(ses) })
	in := func(who string, scope string) error {
		m := sealedItem(who, 50)
		m.Session, m.Scope = ses.ID, scope
		return s.Update(t.Context(), func(tx *Tx) error { return tx.AddMemories([]Memory{m}, MemoryBounds{}) })
	}
	if err := in("uid:2", MemoryOfSession); fault.ReasonOf(err) != "no_such_session" {
		t.Errorf("another's session: %v", err)
	}
	if err := in("uid:1", MemoryOfSession); err != nil {
		t.Fatal(err)
	}
	if err := in("uid:1", MemoryOfPrincipal); err != nil {
		t.Fatal(err)
	}
	raw(t, s, "DELETE FROM sessions")
	if n := len(itemsOf(t, s, "uid:1")); n != 1 {
		t.Errorf("%d items are left, want the principal's", n)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestForgottenIsGone: of removed items no byte is left in the database's files, whatever was
// written and removed around them.
func TestForgottenIsGone(t *testing.T) {
	s := newStore(t)
	var all []Memory
	for i := range 200 {
		m := sealedItem("uid:1", []int{300, 600, 1100, 5000, 33000}[i%5])
		all = append(all, m)
		do(t, s, func(tx *Tx) error { return tx.AddMemories([]Memory{m}, MemoryBounds{}) })
	}
	find := func(m *Memory) (in []string) {
		for _, f := range []string{dbFile, dbFile + "-wal"} {
			b, err := os.ReadFile(filepath.Join(s.dir, f))
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(b, m.Sealed[:24]) || bytes.Contains(b, m.Sealed[len(m.Sealed)-24:]) {
				in = append(in, f)
			}
		}
		return in
	}
	if find(&all[7]) == nil {
		t.Fatal("an item isn't found while it's there")
	}
	for round := range 4 { // neighbours go first, so that pages are merged
		var ids []string
		for i := range all {
			if i%4 == round {
				ids = append(ids, all[i].ID)
			}
		}
		do(t, s, func(tx *Tx) error {
			_, err := tx.RemoveMemories("uid:1", ids)
			return err
		})
		if err := s.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range all {
			if in := find(&all[i]); i%4 <= round && in != nil {
				t.Errorf("round %d: item %d of %d bytes is still in %v", round, i, len(all[i].Sealed), in)
			}
		}
	}
}

// TestForgetBusy: while a reader is at work the log can't be emptied, and the caller is told.
func TestForgetBusy(t *testing.T) {
	s := newStore(t)
	_, err := View(t.Context(), s, func(tx *Tx) (any, error) {
		if _, _, err := tx.MemoryUse("uid:1"); err != nil {
			return nil, err
		}
		do(t, s, func(tx *Tx) error { return tx.AddMemories([]Memory{sealedItem("uid:1", 10)}, MemoryBounds{}) })
		return nil, s.Forget(t.Context())
	})
	if fault.KindOf(err) != fault.Busy {
		t.Errorf("%v", fmt.Sprint(err))
	}
	if err := s.Forget(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestMemoryExpires: retention removes what has expired, to the last byte, and owes the journal the
// number.
func TestMemoryExpires(t *testing.T) {
	s := newStore(t)
	old, kept := sealedItem("uid:1", 400), sealedItem("uid:1", 400)
	old.Created = time.Now().Add(-2 * time.Hour)
	old.Expires, kept.Expires = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	do(t, s, func(tx *Tx) error { return tx.AddMemories([]Memory{old, kept}, MemoryBounds{}) })
	if err := s.Retire(t.Context(), Retention{}); err != nil {
		t.Fatal(err)
	}
	if got := itemsOf(t, s, "uid:1"); !slices.Equal(got, []string{kept.ID}) {
		t.Errorf("left %v", got)
	}
	for _, f := range []string{dbFile, dbFile + "-wal"} {
		if b, err := os.ReadFile(filepath.Join(s.dir, f)); err != nil || bytes.Contains(b, old.Sealed[:24]) {
			t.Errorf("%s has it still, %v", f, err)
		}
	}
	owed, err := s.OwedRetirement(t.Context())
	if err != nil || owed.Memories != 1 || !owed.Any() {
		t.Fatalf("%+v, %v", owed, err)
	}
	if err := s.PaidRetirement(t.Context(), owed); err != nil {
		t.Fatal(err)
	}
	if owed, err := s.OwedRetirement(t.Context()); err != nil || owed.Any() {
		t.Errorf("%+v, %v", owed, err)
	}
}

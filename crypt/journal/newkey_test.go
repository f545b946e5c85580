package journal

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"palyra/crypt/keyring"
	"palyra/internal/fault"
)

// nextKey is another key of the log of s, as a rotation prepares it.
func (s *house) nextKey(t testing.TB) *keyring.LogKey {
	t.Helper()
	k, err := s.ring.PrepareNextLog(filepath.Dir(s.dir), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (s *house) append(t testing.TB, j *Journal, i int, k *keyring.LogKey) error {
	t.Helper()
	_, err := j.Append(context.Background(), Entry{Leaf: leafN(i), Content: contentN(i), Key: k})
	return err
}

// TestNewKey: from the entry that says so another key signs, in every process, over complete
// tiles and a restart; the old key's checkpoints from before stay good, and it makes no others.
func TestNewKey(t *testing.T) {
	s := newHouse(t)
	old, next := s.ring.Log(), s.nextKey(t)
	set := OneKeyset(old)
	asked := 0
	keys := Options{Keys: func() (Keyset, error) { asked++; return set, nil }}
	a, b, ignorant := s.open(t, keys), s.open(t, keys), s.open(t, Options{})
	fill(t, a, 0, 300)
	if err := a.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	fill(t, b, 300, 310)
	before, err := b.Prove(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	verifyProof(t, old.VKey(), before, leafN(3))

	if err := s.append(t, a, 310, newHouse(t).ring.Log()); fault.KindOf(err) != fault.Usage {
		t.Errorf("another log's key: %v", err)
	}
	set.Own, set.All = []*keyring.LogKey{old, next}, Keys{{VKey: old.VKey(), To: 310}, {VKey: next.VKey()}}
	if err := s.append(t, a, 310, next); err != nil || a.Key() != next.VKey() {
		t.Fatalf("put in force: %v, %s", err, a.Key())
	}
	was := asked
	add(t, b, 311, 320) // a process that learns of it under the lock
	if b.Key() != next.VKey() || asked != was+1 {
		t.Errorf("the other process signs with %s, and asked %d times", b.Key(), asked-was)
	}
	if err := s.append(t, ignorant, 320, nil); fault.KindOf(err) != fault.Integrity {
		t.Errorf("a process that can't learn of it: %v", err)
	}
	after, err := b.Prove(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	verifyProof(t, next.VKey(), after, leafN(3))
	for _, c := range []struct {
		name string
		keys Keys
		good bool
	}{
		{"both", set.All, true},
		{"the old one ended earlier", Keys{{VKey: old.VKey(), To: 309}, {VKey: next.VKey()}}, false},
		{"the old one", OneKey(old.VKey()), false},
		{"the new one", OneKey(next.VKey()), false},
	} {
		if _, err := Check(s.dir, c.keys); (err == nil) != c.good || err != nil && fault.KindOf(err) != fault.Integrity {
			t.Errorf("check with %s: %v", c.name, err)
		}
	}

	// The old key signs nothing that counts any more.
	note := old.SignCheckpoint(311, [32]byte{1})
	if _, _, err := set.All.Open(note); err == nil {
		t.Error("a checkpoint by the old key, of a size after its end, is accepted")
	}
	if _, err := OpenCheckpoint(note, old.VKey()); err != nil {
		t.Errorf("control: under the old key alone: %v", err)
	}

	// Tiles that end before the new key's time are sealed by it.
	fill(t, b, 320, 600)
	for _, j := range []*Journal{a, b} {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_ = ignorant.Close() // it can't publish
	set.Own = []*keyring.LogKey{next}
	a = s.open(t, keys)
	add(t, a, 600, 601)
	if r, err := Check(s.dir, set.All); err != nil || r.Size != 601 || r.Sealed != 512 {
		t.Errorf("at the end: %+v, %v", r, err)
	}
	_ = a.Close()
}

// TestOlderKey: a log that was put back to before a rotation isn't continued by the new key.
func TestOlderKey(t *testing.T) {
	s := newHouse(t)
	old, next := s.ring.Log(), s.nextKey(t)
	set := Keyset{Own: []*keyring.LogKey{old, next}, All: Keys{{VKey: old.VKey(), To: 5}, {VKey: next.VKey()}}}
	keys := Options{Keys: func() (Keyset, error) { return set, nil }}
	j := s.open(t, keys)
	add(t, j, 0, 5)
	wal := filepath.Join(s.dir, walFile)
	was, err := os.ReadFile(wal)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.append(t, j, 5, next); err != nil {
		t.Fatal(err)
	}
	j.broken = os.ErrClosed // nothing is published
	_ = j.Close()
	set.Own = set.Own[1:]
	j = s.open(t, keys) // control
	j.broken = os.ErrClosed
	_ = j.Close()
	if err := os.WriteFile(wal, was, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.dir, next, keys); fault.ReasonOf(err) != "journal_rolled_back" {
		t.Errorf("opened: %v", err)
	}
}

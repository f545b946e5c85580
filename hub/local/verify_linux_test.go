package local

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestVerifyJournal: a sound journal is told of in numbers, over a rotation of the key; one that was
// changed is refused, and so are one that is too long and a caller who may not read it.
func TestVerifyJournal(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	r := h.start(h.owner, argv("/usr/bin/seq", "3"))
	h.ended(h.owner, r.ID)
	if _, err := hub.RotateKey.Do(ctx, h, h.owner, hub.KeyRotation{}); err != nil {
		t.Fatal(err)
	}
	a, err := hub.VerifyJournal.Do(ctx, h, h.owner, hub.None{})
	if err != nil || a.Intents != 1 || a.Results != 1 || a.Outcomes["executed"] != 1 || len(a.Orphans) != 0 || len(a.Keys) != 2 || len(a.LogKeys) != 1 || a.Root.IsZero() || a.Acts == 0 {
		t.Errorf("%+v, %v", a, err)
	}
	for size, good := range map[uint64]bool{hub.MaxVerified: true, hub.MaxVerified + 1: false} {
		if err := verifiable(size); good != (err == nil) || !good && fault.HintOf(err) == "" {
			t.Errorf("%d entries: %v", size, err)
		}
	}
	agent, _ := h.token(h.owner, "run.start", "session.read")
	if _, err := hub.VerifyJournal.Do(ctx, h, agent, hub.None{}); fault.KindOf(err) != fault.Denied {
		t.Errorf("without journal.read: %v", err)
	}
	var changed string
	var was []byte
	if err := filepath.WalkDir(h.k.JournalDir(), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || changed != "" {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && len(b) > 200 {
			changed, was = path, bytes.Clone(b)
			b[len(b)/2] ^= 1
			err = os.WriteFile(path, b, 0o600)
		}
		return err
	}); err != nil || changed == "" {
		t.Fatalf("nothing changed: %v", err)
	}
	if _, err := hub.VerifyJournal.Do(ctx, h, h.owner, hub.None{}); fault.KindOf(err) != fault.Integrity {
		t.Errorf("a changed journal, in %s: %v", changed, err)
	}
	if err := os.WriteFile(changed, was, 0o600); err != nil { // it's verified once more at the end
		t.Fatal(err)
	}
}

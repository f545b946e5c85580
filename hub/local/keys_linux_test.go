package local

import (
	"path/filepath"
	"testing"

	"palyra/authz/access"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/internal/fault"
)

// TestRotateKey: an owner replaces the key while the daemon runs, and no lesser member does.
func TestRotateKey(t *testing.T) {
	h := newHouse(t, nil)
	admin := h.member(1001, access.Admin)
	if _, err := hub.RotateKey.Do(t.Context(), h, admin, hub.KeyRotation{}); fault.KindOf(err) != fault.Denied {
		t.Errorf("an admin rotates: %v", err)
	}
	before, err := hub.GetReceipt.Do(t.Context(), h, h.owner, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := hub.RotateKey.Do(t.Context(), h, h.owner, hub.KeyRotation{IntroduceOnly: true})
	if err != nil || len(p.Items) != 3 || p.Items[2].Signs != "checkpoints" || p.Items[0].State != "in_force" || p.Items[1].State != "introduced" {
		t.Fatalf("introduced: %+v, %v", p, err)
	}
	p, err = hub.RotateKey.Do(t.Context(), h, h.owner, hub.KeyRotation{})
	if err != nil || len(p.Items) != 3 || p.Items[2].Signs != "checkpoints" || p.Items[0].State != "ended" || p.Items[1].State != "in_force" || *p.Items[0].To != p.Items[1].From {
		t.Fatalf("rotated: %+v, %v", p, err)
	}
	if l, err := hub.ListKeys.Do(t.Context(), h, admin, hub.None{}); err != nil || len(l.Items) != 3 || l.Items[1].Hint != p.Items[1].Hint {
		t.Errorf("listed: %+v, %v", l, err)
	}
	if _, err := hub.Reload.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
		t.Fatal(err)
	}
	s, err := hub.GetJournal.Do(t.Context(), h, h.owner, hub.None{})
	if err != nil {
		t.Fatal(err)
	}
	after, err := hub.GetReceipt.Do(t.Context(), h, h.owner, s.Size-1)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := receipt.LoadTrust(filepath.Join(h.k.StateDir(), "trust"))
	if err != nil {
		t.Fatal(err)
	}
	for n, b := range [][]byte{before, after} {
		if v, err := receipt.Verify(b, trust); err != nil || v.KeyHint != p.Items[n].Hint {
			t.Errorf("receipt %d: %+v, %v", n, v, err)
		}
	}
}

// TestRotateLogKey: the same for the key of the journal's checkpoints.
func TestRotateLogKey(t *testing.T) {
	h := newHouse(t, nil)
	admin := h.member(1001, access.Admin)
	if _, err := hub.RotateKey.Do(t.Context(), h, admin, hub.KeyRotation{Log: true}); fault.KindOf(err) != fault.Denied {
		t.Errorf("an admin rotates: %v", err)
	}
	before, err := hub.GetReceipt.Do(t.Context(), h, h.owner, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := hub.RotateKey.Do(t.Context(), h, h.owner, hub.KeyRotation{Log: true})
	if err != nil || len(p.Items) != 3 || p.Items[1].State != "ended" || p.Items[1].Signs != "checkpoints" || p.Items[2].State != "in_force" || *p.Items[1].To != p.Items[2].From {
		t.Fatalf("rotated: %+v, %v", p, err)
	}
	after, err := hub.GetReceipt.Do(t.Context(), h, h.owner, 0)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := receipt.LoadTrust(filepath.Join(h.k.StateDir(), "trust"))
	if err != nil {
		t.Fatal(err)
	}
	for n, b := range [][]byte{before, after} {
		if _, err := receipt.Verify(b, trust); err != nil {
			t.Errorf("receipt %d: %v", n, err)
		}
	}
	c, err := hub.ProveJournalConsistency.Do(t.Context(), h, h.owner, hub.JournalSince{Old: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := trust.LogKeys().Open([]byte(c.Checkpoint)); err != nil {
		t.Errorf("the newest checkpoint: %v", err)
	}
}

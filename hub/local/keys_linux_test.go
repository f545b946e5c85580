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
	if err != nil || len(p.Items) != 2 || p.Items[0].State != "in_force" || p.Items[1].State != "introduced" {
		t.Fatalf("introduced: %+v, %v", p, err)
	}
	p, err = hub.RotateKey.Do(t.Context(), h, h.owner, hub.KeyRotation{})
	if err != nil || len(p.Items) != 2 || p.Items[0].State != "ended" || p.Items[1].State != "in_force" || *p.Items[0].To != p.Items[1].From {
		t.Fatalf("rotated: %+v, %v", p, err)
	}
	if l, err := hub.ListKeys.Do(t.Context(), h, admin, hub.None{}); err != nil || len(l.Items) != 2 || l.Items[1].Hint != p.Items[1].Hint {
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

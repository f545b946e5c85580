package local

import (
	"slices"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/crypt/ca"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestReplaceRoot: an owner alone introduces a root. The hub puts it in force a day later, at the next
// certificate, with one of its own; devices of the old root go on, and the journal has each step.
func TestReplaceRoot(t *testing.T) {
	h := newHouse(t, nil)
	if _, err := hub.ReplaceRoot.Do(t.Context(), h, h.owner, hub.RootReplacement{}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("without an authority: %v", err)
	}
	if _, err := hub.GetAuthority.Do(t.Context(), h, h.owner, hub.None{}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("without an authority: %v", err)
	}
	_, csr := deviceKey(t)
	_, chain := h.pair(h.owner, "laptop", csr, false, "run.start")
	if _, err := hub.ReplaceRoot.Do(t.Context(), h, h.member(1001, access.Admin), hub.RootReplacement{}); fault.KindOf(err) != fault.Denied {
		t.Errorf("an admin replaces it: %v", err)
	}
	own, err := h.PeerCertificate()
	if err != nil {
		t.Fatal(err)
	}
	a := h.devices.authority
	old := a.Roots()[0]
	if err := a.Introduce(t.Context(), time.Now().Add(-ca.LeafLife-time.Minute), h.recorder(t.Context(), h.owner, actRootIntroduced, a.Domain())); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.ReplaceRoot.Do(t.Context(), h, h.owner, hub.RootReplacement{}); fault.ReasonOf(err) != "exists" {
		t.Errorf("introduced twice: %v", err)
	}
	h.pair(h.owner, "phone", csr, false, "run.start")
	v, err := hub.GetAuthority.Do(t.Context(), h, h.owner, hub.None{})
	if err != nil || len(v.Roots) != 2 || v.Roots[0].State != "previous" || v.Roots[1].State != "in_force" || v.BeginsAt != nil {
		t.Fatalf("%+v, %v", v, err)
	}
	next, err := h.PeerCertificate()
	if err != nil || next == own {
		t.Fatalf("the hub shows its old certificate: %v", err)
	}
	if _, err := ca.Verify(next.Certificate, [][]byte{old}, ca.Hub, time.Now()); err == nil {
		t.Error("its certificate is of the old root")
	}
	if _, err := ca.Verify(next.Certificate, a.Roots(), ca.Hub, time.Now()); err != nil {
		t.Error(err)
	}
	if err := h.VerifyPeer(chain); err != nil {
		t.Errorf("a device of the old root: %v", err)
	}
	var want []string
	for _, act := range []string{actAuthority, actRootIntroduced, actRootBegun} {
		want = append(want, act+" "+a.Domain())
	}
	if acts := h.acts("ca."); !slices.Equal(acts, want) {
		t.Errorf("acts %q, want %q", acts, want)
	}
}

// TestAuthorityRead: whoever asks what the authority is doesn't wait for a change, which may wait for
// the journal.
func TestAuthorityRead(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	h.pair(h.owner, "laptop", csr, false, "run.start")
	h.devices.changing.Lock()
	defer h.devices.changing.Unlock()
	read := make(chan error, 2)
	go func() {
		_, err := hub.GetAuthority.Do(t.Context(), h, h.owner, hub.None{})
		read <- err
		_, err = h.identity()
		read <- err
	}()
	for range cap(read) {
		select {
		case err := <-read:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second): // a test that hangs fails
			t.Fatal("it waits for the change")
		}
	}
}

// TestHeldAuthority: in safe mode a handshake gets the hub's certificate, and replaces neither a root
// nor an issuer that is due.
func TestHeldAuthority(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	h.pair(h.owner, "laptop", csr, false, "run.start")
	a := h.devices.authority
	if err := a.Introduce(t.Context(), time.Now().Add(-ca.LeafLife-time.Minute), h.recorder(t.Context(), h.owner, actRootIntroduced, a.Domain())); err != nil {
		t.Fatal(err)
	}
	h.stop()
	h.reopen(func(cfg *Config, _ *kernel.Config) { cfg.Hold = true })
	before := h.acts("ca.")
	if _, err := h.PeerCertificate(); err != nil {
		t.Fatal(err)
	}
	if acts := h.acts("ca."); !slices.Equal(acts, before) || len(h.devices.authority.Roots()) != 2 {
		t.Errorf("safe mode changed the authority: %q", acts)
	}
	h.stop()
	h.reopen(nil)
	if _, err := h.PeerCertificate(); err != nil || len(h.devices.authority.Roots()) != 1 {
		t.Errorf("after it: %v, %d roots", err, len(h.devices.authority.Roots()))
	}
}

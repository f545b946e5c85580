package local

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/crypt/ca"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/clock"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestDeviceStreamsEnd: what a device opened with a certificate doesn't outlive it, though its token
// and its connection do.
func TestDeviceStreamsEnd(t *testing.T) {
	host, c := clock.TestOnlyNew(time.Now())
	h := newHouse(t, func(cfg *Config, _ *kernel.Config) { cfg.Clock, cfg.TokenMaxAge = c, 720*time.Hour })
	ctx := t.Context()
	_, csr := deviceKey(t)
	_, chain := h.pair(h.owner, "laptop", csr, false, "session.read", "session.write", "run.start", "artifact.read")
	d, err := h.asDevice(chain)
	if err != nil {
		t.Fatal(err)
	}
	r := h.start(d, writeFile("a.txt", "1"))
	h.until(d, r.ID, hub.EventRunWaitingApproval)
	out, err := hub.ReadOutput.Do(ctx, h, d, hub.OutputQuery{Run: r.ID, Until: hub.UntilNow})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	host.Pass(ca.LeafLife - time.Hour)
	if err := h.MayFollow(d); err != nil {
		t.Fatal("before its end: ", err)
	}
	host.Pass(2 * time.Hour)
	if err := h.MayFollow(d); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a tape goes on: %v", err)
	}
	if p, err := out.Next(ctx); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("output goes on: %+v, %v", p, err)
	}
	if _, err := hub.ListRuns.Do(ctx, h, d, hub.RunQuery{}); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a caller that was let in before: %v", err)
	}
	if v, err := hub.GetDevice.Do(ctx, h, h.owner, "laptop"); err != nil || v.State != hub.DeviceActive || len(v.Certificates) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestDeviceRemoved: a device that has ended can be forgotten, by whoever sees it, and gives back its
// place; one that is active can't. Its certificates are worth nothing after that either, and its id is
// free.
func TestDeviceRemoved(t *testing.T) {
	host, c := clock.TestOnlyNew(time.Now())
	set := func(cfg *Config, _ *kernel.Config) { cfg.Clock, cfg.TokenMaxAge = c, time.Hour }
	h := newHouse(t, set)
	ctx := t.Context()
	bob, eve := h.member(1002, access.Operator), h.member(1003, access.Operator)
	_, csr := deviceKey(t)
	_, chain := h.pair(bob, "laptop", csr, false, "run.start")
	for i := range maxDevicesEach - 1 {
		id := fmt.Sprintf("gone-%d", i)
		h.devices.byID[id] = &store.Device{ID: id, Principal: bob.User, Revoked: time.Unix(1, 0)}
	}
	if _, _, _, err := h.enrol(ctx, bob, Enrolment{ID: "phone", CSR: csr}); fault.ReasonOf(err) != "quota" {
		t.Fatalf("one more: %v", err)
	}
	remove := func(c hub.Caller, id string) error {
		_, err := hub.RemoveDevice.Do(ctx, h, c, id)
		return err
	}
	if err := remove(bob, "laptop"); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("an active one: %v", err)
	}
	if err := remove(eve, "gone-1"); fault.ReasonOf(err) != "not_found" {
		t.Errorf("another's: %v", err)
	}
	d, err := h.asDevice(chain)
	if err != nil {
		t.Fatal("it lost its authority to an attempt: ", err)
	}
	if err := remove(d, "gone-1"); fault.KindOf(err) != fault.Denied {
		t.Errorf("by a device without the scope: %v", err)
	}
	if _, err := hub.RevokeDevice.Do(ctx, h, bob, "laptop"); err != nil {
		t.Fatal(err)
	}
	if err := remove(bob, "laptop"); err != nil {
		t.Fatal(err)
	}
	h.wantJournal("device.", "device.enrol laptop", "device.revoke laptop", "device.remove laptop")
	if err := remove(bob, "laptop"); fault.ReasonOf(err) != "not_found" {
		t.Errorf("a second time: %v", err)
	}
	// Its id is free, and its old certificate isn't the new device's.
	_, other := deviceKey(t)
	h.pair(eve, "laptop", other, false, "run.start")
	check := func() {
		t.Helper()
		if _, err := h.asDevice(chain); fault.ReasonOf(err) != "unauthenticated" {
			t.Errorf("its certificate after its end: %v", err)
		}
	}
	check()
	h.stop()
	h.reopen(set)
	check()
	if h.HasDevice("gone-0") || !h.HasDevice("laptop") {
		t.Error("the rows aren't as they were left")
	}
	// One whose time is over can be removed, and stays without authority.
	host.Pass(2 * time.Hour)
	if err := remove(eve, "laptop"); err != nil {
		t.Errorf("an expired one: %v", err)
	}
	if rows, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Device, error) { return tx.Devices() }); err != nil || len(rows) != 0 {
		t.Errorf("%+v, %v", rows, err)
	}
}

// TestRevokeDeviceAtOnce: a device loses its authority and its connections while another change of
// devices waits for the journal.
func TestRevokeDeviceAtOnce(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	_, chain := h.pair(h.owner, "laptop", csr, false, "run.start")
	cut, done := make(chan string, 1), make(chan error, 1)
	h.OnDeviceEnd(func(id string) { cut <- id })
	h.devices.changing.Lock()
	go func() {
		_, err := hub.RevokeDevice.Do(t.Context(), h, h.owner, "laptop")
		done <- err
	}()
	select {
	case id := <-cut:
		if _, err := h.asDevice(chain); id != "laptop" || fault.ReasonOf(err) != "unauthenticated" {
			t.Errorf("%q was cut off: %v", id, err)
		}
	case <-time.After(30 * time.Second): // a test that hangs fails
		t.Error("it waits for the other change")
	}
	h.devices.changing.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	h.wantJournal("device.", "device.enrol laptop", "device.revoke laptop")
}

// wantJournal wants these acts that begin so, with their subjects, oldest first.
func (h *house) wantJournal(prefix string, want ...string) {
	h.t.Helper()
	if got := h.acts(prefix); !slices.Equal(got, want) {
		h.t.Errorf("the journal has %q, want %q", got, want)
	}
}

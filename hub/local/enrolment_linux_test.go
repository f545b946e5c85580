package local

import (
	"slices"
	"testing"
	"time"

	"palyra/crypt/pair"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// enrolHouse is a house in which the next enrolment calls do at a step.
func enrolHouse(t *testing.T) (h *house, at func(step string, do func()), set func(*Config, *kernel.Config)) {
	t.Helper()
	var where string
	var what func()
	set = func(c *Config, _ *kernel.Config) {
		c.Pairing = func() string { return "127.0.0.1:7445" }
		c.TestOnlyStep = func(name string) {
			if name == where {
				where = ""
				what()
			}
		}
	}
	return newHouse(t, set), func(step string, do func()) { where, what = step, do }, set
}

var enrolSteps = []string{"enrol:begun", "enrol:minted", "enrol:issued", "enrol:ended", "enrol:logged", "enrol:kept"}

// TestEnrolmentCutShort: wherever an enrolment is cut short, its pairing has ended, and after a restart
// there is a device with its token or neither; the device that it should replace has its authority
// unless that was ended first.
func TestEnrolmentCutShort(t *testing.T) {
	for _, step := range enrolSteps {
		t.Run(step, func(t *testing.T) {
			h, at, set := enrolHouse(t)
			// A token of the same name that the owner made and never used is none of this.
			own, err := hub.CreateToken.Do(t.Context(), h, h.owner, hub.NewToken{Name: "device laptop", Scopes: []string{"run.start"}, TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			old, _ := h.pairs(t, "laptop")
			p := h.begin()
			x := h.comes(t, p.Code, "laptop")
			at(step, func() { panic("cut short") })
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("it doesn't come to %s", step)
					}
				}()
				_, _ = h.approvesPairing(h.owner, p.ID, x.digits, func(g *hub.PairingGrant) { g.Replace = true })
			}()
			if now, err := hub.GetPairing.Do(t.Context(), h, h.owner, hub.PairingQuery{ID: p.ID}); err != nil || now.State != "failed" || now.End != "issue" {
				t.Errorf("the pairing is %+v, %v", now, err)
			}
			x.refused("pairing_over")
			<-x.over
			if h.PairingWaits() {
				t.Error("it keeps its place")
			}
			h.stop()
			h.reopen(set)
			d, err := hub.GetDevice.Do(t.Context(), h, h.owner, "laptop")
			if err != nil {
				t.Fatal(err)
			}
			i := slices.Index(enrolSteps, step)
			if _, err := h.asDevice(ders(old)); (err == nil) != (i < slices.Index(enrolSteps, "enrol:ended")) {
				t.Errorf("the old one: %v", err)
			}
			tokens, err := hub.ListTokens.Do(t.Context(), h, h.owner, hub.TokenQuery{})
			if err != nil {
				t.Fatal(err)
			}
			for _, tok := range tokens.Items {
				if tok.State == "active" && tok.ID != d.Token && tok.ID != own.ID {
					t.Errorf("token %+v is left; the device has %s", tok, d.Token)
				}
				if tok.ID == own.ID && tok.State != "active" {
					t.Errorf("the owner's own token is %s", tok.State)
				}
			}
			// The next one comes about.
			h.pairs(t, "laptop")
		})
	}
}

// TestReplacerGone: a device that has gone replaces no other, and one for which a certificate was made
// that it can't have got isn't active.
func TestReplacerGone(t *testing.T) {
	h, at, _ := enrolHouse(t)
	old, _ := h.pairs(t, "laptop")
	for _, step := range []string{"enrol:begun", "enrol:issued", "enrol:kept"} {
		p := h.begin()
		x := h.comes(t, p.Code, "laptop")
		at(step, func() { x.w.Close(); <-x.over })
		_, err := h.approvesPairing(h.owner, p.ID, x.digits, func(g *hub.PairingGrant) { g.Replace = true })
		if fault.ReasonOf(err) != "connection_lost" {
			t.Errorf("%s: %v", step, err)
		}
		d, err := hub.GetDevice.Do(t.Context(), h, h.owner, "laptop")
		if err != nil {
			t.Fatal(err)
		}
		_, alive := h.asDevice(ders(old))
		if made := step == "enrol:kept"; (alive == nil) == made || (d.State == hub.DeviceRevoked) != made {
			t.Errorf("%s: the old one: %v; the device is %s", step, alive, d.State)
		}
		if now, err := hub.GetPairing.Do(t.Context(), h, h.owner, hub.PairingQuery{ID: p.ID}); err != nil || pair.State(now.State) != pair.Failed {
			t.Errorf("%s: %+v, %v", step, now, err)
		}
	}
}

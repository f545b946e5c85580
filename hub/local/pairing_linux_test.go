package local

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/crypt/ca"
	"palyra/crypt/pair"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// wire is one end of a connection in memory.
type wire struct {
	in, out chan []byte
	once    *sync.Once
	end     chan struct{}
}

func newWire() (a, b wire) {
	x, y, end, once := make(chan []byte, 8), make(chan []byte, 8), make(chan struct{}), new(sync.Once)
	return wire{x, y, once, end}, wire{y, x, once, end}
}

func (w wire) Binding() []byte { return bytes.Repeat([]byte{5}, pair.BindingSize) }

func (w wire) Read(time.Time) ([]byte, error) {
	select {
	case b := <-w.in:
		return b, nil
	default:
	}
	select {
	case b := <-w.in:
		return b, nil
	case <-w.end:
		select {
		case b := <-w.in: // sent before the end
			return b, nil
		default:
			return nil, io.EOF
		}
	}
}

func (w wire) Write(b []byte) error { w.out <- bytes.Clone(b); return nil }
func (w wire) Close() error         { w.once.Do(func() { close(w.end) }); return nil }

// pairHouse is a house in which devices can pair.
func pairHouse(t *testing.T) *house {
	t.Helper()
	return newHouse(t, func(c *Config, _ *kernel.Config) {
		c.Pairing = func() string { return "127.0.0.1:7445" }
		c.TokensEach = 4
	})
}

// pairs pairs a device to the end, and returns its chain.
func (h *house) pairs(t *testing.T, id string) (*pair.Chain, *device) {
	t.Helper()
	p := h.begin()
	x := h.comes(t, p.Code, id)
	if _, err := h.approvesPairing(h.owner, p.ID, x.digits, func(g *hub.PairingGrant) { g.Replace = true }); err != nil {
		t.Fatal(err)
	}
	done, chain, err := x.d.Answer(x.read(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	x.send(done)
	if err := <-x.over; err != nil {
		t.Fatal(err)
	}
	return chain, x
}

func ders(chain *pair.Chain) (out [][]byte) {
	for _, c := range chain.Certificates {
		out = append(out, c.Raw)
	}
	return out
}

// device is the other side of a pairing.
type device struct {
	t    *testing.T
	h    *house
	d    *pair.Device
	w    wire
	over chan error // of the hub's Enrol

	digits string // on its screen
}

func (h *house) begin() hub.PairingCode {
	h.t.Helper()
	p, err := hub.BeginPairing.Do(h.t.Context(), h, h.owner, hub.None{})
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

// comes has a device come with a code, up to its digits.
func (h *house) comes(t *testing.T, text, id string) *device {
	t.Helper()
	code, err := pair.ParseCode(text)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(h.EnrolmentCertificate().Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	mine, hubs := newWire()
	x := &device{t: t, h: h, w: mine, over: make(chan error, 1)}
	if x.d, err = pair.NewDevice(code, pair.Channel{HubKey: cert.RawSubjectPublicKeyInfo, Binding: mine.Binding()}, key,
		pair.Request{Device: id, Kind: "cli", Scopes: []string{"run.start", "session.read"}}); err != nil {
		t.Fatal(err)
	}
	go func() { x.over <- h.Enrol(t.Context(), hubs) }()
	t.Cleanup(func() { mine.Close() })
	x.send(x.d.Hello())
	rev, err := x.d.Offer(x.read())
	if err != nil {
		t.Fatal(err)
	}
	x.send(rev)
	if err := x.d.Wait(x.read()); err != nil {
		t.Fatal(err)
	}
	x.digits = x.d.Digits()
	return x
}

func (x *device) send(b []byte) { _ = x.w.Write(b) }

func (x *device) read() []byte {
	x.t.Helper()
	b, err := x.w.Read(time.Time{})
	if err != nil {
		x.t.Fatal(err)
	}
	return b
}

// refused wants the reason that the device is told.
func (x *device) refused(reason string) {
	x.t.Helper()
	_, _, err := x.d.Answer(x.read(), time.Now())
	if fault.ReasonOf(err) != reason {
		x.t.Errorf("the device is told %v, want %q", err, reason)
	}
}

func (h *house) approvesPairing(c hub.Caller, id, digits string, change func(*hub.PairingGrant)) (hub.Pairing, error) {
	in := hub.PairingApproval{ID: id, PairingGrant: hub.PairingGrant{Digits: digits}}
	if change != nil {
		change(&in.PairingGrant)
	}
	return hub.ApprovePairing.Do(h.t.Context(), h, c, in)
}

// pairingActs returns the acts of a pairing in the journal, oldest first.
func (h *house) pairingActs(id string) (acts []string) {
	h.t.Helper()
	for _, act := range h.acts("pairing.") {
		name, subject, _ := strings.Cut(strings.TrimPrefix(act, "pairing."), " ")
		if subject == id {
			acts = append(acts, name)
		}
	}
	return acts
}

func (h *house) wantActs(id string, want ...string) {
	h.t.Helper()
	if got := h.pairingActs(id); !slices.Equal(got, want) {
		h.t.Errorf("the journal has %q of the pairing, want %q", got, want)
	}
}

func TestPairing(t *testing.T) {
	h := pairHouse(t)
	p := h.begin()
	if p.State != "open" || p.Address != "127.0.0.1:7445" || p.Code == "" {
		t.Fatalf("%+v", p)
	}
	x := h.comes(t, p.Code, "laptop")
	got, err := hub.GetPairing.Do(t.Context(), h, h.owner, hub.PairingQuery{ID: p.ID, Unlike: "begun"})
	if err != nil || got.State != "pending" || got.Device != "laptop" || len(got.Scopes) != 2 || got.Known || got.Key == "" {
		t.Fatalf("%+v, %v", got, err)
	}
	if h.HasDevice("laptop") {
		t.Fatal("there is a device before the operator's yes")
	}
	if got, err = h.approvesPairing(h.owner, p.ID, x.digits, nil); err != nil || got.State != "issued" && got.State != "completed" {
		t.Fatalf("%+v, %v", got, err)
	}
	done, chain, err := x.d.Answer(x.read(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	x.send(done)
	if err := <-x.over; err != nil {
		t.Errorf("enrol: %v", err)
	}
	if leaf, err := ca.Verify(ders(chain), h.devices.authority.Roots(), ca.Device, time.Now()); err != nil || leaf.Identity.ID != "laptop" {
		t.Errorf("%+v, %v", leaf, err)
	}
	c, err := h.Authenticate(t.Context(), hub.Credential{Chain: ders(chain), Surface: "mtls"})
	if err != nil || c.User != h.owner.User || c.Device != "laptop" || !slices.Equal(c.Scopes, []string{"session.read", "run.start"}) {
		t.Errorf("the device is %+v, %v", c, err)
	}
	h.wantActs(p.ID, "open", "begun", "pending", "approved", "issued", "completed")
	list, err := hub.ListPairings.Do(t.Context(), h, h.owner, hub.None{})
	if err != nil || len(list.Items) != 1 || list.Items[0].State != "completed" {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestPairingIsRefused: whatever the reason, no certificate is made, the device is told, the
// journal has it, and the right digits come too late.
func TestPairingIsRefused(t *testing.T) {
	h := pairHouse(t)
	for _, tc := range []struct {
		name, device, last string
		refuse             func(p hub.PairingCode, x *device) error
	}{
		{"digits", "pairing_over", "failed", func(p hub.PairingCode, x *device) error {
			wrong := fmt.Sprintf("%06d", 1)
			if wrong == x.digits {
				wrong = "000000"
			}
			_, err := h.approvesPairing(h.owner, p.ID, wrong, nil)
			if fault.ReasonOf(err) != "pairing_over" || !strings.Contains(err.Error(), "they are not the device's") {
				return fmt.Errorf("wrong digits: %v", err)
			}
			return nil
		}},
		{"denied", "not_approved", "refused", func(p hub.PairingCode, x *device) error {
			_, err := hub.DenyPairing.Do(t.Context(), h, h.owner, p.ID)
			return err
		}},
		{"authority", "pairing_over", "failed", func(p hub.PairingCode, x *device) error {
			for i := range 4 { // the owner may have no further token, and a device is one
				if _, err := hub.CreateToken.Do(t.Context(), h, h.owner, hub.NewToken{Name: fmt.Sprint(i), Scopes: []string{"session.read"}, TTL: time.Hour}); err != nil {
					return err
				}
			}
			_, err := h.approvesPairing(h.owner, p.ID, x.digits, nil)
			if fault.ReasonOf(err) != "quota" {
				return fmt.Errorf("no certificate should be made: %v", err)
			}
			return nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := h.begin()
			x := h.comes(t, p.Code, "phone")
			if err := tc.refuse(p, x); err != nil {
				t.Fatal(err)
			}
			x.refused(tc.device)
			if err := <-x.over; err == nil {
				t.Error("enrol has no error")
			}
			if _, err := h.approvesPairing(h.owner, p.ID, x.digits, nil); fault.ReasonOf(err) != "version_conflict" {
				t.Errorf("approve after the end: %v", err)
			}
			if acts := h.pairingActs(p.ID); acts[len(acts)-1] != tc.last {
				t.Errorf("the journal has %q, and at last should have %q", acts, tc.last)
			}
		})
	}
	if h.HasDevice("phone") {
		t.Error("a device was made")
	}
}

// TestPairingOfRevoked: a device that is revoked while its next pairing waits gets nothing by it
// without a word of the operator, and its old certificates stay useless.
func TestPairingOfRevoked(t *testing.T) {
	h := pairHouse(t)
	chain, _ := h.pairs(t, "laptop")
	p := h.begin()
	x := h.comes(t, p.Code, "laptop")
	if _, err := hub.RevokeDevice.Do(t.Context(), h, h.owner, "laptop"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.approvesPairing(h.owner, p.ID, x.digits, nil); fault.ReasonOf(err) != "exists" {
		t.Errorf("approve what was revoked meanwhile: %v", err)
	}
	if _, err := hub.DenyPairing.Do(t.Context(), h, h.owner, p.ID); err != nil {
		t.Fatal(err)
	}
	x.refused("not_approved")
	if _, err := h.Authenticate(t.Context(), hub.Credential{Chain: ders(chain), Surface: "mtls"}); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("the revoked device: %v", err)
	}
	again, _ := h.pairs(t, "laptop")
	if _, err := h.Authenticate(t.Context(), hub.Credential{Chain: ders(again), Surface: "mtls"}); err != nil {
		t.Errorf("the device that replaced it: %v", err)
	}
	if _, err := h.Authenticate(t.Context(), hub.Credential{Chain: ders(chain), Surface: "mtls"}); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("the revoked device, after it was replaced: %v", err)
	}
}

// TestPairingOperatorGone: an operator who lost the right while a pairing waited approves nothing.
func TestPairingOperatorGone(t *testing.T) {
	h := pairHouse(t)
	alice := h.member(1001, access.Operator)
	p, err := hub.BeginPairing.Do(t.Context(), h, alice, hub.None{})
	if err != nil {
		t.Fatal(err)
	}
	x := h.comes(t, p.Code, "laptop")
	if _, err := hub.RemoveMember.Do(t.Context(), h, h.owner, hub.MemberRemoval{Principal: alice.User}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.approvesPairing(alice, p.ID, x.digits, nil); fault.KindOf(err) != fault.Denied {
		t.Errorf("approve: %v", err)
	}
	if h.HasDevice("laptop") {
		t.Error("a device was made")
	}
}

// TestPairingDeviceGoes: a pairing ends with the device's connection, and the end is journaled.
func TestPairingDeviceGoes(t *testing.T) {
	h := pairHouse(t)
	p := h.begin()
	x := h.comes(t, p.Code, "phone")
	x.w.Close()
	if err := <-x.over; err == nil {
		t.Error("enrol has no error")
	}
	if _, err := h.approvesPairing(h.owner, p.ID, x.digits, nil); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("approve: %v", err)
	}
	h.wantActs(p.ID, "open", "begun", "pending", "failed")
	// What a device says before it was asked ends it, too.
	p = h.begin()
	x = h.comes(t, p.Code, "phone")
	x.send([]byte("anything"))
	if err := <-x.over; fault.ReasonOf(err) != "pairing_proof" {
		t.Errorf("enrol: %v", err)
	}
	h.wantActs(p.ID, "open", "begun", "pending", "failed")
}

// TestPairingGrants: no one grants more than they hold or the device asked for, and no device is
// replaced without a word. These leave the pairing as it is, and cost no try.
func TestPairingGrants(t *testing.T) {
	h := pairHouse(t)
	h.pairs(t, "laptop")
	tok, err := hub.CreateToken.Do(t.Context(), h, h.owner, hub.NewToken{Name: "t", Scopes: []string{"token.manage", "session.read"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	weak, err := h.Authenticate(t.Context(), hub.Credential{Token: tok.Secret, Surface: "http"})
	if err != nil {
		t.Fatal(err)
	}
	p := h.begin()
	x := h.comes(t, p.Code, "laptop")
	v, err := hub.GetPairing.Do(t.Context(), h, h.owner, hub.PairingQuery{ID: p.ID, Unlike: "begun"})
	if err != nil || !v.Known {
		t.Fatalf("%+v, %v", v, err)
	}
	scopes := func(s ...string) func(*hub.PairingGrant) {
		return func(g *hub.PairingGrant) { g.Scopes, g.Replace = &s, true }
	}
	for _, tc := range []struct {
		by     hub.Caller
		digits string
		change func(*hub.PairingGrant)
		reason string
	}{
		{weak, x.digits, nil, "permission_denied"},
		{h.owner, x.digits, scopes("member.manage"), "invalid_input"},
		{h.owner, x.digits, scopes("everything"), "invalid_input"},
		{h.owner, x.digits, nil, "exists"},
		{h.owner, "12345", scopes(), "invalid_input"},
		{h.owner, "12345x", scopes(), "invalid_input"},
	} {
		if _, err := h.approvesPairing(tc.by, p.ID, tc.digits, tc.change); fault.ReasonOf(err) != tc.reason {
			t.Errorf("%v, want %q", err, tc.reason)
		}
	}
	admin := h.member(1001, access.Admin)
	if _, err := h.approvesPairing(admin, p.ID, x.digits, scopes()); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("an admin approves another's pairing: %v", err)
	}
	other := h.member(1002, access.Operator)
	if _, err := hub.GetPairing.Do(t.Context(), h, other, hub.PairingQuery{ID: p.ID}); fault.ReasonOf(err) != "not_found" {
		t.Errorf("an operator sees another's pairing: %v", err)
	}
	if _, err := hub.DenyPairing.Do(t.Context(), h, other, p.ID); fault.ReasonOf(err) != "not_found" {
		t.Errorf("an operator denies another's pairing: %v", err)
	}
	if _, err := h.approvesPairing(weak, p.ID, x.digits, scopes("session.read")); err != nil {
		t.Fatal(err)
	}
	if _, chain, err := x.d.Answer(x.read(), time.Now()); err != nil || !slices.Equal(chain.Scopes, []string{"session.read"}) {
		t.Errorf("%v", err)
	}
}

// TestPairingsAreBounded: one principal can't take all places.
func TestPairingsAreBounded(t *testing.T) {
	h := pairHouse(t)
	for range pairingsEach {
		h.begin()
	}
	if _, err := hub.BeginPairing.Do(t.Context(), h, h.owner, hub.None{}); fault.ReasonOf(err) != "too_many" {
		t.Errorf("one more: %v", err)
	}
	if _, err := hub.BeginPairing.Do(t.Context(), h, h.member(1001, access.Operator), hub.None{}); err != nil {
		t.Errorf("another principal: %v", err)
	}
}

func TestPairingStrangers(t *testing.T) {
	h := pairHouse(t)
	if h.PairingWaits() {
		t.Error("a pairing waits that no one began")
	}
	h.begin()
	if !h.PairingWaits() {
		t.Error("no pairing waits")
	}
	for range 3 {
		mine, hubs := newWire()
		over := make(chan error, 1)
		go func() { over <- h.Enrol(t.Context(), hubs) }()
		_ = mine.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		if err := <-over; fault.ReasonOf(err) != "pairing_proof" {
			t.Errorf("enrol: %v", err)
		}
	}
	if got := h.pairingActs(""); !slices.Equal(got, []string{"failed", "failed", "failed"}) {
		t.Errorf("the journal has %q of strangers", got)
	}
}

// TestPairingNeedsAListener: without one no code is made.
func TestPairingNeedsAListener(t *testing.T) {
	h := newHouse(t, nil)
	if _, err := hub.BeginPairing.Do(t.Context(), h, h.owner, hub.None{}); fault.ReasonOf(err) != "not_ready" {
		t.Errorf("without a listener: %v", err)
	}
}

package local

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/crypt/ca"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// deviceKey makes a device's key and a signing request for it.
func deviceKey(t testing.TB) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key, requestOf(t, key)
}

func requestOf(t testing.TB, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

// pair enrols a device of c with these scopes and returns its chain.
func (h *house) pair(c hub.Caller, id string, csr []byte, replace bool, scopes ...string) (hub.Device, [][]byte) {
	h.t.Helper()
	d, chain, roots, err := h.enrol(h.t.Context(), c, Enrolment{ID: id, Scopes: scopes, CSR: csr, Replace: replace})
	if err != nil {
		h.t.Fatal(err)
	}
	if l, err := ca.Verify(chain, roots, ca.Device, time.Now()); err != nil || l.Identity.ID != id || "sha256:"+l.KeyDigest != d.Key {
		h.t.Fatalf("%+v, %v", l, err)
	}
	return d, chain
}

func (h *house) asDevice(chain [][]byte) (hub.Caller, error) {
	return h.Authenticate(h.t.Context(), hub.Credential{Chain: chain, Surface: "http"})
}

// ends notes the devices that the hub cuts off.
func (h *house) ends() *[]string {
	var ended []string
	h.OnDeviceEnd(func(id string) { ended = append(ended, id) })
	return &ended
}

// TestDevice follows a device from its enrolment over a renewal and a restart to its revocation.
func TestDevice(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	key, csr := deviceKey(t)
	d, chain := h.pair(h.owner, "laptop", csr, false, "session.read", "run.start", "token.manage")
	if d.State != hub.DeviceActive || d.Principal != h.owner.User || d.Name != "laptop" || len(d.Certificates) != 1 || d.Version != 1 {
		t.Errorf("%+v", d)
	}
	c, err := h.asDevice(chain)
	if err != nil || c.User != h.owner.User || c.Device != "laptop" || !slices.Equal(c.Scopes, []string{"session.read", "run.start", "token.manage"}) {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := hub.Call.Do(ctx, h, c, hub.NewCall{Tool: "palyra.echo", Input: []byte(`{"text":"x"}`)}); err != nil {
		t.Error(err)
	}
	if _, err := hub.ListMembers.Do(ctx, h, c, hub.None{}); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("beyond its scopes: %v", err)
	}
	renew := func(c hub.Caller, id string, key *ecdsa.PrivateKey) (hub.DeviceChain, error) {
		return hub.RenewDevice.Do(ctx, h, c, hub.DeviceRenewal{ID: id, DeviceKeyRequest: hub.DeviceKeyRequest{CSR: requestOf(t, key)}})
	}
	next, err := renew(c, "laptop", key)
	if err != nil || len(next.Chain) != 2 || !next.Renew.After(time.Now().Add(15*time.Hour)) {
		t.Fatalf("%+v, %v", next, err)
	}
	for _, ch := range [][][]byte{chain, next.Chain} { // the old one holds until it ends
		if _, err := h.asDevice(ch); err != nil {
			t.Error(err)
		}
	}
	other, _ := deviceKey(t)
	if _, err := renew(c, "laptop", other); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("with another key: %v", err)
	}
	if _, err := renew(c, "phone", key); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("of another device: %v", err)
	}
	for range 2 {
		if _, err := renew(c, "laptop", key); err != nil {
			t.Error(err)
		}
	}
	if _, err := renew(c, "laptop", key); fault.ReasonOf(err) != "too_many" {
		t.Errorf("a fifth certificate: %v", err)
	}
	if err := h.Flush(ctx); err != nil {
		t.Error(err)
	}
	h.stop()
	h.reopen(nil)
	if c, err = h.asDevice(chain); err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	if d, err = hub.GetDevice.Do(ctx, h, h.owner, "laptop"); err != nil || len(d.Certificates) != 4 || d.Seen == nil {
		t.Errorf("%+v, %v", d, err)
	}
	ended := h.ends()
	if d, err = hub.RevokeDevice.Do(ctx, h, h.owner, "laptop"); err != nil || d.State != hub.DeviceRevoked || d.Revoked == nil || len(d.Certificates) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if !slices.Equal(*ended, []string{"laptop"}) {
		t.Errorf("cut off %q", *ended)
	}
	refused := func(when string) {
		t.Helper()
		for _, ch := range [][][]byte{chain, next.Chain} {
			if _, err := h.asDevice(ch); fault.ReasonOf(err) != "unauthenticated" {
				t.Errorf("%s: %v", when, err)
			}
		}
		if _, err := hub.ListSessions.Do(ctx, h, c, hub.SessionQuery{}); fault.ReasonOf(err) != "permission_denied" {
			t.Errorf("%s, a caller that was let in before: %v", when, err)
		}
		if _, err := renew(c, "laptop", key); fault.KindOf(err) != fault.Denied {
			t.Errorf("%s, renewal: %v", when, err)
		}
	}
	refused("revoked")
	if _, err := hub.RevokeDevice.Do(ctx, h, h.owner, "laptop"); err != nil {
		t.Errorf("a second time: %v", err)
	}
	h.stop()
	h.reopen(nil)
	refused("revoked, after a restart")
	acts := map[string]int{}
	page, err := hub.ListJournalEntries.Do(ctx, h, h.owner, hub.JournalQuery{Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Items {
		if e.Subject == "laptop" {
			acts[e.Act]++
		}
	}
	if acts["device.enrol"] != 1 || acts["device.renew"] != 3 || acts["device.revoke"] != 1 {
		t.Errorf("the journal has %v", acts)
	}
}

// TestDeviceReplaced: an id is taken until its owner says that a new key replaces it; then the old
// key is worth nothing.
func TestDeviceReplaced(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	_, csr := deviceKey(t)
	_, before := h.pair(h.owner, "laptop", csr, false, "run.start")
	_, csr = deviceKey(t)
	_, _, _, err := h.enrol(ctx, h.owner, Enrolment{ID: "laptop", CSR: csr})
	if fault.ReasonOf(err) != "exists" {
		t.Errorf("without saying so: %v", err)
	}
	admin := h.member(4242, access.Operator)
	if _, _, _, err := h.enrol(ctx, admin, Enrolment{ID: "laptop", CSR: csr, Replace: true}); fault.ReasonOf(err) != "exists" {
		t.Errorf("another's: %v", err)
	}
	if _, err := h.asDevice(before); err != nil {
		t.Fatalf("it lost its authority to an attempt: %v", err)
	}
	ended := h.ends()
	d, after := h.pair(h.owner, "laptop", csr, true, "run.start")
	if d.Version != 2 || !slices.Equal(*ended, []string{"laptop"}) {
		t.Errorf("%+v, cut off %q", d, *ended)
	}
	if _, err := h.asDevice(before); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("the old certificate: %v", err)
	}
	if _, err := h.asDevice(after); err != nil {
		t.Error(err)
	}
	// A revoked one needs the word, too.
	if _, err := hub.RevokeDevice.Do(ctx, h, h.owner, "laptop"); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := h.enrol(ctx, h.owner, Enrolment{ID: "laptop", CSR: csr}); fault.ReasonOf(err) != "exists" {
		t.Errorf("revoked, without saying so: %v", err)
	}
	_, again := h.pair(h.owner, "laptop", csr, true, "run.start")
	if _, err := h.asDevice(again); err != nil {
		t.Error(err)
	}
	if _, err := h.asDevice(after); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a certificate of before its revocation, of the same key: %v", err)
	}
}

// TestDeviceEndsWith: a device loses its authority, and its connections, with whatever gave it.
func TestDeviceEndsWith(t *testing.T) {
	for name, end := range map[string]func(h *house, d hub.Device, approver hub.Caller) error{
		"its token": func(h *house, d hub.Device, approver hub.Caller) error {
			_, err := hub.RevokeToken.Do(h.t.Context(), h, h.owner, hub.TokenChange{ID: d.Token})
			return err
		},
		"the token that approved it": func(h *house, d hub.Device, approver hub.Caller) error {
			_, err := hub.RevokeToken.Do(h.t.Context(), h, h.owner, hub.TokenChange{ID: approver.Token})
			return err
		},
		"its principal": func(h *house, d hub.Device, approver hub.Caller) error {
			_, err := hub.RemoveMember.Do(h.t.Context(), h, h.owner, hub.MemberRemoval{Principal: approver.User})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			c := h.member(4242, access.Operator)
			made, err := hub.CreateToken.Do(t.Context(), h, c, hub.NewToken{Name: "x", Scopes: []string{"run.start", "token.manage"}, TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			approver, err := h.Authenticate(t.Context(), hub.Credential{Token: made.Secret, Surface: "http"})
			if err != nil {
				t.Fatal(err)
			}
			_, csr := deviceKey(t)
			if _, _, _, err := h.enrol(t.Context(), approver, Enrolment{ID: "laptop", CSR: csr, Scopes: []string{"journal.read"}}); fault.ReasonOf(err) != "permission_denied" {
				t.Errorf("beyond the approver's scopes: %v", err)
			}
			d, chain := h.pair(approver, "laptop", csr, false, "run.start")
			if _, err := h.asDevice(chain); err != nil {
				t.Fatal(err)
			}
			ended := h.ends()
			if err := end(h, d, approver); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(*ended, []string{"laptop"}) {
				t.Errorf("cut off %q", *ended)
			}
			if _, err := h.asDevice(chain); fault.ReasonOf(err) != "unauthenticated" {
				t.Errorf("after its end: %v", err)
			}
		})
	}
}

// TestDeviceUnknownLeaf: a leaf that the issuer's key signed, but that the hub has no record of, is
// worth nothing here: the key's thief isn't a device.
func TestDeviceUnknownLeaf(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	_, chain := h.pair(h.owner, "laptop", csr, false, "run.start")
	a, err := ca.Open(h.k.StateDir(), ca.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stolen, err := a.Issue(csr, ca.Identity{Domain: a.Domain(), Kind: ca.Device, ID: "laptop"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Verify(stolen, a.Roots(), ca.Device, time.Now()); err != nil {
		t.Fatal("control: ", err)
	}
	if _, err := h.asDevice(stolen); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a leaf without a record: %v", err)
	}
	uid := uint32(0)
	for _, c := range []hub.Credential{{Chain: [][]byte{{}}}, {Chain: chain, PeerUID: &uid}, {Chain: chain, Token: "palyra_x"}, {Device: "laptop"}} {
		if _, err := h.Authenticate(t.Context(), c); fault.ReasonOf(err) != "unauthenticated" {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestEnrolFails leaves no authority behind when a step fails.
func TestEnrolFails(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, _, err := h.enrol(ctx, h.owner, Enrolment{ID: "laptop", CSR: csr, Scopes: []string{"run.start"}}); err == nil {
		t.Fatal("it came about")
	}
	for _, e := range []Enrolment{{ID: "Laptop", CSR: csr}, {ID: "laptop"}, {ID: "laptop", CSR: csr, Scopes: []string{"x"}}, {CSR: csr}} {
		if _, _, _, err := h.enrol(t.Context(), h.owner, e); fault.KindOf(err) != fault.Usage {
			t.Errorf("%+v: %v", e, err)
		}
	}
	if _, _, _, err := h.enrol(t.Context(), h.peer(4242), Enrolment{ID: "laptop", CSR: csr}); fault.KindOf(err) != fault.Denied {
		t.Errorf("by a stranger: %v", err)
	}
	tokens, err := hub.ListTokens.Do(t.Context(), h, h.owner, hub.TokenQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tok := range tokens.Items {
		if tok.State == "active" {
			t.Errorf("token %+v is left", tok)
		}
	}
	if h.HasDevice("laptop") {
		t.Error("it is known")
	}
}

// TestDevicesOfOne: one principal can't use up the ids of all, not with revoked devices either; it
// still replaces its own.
func TestDevicesOfOne(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	for i := range maxDevicesEach {
		id := fmt.Sprintf("other-%d", i)
		h.devices.byID[id] = &store.Device{ID: id, Principal: "uid:4242", Revoked: time.Unix(1, 0)}
	}
	h.pair(h.owner, "laptop", csr, false, "run.start") // those are another's
	for i := range maxDevicesEach - 1 {
		id := fmt.Sprintf("own-%d", i)
		h.devices.byID[id] = &store.Device{ID: id, Principal: h.owner.User, Revoked: time.Unix(1, 0)}
	}
	if _, _, _, err := h.enrol(t.Context(), h.owner, Enrolment{ID: "phone", CSR: csr}); fault.ReasonOf(err) != "quota" {
		t.Errorf("one more: %v", err)
	}
	h.pair(h.owner, "laptop", csr, true, "run.start")
}

// TestIssuerNotReplaced: an issuer that is due certifies on while no other can be made.
func TestIssuerNotReplaced(t *testing.T) {
	h := newHouse(t, nil)
	j, err := h.k.JournalStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	state := h.k.StateDir()
	a, err := ca.Create(t.Context(), state, j.Origin, time.Now().Add(-ca.IssuerLife*3/4), ca.Options{}, func(map[string]string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	h.devices.use(a)
	due := a.RotateAt()
	root := filepath.Join(state, "ca", "root.key")
	if err := os.Rename(root, root+".away"); err != nil {
		t.Fatal(err)
	}
	_, csr := deviceKey(t)
	h.pair(h.owner, "laptop", csr, false, "run.start")
	if !a.RotateAt().Equal(due) {
		t.Error("it was replaced without the root's key")
	}
	if err := os.Rename(root+".away", root); err != nil {
		t.Fatal(err)
	}
	h.pair(h.owner, "laptop", csr, true, "run.start")
	if !a.RotateAt().After(time.Now()) {
		t.Error("it isn't replaced when it can be")
	}
}

// TestDeviceRevivedInStore: no statement of the store takes a revocation back.
func TestDeviceRevivedInStore(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	h.pair(h.owner, "laptop", csr, false, "run.start")
	if _, err := hub.RevokeDevice.Do(t.Context(), h, h.owner, "laptop"); err != nil {
		t.Fatal(err)
	}
	err := h.st.Update(t.Context(), func(tx *store.Tx) error { return tx.RevokeDevice("laptop", time.Time{}) })
	if err != nil {
		t.Fatal(err) // it changes nothing: only devices that aren't revoked are touched
	}
	rows, err := store.View(t.Context(), h.st, func(tx *store.Tx) ([]store.Device, error) { return tx.Devices() })
	if err != nil || len(rows) != 1 || rows[0].Revoked.IsZero() {
		t.Error(errors.Join(err, errors.New("the row was revived")), rows)
	}
}

func BenchmarkAuthenticateDevice(b *testing.B) {
	h := newHouse(b, nil)
	_, csr := deviceKey(b)
	_, chain := h.pair(h.owner, "laptop", csr, false, "run.start")
	for b.Loop() {
		if _, err := h.asDevice(chain); err != nil {
			b.Fatal(err)
		}
	}
}

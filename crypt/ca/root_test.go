package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"palyra/internal/fault"
)

func accepts(t *testing.T, who string, chain, roots [][]byte, kind string, at time.Time, want bool) {
	t.Helper()
	if _, err := Verify(chain, roots, kind, at); (err == nil) != want {
		t.Errorf("%s: accepted %v, want %v: %v", who, err == nil, want, err)
	}
}

// TestReplaceRoot follows a device that is told of the next root, one that isn't, and a leaf of each
// root, through a replacement.
func TestReplaceRoot(t *testing.T) {
	dir := state(t)
	a := create(t, dir)
	first := a.Roots()
	leafOld := issue(t, a, Device)
	if _, ok := a.BeginAt(); ok {
		t.Error("a root is introduced from the start")
	}
	refused(t, a.Begin(t.Context(), now, unrecorded), fault.BadState, "state_missing")
	if err := a.Introduce(t.Context(), now, unrecorded); err != nil {
		t.Fatal(err)
	}
	refused(t, a.Introduce(t.Context(), now, unrecorded), fault.Busy, "exists")
	at, ok := a.BeginAt()
	if !ok || !at.Equal(now.Add(LeafLife)) {
		t.Errorf("begins at %v, %v", at, ok)
	}
	accepts(t, "a leaf from before the introduction, at the beginning", leafOld, first, Device, at, false)
	told, err := Follow(first, a.Roots(), a.Links())
	if err != nil || len(told) != 2 {
		t.Fatalf("follows to %d roots: %v", len(told), err)
	}
	hubOld := issue(t, a, Hub)
	for _, roots := range [][][]byte{first, told} {
		accepts(t, "the hub, introduced", hubOld, roots, Hub, now, true)
	}
	if err := a.Begin(t.Context(), at, unrecorded); err != nil {
		t.Fatal(err)
	}
	hubNew, err := a.Issue(request(t, newKey(t), x509.CertificateRequest{}), Identity{domain, Hub, "one"}, at)
	if err != nil {
		t.Fatal(err)
	}
	accepts(t, "the hub, to a device that was told", hubNew, told, Hub, at, true)
	accepts(t, "the hub, to one that wasn't", hubNew, first, Hub, at, false)
	late, err := Follow(told, a.Roots(), a.Links())
	if err != nil || len(late) != 1 || bytes.Equal(late[0], first[0]) {
		t.Errorf("follows to %d roots: %v", len(late), err)
	}
	accepts(t, "the hub's old certificate, to a device that renewed", hubOld, late, Hub, now, false)

	over := at.Add(LeafLife)
	for _, b := range []*Authority{a, reopened(t, dir)} {
		if n := len(b.Accepted(over.Add(-time.Second))); n != 2 {
			t.Errorf("%d roots are accepted for a day, want 2", n)
		}
		if n := len(b.Accepted(over)); n != 1 {
			t.Errorf("%d roots are accepted after it, want 1", n)
		}
		accepts(t, "a leaf of the old root at the hub", leafOld, b.Accepted(now), Device, now, true)
	}
	states := func(at time.Time) (out []string) {
		for _, r := range a.States(at) {
			out = append(out, r.State)
		}
		return out
	}
	if s := states(at); !slices.Equal(s, []string{"previous", "in_force"}) {
		t.Errorf("states %q", s)
	}
	if err := a.Rotate(t.Context(), over, unrecorded); err != nil {
		t.Fatal(err)
	}
	if n := names(t, filepath.Join(dir, caDir)); len(n) != 4 {
		t.Errorf("ca/ holds %q", n)
	}
	if err := reopened(t, dir).Introduce(t.Context(), over, unrecorded); err != nil {
		t.Errorf("once more: %v", err)
	}
}

func reopened(t *testing.T, dir string) *Authority {
	t.Helper()
	a, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestFollowRefuses: a thief of an issuer's key, who can be the hub for a while, can't have a device
// take a root, and no one can with a link for another one.
func TestFollowRefuses(t *testing.T) {
	a, b := create(t, state(t)), create(t, state(t))
	for _, x := range []*Authority{a, b} {
		if err := x.Introduce(t.Context(), now, unrecorded); err != nil {
			t.Fatal(err)
		}
	}
	have := [][]byte{a.root.Raw}
	good := a.Links()
	if _, err := Follow(have, a.Roots(), good); err != nil {
		t.Fatal(err)
	}
	byIssuer, err := newLink(b.root, a.issuer, a.key)
	if err != nil {
		t.Fatal(err)
	}
	bk, err := b.readKey(rootKey, purposeRoot, b.root.PublicKey.(*ecdsa.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	asRoot, err := newLink(b.root, a.root, bk)
	if err == nil {
		t.Errorf("a link by another's key was made: %v", asRoot.Issuer)
	}
	for _, c := range []struct {
		name           string
		offered, links [][]byte
	}{
		{"no link", a.Roots(), nil},
		{"no roots", nil, good},
		{"another's root, with its own link", b.Roots(), b.Links()},
		{"another's root, with a link for the next one", [][]byte{b.root.Raw}, good},
		{"another's root, certified by the issuer", [][]byte{b.root.Raw}, [][]byte{byIssuer.Raw, a.issuer.Raw}},
		{"the issuer as root", [][]byte{a.issuer.Raw}, [][]byte{a.issuer.Raw}},
		{"a link as root", good, good},
		{"a root as link", a.Roots(), a.Roots()},
		{"one good and one bad", append(a.Roots(), b.root.Raw), good},
		{"too many", slices.Concat(a.Roots(), a.Roots(), a.Roots()), good},
		{"not a certificate", [][]byte{{1}}, good},
		{"not a link", a.Roots(), [][]byte{{1}}},
	} {
		if got, err := Follow(have, c.offered, c.links); err == nil {
			t.Errorf("%s: follows to %d roots", c.name, len(got))
		} else {
			refused(t, err, fault.Denied, "peer_certificate_invalid")
		}
	}
	// A link is no authority in a chain, and its key's leaves are those of the next root alone.
	if err := a.Begin(t.Context(), now, unrecorded); err != nil {
		t.Fatal(err)
	}
	chain := issue(t, a, Hub)
	accepts(t, "a longer chain over the link", [][]byte{chain[0], chain[1], good[0]}, have, Hub, now, false)
	accepts(t, "the link in the issuer's place", [][]byte{chain[0], good[0]}, have, Hub, now, false)
	accepts(t, "the link as a root", chain, good, Hub, now, false)
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	for n := range files(t, dir) {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

package pair

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// rig is a hub with a certificate authority.
type rig struct {
	*Hub
	t        testing.TB
	key      *ecdsa.PrivateKey // of the authority
	root     *x509.Certificate
	identity Identity
	hubKey   []byte
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func spki(t testing.TB, k *ecdsa.PrivateKey) []byte {
	t.Helper()
	b, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newRig(t testing.TB) *rig {
	t.Helper()
	g := &rig{t: t, key: newKey(t), hubKey: spki(t, newKey(t))}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, g.key.Public(), g.key)
	if err != nil {
		t.Fatal(err)
	}
	if g.root, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	g.identity = Identity{Domain: "hub.palyra.local", Roots: [][]byte{der}}
	g.Hub = NewHub(g.hubKey)
	return g
}

func (g *rig) issue(w *Wanted) [][]byte {
	g.t.Helper()
	name := &url.URL{Scheme: "spiffe", Host: g.identity.Domain, Path: "/device/" + w.Request.Device}
	c := &x509.Certificate{SerialNumber: big.NewInt(2), URIs: []*url.URL{name}, NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, g.root, w.CSR.PublicKey, g.key)
	if err != nil {
		g.t.Fatal(err)
	}
	return [][]byte{der}
}

func (g *rig) channel(n byte) Channel {
	return Channel{HubKey: g.hubKey, Binding: bytes.Repeat([]byte{n}, BindingSize)}
}

func (g *rig) begin(id string) Code {
	g.t.Helper()
	c, err := g.Begin(id, noon)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

func (g *rig) wantState(id string, want State, why End) {
	g.t.Helper()
	v, err := g.View(id, noon)
	if err != nil || v.State != want || v.End != why {
		g.t.Fatalf("pairing %s is %q (%q), %v; want %q (%q)", id, v.State, v.End, err, want, why)
	}
}

var laptop = Request{Device: "laptop", Kind: "cli", Scopes: []string{"run.start", "session.read"}}

func newTestDevice(t testing.TB, code Code, c Channel) *Device {
	t.Helper()
	d, err := NewDevice(code, c, newKey(t), laptop)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// toPending takes an exchange to the point where both sides have digits.
func (g *rig) toPending(d *Device) *Exchange {
	g.t.Helper()
	x, offer, err := g.Hello(d.channel, g.identity, d.Hello(), noon)
	if err != nil {
		g.t.Fatal(err)
	}
	rev, err := d.Offer(offer)
	if err != nil {
		g.t.Fatal(err)
	}
	w, err := g.Reveal(x, rev, noon)
	if err != nil {
		g.t.Fatal(err)
	}
	if err := d.Wait(w); err != nil {
		g.t.Fatal(err)
	}
	return x
}

func wantReason(t testing.TB, err error, reason string, says ...string) {
	t.Helper()
	if fault.ReasonOf(err) != reason || err != nil && !strings.Contains(err.Error(), strings.Join(says, "")) {
		t.Fatalf("error %v (%q), want %q %q", err, fault.ReasonOf(err), reason, says)
	}
}

func TestPair(t *testing.T) {
	g := newRig(t)
	code, err := ParseCode(g.beginText("one"))
	if err != nil {
		t.Fatal(err)
	}
	d := newTestDevice(t, code, g.channel(1))
	if d.Digits() != "" {
		t.Error("digits before the hub has shown that it has the code")
	}
	x := g.toPending(d)
	if len(d.Digits()) != 6 || d.Digits() != x.script.digits() {
		t.Fatalf("device shows %q, hub has %q", d.Digits(), x.script.digits())
	}
	w, err := g.Approve("one", d.Digits(), noon)
	if err != nil {
		t.Fatal(err)
	}
	if w.Request.Device != "laptop" || !slices.Equal(w.Request.Scopes, laptop.Scopes) || w.Key != canon.Sum(w.CSR.RawSubjectPublicKeyInfo) {
		t.Errorf("wanted %+v", w)
	}
	a, err := g.Issued("one", []string{"session.read"}, g.issue(w), noon)
	if err != nil {
		t.Fatal(err)
	}
	fin, chain, err := d.Answer(a, noon)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(chain.Scopes, []string{"session.read"}) || chain.Domain != "hub.palyra.local" || len(chain.Roots) != 1 {
		t.Errorf("chain %+v", chain)
	}
	if err := g.Done(x, fin, noon); err != nil {
		t.Fatal(err)
	}
	var states []State
	for _, e := range g.Events() {
		states = append(states, e.State)
	}
	if want := []State{Open, Begun, Pending, Approved, Issued, Completed}; !slices.Equal(states, want) {
		t.Errorf("events %q, want %q", states, want)
	}
	if g.Waiting() || x.code != (Code{}) {
		t.Error("the pairing has ended, and its code is still there")
	}
}

func (g *rig) beginText(id string) string {
	c := g.begin(id)
	return c.Text()
}

// TestSecretsStay: neither the token nor anything of the private key is in what crosses.
func TestSecretsStay(t *testing.T) {
	g := newRig(t)
	code := g.begin("one")
	key := newKey(t)
	d, err := NewDevice(code, g.channel(1), key, laptop)
	if err != nil {
		t.Fatal(err)
	}
	x, offer, _ := g.Hello(d.channel, g.identity, d.Hello(), noon)
	rev, _ := d.Offer(offer)
	wait, err := g.Reveal(x, rev, noon)
	if err != nil || d.Wait(wait) != nil {
		t.Fatal(err)
	}
	w, _ := g.Approve("one", d.Digits(), noon)
	a, err := g.Issued("one", nil, g.issue(w), noon)
	if err != nil {
		t.Fatal(err)
	}
	private, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, m := range [][]byte{d.Hello(), offer, rev, wait, a} {
		all = append(all, m...)
	}
	for name, secret := range map[string][]byte{"token": code.token[:], "private key": private, "digits": []byte(d.Digits() + `"`)} {
		for _, form := range []string{string(secret), fmt.Sprintf("%x", secret), strings.TrimRight(b64(secret), "=")} {
			if bytes.Contains(all, []byte(form)) {
				t.Errorf("the messages have the %s", name)
			}
		}
	}
	if s := fmt.Sprintf("%v %+v %#v %s %x", code, code, code, &code, code); strings.Contains(s, code.Text()) || strings.Contains(s, fmt.Sprintf("%x", code.token)) {
		t.Errorf("a code formats as %q", s)
	}
}

func b64(b []byte) string { s, _ := canon.Marshal(b); return strings.Trim(string(s), `"`) }

func TestOneAttempt(t *testing.T) {
	g := newRig(t)
	// Wrong digits end the pairing: the right ones come too late.
	d := newTestDevice(t, g.begin("digits"), g.channel(1))
	x := g.toPending(d)
	wrong := fmt.Sprintf("%06d", 1+len(d.Digits()))
	if wrong == d.Digits() {
		wrong = "000000"
	}
	_, err := g.Approve("digits", wrong, noon)
	wantReason(t, err, "pairing_over", "they are not the device's")
	_, err = g.Approve("digits", d.Digits(), noon)
	wantReason(t, err, "version_conflict")
	g.wantState("digits", Failed, EndDigits)
	_, _, err = d.Answer(x.Refusal(), noon)
	wantReason(t, err, "pairing_over", "are not the hub's")

	// The same code again, by another device or the same one.
	code := g.begin("again")
	d = newTestDevice(t, code, g.channel(1))
	g.toPending(d)
	other := newTestDevice(t, code, g.channel(2))
	_, no, err := g.Hello(other.channel, g.identity, other.Hello(), noon)
	wantReason(t, err, "pairing_over")
	_, err = other.Offer(no)
	wantReason(t, err, "pairing_over")
	g.wantState("again", Failed, EndAgain)
	_, err = g.Approve("again", d.Digits(), noon)
	wantReason(t, err, "version_conflict")
	_, _, err = g.Hello(d.channel, g.identity, d.Hello(), noon)
	wantReason(t, err, "pairing_over")

	// A reveal that doesn't fit.
	d = newTestDevice(t, g.begin("reveal"), g.channel(1))
	x, offer, err := g.Hello(d.channel, g.identity, d.Hello(), noon)
	if err != nil {
		t.Fatal(err)
	}
	d.code.token[0] ^= 1
	rev, err := d.Offer(offer)
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Reveal(x, rev, noon)
	wantReason(t, err, "pairing_proof")
	d.code.token[0] ^= 1
	d.next = nameOffer
	rev, _ = d.Offer(offer)
	_, err = g.Reveal(x, rev, noon)
	wantReason(t, err, "pairing_over")
	g.wantState("reveal", Failed, EndProof)

	// No certificate was asked for by any of these.
	for _, e := range g.Events() {
		if e.State == Approved {
			t.Errorf("approved: %+v", e)
		}
	}
}

// TestStrangers: attempts without a code are refused, reported up to a bound, and use up nobody
// else's attempt.
func TestStrangers(t *testing.T) {
	g := newRig(t)
	code := g.begin("one")
	g.Events()
	for range 3 * MaxStrangers {
		d := newTestDevice(t, NewCode(g.hubKey), g.channel(9))
		_, _, err := g.Hello(d.channel, g.identity, d.Hello(), noon)
		wantReason(t, err, "pairing_over")
	}
	ev := g.Events()
	if len(ev) != MaxStrangers || ev[0].End != EndStranger || ev[MaxStrangers-1].End != EndStrangers {
		t.Errorf("%d events of %d strangers, the last is %+v", len(ev), 3*MaxStrangers, ev[len(ev)-1])
	}
	g.toPending(newTestDevice(t, code, g.channel(1)))
	d := newTestDevice(t, NewCode(g.hubKey), g.channel(9))
	_, _, _ = g.Hello(d.channel, g.identity, d.Hello(), noon.Add(Life))
	if ev := g.Events(); ev[len(ev)-1].End != EndStranger {
		t.Errorf("after %v a stranger isn't told of: %+v", Life, ev)
	}
}

func TestEnds(t *testing.T) {
	for _, tc := range []struct {
		name   string
		end    func(g *rig, x *Exchange) error
		state  State
		why    End
		device string
	}{
		{"refused", func(g *rig, x *Exchange) error { _, err := g.Refuse("one", noon); return err }, Refused, EndOperator, "not_approved"},
		{"expired", func(g *rig, x *Exchange) error { g.Expire(noon.Add(Life)); return nil }, Expired, EndTime, "pairing_over"},
		{"gone", func(g *rig, x *Exchange) error { g.Gone(x); return nil }, Failed, EndGone, "pairing_over"},
		{"closed", func(g *rig, x *Exchange) error { g.Close(); return nil }, Cancelled, EndCancelled, "pairing_over"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newRig(t)
			d := newTestDevice(t, g.begin("one"), g.channel(1))
			x := g.toPending(d)
			if x.Refusal() != nil {
				t.Error("a refusal before the end")
			}
			if err := tc.end(g, x); err != nil {
				t.Fatal(err)
			}
			g.wantState("one", tc.state, tc.why)
			// The digits are right, and it's too late.
			w, err := g.Approve("one", d.Digits(), noon)
			if wantReason(t, err, "version_conflict"); w != nil {
				t.Error("wanted a certificate")
			}
			_, err = g.Issued("one", nil, nil, noon)
			wantReason(t, err, "version_conflict")
			_, _, err = d.Answer(x.Refusal(), noon)
			wantReason(t, err, tc.device)
		})
	}
}

func TestApprovedAndGone(t *testing.T) {
	g := newRig(t)
	d := newTestDevice(t, g.begin("one"), g.channel(1))
	x := g.toPending(d)
	w, err := g.Approve("one", d.Digits(), noon)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Refuse("one", noon); fault.ReasonOf(err) != "version_conflict" || !strings.Contains(fault.HintOf(err), "revoke") {
		t.Errorf("refuse what is approved: %v", err)
	}
	g.Gone(x)
	_, err = g.Issued("one", nil, g.issue(w), noon)
	wantReason(t, err, "connection_lost")
	g.wantState("one", Failed, EndUndelivered)

	d = newTestDevice(t, g.begin("two"), g.channel(1))
	g.toPending(d)
	w, _ = g.Approve("two", d.Digits(), noon)
	if _, err = g.Issued("two", nil, g.issue(w), noon); err != nil {
		t.Fatal(err)
	}
	g.Expire(noon.Add(Delivery))
	g.wantState("two", Failed, EndUndelivered)

	d = newTestDevice(t, g.begin("three"), g.channel(1))
	x = g.toPending(d)
	if _, err = g.Approve("three", d.Digits(), noon); err != nil {
		t.Fatal(err)
	}
	g.Fail("three")
	g.wantState("three", Failed, EndIssue)
	_, _, err = d.Answer(x.Refusal(), noon)
	wantReason(t, err, "pairing_over")
}

func TestOpenIsBounded(t *testing.T) {
	g := newRig(t)
	for i := range MaxOpen {
		g.begin(fmt.Sprint(i))
	}
	_, err := g.Begin("more", noon)
	wantReason(t, err, "too_many")
	if _, err := g.Begin("later", noon.Add(Life)); err != nil {
		t.Errorf("after the others have expired: %v", err)
	}
	for i := range 10 * maxEnded {
		id := fmt.Sprint("x", i)
		if _, err := g.Begin(id, noon.Add(Life)); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Refuse(id, noon.Add(Life)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(g.Views(noon.Add(Life))); n > MaxOpen+maxEnded {
		t.Errorf("%d pairings are kept", n)
	}
}

// TestDeviceHoldsTheAnswer: what a hub that lacks the code, or one that gives another
// certificate, can't do.
func TestDeviceHoldsTheAnswer(t *testing.T) {
	g := newRig(t)
	pending := func(t *testing.T) (*Device, *Exchange) {
		d := newTestDevice(t, g.begin(t.Name()), g.channel(1))
		t.Cleanup(func() { g.Fail(t.Name()) })
		return d, g.toPending(d)
	}
	answered := func(t *testing.T, d *Device, x *Exchange, change func(a *answer)) error {
		w, err := g.Approve(t.Name(), d.Digits(), noon)
		if err != nil {
			t.Fatal(err)
		}
		a := answer{Chain: g.issue(w), Roots: g.identity.Roots, Scopes: []string{}}
		change(&a)
		if a.Proof.IsZero() {
			a.Proof = x.script.proof(&x.code, proofAnswer, a.bytes())
		}
		_, _, err = d.Answer(encode(nameAnswer, &a), noon)
		return err
	}
	other := newRig(t)
	for name, change := range map[string]func(a *answer){
		"no proof":    func(a *answer) { a.Proof = canon.Sum(nil) },
		"other roots": func(a *answer) { a.Roots = other.identity.Roots },
		"no chain":    func(a *answer) { a.Chain = nil },
		"a root more": func(a *answer) { a.Roots = append(slices.Clone(a.Roots), a.Roots[0]) },
		"other key": func(a *answer) {
			csr := &x509.CertificateRequest{PublicKey: newKey(t).Public()}
			a.Chain = g.issue(&Wanted{CSR: csr, Request: laptop})
		},
		"other authority": func(a *answer) {
			c, _ := x509.ParseCertificate(a.Chain[0])
			a.Chain = other.issue(&Wanted{CSR: &x509.CertificateRequest{PublicKey: c.PublicKey}, Request: laptop})
		},
		"other name": func(a *answer) {
			c, _ := x509.ParseCertificate(a.Chain[0])
			a.Chain = g.issue(&Wanted{CSR: &x509.CertificateRequest{PublicKey: c.PublicKey}, Request: Request{Device: "phone"}})
		},
		"scope not asked for": func(a *answer) { a.Scopes = []string{"member.manage"} },
		"junk":                func(a *answer) { a.Chain = [][]byte{{1}} },
	} {
		t.Run(name, func(t *testing.T) {
			d, x := pending(t)
			wantReason(t, answered(t, d, x, change), "pairing_proof")
		})
	}
	t.Run("good", func(t *testing.T) {
		d, x := pending(t)
		if err := answered(t, d, x, func(*answer) {}); err != nil {
			t.Error(err)
		}
	})
	t.Run("other hub", func(t *testing.T) {
		_, err := NewDevice(NewCode(other.hubKey), g.channel(1), newKey(t), laptop)
		wantReason(t, err, "pairing_proof")
	})
	t.Run("other curve", func(t *testing.T) {
		k, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		_, err = NewDevice(NewCode(g.hubKey), g.channel(1), k, laptop)
		wantReason(t, err, "invalid_input")
	})
	t.Run("hub without the code", func(t *testing.T) {
		d := newTestDevice(t, g.begin(t.Name()), g.channel(1))
		x, offer, err := g.Hello(d.channel, g.identity, d.Hello(), noon)
		if err != nil {
			t.Fatal(err)
		}
		rev, _ := d.Offer(offer)
		if _, err := g.Reveal(x, rev, noon); err != nil {
			t.Fatal(err)
		}
		wantReason(t, d.Wait(encode(nameWait, &wait{Proof: x.script.proof(&Code{}, proofHub)})), "pairing_proof")
	})
}

func TestRequest(t *testing.T) {
	for _, r := range []Request{
		{}, {Device: "a", Kind: "cli"}, {Device: "A", Kind: "cli", Scopes: []string{}}, {Device: "-a", Kind: "cli", Scopes: []string{}},
		{Device: "a-", Kind: "cli", Scopes: []string{}}, {Device: "a/b", Kind: "cli", Scopes: []string{}}, {Device: strings.Repeat("a", 65), Kind: "cli", Scopes: []string{}},
		{Device: "a", Kind: "c-li", Scopes: []string{}}, {Device: "a", Kind: "cli", Scopes: []string{"b", "a"}}, {Device: "a", Kind: "cli", Scopes: []string{"a", "a"}},
		{Device: "a", Kind: "cli", Scopes: []string{"*"}}, {Device: "a", Kind: "cli", Scopes: make([]string, maxScopes+1)},
	} {
		wantReason(t, r.Check(), "invalid_input")
	}
	if err := laptop.Check(); err != nil {
		t.Error(err)
	}
}

func TestCode(t *testing.T) {
	key := []byte("any key")
	c := NewCode(key)
	if !c.Names(key) || c.Names([]byte("another key")) {
		t.Error("a code names another key than its hub's")
	}
	if len(c.Text()) != 69 || strings.ToUpper(c.URI()) != c.URI() {
		t.Errorf("%q, %q", c.Text(), c.URI())
	}
	for _, s := range []string{c.Text(), c.URI(), strings.ToLower(c.Text()), " " + strings.ReplaceAll(c.Text(), "-", " ") + "\n"} {
		if got, err := ParseCode(s); err != nil || got != c {
			t.Errorf("parse %q: %v", s, err)
		}
	}
	flip := func(i int) string {
		b := []byte(c.Text())
		if b[i]++; b[i] > 'Z' || b[i] == '8' {
			b[i] = 'B'
		}
		return string(b)
	}
	missed := 0
	for i, r := range c.Text() {
		if r == '-' {
			continue
		}
		if _, err := ParseCode(flip(i)); err == nil {
			missed++
		}
	}
	if missed > 1 { // each has a chance of 2^-16
		t.Errorf("%d typing errors of one character pass", missed)
	}
	for _, s := range []string{"", "palyra-pair:", c.Text() + "A", c.Text()[:60], strings.Repeat("A", 56), strings.Repeat("-", 300), "0" + c.Text()[1:]} {
		_, err := ParseCode(s)
		wantReason(t, err, "invalid_input")
	}
}

func FuzzParseCode(f *testing.F) {
	c := NewCode([]byte("any key"))
	f.Add(c.Text())
	f.Add(c.URI())
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCode(s)
		if err != nil {
			if !errors.As(err, new(*fault.Error)) {
				t.Fatal(err)
			}
			return
		}
		for _, s := range []string{c.Text(), c.URI()} {
			if again, err := ParseCode(s); err != nil || again != c {
				t.Fatalf("%q reads as another code: %v", s, err)
			}
		}
	})
}

// FuzzMessage: what parses is spelled as it would be written, and both sides take anything.
func FuzzMessage(f *testing.F) {
	g := newRig(f)
	d := newTestDevice(f, g.begin("one"), g.channel(1))
	x, off, _ := g.Hello(d.channel, g.identity, d.Hello(), noon)
	rev, _ := d.Offer(off)
	wai, err := g.Reveal(x, rev, noon)
	if err != nil || d.Wait(wai) != nil {
		f.Fatal(err)
	}
	w, _ := g.Approve("one", d.Digits(), noon)
	ans, _ := g.Issued("one", nil, g.issue(w), noon)
	fin, _, err := d.Answer(ans, noon)
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range [][]byte{d.Hello(), off, rev, wai, ans, fin, refusal(EndOver), []byte(version + "hello\n{}"), nil} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, m := range map[string]any{nameHello: new(hello), nameOffer: new(offer), nameReveal: new(reveal), nameWait: new(wait), nameAnswer: new(answer), nameDone: new(done)} {
			if decode(b, name, m) == nil && !bytes.Equal(encode(name, m), b) {
				t.Fatalf("%s has two spellings: %q", name, b)
			}
		}
		for next := range map[string]bool{nameOffer: true, nameWait: true, nameAnswer: true} {
			c := *d
			c.next = next
			switch next {
			case nameOffer:
				_, _ = c.Offer(b)
			case nameWait:
				_ = c.Wait(b)
			case nameAnswer:
				_, _, _ = c.Answer(b, noon)
			}
		}
		h := NewHub(g.hubKey)
		_, no, err := h.Hello(g.channel(1), g.identity, b, noon)
		if err == nil || no == nil {
			t.Fatal("a hub without a code takes a hello")
		}
	})
}

package pair

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"math"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/internal/sample"
)

// between is an attacker in the middle who has read the code, and has given the device another
// one that names a key of its own. It speaks with the hub as a device, and with the device as a
// hub, and knows both tokens. Nothing but the digits can tell.
type between struct {
	code   Code // the hub's
	fake   Code // what the device got
	asHub  *Hub
	hubKey []byte
}

// runBetween attacks one pairing and returns the digits of both sides. hubFirst says in which
// order the attacker finishes the two exchanges: in either one it has committed to its own part
// before it sees what the digits depend on.
func runBetween(t testing.TB, g *rig, id string, hubFirst bool) (hubs, devices string) {
	t.Helper()
	m := between{code: g.begin(id), hubKey: spki(t, newKey(t))}
	m.asHub = NewHub(m.hubKey)
	var err error
	if m.fake, err = m.asHub.Begin(id, noon); err != nil {
		t.Fatal(err)
	}
	left := Channel{HubKey: m.hubKey, Binding: bytes.Repeat([]byte{1}, BindingSize)} // device ↔ attacker
	victim := newTestDevice(t, m.fake, left)
	own := newTestDevice(t, m.code, g.channel(2)) // attacker ↔ hub

	toHub := func() string { g.toPending(own); return own.Digits() }
	toDevice := func() string {
		x, offer, err := m.asHub.Hello(left, g.identity, victim.Hello(), noon)
		if err != nil {
			t.Fatal(err)
		}
		rev, err := victim.Offer(offer)
		if err != nil {
			t.Fatal(err)
		}
		w, err := m.asHub.Reveal(x, rev, noon)
		if err != nil || victim.Wait(w) != nil {
			t.Fatal(err)
		}
		return victim.Digits()
	}
	if hubFirst {
		hubs = toHub()
		return hubs, toDevice()
	}
	devices = toDevice()
	return toHub(), devices
}

// TestAttackerBetween: the digits of both sides agree by chance alone. Six of them would agree
// once in a million runs, which no test can count; so it counts the last two, which agree once
// in a hundred. The control is an attacker to whom the device opens its nonce before the
// attacker has chosen its own: it tries until the digits fit.
func TestAttackerBetween(t *testing.T) {
	runs := sample.Of(300, 1000)
	g := newRig(t)
	two, six := 0, 0
	for i := range runs {
		id := fmt.Sprint(i)
		hubs, devices := runBetween(t, g, id, i%2 == 0)
		if hubs[4:] == devices[4:] {
			two++
		}
		if hubs == devices {
			six++
			continue
		}
		if _, err := g.Approve(id, devices, noon); err == nil {
			t.Fatal("the hub takes the digits of another exchange")
		}
		g.wantState(id, Failed, EndDigits)
	}
	// Binomial with p = 1/100: six standard deviations above the mean.
	mean := float64(runs) / 100
	if most := mean + 6*math.Sqrt(mean); float64(two) > most || six > 1 {
		t.Errorf("of %d runs %d agree in two digits (at most %.0f by chance), %d in six", runs, two, most, six)
	}
	t.Logf("%d runs: two digits agree in %d (by chance %.0f), six in %d", runs, two, mean, six)

	// The control: without the commitment's order 1000 tries are enough for two digits.
	hit := 0
	for range 100 {
		d := newTestDevice(t, NewCode(g.hubKey), g.channel(1))
		want := randomDigits()
		for n := range 1000 {
			o := offer{Domain: "hub.palyra.local", Roots: canon.Sum(nil), Nonce: canon.Sum(fmt.Appendf(nil, "%p%d", d, n))}
			if newTranscript(&d.channel, d.hello, encode(nameOffer, &o), &d.opening).digits()[4:] == want[4:] {
				hit++
				break
			}
		}
	}
	if hit < 90 {
		t.Errorf("the control finds fitting digits in %d of 100 runs: the count above proves nothing", hit)
	}
}

func randomDigits() string {
	c := NewCode(nil)
	return transcript(c.id()).digits()
}

// TestAttackerCannotChooseLate: the attacker's ways to choose its part after it has seen the
// other's are refused.
func TestAttackerCannotChooseLate(t *testing.T) {
	g := newRig(t)
	own := newTestDevice(t, g.begin("one"), g.channel(1))
	x, off, err := g.Hello(own.channel, g.identity, own.Hello(), noon)
	if err != nil {
		t.Fatal(err)
	}
	// It knows the hub's nonce now, and would like another opening.
	own.opening.Nonce = canon.Sum([]byte("chosen late"))
	rev, err := own.Offer(off)
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Reveal(x, rev, noon)
	wantReason(t, err, "pairing_proof")

	// A second offer to a device that has opened.
	d := newTestDevice(t, g.begin("two"), g.channel(1))
	x, off, err = g.Hello(d.channel, g.identity, d.Hello(), noon)
	if err != nil {
		t.Fatal(err)
	}
	if rev, err = d.Offer(off); err != nil {
		t.Fatal(err)
	}
	_, err = d.Offer(off)
	wantReason(t, err, "pairing_proof")
	if _, err = g.Reveal(x, rev, noon); err != nil {
		t.Fatal(err)
	}
	// A second reveal.
	_, err = g.Reveal(x, rev, noon)
	wantReason(t, err, "pairing_proof")
	g.wantState("two", Failed, EndProof)
}

// TestEachPartCounts: a change of anything that the two sides have seen changes the digits.
func TestEachPartCounts(t *testing.T) {
	g := newRig(t)
	d := newTestDevice(t, g.begin("one"), g.channel(1))
	x := g.toPending(d)
	same := func(c Channel, r Request, domain string, roots, hubs, devices canon.Digest, csr []byte) transcript {
		o := opening{CSR: csr, Nonce: devices}
		h := encode(nameHello, &hello{Code: d.code.id(), Commitment: o.commitment(), Request: r})
		return newTranscript(&c, h, encode(nameOffer, &offer{Domain: domain, Roots: roots, Nonce: hubs}), &o)
	}
	of := d.offer
	if same(d.channel, laptop, of.Domain, of.Roots, of.Nonce, d.opening.Nonce, d.opening.CSR) != x.script {
		t.Fatal("the transcript isn't what this test makes again")
	}
	n := canon.Sum([]byte("another"))
	more := laptop
	more.Scopes = append([]string{"member.manage"}, more.Scopes...)
	other := newTestDevice(t, d.code, d.channel)
	for name, script := range map[string]transcript{
		"hub key":      same(Channel{HubKey: []byte("another"), Binding: d.channel.Binding}, laptop, of.Domain, of.Roots, of.Nonce, d.opening.Nonce, d.opening.CSR),
		"binding":      same(g.channel(2), laptop, of.Domain, of.Roots, of.Nonce, d.opening.Nonce, d.opening.CSR),
		"scopes":       same(d.channel, more, of.Domain, of.Roots, of.Nonce, d.opening.Nonce, d.opening.CSR),
		"device":       same(d.channel, Request{"phone", "cli", laptop.Scopes}, of.Domain, of.Roots, of.Nonce, d.opening.Nonce, d.opening.CSR),
		"domain":       same(d.channel, laptop, "other.palyra.local", of.Roots, of.Nonce, d.opening.Nonce, d.opening.CSR),
		"roots":        same(d.channel, laptop, of.Domain, n, of.Nonce, d.opening.Nonce, d.opening.CSR),
		"hub nonce":    same(d.channel, laptop, of.Domain, of.Roots, n, d.opening.Nonce, d.opening.CSR),
		"device nonce": same(d.channel, laptop, of.Domain, of.Roots, of.Nonce, n, d.opening.CSR),
		"device key":   same(d.channel, laptop, of.Domain, of.Roots, of.Nonce, d.opening.Nonce, other.opening.CSR),
	} {
		if script == x.script || script.digits() == x.script.digits() && script.signed() == x.script.signed() {
			t.Errorf("another %s has the same digits", name)
		}
	}
}

// TestReplayAndReflection: each message of one exchange, sent in each place of another and back
// to the side that sent it, is refused.
func TestReplayAndReflection(t *testing.T) {
	g := newRig(t)
	messages := func(id string) (names []string, all [][]byte) {
		d := newTestDevice(t, g.begin(id), g.channel(1))
		x, off, err := g.Hello(d.channel, g.identity, d.Hello(), noon)
		if err != nil {
			t.Fatal(err)
		}
		rev, _ := d.Offer(off)
		wai, err := g.Reveal(x, rev, noon)
		if err != nil || d.Wait(wai) != nil {
			t.Fatal(err)
		}
		w, err := g.Approve(id, d.Digits(), noon)
		if err != nil {
			t.Fatal(err)
		}
		ans, err := g.Issued(id, nil, g.issue(w), noon)
		if err != nil {
			t.Fatal(err)
		}
		fin, _, err := d.Answer(ans, noon)
		if err != nil || g.Done(x, fin, noon) != nil {
			t.Fatal(err)
		}
		return []string{nameHello, nameOffer, nameReveal, nameWait, nameAnswer, nameDone}, [][]byte{d.Hello(), off, rev, wai, ans, fin}
	}
	names, old := messages("old")
	for i, m := range old {
		id := "new" + names[i]
		code := g.begin(id)
		d := newTestDevice(t, code, g.channel(1))
		if _, _, err := g.Hello(d.channel, g.identity, m, noon); err == nil {
			t.Errorf("hub takes an old %s as hello", names[i])
		}
		x, off, err := g.Hello(d.channel, g.identity, d.Hello(), noon)
		if err != nil {
			t.Fatal(err)
		}
		c := *d // an attempt of its own
		if _, err := c.Offer(m); err == nil && names[i] != nameOffer {
			t.Errorf("device takes an old %s as offer", names[i])
		}
		rev, err := d.Offer(off)
		if err != nil {
			t.Fatal(err)
		}
		for _, own := range [][]byte{m, d.Hello(), rev} {
			c = *d
			if c.Wait(own) == nil {
				t.Errorf("device takes an old %s or its own message as wait", names[i])
			}
		}
		// An old offer gives a reveal that doesn't fit the hub's.
		hubs := *x
		if err := hubs.reveal(m); err == nil {
			t.Errorf("hub takes an old %s as reveal", names[i])
		}
		if err := hubs.reveal(off); err == nil {
			t.Error("hub takes its own offer as reveal")
		}
		w, err := g.Reveal(x, rev, noon)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Wait(w); err != nil {
			t.Fatal(err)
		}
		for _, own := range [][]byte{m, d.Hello(), rev, w} {
			c = *d
			if _, _, err := c.Answer(own, noon); err == nil {
				t.Errorf("device takes an old %s as answer", names[i])
			}
		}
		wanted, err := g.Approve(id, d.Digits(), noon)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Issued(id, nil, g.issue(wanted), noon); err != nil {
			t.Fatal(err)
		}
		if err := g.Done(x, m, noon); err == nil {
			t.Errorf("hub takes an old %s as done", names[i])
		}
		g.wantState(id, Failed, EndUndelivered)
	}
}

// TestRelay: an attacker that only passes messages on, between two connections of its own, is
// seen too: the channel is part of the transcript.
func TestRelay(t *testing.T) {
	g := newRig(t)
	d := newTestDevice(t, g.begin("one"), g.channel(1))
	x, off, err := g.Hello(g.channel(2), g.identity, d.Hello(), noon)
	if err != nil {
		t.Fatal(err)
	}
	rev, err := d.Offer(off)
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Reveal(x, rev, noon)
	wantReason(t, err, "pairing_proof")
}

// FuzzSequence drives a hub, its devices and its operator in any order, with replays, messages of
// other exchanges and changed ones, and holds the hub to a model.
func FuzzSequence(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6})
	f.Add([]byte{0, 1, 2, 3, 4, 7, 5})
	f.Add([]byte{0, 0, 1, 17, 2, 18, 9, 3, 19, 4, 20, 8})
	f.Add([]byte{0, 1, 2, 10, 3})
	f.Add([]byte{0, 1, 11, 2, 12, 3, 13, 4, 14, 5, 15})
	g := newRig(f)
	key := newKey(f)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA256}, key)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 200 {
			ops = ops[:200]
		}
		type side struct {
			id       string
			d        *Device
			x        *Exchange
			rev, fin []byte
			want     State
			expires  time.Time
			gone     bool
		}
		h, now := NewHub(g.hubKey), noon
		var all []*side
		var sent [][]byte
		last := map[string]State{}
		made := func(s *side) bool { return s.want == Approved || s.want == Issued || s.want == Completed }
		approved := map[string]int{}
		check := func() {
			for _, e := range h.Events() {
				if e.ID == "" {
					continue
				}
				if last[e.ID].Ended() {
					t.Fatalf("%s is %s after it was %s", e.ID, e.State, last[e.ID])
				}
				if last[e.ID] = e.State; e.State == Approved {
					approved[e.ID]++
				}
			}
			for _, s := range all {
				if s.want != last[s.id] {
					t.Fatalf("%s is %q, the model says %q", s.id, last[s.id], s.want)
				}
				if approved[s.id] > 1 {
					t.Fatal("approved twice")
				}
			}
		}
		expire := func() {
			for _, s := range all {
				switch {
				case s.want.Ended() || now.Before(s.expires) || s.want == Approved:
				case s.want == Issued:
					s.want = Failed
				default:
					s.want = Expired
				}
			}
		}
		for _, op := range ops {
			var s *side
			if len(all) > 0 {
				s = all[int(op>>4)%len(all)]
			}
			switch op &= 15; {
			case op == 0: // begin
				open := 0
				for _, s := range all {
					if !s.want.Ended() {
						open++
					}
				}
				id := fmt.Sprint(len(all))
				code, err := h.Begin(id, now)
				if (err == nil) != (open < MaxOpen) {
					t.Fatalf("begin with %d open: %v", open, err)
				}
				if err != nil {
					break
				}
				o := opening{CSR: csr, Nonce: canon.Sum([]byte(id))}
				all = append(all, &side{id: id, want: Open, expires: now.Add(Life), d: newDevice(code, g.channel(1), key, laptop, o)})
			case s == nil:
			case op == 1: // hello, the first or again
				x, off, err := h.Hello(g.channel(1), g.identity, s.d.Hello(), now)
				if (err == nil) != (s.want == Open) {
					t.Fatalf("hello while %s: %v", s.want, err)
				}
				switch s.want {
				case Open:
					s.want, s.x = Begun, x
					s.rev, _ = s.d.Offer(off)
				case Begun, Pending:
					s.want = Failed
				}
				sent = append(sent, s.d.Hello(), off)
			case op == 2 || op >= 9 && op <= 11: // reveal: its own, another's, anything sent before, a changed one
				if s.x == nil {
					break
				}
				m := s.rev
				switch {
				case op == 9:
					if m = all[0].rev; m == nil {
						m = []byte("no message")
					}
				case op == 10 && len(sent) > 0:
					m = sent[len(sent)/2]
				case op == 11:
					m = bytes.Clone(m)
					m[len(m)/2] ^= 1
				}
				good := s.want == Begun && bytes.Equal(m, s.rev)
				w, err := h.Reveal(s.x, m, now)
				if (err == nil) != good {
					t.Fatalf("reveal while %s: %v", s.want, err)
				}
				switch {
				case good:
					if s.want = Pending; s.d.Wait(w) != nil {
						t.Fatal("device refuses wait")
					}
				case s.want == Approved:
					s.gone = true
				case !s.want.Ended():
					s.want = Failed
				}
				sent = append(sent, m, w)
			case op == 3 || op == 12: // approve, with the device's digits or others
				digits := s.d.Digits()
				if op == 12 {
					digits = "000000"
				}
				w, err := h.Approve(s.id, digits, now)
				good := s.want == Pending && digits == s.x.script.digits()
				if (err == nil) != good || (w != nil) != good {
					t.Fatalf("approve while %s: %v", s.want, err)
				}
				if s.want == Pending {
					if s.want = Failed; good {
						s.want = Approved
					}
				}
			case op == 4: // issue
				good := s.want == Approved && !s.gone
				b, err := h.Issued(s.id, nil, [][]byte{{1}}, now)
				if (err == nil) != good || (b != nil) != good {
					t.Fatalf("issued while %s: %v", s.want, err)
				}
				if s.want == Approved {
					if s.want = Failed; good {
						s.want, s.expires = Issued, now.Add(Delivery)
						s.fin = encode(nameDone, &done{Proof: s.d.script.proof(&s.d.code, proofDone, b)})
						sent = append(sent, b, s.fin)
					}
				}
			case op == 5 || op == 13: // done
				if s.x == nil {
					break
				}
				m := s.fin
				if op == 13 && len(sent) > 0 {
					m = sent[len(sent)/3]
				}
				good := s.want == Issued && bytes.Equal(m, s.fin)
				if err := h.Done(s.x, m, now); (err == nil) != good {
					t.Fatalf("done while %s: %v", s.want, err)
				}
				switch {
				case good:
					s.want = Completed
				case s.want == Approved:
					s.gone = true
				case !s.want.Ended():
					s.want = Failed
				}
			case op == 6: // the connection ends
				if s.x == nil {
					break
				}
				h.Gone(s.x)
				switch s.want {
				case Begun, Pending, Issued:
					s.want = Failed
				case Approved:
					s.gone = true
				}
			case op == 7: // deny
				_, err := h.Refuse(s.id, now)
				good := s.want == Open || s.want == Begun || s.want == Pending
				if (err == nil) != good {
					t.Fatalf("refuse while %s: %v", s.want, err)
				}
				if good {
					if s.want == Open {
						s.want = Cancelled
					} else {
						s.want = Refused
					}
				}
			case op == 8: // the authority fails
				if h.Fail(s.id); s.want == Approved {
					s.want = Failed
				}
			case op == 14: // time passes
				now = now.Add(2 * time.Minute)
				h.Expire(now)
				expire()
			case op == 15: // a stranger
				if _, _, err := h.Hello(g.channel(3), g.identity, encode(nameHello, &hello{Code: canon.Sum([]byte{op}), Commitment: canon.Sum(nil), Request: laptop}), now); err == nil {
					t.Fatal("a stranger's hello is taken")
				}
			}
			check()
			for _, s := range all {
				if made(s) && approved[s.id] != 1 {
					t.Fatalf("%s is %s and was not approved", s.id, s.want)
				}
			}
		}
	})
}

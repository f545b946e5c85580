package pair

import (
	"crypto"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write a new exchange into conformance/vectors/pair")

const (
	vectorFile = "../../conformance/vectors/pair/exchange.txt"
	page       = "../../docs/formats/pair.md"
)

// publicKey is a key whose private part is elsewhere.
type publicKey struct{ crypto.PublicKey }

func (k publicKey) Public() crypto.PublicKey { return k.PublicKey }
func (publicKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("no private key")
}

// TestVector reads a recorded exchange as both sides would. The file has a name and a value in
// each line: code, digits and transcript as they are, the rest in base64.
func TestVector(t *testing.T) {
	if *update {
		writeVector(t)
	}
	b, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	v := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		v[name] = value
	}
	bin := func(name string) []byte {
		b, err := base64.StdEncoding.DecodeString(v[name])
		if err != nil || len(b) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		return b
	}
	code, err := ParseCode(v["code"])
	if err != nil {
		t.Fatal(err)
	}
	c := Channel{HubKey: bin("hub-key"), Binding: bin("binding")}

	// The hub's side, from the device's messages.
	x := &Exchange{code: code, channel: c, hello: bin("hello"), offer: bin("offer")}
	if err := decode(x.hello, nameHello, &x.request); err != nil || x.request.Code != code.id() || !code.Names(c.HubKey) {
		t.Fatalf("hello: %v", err)
	}
	if err := x.reveal(bin("reveal")); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x", x.script[:]); got != v["transcript"] || x.script.digits() != v["digits"] {
		t.Errorf("transcript %s, digits %s; want %s, %s", got, x.script.digits(), v["transcript"], v["digits"])
	}

	// The device's side, from the hub's.
	var r reveal
	if err := decode(bin("reveal"), nameReveal, &r); err != nil {
		t.Fatal(err)
	}
	d := newDevice(code, c, publicKey{x.csr.PublicKey}, x.request.Request, r.Opening)
	if string(d.Hello()) != string(x.hello) {
		t.Errorf("hello is %q, want %q", d.Hello(), x.hello)
	}
	if err := decode(x.offer, nameOffer, &d.offer); err != nil {
		t.Fatal(err)
	}
	d.script, d.next = newTranscript(&c, d.hello, x.offer, &d.opening), nameWait
	if err := d.Wait(bin("wait")); err != nil || d.Digits() != v["digits"] {
		t.Errorf("wait: %v, digits %s", err, d.Digits())
	}
	fin, chain, err := d.Answer(bin("answer"), noon)
	if err != nil || string(fin) != string(bin("done")) || len(chain.Certificates) != 1 {
		t.Errorf("answer: %v, done %q", err, fin)
	}

	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"code", "digits", "transcript"} {
		if !strings.Contains(string(text), v[name]) {
			t.Errorf("%s doesn't have the %s of the vector: %s", page, name, v[name])
		}
	}
	if !strings.Contains(string(text), strings.TrimPrefix(string(x.hello), version+nameHello+"\n")) {
		t.Errorf("%s doesn't have the hello of the vector: %s", page, x.hello)
	}
}

func writeVector(t *testing.T) {
	g := newRig(t)
	code := g.begin("one")
	d := newTestDevice(t, code, g.channel(7))
	x, off, err := g.Hello(d.channel, g.identity, d.Hello(), noon)
	if err != nil {
		t.Fatal(err)
	}
	rev, _ := d.Offer(off)
	wai, err := g.Reveal(x, rev, noon)
	if err != nil || d.Wait(wai) != nil {
		t.Fatal(err)
	}
	digits := d.Digits()
	w, err := g.Approve("one", digits, noon)
	if err != nil {
		t.Fatal(err)
	}
	ans, err := g.Issued("one", []string{"session.read"}, g.issue(w), noon)
	if err != nil {
		t.Fatal(err)
	}
	fin, _, err := d.Answer(ans, noon)
	if err != nil {
		t.Fatal(err)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "code: %s\ndigits: %s\ntranscript: %x\n", code.Text(), digits, x.script[:])
	for _, m := range []struct {
		name string
		b    []byte
	}{{"hub-key", g.hubKey}, {"binding", d.channel.Binding}, {"hello", d.Hello()}, {"offer", off}, {"reveal", rev}, {"wait", wai}, {"answer", ans}, {"done", fin}} {
		fmt.Fprintf(&s, "%s: %s\n", m.name, base64.StdEncoding.EncodeToString(m.b))
	}
	if err := os.MkdirAll("../../conformance/vectors/pair", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(vectorFile, []byte(s.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s%s%s%s", d.Hello(), off, rev, fin)
}

package receipt

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

var update = flag.String("update", "", "write new vectors, with new keys, into this folder of conformance/vectors")

// The folders of vectors: calls that no run made, as all were in receipts of
// versions that had no run_id, calls of runs, and calls with a writable workspace
// that was looked through.
const (
	vectorRoot = "../../conformance/vectors"
	plain      = "receipt"
	ofRuns     = "receipt-run"
	ofPlants   = "receipt-planted"
)

// vector is a receipt with what must come of it: a header of lines
// "name: value", an empty line, and the bytes.
type vector struct {
	dir    string // beneath vectorRoot
	name   string
	expect string // "ok OUTCOME" or a reason code
	others string // what cosign and sigstore-js say of it: verified, refused, or either where they differ
	body   []byte
}

func (v *vector) write(t testing.TB) {
	t.Helper()
	b := fmt.Sprintf("expect: %s\nsigstore: %s\n\n%s", v.expect, v.others, v.body)
	if err := os.WriteFile(filepath.Join(vectorRoot, v.dir, v.name+".txt"), []byte(b), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readVectors(t testing.TB, dir string) []*vector {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(vectorRoot, dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	var out []*vector
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		head, body, _ := bytes.Cut(b, []byte("\n\n"))
		expect, others, ok := strings.Cut(string(head), "\n")
		if !ok {
			t.Fatalf("%s: header %q", f, head)
		}
		out = append(out, &vector{dir: dir, name: strings.TrimSuffix(filepath.Base(f), ".txt"),
			expect: strings.TrimPrefix(expect, "expect: "), others: strings.TrimPrefix(others, "sigstore: "), body: body})
	}
	return out
}

func vectorTrust(t testing.TB, dir string) *Trust {
	t.Helper()
	trust, err := LoadTrust(filepath.Join(vectorRoot, dir, "trust"))
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// TestVectors reads conformance/vectors. conformance/sigstore-js reads the same
// with another verifier.
func TestVectors(t *testing.T) {
	switch *update {
	case plain:
		writeVectors(t)
	case ofRuns:
		writeRunVectors(t)
	case ofPlants:
		writePlantedVectors(t)
	}
	for _, dir := range []string{plain, ofRuns, ofPlants} {
		trust := vectorTrust(t, dir)
		good := 0
		for _, v := range readVectors(t, dir) {
			t.Run(dir+"/"+v.name, func(t *testing.T) {
				ver, err := Verify(v.body, trust)
				got := fault.ReasonOf(err)
				if err == nil {
					good++
					got = "ok " + cmp.Or(ver.Outcome, "intent")
					if run := ver.Statement.Predicate.RunID; (run != "") != (dir == ofRuns) {
						t.Errorf("run %q", run)
					}
					if p := ver.Statement.Predicate; (p.Planted != nil) != (dir == ofPlants && p.Outcome != "" && p.Outcome != OutcomeUnknown) {
						t.Errorf("planted %+v", p.Planted)
					}
				}
				if got != v.expect {
					t.Errorf("got %q (%v), want %q", got, err, v.expect)
				}
			})
		}
		if good < 4 {
			t.Errorf("%s: %d good vectors", dir, good)
		}
	}
}

// writeTrust writes the keys of the vectors in dir.
func writeTrust(t *testing.T, w *world, dir string) {
	t.Helper()
	to := filepath.Join(vectorRoot, dir, "trust")
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"att.pub", "log.vkey", "trusted_root.json"} {
		b, err := os.ReadFile(filepath.Join(w.dir, "trust", f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, f), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func writeRunVectors(t *testing.T) {
	w := newWorld(t)
	writeTrust(t, w, ofRuns)
	p := predicate()
	p.RunID = "r-1"
	put := func(name, expect string, s Statement) {
		i, e := w.log(t, s)
		(&vector{ofRuns, name, expect, "verified", w.receipt(t, i, e)}).write(t)
	}
	put("intent", "ok intent", NewStatement(p, canon.Digest{}, canon.Digest{}))
	for _, o := range []string{Executed, OutcomeUnknown} {
		put(strings.ReplaceAll(o, "_", "-"), "ok "+o, result(p, o, w.intent(t, p)))
	}
	deny := p
	deny.Decision.Effect, deny.Outcome = "deny", Denied
	put("denied", "ok denied", NewStatement(deny, canon.Digest{}, canon.Digest{}))

	// "" is no way to say that there is no run.
	s := NewStatement(p, canon.Digest{}, canon.Digest{})
	payload, err := canon.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	e, err := seal(w.ring.Attestation(), bytes.Replace(payload, []byte(`"run_id":"r-1"`), []byte(`"run_id":""`), 1))
	if err != nil {
		t.Fatal(err)
	}
	(&vector{ofRuns, "empty-run", "receipt_statement", "verified", w.receipt(t, w.append(t, e), e)}).write(t)
}

func writePlantedVectors(t *testing.T) {
	w := newWorld(t)
	writeTrust(t, w, ofPlants)
	p, found := planting()
	put := func(name, expect string, s Statement) {
		i, e := w.log(t, s)
		(&vector{ofPlants, name, expect, "verified", w.receipt(t, i, e)}).write(t)
	}
	put("intent", "ok intent", NewStatement(p, canon.Digest{}, canon.Digest{}))
	put("outcome-unknown", "ok outcome_unknown", result(p, OutcomeUnknown, w.intent(t, p)))
	after := p
	after.Planted = found
	put("executed", "ok executed", result(after, Executed, w.intent(t, p)))
	after.Planted = &Planted{Looked: 1, TimesKept: true}
	put("nothing", "ok timed_out", result(after, TimedOut, w.intent(t, p)))

	// What others would sign: none of it is ours.
	after.Planted = found
	payload, err := canon.Marshal(result(after, Executed, w.intent(t, p)))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, from, to string }{
		{"null", `"times_kept":true}`, `"times_kept":null}`},
		{"unknown-member", `"times_kept":true}`, `"times_kept":true,"z":0}`},
		{"read-only", `"read_only":false`, `"read_only":true`},
		{"uncounted", `{"count":3,"kind":"fifo"},`, ``},
		{"control-character", `pre\\x0acommit`, `pre\ncommit`},
		{"mode", `"mode":"100755"`, `"mode":"100788"`},
	} {
		spoiled := bytes.Replace(payload, []byte(c.from), []byte(c.to), 1)
		if bytes.Equal(spoiled, payload) {
			t.Fatalf("%s: no %s in %s", c.name, c.from, payload)
		}
		e, err := seal(w.ring.Attestation(), spoiled)
		if err != nil {
			t.Fatal(err)
		}
		(&vector{ofPlants, c.name, "receipt_statement", "verified", w.receipt(t, w.append(t, e), e)}).write(t)
	}
}

func writeVectors(t *testing.T) {
	w := newWorld(t)
	writeTrust(t, w, plain)
	p := predicate()
	sample := string(w.sample(t))
	(&vector{plain, "executed", "ok executed", "verified", []byte(sample)}).write(t)
	i, e := w.log(t, NewStatement(p, canon.Digest{}, canon.Digest{}))
	(&vector{plain, "intent", "ok intent", "verified", w.receipt(t, i, e)}).write(t)
	for _, o := range []string{Killed, TimedOut, OutcomeUnknown} {
		i, e := w.log(t, result(p, o, w.intent(t, p)))
		(&vector{plain, strings.ReplaceAll(o, "_", "-"), "ok " + o, "verified", w.receipt(t, i, e)}).write(t)
	}
	deny := p
	deny.Decision.Effect, deny.Outcome = "deny", Denied
	i, e = w.log(t, NewStatement(deny, canon.Digest{}, canon.Digest{}))
	(&vector{plain, "denied", "ok denied", "verified", w.receipt(t, i, e)}).write(t)

	other := newWorld(t)
	alien := string(other.sample(t))
	between := func(s, from, to string) string {
		i := strings.Index(s, from)
		return s[i : i+strings.Index(s[i:], to)+len(to)]
	}
	payload := between(sample, `"payload":"`, `","`)
	raw, err := base64.StdEncoding.DecodeString(payload[len(`"payload":"`) : len(payload)-len(`","`)])
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(raw, []byte(`"outcome":"executed"`), []byte(`"outcome":"timed_ou"`), 1)
	flip := func(s, name string) string { // another character of the base64 after name
		i := strings.Index(s, name) + len(name) + 12
		c := "A"
		if s[i] == 'A' {
			c = "B"
		}
		return s[:i] + c + s[i+1:]
	}
	for _, c := range []struct{ name, expect, others, body string }{
		{"bad-payload", "receipt_signature", "refused", strings.Replace(sample, payload, `"payload":"`+base64.StdEncoding.EncodeToString(changed)+`","`, 1)},
		{"bad-signature", "receipt_signature", "refused", flip(sample, `"sig":"`)},
		{"bad-leaf", "receipt_leaf", "refused", flip(sample, `"canonicalizedBody":"`)},
		{"bad-hash", "receipt_inclusion", "refused", flip(sample, `"hashes":["`)},
		{"bad-index", "receipt_inclusion", "refused", strings.ReplaceAll(sample, `"logIndex":"4"`, `"logIndex":"3"`)},
		{"bad-checkpoint-size", "receipt_checkpoint", "refused", strings.Replace(sample, `local\n6\n`, `local\n7\n`, 1)},
		{"bad-checkpoint-signature", "receipt_checkpoint", "refused", flip(sample, `— `+w.t.Origin()+` `)},
		{"no-entry", "receipt_entries", "refused", strings.Replace(sample, between(sample, `"tlogEntries":[`, `"logIndex":"4"}]`), `"tlogEntries":[]`, 1)},
		{"other-log", "receipt_key", "refused", alien},
		{"other-entry", "receipt_leaf", "either", strings.Replace(sample, between(sample, `"canonicalizedBody":"`, `","`), between(alien, `"canonicalizedBody":"`, `","`), 1)},
		{"two-signatures", "receipt_envelope", "refused", strings.Replace(sample, `"signatures":[{`, `"signatures":[{"sig":"AAAA"},{`, 1)},
		{"cut", "receipt_syntax", "refused", sample[:len(sample)-1]},
		{"empty", "receipt_syntax", "refused", ""},
		// The bundle is a container: other spellings of it say the same.
		{"respelled", "ok executed", "verified", string(respell(t, []byte(sample), rand.New(rand.NewPCG(1, 2))))},
		{"space", "ok executed", "verified", strings.Replace(sample, `{"dsseEnvelope"`, `{ "dsseEnvelope"`, 1)},
		{"last-newline", "ok executed", "verified", sample + "\n"},
		// Others read these generously.
		{"member-twice", "receipt_syntax", "verified", strings.Replace(sample, `{"dsseEnvelope"`, `{"mediaType":"`+mediaType+`","dsseEnvelope"`, 1)},
		{"trailing-data", "receipt_syntax", "refused", sample + "{}"},
		{"number-unquoted", "receipt_syntax", "verified", strings.Replace(sample, `"logIndex":"4"`, `"logIndex":4`, 1)},
		{"keyid", "receipt_syntax", "verified", strings.Replace(sample, `"signatures":[{`, `"signatures":[{"keyid":"",`, 1)},
		{"other-root-hash", "receipt_checkpoint", "verified", strings.Replace(sample, between(sample, `"rootHash":"`, `"`+`,`), between(alien, `"rootHash":"`, `"`+`,`), 1)},
		{"media-type-v0.2", "receipt_form", "either", strings.Replace(sample, `bundle.v0.3+json`, `bundle.v0.2+json`, 1)},
	} {
		if c.body == sample {
			t.Fatalf("%s changes nothing", c.name)
		}
		(&vector{plain, c.name, c.expect, c.others, []byte(c.body)}).write(t)
	}
}

// FuzzVerify: nothing verifies but the good vectors, however their JSON is spelled.
func FuzzVerify(f *testing.F) {
	good := make(map[string]bool)
	var trusts []*Trust
	for _, dir := range []string{plain, ofRuns} {
		for _, v := range readVectors(f, dir) {
			f.Add(v.body)
			if strings.HasPrefix(v.expect, "ok") {
				plain, err := canon.Canonical(v.body)
				if err != nil {
					f.Fatal(err)
				}
				good[string(plain)] = true
			}
		}
		trusts = append(trusts, vectorTrust(f, dir))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, trust := range trusts {
			plain, _ := canon.Canonical(b)
			if _, err := Verify(b, trust); err == nil && !good[string(plain)] {
				t.Fatalf("verifies: %q", b)
			} else if err != nil && fault.KindOf(err) != fault.Integrity {
				t.Fatalf("%v is no integrity error", err)
			}
		}
	})
}

// FuzzEnvelope: an envelope that parses has one spelling.
func FuzzEnvelope(f *testing.F) {
	w := newWorld(f)
	e, err := Sign(w.ring.Attestation(), NewStatement(predicate(), canon.Digest{}, canon.Digest{}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(e.Encode())
	f.Add([]byte(`{"payload":"","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"AAAA"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := ParseEnvelope(b); err == nil && !bytes.Equal(e.Encode(), b) {
			t.Fatalf("%q parses and is written as %q", b, e.Encode())
		}
	})
}

// FuzzStatement: a statement that parses has one spelling. (Most of its time
// goes into shortening inputs that cannot get short; -fuzzminimizetime 10x
// gives it to finding them.)
func FuzzStatement(f *testing.F) {
	for _, s := range []Statement{NewStatement(predicate(), canon.Digest{}, canon.Digest{}), result(predicate(), Executed, 3)} {
		b, err := canon.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseStatement(b)
		if err != nil {
			return
		}
		if again, err := canon.Marshal(s); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%q parses and is written as %q, %v", b, again, err)
		}
	})
}

func BenchmarkSign(b *testing.B) {
	w := newWorld(b)
	s := NewStatement(predicate(), canon.Digest{}, canon.Digest{})
	for b.Loop() {
		if _, err := Sign(w.ring.Attestation(), s); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLeaf(b *testing.B) {
	w := newWorld(b)
	e, err := Sign(w.ring.Attestation(), NewStatement(predicate(), canon.Digest{}, canon.Digest{}))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Leaf(e, w.ring.Attestation()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkProveBundle(b *testing.B) {
	w := newWorld(b)
	i, e := w.log(b, result(predicate(), Executed, w.intent(b, predicate())))
	for b.Loop() {
		w.receipt(b, i, e)
	}
}

func BenchmarkVerify(b *testing.B) {
	w := newWorld(b)
	r := w.sample(b)
	for b.Loop() {
		if _, err := Verify(r, w.t); err != nil {
			b.Fatal(err)
		}
	}
}

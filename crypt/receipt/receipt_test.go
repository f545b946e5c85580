package receipt

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/sample"
)

// world is a state directory with an open journal.
type world struct {
	dir  string
	ring *keyring.Ring
	j    *journal.Journal
	t    *Trust
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{dir: dir, ring: ring, t: TrustIn(ring)}
	w.open(t)
	return w
}

func (w *world) journalDir() string { return filepath.Join(w.dir, "journal") }

func (w *world) open(t testing.TB) {
	t.Helper()
	j, err := journal.Open(w.journalDir(), w.ring.Log(), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w.j = j
	t.Cleanup(func() { j.Close() })
}

// predicate is an executed call of a made-up program.
func predicate() Predicate {
	capsule := canon.Sum([]byte("capsule"))
	return Predicate{
		Version: PredicateVersion, CallID: "c-0001", Time: "2026-11-21T09:00:00.5Z", BootID: "b", Tool: "process.run",
		Principal: "user:1000", SessionID: "s-1",
		Capsule: Capsule{Digest: capsule, Bytes: 900, Argv: []string{"/bin/echo", "grüße\u202e"}, Cwd: "/workspace", TierFloor: "c",
			Executable: File{Path: "/usr/bin/echo", Digest: canon.Sum([]byte("echo")), Size: 35000, Pinned: "system"},
			Stdin:      Stdin{Mode: "none"}, Limits: Limits{Wall: 30e9, CPU: 30e9, Memory: 1 << 29, PIDs: 64, Output: 1 << 20}},
		Decision: Decision{ID: "d-1", Effect: "allow", Reason: "allowed", Policies: []string{"allow-tools"}, PolicySet: canon.Sum([]byte("set"))},
	}
}

// intent appends an intent for p and returns its index.
func (w *world) intent(t testing.TB, p Predicate) uint64 {
	t.Helper()
	i, _ := w.log(t, NewStatement(p, canon.Digest{}, canon.Digest{}))
	return i
}

func (w *world) log(t testing.TB, s Statement) (uint64, *Envelope) {
	t.Helper()
	e, err := Sign(w.ring.Attestation(), s)
	if err != nil {
		t.Fatal(err)
	}
	return w.append(t, e), e
}

func (w *world) append(t testing.TB, e *Envelope) uint64 {
	t.Helper()
	leaf, err := Leaf(e, w.ring.Attestation())
	if err != nil {
		t.Fatal(err)
	}
	pos, err := w.j.Append(context.Background(), journal.Entry{Leaf: leaf, Content: e.Encode()})
	if err != nil {
		t.Fatal(err)
	}
	return pos.Index
}

func result(p Predicate, outcome string, intent uint64) Statement {
	p.Outcome, p.Intent = outcome, &intent
	p.Evidence = json.RawMessage(`{"executor":"sandbox_tier_c_linux_native"}`)
	return NewStatement(p, canon.Sum([]byte("out")), canon.Sum(nil))
}

func (w *world) receipt(t testing.TB, index uint64, e *Envelope) []byte {
	t.Helper()
	p, err := w.j.Prove(t.Context(), index)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Bundle(e, p, w.t)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sample is a receipt of an executed call, with a few entries around it so that
// its proof has hashes on both sides.
func (w *world) sample(t testing.TB) []byte {
	t.Helper()
	p := predicate()
	for range 3 {
		w.intent(t, p)
	}
	i, e := w.log(t, result(p, Executed, w.intent(t, p)))
	w.intent(t, p)
	return w.receipt(t, i, e)
}

func TestVerify(t *testing.T) {
	w := newWorld(t)
	b := w.sample(t)
	v, err := Verify(b, w.t)
	if err != nil {
		t.Fatal(err)
	}
	if v.Outcome != Executed || v.Index != 4 || v.Size != 6 || v.Statement.Predicate.Capsule.Argv[1] != "grüße\u202e" {
		t.Errorf("verified %+v", v)
	}
	t.Logf("receipt of %d bytes", len(b))
	lt, err := LoadTrust(filepath.Join(w.dir, "trust"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(b, lt); err != nil {
		t.Errorf("with the exported trust: %v", err)
	}
	if _, err := Verify(b, newWorld(t).t); fault.KindOf(err) != fault.Integrity {
		t.Errorf("with another installation's trust: %v", err)
	}
}

// TestEveryByte changes, removes and doubles every byte of a receipt. None of
// it may verify but white space between the tokens of the bundle.
func TestEveryByte(t *testing.T) {
	w := newWorld(t)
	b := w.sample(t)
	try := func(what string, at int, m []byte) {
		t.Helper()
		if _, err := Verify(m, w.t); err == nil {
			if plain, _ := canon.Canonical(m); (what == "space" || what == "newline") && bytes.Equal(plain, b) {
				return
			}
			t.Errorf("%s at byte %d of %d verifies: %q", what, at, len(b), m[max(0, at-20):min(len(m), at+20)])
		} else if fault.KindOf(err) != fault.Integrity {
			t.Errorf("%s at byte %d: %v, want integrity", what, at, err)
		}
	}
	flips := []byte{0x01, 0x20, 0x80, 0x04}
	for i := 0; i < len(b); i += sample.Of(3, 1) {
		m := bytes.Clone(b)
		m[i] ^= flips[i%len(flips)]
		try("flip", i, m)
	}
	for i := 0; i < len(b); i += 7 {
		try("cut", i, append(bytes.Clone(b[:i]), b[i+1:]...))
		try("space", i, append(append(bytes.Clone(b[:i]), ' '), b[i:]...))
		try("end", i, b[:i])
	}
	try("newline", len(b), append(bytes.Clone(b), '\n'))
}

// TestOtherShapes are receipts that mean the same or more to other verifiers.
func TestOtherShapes(t *testing.T) {
	w := newWorld(t)
	b := string(w.sample(t))
	other := newWorld(t)
	ob := string(other.sample(t))
	cut := func(s, from, to string) string {
		i := strings.Index(s, from)
		return s[i : i+strings.Index(s[i:], to)+len(to)]
	}
	for _, c := range []struct{ name, old, new, reason string }{
		{"second signature", `"signatures":[{`, `"signatures":[{"sig":"AAAA"},{`, "receipt_envelope"},
		{"no signature", cut(b, `"signatures":[`, `}]`), `"signatures":[]`, "receipt_envelope"},
		{"keyid", `"signatures":[{`, `"signatures":[{"keyid":"x",`, "receipt_syntax"},
		{"two entries", `"tlogEntries":[`, `"tlogEntries":[` + cut(b, `{"canonicalizedBody"`, `"logIndex":"4"}`) + `,`, "receipt_entries"},
		{"integrated time", `"integratedTime":"0"`, `"integratedTime":"1"`, "receipt_form"},
		{"number for string", `"integratedTime":"0"`, `"integratedTime":0`, "receipt_syntax"},
		{"kind version", `"kind":"hashedrekord","version":"0.0.2"},"logId"`, `"kind":"hashedrekord","version":"0.0.1"},"logId"`, "receipt_form"},
		{"media type", `bundle.v0.3+json`, `bundle.v0.2+json`, "receipt_form"},
		{"unknown member", `"mediaType"`, `"extra":1,"mediaType"`, "receipt_syntax"},
		{"inclusion promise", `"inclusionProof"`, `"inclusionPromise":{},"inclusionProof"`, "receipt_syntax"},
		{"other log", cut(b, `"logId":{`, `}`), cut(ob, `"logId":{`, `}`), "receipt_log"},
		{"other checkpoint", cut(b, `"checkpoint":{`, `}`), cut(ob, `"checkpoint":{`, `}`), "receipt_checkpoint"},
		{"other key", cut(b, `"hint":`, `}`), cut(ob, `"hint":`, `}`), "receipt_key"},
		{"other leaf", cut(b, `"canonicalizedBody":`, `,`), cut(ob, `"canonicalizedBody":`, `,`), "receipt_leaf"},
		{"other envelope", cut(b, `"dsseEnvelope":`, `}]}`), cut(ob, `"dsseEnvelope":`, `}]}`), "receipt_signature"},
		{"other hash", cut(b, `"hashes":[`, `,`), cut(ob, `"hashes":[`, `,`), "receipt_inclusion"},
		{"missing hash", cut(b, `"hashes":[`, `,`), `"hashes":[`, "receipt_inclusion"},
		{"short hash", cut(b, `"hashes":[`, `,`), `"hashes":["AAAA",`, "receipt_inclusion"},
		{"wrong index", `"logIndex":"4"`, `"logIndex":"3"`, "receipt_inclusion"},
		{"second checkpoint signature", cut(b, `\n\n— `, `\n`), cut(b, `\n\n— `, `\n`) + strings.TrimPrefix(cut(ob, `\n\n— `, `\n`), `\n\n`), "receipt_checkpoint"},
	} {
		if !strings.Contains(b, c.old) {
			t.Errorf("%s: %q is not in the receipt", c.name, c.old)
			continue
		}
		m := strings.Replace(b, c.old, c.new, 1)
		if c.name == "wrong index" {
			m = strings.ReplaceAll(b, c.old, c.new)
		}
		if _, err := Verify([]byte(m), w.t); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v (%s), want %s", c.name, err, fault.ReasonOf(err), c.reason)
		}
	}
}

// TestSignedButWrong are statements with good signatures and good proofs that a
// strict verifier must refuse all the same.
func TestSignedButWrong(t *testing.T) {
	w := newWorld(t)
	p := predicate()
	i := w.intent(t, p)
	good, err := Sign(w.ring.Attestation(), result(p, Executed, i))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, old, new string }{
		{"unknown member of the predicate", `"predicate":{`, `"predicate":{"aaa":1,`},
		{"a question that is none", `"seq":`, `"question":null,"seq":`},
		{"half a question", `"seq":`, `"question":{"channel":"","device":"","system":true},"seq":`},
		{"a run that is none", `"seq":`, `"run_id":"","seq":`},
		{"missing member", `"boot_id":"b",`, ``},
		{"unknown subject", `"name":"stderr"`, `"name":"stdxxx"`},
		{"capsule is another", `"name":"capsule"`, `"name":"request"`},
		{"other predicate type", `tool-execution/v1`, `tool-execution/v2`},
		{"intent type with an outcome", `tool-execution/v1`, `tool-intent/v1`},
		{"outcome unknown to us", `"outcome":"executed"`, `"outcome":"succeeded"`},
		{"no intent", `"intent":0`, `"intent":null`},
		{"space", `"boot_id":"b"`, `"boot_id": "b"`},
		{"no evidence", `"evidence":{"executor":"sandbox_tier_c_linux_native"}`, `"evidence":null`},
		{"evidence is a list", `"evidence":{"executor":"sandbox_tier_c_linux_native"}`, `"evidence":[]`},
		{"denied and executed", `"effect":"allow"`, `"effect":"deny"`},
		{"time with an offset", `"time":"2026-11-21T09:00:00.5Z"`, `"time":"2026-11-21T09:00:00.5+01:00"`},
		{"version", `"version":1}`, `"version":2}`},
	} {
		payload := strings.Replace(string(good.Payload), c.old, c.new, 1)
		if payload == string(good.Payload) {
			t.Errorf("%s: %q is not in the statement", c.name, c.old)
			continue
		}
		sig, _, err := w.ring.Attestation().SignStatement([]byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		e := &Envelope{Payload: []byte(payload), PayloadType: keyring.StatementType, Signatures: []Signature{{Sig: sig}}}
		leaf, err := Leaf(e, w.ring.Attestation())
		if err != nil {
			t.Fatal(err)
		}
		pos, err := w.j.Append(context.Background(), journal.Entry{Leaf: leaf, Content: e.Encode()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(w.receipt(t, pos.Index, e), w.t); fault.ReasonOf(err) != "receipt_statement" {
			t.Errorf("%s: %v, want receipt_statement", c.name, err)
		}
	}
}

func TestOutcomes(t *testing.T) {
	w := newWorld(t)
	p := predicate()
	deny := p
	deny.Decision.Effect, deny.Outcome = "deny", Denied
	ask := p
	ask.Decision.Effect, ask.Outcome = "needs_approval", NotApproved
	refused := p
	refused.Outcome, refused.Error = Refused, &Error{Kind: "refused", Reason: "userns_unavailable"}
	for _, q := range []Predicate{deny, ask, refused} {
		i, e := w.log(t, NewStatement(q, canon.Digest{}, canon.Digest{}))
		v, err := Verify(w.receipt(t, i, e), w.t)
		if err != nil || v.Outcome != q.Outcome {
			t.Errorf("%s: %v, %v", q.Outcome, v, err)
		}
	}
	for _, o := range []string{Failed, TimedOut, Killed, OutcomeUnknown} {
		i, e := w.log(t, result(p, o, w.intent(t, p)))
		if v, err := Verify(w.receipt(t, i, e), w.t); err != nil || v.Outcome != o {
			t.Errorf("%s: %v", o, err)
		}
	}
	approved := ask
	approved.Outcome = ""
	if _, err := Sign(w.ring.Attestation(), NewStatement(approved, canon.Digest{}, canon.Digest{})); err == nil {
		t.Error("signed an intent that needs approval and has none")
	}
	approved.Approval = &Approval{Answer: "approved", Capsule: canon.Sum([]byte("another"))}
	if _, err := Sign(w.ring.Attestation(), NewStatement(approved, canon.Digest{}, canon.Digest{})); err == nil {
		t.Error("signed an intent with the approval of another capsule")
	}
	approved.Approval.Capsule = approved.Capsule.Digest
	if _, err := Sign(w.ring.Attestation(), NewStatement(approved, canon.Digest{}, canon.Digest{})); err != nil {
		t.Error(err)
	}
}

func TestAudit(t *testing.T) {
	w := newWorld(t)
	p := predicate()
	for range 150 {
		w.log(t, result(p, Executed, w.intent(t, p)))
	}
	orphan := w.intent(t, p)
	deny := p
	deny.Decision.Effect, deny.Outcome = "deny", Denied
	w.log(t, NewStatement(deny, canon.Digest{}, canon.Digest{}))
	if err := w.j.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Audit(w.journalDir(), w.t)
	if err != nil {
		t.Fatal(err)
	}
	if r.Intents != 151 || r.Results != 151 || r.Outcomes[Executed] != 150 || r.Outcomes[Denied] != 1 ||
		len(r.Orphans) != 1 || r.Orphans[0].Index != orphan || r.Journal.Size != 302 {
		t.Errorf("audit %+v", r)
	}
	if _, err := Audit(w.journalDir(), newWorld(t).t); fault.KindOf(err) != fault.Integrity {
		t.Errorf("audit with another trust: %v", err)
	}
}

// TestAuditFinds appends entries that are sound as a log and wrong as books.
func TestAuditFinds(t *testing.T) {
	p := predicate()
	other, elsewhere := p, p
	other.CallID, elsewhere.RunID = "c-other", "r-other"
	for _, c := range []struct {
		name string
		do   func(t *testing.T, w *world)
	}{
		{"second result", func(t *testing.T, w *world) {
			i := w.intent(t, p)
			w.log(t, result(p, Executed, i))
			w.log(t, result(p, Failed, i))
		}},
		{"result of another call", func(t *testing.T, w *world) { w.log(t, result(other, Executed, w.intent(t, p))) }},
		{"result of another run", func(t *testing.T, w *world) { w.log(t, result(elsewhere, Executed, w.intent(t, p))) }},
		{"result for a result", func(t *testing.T, w *world) {
			i, _ := w.log(t, result(p, Executed, w.intent(t, p)))
			w.log(t, result(p, Executed, i))
		}},
		{"result for the future", func(t *testing.T, w *world) { w.log(t, result(p, Executed, 7)) }},
		{"seq from the future", func(t *testing.T, w *world) { q := p; q.Seq = 9; w.intent(t, q) }},
		{"content of another leaf", func(t *testing.T, w *world) {
			_, e := w.log(t, NewStatement(p, canon.Digest{}, canon.Digest{}))
			if _, err := w.j.Append(context.Background(), journal.Entry{Leaf: []byte("{}"), Content: e.Encode()}); err != nil {
				t.Fatal(err)
			}
		}},
		{"no envelope", func(t *testing.T, w *world) {
			if _, err := w.j.Append(context.Background(), journal.Entry{Leaf: []byte("{}")}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.do(t, w)
			if _, err := Audit(w.journalDir(), w.t); fault.KindOf(err) != fault.Integrity {
				t.Errorf("audit: %v, want integrity", err)
			}
		})
	}
}

func TestLoadTrust(t *testing.T) {
	w := newWorld(t)
	other := newWorld(t)
	trust := filepath.Join(w.dir, "trust")
	swap := func(name string) func() error {
		return func() error {
			b, err := os.ReadFile(filepath.Join(other.dir, "trust", name))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(trust, name), b, 0o644)
		}
	}
	put := func(name, text string) func() error {
		return func() error { return os.WriteFile(filepath.Join(trust, name), []byte(text), 0o644) }
	}
	for _, c := range []struct {
		name   string
		do     func() error
		reason string
	}{
		{"as exported", func() error { return nil }, ""},
		{"root of another log", swap("trusted_root.json"), "trust_corrupt"},
		{"no root", func() error { return os.Remove(filepath.Join(trust, "trusted_root.json")) }, ""},
		{"no key", func() error { return os.Remove(filepath.Join(trust, "att.pub")) }, "state_missing"},
		{"key is text", put("att.pub", "hello\n"), "trust_corrupt"},
		{"key is a log key", put("att.pub", "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAXFIUi8qSJFU07qViSQYGADgf6Y1MZBqRzRt27Tgj5Ag=\n-----END PUBLIC KEY-----\n"), "trust_corrupt"},
		{"key again", swap("att.pub"), ""},
		{"no newline", put("log.vkey", w.ring.Log().VKey()), "trust_corrupt"},
		{"two keys", put("log.vkey", w.ring.Log().VKey()+"\n"+w.ring.Log().VKey()+"\n"), "trust_corrupt"},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadTrust(trust); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v, want %q", c.name, err, c.reason)
		}
	}
}

// Sign checks a statement and signs it.
func Sign(k *keyring.AttestationKey, s Statement) (*Envelope, error) {
	payload, err := payloadOf(s)
	if err != nil {
		return nil, err
	}
	return seal(k, payload)
}

// Bundle joins an envelope and its proof into a receipt. It checks that the
// proof is one for this envelope; the signatures, which were made a moment ago
// by keys in this process, are left to Verify.
func Bundle(e *Envelope, p journal.Proof, t *Trust) ([]byte, error) {
	leaf, err := leafOf(e, current(t.keys).spki)
	if err != nil {
		return nil, err
	}
	if err := p.Verify(leaf); err != nil {
		return nil, broken("inclusion", err)
	}
	return encodeBundle(e, p, leaf, t.KeyHint(), t.logs[0].log)
}

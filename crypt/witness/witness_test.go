package witness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// log is a journal with its keys.
type log struct {
	t    testing.TB
	ring *keyring.Ring
	dir  string // of the state
	j    *journal.Journal
	h    *keyring.History
	now  *keyring.LogKey
}

func newLog(t testing.TB) *log {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return (&log{t: t, ring: ring, dir: dir}).open("journal")
}

// open returns another journal of the same keys.
func (l *log) open(name string) *log {
	l.t.Helper()
	j, err := journal.Open(filepath.Join(l.dir, name), l.ring.Log(), journal.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = j.Close() })
	return &log{t: l.t, ring: l.ring, dir: l.dir, j: j, h: keyring.NewLogHistory(l.ring.Log().Public()), now: l.ring.Log()}
}

func (l *log) add(n int, text string) *log {
	l.t.Helper()
	for range n {
		if _, err := l.j.Append(l.t.Context(), journal.Entry{Leaf: fmt.Appendf(nil, "%s %d", text, l.j.Size())}); err != nil {
			l.t.Fatal(err)
		}
	}
	return l
}

// view is what a hub with this log shows a witness who remembers a size; keys says that it asked.
func (l *log) view(old uint64, keys bool) View {
	l.t.Helper()
	b, err := l.j.Checkpoint(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	v := View{Checkpoint: string(b)}
	if old > 0 && old <= l.j.Size() {
		c, err := l.j.ProveConsistency(l.t.Context(), old)
		if err != nil {
			l.t.Fatal(err)
		}
		for i := range c.Hashes {
			v.Hashes = append(v.Hashes, c.Hashes[i][:])
		}
	}
	if keys {
		v.Keys = l.keys()
	}
	return v
}

func (l *log) keys() []byte {
	if len(l.h.Keys) == 1 {
		return []byte(l.h.Keys[0].VKey + "\n")
	}
	b, err := l.h.Encode()
	if err != nil {
		l.t.Fatal(err)
	}
	return b
}

// rotate replaces the log's key.
func (l *log) rotate() *log {
	l.t.Helper()
	next, err := l.ring.PrepareNextLog(l.dir, func(string) {})
	if err != nil {
		l.t.Fatal(err)
	}
	act := receipt.Act{Principal: "test", Time: "2026-11-27T12:00:00Z"}
	put := func(a receipt.Act, k *keyring.LogKey) (uint64, []byte) {
		e, err := receipt.ActEntry(l.ring.Attestation(), a)
		if err != nil {
			l.t.Fatal(err)
		}
		p, err := l.j.Append(l.t.Context(), journal.Entry{Leaf: e.Leaf(), Content: e.Content(), Key: k})
		if err != nil {
			l.t.Fatal(err)
		}
		proof, err := l.j.Prove(l.t.Context(), p.Index)
		if err != nil {
			l.t.Fatal(err)
		}
		trust, err := receipt.NewTrust(l.ring.Attestation().SPKI(), l.j.Key())
		if err != nil {
			l.t.Fatal(err)
		}
		b, err := e.Bundle(proof, trust)
		if err != nil {
			l.t.Fatal(err)
		}
		return p.Index, b
	}
	a := receipt.LogIntroduction(act, next.Public())
	i, b := put(a, nil)
	l.h = l.h.IntroduceLog(next.Public(), i, a.Time, b)
	note, err := l.j.Checkpoint(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	i, b = put(receipt.LogBeginning(act, next.Public(), l.now.Public(), i, note), next)
	l.h, l.now = l.h.Begin(i, a.Time, b), next
	return l
}

// meet has a witness judge what l shows, with keys where it asks for them.
func (l *log) meet(m *Memory) (*Memory, error) {
	l.t.Helper()
	size, err := m.Size()
	if err != nil {
		l.t.Fatal(err)
	}
	n, err := m.Judge(l.ring.Log().Origin(), l.view(size, m == nil), noon)
	if errors.Is(err, ErrKeys) {
		n, err = m.Judge(l.ring.Log().Origin(), l.view(size, true), noon)
	}
	return n, err
}

// remember is a memory of l as it is.
func (l *log) remember(m *Memory) *Memory {
	l.t.Helper()
	n, err := l.meet(m)
	if err != nil {
		l.t.Fatal(err)
	}
	b, err := n.Encode()
	if err != nil {
		l.t.Fatal(err)
	}
	if n, err = ParseMemory(b); err != nil {
		l.t.Fatal(err)
	}
	return n
}

// TestProofs compares the proofs' verification here with package journal's, for all small logs.
func TestProofs(t *testing.T) {
	const most = 40
	l := newLog(t)
	roots := make([][32]byte, most+1)
	for size := uint64(1); size <= most; size++ {
		l.add(1, "entry")
		head := Keys{{VKey: l.ring.Log().VKey()}}
		c, err := head.Open([]byte(l.view(0, false).Checkpoint))
		if err != nil || c.Size != size {
			t.Fatalf("checkpoint: %+v, %v", c, err)
		}
		roots[size] = c.Root
		for old := uint64(1); old < size; old++ {
			p, err := l.j.ProveConsistency(t.Context(), old)
			if err != nil {
				t.Fatal(err)
			}
			if err := verifyConsistency(old, size, p.Hashes, roots[old], roots[size]); err != nil {
				t.Errorf("%d to %d: %v", old, size, err)
			}
			for i := range p.Hashes {
				bad := append([][32]byte{}, p.Hashes...)
				bad[i][3] ^= 1
				if verifyConsistency(old, size, bad, roots[old], roots[size]) == nil {
					t.Errorf("%d to %d: another hash %d is accepted", old, size, i)
				}
			}
			other := roots[old]
			other[0] ^= 1
			if verifyConsistency(old, size, p.Hashes, other, roots[size]) == nil || verifyConsistency(old, size, p.Hashes, roots[old], other) == nil ||
				verifyConsistency(old, size, append(p.Hashes, other), roots[old], roots[size]) == nil ||
				len(p.Hashes) > 0 && verifyConsistency(old, size, p.Hashes[1:], roots[old], roots[size]) == nil {
				t.Errorf("%d to %d: another root, or other hashes, are accepted", old, size)
			}
		}
		for i := range size {
			p, err := l.j.Prove(t.Context(), i)
			if err != nil {
				t.Fatal(err)
			}
			h := leafHash(fmt.Appendf(nil, "entry %d", i))
			if err := verifyInclusion(h, i, size, p.Hashes, roots[size]); err != nil {
				t.Errorf("%d of %d: %v", i, size, err)
			}
			if verifyInclusion(h, (i+1)%size, size, p.Hashes, roots[size]) == nil && size > 1 || verifyInclusion(h, i, size, append(p.Hashes, h), roots[size]) == nil {
				t.Errorf("%d of %d: another place, or more hashes, are accepted", i, size)
			}
		}
	}
}

// TestJudge: a log that grows is accepted; one that was cut off, put back or forked isn't, with
// both checkpoints as the proof.
func TestJudge(t *testing.T) {
	l := newLog(t).add(5, "entry")
	five := l.remember(nil)
	fork := l.open("fork").add(3, "entry")
	three := l.open("short").add(3, "entry")
	l.add(7, "entry")
	twelve := l.remember(five)
	if n, err := l.meet(twelve); err != nil || n.Checkpoint != twelve.Checkpoint {
		t.Errorf("the same again: %v", err)
	}
	if _, err := l.meet(five); err != nil {
		t.Errorf("control: one who remembers less: %v", err)
	}
	for _, c := range []struct {
		name   string
		l      *log
		m      *Memory
		reason string
	}{
		{"cut off", three, twelve, "journal_rolled_back"},
		{"an older checkpoint again", l.open("again").add(5, "entry"), twelve, "journal_rolled_back"},
		{"cut off and gone on", fork.add(20, "other"), twelve, "journal_checkpoint_split"},
		{"another entry", l.open("other").add(4, "entry").add(8, "other"), twelve, "journal_checkpoint_split"},
	} {
		_, err := c.l.meet(c.m)
		x, ok := errors.AsType[*ConflictError](err)
		if !ok || fault.ReasonOf(err) != c.reason || fault.KindOf(err) != fault.Integrity {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		keys := Keys{{VKey: l.ring.Log().VKey()}}
		a, err1 := keys.Open([]byte(x.Conflict.Remembered))
		b, err2 := keys.Open([]byte(x.Conflict.Shown))
		if err1 != nil || err2 != nil || a.Size != 12 || b == a {
			t.Errorf("%s: the proof has %+v and %+v, %v, %v", c.name, a, b, err1, err2)
		}
		if _, err := x.Conflict.Encode(); err != nil {
			t.Error(err)
		}
	}
	// Another log, and another's key under this name.
	other := newLog(t).add(20, "entry")
	for name, origin := range map[string]string{"its own name": other.ring.Log().Origin(), "this name": l.ring.Log().Origin()} {
		if _, err := twelve.Judge(origin, other.view(12, true), noon); fault.ReasonOf(err) != "trust_corrupt" {
			t.Errorf("another log under %s: %v", name, err)
		}
	}
	if _, err := (*Memory)(nil).Judge("example.org", l.view(0, true), noon); fault.ReasonOf(err) != "trust_corrupt" {
		t.Errorf("another log than the hub's at the first contact: %v", err)
	}
	if _, err := twelve.Judge(l.ring.Log().Origin(), other.view(12, false), noon); !errors.Is(err, ErrKeys) {
		t.Errorf("a checkpoint by an unknown key: %v", err)
	}
	bad := l.view(5, false)
	bad.Checkpoint = strings.Replace(bad.Checkpoint, "12\n", "13\n", 1)
	if _, err := five.Judge(l.ring.Log().Origin(), bad, noon); fault.ReasonOf(err) != "trust_corrupt" {
		t.Errorf("a checkpoint that isn't signed: %v", err)
	}
}

// TestJudgeRotated: a witness follows the log's key, and no key that the one before doesn't
// introduce.
func TestJudgeRotated(t *testing.T) {
	l := newLog(t).add(5, "entry")
	old := l.remember(nil)
	l.rotate().add(3, "entry")
	now := l.remember(old)
	if ks, _, err := now.open(); err != nil || len(ks) != 2 || ks[1].VKey != l.now.VKey() || ks[0].To == 0 {
		t.Fatalf("keys: %+v, %v", ks, err)
	}
	l.rotate().add(1, "entry")
	if _, err := l.meet(old); err != nil {
		t.Errorf("two rotations later: %v", err)
	}
	l.remember(now)

	// A thief of the first key goes on from where the witness was.
	fork := l.open("fork").add(5, "entry").add(30, "fork")
	if _, err := fork.meet(now); err == nil {
		t.Error("the old key's log is accepted after the rotation")
	}
	if _, err := fork.meet(old); err != nil { // the thief's luck: this witness hasn't heard of the rotation
		t.Errorf("control: before it: %v", err)
	}
	// A list that the old key doesn't vouch for.
	for name, change := range map[string]func(k []byte) []byte{
		"another key":     func(k []byte) []byte { return bytes.ReplaceAll(k, []byte(l.h.Keys[1].VKey), []byte(l.h.Keys[2].VKey)) },
		"no introduction": func(k []byte) []byte { return bytes.ReplaceAll(k, []byte(`"introduced"`), []byte(`"introducet"`)) },
		"another payload": func(k []byte) []byte { return bytes.ReplaceAll(k, []byte(`"payload":"ey`), []byte(`"payload":"ex`)) },
		"no end":          func(k []byte) []byte { return bytes.ReplaceAll(k, []byte(`"to":`), []byte(`"tx":`)) },
	} {
		if _, err := parseKeys(l.keys()); err != nil {
			t.Fatalf("control: %v", err)
		}
		v := l.view(5, true)
		if v.Keys = change(v.Keys); bytes.Equal(v.Keys, l.keys()) {
			t.Fatalf("%s: nothing changed", name)
		}
		if _, err := old.Judge(l.ring.Log().Origin(), v, noon); fault.ReasonOf(err) != "trust_corrupt" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCosign: a cosignature is of one checkpoint, by one key under one name.
func TestCosign(t *testing.T) {
	l := newLog(t).add(5, "entry")
	keys := Keys{{VKey: l.ring.Log().VKey()}}
	k, err := NewKey(Name(l.ring.Log().Origin(), "laptop"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ParseKey(k.Encode()); err != nil || again.Public().VKey() != k.Public().VKey() {
		t.Errorf("encoded and parsed: %v", err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", k, k, k, k); strings.Contains(text, "PRIVATE") || !strings.Contains(text, k.Public().VKey()) {
		t.Errorf("it prints as %s", text)
	}
	p, err := ParseVKey(k.Public().VKey())
	if err != nil {
		t.Fatal(err)
	}
	note := []byte(l.view(0, false).Checkpoint)
	b, err := k.Cosign(note, noon)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Open(b, keys)
	if err != nil || c.Size != 5 || !c.Time.Equal(noon) || !bytes.Equal(c.Note, note) {
		t.Fatalf("opened: %+v, %v", c, err)
	}
	other, err := NewKey(k.name)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Cosign(note, noon)
	if err != nil {
		t.Fatal(err)
	}
	renamed := &Key{priv: k.priv, name: Name(l.ring.Log().Origin(), "desktop")}
	under, err := renamed.Cosign(note, noon)
	if err != nil {
		t.Fatal(err)
	}
	l2 := newLog(t).add(5, "entry")
	elsewhere, err := k.Cosign([]byte(l2.view(0, false).Checkpoint), noon)
	if err != nil {
		t.Fatal(err)
	}
	l.add(1, "entry")
	line := b[len(note):]
	for name, b := range map[string][]byte{
		"another witness":     foreign,
		"another name":        under,
		"another log":         elsewhere,
		"of another size":     append([]byte(l.view(0, false).Checkpoint), line...),
		"twice":               append(bytes.Clone(b), line...),
		"none":                note,
		"no newline":          bytes.TrimSuffix(b, []byte("\n")),
		"another time":        bytes.Replace(b, line[:60], append(bytes.Clone(line[:len(line)-90]), 'B'), 1),
		"a checkpoint as one": append(bytes.Clone(note), note[bytes.Index(note, []byte("\u2014")):]...),
	} {
		if c, err := p.Open(b, keys); err == nil {
			t.Errorf("%s is accepted: %+v", name, c)
		}
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1
		if _, err := p.Open(bad, keys); err == nil {
			t.Errorf("byte %d changed, and accepted", i)
		}
	}
	for _, s := range []string{"", k.Public().VKey() + "x", l.ring.Log().VKey(), strings.Replace(k.Public().VKey(), "laptop", "desktop", 1)} {
		if _, err := ParseVKey(s); err == nil {
			t.Errorf("%q is accepted", s)
		}
	}
	if _, err := NewKey("a name"); err == nil {
		t.Error("a name with a space is accepted")
	}
}

// TestExample reads the example of C2SP's tlog-cosignature, whose keys aren't published, and the
// message that it says is signed.
func TestExample(t *testing.T) {
	const text = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
	const log = "\u2014 example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
	const cosigned = "\u2014 witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n"
	note, name, at, sig, err := split([]byte(text + "\n" + log + cosigned))
	if err != nil || string(note) != text+"\n"+log || name != "witness.example.com/w1" || at != 1679315147 || len(sig) != 76 {
		t.Fatalf("%q, %q, %d, %d bytes, %v", note, name, at, len(sig), err)
	}
	if got := string(message(at, []byte(text))); got != "cosignature/v1\ntime 1679315147\n"+text {
		t.Errorf("signed: %q", got)
	}
}

func FuzzMemory(f *testing.F) {
	l := newLog(f).add(3, "entry")
	b, err := l.remember(nil).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(l.rotate().keys())
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseKeys(b)
		if m, err := ParseMemory(b); err == nil {
			if _, err := m.Encode(); err != nil {
				t.Error(err)
			}
		}
	})
}

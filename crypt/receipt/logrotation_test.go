package receipt

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/internal/fault"
)

// putKey appends an act that k signs and that puts a key of the log in force, in a journal that
// asks nothing.
func (w *world) putKey(t testing.TB, k *keyring.AttestationKey, a Act, log *keyring.LogKey) (uint64, []byte) {
	t.Helper()
	e, err := ActEntry(k, a)
	if err != nil {
		t.Fatal(err)
	}
	pos, err := w.j.Append(t.Context(), journal.Entry{Leaf: e.Leaf(), Content: e.Content(), Key: log})
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.j.Prove(t.Context(), pos.Index)
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Bundle(p, w.under(t, k, w.j.Key()))
	if err != nil {
		t.Fatal(err)
	}
	return pos.Index, b
}

// under is the trust in k and a key of the log, for every entry.
func (w *world) under(t testing.TB, k *keyring.AttestationKey, vkey string) *Trust {
	t.Helper()
	trust, err := NewTrust(k.SPKI(), vkey)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// nextLog makes another key of the log.
func (w *world) nextLog(t testing.TB) *keyring.LogKey {
	t.Helper()
	k, err := w.ring.PrepareNextLog(w.dir, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// note is the log's newest checkpoint.
func (w *world) note(t testing.TB) []byte {
	t.Helper()
	b, err := w.j.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rotateLog replaces the log's key, and returns the history.
func (w *world) rotateLog(t testing.TB, h *keyring.History, k *keyring.AttestationKey, old, next *keyring.LogKey) *keyring.History {
	t.Helper()
	a := LogIntroduction(act(), next.Public())
	i, b := w.putKey(t, k, a, nil)
	h = h.IntroduceLog(next.Public(), i, a.Time, b)
	i, b = w.putKey(t, k, LogBeginning(act(), next.Public(), old.Public(), i, w.note(t)), next)
	return h.Begin(i, act().Time, b)
}

// publishBoth writes a trust directory.
func (w *world) publishBoth(t testing.TB, att, log *keyring.History) string {
	t.Helper()
	dir := w.publish(t, att)
	if len(att.Keys) == 1 {
		if err := os.Remove(filepath.Join(dir, keyring.HistoryFile)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := log.Encode()
	if err != nil {
		t.Fatal(err)
	}
	root, err := log.TrustedRoot()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{keyring.LogHistoryFile: b, keyring.TrustedRootFile: root, keyring.LogVKeyFile: []byte(log.Current().VKey + "\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestLogRotation: rotations of both kinds, in turn. Receipts of every time verify under one trust
// directory, under the log's key of then and under that of now, and the old key's later ones don't.
func TestLogRotation(t *testing.T) {
	w := newWorld(t)
	keys := []*keyring.AttestationKey{w.ring.Attestation(), stranger(t), stranger(t)}
	logs := []*keyring.LogKey{w.ring.Log(), w.nextLog(t), w.nextLog(t)}
	att, log := keyring.NewHistory(keys[0].SPKI()), keyring.NewLogHistory(logs[0].Public())
	var good [][]byte
	add := func(k *keyring.AttestationKey) {
		_, b := w.putKey(t, k, act(), nil)
		good = append(good, b)
	}
	add(keys[0])
	log = w.rotateLog(t, log, keys[0], logs[0], logs[1])
	add(keys[0])
	// The receipts of an attestation key's steps are under the log's key of then.
	a := Introduction(act(), keys[1].SPKI())
	i, b := w.putKey(t, keys[0], a, nil)
	att = att.Introduce(keys[1].SPKI(), i, a.Time, b)
	i, b = w.putKey(t, keys[1], Beginning(act(), keys[1].SPKI(), keys[0].SPKI(), i), nil)
	att = att.Begin(i, act().Time, b)
	add(keys[1])
	log = w.rotateLog(t, log, keys[1], logs[1], logs[2])
	add(keys[1])

	trust, err := LoadTrust(w.publishBoth(t, att, log))
	if err != nil {
		t.Fatal(err)
	}
	if trust.VKey() != logs[2].VKey() || len(trust.LogKeys()) != 3 || trust.LogKeys()[2].To != 0 {
		t.Errorf("the log's keys: %+v", trust.LogKeys())
	}
	for n, b := range good {
		if _, err := Verify(b, trust); err != nil {
			t.Errorf("receipt %d: %v", n, err)
		}
	}
	p, err := w.j.Prove(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for rec, err := range w.j.Entries(0, 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := trust.Logged(&rec)
		if err == nil {
			b, err = e.Bundle(p, trust)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(b, trust); err != nil {
			t.Errorf("the first entry under the newest key: %v", err)
		}
		if _, err := e.Bundle(p, w.t); !errors.Is(err, ErrKeyUnknown) {
			t.Errorf("with keys from before the rotation: %v", err)
		}
	}

	// A verifier with the keys from before knows the first alone, and follows the journal.
	if _, err := Verify(good[0], w.t); err != nil {
		t.Errorf("before, with the trust of then: %v", err)
	}
	if _, err := Verify(good[1], w.t); fault.ReasonOf(err) != "receipt_key" || !errors.Is(err, ErrKeyUnknown) {
		t.Errorf("after, with the trust of before: %v", err)
	}
	for name, x := range map[string]*Trust{"whole": trust, "first": w.t} {
		rep, err := Audit(w.journalDir(), x)
		if err != nil || len(rep.Keys) != 2 || len(rep.LogKeys) != 3 || rep.LogKeys[2].Trusted != (name == "whole") {
			t.Errorf("audit with the %s trust: %+v, %v", name, rep, err)
		}
	}
	// The thief of an old key of the log, who has the attestation key in force as well, shows an
	// entry that isn't in the log.
	e, err := ActEntry(keys[1], act())
	if err != nil {
		t.Fatal(err)
	}
	for n, thief := range logs {
		size := w.j.Size() + 1
		j, err := journal.Open(filepath.Join(t.TempDir(), "journal"), thief, journal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		for k := range size {
			x := journal.Entry{Leaf: e.Leaf(), Content: e.Content()}
			if k < size-1 {
				x.Leaf = []byte(strconv.FormatUint(k, 10))
			}
			if _, err := j.Append(t.Context(), x); err != nil {
				t.Fatal(err)
			}
		}
		fork, err := j.Prove(t.Context(), size-1)
		if err != nil {
			t.Fatal(err)
		}
		b, err := e.Bundle(fork, w.under(t, keys[1], thief.VKey()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(b, w.under(t, keys[1], thief.VKey())); err != nil {
			t.Errorf("control: under key %d alone: %v", n, err)
		}
		if _, err := Verify(b, trust); (err == nil) != (n == 2) || n < 2 && fault.ReasonOf(err) != "receipt_checkpoint" {
			t.Errorf("a fork by key %d: %v", n, err)
		}
	}
}

// TestLogRotationRefused: keys of the log that the journal doesn't introduce as it must.
func TestLogRotationRefused(t *testing.T) {
	for name, lie := range map[string]func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error{
		"not introduced": func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error {
			w.putKey(t, k, act(), next)
			return nil
		},
		"begins unbidden": func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error {
			w.putKey(t, k, LogBeginning(act(), next.Public(), old.Public(), 0, w.note(t)), next)
			return nil
		},
		"signs before it begins": func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error {
			w.putKey(t, k, LogIntroduction(act(), next.Public()), next)
			return nil
		},
		"the old key goes on": func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error {
			i, _ := w.putKey(t, k, LogIntroduction(act(), next.Public()), nil)
			w.putKey(t, k, LogBeginning(act(), next.Public(), old.Public(), i, w.note(t)), nil)
			return nil
		},
		"the attestation key alone": func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error {
			// Its thief, who is a writer of the journal too, has the next key vouch for itself.
			i, _ := w.putKey(t, k, LogIntroduction(act(), next.Public()), nil)
			root, err := w.j.Prove(t.Context(), i)
			if err == nil {
				w.putKey(t, k, LogBeginning(act(), next.Public(), old.Public(), i, next.SignCheckpoint(root.Size, root.Root)), next)
			}
			return err
		},
		"a checkpoint from before the introduction": func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error {
			note := w.note(t)
			i, _ := w.putKey(t, k, LogIntroduction(act(), next.Public()), nil)
			w.putKey(t, k, LogBeginning(act(), next.Public(), old.Public(), i, note), next)
			return nil
		},
		"a checkpoint of another tree": func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error {
			i, _ := w.putKey(t, k, LogIntroduction(act(), next.Public()), nil)
			w.putKey(t, k, LogBeginning(act(), next.Public(), old.Public(), i, old.SignCheckpoint(i+1, [32]byte{1})), next)
			return nil
		},
		"a checkpoint of the future": func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error {
			i, _ := w.putKey(t, k, LogIntroduction(act(), next.Public()), nil)
			w.putKey(t, k, LogBeginning(act(), next.Public(), old.Public(), i, old.SignCheckpoint(i+9, [32]byte{1})), next)
			return nil
		},
		"in another's place": func(w *world, k *keyring.AttestationKey, old, next *keyring.LogKey) error {
			i, _ := w.putKey(t, k, LogIntroduction(act(), next.Public()), nil)
			w.putKey(t, k, LogBeginning(act(), next.Public(), w.nextLog(t).Public(), i, w.note(t)), next)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put(t, w.ring.Attestation(), act(), w.t)
			if err := lie(w, w.ring.Attestation(), w.ring.Log(), w.nextLog(t)); err != nil {
				t.Fatal(err)
			}
			if _, err := Audit(w.journalDir(), w.t); fault.KindOf(err) != fault.Integrity {
				t.Errorf("audit: %v", err)
			}
		})
	}
}

// TestLoadTrustLogHistory: a list of the log's keys that its own receipts don't show.
func TestLoadTrustLogHistory(t *testing.T) {
	w := newWorld(t)
	k, old, next := w.ring.Attestation(), w.ring.Log(), w.nextLog(t)
	w.put(t, k, act(), w.t)
	h := w.rotateLog(t, keyring.NewLogHistory(old.Public()), k, old, next)
	other := newWorld(t)
	for name, c := range map[string]struct {
		change func(h *keyring.History)
		good   bool
	}{
		"as it is": {func(*keyring.History) {}, true},
		"ends later": {func(h *keyring.History) {
			from := h.Keys[1].From + 3
			h.Keys[0].To, h.Keys[1].From = &from, from
		}, false},
		"another key": {func(h *keyring.History) {
			p := w.nextLog(t).Public()
			h.Keys[1].VKey, h.Keys[1].Hint, h.Keys[1].File = p.VKey(), p.Hint(), p.File()
		}, false},
		"another log's": {func(h *keyring.History) {
			p := other.ring.Log().Public()
			h.Keys[1].VKey, h.Keys[1].Hint, h.Keys[1].File = p.VKey(), p.Hint(), p.File()
		}, false},
		"another first": {func(h *keyring.History) {
			p := w.nextLog(t).Public()
			h.Keys[0].VKey, h.Keys[0].Hint, h.Keys[0].File = p.VKey(), p.Hint(), p.File()
		}, false},
		"swapped": {func(h *keyring.History) {
			h.Keys[1].Begun, h.Keys[1].Introduced = h.Keys[1].Introduced, h.Keys[1].Begun
		}, false},
		"no receipt":        {func(h *keyring.History) { h.Keys[1].Introduced = nil }, false},
		"of the other kind": {func(h *keyring.History) { *h = *keyring.NewHistory(k.SPKI()) }, false},
	} {
		b, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		x, err := keyring.ParseHistory(b)
		if err != nil {
			t.Fatal(err)
		}
		c.change(x)
		dir := w.publishBoth(t, keyring.NewHistory(k.SPKI()), h)
		if b, err = x.Encode(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, keyring.LogHistoryFile), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadTrust(dir); (err == nil) != c.good || err != nil && fault.ReasonOf(err) != "trust_corrupt" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFollowsLogKey: a journal that asks puts a key of its own in force with the act that says so
// alone.
func TestFollowsLogKey(t *testing.T) {
	w := newWorld(t)
	k, old, next := w.ring.Attestation(), w.ring.Log(), w.nextLog(t)
	for _, c := range []struct {
		what string
		a    Act
		good bool
	}{
		{"another act", act(), false},
		{"the introduction", LogIntroduction(act(), next.Public()), false},
		{"another key's beginning", LogBeginning(act(), old.Public(), next.Public(), 0, nil), false},
		{"its beginning", LogBeginning(act(), next.Public(), old.Public(), 0, nil), true},
	} {
		e, err := ActEntry(k, c.a)
		if err != nil {
			t.Fatal(err)
		}
		if err := Follows(nil, &journal.Entry{Leaf: e.Leaf(), Content: e.Content(), Key: next}); (err == nil) != c.good {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

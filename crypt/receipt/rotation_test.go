package receipt

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// put appends an act that k signs, to a journal that asks nothing, and returns its receipt under
// trust.
func (w *world) put(t testing.TB, k *keyring.AttestationKey, a Act, trust *Trust) (uint64, []byte) {
	t.Helper()
	e, err := ActEntry(k, a)
	if err != nil {
		t.Fatal(err)
	}
	pos, err := w.j.Append(t.Context(), journal.Entry{Leaf: e.Leaf(), Content: e.Content()})
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.j.Prove(t.Context(), pos.Index)
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Bundle(p, trust)
	if err != nil {
		t.Fatal(err)
	}
	return pos.Index, b
}

// anyOf is a trust in k for every entry.
func (w *world) anyOf(t testing.TB, k *keyring.AttestationKey) *Trust {
	t.Helper()
	trust, err := NewTrust(k.SPKI(), w.ring.Log().VKey())
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// stranger is an attestation key of another state directory.
func stranger(t testing.TB) *keyring.AttestationKey {
	t.Helper()
	return newWorld(t).ring.Attestation()
}

// rotate replaces the key of a world that has k in force, and returns the history.
func (w *world) rotate(t testing.TB, h *keyring.History, k, next *keyring.AttestationKey) *keyring.History {
	t.Helper()
	a := Introduction(act(), next.SPKI())
	i, b := w.put(t, k, a, w.anyOf(t, k))
	h = h.Introduce(next.SPKI(), i, a.Time, b)
	i, b = w.put(t, next, Beginning(act(), next.SPKI(), k.SPKI(), i), w.anyOf(t, next))
	return h.Begin(i, act().Time, b)
}

// publish writes a trust directory.
func (w *world) publish(t testing.TB, h *keyring.History) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(w.dir, "trust"))); err != nil {
		t.Fatal(err)
	}
	b, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := os.Create(filepath.Join(dir, "att.pub"))
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	if _, err := pub.WriteString(pemOf(h.Current().SPKI)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyring.HistoryFile), b, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRotation: receipts of three keys verify under one trust directory, each at its place alone.
func TestRotation(t *testing.T) {
	w := newWorld(t)
	keys := []*keyring.AttestationKey{w.ring.Attestation(), stranger(t), stranger(t)}
	var good [][]byte
	_, b := w.put(t, keys[0], act(), w.t)
	good = append(good, b)
	h := keyring.NewHistory(keys[0].SPKI())
	for n := range 2 {
		h = w.rotate(t, h, keys[n], keys[n+1])
		_, b = w.put(t, keys[n+1], act(), w.anyOf(t, keys[n+1]))
		good = append(good, b)
	}
	trust, err := LoadTrust(w.publish(t, h))
	if err != nil {
		t.Fatal(err)
	}
	for n, b := range good {
		if v, err := Verify(b, trust); err != nil || v.KeyHint != keys[n].Hint() {
			t.Errorf("receipt of key %d: %+v, %v", n, v, err)
		}
	}
	rebuilt, _, err := Rotations(t.Context(), w.j, w.ring)
	if err != nil || len(rebuilt.Keys) != 3 {
		t.Fatalf("rebuilt: %+v, %v", rebuilt, err)
	}
	if _, err := LoadTrust(w.publish(t, rebuilt)); err != nil {
		t.Errorf("the history that the journal gives: %v", err)
	}
	for name, x := range map[string]*Trust{"whole": trust, "first": w.t} {
		if rep, err := Audit(w.journalDir(), x); err != nil || len(rep.Keys) != 3 {
			t.Errorf("audit with the %s trust: %+v, %v", name, rep, err)
		}
	}
	// The thieves of an old key and of the log's key log whatever they like.
	for n, k := range keys[:2] {
		i, b := w.put(t, k, act(), w.anyOf(t, k))
		if _, err := Verify(b, w.anyOf(t, k)); err != nil {
			t.Errorf("control: under the old key alone: %v", err)
		}
		if _, err := Verify(b, trust); fault.ReasonOf(err) != "receipt_key" || !strings.Contains(err.Error(), "ended") {
			t.Errorf("entry %d of old key %d: %v", i, n, err)
		}
	}
	if _, err := Audit(w.journalDir(), trust); fault.ReasonOf(err) != "receipt_audit" {
		t.Errorf("audit of a journal with an old key's entry: %v", err)
	}
}

// TestRotationRefused: keys that the journal doesn't introduce, or otherwise than it must.
func TestRotationRefused(t *testing.T) {
	late := act()
	late.Time = "2026-11-21T08:59:59Z" // before the introduction's
	for name, lie := range map[string]func(w *world, old, next *keyring.AttestationKey){
		"not introduced": func(w *world, old, next *keyring.AttestationKey) { w.put(t, next, act(), w.anyOf(t, next)) },
		"begins unbidden": func(w *world, old, next *keyring.AttestationKey) {
			w.put(t, next, Beginning(act(), next.SPKI(), old.SPKI(), 0), w.anyOf(t, next))
		},
		"introduces itself": func(w *world, old, next *keyring.AttestationKey) {
			i, _ := w.put(t, next, Introduction(act(), next.SPKI()), w.anyOf(t, next))
			w.put(t, next, Beginning(act(), next.SPKI(), old.SPKI(), i), w.anyOf(t, next))
		},
		"another begins": func(w *world, old, next *keyring.AttestationKey) {
			i, _ := w.put(t, old, Introduction(act(), next.SPKI()), w.t)
			x := stranger(t)
			w.put(t, x, Beginning(act(), x.SPKI(), old.SPKI(), i), w.anyOf(t, x))
		},
		"in another's place": func(w *world, old, next *keyring.AttestationKey) {
			i, _ := w.put(t, old, Introduction(act(), next.SPKI()), w.t)
			w.put(t, next, Beginning(act(), next.SPKI(), stranger(t).SPKI(), i), w.anyOf(t, next))
		},
		"too early": func(w *world, old, next *keyring.AttestationKey) {
			i, _ := w.put(t, old, Introduction(act(), next.SPKI()), w.t)
			w.put(t, next, Beginning(late, next.SPKI(), old.SPKI(), i), w.anyOf(t, next))
		},
		"without a first statement": func(w *world, old, next *keyring.AttestationKey) {
			w.put(t, old, Introduction(act(), next.SPKI()), w.t)
			w.put(t, next, act(), w.anyOf(t, next))
		},
		"the old one again": func(w *world, old, next *keyring.AttestationKey) {
			w.rotate(t, keyring.NewHistory(old.SPKI()), old, next)
			i, _ := w.put(t, next, Introduction(act(), old.SPKI()), w.anyOf(t, next))
			w.put(t, old, Beginning(act(), old.SPKI(), next.SPKI(), i), w.t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put(t, w.ring.Attestation(), act(), w.t)
			lie(w, w.ring.Attestation(), stranger(t))
			if _, err := Audit(w.journalDir(), w.t); fault.ReasonOf(err) != "receipt_audit" {
				t.Errorf("audit: %v", err)
			}
		})
	}
}

// TestFollows: a journal that asks takes the entries of the key in force alone.
func TestFollows(t *testing.T) {
	w := newWorld(t)
	if err := w.j.Close(); err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(w.journalDir(), w.ring.Log(), journal.Options{Follows: Follows})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	old, next := w.ring.Attestation(), stranger(t)
	try := func(k *keyring.AttestationKey, a Act) error {
		e, err := ActEntry(k, a)
		if err != nil {
			t.Fatal(err)
		}
		_, err = j.Append(t.Context(), journal.Entry{Leaf: e.Leaf(), Content: e.Content()})
		return err
	}
	begin := Beginning(act(), next.SPKI(), old.SPKI(), 0)
	for _, c := range []struct {
		what string
		k    *keyring.AttestationKey
		a    Act
		over bool
	}{
		{"the first", old, Introduction(act(), next.SPKI()), false},
		{"the next before it begins", next, act(), true},
		{"the old during the overlap", old, act(), false},
		{"the next in a stranger's place", next, Beginning(act(), next.SPKI(), stranger(t).SPKI(), 0), true},
		{"the next for a stranger", next, Beginning(act(), stranger(t).SPKI(), old.SPKI(), 0), true},
		{"the next begins", next, begin, false},
		{"the old after its end", old, act(), true},
		{"the old with the same act", old, begin, true},
		{"the next", next, act(), false},
	} {
		if err := try(c.k, c.a); errors.Is(err, ErrKeyOver) != c.over || err != nil && !c.over {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// TestLoadTrustHistory: a list of keys that its own receipts don't show.
func TestLoadTrustHistory(t *testing.T) {
	w := newWorld(t)
	old, next := w.ring.Attestation(), stranger(t)
	w.put(t, old, act(), w.t)
	h := w.rotate(t, keyring.NewHistory(old.SPKI()), old, next)
	other := newWorld(t)
	foreign := other.rotate(t, keyring.NewHistory(other.ring.Attestation().SPKI()), other.ring.Attestation(), next)
	again := func() *keyring.History { // a deep copy
		b, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		c, err := keyring.ParseHistory(b)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	shift := func(n uint64) func(*keyring.History) {
		return func(h *keyring.History) {
			from := h.Keys[1].From + n
			h.Keys[0].To, h.Keys[1].From = &from, from
		}
	}
	for name, c := range map[string]struct {
		change func(h *keyring.History)
		reason string
	}{
		"as it is":     {func(*keyring.History) {}, ""},
		"ends later":   {shift(3), "trust_corrupt"},
		"ends earlier": {shift(^uint64(0)), "trust_corrupt"},
		"another time": {func(h *keyring.History) {
			h.Keys[0].ValidFor.End, h.Keys[1].ValidFor.Start = "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z"
		}, "trust_corrupt"},
		"another key": {func(h *keyring.History) {
			h.Keys[1].SPKI = stranger(t).SPKI()
			h.Keys[1].Hint = keyring.HintOf(h.Keys[1].SPKI)
			h.Keys[1].File = keyring.PublicName(h.Keys[1].SPKI)
		}, "trust_corrupt"},
		"another first": {func(h *keyring.History) {
			h.Keys[0].SPKI = stranger(t).SPKI()
			h.Keys[0].Hint = keyring.HintOf(h.Keys[0].SPKI)
			h.Keys[0].File = keyring.PublicName(h.Keys[0].SPKI)
		}, "trust_corrupt"},
		"another's file": {func(h *keyring.History) { h.Keys[1].File = h.Keys[0].File }, "trust_corrupt"},
		"swapped": {func(h *keyring.History) {
			h.Keys[1].Begun, h.Keys[1].Introduced = h.Keys[1].Introduced, h.Keys[1].Begun
		}, "trust_corrupt"},
		"another log's": {func(h *keyring.History) { h.Keys[1].Introduced = foreign.Keys[1].Introduced }, "trust_corrupt"},
		"no receipt":    {func(h *keyring.History) { h.Keys[1].Introduced = nil }, "trust_corrupt"},
		"no beginning":  {func(h *keyring.History) { h.Keys[1].Begun = nil }, "trust_corrupt"},
	} {
		x := again()
		c.change(x)
		if _, err := LoadTrust(w.publish(t, x)); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := w.publish(t, h)
	if err := os.WriteFile(filepath.Join(dir, "att.pub"), []byte(pemOf(old.SPKI())), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTrust(dir); fault.ReasonOf(err) != "trust_corrupt" {
		t.Errorf("att.pub is the old key's: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, keyring.HistoryFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"space": " " + string(b), "no newline": strings.TrimSuffix(string(b), "\n"), "unknown member": strings.Replace(string(b), `"version"`, `"x":1,"version"`, 1)} {
		if _, err := keyring.ParseHistory([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if canon.Sum(old.SPKI()) != KeyDigest(old.SPKI()) {
		t.Error("a key's digest isn't the hint's")
	}
}

func pemOf(spki []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki}))
}

package kernel

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/crypt/ca"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	sealing "palyra/crypt/seal"
	"palyra/internal/fault"
	"palyra/internal/sample"
)

// keeper makes an identity, how to open with it, and its recipient.
func keeper(t testing.TB) (keyring.Unlock, *sealing.PublicKey, string) {
	t.Helper()
	id, err := sealing.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	to, err := id.Recipient("owner")
	if err != nil {
		t.Fatal(err)
	}
	line := string(id.Encode())
	return unlockWith(line), to, line
}

func unlockWith(line string) keyring.Unlock {
	return func() (sealing.Identity, error) { return sealing.ParseIdentity([]byte(line)) }
}

// TestSealKeys: sealed keys sign and rotate with an identity, and without one nothing opens.
func TestSealKeys(t *testing.T) {
	unlock, to, _ := keeper(t)
	_, stranger, _ := keeper(t)
	h := openHouse(t, Config{Unlock: unlock})
	if a, err := h.Acknowledged(); err != nil || !h.FirstPlain() || a == nil || a.By != h.Self() || a.How != keyring.FirstUse {
		t.Errorf("made plain: %v, %+v, first %v", err, a, h.FirstPlain())
	}
	before := h.call(proposal("/bin/true"), IO{})
	authority := func() *ca.Authority {
		a, err := ca.Open(h.dir, ca.Options{Keys: h.KeyFiles()})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	noRecord := func(map[string]string) error { return nil }
	if _, err := ca.Create(t.Context(), h.dir, "a.b", time.Now(), ca.Options{Keys: h.KeyFiles()}, noRecord); err != nil {
		t.Fatal(err)
	}
	if err := h.SealKeys(t.Context(), "test", []*sealing.PublicKey{stranger}); fault.ReasonOf(err) != "keys_locked" || len(h.PlainKeys()) != 4 {
		t.Errorf("sealed for a stranger alone: %v, plain %v", err, h.PlainKeys())
	}
	size := h.state.journal.Size()
	if err := h.SealKeys(t.Context(), "test", []*sealing.PublicKey{to, stranger}); fault.ReasonOf(err) != "invalid_input" || h.state.journal.Size() != size {
		t.Errorf("sealed for two of one label: %v, and %d entries say so", err, h.state.journal.Size()-size)
	}
	if err := h.SealKeys(t.Context(), "test", []*sealing.PublicKey{to}); err != nil {
		t.Fatal(err)
	}
	if p := h.PlainKeys(); len(p) != 0 {
		t.Errorf("plain: %v", p)
	}
	if err := authority().Rotate(t.Context(), time.Now(), noRecord); err != nil {
		t.Fatal(err)
	}
	if p := h.PlainKeys(); len(p) != 0 {
		t.Errorf("plain after another issuer: %v", p)
	}
	h.call(proposal("/bin/true"), IO{})
	if _, err := h.RotateKey(t.Context(), "test", true); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{StateDir: h.dir}); fault.ReasonOf(err) != "keys_locked" || fault.HintOf(err) == "" {
		t.Errorf("without an identity: %v", err)
	}
	h = openHouse(t, Config{StateDir: h.dir, Unlock: unlock})
	if _, err := h.RotateKey(t.Context(), "test", false); err != nil {
		t.Fatal(err)
	}
	h.call(proposal("/bin/true"), IO{})
	if p := h.PlainKeys(); len(p) != 0 {
		t.Errorf("plain after a rotation: %v", p)
	}
	if _, err := receipt.Verify(before.Receipt, trustIn(t, h.dir)); err != nil {
		t.Error(err)
	}
	if err := h.SealKeys(t.Context(), "test", nil); err != nil {
		t.Fatal(err)
	}
	if r := h.audit(); len(r.Keys) != 2 {
		t.Errorf("audit: %+v", r)
	}
	authority()
	k := openHouse(t, Config{StateDir: h.dir})
	if a, err := k.Acknowledged(); len(k.PlainKeys()) != 4 || err != nil || k.FirstPlain() || a == nil || a.By != "test" || a.How != keyring.Asked {
		t.Errorf("plain after all: %v, %v, %+v, first %v", k.PlainKeys(), err, a, k.FirstPlain())
	}
}

// TestSealKeysCrash kills a process at each step of sealing. Each key file is the old one or the
// new one; all open with the identity, and sealing again ends it.
func TestSealKeysCrash(t *testing.T) {
	unlock, to, line := keeper(t)
	base := t.TempDir()
	v := victim{State: base + "/count", Seal: line}
	steps, _, _ := v.run(t)
	steps = slices.DeleteFunc(steps, func(s string) bool { return !strings.HasPrefix(s, "seal:") })
	for _, i := range sample.Steps(steps) {
		s := steps[i]
		t.Run(s, func(t *testing.T) {
			t.Parallel()
			at := strings.LastIndexByte(s, ' ')
			v := v
			v.Step, v.State = s[:at], filepath.Join(base, fmt.Sprint(i))
			fmt.Sscan(s[at+1:], &v.Nth)
			v.run(t)
			h := openHouse(t, Config{StateDir: v.State, CellPath: "/nonexistent", Unlock: unlock})
			_, note := noted(t, h.Kernel)
			if _, err := receipt.Verify(note, trustIn(t, v.State)); err != nil {
				t.Error(err)
			}
			if err := h.SealKeys(t.Context(), "test", []*sealing.PublicKey{to}); err != nil || len(h.PlainKeys()) != 0 {
				t.Errorf("sealed again: %v, plain %v", err, h.PlainKeys())
			}
			if _, err := ca.Open(v.State, ca.Options{Keys: h.KeyFiles()}); err != nil {
				t.Error(err)
			}
			h.audit()
		})
	}
	if len(steps) < 20 {
		t.Errorf("%d steps: %q", len(steps), steps)
	}
}

package paired

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/crypt/keyring"
	"palyra/crypt/witness"
	"palyra/crypt/witness/audit"
	"palyra/hub"
	"palyra/internal/fault"
)

// TestWitness: at each contact the device compares the hub's journal with what it remembers, over a
// rotation of the log's key, and the hub's state directory shows what it saw.
func TestWitness(t *testing.T) {
	h := newHouse(t)
	dir := h.pair("laptop")
	memory := func() *witness.Memory {
		t.Helper()
		m, err := witness.ParseMemory(read(t, dir, journalFile))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	meet := func() error {
		t.Helper()
		p, warned := h.dial(dir)
		_, err := status(t, p)
		if len(*warned) != 0 {
			t.Errorf("warned: %v", *warned)
		}
		return err
	}
	if err := meet(); err != nil {
		t.Fatal(err)
	}
	first := memory()
	if first.Cosigned.IsZero() {
		t.Error("it didn't cosign")
	}
	if _, err := hub.RotateKey.Do(t.Context(), h.hub, h.owner, hub.KeyRotation{Log: true}); err != nil {
		t.Fatal(err)
	}
	if err := meet(); err != nil {
		t.Fatal(err)
	}
	second := memory()
	a, _ := first.Size()
	if b, err := second.Size(); err != nil || b <= a || !strings.HasPrefix(string(second.Keys), "{") || second.Cosigned != first.Cosigned {
		t.Errorf("remembers %d after %d entries, cosigned %s and %s, %v", b, a, first.Cosigned, second.Cosigned, err)
	}
	ws, err := audit.Read(h.state, h.trust())
	if err != nil || len(ws) != 1 || ws[0].Device != "laptop" || ws[0].Size != a || ws[0].Problem != "" || ws[0].Ended != nil {
		t.Errorf("the hub's: %+v, %v", ws, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, witnessFile)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("its key: %v, %v", fi, err)
	}
	if _, err := hub.RevokeDevice.Do(t.Context(), h.hub, h.owner, "laptop"); err != nil {
		t.Fatal(err)
	}
	if ws, err := audit.Read(h.state, h.trust()); err != nil || len(ws) != 1 || ws[0].Ended == nil {
		t.Errorf("after its end: %+v, %v", ws, err)
	}
}

// TestPairedAgain: a process of a device that was paired again meanwhile doesn't put what it saw where
// the new one remembers.
func TestPairedAgain(t *testing.T) {
	h := newHouse(t)
	dir := h.pair("laptop")
	p, _ := h.dial(dir)
	if _, err := status(t, p); err != nil {
		t.Fatal(err)
	}
	again, err := load(h.pair("phone"))
	if err != nil {
		t.Fatal(err)
	}
	parse := func(ders [][]byte) (list []*x509.Certificate) {
		for _, der := range ders {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, c)
		}
		return list
	}
	if err := Write(t.Context(), dir, again.about, again.key, parse(again.chain), parse(again.roots)); err != nil {
		t.Fatal(err)
	}
	p.watched = time.Time{}
	if _, err := status(t, p); fault.ReasonOf(err) != "changed" {
		t.Errorf("it goes on: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, journalFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it remembers for the new device: %v", err)
	}
}

// TestConflict: a hub whose journal isn't the one that the device saw gets no request but a stop, and
// the device keeps the proof.
func TestConflict(t *testing.T) {
	h := newHouse(t)
	dir := h.pair("laptop")
	p, _ := h.dial(dir)
	if _, err := status(t, p); err != nil {
		t.Fatal(err)
	}
	m, err := witness.ParseMemory(read(t, dir, journalFile))
	if err != nil {
		t.Fatal(err)
	}
	size, err := m.Size()
	if err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Open(h.state) // the thief has the log's key
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		view   hub.JournalView
		err    error
		reason string
	}{
		{"no operation", hub.JournalView{}, fault.New(fault.NotFound, "not_found", "x", nil), "journal_rolled_back"},
		{"cut off", hub.JournalView{Checkpoint: string(ring.Log().SignCheckpoint(size-1, [32]byte{1}))}, nil, "journal_rolled_back"},
		{"another root", hub.JournalView{Checkpoint: string(ring.Log().SignCheckpoint(size, [32]byte{1}))}, nil, "journal_checkpoint_split"},
		{"gone on otherwise", hub.JournalView{Checkpoint: string(ring.Log().SignCheckpoint(size+9, [32]byte{1})), Hashes: [][]byte{make([]byte, 32)}}, nil, "journal_checkpoint_split"},
	} {
		os.Remove(filepath.Join(dir, conflictFile))
		h.lie(func(hub.JournalWatch) (hub.JournalView, error) { return c.view, c.err })
		p, _ := h.dial(dir)
		for range 2 {
			_, err := status(t, p)
			if fault.ReasonOf(err) != c.reason || fault.KindOf(err) != fault.Integrity {
				t.Errorf("%s: %v", c.name, err)
			}
			if c.err == nil && !strings.Contains(fault.HintOf(err), conflictFile) {
				t.Errorf("%s: hint %q", c.name, fault.HintOf(err))
			}
		}
		if _, err := hub.Stop.Do(t.Context(), p, hub.Caller{}, hub.StopRequest{}); fault.KindOf(err) == fault.Integrity {
			t.Errorf("%s: a stop: %v", c.name, err)
		}
		if c.err != nil {
			continue
		}
		b := string(read(t, dir, conflictFile))
		if !strings.Contains(b, `"remembered":"`+strings.Split(m.Checkpoint, "\n")[0]) || !strings.Contains(b, strings.Split(c.view.Checkpoint, "\n")[2]) {
			t.Errorf("%s: the proof: %s", c.name, b)
		}
	}
	h.lie(nil)
	q, _ := h.dial(dir)
	if _, err := status(t, q); err != nil {
		t.Errorf("control: the true one: %v", err)
	}
	if now, err := witness.ParseMemory(read(t, dir, journalFile)); err != nil {
		t.Error(err)
	} else if n, _ := now.Size(); n < size {
		t.Errorf("it remembers %d entries after %d", n, size)
	}
	if err := forget(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, conflictFile)); err != nil {
		t.Errorf("the proof after a new pairing: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, journalFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the memory after a new pairing: %v", err)
	}
}

package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/crypt/witness"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// house is a state directory whose journal names one witness.
type house struct {
	t     *testing.T
	dir   string
	ring  *keyring.Ring
	j     *journal.Journal
	trust *receipt.Trust
	key   *witness.Key
	rec   witness.Record
}

func newHouse(t *testing.T) *house {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(filepath.Join(dir, "journal"), ring.Log(), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	k, err := witness.NewKey(witness.Name(ring.Log().Origin(), "laptop"))
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, dir: dir, ring: ring, j: j, trust: receipt.TrustIn(ring), key: k}
	h.act("device.enrol", "laptop", nil)
	h.rec = witness.Record{Version: witness.MemoryVersion, Device: "laptop", Key: canon.Sum([]byte("key")), VKey: k.Public().VKey()}
	h.rec.Registered = h.act(witness.ActRegister, "laptop", map[string]string{"vkey": h.rec.VKey, "key": h.rec.Key.String()})
	return h
}

func (h *house) act(act, subject string, detail map[string]string) uint64 {
	h.t.Helper()
	if detail == nil {
		detail = map[string]string{}
	}
	e, err := receipt.ActEntry(h.ring.Attestation(), receipt.Act{Version: receipt.ActVersion, Act: act, Principal: "test", Subject: subject, Detail: detail, Time: "2026-11-27T12:00:00Z"})
	if err != nil {
		h.t.Fatal(err)
	}
	p, err := h.j.Append(h.t.Context(), journal.Entry{Leaf: e.Leaf(), Content: e.Content()})
	if err != nil {
		h.t.Fatal(err)
	}
	return p.Index
}

// keep writes the record with a cosignature of a checkpoint by k.
func (h *house) keep(k *witness.Key, note []byte, name string) {
	h.t.Helper()
	b, err := k.Cosign(note, noon)
	if err != nil {
		h.t.Fatal(err)
	}
	r := h.rec
	r.Cosigned = string(b)
	h.write(&r, name)
}

func (h *house) write(r *witness.Record, name string) {
	h.t.Helper()
	b, err := r.Encode()
	if err != nil {
		h.t.Fatal(err)
	}
	dir := filepath.Join(h.dir, witness.Folder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, witness.RecordFile(name)), b, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) note() []byte {
	h.t.Helper()
	b, err := h.j.Checkpoint(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return b
}

func TestRead(t *testing.T) {
	h := newHouse(t)
	if ws, err := Read(h.dir, h.trust); err != nil || len(ws) != 0 {
		t.Errorf("without witnesses: %+v, %v", ws, err)
	}
	h.keep(h.key, h.note(), "laptop")
	h.act("policy.reload", "", nil)
	ws, err := Read(h.dir, h.trust)
	if err != nil || len(ws) != 1 || ws[0].Device != "laptop" || ws[0].Size != 2 || !ws[0].Time.Equal(noon) || ws[0].Problem != "" || ws[0].Ended != nil || ws[0].Registered != 1 {
		t.Fatalf("one: %+v, %v", ws, err)
	}
	end := h.act("device.revoke", "laptop", nil)
	if ws, err := Read(h.dir, h.trust); err != nil || ws[0].Ended == nil || *ws[0].Ended != end {
		t.Errorf("revoked: %+v, %v", ws, err)
	}
}

// TestRemoved: a device that expired was never revoked, and is no witness any more once it's removed.
func TestRemoved(t *testing.T) {
	h := newHouse(t)
	h.keep(h.key, h.note(), "laptop")
	end := h.act("device.remove", "laptop", nil)
	if ws, err := Read(h.dir, h.trust); err != nil || len(ws) != 1 || ws[0].Ended == nil || *ws[0].Ended != end {
		t.Errorf("removed: %+v, %v", ws, err)
	}
}

// TestContradicted: a witness saw what the journal doesn't have.
func TestContradicted(t *testing.T) {
	h := newHouse(t)
	h.keep(h.key, h.ring.Log().SignCheckpoint(2, [32]byte{1}), "laptop")
	if _, err := Read(h.dir, h.trust); fault.ReasonOf(err) != "journal_checkpoint_split" || fault.KindOf(err) != fault.Integrity {
		t.Errorf("another root: %v", err)
	}
	h.keep(h.key, h.ring.Log().SignCheckpoint(9, [32]byte{1}), "laptop")
	if _, err := Read(h.dir, h.trust); fault.ReasonOf(err) != "journal_rolled_back" || !strings.Contains(err.Error(), "laptop saw 9 entries") {
		t.Errorf("more entries: %v", err)
	}
}

// TestProblem: what counts for nothing, for or against the journal.
func TestProblem(t *testing.T) {
	other := newHouse(t)
	stranger, err := witness.NewKey(witness.Name(other.ring.Log().Origin(), "laptop"))
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(h *house){
		"a key that the journal doesn't name": func(h *house) {
			k, err := witness.NewKey(h.key.Public().Name)
			if err != nil {
				t.Fatal(err)
			}
			h.rec.VKey = k.Public().VKey()
			h.keep(k, h.ring.Log().SignCheckpoint(9, [32]byte{1}), "laptop")
		},
		"another entry":            func(h *house) { h.rec.Registered = 0; h.keep(h.key, h.note(), "laptop") },
		"a cosignature by another": func(h *house) { h.keep(stranger, h.note(), "laptop") },
		"another log's checkpoint": func(h *house) { h.keep(h.key, other.note(), "laptop") },
		"another device's file":    func(h *house) { h.keep(h.key, h.note(), "phone") },
		"another device's key":     func(h *house) { h.rec.Key = canon.Sum([]byte("x")); h.keep(h.key, h.note(), "laptop") },
		"no cosignature":           func(h *house) { r := h.rec; r.Cosigned = string(h.note()); h.write(&r, "laptop") },
	} {
		h := newHouse(t)
		do(h)
		if ws, err := Read(h.dir, h.trust); err != nil || len(ws) != 1 || ws[0].Problem == "" {
			t.Errorf("%s: %+v, %v", name, ws, err)
		}
	}
}

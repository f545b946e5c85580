package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"palyra/crypt/witness"
	"palyra/hub"
	"palyra/internal/fault"
)

// watcher is a paired device as a witness.
type watcher struct {
	h   *house
	c   hub.Caller
	m   *witness.Memory
	key *witness.Key
}

func (h *house) witness(id string, replace bool) *watcher {
	h.t.Helper()
	_, csr := deviceKey(h.t)
	_, chain := h.pair(h.owner, id, csr, replace, "session.read")
	c, err := h.asDevice(chain)
	if err != nil {
		h.t.Fatal(err)
	}
	k, err := witness.NewKey(witness.Name(h.origin(), id))
	if err != nil {
		h.t.Fatal(err)
	}
	return &watcher{h: h, c: c, key: k}
}

func (h *house) origin() string {
	h.t.Helper()
	s, err := h.k.JournalStatus(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s.Origin
}

// meet is what a device does at a contact.
func (d *watcher) meet() error {
	d.h.t.Helper()
	old, err := d.m.Size()
	if err != nil {
		return err
	}
	v, err := hub.WatchJournal.Do(d.h.t.Context(), d.h, d.c, hub.JournalWatch{Old: old})
	if err != nil {
		return err
	}
	view := witness.View{Checkpoint: v.Checkpoint, Hashes: v.Hashes, Keys: v.Keys}
	n, err := d.m.Judge(d.h.origin(), view, time.Now())
	if errors.Is(err, witness.ErrKeys) {
		all, werr := hub.WatchJournal.Do(d.h.t.Context(), d.h, d.c, hub.JournalWatch{})
		if werr != nil {
			return werr
		}
		view.Keys = all.Keys
		n, err = d.m.Judge(d.h.origin(), view, time.Now())
	}
	if err == nil {
		d.m = n
	}
	return err
}

// cosign sends a cosignature of what the device remembers.
func (d *watcher) cosign(k *witness.Key, note string) error {
	d.h.t.Helper()
	b, err := k.Cosign([]byte(note), time.Now())
	if err != nil {
		d.h.t.Fatal(err)
	}
	_, err = hub.CosignJournal.Do(d.h.t.Context(), d.h, d.c, hub.Cosignature{VKey: k.Public().VKey(), Note: string(b)})
	return err
}

// TestWitness: a device follows the journal over restarts and a rotation of the log's key, and the
// hub keeps its newest cosignature.
func TestWitness(t *testing.T) {
	h := newHouse(t, nil)
	d := h.witness("laptop", false)
	if err := d.meet(); err != nil {
		t.Fatal(err)
	}
	first := d.m.Checkpoint
	if err := d.cosign(d.key, first); err != nil {
		t.Fatal(err)
	}
	if err := d.meet(); err != nil || d.m.Checkpoint == first { // the journal has its registration since
		t.Errorf("the next contact: %v", err)
	}
	size := h.size()
	if err := d.cosign(d.key, d.m.Checkpoint); err != nil || h.size() != size {
		t.Errorf("a second cosignature: %v, %d entries more", err, h.size()-size)
	}
	if err := d.cosign(d.key, first); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("an older checkpoint again: %v", err)
	}
	if _, err := hub.RotateKey.Do(t.Context(), h, h.owner, hub.KeyRotation{Log: true}); err != nil {
		t.Fatal(err)
	}
	h.stop()
	h.reopen(nil)
	if err := d.meet(); err != nil {
		t.Errorf("after a rotation: %v", err)
	}
	if err := d.cosign(d.key, d.m.Checkpoint); err != nil {
		t.Errorf("after a rotation: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(h.k.StateDir(), witness.Folder, witness.RecordFile("laptop")))
	if err != nil {
		t.Fatal(err)
	}
	r, err := witness.ParseRecord(b)
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.key.Public().Open([]byte(r.Cosigned), knownKeys(h.k.LogKeys()))
	if err != nil || string(c.Note) != d.m.Checkpoint || r.VKey != d.key.Public().VKey() {
		t.Errorf("kept: %+v, %v", r, err)
	}
}

// TestCosignAgain: cosignatures of one checkpoint, as fast as a device likes, are one write a minute.
func TestCosignAgain(t *testing.T) {
	h := newHouse(t, nil)
	d := h.witness("laptop", false)
	if err := d.meet(); err != nil {
		t.Fatal(err)
	}
	kept := func(at time.Time) os.FileInfo {
		t.Helper()
		b, err := d.key.Cosign([]byte(d.m.Checkpoint), at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hub.CosignJournal.Do(t.Context(), h, d.c, hub.Cosignature{VKey: d.key.Public().VKey(), Note: string(b)}); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(filepath.Join(h.k.StateDir(), witness.Folder, witness.RecordFile("laptop")))
		if err != nil {
			t.Fatal(err)
		}
		return fi
	}
	now := time.Now()
	first := kept(now)
	if again := kept(now.Add(cosignAgain - 2*time.Second)); !os.SameFile(first, again) {
		t.Error("a second one of the same minute is written")
	}
	if later := kept(now.Add(cosignAgain + time.Second)); os.SameFile(first, later) {
		t.Error("one of the next minute isn't")
	}
}

func (h *house) size() uint64 {
	h.t.Helper()
	s, err := h.k.JournalStatus(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s.Size
}

// TestCosignRefused: cosignatures that the hub doesn't keep.
func TestCosignRefused(t *testing.T) {
	h, elsewhere := newHouse(t, nil), newHouse(t, nil)
	d, phone := h.witness("laptop", false), h.witness("phone", false)
	other := elsewhere.witness("laptop", false)
	for _, x := range []*watcher{d, phone, other} {
		if err := x.meet(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.cosign(d.key, d.m.Checkpoint); err != nil {
		t.Fatal(err)
	}
	stranger, err := witness.NewKey(witness.Name(h.origin(), "laptop"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		d      *watcher
		k      *witness.Key
		note   string
		reason string
	}{
		{"an unknown key", d, stranger, d.m.Checkpoint, "permission_denied"},
		{"another device's", phone, d.key, d.m.Checkpoint, "invalid_input"},
		{"another log's checkpoint", d, d.key, other.m.Checkpoint, "invalid_input"},
		{"another log's witness", d, other.key, other.m.Checkpoint, "invalid_input"},
	} {
		if err := c.d.cosign(c.k, c.note); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	late, err := d.key.Cosign([]byte(d.m.Checkpoint), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.CosignJournal.Do(t.Context(), h, d.c, hub.Cosignature{VKey: d.key.Public().VKey(), Note: string(late)}); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("from the future: %v", err)
	}
	person := h.owner
	if _, err := hub.CosignJournal.Do(t.Context(), h, person, hub.Cosignature{VKey: d.key.Public().VKey(), Note: string(late)}); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("a person: %v", err)
	}
	// A revoked device, over a connection that it has yet.
	if _, err := hub.RevokeDevice.Do(t.Context(), h, h.owner, "laptop"); err != nil {
		t.Fatal(err)
	}
	if err := d.cosign(d.key, d.m.Checkpoint); err == nil {
		t.Error("a revoked device cosigns")
	}
	// The next device of this id has a key of its own.
	again := h.witness("laptop", true)
	if err := again.meet(); err != nil {
		t.Fatal(err)
	}
	if err := again.cosign(again.key, again.m.Checkpoint); err != nil {
		t.Errorf("the next device of this id: %v", err)
	}
}

// TestWitnessFork: a hub whose journal was put back to an older copy is refused by a device that
// saw more, before it has as many entries again and after.
func TestWitnessFork(t *testing.T) {
	h := newHouse(t, nil)
	d := h.witness("laptop", false)
	journal := h.k.JournalDir()
	h.stop()
	was := map[string][]byte{}
	for _, name := range []string{"wal", "checkpoint"} {
		b, err := os.ReadFile(filepath.Join(journal, name))
		if err != nil {
			t.Fatal(err)
		}
		was[name] = b
	}
	h.reopen(nil)
	for range 3 {
		if _, err := hub.Reload.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.meet(); err != nil {
		t.Fatal(err)
	}
	size, _ := d.m.Size()
	h.stop()
	for name, b := range was {
		if err := os.WriteFile(filepath.Join(journal, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.reopen(nil)
	var reasons []string
	for h.size() <= size+1 {
		err := d.meet()
		if _, ok := errors.AsType[*witness.ConflictError](err); !ok {
			t.Fatalf("with %d entries of %d: %v", h.size(), size, err)
		}
		reasons = append(reasons, fault.ReasonOf(err))
		if _, err := hub.Reload.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(reasons, "journal_rolled_back") || !slices.Contains(reasons, "journal_checkpoint_split") {
		t.Errorf("reasons: %q", reasons)
	}
}

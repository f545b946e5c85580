package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"palyra/crypt/keyring"
	"palyra/crypt/witness"
	"palyra/hub"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// maxRecord bounds the file of a witness, in bytes.
const maxRecord = 1 << 16

// maxAhead is how far a witness's clock may be ahead of this one.
const maxAhead = 5 * time.Minute

// cosignAgain is how much later a device's cosignature of the same checkpoint is kept, too.
const cosignAgain = time.Minute

// witnessOperations returns the operations of witnesses.
func (h *Hub) witnessOperations() []hub.Entry {
	return []hub.Entry{hub.WatchJournal.By(h.watchJournal), hub.CosignJournal.By(h.cosignJournal)}
}

// deviceAlone refuses who isn't a device: others have the operations that need journal.read.
func deviceAlone(c hub.Caller, op string) error {
	if c.Device != "" {
		return nil
	}
	return fault.New(fault.Denied, "permission_denied", op, errors.New("a witness is a paired device")).
		WithHint("connect as that device: --device DIR")
}

func (h *Hub) watchJournal(ctx context.Context, c hub.Caller, in hub.JournalWatch) (none hub.JournalView, err error) {
	if err := deviceAlone(c, "watch journal"); err != nil {
		return none, err
	}
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return none, err
	}
	defer over()
	s, err := h.k.JournalStatus(ctx)
	if err != nil {
		return none, err
	}
	v := hub.JournalView{Checkpoint: s.Checkpoint, Hashes: [][]byte{}}
	switch {
	case in.Old == 0:
		if v.Keys, err = h.logKeys(ctx); err != nil {
			return none, err
		}
	case in.Old <= s.Size:
		p, err := h.k.JournalConsistency(ctx, in.Old)
		if err != nil {
			return none, err
		}
		v.Checkpoint, v.Hashes = string(p.Checkpoint), hashes(p.Hashes)
	}
	return v, nil
}

// logKeys returns trust/log-keys.json, or trust/log.vkey if there is none.
func (h *Hub) logKeys(ctx context.Context) ([]byte, error) {
	k, err := h.k.LogKeysNow(ctx)
	if err != nil {
		return nil, err
	}
	if len(k.Keys) == 1 {
		return []byte(k.Keys[0].VKey + "\n"), nil
	}
	return k.Encode()
}

// knownKeys returns the log's keys as package witness has them.
func knownKeys(k *keyring.History) (ks witness.Keys) {
	for i := range k.Keys {
		x := witness.LogKey{VKey: k.Keys[i].VKey}
		if to := k.Keys[i].To; to != nil {
			x.To = *to
		}
		ks = append(ks, x)
	}
	return ks
}

// cosignJournal keeps a device's newest cosignature, once it's known to be of this log.
func (h *Hub) cosignJournal(ctx context.Context, c hub.Caller, in hub.Cosignature) (none hub.None, err error) {
	const op = "cosign journal"
	bad := func(err error) (hub.None, error) {
		return none, fault.New(fault.Usage, "invalid_input", op, err)
	}
	if err := deviceAlone(c, op); err != nil {
		return none, err
	}
	if len(in.Note) > maxRecord/2 || len(in.VKey) > 1024 {
		return bad(errors.New("too long for a cosigned checkpoint"))
	}
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return none, err
	}
	defer over()
	s, err := h.k.JournalStatus(ctx)
	if err != nil {
		return none, err
	}
	p, err := witness.ParseVKey(in.VKey)
	if err != nil {
		return bad(err)
	}
	if want := witness.Name(s.Origin, c.Device); p.Name != want {
		return bad(fmt.Errorf("its key is called %.200q, want %q", p.Name, want))
	}
	keys, err := h.k.LogKeysNow(ctx)
	if err != nil {
		return none, err
	}
	known := knownKeys(keys)
	cosigned, err := p.Open([]byte(in.Note), known)
	if err != nil {
		return bad(err)
	}
	if err := h.inTree(ctx, known, cosigned); err != nil {
		return none, err
	}
	if cosigned.Time.After(time.Now().Add(maxAhead)) {
		return bad(fmt.Errorf("its time is %s: compare the clocks", cosigned.Time.Format(time.RFC3339)))
	}
	h.devices.changing.Lock()
	defer h.devices.changing.Unlock()
	d := h.devices.find(c.Device)
	if d == nil || d.Token != c.Token || !d.Revoked.IsZero() { // since it was authenticated
		return none, unauthenticated()
	}
	if err := h.access.Live(holder(c)); err != nil {
		return none, err
	}
	r, err := h.witnessOf(c.Device)
	if err != nil {
		return none, err
	}
	switch {
	case r == nil || r.Key != d.Key: // another device has the id since
		r = &witness.Record{Version: witness.MemoryVersion, Device: d.ID, Key: d.Key, VKey: in.VKey}
		if r.Registered, err = h.record(ctx, c, witness.ActRegister, d.ID, map[string]string{"vkey": in.VKey, "key": d.Key.String()}); err != nil {
			return none, err
		}
	case r.VKey != in.VKey:
		return none, fault.New(fault.Denied, "permission_denied", op, errors.New("the device has another key as a witness")).
			WithHint("pair the device again: palyra pair --replace")
	default:
		before, err := p.Open([]byte(r.Cosigned), known)
		if err != nil {
			return none, fault.New(fault.BadState, "state_io", op, err)
		}
		if cosigned.Size < before.Size || cosigned.Time.Before(before.Time) {
			return none, fault.New(fault.Busy, "version_conflict", op, fmt.Errorf("its last one is of %d entries, on %s", before.Size, before.Time.Format(time.RFC3339)))
		}
		if cosigned.Size == before.Size && cosigned.Time.Sub(before.Time) < cosignAgain {
			return none, nil // what is kept says as much, and a write holds up changes of devices
		}
	}
	r.Cosigned = in.Note
	b, err := r.Encode()
	if err != nil {
		return none, fault.New(fault.Internal, "internal", op, err)
	}
	dir := filepath.Join(h.k.StateDir(), witness.Folder)
	if err := durable.MkdirAll0700(dir); err != nil {
		return none, durable.Fault(op, err)
	}
	return none, durable.Fault(op, durable.WriteFile(filepath.Join(dir, witness.RecordFile(d.ID)), b, 0o600))
}

// inTree checks that a checkpoint is of this log: the log's own signature isn't enough for that.
func (h *Hub) inTree(ctx context.Context, known witness.Keys, c *witness.Cosigned) error {
	const op = "cosign journal"
	s, err := h.k.JournalStatus(ctx)
	if err != nil {
		return err
	}
	if c.Size == 0 || c.Size > s.Size {
		return fault.New(fault.Integrity, "journal_rolled_back", op, fmt.Errorf("a witness saw %d entries, and there are %d", c.Size, s.Size))
	}
	p, err := h.k.JournalConsistency(ctx, c.Size)
	if err != nil {
		return err
	}
	now, err := known.Open(p.Checkpoint)
	if err == nil {
		err = p.Verify(c.Root, now.Root)
	}
	if err != nil {
		return fault.New(fault.Integrity, "journal_checkpoint_split", op, fmt.Errorf("a witness saw another journal of %d entries: %w", c.Size, err))
	}
	return nil
}

// witnessOf returns what is kept of a device as a witness, nil if that's nothing.
func (h *Hub) witnessOf(device string) (*witness.Record, error) {
	path := filepath.Join(h.k.StateDir(), witness.Folder, witness.RecordFile(device))
	b, err := durable.ReadPrivate(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := witness.ParseRecord(b)
	if err == nil && r.Device != device {
		err = errors.New("it's of another device")
	}
	if err != nil {
		return nil, fault.New(fault.BadState, "state_io", fmt.Sprintf("read witness %q", path), err)
	}
	return r, nil
}

package paired

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"palyra/crypt/witness"
	"palyra/hub"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// A device remembers the last checkpoint of its hub's journal, and lets the hub prove at each
// contact that the journal extends it. One that was cut off or forked gets no request but those
// that end something, until a person has looked. Once an hour the device cosigns what it saw, for
// others to see in the hub's state directory.
const (
	journalFile  = "journal.json"          // witness.Memory
	conflictFile = "journal-conflict.json" // witness.Conflict, the first of them
	witnessFile  = "witness.key"           // with which it cosigns, mode 0600
	watchFile    = "journal.lock"          // whoever compares has it; a renewal may go on meanwhile
)

const (
	// contact is how long one comparison stands, for a process that goes on.
	contact = 5 * time.Minute
	// cosignEvery is how old a cosignature gets.
	cosignEvery = time.Hour
	// maxMemory bounds journalFile, in bytes.
	maxMemory = 8 << 20
)

// witness compares the hub's journal with the one remembered, unless that was done a moment ago or
// op ends something: a stop must not wait for a proof.
func (h *Hub) witness(ctx context.Context, op *hub.Operation) error {
	if op.Brake || op.Ends {
		return nil
	}
	h.watch.Lock()
	defer h.watch.Unlock()
	if !h.watched.IsZero() && time.Since(h.watched) < contact {
		return nil
	}
	g, err := durable.OpenGate(filepath.Join(h.cfg.Dir, watchFile))
	if err != nil {
		return err
	}
	defer g.Close()
	if err := g.Take(ctx, durable.Exclusive, patience); err != nil { // another process of the device compares, too
		return err
	}
	if id, err := load(h.cfg.Dir); err != nil {
		return err
	} else if !id.key.Equal(h.now.Load().key) { // what it remembers is of another hub, perhaps
		return fault.New(fault.Busy, "changed", "compare the hub's journal with the one remembered", errors.New("the device was paired again meanwhile")).
			WithHint("start this program again")
	}
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	if err := h.compare(ctx); err != nil {
		return err
	}
	h.watched = time.Now()
	return nil
}

// compare is one comparison. The caller has the lock for that.
func (h *Hub) compare(ctx context.Context) error {
	m, err := h.remembered()
	if err != nil {
		return err
	}
	view, err := h.view(ctx, m)
	if fault.KindOf(err) == fault.NotFound || fault.KindOf(err) == fault.Unsupported {
		if m == nil {
			return nil // an older hub: there is nothing to compare
		}
		return fault.New(fault.Integrity, "journal_rolled_back", "compare the hub's journal with the one remembered",
			fmt.Errorf("the hub doesn't show it any more: %w", err))
	}
	if err != nil {
		return err
	}
	domain := h.now.Load().about.Domain
	n, err := m.Judge(domain, *view, time.Now())
	if errors.Is(err, witness.ErrKeys) {
		var all *witness.View
		if all, err = h.view(ctx, nil); err != nil {
			return err
		}
		view.Keys = all.Keys
		n, err = m.Judge(domain, *view, time.Now())
	}
	if x, ok := errors.AsType[*witness.ConflictError](err); ok {
		return h.keep(x)
	}
	if err != nil {
		return err
	}
	if m == nil || n.Checkpoint != m.Checkpoint {
		if err := h.remember(n); err != nil {
			return err
		}
	}
	if n.Seen.Sub(n.Cosigned) < cosignEvery && !n.Cosigned.After(n.Seen) {
		return nil
	}
	if err := h.cosign(ctx, n); err != nil {
		h.cfg.Warn(err) // the comparison, which is what protects this device, was made
		return nil
	}
	n.Cosigned = n.Seen
	return h.remember(n)
}

// view asks the hub for its newest checkpoint, proved to one who remembers m.
func (h *Hub) view(ctx context.Context, m *witness.Memory) (*witness.View, error) {
	old, err := m.Size()
	if err != nil {
		return nil, err
	}
	v, err := hub.WatchJournal.Do(ctx, h.c, hub.Caller{}, hub.JournalWatch{Old: old})
	if err != nil {
		return nil, err
	}
	return &witness.View{Checkpoint: v.Checkpoint, Hashes: v.Hashes, Keys: v.Keys}, nil
}

func (h *Hub) remembered() (*witness.Memory, error) {
	path := filepath.Join(h.cfg.Dir, journalFile)
	b, err := durable.ReadPrivate(path, maxMemory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := witness.ParseMemory(b)
	if err != nil {
		return nil, fault.New(fault.BadState, "bad_file", fmt.Sprintf("read %q", path), err).WithHint(again)
	}
	return m, nil
}

func (h *Hub) remember(m *witness.Memory) error {
	b, err := m.Encode()
	if err != nil {
		return fault.New(fault.Internal, "internal", "remember journal", err)
	}
	return write(h.cfg.Dir, journalFile, b)
}

// forget drops what a device before this one in its folder remembered of its hub's journal, and its
// key as a witness. A proof that it kept stays.
func forget(dir string) error {
	for _, name := range []string{journalFile, witnessFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return durable.Fault(fmt.Sprintf("remove %q", filepath.Join(dir, name)), err)
		}
	}
	return nil
}

// keep writes the proof, unless there is an earlier one, and returns x as an error that names it.
func (h *Hub) keep(x *witness.ConflictError) error {
	path := filepath.Join(h.cfg.Dir, conflictFile)
	if _, err := durable.ReadPrivate(path, maxMemory); errors.Is(err, fs.ErrNotExist) {
		b, err := x.Conflict.Encode()
		if err != nil {
			return fault.New(fault.Internal, "internal", "keep the proof", errors.Join(err, x))
		}
		if err := write(h.cfg.Dir, conflictFile, b); err != nil {
			return errors.Join(x, err)
		}
	}
	return fault.New(fault.Integrity, fault.ReasonOf(x), "trust the hub", x).
		WithHint(fmt.Sprintf("%s has both checkpoints, signed: ask whoever runs the hub whether a backup was restored. To go on with what it has now: %s", path, again))
}

// cosign gives the hub a cosignature of what was judged.
func (h *Hub) cosign(ctx context.Context, m *witness.Memory) error {
	k, err := h.witnessKey()
	if err != nil {
		return err
	}
	b, err := k.Cosign([]byte(m.Checkpoint), m.Seen)
	if err != nil {
		return fault.New(fault.Internal, "internal", "cosign journal", err)
	}
	_, err = hub.CosignJournal.Do(ctx, h.c, hub.Caller{}, hub.Cosignature{VKey: k.Public().VKey(), Note: string(b)})
	return err
}

// witnessKey returns the device's key for cosignatures, and makes it the first time.
func (h *Hub) witnessKey() (*witness.Key, error) {
	about := h.now.Load().about
	name := witness.Name(about.Domain, about.Device)
	path := filepath.Join(h.cfg.Dir, witnessFile)
	b, err := durable.ReadPrivate(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		k, err := witness.NewKey(name)
		if err != nil {
			return nil, fault.New(fault.Internal, "internal", "make witness key", err)
		}
		return k, write(h.cfg.Dir, witnessFile, k.Encode())
	}
	if err != nil {
		return nil, err
	}
	k, err := witness.ParseKey(b)
	if err == nil && k.Public().Name != name {
		err = errors.New("it's another device's")
	}
	if err != nil {
		return nil, fault.New(fault.BadState, "bad_file", fmt.Sprintf("read %q", path), err).WithHint(again)
	}
	return k, nil
}

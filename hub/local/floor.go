package local

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"palyra/crypt/receipt"
	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/fault"
)

// The registry of members and tokens lies in the store, and every change of it is in the
// journal. So the hub notices an older copy of the store in the place of the newest: the
// journal has a change that the copy lacks. To find that out without reading the whole
// journal, the store notes now and then how far the journal had come. A change is durable
// in the store before it is logged, so each store has all changes that were logged before
// its own note. An older copy has an older note, and the search begins there.
const seenSetting = "hub.journal_seen"

// journalNote is the value of seenSetting.
type journalNote struct {
	Size uint64 `json:"size"` // entries
	// Used is the use of each principal at that time; see quota.go.
	Used map[string]budget.Use `json:"used,omitempty"`
}

// accessFloor returns the highest generation of the registry in the journal after the
// store's note, 0 for none.
func (h *Hub) accessFloor(ctx context.Context) (floor uint64, err error) {
	const op = "look for changes of members and tokens in the journal"
	n, _, err := h.readNote(ctx)
	if err != nil {
		return 0, err
	}
	j, err := h.k.JournalStatus(ctx)
	if err != nil {
		return 0, err
	}
	if n.Size > j.Size { // another journal than the note is about
		n.Size = 0
	}
	h.written.Restore(n.Used)
	for rec, err := range h.k.JournalEntries(n.Size, j.Size) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return 0, err
		}
		env, err := receipt.ParseEnvelope(rec.Content)
		if err != nil {
			return 0, err
		}
		st, act, err := receipt.ParsePayload(env.Payload)
		if err != nil {
			return 0, err
		}
		if who := spender(st, act); who != "" {
			h.written.Spend(who, int64(len(rec.Leaf)+len(rec.Content)), timeOf(st, act))
		}
		if act == nil || act.Detail[generation] == "" {
			continue
		}
		g, err := strconv.ParseUint(act.Detail[generation], 10, 64)
		if err != nil {
			return 0, fault.New(fault.Integrity, "store_corrupt", op, fmt.Errorf("entry %d: %w", rec.Index, err))
		}
		floor = max(floor, g)
	}
	return floor, nil
}

// generation is the detail of acts about members and tokens that says which
// generation of the registry they made. Only recordAccess writes it.
const generation = "generation"

// noteJournal writes down how far the journal has come.
func (h *Hub) noteJournal(ctx context.Context) error {
	j, err := h.k.JournalStatus(ctx)
	if err != nil {
		return err
	}
	used, changes := h.written.Used(h.cfg.Clock.Earliest())
	n, s, err := h.readNote(ctx)
	h.mu.Lock()
	same := h.noted == changes
	h.mu.Unlock()
	if err != nil || n.Size == j.Size && same {
		return err
	}
	if s.Value, err = json.Marshal(journalNote{j.Size, used}); err != nil {
		return fault.New(fault.Internal, "internal", "write setting "+seenSetting, err)
	}
	if err := h.st.Update(ctx, func(tx *store.Tx) error { return tx.PutSetting(s) }); err != nil {
		return err
	}
	h.mu.Lock()
	h.noted = changes
	h.mu.Unlock()
	return nil
}

func (h *Hub) readNote(ctx context.Context) (n journalNote, s *store.Setting, err error) {
	s, err = store.View(ctx, h.st, func(tx *store.Tx) (*store.Setting, error) { return tx.Setting(seenSetting) })
	if fault.KindOf(err) == fault.NotFound {
		return n, &store.Setting{Key: seenSetting}, nil
	}
	if err != nil {
		return n, nil, err
	}
	if err := json.Unmarshal(s.Value, &n); err != nil {
		return n, nil, fault.New(fault.Integrity, "store_corrupt", "read setting "+seenSetting, err)
	}
	return n, s, nil
}

package local

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"palyra/authz/access"
	"palyra/authz/policy"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/kernel/hub"
)

// Receipt implements hub.Hub.
func (h *Hub) Receipt(ctx context.Context, c hub.Caller, index uint64) ([]byte, error) {
	if err := h.ask(c, "Receipt"); err != nil {
		return nil, err
	}
	if err := h.inLog(index); err != nil {
		return nil, err
	}
	release, err := h.reads(ctx, c, listBytes)
	if err != nil {
		return nil, err
	}
	defer release()
	for rec, err := range h.k.JournalEntries(index, index+1) {
		if err != nil {
			return nil, err
		}
		e, err := entryOf(rec)
		if err != nil {
			return nil, err
		}
		if !h.sees(c, e.owner()) {
			return nil, noSuch("entry", strconv.FormatUint(index, 10))
		}
		if e.Act == "" && e.Statement != nil { // it is signed as a whole, so it is told as a whole
			if err := h.need(c, access.PolicyRead); err != nil {
				return nil, err
			}
		}
	}
	return h.k.Receipt(index)
}

// inLog returns fault.NotFound for an index that the log has not reached.
func (h *Hub) inLog(index uint64) error {
	s, err := h.k.JournalStatus()
	if err == nil && index >= s.Size {
		return noSuch("entry", strconv.FormatUint(index, 10))
	}
	return err
}

// JournalStatus implements hub.Hub.
func (h *Hub) JournalStatus(_ context.Context, c hub.Caller) (hub.JournalStatus, error) {
	if err := h.ask(c, "JournalStatus"); err != nil {
		return hub.JournalStatus{}, err
	}
	s, err := h.k.JournalStatus()
	v := hub.JournalStatus(s)
	if v.Open == nil {
		v.Open = []uint64{}
	}
	return v, err
}

// maxEntries bounds a page of the journal, and so does pageBytes: an entry can be large.
const maxEntries = 200

// JournalEntries implements hub.Hub.
func (h *Hub) JournalEntries(ctx context.Context, c hub.Caller, from uint64, limit int) (none hub.Page[hub.JournalEntry], err error) {
	if err := h.ask(c, "JournalEntries"); err != nil {
		return none, err
	}
	if limit < 0 || limit > maxEntries {
		return none, fault.New(fault.Usage, "bad_limit", "list journal", fmt.Errorf("a page has 1 to %d entries", maxEntries))
	}
	if limit == 0 {
		limit = 50
	}
	release, err := h.reads(ctx, c, listBytes)
	if err != nil {
		return none, err
	}
	defer release()
	ctx, over := h.works.begin(ctx, c)
	defer over()
	s, err := h.k.JournalStatus()
	if err != nil {
		return none, err
	}
	v := hub.Page[hub.JournalEntry]{Items: []hub.JournalEntry{}}
	if from >= s.Size {
		return v, nil
	}
	to, bytes, looked := min(from+uint64(limit), s.Size), 0, 0
	policies := h.seesPolicy(c)
	for rec, err := range h.k.JournalEntries(from, to) {
		if err == nil && ctx.Err() != nil {
			err = fault.New(fault.Canceled, "canceled", "list journal", context.Cause(ctx))
		}
		if err != nil {
			return none, err
		}
		e, err := entryOf(rec)
		if err != nil {
			return none, err
		}
		switch {
		case !h.sees(c, e.owner()):
			e.JournalEntry = hub.JournalEntry{Index: e.Index, Type: e.Type, Time: e.Time, Reduced: true}
		case e.Act == "" && !policies:
			e.Statement = nil
		}
		v.Items = append(v.Items, e.JournalEntry)
		bytes, looked = bytes+len(e.Statement), looked+len(rec.Content)
		if bytes >= pageBytes || looked >= scanBytes { // what is left out costs, too
			to = rec.Index + 1
			break
		}
	}
	if to < s.Size {
		v.Next = strconv.FormatUint(to, 10)
	}
	return v, nil
}

// entry is an entry of the journal as those see it who see everything.
type entry struct{ hub.JournalEntry }

// owner is the principal whom an entry belongs to: who asked for the call, or did
// the act. "" is nobody: its content was erased.
func (e *entry) owner() string { return ownerOf(e.Principal) }

// ownerOf is the user whom a statement names, as Cedar writes it or by itself.
func ownerOf(principal string) string {
	kind, quoted, ok := strings.Cut(principal, `::"`)
	if !ok {
		return principal // of an act
	}
	id, err := strconv.Unquote(`"` + quoted)
	if err != nil || kind != policy.TypeUser {
		return ""
	}
	return id
}

func entryOf(rec journal.Record) (entry, error) {
	e := entry{hub.JournalEntry{Index: rec.Index}}
	if rec.Erased {
		return e, nil
	}
	env, err := receipt.ParseEnvelope(rec.Content)
	if err != nil {
		return e, err
	}
	st, act, err := receipt.ParsePayload(env.Payload)
	if err != nil {
		return e, err
	}
	e.Statement = env.Payload
	if act != nil {
		e.Type, e.Time, e.Principal, e.Act, e.Subject = receipt.ActType, act.Time, act.Principal, act.Act, act.Subject
		return e, nil
	}
	p := &st.Predicate
	e.Type, e.Time, e.CallID, e.Tool, e.Principal, e.Outcome, e.Closes = st.PredicateType, p.Time, p.CallID, p.Tool, p.Principal, p.Outcome, p.Intent
	return e, nil
}

// JournalProof implements hub.Hub.
func (h *Hub) JournalProof(_ context.Context, c hub.Caller, index uint64) (hub.JournalProof, error) {
	if err := h.ask(c, "JournalProof"); err != nil {
		return hub.JournalProof{}, err
	}
	if err := h.inLog(index); err != nil {
		return hub.JournalProof{}, err
	}
	p, err := h.k.JournalProof(index)
	if err != nil {
		return hub.JournalProof{}, err
	}
	v := hub.JournalProof{Index: p.Index, Size: p.Size, Hashes: hashes(p.Hashes), Checkpoint: string(p.Checkpoint)}
	for rec, err := range h.k.JournalEntries(index, index+1) {
		if err != nil {
			return hub.JournalProof{}, err
		}
		v.Leaf = rec.Leaf
	}
	return v, nil
}

// JournalConsistency implements hub.Hub.
func (h *Hub) JournalConsistency(_ context.Context, c hub.Caller, old uint64) (hub.JournalConsistency, error) {
	if err := h.ask(c, "JournalConsistency"); err != nil {
		return hub.JournalConsistency{}, err
	}
	s, err := h.k.JournalStatus()
	switch {
	case err != nil:
		return hub.JournalConsistency{}, err
	case old == 0 || old > s.Size:
		return hub.JournalConsistency{}, fault.New(fault.Usage, "bad_size", "prove consistency", fmt.Errorf("a size between 1 and %d, which is what the log has", s.Size))
	}
	p, err := h.k.JournalConsistency(old)
	if err != nil {
		return hub.JournalConsistency{}, err
	}
	return hub.JournalConsistency{Old: p.Old, Size: p.Size, Hashes: hashes(p.Hashes), Checkpoint: string(p.Checkpoint)}, nil
}

func hashes(hs [][32]byte) [][]byte {
	out := make([][]byte, len(hs))
	for i := range hs {
		out[i] = hs[i][:]
	}
	return out
}

// publishEvery is how often readers of tiles can make us write them: it flushes
// several files.
const publishEvery = time.Second

// JournalCheckpoint implements hub.Hub. The tiles are those of this checkpoint,
// which is the newest or up to a second older.
func (h *Hub) JournalCheckpoint(_ context.Context, c hub.Caller) ([]byte, error) {
	if err := h.ask(c, "JournalCheckpoint"); err != nil {
		return nil, err
	}
	h.publishing.Lock()
	defer h.publishing.Unlock()
	if time.Since(h.published) >= publishEvery {
		if err := h.k.PublishJournal(); err != nil {
			return nil, err
		}
		h.published = time.Now()
	}
	return h.k.JournalFile("checkpoint")
}

// JournalTile implements hub.Hub.
func (h *Hub) JournalTile(_ context.Context, c hub.Caller, name string) ([]byte, error) {
	if err := h.ask(c, "JournalTile"); err != nil {
		return nil, err
	}
	if name == "checkpoint" { // has a method of its own
		return nil, noSuch("tile", name)
	}
	return h.k.JournalFile(name)
}

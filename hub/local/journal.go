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
	"palyra/hub"
	"palyra/internal/fault"
)

// journalOperations returns the operations of the journal.
func (h *Hub) journalOperations() []hub.Entry {
	return []hub.Entry{
		hub.GetReceipt.By(h.getReceipt),
		hub.VerifyReceipt.By(h.verifyReceipt),
		hub.GetReach.By(h.getReach),
		hub.VerifyJournal.By(h.verifyJournal),
		hub.GetJournal.By(h.getJournal),
		hub.ListJournalEntries.By(h.listJournalEntries),
		hub.ProveJournalEntry.By(h.proveJournalEntry),
		hub.ProveJournalConsistency.By(h.proveJournalConsistency),
		hub.GetCheckpoint.By(h.getCheckpoint),
		hub.GetTile.By(h.getTile),
	}
}

func (h *Hub) getReceipt(ctx context.Context, c hub.Caller, index uint64) ([]byte, error) {
	if err := h.inLog(ctx, index); err != nil {
		return nil, err
	}
	release, err := h.reads(ctx, c, listBytes)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return nil, err
	}
	defer over()
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
	return h.k.Receipt(ctx, index)
}

// prove takes a processor for what is read of the journal and proved, or hashed, and returns a
// ctx that a stop ends.
func (h *Hub) prove(ctx context.Context, c hub.Caller) (_ context.Context, over func(), err error) {
	place, err := h.pools.proofs.Wait(ctx, h.payer(c), 1)
	if err != nil {
		return nil, nil, err
	}
	ctx, end := h.works.begin(ctx, c)
	return ctx, func() { end(); place.Release() }, nil
}

// inLog returns fault.NotFound for an index that the log has not reached.
func (h *Hub) inLog(ctx context.Context, index uint64) error {
	s, err := h.k.JournalStatus(ctx)
	if err == nil && index >= s.Size {
		return noSuch("entry", strconv.FormatUint(index, 10))
	}
	return err
}

func (h *Hub) getJournal(ctx context.Context, c hub.Caller, _ hub.None) (hub.JournalStatus, error) {
	s, err := h.k.JournalStatus(ctx)
	v := hub.JournalStatus(s)
	if v.Open == nil {
		v.Open = []uint64{}
	}
	return v, err
}

// maxEntries bounds a page of the journal, and so does pageBytes: an entry can be large.
const maxEntries = 200

func (h *Hub) listJournalEntries(ctx context.Context, c hub.Caller, q hub.JournalQuery) (none hub.Page[hub.JournalEntry], err error) {
	if q.Limit < 0 || q.Limit > maxEntries {
		return none, fault.New(fault.Usage, "invalid_input", "list journal", fmt.Errorf("a page has 1 to %d entries", maxEntries))
	}
	if q.Limit == 0 {
		q.Limit = 50
	}
	release, err := h.reads(ctx, c, listBytes)
	if err != nil {
		return none, err
	}
	defer release()
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return none, err
	}
	defer over()
	s, err := h.k.JournalStatus(ctx)
	if err != nil {
		return none, err
	}
	v := hub.Page[hub.JournalEntry]{Items: []hub.JournalEntry{}}
	if q.From >= s.Size {
		return v, nil
	}
	to, bytes, looked := min(q.From+uint64(q.Limit), s.Size), 0, 0
	policies := h.seesPolicy(c)
	for rec, err := range h.k.JournalEntries(q.From, to) {
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

// entry returns an entry of the journal, unreduced.
type entry struct{ hub.JournalEntry }

// owner returns the principal whom an entry belongs to: the one that asked for the call, or
// did the act. "": it's not known.
func (e *entry) owner() string { return ownerOf(e.Principal) }

// ownerOf returns the user that a statement names, as Cedar writes it or plain.
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

func (h *Hub) proveJournalEntry(ctx context.Context, c hub.Caller, index uint64) (hub.JournalProof, error) {
	if err := h.inLog(ctx, index); err != nil {
		return hub.JournalProof{}, err
	}
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return hub.JournalProof{}, err
	}
	defer over()
	p, err := h.k.JournalProof(ctx, index)
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

func (h *Hub) proveJournalConsistency(ctx context.Context, c hub.Caller, q hub.JournalSince) (hub.JournalConsistency, error) {
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return hub.JournalConsistency{}, err
	}
	defer over()
	s, err := h.k.JournalStatus(ctx)
	switch {
	case err != nil:
		return hub.JournalConsistency{}, err
	case q.Old == 0 || q.Old > s.Size:
		return hub.JournalConsistency{}, fault.New(fault.Usage, "invalid_input", "prove consistency", fmt.Errorf("a size between 1 and %d, which is what the log has", s.Size))
	}
	p, err := h.k.JournalConsistency(ctx, q.Old)
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

// publishEvery bounds how often readers of tiles make us write them, which flushes several
// files.
const publishEvery = time.Second

// getCheckpoint: the tiles are those of this checkpoint,
// which is the newest or up to a second older.
func (h *Hub) getCheckpoint(ctx context.Context, c hub.Caller, _ hub.None) ([]byte, error) {
	select {
	case h.publishing <- struct{}{}:
		defer func() { <-h.publishing }()
	case <-ctx.Done():
		return nil, fault.New(fault.Canceled, "canceled", "publish journal", context.Cause(ctx))
	}
	if time.Since(h.published) >= publishEvery {
		if err := h.k.PublishJournal(ctx); err != nil {
			return nil, err
		}
		h.published = time.Now()
	}
	return h.k.JournalFile("checkpoint")
}

func (h *Hub) getTile(_ context.Context, c hub.Caller, name string) ([]byte, error) {
	return h.k.JournalFile("tile/" + name)
}

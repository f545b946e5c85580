package local

import (
	"bytes"
	"context"
	"encoding/hex"
	"maps"
	"strings"

	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/kernel"
)

// decidedIndex knows where the journal has a decision: for the newest entries, as far back
// as a look-up has gone. It is in memory. No look-up reads an entry again that another has
// read, whether that one found something or its caller left.
type decidedIndex struct {
	turn chan struct{} // holds one element while no look-up reads

	// Owned by the holder of the turn.
	at       map[[16]byte]uint64 // the newest entry of a decision
	from, to uint64              // the entries that were read: [from, to)
}

func newDecidedIndex() *decidedIndex {
	x := &decidedIndex{turn: make(chan struct{}, 1), at: make(map[[16]byte]uint64)}
	x.turn <- struct{}{}
	return x
}

// indexChunk is the number of entries read at once, backwards.
const indexChunk = 64

// find returns the newest entry that may have the decision with an id, or with an id that
// begins so. Its caller checks the entry. A done ctx ends it.
func (x *decidedIndex) find(ctx context.Context, read kernel.Entries, size uint64, id string) (index uint64, ok bool, err error) {
	select {
	case <-x.turn:
		defer func() { x.turn <- struct{}{} }()
	case <-ctx.Done():
		return 0, false, fault.New(fault.Canceled, "canceled", "look up decision", context.Cause(ctx))
	}
	if x.to == 0 && x.from == 0 {
		x.from, x.to = size, size
	}
	for x.to < size { // what came since
		to := min(x.to+indexChunk, size)
		if err := x.read(ctx, read, x.to, to); err != nil {
			return 0, false, err
		}
		x.to = to
	}
	if x.to-x.from > 2*maxScan {
		x.from = x.to - maxScan
		maps.DeleteFunc(x.at, func(_ [16]byte, i uint64) bool { return i < x.from })
	}
	for {
		if index, ok = x.look(id); ok || x.from == 0 || x.to-x.from >= maxScan {
			return index, ok, nil
		}
		from := x.from - min(x.from, indexChunk)
		if err := x.read(ctx, read, from, x.from); err != nil {
			return 0, false, err
		}
		x.from = from
	}
}

// look returns the newest entry read so far of a decision.
func (x *decidedIndex) look(id string) (index uint64, ok bool) {
	if b, err := hex.DecodeString(id); err == nil && len(b) == 16 {
		index, ok = x.at[[16]byte(b)]
		return index, ok
	}
	for full, i := range x.at {
		if strings.HasPrefix(hex.EncodeToString(full[:]), id) && (!ok || i > index) {
			index, ok = i, true
		}
	}
	return index, ok
}

// read takes in the entries [from, to), all or none: find must not find a decision's older
// entry while its newer one wasn't read.
func (x *decidedIndex) read(ctx context.Context, read kernel.Entries, from, to uint64) error {
	if from >= to {
		return nil
	}
	found := make(map[[16]byte]uint64)
	for rec, err := range read(from, to) {
		if err == nil && ctx.Err() != nil {
			err = fault.New(fault.Canceled, "canceled", "look up decision", context.Cause(ctx))
		}
		if err != nil {
			return err
		}
		env, err := receipt.ParseEnvelope(rec.Content)
		if err != nil {
			return err
		}
		id, ok := decisionIn(env.Payload)
		if ok {
			found[id] = rec.Index
		}
	}
	for id, i := range found {
		x.at[id] = max(x.at[id], i)
	}
	return nil
}

// decisionIn finds the id of the decision in a statement, without reading it: it may have a
// megabyte of arguments. No JSON text has these quotes, so nothing foreign looks like it. A
// caller that uses the id reads the statement.
func decisionIn(payload []byte) (id [16]byte, ok bool) {
	_, after, ok := bytes.Cut(payload, []byte(`"decision":{`))
	if !ok {
		return id, false
	}
	_, after, ok = bytes.Cut(after, []byte(`"id":"`))
	if !ok || len(after) < 32 {
		return id, false
	}
	_, err := hex.Decode(id[:], after[:32])
	return id, err == nil
}

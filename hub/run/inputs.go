package run

import (
	"context"
	"encoding/json"
	"time"

	"palyra/agentloop/turn"
	"palyra/call"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// The label of a session says where what it has read came from. The store has it: the transaction
// that ends a step joins what its call can have read, and recovery does the same by the journal.
// But output can be read before: of a program in the background, or by a run beside this one. So a
// label is in memory, too, while runs of its session are, and grows there when a program begins. If
// the process dies then, the intent is in the journal.

// label is the label of a session with runs in memory.
type label struct {
	in   call.Inputs // guarded by Engine.mu; swapped, never mutated
	runs int         // that keep it; guarded by Engine.mu
}

// originsOf says where the output of a tool came from that had these sources. A model's turn
// reaches a host, but it says what the model says; so it is as good as what the model was told.
func originsOf(tool string, s kernel.Sources) (origins []string) {
	if tool == turn.Tool {
		return []string{call.OriginModel}
	}
	if s.Files {
		origins = append(origins, call.OriginProject)
	}
	if s.Server {
		origins = append(origins, call.OriginTool)
	}
	if s.Hosts {
		origins = append(origins, call.OriginWeb)
	}
	return origins
}

// entriesOf are the entries that a step brings.
func entriesOf(row *store.Step, origins ...string) (in call.Inputs) {
	for _, o := range origins {
		in = in.Join(call.Input{Origin: o, Tool: row.Tool, Run: row.Run, Step: row.Index, Time: time.Now().UTC()})
	}
	return in
}

// labelled has the label of the run's session in memory until the run is forgotten. It reads
// little, and goes on when ctx is done: the gate says then what becomes of the call.
func (e *Engine) labelled(ctx context.Context, j *job) error {
	if j.read {
		return nil
	}
	if j.label == nil { // kept before the store is read: whatever is written from now on is in both
		e.mu.Lock()
		if j.label = e.labels[j.session]; j.label == nil {
			j.label = new(label)
			e.labels[j.session] = j.label
		}
		j.label.runs++
		e.mu.Unlock()
	}
	in, err := store.View(context.WithoutCancel(ctx), e.store, func(tx *store.Tx) (call.Inputs, error) { return tx.Inputs(j.session) })
	if err != nil {
		return err
	}
	e.enters(j, in)
	j.read = true
	return nil
}

// enters joins entries to the label in memory.
func (e *Engine) enters(j *job, in call.Inputs) {
	e.mu.Lock()
	j.label.in = in.Join(j.label.in...)
	e.mu.Unlock()
}

// unlabelLocked takes the label of a forgotten run's session out of memory if no other run keeps
// it.
func (e *Engine) unlabelLocked(j *job) {
	if j.label == nil {
		return
	}
	if j.label.runs--; j.label.runs == 0 {
		delete(e.labels, j.session)
	}
	j.label = nil
}

// inputs returns the label in memory.
func (e *Engine) inputs(j *job) call.Inputs {
	e.mu.Lock()
	defer e.mu.Unlock()
	return j.label.in
}

// Label returns the label of a session, with what calls under way may have read.
func (e *Engine) Label(ctx context.Context, session string) (call.Inputs, error) {
	now := e.labelOf(session) // before the store is read: what isn't in memory any more is there
	in, err := store.View(ctx, e.store, func(tx *store.Tx) (call.Inputs, error) { return tx.Inputs(session) })
	return in.Join(now...), err
}

// labelOf returns what is in memory of a session's label.
func (e *Engine) labelOf(session string) call.Inputs {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.labels[session]; l != nil {
		return l.in
	}
	return nil
}

// carriers returns the sessions of the user whose output a step brings from where palyrad keeps it.
// An input that its tool refuses brings none.
func carriers(tx *store.Tx, row *store.Step, user string) ([]string, error) {
	switch row.Tool {
	case toolproto.ArtifactRead:
		var in toolproto.ArtifactReadInput
		if json.Unmarshal(row.Input, &in) != nil {
			return nil, nil
		}
		d, err := canon.ParseDigest(in.Digest)
		if err != nil {
			return nil, nil
		}
		return tx.ArtifactSessions(d, user)
	case toolproto.ProcessOutput:
		var in toolproto.ProcessOutputInput
		if json.Unmarshal(row.Input, &in) != nil {
			return nil, nil
		}
		r, err := tx.RunHead(in.ID)
		if fault.KindOf(err) == fault.NotFound || fault.KindOf(err) == fault.Usage || err == nil && r.Principal != user {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []string{r.Session}, nil
	}
	return nil, nil
}

// carried returns the labels of the sessions whose output a step of the run brings.
func (e *Engine) carried(ctx context.Context, j *job, row *store.Step) (in call.Inputs, err error) {
	if row.Tool != toolproto.ArtifactRead && row.Tool != toolproto.ProcessOutput {
		return nil, nil
	}
	var sessions []string
	in, err = store.View(context.WithoutCancel(ctx), e.store, func(tx *store.Tx) (in call.Inputs, err error) {
		if sessions, err = carriers(tx, row, j.user); err != nil {
			return nil, err
		}
		return joined(tx, sessions)
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range sessions {
		if l := e.labels[s]; l != nil {
			in = in.Join(l.in...)
		}
	}
	return in, err
}

// joined returns the labels of sessions in one.
func joined(tx *store.Tx, sessions []string) (in call.Inputs, err error) {
	for _, s := range sessions {
		more, err := tx.Inputs(s)
		if err != nil {
			return nil, err
		}
		in = in.Join(more...)
	}
	return in, nil
}

// joinFound joins what a call can have read of which the journal has more than the store.
func joinFound(tx *store.Tx, r *store.Run, row *store.Step, s *kernel.Sources) error {
	if s == nil {
		return nil
	}
	sessions, err := carriers(tx, row, r.Principal)
	if err != nil {
		return err
	}
	in, err := joined(tx, sessions)
	if err != nil {
		return err
	}
	if row.Tool == toolproto.MemorySearch || row.Tool == toolproto.MemoryList { // it isn't known which items
		origins, err := tx.MemoryOrigins(r.Principal)
		if err != nil {
			return err
		}
		in = in.Join(entriesOf(row, append(origins, call.OriginMemory)...)...)
	}
	return tx.JoinInputs(r.Session, r.Principal, entriesOf(row, originsOf(row.Tool, *s)...).Join(in...)...)
}

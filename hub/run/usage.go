package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"time"

	"palyra/agentloop"
	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// A turn of a model is counted twice: the transaction that begins its step counts the size of its
// question, and the one that ends it puts the provider's count in its place. So sums include the
// turns under way, and a crash loses none. The bounds are looked at in the first of these:
// transactions follow each other, and of several turns that begin at once each sees those before
// it. Beyond a bound there are at most the answers of turns that are under way.

// Meter knows what turns of models cost.
type Meter interface {
	// Turn returns the declared model that a user's input of model.turn names, the bytes of its
	// question as far as they're known, and what each token costs. false: there is no such model.
	Turn(user string, input []byte) (model string, bytes int64, price agentloop.Price, ok bool)
}

// Spending bounds what the turns of a session take, and those of a principal in a day (UTC): with
// as much, no further one is made. Tokens are those of questions and answers, costs are in
// millionths of the unit of the models' prices. 0: no bound.
type Spending struct{ SessionTokens, SessionCost, DayTokens, DayCost int64 }

// turned is a turn of a model that is counted.
type turned struct {
	begun store.Usage // what is counted of it from its beginning on
	price agentloop.Price
	over  error // why it isn't made; written by the commit that begins the step
}

// bytesAToken is the size of a token where no one counts them. It's that of English; code and other
// languages have fewer.
const bytesAToken = 4

func tokens(bytes int64) int64 { return (bytes + bytesAToken - 1) / bytesAToken }

// turnOf returns the turn that a step is, nil if it's none that is counted.
func (e *Engine) turnOf(j *job, row *store.Step) *turned {
	if row.Tool != turn.Tool || e.cfg.Meter == nil {
		return nil
	}
	model, bytes, price, ok := e.cfg.Meter.Turn(j.user, row.Input)
	if !ok {
		return nil
	}
	t := &turned{price: price}
	t.begun = t.usage(turn.Usage{Input: tokens(bytes)})
	t.begun.Day, t.begun.Model, t.begun.Sized = store.DayOf(row.Started), model, 1
	return t
}

// usage is one turn that took so much. A provider says what it likes.
func (t *turned) usage(u turn.Usage) store.Usage {
	for _, n := range []*int64{&u.Input, &u.Cached, &u.Output, &u.Reasoning} {
		*n = min(max(0, *n), store.MaxUsage)
	}
	u.Cached = min(u.Cached, u.Input)
	s := store.Usage{Day: t.begun.Day, Model: t.begun.Model, Turns: 1, Input: u.Input, Cached: u.Cached, Output: u.Output, Reasoning: u.Reasoning, Cost: t.price.Of(u)}
	p := t.price
	if float64(u.Input)*float64(max(p.Input, p.Cached))+float64(u.Output)*float64(p.Output) > store.MaxUsage {
		s.Cost = store.MaxUsage
	}
	return s
}

// countBegun counts a turn that is about to begin, or sets why it doesn't. It returns what it
// counted, nil for nothing.
func (e *Engine) countBegun(tx *store.Tx, j *job) (*store.Usage, error) {
	t := j.turn
	if t == nil {
		return nil, nil
	}
	var err error
	if t.over, err = e.cfg.Spending.over(tx, j); err != nil || t.over != nil {
		return nil, err
	}
	return &t.begun, tx.CountUsage(j.plan.spends(j.session), j.user, t.begun)
}

// countEnded counts what a turn took instead of what was counted when it began. nil: nothing.
func countEnded(tx *store.Tx, r *store.Run, p *plan, begun, took *store.Usage) error {
	if took == nil {
		took = new(store.Usage)
	}
	u := took.Less(*begun)
	u.Day, u.Model = begun.Day, begun.Model
	return tx.CountUsage(p.spends(r.Session), r.Principal, u)
}

// Turns returns what turns took that ended since the engine was opened, by model.
func (e *Engine) Turns() map[string]store.Usage {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.turns)
}

// over returns why no further turn of a run is made, nil if one may be.
func (s Spending) over(tx *store.Tx, j *job) (why, err error) {
	spends := j.plan.spends(j.session)
	for _, b := range [...]struct {
		key, name    string
		whose        string
		from         int64
		tokens, cost int64
		hint         string
	}{
		{"session", "session " + spends, spends, 0, s.SessionTokens, s.SessionCost, "another session has as much again; palyra agent usage --session " + spends + " says what took it"},
		{"day", "day of " + j.user, j.user, store.DayOf(time.Now()), s.DayTokens, s.DayCost, "a day ends at 00:00 UTC; palyra agent usage says what took it"},
	} {
		if b.tokens <= 0 && b.cost <= 0 {
			continue
		}
		tokens, cost, err := tx.Spent(b.whose, b.from)
		if err != nil {
			return nil, err
		}
		reason, text := "", ""
		switch {
		case b.tokens > 0 && tokens >= b.tokens:
			reason, text = ReasonTokens, fmt.Sprintf("the %s has taken %d tokens, and agent.%s_tokens is %d", b.name, tokens, b.key, b.tokens)
		case b.cost > 0 && cost >= b.cost:
			reason, text = ReasonCost, fmt.Sprintf("the %s has cost %.6g, and agent.%s_cost is %.6g", b.name, float64(cost)/1e6, b.key, float64(b.cost)/1e6)
		default:
			continue
		}
		d := &hub.DenialError{Denial: hub.Denial{Layer: hub.LayerBudget, Reason: reason, Fix: b.hint}}
		return fault.New(fault.Unavailable, reason, "ask model", fmt.Errorf("%s: %w", text, d)).WithHint(b.hint), nil
	}
	return nil, nil
}

// took returns what a turn took whose program may have run, by its output: what the provider says;
// nothing, if it refused the question or wasn't reached; else the size of question and answer, as
// far as the provider hadn't counted them by then. A provider that was quiet for too long, or
// answered with something else, may have worked on it.
func (t *turned) took(out *io.SectionReader) *store.Usage {
	var last turn.Event
	if b := lastLine(out); b != nil && json.Unmarshal(b, &last) == nil && last.End != "" && last.Usage != nil {
		u := t.usage(*last.Usage)
		return &u
	}
	a, _ := turn.ReadAnswer(out)
	said := a.Error != nil && a.Usage != (turn.Usage{})
	if e := a.Error; e != nil && !said && len(a.Message.Parts) == 0 && (e.Status != 0 || e.Class != turn.TimedOut && e.Class != turn.Malformed) {
		u := t.usage(turn.Usage{})
		return &u
	}
	var size int64
	for i := range a.Message.Parts {
		p := &a.Message.Parts[i]
		if size += int64(len(p.Text) + len(p.Opaque)); p.Call != nil {
			size += int64(len(p.Call.Name) + len(p.Call.Arguments))
		}
	}
	if said && a.Usage.Output >= tokens(size) {
		u := t.usage(a.Usage)
		return &u
	}
	if !said {
		a.Usage = turn.Usage{Input: t.begun.Input}
	}
	a.Usage.Output = tokens(size)
	u := t.usage(a.Usage)
	u.Sized = 1
	return &u
}

// maxEnd is more than the last event of an answer has, in bytes, if it says what the turn took.
const maxEnd = 4 << 10

// lastLine returns the last line of an output that is whole, nil if it's long, or isn't kept.
func lastLine(out *io.SectionReader) []byte {
	b := make([]byte, min(maxEnd, out.Size()))
	if _, err := out.ReadAt(b, out.Size()-int64(len(b))); err != nil {
		return nil
	}
	b = bytes.TrimSuffix(b, []byte("\n"))
	at := bytes.LastIndexByte(b, '\n')
	if at < 0 && out.Size() > maxEnd {
		return nil
	}
	return b[at+1:]
}

// readerAt reads the standard output of a step that is closed.
type readerAt struct {
	ctx context.Context
	l   *live
}

// ReadAt implements io.ReaderAt.
func (r readerAt) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		k, over, lost, err := r.l.readAt(r.ctx, 0, b[n:], off+int64(n))
		n += k
		switch {
		case err != nil:
			return n, err
		case lost != nil:
			return n, lost
		case n == len(b):
		case over || k == 0:
			return n, io.EOF
		}
	}
	return n, nil
}

package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/hub/memory"
	"palyra/hub/model"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/signal"
	"palyra/internal/toolproto"
)

// Memory compares by a provider's vectors where the configuration names a model that makes them. A
// call that stores items or looks for some is preceded by one of model.turn, in the name of the
// same principal: decided, bounded, journaled and attested as any. The answer is on no tape: a
// vector says much of its text, and is to be gone when the item is. Memory does without where that
// call is refused or fails.

// The time that vectors may take. An agent's run doesn't wait for a provider that is silent.
const (
	embedRecall = 2 * time.Second
	embedWait   = 10 * time.Second
	embedRests  = 30 * time.Second // that one which didn't answer is left alone, by that principal
)

// maxEmbedded is how much of an item's text is embedded, in bytes.
const maxEmbedded = 8 << 10

// The reasons for which a text has no vector, beside those of its call and the classes of a
// provider's failures.
const (
	embedSecret = "secret_in_call" // it has a secret in it
	embedSilent = "no_answer_in_time"
)

// embedder knows who leaves the provider alone: a principal whose calls wait for a place, or fail,
// has others' none the slower.
type embedder struct {
	mu    sync.Mutex
	rests map[string]embedRest // by principal; guarded by mu
}

type embedRest struct {
	until time.Time
	why   string
}

// why returns why the provider isn't asked for a principal now, "" if it is.
func (e *embedder) why(user string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.rests[user]; time.Now().Before(r.until) {
		return r.why
	}
	return ""
}

// failed has the provider left alone, and returns why.
func (e *embedder) failed(user, why string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(e.rests, func(_ string, r embedRest) bool { return now.After(r.until) })
	if e.rests == nil {
		e.rests = make(map[string]embedRest)
	}
	e.rests[user] = embedRest{now.Add(embedRests), why}
	return why
}

// embeds names the model that memory's vectors are made by: an item of another's isn't compared
// with them. "": none is configured.
func (h *Hub) embeds() string {
	if h.cfg.Embeddings == "" || h.cfg.Models == nil {
		return ""
	}
	one, err := h.cfg.Models.Model(h.cfg.Embeddings)
	if err != nil {
		return ""
	}
	return one.Provider + "/" + one.Model
}

// embed has vectors of texts made for a caller, within a time. nil: no model is configured for it.
// The call is decided with what the session that has the texts has read, and with their origins,
// and counted as that session's; "": it is a session of its own.
func (h *Hub) embed(ctx context.Context, c hub.Caller, session string, texts, origins []string, within time.Duration) *memory.Embedded {
	name := h.embeds()
	if name == "" || len(texts) == 0 {
		return nil
	}
	e := &memory.Embedded{Model: name, Vectors: make([]turn.Vector, len(texts))}
	var ask []string
	var at []int // of those, in texts
	for i, text := range texts {
		switch {
		case text == "":
		case h.holdsSecret(c.User, []byte(text)) || len(signal.Secrets(text)) > 0: // before it's cut, or half of one goes
			e.Why = embedSecret
		default:
			if len(text) > maxEmbedded {
				text = strings.ToValidUTF8(text[:maxEmbedded], "")
			}
			ask, at = append(ask, text), append(at, i)
		}
	}
	if len(ask) == 0 {
		return e
	}
	if why := h.embedder.why(c.User); why != "" {
		e.Why = why
		return e
	}
	vectors, why := h.askVectors(ctx, c, session, ask, origins, within)
	if why != "" {
		e.Why = why
		return e
	}
	for i, v := range vectors {
		e.Vectors[at[i]] = v
	}
	return e
}

// askVectors makes the call. why is the reason for which there are no vectors.
func (h *Hub) askVectors(ctx context.Context, c hub.Caller, session string, texts, origins []string, within time.Duration) (vectors []turn.Vector, why string) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	text, err := (&turn.Request{Embed: &turn.Embed{Input: texts}}).Encode()
	if err != nil {
		return nil, fault.ReasonOf(err)
	}
	digest, release, err := h.cfg.Models.Keep(h.payer(c), text)
	if err != nil {
		return nil, fault.ReasonOf(err)
	}
	defer release()
	input, err := model.Input(h.cfg.Embeddings, digest)
	if err != nil {
		return nil, fault.ReasonOf(err)
	}
	var out bytes.Buffer // the run's until it has ended
	id, err := h.runs.Start(ctx, run.Request{User: c.User, Surface: c.Surface, Device: c.Device, Token: c.Token, Reserve: h.privileged(c),
		Steps: []hub.Step{{Tool: turn.Tool, Input: input}}, Attended: true, Unasked: true, Wrote: session, Origins: origins, Stdout: &out, Spends: session, Budget: hub.Budget{Calls: 1, Wall: 2 * within}}) // ctx ends it before
	if err == nil {
		err = h.runs.Wait(ctx, id)
	}
	if err != nil {
		if id != "" {
			_ = h.runs.Cancel(ctx, id, run.Stop{Reason: run.ReasonCallerGone, By: c.User}) // its end isn't waited for
		}
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return nil, h.embedder.failed(c.User, embedSilent)
		}
		return nil, fault.ReasonOf(err)
	}
	r, err := h.runs.Read(context.WithoutCancel(ctx), id)
	switch {
	case err != nil:
		return nil, fault.ReasonOf(err)
	case len(r.Steps) != 1: // it waited for a place too long
		return nil, h.embedder.failed(c.User, embedSilent)
	case r.Steps[0].Denial != nil:
		return nil, r.Steps[0].Reason
	case r.Steps[0].Outcome != "executed":
		return nil, h.embedder.failed(c.User, cmp.Or(r.Steps[0].Reason, embedSilent))
	}
	a, err := turn.ReadAnswer(&out)
	switch {
	case err != nil:
		return nil, fault.ReasonOf(err)
	case a.Error != nil:
		if a.Error.Again() {
			return nil, h.embedder.failed(c.User, a.Error.Class)
		}
		return nil, a.Error.Class
	case len(a.Vectors) != len(texts):
		return nil, turn.Malformed
	}
	return a.Vectors, ""
}

// remembered is what is embedded of an item.
func remembered(text string, tags []string) string {
	return strings.TrimSpace(text + "\n" + strings.Join(tags, " "))
}

// hasMemory reports whether there can be an item to compare with.
func (h *Hub) hasMemory(ctx context.Context, user string) bool {
	n, err := store.View(ctx, h.st, func(tx *store.Tx) (n int64, err error) {
		n, _, err = tx.MemoryUse(user)
		return n, err
	})
	return err == nil && n > 0
}

// attaching is the run.Servers of the hub: what calls have beside their input that takes its time.
type attaching struct{ h *Hub }

var _ run.Servers = attaching{}

// Attach implements run.Servers. The vectors of an agent's items and queries are made before its
// call is decided, and not where one is only asked about.
func (a attaching) Attach(ctx context.Context, at run.Attaching) (context.Context, *run.Attached, error) {
	h := a.h
	select {
	case <-h.opened:
	case <-ctx.Done():
		return ctx, nil, context.Cause(ctx)
	}
	var in struct {
		Query  string   `json:"query"`
		Recall bool     `json:"recall"`
		Text   string   `json:"text"`
		Tags   []string `json:"tags"`
	}
	embed := func(text string, within time.Duration) {
		resume := at.Pause()
		defer resume()
		ctx = memory.WithEmbedded(ctx, h.embed(ctx, at.Caller, at.Session, []string{text}, nil, within))
	}
	switch own := h.embeds() != "" && (at.Tool == toolproto.MemorySearch || at.Tool == toolproto.MemoryRetain); {
	case own && json.Unmarshal(at.Input, &in) != nil: // the tool says what is wrong
	case own && at.Tool == toolproto.MemoryRetain && in.Text != "":
		embed(remembered(in.Text, in.Tags), embedWait)
	case own && at.Tool == toolproto.MemorySearch && in.Query != "" && h.hasMemory(ctx, at.Caller.User):
		within := embedWait
		if in.Recall {
			within = embedRecall
		}
		embed(in.Query, within)
	}
	if h.cfg.Gateway != nil {
		return h.cfg.Gateway.Attach(ctx, at)
	}
	return ctx, nil, nil
}

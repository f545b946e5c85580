package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"palyra/call"
	"palyra/hub"
	"palyra/hub/memory"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/internal/toolproto"
	"palyra/kernel/tool"
)

// memoryOperations returns the operations of memory.
func (h *Hub) memoryOperations() []hub.Entry {
	return []hub.Entry{
		hub.SearchMemory.By(h.searchMemory),
		hub.ListMemory.By(h.listMemory),
		hub.AddMemory.By(h.addMemory),
		hub.ForgetMemory.By(h.forgetMemory),
		hub.GetMemory.By(h.getMemory),
	}
}

// memoryShare bounds the bytes of a command's texts and of its answer: a page, and an item more.
const memoryShare = 4 << 20

// memoryCall makes one call of a tool for memory, as call makes one of any tool. What beside has
// comes beside it, and so does the answer. texts are what it stores or looks for, of which vectors
// are made first.
func (h *Hub) memoryCall(ctx context.Context, c hub.Caller, session, name string, input any, beside *tool.BesideMemory, texts ...string) (out hub.MemoryResult, err error) {
	for _, id := range []string{session, beside.Session} {
		if id == "" {
			continue
		}
		if err := ident.Check(ident.Session, id); err != nil {
			return out, err
		}
		if err := h.ownSession(ctx, c, id); err != nil {
			return out, err
		}
	}
	hold, err := h.pools.secrets.Wait(ctx, h.payer(c), memoryShare)
	if err != nil {
		return out, err
	}
	defer hold.Keep(ctx)()
	line, err := canon.Marshal(input)
	if err != nil {
		return out, err
	}
	var mu sync.Mutex
	var done *toolproto.MemoryResult
	beside.Done = func(r toolproto.MemoryResult) {
		mu.Lock()
		defer mu.Unlock()
		done = &r
	}
	var origins []string
	for i := range beside.Items {
		origins = append(origins, beside.Items[i].Origins...)
	}
	vectors := h.embed(ctx, c, session, texts, origins, embedWait)
	id, err := h.once(ctx, c, session, hub.Step{Tool: name, Input: line}, func(ctx context.Context) context.Context {
		return memory.WithEmbedded(tool.WithMemory(ctx, beside), vectors)
	})
	if err != nil {
		return out, err
	}
	if out.Run, err = h.answer(context.WithoutCancel(ctx), c, id); err != nil {
		return hub.MemoryResult{}, err
	}
	out.Items = []hub.MemoryItem{}
	mu.Lock()
	defer mu.Unlock()
	if done == nil {
		return out, nil
	}
	out.Count, out.Next = done.Count, done.Next
	for i := range done.Items {
		it := &done.Items[i]
		v := hub.MemoryItem{ID: it.ID, Scope: it.Scope, Session: it.Session, Source: it.Source, Origins: it.Origins, Tags: it.Tags, Confidence: it.Confidence,
			Created: it.Created, Expires: it.Expires, Digest: it.Digest, Text: it.Text}
		if s := it.Score; s != nil {
			v.Score = &hub.MemoryScore{Total: s.Total, Lexical: s.Lexical, Vector: s.Vector, Recency: s.Recency, Quality: s.Quality, Embedding: s.Embedding}
		}
		out.Items = append(out.Items, v)
	}
	return out, nil
}

// ownSession returns nil if the session is the caller's.
func (h *Hub) ownSession(ctx context.Context, c hub.Caller, id string) error {
	s, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Session, error) { return tx.Session(id) })
	if err == nil && s.Principal != c.User {
		err = store.NoSuch("session", id)
	}
	return err
}

func (h *Hub) searchMemory(ctx context.Context, c hub.Caller, q hub.MemorySearch) (hub.MemoryResult, error) {
	if q.Query == "" {
		return hub.MemoryResult{}, fault.New(fault.Usage, "invalid_input", "search memory", errors.New("the query is empty"))
	}
	in := map[string]any{}
	if q.Limit != 0 {
		in["limit"] = q.Limit
	}
	var texts []string
	if h.hasMemory(ctx, c.User) {
		texts = []string{q.Query}
	}
	return h.memoryCall(ctx, c, q.Session, toolproto.MemorySearch, in, &tool.BesideMemory{Session: q.Of, Query: q.Query}, texts...)
}

func (h *Hub) listMemory(ctx context.Context, c hub.Caller, q hub.MemoryQuery) (hub.MemoryResult, error) {
	in := map[string]any{}
	if len(q.IDs) > 0 {
		in["ids"] = q.IDs
	}
	if q.Before != 0 {
		in["before"] = q.Before
	}
	if q.Limit != 0 {
		in["limit"] = q.Limit
	}
	return h.memoryCall(ctx, c, q.Session, toolproto.MemoryList, in, new(tool.BesideMemory))
}

func (h *Hub) addMemory(ctx context.Context, c hub.Caller, a hub.MemoryAdd) (hub.MemoryResult, error) {
	const op = "add memory"
	if len(a.Items) == 0 {
		return hub.MemoryResult{}, fault.New(fault.Usage, "invalid_input", op, errors.New("there are no items"))
	}
	beside := &tool.BesideMemory{Source: toolproto.SourcePerson}
	if a.Import {
		beside.Source = toolproto.SourceImport
	}
	texts := make([]string, len(a.Items))
	for i := range a.Items {
		it := &a.Items[i]
		texts[i] = remembered(it.Text, it.Tags)
		n := tool.NewMemory{Text: it.Text, Tags: it.Tags, Scope: store.MemoryOfPrincipal, Source: beside.Source, Confidence: 100,
			Origins: append([]string{call.OriginPerson}, it.Origins...)}
		if it.Confidence != nil {
			n.Confidence = *it.Confidence
		}
		if it.Of != "" {
			if err := h.ownSession(ctx, c, it.Of); err != nil {
				return hub.MemoryResult{}, err
			}
			n.Scope, n.Session = store.MemoryOfSession, it.Of
		}
		if it.Expires != "" {
			var err error
			if n.Expires, err = time.Parse(time.RFC3339, it.Expires); err != nil {
				return hub.MemoryResult{}, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("expires: want a time such as 2027-01-02T15:04:05Z"))
			}
		}
		beside.Items = append(beside.Items, n)
	}
	return h.memoryCall(ctx, c, a.Session, toolproto.MemoryRetain, map[string]any{}, beside, texts...)
}

func (h *Hub) forgetMemory(ctx context.Context, c hub.Caller, f hub.MemoryForget) (hub.MemoryResult, error) {
	in := map[string]any{}
	if len(f.IDs) > 0 {
		in["ids"] = f.IDs
	}
	beside := &tool.BesideMemory{}
	beside.Choice.Origin, beside.Choice.Session, beside.Choice.All = f.Origin, f.Of, f.All
	return h.memoryCall(ctx, c, f.Session, toolproto.MemoryForget, in, beside)
}

func (h *Hub) getMemory(ctx context.Context, c hub.Caller, _ hub.None) (s hub.MemoryState, err error) {
	s.Embedding, s.MaxItems, s.MaxBytes = cmp.Or(h.embeds(), memory.Embedding), h.cfg.Memory.Items, h.cfg.Memory.Bytes
	_, err = store.View(ctx, h.st, func(tx *store.Tx) (any, error) {
		s.Items, s.Bytes, err = tx.MemoryUse(c.User)
		return nil, err
	})
	return s, err
}

package tool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"palyra/authz/policy"
	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// The tools for memory. An item is its principal's: no input names a principal. palyrad finds what
// is asked for, or seals what is to be stored, before the call is decided; the arguments say how
// much, and what it was made of. What changes memory does so as the call's Effect, behind decision
// and intent. A cell gets what an agent is to be told, and nothing where a command asks: its answer
// comes beside the call, and no tape has it.

// Memory has what principals had remembered. Items of others don't exist: fault.NotFound, as for an
// unknown id.
type Memory interface {
	// Search finds items by words: the principal's, and those of the one session that is named.
	Search(ctx context.Context, who, session, query string, in *toolproto.MemorySearchInput) ([]toolproto.Memory, error)
	// List returns items, newest first, and where the next page begins; 0: it's the last. It has
	// items of other sessions only if every says so.
	List(ctx context.Context, who, session string, every bool, in *toolproto.MemoryListInput) (items []toolproto.Memory, next int64, err error)
	// Draft seals items, and Keep stores them: all or none.
	Draft(ctx context.Context, who string, items []NewMemory) (MemoryDraft, error)
	Keep(ctx context.Context, who string, d MemoryDraft) error
	// Choose returns the ids of the items that an input is about. Forget removes items for good,
	// and tells the journal.
	Choose(ctx context.Context, who, session string, every bool, in *toolproto.MemoryForgetInput) ([]string, error)
	Forget(ctx context.Context, who string, ids []string) error
}

// NewMemory is an item to be stored.
type NewMemory struct {
	Text       string
	Tags       []string
	Scope      string
	Session    string // that it's made in; "": none that stays
	Source     string
	Origins    []string // sorted
	Confidence int64
	Expires    time.Time // zero: as the configuration says for the source
}

// MemoryDraft is items that are sealed and not stored. Items describes them, without texts.
type MemoryDraft struct {
	Items  []toolproto.Memory
	Sealed any // Memory's own
}

// Within is the session that a call is made in.
type Within struct {
	Session string
	// Label says what the session has read. Brought adds what a call brings into it, before the call
	// can be over.
	Label   func() call.Inputs
	Brought func(origins ...string)
}

// withinKey is the key of the Within in a call's ctx. It is data for a call that policy decides,
// and lends no authority.
type withinKey struct{}

// WithSession returns the ctx of a call that is made in a session.
func WithSession(ctx context.Context, w *Within) context.Context {
	return context.WithValue(ctx, withinKey{}, w)
}

// BesideMemory is what the call of a command about memory has besides its input. It's for one call.
type BesideMemory struct {
	Query   string      // of memory.search
	Source  string      // of what it stores
	Session string      // that it's about, of the same principal; "": none
	Items   []NewMemory // of memory.retain
	// Choice is which items memory.forget is about, beside those that the input names.
	Choice toolproto.MemoryForgetInput
	Done   func(toolproto.MemoryResult) // gets what the call found or did, once that is certain
}

type besideMemoryKey struct{}

// WithMemory returns the ctx of a call that has b.
func WithMemory(ctx context.Context, b *BesideMemory) context.Context {
	return context.WithValue(ctx, besideMemoryKey{}, b)
}

// memoryEffect is the kernel.Effect of such a call.
type memoryEffect struct {
	begin func(ctx context.Context) error // nil: it changes nothing
	tell  func()                          // nil: the program's output is the answer
}

var _ kernel.Effect = (*memoryEffect)(nil)

// Begin implements kernel.Effect.
func (x *memoryEffect) Begin(ctx context.Context) error {
	if x.begin == nil {
		return nil
	}
	return x.begin(ctx)
}

// End implements kernel.Effect.
func (x *memoryEffect) End(ran bool, exit int) {
	if ran && toolproto.Status(exit) == toolproto.Done && x.tell != nil {
		x.tell()
	}
}

// Close implements kernel.Effect.
func (x *memoryEffect) Close() {}

// memoryCall is a call of a tool for memory while it's expanded.
type memoryCall struct {
	m       Memory
	who     string
	session string
	within  *Within       // nil: it's made in no session
	beside  *BesideMemory // nil: no command
	result  toolproto.MemoryResult
	effect  memoryEffect
}

func expandMemory(ctx context.Context, t *Table, e *entry, who policy.Entity, input any) (*kernel.Expansion, error) {
	c := &memoryCall{m: t.cfg.Memory, who: who.ID}
	c.within, _ = ctx.Value(withinKey{}).(*Within)
	if c.within != nil {
		c.session = c.within.Session
	}
	if c.beside, _ = ctx.Value(besideMemoryKey{}).(*BesideMemory); c.beside != nil {
		c.session = c.beside.Session
	}
	var err error
	switch in := input.(type) {
	case *toolproto.MemorySearchInput:
		query := in.Query
		if c.beside != nil {
			query = c.beside.Query
		}
		if query == "" {
			return nil, usage("invalid_input", "read member query", errors.New("is required"))
		}
		c.result.Items, err = c.m.Search(ctx, c.who, c.session, query, in)
		in.Found, in.Origins = int64(len(c.result.Items)), c.reads()
	case *toolproto.MemoryListInput:
		c.result.Items, c.result.Next, err = c.m.List(ctx, c.who, c.session, c.beside != nil, in)
		in.Found, in.Origins = int64(len(c.result.Items)), c.reads()
	case *toolproto.MemoryRetainInput:
		err = c.retain(ctx, in)
	case *toolproto.MemoryForgetInput:
		err = c.forget(ctx, in)
	default:
		err = fault.New(fault.Internal, "internal", fmt.Sprintf("expand tool %q", e.Name), fmt.Errorf("a %T came in", input))
	}
	if err != nil {
		return nil, err
	}
	c.result.Count = max(c.result.Count, int64(len(c.result.Items)))
	x, err := expandPlain(ctx, t, e, who, input)
	if err != nil {
		return nil, err
	}
	told := c.result
	if c.beside != nil {
		told.Items, told.Next = nil, 0
		c.effect.tell = func() { c.beside.Done(c.result) }
	}
	if told.Items == nil {
		told.Items = []toolproto.Memory{}
	}
	payload, err := canon.Marshal(told)
	if err != nil {
		return nil, err
	}
	_, forgets := input.(*toolproto.MemoryForgetInput)
	x.Sensitive = forgets && c.beside == nil
	x.Effect = &c.effect
	x.Stdin, x.StdinMost = append(append(x.Stdin, '\n'), payload...), maxTold
	return x, nil
}

// reads returns what the items of the result were made of, and has the session of an agent read
// it.
func (c *memoryCall) reads() (origins []string) {
	for i := range c.result.Items {
		origins = append(origins, c.result.Items[i].Origins...)
	}
	slices.Sort(origins)
	origins = slices.Compact(origins)
	if c.beside == nil && c.within != nil && len(c.result.Items) > 0 {
		c.within.Brought(append([]string{call.OriginMemory}, origins...)...)
	}
	return origins
}

// retain seals the items, so that the decision is about those.
func (c *memoryCall) retain(ctx context.Context, in *toolproto.MemoryRetainInput) error {
	const op = "retain memory"
	var items []NewMemory
	switch {
	case c.beside != nil:
		items, in.Source = c.beside.Items, c.beside.Source
	case in.Text == "":
		return usage("invalid_input", "read member text", errors.New("is required"))
	default:
		// A model chose the words, after all that the session has read.
		one := NewMemory{Text: in.Text, Tags: in.Tags, Scope: in.Scope, Source: toolproto.SourceAgent, Origins: []string{call.OriginModel}, Confidence: in.Confidence, Session: c.session}
		if in.Days > 0 {
			one.Expires = time.Now().Add(time.Duration(in.Days) * 24 * time.Hour)
		}
		one.Origins = c.label(one.Origins)
		items, in.Source = []NewMemory{one}, one.Source
	}
	if len(items) == 0 || len(items) > toolproto.MaxMemoryBatch {
		return usage("invalid_input", op, fmt.Errorf("%d items, want 1 to %d", len(items), toolproto.MaxMemoryBatch))
	}
	d, err := c.m.Draft(ctx, c.who, items)
	if err != nil {
		return err
	}
	var digests []byte
	in.Origins, in.Items = nil, int64(len(d.Items))
	for i := range d.Items {
		in.Origins = append(in.Origins, d.Items[i].Origins...)
		digests = append(digests, d.Items[i].Digest[:]...)
	}
	slices.Sort(in.Origins)
	in.Origins = slices.Compact(in.Origins)
	in.Record = canon.Sum(digests).String()
	c.result.Items = d.Items
	c.effect.begin = func(ctx context.Context) error {
		if c.beside == nil && !slices.Equal(c.label(in.Origins), in.Origins) {
			return fault.New(fault.Refused, "changed", op, errors.New("the session has read more since the call was decided")).WithHint("propose it again")
		}
		return c.m.Keep(ctx, c.who, d)
	}
	return nil
}

// label joins what the session has read to origins, sorted.
func (c *memoryCall) label(origins []string) []string {
	origins = slices.Clone(origins)
	if c.within != nil {
		origins = append(origins, c.within.Label().Origins()...)
	}
	slices.Sort(origins)
	return slices.Compact(origins)
}

// forget chooses the items that there are now, so that the decision is about those.
func (c *memoryCall) forget(ctx context.Context, in *toolproto.MemoryForgetInput) error {
	if c.beside != nil {
		in.Origin, in.Session, in.All = c.beside.Choice.Origin, c.beside.Choice.Session, c.beside.Choice.All
	}
	ids, err := c.m.Choose(ctx, c.who, c.session, c.beside != nil, in)
	if err != nil {
		return err
	}
	in.Items, in.Set = int64(len(ids)), toolproto.MemorySet(ids).String()
	c.result.Count = in.Items
	c.effect.begin = func(ctx context.Context) error { return c.m.Forget(ctx, c.who, ids) }
	return nil
}

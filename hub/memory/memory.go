// Package memory keeps what principals have remembered from one session to the next: sealed rows in
// the store, and an index over them in memory alone.
//
//	m := memory.New(memory.Config{Store: st, Key: key, Record: k.Record})
//	table := tool.New(tool.Config{Memory: m, …})
//
// It decides nothing: each of its methods is the work of a call of a tool for memory
// (palyra/kernel/tool), which policy has decided, or is about to.
//
// # Contract
//
// An item is one principal's. Each method takes the principal, who comes from the gate and from no
// input; each statement and each key of a seal names them. So an item answers its own principal
// alone, even if a row was copied to another's name.
//
// What an item says (text, tags, confidence) is sealed under a key that the vault keeps, for its
// principal, id, scope, source, origins and times: docs/formats/memory.md. The store's file has no
// word of it. The index is made of the rows when a principal first asks, within Config.Index bytes
// for all of them together; the one that was used least is dropped then, and made again when it's
// needed. It only proposes: what is given out is read from the store, and opened, each time.
//
// A search ranks by words in common (BM25) and by the likeness of vectors: a provider's, where both
// query and item have one of the same model (near.go), else those of hashed words (vector.go),
// which know no meanings. Memory asks no provider: its caller has asked ([WithEmbedded]), and
// without that nothing of a provider's is compared or stored. The same items, query, vectors and
// time give the same order.
//
// # What it does not protect against
//
// palyrad has the key and the index in its memory. Origins are those of palyrad's labels: an item
// that a person pasted from a page is that person's word. Copies of the store from before an item
// was forgotten have it, sealed: backups, and what a file system keeps.
package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"palyra/call"
	"palyra/crypt/seal"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/internal/toolproto"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// OwnKey is the name of the key of memory in the vault.
const OwnKey = "memory"

// Config says what to make Memory of.
type Config struct {
	Store *store.Store
	// Key opens the key that seals items, and makes it on first use if create is set; its caller
	// wipes it. nil: the configuration names no vault, and memory is refused.
	Key func(ctx context.Context, create bool) (*seal.Key, error)
	// Record puts an act into the journal.
	Record func(ctx context.Context, a kernel.Act) (uint64, error)
	// Bounds are on what one principal has, in items and sealed bytes. 0: no bound.
	Bounds store.MemoryBounds
	// Expire is when an item that an agent wrote is forgotten that says nothing else. Default: 30
	// days.
	Expire time.Duration
	// Index bounds all indexes, in bytes. Default: 64 MiB.
	Index int64
}

// Memory has what principals remember. It is safe for concurrent use.
type Memory struct {
	cfg Config

	mu    sync.Mutex
	key   *seal.Key                // nil until the vault was opened; guarded by mu
	books map[string]*book         // by principal; guarded by mu
	clock int64                    // counts uses of books; guarded by mu
	turns map[string]chan struct{} // has an element while no goroutine reads that principal's rows; guarded by mu
}

var _ tool.Memory = (*Memory)(nil)

// New returns Memory.
func New(cfg Config) *Memory {
	if cfg.Expire <= 0 {
		cfg.Expire = 30 * 24 * time.Hour
	}
	if cfg.Index <= 0 {
		cfg.Index = 64 << 20
	}
	return &Memory{cfg: cfg, books: make(map[string]*book), turns: make(map[string]chan struct{})}
}

// Close wipes the key.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.key.Wipe()
	m.key, m.books = nil, make(map[string]*book)
	return nil
}

// content is what is sealed of an item, as canonical JSON.
type content struct {
	Version    int      `json:"version"` // 1; 2 with a vector
	Text       string   `json:"text"`
	Tags       []string `json:"tags"`
	Confidence int64    `json:"confidence"`
	Model      string   `json:"model,omitempty"`  // that made the vector
	Vector     []byte   `json:"vector,omitempty"` // a number each: near.of
}

// whole reports whether the content is of a version that there is.
func (c *content) whole() bool {
	with := len(c.Vector) > 0
	return (c.Version == 1 && !with || c.Version == 2 && with) && with == (c.Model != "")
}

// contentOf is the context that an item's content is sealed for: all else of its row.
func contentOf(r *store.Memory) seal.Context {
	n := func(t time.Time) string {
		if t.IsZero() {
			return "0"
		}
		return strconv.FormatInt(t.UnixNano(), 10)
	}
	return seal.Context{Purpose: "memory/item", Scope: r.Principal, Version: 1,
		Name: strings.Join([]string{r.ID, r.Scope, r.Session, r.Source, strings.Join(r.Origins, ","), n(r.Created), n(r.Expires)}, "\n")}
}

// open returns the key. It's opened once and stays open: palyrad could open the vault again at any
// time.
func (m *Memory) open(ctx context.Context, create bool) (*seal.Key, error) {
	m.mu.Lock()
	k := m.key
	m.mu.Unlock()
	if k != nil {
		return k, nil
	}
	if m.cfg.Key == nil {
		return nil, fault.New(fault.BadState, "not_ready", "open memory", errors.New("palyrad opens no vault, and memory is sealed under a key of it")).
			WithHint("palyra vault init makes one; [vault] of palyrad's configuration names what opens it: docs/MEMORY.md")
	}
	k, err := m.cfg.Key(ctx, create)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.key != nil {
		k.Wipe()
		return m.key, nil
	}
	m.key = k
	return k, nil
}

// reading is open for who reads: nil without an error where nothing was ever stored.
func (m *Memory) reading(ctx context.Context) (*seal.Key, error) {
	k, err := m.open(ctx, false)
	if fault.KindOf(err) == fault.NotFound && m.cfg.Key != nil {
		if n, verr := store.View(ctx, m.cfg.Store, func(tx *store.Tx) (int64, error) { return tx.AllMemories() }); verr != nil || n == 0 {
			return nil, verr
		}
	}
	return k, err
}

// opened opens a row. v is the provider's vector, nil if it has none.
func opened(k *seal.Key, r *store.Memory) (out toolproto.Memory, v *near, err error) {
	s, err := seal.Open(k, contentOf(r), r.Sealed)
	if err != nil {
		return out, nil, err
	}
	defer s.Wipe()
	var c content
	if err := canon.Decode(s.Bytes(), &c, canon.Limits{}); err != nil || !c.whole() {
		return out, nil, fault.New(fault.Integrity, "store_corrupt", "read memory "+r.ID, errors.New("no content of version 1 or 2"))
	}
	out = described(r)
	out.Text, out.Tags, out.Confidence = c.Text, c.Tags, c.Confidence
	return out, storedNear(&c), nil
}

// described is an item without its content.
func described(r *store.Memory) toolproto.Memory {
	out := toolproto.Memory{ID: r.ID, Scope: r.Scope, Session: r.Session, Source: r.Source, Origins: r.Origins, Tags: []string{}, Created: r.Created, Digest: canon.Sum(r.Sealed)}
	if !r.Expires.IsZero() {
		e := r.Expires
		out.Expires = &e
	}
	return out
}

// visible reports whether an item answers in a session, at a time.
func visible(scope, of, session string, expires, now time.Time) bool {
	return (expires.IsZero() || now.Before(expires)) && (scope != store.MemoryOfSession || of == session)
}

// Draft implements tool.Memory.
func (m *Memory) Draft(ctx context.Context, who string, items []tool.NewMemory) (d tool.MemoryDraft, err error) {
	k, err := m.open(ctx, true)
	if err != nil {
		return d, err
	}
	rows := make([]store.Memory, len(items))
	for i := range items {
		if rows[i], err = m.draft(k, who, &items[i], embedded(ctx).of(i)); err != nil {
			return d, err
		}
		d.Items = append(d.Items, described(&rows[i]))
	}
	d.Sealed = rows
	return d, nil
}

func (m *Memory) draft(k *seal.Key, who string, n *tool.NewMemory, v *near) (r store.Memory, err error) {
	const op = "retain memory"
	bad := func(format string, args ...any) (store.Memory, error) {
		return r, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf(format, args...))
	}
	switch {
	case strings.TrimSpace(n.Text) == "" || !utf8.ValidString(n.Text):
		return bad("want a text in UTF-8")
	case len(n.Text) > toolproto.MaxMemory:
		return r, fault.New(fault.Usage, "too_large", op, fmt.Errorf("%d bytes, limit %d", len(n.Text), toolproto.MaxMemory))
	case len(n.Tags) > toolproto.MaxMemoryTags:
		return bad("%d tags, want at most %d", len(n.Tags), toolproto.MaxMemoryTags)
	case n.Confidence < 0 || n.Confidence > 100:
		return bad("a confidence of %d per cent", n.Confidence)
	case !slices.Contains(toolproto.Sources(), n.Source):
		return bad("source %.20q, want one of %s", n.Source, strings.Join(toolproto.Sources(), ", "))
	case n.Scope != store.MemoryOfPrincipal && (n.Scope != store.MemoryOfSession || n.Session == ""):
		return bad("scope %.20q, want principal, or session with a session", n.Scope)
	case len(n.Origins) == 0:
		return bad("it says no origin")
	}
	for _, t := range n.Tags {
		if err := toolproto.CheckTag(t); err != nil {
			return r, err
		}
	}
	for _, o := range n.Origins {
		if !slices.Contains(call.Origins(), o) {
			return bad("origin %.20q, want one of %s", o, strings.Join(call.Origins(), ", "))
		}
	}
	r = store.Memory{ID: ident.New(ident.Memory), Principal: who, Scope: n.Scope, Session: n.Session, Source: n.Source,
		Origins: slices.Compact(slices.Sorted(slices.Values(n.Origins))), Created: time.Now().UTC(), Expires: n.Expires.UTC()}
	if n.Expires.IsZero() {
		r.Expires = time.Time{}
		if n.Source == toolproto.SourceAgent {
			r.Expires = r.Created.Add(m.cfg.Expire)
		}
	} else if !r.Expires.After(r.Created) {
		return bad("it expires before it begins")
	}
	c := content{Version: 1, Text: n.Text, Tags: append([]string{}, n.Tags...), Confidence: n.Confidence}
	if v != nil {
		c.Version, c.Model, c.Vector = 2, v.model, v.stored()
	}
	text, err := canon.Marshal(c)
	if err != nil {
		return r, fault.New(fault.Internal, "internal", op, err)
	}
	defer clear(text)
	r.Sealed, err = seal.Seal(k, contentOf(&r), text)
	return r, err
}

// Keep implements tool.Memory.
func (m *Memory) Keep(ctx context.Context, who string, d tool.MemoryDraft) error {
	rows, ok := d.Sealed.([]store.Memory)
	if !ok {
		return fault.New(fault.Internal, "internal", "retain memory", errors.New("the draft isn't its own"))
	}
	// The index takes them in when it's asked next.
	return m.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		for i := range rows {
			if rows[i].Principal != who {
				return fault.New(fault.Internal, "internal", "retain memory", errors.New("the draft is another principal's"))
			}
		}
		return tx.AddMemories(rows, m.cfg.Bounds)
	})
}

// List implements tool.Memory.
func (m *Memory) List(ctx context.Context, who, session string, every bool, in *toolproto.MemoryListInput) (items []toolproto.Memory, next int64, err error) {
	k, err := m.reading(ctx)
	if err != nil || k == nil {
		return nil, 0, err
	}
	now := time.Now()
	shown := func(r *store.Memory) bool {
		return visible(r.Scope, r.Session, session, r.Expires, now) || every && visible("", "", "", r.Expires, now)
	}
	var rows []*store.Memory
	_, err = store.View(ctx, m.cfg.Store, func(tx *store.Tx) (any, error) {
		for _, id := range in.IDs {
			r, err := tx.Memory(who, id)
			if err == nil && !shown(r) {
				err = store.NoSuch("memory", id)
			}
			if err != nil {
				return nil, err
			}
			rows = append(rows, r)
		}
		if len(in.IDs) > 0 {
			return nil, nil
		}
		bytes := 0
		return nil, tx.MemoriesBefore(who, in.Before, func(r *store.Memory) bool {
			if !shown(r) {
				return true
			}
			if int64(len(rows)) == in.Limit || bytes > maxPage {
				next = rows[len(rows)-1].N
				return false
			}
			rows, bytes = append(rows, r), bytes+len(r.Sealed)
			return true
		})
	})
	if err != nil {
		return nil, 0, err
	}
	for _, r := range rows {
		it, _, err := opened(k, r)
		if err != nil {
			return nil, 0, err
		}
		items = append(items, it)
	}
	return items, next, nil
}

// maxPage is the bytes of sealed items from which on a page ends.
const maxPage = 1 << 20

// Choose implements tool.Memory.
func (m *Memory) Choose(ctx context.Context, who, session string, every bool, in *toolproto.MemoryForgetInput) (ids []string, err error) {
	const op = "forget memory"
	if _, err := m.reading(ctx); err != nil {
		return nil, err
	}
	ways := 0
	for _, w := range []bool{len(in.IDs) > 0, in.Origin != "", in.Session != "", in.All} {
		if w {
			ways++
		}
	}
	if ways != 1 {
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("want ids, an origin, a session, or all"))
	}
	if in.Origin != "" && !slices.Contains(call.Origins(), in.Origin) {
		return nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("origin %.20q, want one of %s", in.Origin, strings.Join(call.Origins(), ", ")))
	}
	now := time.Now()
	_, err = store.View(ctx, m.cfg.Store, func(tx *store.Tx) (any, error) {
		for _, id := range in.IDs {
			r, err := tx.Memory(who, id)
			if err == nil && !every && !visible(r.Scope, r.Session, session, r.Expires, now) {
				err = store.NoSuch("memory", id)
			}
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		if len(in.IDs) > 0 {
			return nil, nil
		}
		return nil, tx.Memories(who, 0, func(r *store.Memory) bool {
			if in.All || in.Session != "" && r.Session == in.Session || slices.Contains(r.Origins, in.Origin) {
				ids = append(ids, r.ID)
			}
			return true
		})
	})
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// ActForget is the act under which the journal has that items were forgotten.
const ActForget = "memory.forget"

// maxNamed is how many items an act names one by one.
const maxNamed = 16

// Forget implements tool.Memory. The journal has it first, by digests of the ids, so that none goes
// without a word; then the rows go, and what the database's files had of them.
func (m *Memory) Forget(ctx context.Context, who string, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	detail := map[string]string{"items": strconv.Itoa(len(ids))}
	if len(ids) <= maxNamed {
		var each []string
		for _, id := range ids {
			each = append(each, canon.Sum([]byte(id)).Hex())
		}
		detail["ids"] = strings.Join(each, " ")
	}
	ctx = context.WithoutCancel(ctx)
	if _, err := m.cfg.Record(ctx, kernel.Act{Act: ActForget, Principal: who, Subject: toolproto.MemorySet(ids).String(), Detail: detail}); err != nil {
		return err
	}
	for part := range slices.Chunk(ids, 256) {
		if err := m.cfg.Store.Update(ctx, func(tx *store.Tx) error {
			_, err := tx.RemoveMemories(who, part)
			return err
		}); err != nil {
			return err
		}
	}
	m.mu.Lock()
	delete(m.books, who) // it has words of theirs
	m.mu.Unlock()
	return m.cfg.Store.Forget(ctx)
}

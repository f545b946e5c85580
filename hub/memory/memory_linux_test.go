package memory

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/call"
	"palyra/crypt/seal"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/internal/toolproto"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// home is a Memory over a store.
type home struct {
	*Memory
	t    testing.TB
	dir  string
	st   *store.Store
	key  []byte
	acts []kernel.Act
}

func newHome(t testing.TB, cfg Config) *home {
	t.Helper()
	k := seal.NewKey()
	h := &home{t: t, dir: filepath.Join(t.TempDir(), "store"), key: slices.Clone(k.Bytes())}
	k.Wipe()
	h.open(cfg)
	return h
}

// open opens the store, again too, and a Memory that has read nothing.
func (h *home) open(cfg Config) {
	h.t.Helper()
	st, err := store.Open(h.dir, store.Options{})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { st.Close() })
	cfg.Store, h.st = st, st
	cfg.Key = func(context.Context, bool) (*seal.Key, error) { return seal.ParseKey(slices.Clone(h.key)) }
	cfg.Record = func(_ context.Context, a kernel.Act) (uint64, error) { h.acts = append(h.acts, a); return 0, nil }
	h.Memory = New(cfg)
}

func (h *home) keep(who string, items ...tool.NewMemory) (ids []string) {
	h.t.Helper()
	for i := range items {
		if n := &items[i]; n.Source == "" {
			n.Source, n.Scope, n.Origins, n.Confidence = toolproto.SourcePerson, store.MemoryOfPrincipal, []string{call.OriginPerson}, 100
		}
	}
	d, err := h.Draft(h.t.Context(), who, items)
	if err == nil {
		err = h.Keep(h.t.Context(), who, d)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	for _, it := range d.Items {
		ids = append(ids, it.ID)
	}
	return ids
}

func (h *home) search(who, session, query string) []toolproto.Memory {
	h.t.Helper()
	items, err := h.Search(h.t.Context(), who, session, query, &toolproto.MemorySearchInput{Limit: 64})
	if err != nil {
		h.t.Fatal(err)
	}
	return items
}

// TestPrincipals: whatever two principals do, in any order, each finds, lists and forgets exactly
// what they have, in their own sessions; ids of the other's are as unknown ones.
func TestPrincipals(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	h := newHome(t, Config{Index: 1}) // no index outlives the next principal's
	type item struct{ id, text, session string }
	who := []string{"uid:1", "uid:2"}
	has, sessions := map[string][]item{}, map[string][]string{}
	if err := h.st.Update(t.Context(), func(tx *store.Tx) error {
		for _, w := range who {
			for range 2 {
				s := &store.Session{Principal: w}
				if err := tx.CreateSession(s); err != nil {
					return err
				}
				sessions[w] = append(sessions[w], s.ID)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	words := strings.Fields("alder birch cedar elm fir hazel larch maple oak pine")
	visible := func(w, session string) (ids []string) {
		for _, it := range has[w] {
			if it.session == "" || it.session == session {
				ids = append(ids, it.id)
			}
		}
		slices.Sort(ids)
		return ids
	}
	idsOf := func(items []toolproto.Memory) (ids []string) {
		for _, it := range items {
			ids = append(ids, it.ID)
		}
		slices.Sort(ids)
		return ids
	}
	for n := range 400 {
		i := r.IntN(2)
		me, other := who[i], who[1-i]
		session := append(sessions[me], "")[r.IntN(3)]
		switch r.IntN(6) {
		case 0, 1:
			text := fmt.Sprintf("the tree %s %s of %s, number %d", words[r.IntN(len(words))], words[r.IntN(len(words))], me, n)
			one := tool.NewMemory{Text: text, Source: toolproto.SourceAgent, Scope: store.MemoryOfPrincipal, Session: session, Origins: []string{call.OriginModel}}
			of := ""
			if session != "" && r.IntN(2) == 0 {
				one.Scope, of = store.MemoryOfSession, session
			}
			has[me] = append(has[me], item{h.keep(me, one)[0], text, of})
			one.Session, one.Scope = sessions[other][0], store.MemoryOfSession
			d, err := h.Draft(t.Context(), me, []tool.NewMemory{one})
			if err == nil {
				err = h.Keep(t.Context(), me, d)
			}
			if fault.ReasonOf(err) != "no_such_session" {
				t.Fatalf("step %d: in a session of the other: %v", n, err)
			}
			if err := h.Keep(t.Context(), other, d); err == nil {
				t.Fatalf("step %d: a draft of the other was kept", n)
			}
		case 2:
			if got, want := idsOf(h.search(me, session, "tree")), visible(me, session); len(want) <= 64 && !slices.Equal(got, want) {
				t.Fatalf("step %d: %s in %q finds %v, has %v", n, me, session, got, want)
			}
		case 3:
			items, _, err := h.List(t.Context(), me, session, false, &toolproto.MemoryListInput{Limit: 256})
			if got, want := idsOf(items), visible(me, session); err != nil || len(want) <= 256 && !slices.Equal(got, want) {
				t.Fatalf("step %d: %s in %q lists %v, has %v, %v", n, me, session, got, want, err)
			}
		case 4:
			if len(has[other]) == 0 {
				continue
			}
			theirs := has[other][r.IntN(len(has[other]))].id
			if items, _, err := h.List(t.Context(), me, session, true, &toolproto.MemoryListInput{IDs: []string{theirs}, Limit: 9}); fault.KindOf(err) != fault.NotFound {
				t.Fatalf("step %d: %+v, %v", n, items, err)
			}
			if ids, err := h.Choose(t.Context(), me, session, true, &toolproto.MemoryForgetInput{IDs: []string{theirs}}); fault.KindOf(err) != fault.NotFound {
				t.Fatalf("step %d: %+v, %v", n, ids, err)
			}
			if ids, err := h.Choose(t.Context(), me, session, true, &toolproto.MemoryForgetInput{Session: sessions[other][0]}); err != nil || len(ids) != 0 {
				t.Fatalf("step %d: %+v, %v", n, ids, err)
			}
			if err := h.Forget(t.Context(), me, []string{theirs}); err != nil { // not chosen, and it's theirs
				t.Fatal(err)
			}
		case 5:
			in := &toolproto.MemoryForgetInput{All: true}
			switch n := len(has[me]); {
			case n == 0:
				continue
			case r.IntN(8) > 0:
				in = &toolproto.MemoryForgetInput{IDs: []string{has[me][r.IntN(n)].id}}
			}
			ids, err := h.Choose(t.Context(), me, session, true, in)
			if err == nil {
				err = h.Forget(t.Context(), me, ids)
			}
			if err != nil {
				t.Fatal(err)
			}
			has[me] = slices.DeleteFunc(has[me], func(it item) bool { return slices.Contains(ids, it.id) })
		}
	}
	if err := h.st.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSwapped: a row that was given to another principal, or another label, opens for no one.
func TestSwapped(t *testing.T) {
	h := newHome(t, Config{})
	h.keep("uid:1", tool.NewMemory{Text: "the safe is behind the picture", Source: toolproto.SourceAgent, Scope: store.MemoryOfPrincipal, Origins: []string{call.OriginModel, call.OriginWeb}})
	for _, change := range []string{"principal = 'uid:2'", "principal = 'uid:1', origins = 'person'", "origins = 'model,web', source = 'person'", "source = 'agent', expires = 0", "id = 'mem_" + strings.Repeat("1", 32) + "'"} {
		if err := h.st.Close(); err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("sqlite", filepath.Join(h.dir, "palyra.db"))
		if err != nil {
			t.Fatal(err)
		}
		var trigger string
		if err := db.QueryRow("SELECT sql FROM sqlite_schema WHERE name = 'memories_fixed'").Scan(&trigger); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"DROP TRIGGER memories_fixed", "UPDATE memories SET " + change, trigger} {
			if _, err := db.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
		db.Close()
		h.open(Config{})
		for _, who := range []string{"uid:1", "uid:2"} {
			n, _ := store.View(t.Context(), h.st, func(tx *store.Tx) (int64, error) { n, _, err := tx.MemoryUse(who); return n, err })
			items, err := h.Search(t.Context(), who, "", "safe behind", &toolproto.MemorySearchInput{Limit: 9})
			if n == 1 && fault.ReasonOf(err) != "store_corrupt" || len(items) != 0 {
				t.Errorf("%s: %s has %d, finds %+v, %v", change, who, n, items, err)
			}
		}
	}
}

// TestDraft: what isn't an item is refused before anything is stored.
func TestDraft(t *testing.T) {
	h := newHome(t, Config{})
	fine := tool.NewMemory{Text: "x", Source: toolproto.SourcePerson, Scope: store.MemoryOfPrincipal, Origins: []string{call.OriginPerson}}
	for name, change := range map[string]func(*tool.NewMemory){
		"no text":              func(n *tool.NewMemory) { n.Text = " \n" },
		"no UTF-8":             func(n *tool.NewMemory) { n.Text = "\xff" },
		"a long text":          func(n *tool.NewMemory) { n.Text = strings.Repeat("x", toolproto.MaxMemory+1) },
		"a tag of two words":   func(n *tool.NewMemory) { n.Tags = []string{"a b"} },
		"many tags":            func(n *tool.NewMemory) { n.Tags = slices.Repeat([]string{"a"}, 17) },
		"a source of its own":  func(n *tool.NewMemory) { n.Source = "owner" },
		"no origin":            func(n *tool.NewMemory) { n.Origins = nil },
		"an origin of its own": func(n *tool.NewMemory) { n.Origins = []string{"trusted"} },
		"no scope":             func(n *tool.NewMemory) { n.Scope = "" },
		"no session":           func(n *tool.NewMemory) { n.Scope = store.MemoryOfSession },
		"sure twice":           func(n *tool.NewMemory) { n.Confidence = 200 },
		"over already":         func(n *tool.NewMemory) { n.Expires = time.Now().Add(-time.Hour) },
	} {
		n := fine
		change(&n)
		if _, err := h.Draft(t.Context(), "uid:1", []tool.NewMemory{n}); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := fine
	full.Text = strings.Repeat("x", toolproto.MaxMemory)
	h.keep("uid:1", full)
}

// TestIndexes: within the bound the index that was used least goes, and answers are the same.
func TestIndexes(t *testing.T) {
	h := newHome(t, Config{Index: 60000})
	for i := range 4 {
		who := fmt.Sprint("uid:", i)
		for j := range 60 {
			h.keep(who, tool.NewMemory{Text: fmt.Sprintf("note %d of %s about apples", j, who)})
		}
	}
	for round := range 8 {
		who := fmt.Sprint("uid:", round%4)
		if got := h.search(who, "", "apples"); len(got) != 60 || !strings.Contains(got[0].Text, who) {
			t.Fatalf("%s finds %d", who, len(got))
		}
		total := int64(0)
		for _, b := range h.books {
			total += b.bytes
		}
		if total > 60000 && len(h.books) > 1 {
			t.Errorf("%d indexes take %d bytes", len(h.books), total)
		}
	}
	if len(h.books) == 4 {
		t.Error("all are there")
	}
	if id := h.keep("uid:0", tool.NewMemory{Text: "pears are new"})[0]; len(h.search("uid:0", "", "pears")) == 0 || h.search("uid:0", "", "pears")[0].ID != id {
		t.Error("what came last isn't found")
	}
	if err := ident.Check(ident.Memory, h.search("uid:0", "", "pears")[0].ID); err != nil {
		t.Error(err)
	}
}

// TestPurge: by an origin, by the session that items were made in, and all; the journal has which.
func TestPurge(t *testing.T) {
	h := newHome(t, Config{})
	s := &store.Session{Principal: "uid:1"}
	if err := h.st.Update(t.Context(), func(tx *store.Tx) error { return tx.CreateSession(s) }); err != nil {
		t.Fatal(err)
	}
	agents := func(text, session string, origins ...string) string {
		return h.keep("uid:1", tool.NewMemory{Text: text, Source: toolproto.SourceAgent, Scope: store.MemoryOfPrincipal, Session: session, Origins: origins})[0]
	}
	page, there, plain := agents("of a page", "", call.OriginModel, call.OriginWeb), agents("of a session", s.ID, call.OriginModel), agents("plain", "", call.OriginModel)
	theirs := h.keep("uid:2", tool.NewMemory{Text: "of another", Source: toolproto.SourceAgent, Scope: store.MemoryOfPrincipal, Origins: []string{call.OriginModel, call.OriginWeb}})[0]
	for _, tt := range []struct {
		in   toolproto.MemoryForgetInput
		want []string
	}{
		{toolproto.MemoryForgetInput{Origin: call.OriginWeb}, []string{page}},
		{toolproto.MemoryForgetInput{Session: s.ID}, []string{there}},
		{toolproto.MemoryForgetInput{All: true}, []string{plain}},
		{toolproto.MemoryForgetInput{All: true}, nil},
	} {
		ids, err := h.Choose(t.Context(), "uid:1", "", true, &tt.in)
		if err != nil || !slices.Equal(ids, tt.want) {
			t.Fatalf("%+v chooses %v, want %v, %v", tt.in, ids, tt.want, err)
		}
		before := len(h.acts)
		if err := h.Forget(t.Context(), "uid:1", ids); err != nil {
			t.Fatal(err)
		}
		if len(ids) == 0 {
			continue
		}
		if a := h.acts[before]; a.Act != ActForget || a.Principal != "uid:1" || a.Subject != toolproto.MemorySet(ids).String() || strings.Contains(fmt.Sprint(a), ids[0]) {
			t.Errorf("%+v", a)
		}
	}
	if got := h.search("uid:2", "", "another"); len(got) != 1 || got[0].ID != theirs {
		t.Errorf("%+v", got)
	}
	for _, in := range []toolproto.MemoryForgetInput{{}, {All: true, Origin: call.OriginWeb}, {Origin: "trusted"}} {
		if ids, err := h.Choose(t.Context(), "uid:1", "", true, &in); fault.KindOf(err) != fault.Usage {
			t.Errorf("%+v chooses %v, %v", in, ids, err)
		}
	}
}

// TestRecallOfOne: the documentation's first item is recalled for its first prompt, also where it is
// the only one, and not for another's.
func TestRecallOfOne(t *testing.T) {
	h := newHome(t, Config{})
	h.keep("uid:1", tool.NewMemory{Text: "Releases are built by make dist, on the build host alone.", Source: toolproto.SourcePerson, Origins: []string{"person"}, Confidence: 100, Scope: store.MemoryOfPrincipal})
	for prompt, want := range map[string]int{"how do we build a release?": 1, "how do we build a release of the project?": 1, "what time is it in Prague?": 0, "write a poem about cats": 0} {
		got, err := h.Search(t.Context(), "uid:1", "", prompt, &toolproto.MemorySearchInput{Limit: 3, Recall: true})
		if err != nil || len(got) != want {
			t.Errorf("%q: %d items, want %d: %+v, %v", prompt, len(got), want, got, err)
		}
	}
}

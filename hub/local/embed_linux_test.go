package local

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/agentloop/provider/wordhash"
	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/call"
	"palyra/hub"
	"palyra/hub/config"
	"palyra/hub/model"
	"palyra/hub/run"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/built"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// withVectors declares a model of turns and one of embeddings, both scripted. fetch is the program
// that asks them.
func withVectors(t *testing.T) (fetch string, declare func(*Config, *kernel.Config)) {
	t.Helper()
	dir := t.TempDir()
	if err := built.Into(dir, "palyra-fetch"); err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("palyrad.toml", []byte("[models.tests]\nprovider = \"scripted\"\n[models.hashes]\nprovider = \"scripted\"\nkind = \"embeddings\"\n"), []string{"HOME=/home/alice"})
	if err != nil {
		t.Fatal(err)
	}
	fetch = filepath.Join(dir, "palyra-fetch")
	return fetch, func(lc *Config, kc *kernel.Config) {
		if lc.Models, err = model.New(model.Config{Tools: kc.Tools, Models: c.Models, Fetch: fetch, Egress: true, Workspaces: []string{"src"}}); err != nil {
			t.Fatal(err)
		}
		kc.Tools = lc.Models
	}
}

// TestModelEmbeds: a member has the vectors of texts made in a cell, unasked, with a receipt; and
// no agent's run asks such a model.
func TestModelEmbeds(t *testing.T) {
	_, declare := withVectors(t)
	h := newHouse(t, declare)
	op := h.member(2001, access.Operator)
	if m := h.models(op)["hashes"]; m.Kind != hub.ModelEmbeddings || m.Reason != "" || m.Default {
		t.Errorf("%+v", m)
	}
	r := h.call(op, hub.Step{Tool: turn.Tool, Input: json.RawMessage(`{"model":"hashes","request":{"embed":{"input":["hello there","tea"]}}}`)})
	a := h.said(op, r)
	if len(a.Vectors) != 2 || len(a.Vectors[0]) != 4*wordhash.Dimensions || slices.Equal(a.Vectors[0], a.Vectors[1]) || a.Usage.Input != 3 {
		t.Errorf("%+v", a)
	}
	p := h.verify(r.Steps[0]).Statement.Predicate
	if p.Tool != turn.Tool || p.Capsule.Stdin.Size == 0 || !strings.HasSuffix(strings.Join(p.Capsule.Argv, " "), "palyra-fetch model.turn scripted - hashes") {
		t.Errorf("the receipt has %+v", p.Capsule)
	}
	if r := h.call(op, hub.Step{Tool: turn.Tool, Input: json.RawMessage(`{"model":"tests","request":{"embed":{"input":["a"]}}}`)}); r.Reason != "invalid_input" {
		t.Errorf("a model of turns: %+v", r)
	}
	s, err := hub.CreateSession.Do(t.Context(), h, op, hub.NewSession{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.StartRun.Do(t.Context(), h, op, hub.NewRun{Session: s.ID, Agent: &hub.Agent{Prompt: "hello", Model: "hashes"}}); err == nil || !strings.Contains(err.Error(), "makes embeddings") {
		t.Errorf("an agent asks it: %v", err)
	}
}

// remembersNear is a house whose memory compares by the vectors of a scripted model. It has one
// place for runs, so that no call may keep it while vectors are made.
func remembersNear(t *testing.T, more func(*Config, *kernel.Config)) (h *memoryHouse, heard *tap, fetch string) {
	heard = new(tap)
	fetch, declare := withVectors(t)
	return newMemoryHouse(t, store.MemoryBounds{}, func(c *Config, k *kernel.Config) {
		declare(c, k)
		c.Embeddings, c.Bounds = "hashes", session.Bounds{Active: 1}
		heard.Tools, k.Tools = k.Tools, heard
		if more != nil {
			more(c, k)
		}
	}), heard, fetch
}

const ofHashes = "scripted/hashes"

// by are the vectors by which each item of a search was compared.
func by(items []hub.MemoryItem) (names []string) {
	for i := range items {
		names = append(names, items[i].Score.Embedding)
	}
	return names
}

// TestMemoryEmbedded: what a person stores and looks for is embedded by a call of its own, with a
// receipt and without a tape that has the vector; the vector is sealed, outlives a restart, and is
// gone with its item; an agent's calls do the same, and so does the recall at a run's begin.
func TestMemoryEmbedded(t *testing.T) {
	h, heard, _ := remembersNear(t, nil)
	op := h.member(2001, access.Operator)
	if s := h.did(request(h.house, hub.SearchMemory, op, hub.MemorySearch{Query: "staging"})); len(s.Items) != 0 || heard.last() != "" {
		t.Errorf("with nothing to compare: %+v, asked %s", s.Items, heard.last())
	}
	id := h.add(op, secretive, "hosts")
	const text = secretive + "\nhosts"
	if want := `{"embed":{"input":["` + strings.ReplaceAll(text, "\n", `\n`) + `"]}}`; heard.last() != want {
		t.Errorf("asked %s, want %s", heard.last(), want)
	}
	p, err := hub.ListRuns.Do(t.Context(), h, op, hub.RunQuery{})
	if err != nil {
		t.Fatal(err)
	}
	turns := 0
	for _, r := range p.Items {
		if r, err = hub.GetRun.Do(t.Context(), h, op, r.ID); err != nil || len(r.Steps) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		if s := r.Steps[0]; s.Tool == turn.Tool {
			turns++
			if v := h.verify(s); s.Outcome != "executed" || s.Exit != 0 || s.Stdout.Size != 0 || v.Statement.Predicate.Capsule.Stdin.Size == 0 || v.Statement.Predicate.Principal == "" {
				t.Errorf("%+v", s)
			}
		}
	}
	if turns != 1 {
		t.Errorf("%d runs asked the model", turns)
	}
	numbers := make([]float32, wordhash.Dimensions)
	for i, x := range wordhash.Vector(wordhash.Words(text), wordhash.Dimensions) {
		numbers[i] = float32(x)
	}
	vector := base64.StdEncoding.EncodeToString(turn.NewVector(numbers))[:60]
	const query = "which host is staging?"
	for range 2 {
		r := h.did(request(h.house, hub.SearchMemory, op, hub.MemorySearch{Query: query}))
		if len(r.Items) != 1 || r.Items[0].ID != id || !slices.Equal(by(r.Items), []string{ofHashes}) || r.Items[0].Score.Vector == 0 || !strings.Contains(heard.last(), query) {
			t.Errorf("%+v, by %q, asked %s", r.Items, by(r.Items), heard.last())
		}
		for _, s := range []string{vector, "Brontosaurus", query} {
			if in := h.files(s); len(in) != 0 {
				t.Errorf("%q stands in %v", s, in)
			}
		}
		h.stop()
		h.reopen(h.remembers)
		op = h.peer(2001)
	}
	if s, err := request(h.house, hub.GetMemory, op, hub.None{}); err != nil || s.Embedding != ofHashes {
		t.Errorf("%+v, %v", s, err)
	}

	said := func(r *hub.StepResult) (m toolproto.MemoryResult) {
		t.Helper()
		if r.Outcome != "executed" || json.Unmarshal([]byte(r.Stdout.Text), &m) != nil {
			t.Fatalf("%+v", r)
		}
		return m
	}
	r := h.agent(op, h.session(op), "what is the staging host called?")
	if m := said(&r.Steps[0]); r.Steps[0].Tool != toolproto.MemorySearch || len(m.Items) != 1 || m.Items[0].Score.Embedding != ofHashes {
		t.Errorf("recalled %+v", m.Items)
	}
	if p, err = hub.ListRuns.Do(t.Context(), h, op, hub.RunQuery{}); err != nil {
		t.Fatal(err)
	}
	read := false // that call was decided with what the session had read
	for _, r := range p.Items {
		if r, err = hub.GetRun.Do(t.Context(), h, op, r.ID); err == nil && len(r.Steps) == 1 && r.Steps[0].Tool == turn.Tool {
			read = read || slices.Contains(h.verify(r.Steps[0]).Statement.Predicate.Question.Inputs, call.OriginPerson)
		}
	}
	if !read {
		t.Error("no question for vectors has the session's label")
	}
	r = h.call(op, step("memory.retain", obj{"text": "Gulls nest on the roof.", "tags": []string{"birds"}}))
	if said(&r.Steps[0]); !strings.Contains(heard.last(), `Gulls nest on the roof.\nbirds`) {
		t.Errorf("asked %s", heard.last())
	}
	r = h.call(op, step("memory.search", obj{"query": "gull nests"}))
	if m := said(&r.Steps[0]); len(m.Items) == 0 || m.Items[0].Text != "Gulls nest on the roof." || m.Items[0].Score.Embedding != ofHashes {
		t.Errorf("%+v", m.Items)
	}
	if x, err := hub.ExplainPolicy.Do(t.Context(), h, op, hub.NewCall{Tool: "memory.search", Input: json.RawMessage(`{"query":"only asked about"}`)}); err != nil || strings.Contains(heard.last(), "only asked") {
		t.Errorf("%+v, %v: asked %s", x, err, heard.last())
	}
	if got := h.did(request(h.house, hub.SearchMemory, h.member(2002, access.Operator), hub.MemorySearch{Query: query})); len(got.Items) != 0 {
		t.Errorf("another principal finds %+v", got.Items)
	}

	row, err := store.View(t.Context(), h.st, func(tx *store.Tx) (*store.Memory, error) { return tx.Memory(op.User, id) })
	if err != nil {
		t.Fatal(err)
	}
	middle := string(row.Sealed[len(row.Sealed)/2:][:40])
	if len(h.files(middle)) == 0 {
		t.Fatal("its sealed bytes aren't found while it's there")
	}
	h.did(request(h.house, hub.ForgetMemory, op, hub.MemoryForget{All: true}))
	if in := append(h.files(middle), h.files(vector)...); len(in) != 0 {
		t.Errorf("what is forgotten stands in %v", in)
	}
	// The control: where a caller asks for vectors, they are on the tape.
	b, err := json.Marshal(map[string]any{"model": "hashes", "request": turn.Request{Embed: &turn.Embed{Input: []string{text}}}})
	if err != nil {
		t.Fatal(err)
	}
	if h.call(op, hub.Step{Tool: turn.Tool, Input: b}); len(h.files(vector)) == 0 {
		t.Error("a vector isn't found where it stands")
	}
}

// TestVectorsOfImport: where imported items come from is in the label of the call that asks for
// their vectors.
func TestVectorsOfImport(t *testing.T) {
	h, heard, _ := remembersNear(t, nil)
	op := h.member(2001, access.Operator)
	for text, origins := range map[string][]string{"Wolves howl.": nil, "Foxes bark.": {call.OriginWeb}} {
		h.did(request(h.house, hub.AddMemory, op, hub.MemoryAdd{Import: true, Items: []hub.NewMemoryItem{{Text: text, Origins: origins}}}))
		if !strings.Contains(heard.last(), text) {
			t.Errorf("asked %s", heard.last())
		}
		p, err := hub.ListRuns.Do(t.Context(), h, op, hub.RunQuery{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range p.Items { // the newest comes first
			if r, err = hub.GetRun.Do(t.Context(), h, op, r.ID); err != nil {
				t.Fatal(err)
			}
			if len(r.Steps) == 1 && r.Steps[0].Tool == turn.Tool {
				got = h.verify(r.Steps[0]).Statement.Predicate.Question.Inputs
				break
			}
		}
		want := append([]string{call.OriginPerson}, origins...)
		if !slices.Equal(got, want) {
			t.Errorf("%s was asked about with %q", text, got)
		}
	}
}

// TestVectorsAreCounted: the tokens of a caller's vectors, and of those that memory has made, are
// counted as the provider says, by principal and day, and by the session of the call that needed
// them. With its budget taken none is asked for, which the call is told by name.
func TestVectorsAreCounted(t *testing.T) {
	h, heard, _ := remembersNear(t, func(c *Config, _ *kernel.Config) { c.Agent.SessionTokens, c.Agent.DayTokens = 9, 20_000 })
	op := h.member(2001, access.Operator)
	took := func(q hub.UsageQuery, model string, turns, tokens int64) {
		t.Helper()
		u := h.usage(op, q)
		for _, it := range u.Items {
			if it.Model == model {
				if it.Took != (hub.UsageCount{Turns: turns, AgentUsage: hub.AgentUsage{Input: tokens}}) {
					t.Errorf("%+v", it)
				}
				return
			}
		}
		t.Errorf("nothing of %s: %+v", model, u.Items)
	}
	call := hub.Step{Tool: turn.Tool, Input: json.RawMessage(`{"model":"hashes","request":{"embed":{"input":["hello there","tea"]}}}`)}
	h.call(op, call)
	took(hub.UsageQuery{}, "hashes", 1, 3)
	h.add(op, secretive, "hosts") // seven words
	took(hub.UsageQuery{}, "hashes", 2, 10)
	session := h.session(op)
	r := h.agent(op, session, "which host is staging?")
	if r.Steps[0].Tool != toolproto.MemorySearch || !strings.Contains(r.Steps[0].Stdout.Text, ofHashes) {
		t.Errorf("%+v", r.Steps[0])
	}
	took(hub.UsageQuery{}, "hashes", 3, 14)
	took(hub.UsageQuery{Session: session}, "hashes", 1, 4)
	search := func(session, want string) {
		t.Helper()
		asked := heard.count()
		r := h.did(request(h.house, hub.SearchMemory, op, hub.MemorySearch{Session: session, Query: "the staging"}))
		if got := by(r.Items); !slices.Equal(got, []string{want}) || (heard.count() > asked) != (want == ofHashes) {
			t.Errorf("by %q, want %s; %d questions", got, want, heard.count()-asked)
		}
	}
	const over = "hash-embedding-v1: " + run.ReasonTokens
	search(session, over) // the agent's turn and its recall have taken as much
	other := h.session(op)
	for range 5 {
		search(other, ofHashes)
	}
	search(other, over)
	took(hub.UsageQuery{Session: other}, "hashes", 5, 10)
	search("", ofHashes)
	h.call(op, hub.Step{Tool: turn.Tool, Input: json.RawMessage(`{"model":"hashes","request":{"embed":{"input":["` + strings.Repeat("tea ", 20_000) + `"]}}}`)})
	search("", over)
	search(h.session(op), over)
	if r := h.call(op, call); r.Reason != run.ReasonTokens {
		t.Errorf("%+v", r)
	}
	if r := h.call(op, step("memory.search", obj{"query": "staging"})); !strings.Contains(r.Steps[0].Stdout.Text, over) {
		t.Errorf("%+v", r.Steps[0])
	}
}

// TestMemoryWithoutVectors: where the provider is silent or policy refuses, and for a text with a
// secret, memory works by words and hashes, and a search says why.
func TestMemoryWithoutVectors(t *testing.T) {
	dir := t.TempDir()
	copyPolicies(t, dir)
	h, heard, fetch := remembersNear(t, func(c *Config, k *kernel.Config) { k.PolicyDir, c.PolicyDir = dir, dir })
	op := h.member(2001, access.Operator)
	h.add(op, secretive)
	asked := heard.last()
	const secret = "The staging database has password=kX9vQ2mL7wRt4zNb"
	h.add(op, secret)
	if heard.last() != asked {
		t.Errorf("a secret left: %s", heard.last())
	}
	const key = "glpat-" + "kX9vQ2mL7wRt4zNbAb12"
	h.add(h.member(2002, access.Operator), strings.Repeat("a ", (maxEmbedded-len(key)/2)/2)+key)
	if heard.last() != asked {
		t.Error("half of a secret left, of a long text")
	}
	search := func(query string) (out []string) {
		t.Helper()
		r := h.did(request(h.house, hub.SearchMemory, op, hub.MemorySearch{Query: query}))
		for i := range r.Items {
			out = append(out, r.Items[i].Text+" ["+r.Items[i].Score.Embedding+"]")
		}
		slices.Sort(out)
		return out
	}
	both := func(first, second string) []string {
		return []string{secret + " [" + first + "]", secretive + " [" + second + "]"}
	}
	if got, want := search("staging"), both("hash-embedding-v1: no vector of "+ofHashes, ofHashes); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := search("staging password=kX9vQ2mL7wRt4zNb")[0], "[hash-embedding-v1: secret_in_call]"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	why := "hash-embedding-v1: " + embedSilent
	silent := filepath.Join(filepath.Dir(fetch), "silent")
	if err := os.WriteFile(silent+".go", []byte("package main\n\nimport \"time\"\n\nfunc main() { time.Sleep(time.Hour) }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", silent, silent+".go") // this process mustn't have a program open for writing
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := errors.Join(os.Rename(fetch, fetch+".good"), os.Rename(silent, fetch)); err != nil {
		t.Fatal(err)
	}
	asked = heard.last()
	begun := time.Now()
	r := h.call(op, step("memory.search", obj{"query": "what is the staging host called?", "recall": true}))
	if out := r.Steps[0].Stdout.Text; r.Steps[0].Outcome != "executed" || !strings.Contains(out, "Brontosaurus") || !strings.Contains(out, why) || heard.last() == asked {
		t.Errorf("%+v, asked %s", r.Steps[0], heard.last())
	}
	if took := time.Since(begun); took < embedRecall || took > embedWait {
		t.Errorf("a run's begin waits %v", took)
	}
	asked = heard.last()
	if got, want := search("staging"), both(why, why); !slices.Equal(got, want) || heard.last() != asked {
		t.Errorf("a provider that was silent is asked: got %q, want %q", got, want)
	}
	if err := os.Rename(fetch+".good", fetch); err != nil {
		t.Fatal(err)
	}
	if got := h.embedder.why("uid:2002"); got != "" {
		t.Errorf("another principal does without, too: %s", got)
	}
	h.embedder.rests = nil
	no := `@id("no_vectors") @untested("here") forbid (principal, action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"model.turn");`
	if err := os.WriteFile(filepath.Join(dir, "90-no.cedar"), []byte(no), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "23-models.test.json")); err != nil {
		t.Fatal(err)
	}
	if err := h.k.Reload(); err != nil {
		t.Fatal(err)
	}
	why = "hash-embedding-v1: forbidden"
	if got, want := search("staging"), both(why, why); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if id := h.add(op, "Gulls nest on the roof."); id == "" {
		t.Error("nothing is remembered")
	}
}

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/authz/policy"
	"palyra/call"
	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/hub"
	"palyra/hub/memory"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// memoryHouse is a house that remembers: with a vault, and the tools for memory.
type memoryHouse struct {
	*house
	id   seal.Identity
	most store.MemoryBounds
	more func(*Config, *kernel.Config)
}

func newMemoryHouse(t *testing.T, most store.MemoryBounds, more func(*Config, *kernel.Config)) *memoryHouse {
	t.Helper()
	id, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	h := &memoryHouse{house: &house{t: t, base: t.TempDir()}, id: id, most: most, more: more}
	if err := os.Mkdir(h.work(), 0o755); err != nil {
		t.Fatal(err)
	}
	h.reopen(h.remembers)
	return h
}

func (h *memoryHouse) remembers(c *Config, k *kernel.Config) {
	h.t.Helper()
	dir := filepath.Join(k.StateDir, "vault")
	if !vault.Exists(dir) {
		first, err := kernel.Open(h.t.Context(), kernel.Config{StateDir: k.StateDir})
		if err != nil {
			h.t.Fatal(err)
		}
		pub, err := h.id.(*seal.IdentityKey).Recipient("owner")
		if err != nil {
			h.t.Fatal(err)
		}
		v, err := vault.Create(h.t.Context(), dir, first.VaultLedger(), h.id, pub)
		if err != nil {
			h.t.Fatal(err)
		}
		v.Close()
		first.Close()
	}
	var err error
	if c.Store, err = store.Open(filepath.Join(h.base, "store"), store.Options{TestOnlyStep: c.TestOnlyStep}); err != nil {
		h.t.Fatal(err)
	}
	c.Memory = h.most
	m := memory.New(memory.Config{Store: c.Store, Bounds: h.most,
		Record: func(ctx context.Context, a kernel.Act) (uint64, error) { return c.Kernel.Record(ctx, a) }, // open makes it before the hub
		Key: func(ctx context.Context, create bool) (*seal.Key, error) {
			v, err := vault.Open(ctx, dir, c.Kernel.VaultLedger(), h.id)
			if err != nil {
				return nil, err
			}
			defer v.Close()
			return v.OwnKey(ctx, memory.OwnKey, create)
		}})
	table := tool.New(tool.Config{Program: filepath.Join(bin(h.t), "palyra-tool"), Workspaces: map[string]tool.Workspace{"src": {Path: h.work()}}, Memory: m})
	k.Tools = table
	c.Tools = func() (out []hub.Tool) {
		for _, i := range table.List() {
			out = append(out, hub.Tool{Name: i.Name, Description: i.Description, InputSchema: i.InputSchema})
		}
		return out
	}
	if h.more != nil {
		h.more(c, k)
	}
}

// did fails unless the one step of a result was executed.
func (h *memoryHouse) did(r hub.MemoryResult, err error) hub.MemoryResult {
	h.t.Helper()
	if err != nil || len(r.Run.Steps) != 1 || r.Run.Steps[0].Outcome != "executed" || r.Run.Steps[0].Exit != 0 {
		h.t.Fatalf("%+v, %v", r.Run, err)
	}
	return r
}

// add has a person's text remembered, and returns its id.
func (h *memoryHouse) add(c hub.Caller, text string, tags ...string) string {
	h.t.Helper()
	r := h.did(request(h.house, hub.AddMemory, c, hub.MemoryAdd{Items: []hub.NewMemoryItem{{Text: text, Tags: tags}}}))
	if len(r.Items) != 1 || r.Count != 1 {
		h.t.Fatalf("%+v", r)
	}
	return r.Items[0].ID
}

// found returns the texts that a search of a command finds.
func (h *memoryHouse) found(c hub.Caller, query string) (texts []string) {
	h.t.Helper()
	for _, it := range h.did(request(h.house, hub.SearchMemory, c, hub.MemorySearch{Query: query})).Items {
		texts = append(texts, it.Text)
	}
	return texts
}

// files returns what the files below the state directory and the store hold of a text.
func (h *memoryHouse) files(text string) (in []string) {
	h.t.Helper()
	err := filepath.WalkDir(h.base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			in = append(in, path)
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return in
}

const secretive = "The staging host is called Brontosaurus."

// TestMemory: what a person had remembered is found by words after a restart, each act is a call
// with a receipt, and no file has a word of it.
func TestMemory(t *testing.T) {
	h := newMemoryHouse(t, store.MemoryBounds{Items: 3}, nil)
	op := h.member(2001, access.Operator)
	if got := h.found(op, "staging host"); len(got) != 0 {
		t.Fatalf("before anything is remembered: %q", got)
	}
	id := h.add(op, secretive, "hosts")
	h.add(op, "Releases are built by make dist.")
	for range 2 {
		r := h.did(request(h.house, hub.SearchMemory, op, hub.MemorySearch{Query: "which host is staging?"}))
		if len(r.Items) == 0 || r.Items[0].Text != secretive || r.Items[0].ID != id {
			t.Fatalf("%+v", r.Items)
		}
		it := r.Items[0]
		if it.Source != "person" || !slices.Equal(it.Origins, []string{call.OriginPerson}) || !slices.Equal(it.Tags, []string{"hosts"}) || it.Expires != nil || it.Confidence != 100 ||
			it.Score == nil || it.Score.Total != it.Score.Lexical+it.Score.Vector+it.Score.Recency+it.Score.Quality || it.Score.Lexical == 0 {
			t.Errorf("%+v %+v", it, it.Score)
		}
		v := h.verify(r.Run.Steps[0])
		if args := v.Statement.Predicate.Capsule.Argv; !slices.Contains(args, "origins=person") || strings.Contains(strings.Join(args, " "), "staging") {
			t.Errorf("the receipt has %q", args)
		}
		h.stop()
		h.reopen(h.remembers)
		op = h.peer(2001)
	}
	if r := h.did(request(h.house, hub.ListMemory, op, hub.MemoryQuery{})); len(r.Items) != 2 || r.Items[1].ID != id || r.Next != 0 {
		t.Errorf("%+v", r)
	}
	if r := h.did(request(h.house, hub.ListMemory, op, hub.MemoryQuery{IDs: []string{id}})); len(r.Items) != 1 || r.Items[0].Text != secretive {
		t.Errorf("%+v", r)
	}
	h.add(op, "three")
	if r, err := request(h.house, hub.AddMemory, op, hub.MemoryAdd{Items: []hub.NewMemoryItem{{Text: "four"}}}); err != nil || r.Run.Steps[0].Reason != "quota" || r.Count != 0 {
		t.Errorf("beyond the bound: %+v, %v", r.Run.Steps, err)
	}
	if s, err := request(h.house, hub.GetMemory, op, hub.None{}); err != nil || s.Items != 3 || s.MaxItems != 3 || s.Bytes == 0 || s.Embedding != memory.Embedding {
		t.Errorf("%+v, %v", s, err)
	}
	for _, word := range []string{"Brontosaurus", "make dist", "staging?"} {
		if in := h.files(word); len(in) != 0 {
			t.Errorf("%q stands in %v", word, in)
		}
	}
}

// TestMemoryForget: what is forgotten leaves its digest in the journal, and no byte in the store.
func TestMemoryForget(t *testing.T) {
	h := newMemoryHouse(t, store.MemoryBounds{}, nil)
	op := h.member(2001, access.Operator)
	id := h.add(op, secretive)
	left := h.add(op, "Releases are built by make dist.")
	row, err := store.View(t.Context(), h.st, func(tx *store.Tx) (*store.Memory, error) { return tx.Memory(op.User, id) })
	if err != nil {
		t.Fatal(err)
	}
	sealed := string(row.Sealed[20:60])
	if len(h.files(sealed)) == 0 {
		t.Fatal("its sealed bytes aren't found while it's there")
	}
	if r := h.did(request(h.house, hub.ForgetMemory, op, hub.MemoryForget{IDs: []string{id}})); r.Count != 1 {
		t.Errorf("%+v", r)
	}
	if in := h.files(sealed); len(in) != 0 {
		t.Errorf("its sealed bytes stand in %v", in)
	}
	if r, err := request(h.house, hub.ListMemory, op, hub.MemoryQuery{IDs: []string{id}}); err != nil || r.Run.Steps[0].Reason != "not_found" {
		t.Errorf("%+v, %v", r.Run.Steps, err)
	}
	if got := h.found(op, "staging host"); slices.Contains(got, secretive) {
		t.Errorf("found %q", got)
	}
	if got, want := h.acts(memory.ActForget), []string{memory.ActForget + " " + digestOf([]byte(id+"\n"))}; !slices.Equal(got, want) {
		t.Errorf("the journal has %q, want %q", got, want)
	}
	if r := h.did(request(h.house, hub.ForgetMemory, op, hub.MemoryForget{All: true})); r.Count != 1 {
		t.Errorf("%+v", r)
	}
	if r := h.did(request(h.house, hub.ListMemory, op, hub.MemoryQuery{})); len(r.Items) != 0 {
		t.Errorf("%+v", r)
	}
	if r, err := request(h.house, hub.ForgetMemory, op, hub.MemoryForget{IDs: []string{left}, All: true}); err != nil || r.Run.Steps[0].Reason != "invalid_input" {
		t.Errorf("two ways at once: %+v, %v", r.Run.Steps, err)
	}
}

// TestMemoryTools: an agent's items are the model's, keep what its session had read, and expire; a
// search brings their origins into the session that reads them; and a person is asked before an
// agent forgets.
func TestMemoryTools(t *testing.T) {
	h := newMemoryHouse(t, store.MemoryBounds{}, nil)
	op := h.member(2001, access.Operator)
	in := func(session string, s hub.Step) hub.Run {
		t.Helper()
		r, err := hub.StartRun.Do(t.Context(), h, op, hub.NewRun{Session: session, Steps: []hub.Step{s}})
		if err != nil {
			t.Fatal(err)
		}
		return h.ended(op, r.ID)
	}
	result := func(r hub.Run) (m toolproto.MemoryResult) {
		t.Helper()
		if len(r.Steps) != 1 || r.Steps[0].Outcome != "executed" || json.Unmarshal([]byte(r.Steps[0].Stdout.Text), &m) != nil {
			t.Fatalf("%+v", r)
		}
		return m
	}
	first := h.session(op)
	if err := h.st.Update(t.Context(), func(tx *store.Tx) error {
		return tx.JoinInputs(first, op.User, call.Input{Origin: call.OriginWeb, Tool: "http.fetch"})
	}); err != nil {
		t.Fatal(err)
	}
	kept := result(in(first, step("memory.retain", obj{"text": "The docs say that the flag is --fast.", "tags": []string{"flags"}})))
	if len(kept.Items) != 1 || kept.Items[0].Source != "agent" || !slices.Equal(kept.Items[0].Origins, []string{call.OriginModel, call.OriginWeb}) || kept.Items[0].Expires == nil {
		t.Fatalf("%+v", kept.Items)
	}
	only := result(in(first, step("memory.retain", obj{"text": "The flag of this session is --slow.", "scope": "session"})))

	second := h.session(op)
	r := result(in(second, step("memory.search", obj{"query": "which flag is it?"})))
	if len(r.Items) != 1 || r.Items[0].ID != kept.Items[0].ID || r.Items[0].Text == "" {
		t.Errorf("%+v", r.Items)
	}
	if s, err := hub.GetSession.Do(t.Context(), h, op, second); err != nil || !s.Inputs.Has(call.OriginMemory, call.OriginModel, call.OriginWeb) || !s.Inputs.Has(call.OriginWeb) {
		t.Errorf("the label is %+v, %v", s.Inputs, err)
	}
	if r := result(in(first, step("memory.search", obj{"query": "which flag is it?"}))); len(r.Items) != 2 {
		t.Errorf("in its own session: %+v", r.Items)
	}
	for name, input := range map[string]obj{
		"a source":    {"text": "x", "source": "person"},
		"an origin":   {"text": "x", "origins": []string{"person"}},
		"everything":  {"all": true},
		"no text":     {},
		"a principal": {"text": "x", "principal": "uid:1"},
	} {
		tool := "memory.retain"
		if name == "everything" {
			tool = "memory.forget"
		}
		if r := in(first, step(tool, input)); len(r.Steps) != 1 || r.Steps[0].Reason != "invalid_input" && r.Steps[0].Reason != "unknown_field" {
			t.Errorf("%s: %+v", name, r.Steps)
		}
	}
	if r := in(second, step("memory.forget", obj{"ids": []string{only.Items[0].ID}})); r.Steps[0].Reason != "not_found" {
		t.Errorf("another session's item: %+v", r.Steps[0])
	}
	run, err := hub.StartRun.Do(t.Context(), h, op, hub.NewRun{Session: second, Steps: []hub.Step{step("memory.forget", obj{"ids": []string{kept.Items[0].ID}})}})
	if err != nil {
		t.Fatal(err)
	}
	h.until(op, run.ID, hub.EventRunWaitingApproval)
	q := h.question(h.owner)
	if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Answer: hub.Answer{Approve: true}}); err != nil {
		t.Fatal(err)
	}
	if r := h.ended(op, run.ID); r.Steps[0].Outcome != "executed" {
		t.Errorf("%+v", r.Steps[0])
	}
	if r := h.did(request(h.house, hub.ListMemory, op, hub.MemoryQuery{})); len(r.Items) != 1 || r.Items[0].ID != only.Items[0].ID {
		t.Errorf("%+v", r.Items)
	}
}

// TestMemoryLocked: without a vault memory is refused by name, with what to do.
func TestMemoryLocked(t *testing.T) {
	h := newHouse(t, func(c *Config, k *kernel.Config) {
		st, err := store.Open(filepath.Join(filepath.Dir(k.StateDir), "store"), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c.Store = st
		k.Tools = tool.New(tool.Config{Program: filepath.Join(bin(t), "palyra-tool"), Memory: memory.New(memory.Config{Store: st})})
	})
	r, err := request(h, hub.AddMemory, h.owner, hub.MemoryAdd{Items: []hub.NewMemoryItem{{Text: "x"}}})
	if err != nil || len(r.Run.Steps) != 1 || r.Run.Steps[0].Reason != "not_ready" || !strings.Contains(r.Run.Steps[0].Hint, "vault") {
		t.Errorf("%+v, %v", r.Run.Steps, err)
	}
	if _, err := request(h, hub.SearchMemory, h.owner, hub.MemorySearch{Query: "x", Of: "ses_" + strings.Repeat("0", 32)}); fault.ReasonOf(err) != "no_such_session" {
		t.Errorf("%v", err)
	}
}

// tap is a table of tools that keeps what models are asked.
type tap struct {
	kernel.Tools
	mu    sync.Mutex
	asked []string // guarded by mu
}

func (p *tap) Expand(ctx context.Context, who policy.Entity, name string, input []byte) (*kernel.Expansion, error) {
	x, err := p.Tools.Expand(ctx, who, name, input)
	if err == nil && name == turn.Tool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked = append(p.asked, string(x.Stdin))
	}
	return x, err
}

// count returns how many questions there were.
func (p *tap) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

// last returns the last question.
func (p *tap) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) == 0 {
		return ""
	}
	return p.asked[len(p.asked)-1]
}

// TestMemoryRecall: an agent's run begins with what a person had remembered and with nothing that an
// agent wrote, by a step with a receipt; its session has read it; later runs of the session, also
// after a restart, are told it as it was; and where a policy forbids it the run begins without.
func TestMemoryRecall(t *testing.T) {
	heard, dir := new(tap), t.TempDir()
	copyPolicies(t, dir)
	h := newMemoryHouse(t, store.MemoryBounds{}, func(c *Config, k *kernel.Config) {
		withScript(t, says("I see."), says("I still see."))(c, k)
		heard.Tools, k.PolicyDir, c.PolicyDir = k.Tools, dir, dir
		k.Tools = heard
	})
	op := h.member(2001, access.Operator)
	if r := h.agent(op, h.session(op), "what is the staging host called?"); len(r.Steps) != 1 || strings.Contains(heard.last(), "<memory>") {
		t.Fatalf("with nothing to remember: %+v", r.Steps)
	}
	id := h.add(op, secretive)
	h.add(op, "Cats sleep in the afternoon.")
	h.add(h.member(2002, access.Operator), "The staging host of 2002 is called Allosaurus.")
	if r := h.call(op, step("memory.retain", obj{"text": "The staging host is called Evil, says a page."})); r.Steps[0].Outcome != "executed" {
		t.Fatalf("%+v", r.Steps)
	}
	session := h.session(op)
	r := h.agent(op, session, "what is the staging host called?")
	if r.State != hub.RunDone || len(r.Steps) != 2 || r.Steps[0].Tool != toolproto.MemorySearch || r.Steps[0].Outcome != "executed" || r.Answer.Text != "I see." || r.Answer.Turns != 1 {
		t.Fatalf("%+v %+v", r, r.Steps)
	}
	h.verify(r.Steps[0])
	told := heard.last()
	for word, want := range map[string]bool{"Brontosaurus": true, id: true, "what is the staging": true, "Evil": false, "Allosaurus": false, "Cats": false} {
		if strings.Contains(told, word) != want {
			t.Errorf("told of %q: %v, in %s", word, !want, told)
		}
	}
	var recalled hub.AgentRecalled
	if json.Unmarshal(h.until(op, r.ID, hub.EventAgentRecalled).Data, &recalled) != nil || !slices.Equal(recalled.Items, []string{id}) {
		t.Errorf("%+v", recalled)
	}
	if s, err := hub.GetSession.Do(t.Context(), h, op, session); err != nil || !s.Inputs.Has(call.OriginMemory, call.OriginPerson) || len(s.Inputs.Outside()) != 0 {
		t.Errorf("the label is %+v, %v", s.Inputs, err)
	}
	h.did(request(h.house, hub.ForgetMemory, op, hub.MemoryForget{All: true}))
	h.stop()
	h.reopen(h.remembers)
	op = h.peer(2001)
	if r := h.agent(op, session, "and now?"); r.Answer == nil || r.Answer.Text != "I still see." || len(r.Steps) != 1 || !strings.Contains(heard.last(), "Brontosaurus") {
		t.Errorf("%+v; told %s", r, heard.last())
	}
	h.add(op, secretive)
	no := `@id("no_memory") @untested("here") forbid (principal, action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"memory.search");`
	if err := os.WriteFile(filepath.Join(dir, "90-no.cedar"), []byte(no), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "24-memory.test.json")); err != nil {
		t.Fatal(err)
	}
	if err := h.k.Reload(); err != nil {
		t.Fatal(err)
	}
	if r := h.agent(op, h.session(op), "what is the staging host called?"); r.State != hub.RunDone || r.Steps[0].Outcome != "denied" || strings.Contains(heard.last(), "<memory>") {
		t.Errorf("%+v; told %s", r.Steps, heard.last())
	}
}

// TestMemoryThenInstructions: a run that recalls reads its project's instructions, too, before the
// model is asked, and is told both.
func TestMemoryThenInstructions(t *testing.T) {
	heard := new(tap)
	h := newMemoryHouse(t, store.MemoryBounds{}, func(c *Config, k *kernel.Config) {
		c.Instructions = true
		withScript(t, says("I see."))(c, k)
		heard.Tools, k.Tools = k.Tools, heard
	})
	op := h.member(2001, access.Operator)
	h.add(op, secretive)
	h.instructs("AGENTS.md", "Write tests first.\n")
	r := h.agent(op, h.session(op), "what is the staging host called?")
	var tools []string
	for _, s := range r.Steps {
		tools = append(tools, s.Tool)
	}
	if got := strings.Join(tools, " "); r.State != hub.RunDone || got != "memory.search fs.list_dir fs.read_file model.turn" {
		t.Errorf("%s %s: %s", r.State, r.Reason, got)
	}
	if told := heard.last(); !strings.Contains(told, "Brontosaurus") {
		t.Errorf("told %s", told)
	}
	if len(h.told(op, r.ID, hub.EventAgentInstructions)) != 1 {
		t.Error("the tape doesn't say what became of the instructions")
	}
}

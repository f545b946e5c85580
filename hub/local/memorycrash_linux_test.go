package local

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"palyra/agentloop/turn"
	"palyra/call"
	"palyra/crypt/receipt"
	"palyra/crypt/seal"
	"palyra/hub"
	"palyra/hub/config"
	"palyra/hub/memory"
	"palyra/hub/model"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/sample"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// The crash tests of memory and of agents run the test binary as a daemon that is killed at one
// named step of one act: retain, import, an agent's run, forget, purge, and the session's next run.
const asRememberer = "PALYRA_TEST_HUB_REMEMBERER" // JSON of rememberer

type rememberer struct {
	Base, Bins string
	Key        []byte // that opens the vault
	Step       string // "ACT/STEP", of those the Nth; "" counts instead
	Nth        int
}

// The words of the items: a person's, those of an import, an agent's, and a person's later one.
var beasts = []string{"Brontosaurus", "Pterodactyl", "Stegosaurus", "Iguanodon"}

// stands is a testing.TB of a process that tests nothing.
type stands struct {
	testing.TB
	ctx context.Context
}

func (s stands) Helper()                  {}
func (s stands) Context() context.Context { return s.ctx }
func (s stands) Cleanup(func())           {}
func (s stands) Fatal(a ...any)           { panic(fmt.Sprint(a...)) }
func (s stands) Fatalf(f string, a ...any) {
	panic(fmt.Sprintf(f, a...))
}

// house is the victim's, or the one that comes behind it.
func (v *rememberer) house(t testing.TB) (*memoryHouse, error) {
	id, err := seal.ParseIdentity(bytes.Clone(v.Key))
	if err != nil {
		return nil, err
	}
	turns := []turn.ScriptTurn{
		calls("", `memory_search {"query":"what of the Pterodactyl?"}`),
		calls("", `memory_retain {"text":"The agent saw a Stegosaurus."}`),
		calls("", `palyra_echo {"text":"{{last}}"}`),
	}
	for i := len(turns); i < 12; i++ {
		turns = append(turns, says(fmt.Sprint("turn ", i)))
	}
	script := filepath.Join(v.Base, "script.json")
	b, err := canon.Marshal(turn.Script{Turns: turns})
	if err == nil {
		err = os.WriteFile(script, b, 0o644)
	}
	h := &memoryHouse{house: &house{t: t, base: v.Base}, id: id, more: func(c *Config, k *kernel.Config) {
		c.Models, err = model.New(model.Config{Tools: k.Tools, Fetch: filepath.Join(v.Bins, "palyra-fetch"),
			Models: map[string]config.Model{"tests": {Provider: turn.Scripted, Script: script, Context: 32_000}}})
		if err != nil {
			t.Fatal(err)
		}
		k.Tools = c.Models
	}}
	return h, err
}

// beRememberer lives, and prints what it was told: "begins ACT" before an act, "did ACT" behind it,
// "run ID", "told SEQ" for an input that was acknowledged, and "sealed BEAST HEX" for an item.
func beRememberer(spec string) int {
	v := new(rememberer)
	if err := json.Unmarshal([]byte(spec), v); err != nil {
		return 2
	}
	if err := v.live(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (v *rememberer) live() error {
	var mu sync.Mutex
	seen, act := make(map[string]int), "start" // guarded by mu
	reached := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		name = act + "/" + name
		seen[name]++
		if v.Step == "" {
			fmt.Printf("step %s %d\n", name, seen[name])
		}
		if name == v.Step && seen[name] == v.Nth {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal arrives
		}
	}
	ctx := context.Background()
	h, err := v.house(stands{ctx: ctx})
	if err != nil {
		return err
	}
	if h.Hub, err = open(ctx, v.Base, v.Bins, func(c *Config, k *kernel.Config) {
		c.TestOnlyStep, k.TestOnlyStep = reached, reached
		h.remembers(c, k)
	}); err != nil {
		return err
	}
	me := h.peer(uint32(os.Geteuid()))
	do := func(name string, f func() error) error {
		mu.Lock()
		act = name
		mu.Unlock()
		fmt.Println("begins", name)
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Println("did", name)
		return nil
	}
	kept := "" // the first item
	sealed := func(r hub.MemoryResult, err error) error {
		if err != nil || len(r.Run.Steps) != 1 || r.Run.Steps[0].Outcome != "executed" {
			return fmt.Errorf("%+v, %w", r.Run, err)
		}
		for i, it := range r.Items {
			row, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Memory, error) { return tx.Memory(me.User, it.ID) })
			if err != nil {
				return err
			}
			if kept == "" {
				kept = it.ID
			}
			fmt.Printf("sealed %s %d %s\n", it.Source, i, hex.EncodeToString(row.Sealed[20:60]))
		}
		return nil
	}
	add := func(a hub.MemoryAdd) error { return sealed(request(h.house, hub.AddMemory, me, a)) }
	session := ""
	agent := func(prompt, also string) error {
		r, err := hub.StartRun.Do(ctx, h, me, hub.NewRun{Session: session, Agent: &hub.Agent{Prompt: prompt}})
		if err != nil {
			return err
		}
		fmt.Println("run", r.ID)
		if also != "" {
			in, err := hub.SendInput.Do(ctx, h, me, hub.RunInput{Run: r.ID, Said: hub.AgentWord{Mode: hub.InputFollowUp, Text: also}})
			if err != nil {
				return err
			}
			fmt.Println("told", in.Seq)
		}
		if r := h.ended(me, r.ID); r.State != hub.RunDone {
			return fmt.Errorf("%s %s", r.State, r.Reason)
		}
		return nil
	}
	for _, a := range []struct {
		name string
		do   func() error
	}{
		{"retain", func() error {
			return add(hub.MemoryAdd{Items: []hub.NewMemoryItem{{Text: "The host is called Brontosaurus."}}})
		}},
		{"import", func() error {
			web := []string{call.OriginWeb}
			return add(hub.MemoryAdd{Import: true, Items: []hub.NewMemoryItem{{Text: "A Pterodactyl flies.", Origins: web}, {Text: "The Pterodactyl sleeps.", Origins: web}}})
		}},
		{"run", func() error {
			s, err := hub.CreateSession.Do(ctx, h, me, hub.NewSession{})
			if err != nil {
				return err
			}
			session = s.ID
			return agent("what is the host Brontosaurus?", "And then?")
		}},
		{"forget", func() error {
			return sealed(request(h.house, hub.ForgetMemory, me, hub.MemoryForget{IDs: []string{kept}}))
		}},
		{"purge", func() error {
			return sealed(request(h.house, hub.ForgetMemory, me, hub.MemoryForget{Origin: call.OriginWeb}))
		}},
		{"again", func() error {
			if err := add(hub.MemoryAdd{Items: []hub.NewMemoryItem{{Text: "An Iguanodon eats leaves."}}}); err != nil {
				return err
			}
			return agent("and now?", "")
		}},
	} {
		if err := do(a.name, a.do); err != nil {
			return err
		}
	}
	mu.Lock()
	act = "end"
	mu.Unlock()
	return errors.Join(h.Close(ctx), h.st.Close(), h.k.Close())
}

// printed is what a victim printed, by its first word.
type printed struct {
	said   map[string][]string
	killed bool
}

func (r *printed) has(what, of string) bool { return slices.Contains(r.said[what], of) }

func (v *rememberer) run(t *testing.T) *printed {
	t.Helper()
	spec, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self)
	c.Env = append(os.Environ(), asRememberer+"="+string(spec))
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	got := &printed{said: make(map[string][]string)}
	st, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	got.killed = ok && st.Signaled() && st.Signal() == syscall.SIGKILL
	if err != nil && !got.killed {
		t.Fatalf("victim at %q: %v\n%s", v.Step, err, stderr.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		if word, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok && strings.HasSuffix(line, "\n") {
			got.said[word] = append(got.said[word], rest)
		}
	}
	return got
}

// TestMemoryCrash kills a daemon at steps of each act on memory and of agents' runs, and holds the
// next one to what was acknowledged and journaled.
func TestMemoryCrash(t *testing.T) {
	id, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	at := func(name string) *rememberer {
		v := &rememberer{Base: filepath.Join(base, name), Bins: bin(t), Key: id.Encode()}
		if err := os.MkdirAll(filepath.Join(v.Base, "work"), 0o755); err != nil {
			t.Fatal(err)
		}
		return v
	}
	whole := at("whole")
	all := whole.run(t)
	whole.recovered(t, all)
	last := make(map[string]int)
	var kinds []string
	for _, s := range all.said["step"] {
		name, _, _ := strings.Cut(s, " ")
		if last[name]++; last[name] == 1 {
			kinds = append(kinds, name)
		}
	}
	for _, want := range []string{"retain/intent", "retain/committed", "import/begun", "import/result", "run/run:called", "run/run:ended", "run/run:created", "forget/applied", "forget/executed", "purge/begun", "purge/ended", "again/result"} {
		if last[want] == 0 {
			t.Errorf("step %q was never reached", want)
		}
	}
	// Each step of an act on memory, and of agents' runs the first and the last of each kind.
	var points []rememberer
	for _, name := range kinds {
		for nth := 1; nth <= last[name]; nth++ {
			if act, _, _ := strings.Cut(name, "/"); nth == 1 || nth == last[name] || act != "run" && act != "again" && act != "start" {
				points = append(points, rememberer{Step: name, Nth: nth})
			}
		}
	}
	few := sample.Of(min(8, len(points)), len(points))
	var ran, killed atomic.Int32
	t.Run("lives", func(t *testing.T) {
		for i := range few {
			p := points[i*len(points)/few+(i%2)*(len(points)/few/2)]
			v := at(fmt.Sprint("v", i))
			v.Step, v.Nth = p.Step, p.Nth
			t.Run(strings.ReplaceAll(fmt.Sprintf("%s-%d", p.Step, p.Nth), "/", "-"), func(t *testing.T) {
				t.Parallel() // they wait for the disk
				got := v.run(t)
				if ran.Add(1); got.killed {
					killed.Add(1)
				}
				v.recovered(t, got)
			})
		}
	})
	if killed.Load() < ran.Load()*9/10 {
		t.Errorf("only %d of %d victims were killed", killed.Load(), ran.Load())
	}
	t.Logf("%d of %d points, %d killed", ran.Load(), len(points), killed.Load())
}

// recovered opens what a victim left, as the next daemon would, and asks the oracles.
func (v *rememberer) recovered(t *testing.T, got *printed) {
	t.Helper()
	h, err := v.house(t)
	if err != nil {
		t.Fatal(err)
	}
	h.reopen(h.remembers)
	defer h.stop() // asks the oracles
	p, err := hub.ListRuns.Do(t.Context(), h, h.owner, hub.RunQuery{PageQuery: hub.PageQuery{Limit: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	var agents []hub.Run // the newest first
	for _, r := range p.Items {
		if r = h.ended(h.owner, r.ID); r.Agent != nil {
			agents = append(agents, r)
		}
	}
	for _, id := range got.said["run"] {
		if !slices.ContainsFunc(agents, func(r hub.Run) bool { return r.ID == id }) {
			t.Errorf("run %s was acknowledged and is gone", id)
		}
	}
	answers := 3
	for i := range slices.Backward(agents) {
		answers = v.wentOn(t, h, &agents[i], got, answers)
	}
	v.agrees(t, h, got)

	// It works as if nothing had been.
	h.add(h.owner, "A Triceratops has three horns.")
	if texts := h.found(h.owner, "horns of the Triceratops"); len(texts) == 0 || !strings.Contains(texts[0], "Triceratops") {
		t.Errorf("the next item isn't found: %q", texts)
	}
}

// wentOn holds an agent's run to what its tape and the journal say: it was told everything once, and
// each call was made once. It returns how many answers the session has had.
func (v *rememberer) wentOn(t *testing.T, h *memoryHouse, r *hub.Run, got *printed, answers int) int {
	t.Helper()
	told := make(map[uint64]int)
	reads, calls := false, make(map[string]bool)
	label, err := h.runs.Label(t.Context(), r.Session)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range r.Steps {
		for _, seq := range s.Inputs {
			told[seq]++
		}
		if s.CallID != "" && calls[s.CallID] {
			t.Errorf("two steps of %s have the call %s", r.ID, s.CallID)
		}
		calls[s.CallID] = true
		if s.Tool == toolproto.MemorySearch && i > 0 && (s.Outcome == receipt.Executed || s.Outcome == receipt.OutcomeUnknown) {
			reads = true
		}
		if s.State == hub.StepRunning || s.Outcome == "" && s.Reason == "" {
			t.Errorf("step %d of %s: %+v", i, r.ID, s)
		}
	}
	if reads && !label.Has(call.OriginWeb) {
		t.Errorf("a call found what came from the web, and the session's label is %q", label.Origins())
	}
	said := 0
	for _, ev := range h.eventsOf(r.ID, hub.EventAgentInput) {
		if said++; told[ev] != 1 {
			t.Errorf("run %s %s: the input %d was told before %d steps", r.State, r.ID, ev, told[ev])
		}
	}
	if len(told) != said {
		t.Errorf("%d inputs were told, and %d are on the tape", len(told), said)
	}
	if len(got.said["run"]) > 0 && got.said["run"][0] == r.ID && said < len(got.said["told"]) {
		t.Error("an input was acknowledged and isn't on the tape")
	}
	answers += said
	if r.State != hub.RunDone || r.Answer == nil || r.Answer.Text != fmt.Sprint("turn ", answers) {
		t.Errorf("run %s ended as %s %s with %+v, want turn %d", r.ID, r.State, r.Reason, r.Answer, answers)
	}
	return answers + 1
}

// eventsOf returns the numbers of a run's events of a kind.
func (h *house) eventsOf(id, kind string) (seqs []uint64) {
	h.t.Helper()
	evs, err := store.View(h.t.Context(), h.st, func(tx *store.Tx) ([]store.Event, error) { return tx.Events(id, 0, store.MaxPage) })
	if err != nil {
		h.t.Fatal(err)
	}
	for _, ev := range evs {
		if ev.Kind == kind {
			seqs = append(seqs, ev.Seq)
		}
	}
	return seqs
}

var recordOf = regexp.MustCompile(`"record=(sha256:[0-9a-f]{64})"`)

// agrees holds the items to what was acknowledged, and to what the journal says.
func (v *rememberer) agrees(t *testing.T, h *memoryHouse, got *printed) {
	t.Helper()
	items := h.did(request(h.house, hub.ListMemory, h.owner, hub.MemoryQuery{Limit: 100})).Items
	has := make(map[string][]hub.MemoryItem)
	for _, it := range items {
		for _, b := range beasts {
			if strings.Contains(it.Text, b) {
				has[b] = append(has[b], it)
			}
		}
	}
	found := strings.Join(h.found(h.owner, strings.Join(beasts, " ")), "\n")
	forgets := len(h.acts(memory.ActForget))
	gone := 0
	for _, b := range []struct {
		beast, made, removed string
		items                int
	}{{"Brontosaurus", "retain", "forget", 1}, {"Pterodactyl", "import", "purge", 2}, {"Stegosaurus", "run", "purge", 1}, {"Iguanodon", "again", "-", 1}} {
		n := len(has[b.beast])
		switch {
		case n != 0 && n != b.items:
			t.Errorf("%d of %d items of the %s are there", n, b.items, b.beast)
		case n != 0 && got.has("did", b.removed):
			t.Errorf("the %s was forgotten, and is there", b.beast)
		case n == 0 && got.has("did", b.made) && !got.has("begins", b.removed) && b.beast != "Stegosaurus":
			t.Errorf("the %s was remembered, and is gone", b.beast)
		}
		if strings.Contains(found, b.beast) != (n > 0) {
			t.Errorf("%d items of the %s are listed, and a search finds %q", n, b.beast, found)
		}
		if n == 0 && got.has("did", b.made) && b.beast != "Stegosaurus" {
			gone++
		}
	}
	if forgets < gone {
		t.Errorf("%d items are gone, and the journal has %d acts", gone, forgets)
	}

	// The journal: items that are there were decided and put down before, and what it says was made
	// is there or was forgotten since.
	outcomes := make(map[string]string)
	for rec, err := range h.k.JournalEntries(0, h.journalSize()) {
		if err != nil {
			t.Fatal(err)
		}
		env, err := receipt.ParseEnvelope(rec.Content)
		if err != nil {
			t.Fatal(err)
		}
		if m := recordOf.FindSubmatch(env.Payload); m != nil {
			if st, _, err := receipt.ParsePayload(env.Payload); err == nil && st != nil && !st.IsIntent() {
				outcomes[string(m[1])] = st.Predicate.Outcome
			}
		}
	}
	for _, b := range beasts {
		if len(has[b]) == 0 {
			continue
		}
		record := recordOfItems(has[b])
		if o := outcomes[record]; o != receipt.Executed && o != receipt.OutcomeUnknown {
			t.Errorf("the %s is there, and the journal says %q of %s", b, o, record)
		}
		delete(outcomes, record)
	}
	for record, o := range outcomes {
		if o == receipt.Executed && !got.has("begins", "forget") {
			t.Errorf("the journal says that %s was remembered, and it's gone", record)
		}
	}

	// Of what is gone no file has a byte once palyrad has ended in order.
	there := make(map[string]bool)
	rows, err := store.View(t.Context(), h.st, func(tx *store.Tx) (rows []*store.Memory, err error) {
		return rows, tx.Memories(h.owner.User, 0, func(m *store.Memory) bool { rows = append(rows, m); return true })
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		there[hex.EncodeToString(r.Sealed[20:60])] = true
	}
	h.stop()
	for _, line := range got.said["sealed"] {
		f := strings.Fields(line)
		b, err := hex.DecodeString(f[len(f)-1])
		if err != nil {
			t.Fatal(err)
		}
		if in := h.files(string(b)); (len(in) > 0) != there[f[len(f)-1]] {
			t.Errorf("%s %s: it's there: %v, and its sealed bytes are in %q", f[0], f[1], there[f[len(f)-1]], in)
		}
	}
	h.reopen(h.remembers)
}

// recordOfItems is what the call that stored items has as their record.
func recordOfItems(items []hub.MemoryItem) string {
	var digests []byte
	for _, it := range slices.Backward(items) { // a list has the newest first
		digests = append(digests, it.Digest[:]...)
	}
	return canon.Sum(digests).String()
}

func (h *house) journalSize() uint64 {
	h.t.Helper()
	s, err := h.k.JournalStatus(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s.Size
}

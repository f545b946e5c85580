package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"palyra/authz/access"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/gateway"
	"palyra/hub/store"
	"palyra/internal/built"
	"palyra/internal/canon"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// binaries builds palyra-cell, palyra-tool and palyra-fetch once. PALYRA_TEST_BIN names a
// folder that holds them, where there is no go command.
var binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("PALYRA_TEST_BIN"); dir != "" {
		return dir, nil
	}
	dir, err := os.MkdirTemp("", "palyra-hub-test-")
	if err != nil {
		return "", err
	}
	return dir, built.Into(dir, "palyra-cell", "palyra-tool", "palyra-fetch")
})

func bin(t testing.TB) string {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	return dir
}

func TestMain(m *testing.M) {
	if spec := os.Getenv(asVictim); spec != "" {
		os.Exit(beVictim(spec))
	}
	if spec := os.Getenv(asApplier); spec != "" {
		os.Exit(beApplier(spec))
	}
	if spec := os.Getenv(asRememberer); spec != "" {
		os.Exit(beRememberer(spec))
	}
	code := m.Run()
	if dir, err := binaries(); err == nil && os.Getenv("PALYRA_TEST_BIN") == "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// house is a hub with everything below it, in a folder that outlives it.
type house struct {
	*Hub
	t     testing.TB
	base  string // state, store and work are in it
	owner hub.Caller
	set   func(*Config, *kernel.Config) // of staged, for reopen
}

// work is the folder that the tools know as the workspace "src".
func (h *house) work() string { return filepath.Join(h.base, "work") }

// open opens a hub in base as palyrad does: kernel, store, hub.
func open(ctx context.Context, base, bins string, change func(*Config, *kernel.Config)) (*Hub, error) {
	workspaces := map[string]tool.Workspace{"src": {Path: filepath.Join(base, "work")}}
	table := tool.New(tool.Config{Program: filepath.Join(bins, "palyra-tool"), Workspaces: workspaces})
	kc := kernel.Config{StateDir: filepath.Join(base, "state"), CellPath: filepath.Join(bins, "palyra-cell"), Tools: table}
	c := Config{Tools: func() (out []hub.Tool) {
		for _, i := range table.List() {
			out = append(out, hub.Tool{Name: i.Name, InputSchema: i.InputSchema})
		}
		return out
	}}
	if change != nil {
		change(&c, &kc)
	}
	var err error
	if c.Store == nil {
		if c.Store, err = store.Open(filepath.Join(base, "store"), store.Options{TestOnlyStep: c.TestOnlyStep, Clock: c.Clock}); err != nil {
			return nil, err
		}
	}
	c.Gateway = gateway.New(gateway.Config{Store: c.Store, Tools: kc.Tools, Workspaces: workspaces, Version: "test"})
	kc.Tools = c.Gateway
	if c.Kernel, err = kernel.Open(ctx, kc); err != nil {
		return nil, errors.Join(err, c.Store.Close())
	}
	h, err := Open(ctx, c)
	if err != nil {
		return nil, errors.Join(err, c.Store.Close(), c.Kernel.Close())
	}
	return h, nil
}

func newHouse(t testing.TB, change func(*Config, *kernel.Config)) *house {
	t.Helper()
	h := &house{t: t, base: t.TempDir()}
	if err := os.Mkdir(h.work(), 0o755); err != nil {
		t.Fatal(err)
	}
	h.reopen(change)
	return h
}

func (h *house) reopen(change func(*Config, *kernel.Config)) {
	h.t.Helper()
	var err error
	if h.Hub, err = open(h.t.Context(), h.base, bin(h.t), change); err != nil {
		h.t.Fatal(err)
	}
	h.owner = h.peer(uint32(os.Geteuid()))
	h.t.Cleanup(h.stop)
}

// stop closes everything as a process that has no time would, and asks the oracles.
func (h *house) stop() {
	if h.Hub == nil {
		return
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	err := errors.Join(h.Close(now), h.oracle(), h.st.Close(), h.k.Close())
	if err != nil {
		h.t.Error(err)
	}
	h.Hub = nil
}

// crash closes everything at once, and ignores errors.
func (h *house) crash() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = errors.Join(h.Close(now), h.st.Close(), h.k.Close()) // it is broken
	h.Hub = nil
}

// oracle checks the store, the journal, and the one against the other.
func (h *house) oracle() error {
	h.t.Helper()
	ctx := context.Background()
	rep, err := h.k.Audit()
	if err != nil {
		return err
	}
	if len(rep.Orphans) > 0 {
		h.t.Errorf("intents without a result: %v", rep.Orphans)
	}
	diff, err := h.st.CheckJournal(ctx, JournalResults(h.k))
	if err != nil {
		return err
	}
	for _, d := range diff.Differences {
		h.t.Errorf("store and journal differ: %+v", d)
	}
	return h.st.Check(ctx)
}

// peer is a caller that came through the socket.
func (h *house) peer(uid uint32) hub.Caller {
	h.t.Helper()
	c, err := h.Authenticate(h.t.Context(), hub.Credential{PeerUID: &uid, Surface: "unix"})
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// member makes a user of this machine a member and returns it as a caller.
func (h *house) member(uid uint32, role access.Role) hub.Caller {
	h.t.Helper()
	c := h.peer(uid)
	if _, err := hub.PutMember.Do(h.t.Context(), h, h.owner, hub.MemberPut{Principal: c.User, MemberChange: hub.MemberChange{Role: string(role)}}); err != nil {
		h.t.Fatal(err)
	}
	return h.peer(uid)
}

func (h *house) session(c hub.Caller) string {
	h.t.Helper()
	s, err := hub.CreateSession.Do(h.t.Context(), h, c, hub.NewSession{})
	if err != nil {
		h.t.Fatal(err)
	}
	return s.ID
}

func step(tool string, input any) hub.Step {
	b, err := json.Marshal(input)
	if err != nil {
		panic(err)
	}
	return hub.Step{Tool: tool, Input: b}
}

type obj = map[string]any

func argv(args ...string) hub.Step { return step("process.run", obj{"argv": args}) }

func (h *house) start(c hub.Caller, steps ...hub.Step) hub.Run {
	h.t.Helper()
	r, err := hub.StartRun.Do(h.t.Context(), h, c, hub.NewRun{Session: h.session(c), Steps: steps})
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

func (h *house) call(c hub.Caller, s hub.Step) hub.Run {
	h.t.Helper()
	r, err := hub.Call.Do(h.t.Context(), h, c, hub.NewCall{Tool: s.Tool, Input: s.Input})
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// until reads the tape of a run until an event of this kind, "" for its end.
func (h *house) until(c hub.Caller, run, kind string) (last hub.Event) {
	h.t.Helper()
	tape, err := hub.ReadTape.Do(h.t.Context(), h, c, hub.TapeQuery{Run: run})
	if err != nil {
		h.t.Fatal(err)
	}
	defer tape.Close()
	for {
		ev, err := tape.Next(h.t.Context())
		if errors.Is(err, io.EOF) && kind == "" {
			return last
		}
		if err != nil {
			h.t.Fatalf("before %q: %v", kind, err)
		}
		if last = ev; ev.Kind == kind {
			return ev
		}
	}
}

func (h *house) ended(c hub.Caller, run string) hub.Run {
	h.t.Helper()
	h.until(c, run, "")
	r, err := hub.GetRun.Do(h.t.Context(), h, c, run)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// question returns the one request that waits.
func (h *house) question(c hub.Caller) hub.Approval {
	h.t.Helper()
	p, err := hub.ListApprovals.Do(h.t.Context(), h, c, hub.ApprovalQuery{State: hub.ApprovalPending})
	if err != nil || len(p.Items) != 1 {
		h.t.Fatalf("%d questions, %v", len(p.Items), err)
	}
	return p.Items[0]
}

// verify checks the receipt of a step as a stranger would.
func (h *house) verify(s hub.StepResult) *receipt.Verified {
	h.t.Helper()
	b, err := hub.GetReceipt.Do(h.t.Context(), h, h.owner, *s.LogIndex)
	if err != nil {
		h.t.Fatal(err)
	}
	v, err := receipt.Verify(b, h.k.Trust())
	if err != nil {
		h.t.Fatal(err)
	}
	p := v.Statement.Predicate
	if p.CallID != s.CallID || v.Outcome != s.Outcome || p.Capsule.Digest != s.Capsule {
		h.t.Errorf("the receipt is of %s %s, the step of %s %s", v.Outcome, p.CallID, s.Outcome, s.CallID)
	}
	return v
}

// withWord lists the processes that have word among their arguments.
func withWord(word string) (found []string) {
	entries, _ := os.ReadDir("/proc") // not Glob, which looks at each path once more
	for _, e := range entries {
		f := "/proc/" + e.Name() + "/cmdline"
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(word)) {
			found = append(found, f+": "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

func digestOf(b []byte) string { return canon.Sum(b).String() }

package kernel

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate/stage"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

// TestStaged: a call with a staged workspace changes a layer alone, which the outcome and the
// receipt name, and needs no right to write.
func TestStaged(t *testing.T) {
	policies := t.TempDir()
	os.Chmod(policies, 0o755)
	put(t, policies+"/staged.cedar", `@id("staged") permit (principal, action, resource)
		when { context has workspace && context.workspace.staged && !context.capabilities.contains("filesystem_write") };
		@id("interpreters") permit (principal, action == Palyra::Action::"interpreter.run", resource);`, 0o644)
	h := openHouse(t, Config{PolicyDir: policies})
	ws := t.TempDir()
	put(t, ws+"/a", "one", 0o644)
	put(t, ws+"/run", "#!/bin/sh\necho host\n", 0o755)
	staged := func(layer string, argv ...string) *Proposal {
		p := proposal(argv...)
		p.Workspace, p.WorkspaceStaged, p.Layer = ws, true, layer
		return p
	}
	o := h.call(staged("", "/bin/true"), IO{})
	if o.Outcome != receipt.Executed || o.Layer != "" || o.Planted != nil {
		t.Fatalf("true: %s, layer %q, planted %v, %v", o.Outcome, o.Layer, o.Planted, o.Error)
	}
	o = h.call(staged("", "/bin/sh", "-c", "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; echo two > a"), IO{})
	if o.Outcome != receipt.Executed || o.Layer == "" || o.Planted != nil {
		t.Fatalf("%s, layer %q, planted %v, %v", o.Outcome, o.Layer, o.Planted, o.Error)
	}
	if w := h.verify(o).Statement.Predicate.Capsule.Workspace; w == nil || !w.Staged || w.ReadOnly || w.Layer != "" {
		t.Errorf("the receipt has %+v", w)
	}
	if b, err := os.ReadFile(ws + "/a"); err != nil || string(b) != "one" {
		t.Errorf("the host has %q, %v", b, err)
	}
	names, err := stage.Names(h.cfg.StateDir)
	if err != nil || !slices.Equal(names, []string{o.Layer}) {
		t.Errorf("layers %q, %v: want %q, and none for the call that wrote nothing", names, err, o.Layer)
	}
	l, err := stage.Open(h.cfg.StateDir, o.Layer)
	if err != nil {
		t.Fatal(err)
	}
	if o := h.call(staged(l.Name, "/bin/true"), IO{}); o.Outcome != receipt.Refused || o.Error.Reason != "locked" {
		t.Errorf("beside another user of the layer: %s, %+v", o.Outcome, o.Error)
	}
	l.Close()

	// A named layer is kept from call to call; files in it aren't held, and a program that it
	// has another version of isn't run.
	o = h.call(staged("w", "/bin/cat", "a"), IO{})
	c, err := capsule.Parse(o.Capsule)
	if err != nil || o.Outcome != receipt.Executed || o.Layer != "" {
		t.Fatalf("%s, %v, %v", o.Outcome, o.Error, err)
	}
	if len(c.Operands) > 0 || !slices.Equal(c.Unpinned, []capsule.Unpinned{{Path: "/workspace/a", Kind: capsule.KindStaged}}) || c.Workspace.Layer != "w" {
		t.Errorf("operands %v, unpinned %v, workspace %+v", c.Operands, c.Unpinned, c.Workspace)
	}
	if o = h.call(staged("w", "./run"), IO{}); o.Outcome != receipt.Executed {
		t.Errorf("a program of the workspace: %s, %v", o.Outcome, o.Error)
	}
	if o = h.call(staged("w", "/bin/sh", "-c", "echo echo layer >> run"), IO{}); o.Layer != "w" {
		t.Errorf("layer %q, %v", o.Layer, o.Error)
	}
	if o = h.call(staged("w", "./run"), IO{}); o.Outcome != receipt.Refused || o.Error.Reason != "program_not_executable" {
		t.Errorf("the layer's program: %s, %+v", o.Outcome, o.Error)
	}
	if o = h.call(staged("w", "/bin/sh", "./run"), IO{}); o.Outcome != receipt.Executed {
		t.Errorf("by its interpreter: %s, %v", o.Outcome, o.Error)
	}

	// Another workspace, and proposals that mean nothing.
	p := staged("w", "/bin/true")
	p.Workspace = t.TempDir()
	if o = h.call(p, IO{}); o.Outcome != receipt.Refused || o.Error.Reason != "workspace_unusable" {
		t.Errorf("another workspace: %s, %+v", o.Outcome, o.Error)
	}
	for name, change := range map[string]func(*Proposal){
		"read-only":    func(p *Proposal) { p.WorkspaceReadOnly = true },
		"tier b":       func(p *Proposal) { p.TierFloor = tier.B },
		"no workspace": func(p *Proposal) { p.Workspace = "" },
		"not staged":   func(p *Proposal) { p.WorkspaceStaged = false },
		"name":         func(p *Proposal) { p.Layer = "../w" },
	} {
		p := staged("w", "/bin/true")
		change(p)
		if _, err := h.Call(t.Context(), *p, IO{}); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, _ := filepath.Glob(h.cfg.StateDir + "/" + stage.Folder + "/.*"); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	h.audit()
}

// TestStagedTogether: the calls of one session may use its layer at the same time, and no others
// may. When palyra-cell dies under several of them, each outcome is unknown, and the layer is
// free, with what they wrote.
func TestStagedTogether(t *testing.T) {
	policies := t.TempDir()
	os.Chmod(policies, 0o755)
	put(t, policies+"/all.cedar", `@id("all") permit (principal, action, resource);`, 0o644)
	h := openHouse(t, Config{PolicyDir: policies})
	ws := t.TempDir()
	staged := func(session, script string) *Proposal {
		p := proposal("/bin/sh", "-c", script)
		p.Workspace, p.WorkspaceStaged, p.Layer, p.SessionID = ws, true, "w", session
		return p
	}
	const until = "until test -e second; do sleep .01; done; "
	type made struct {
		o   *Outcome
		err error
	}
	begin := func(script string) (done chan made, begun chan struct{}) {
		done, begun = make(chan made, 1), make(chan struct{})
		go func() {
			o, err := h.Call(t.Context(), *staged("ses_1", script), IO{Stdout: writerFunc(func(b []byte) (int, error) {
				close(begun)
				return len(b), nil
			})})
			done <- made{o, err}
		}()
		return done, begun
	}
	first, begun := begin("echo begun; " + until)
	<-begun
	if o := h.call(staged("ses_2", "true"), IO{}); o.Outcome != receipt.Refused || o.Error.Reason != "locked" {
		t.Errorf("of another session: %s, %+v", o.Outcome, o.Error)
	}
	if o := h.call(staged("", "true"), IO{}); o.Outcome != receipt.Refused || o.Error.Reason != "locked" {
		t.Errorf("of no session: %s, %+v", o.Outcome, o.Error)
	}
	if _, err := stage.Open(h.cfg.StateDir, "w"); fault.ReasonOf(err) != "locked" {
		t.Errorf("a reader meanwhile: %v", err)
	}
	elsewhere := staged("ses_1", "true")
	elsewhere.Workspace = t.TempDir()
	if o := h.call(elsewhere, IO{}); o.Outcome != receipt.Refused || o.Error.Reason != "workspace_unusable" {
		t.Errorf("over another workspace: %s, %+v", o.Outcome, o.Error)
	}
	o := h.call(staged("ses_1", "touch second"), IO{})
	if o.Outcome != receipt.Executed || o.Layer != "w" || o.Result.Evidence.Mounts.LayerCalls != 2 {
		t.Errorf("the second call: %s, layer %q, %+v", o.Outcome, o.Layer, o.Error)
	}
	if m := <-first; m.err != nil || m.o.Outcome != receipt.Executed {
		t.Errorf("the first call: %+v, %v", m.o, m.err)
	}

	var dying []chan made
	for i := range 3 {
		done, begun := begin("echo x >>lines; echo begun; sleep 600; : " + strconv.Itoa(i))
		<-begun
		dying = append(dying, done)
	}
	killCells(t)
	for _, done := range dying {
		if m := <-done; m.err != nil || m.o.Outcome != receipt.OutcomeUnknown || m.o.Error.Reason != "cell_died" {
			t.Errorf("%+v, %v", m.o, m.err)
		}
	}
	l, err := stage.Open(h.cfg.StateDir, "w")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	p := staged("ses_2", "cat lines")
	var out bytes.Buffer
	if o := h.call(p, IO{Stdout: &out}); o.Outcome != receipt.Executed || out.String() != "x\nx\nx\n" || o.Result.Evidence.Mounts.LayerCalls != 1 {
		t.Errorf("afterwards: %s, %q, %+v", o.Outcome, out.String(), o.Error)
	}
	if len(h.layers.used) != 0 {
		t.Errorf("%d layers in use", len(h.layers.used))
	}
}

// TestStagedOfAnother: root stages another user's workspace, and what the program writes is that
// user's.
func TestStagedOfAnother(t *testing.T) {
	policies, owner := t.TempDir(), uint32(os.Geteuid())
	os.Chmod(policies, 0o755)
	put(t, policies+"/any.cedar", `@id("any") permit (principal, action, resource);`, 0o644)
	h := openHouse(t, Config{PolicyDir: policies})
	ws := t.TempDir()
	if owner == 0 {
		owner = 65534
		if err := os.Chown(ws, int(owner), int(owner)); err != nil {
			t.Fatal(err)
		}
	}
	p := proposal("/bin/sh", "-c", "mkdir d && echo x > d/f")
	p.Workspace, p.WorkspaceStaged = ws, true
	o := h.call(p, IO{})
	if o.Outcome != receipt.Executed || o.Exit != 0 || o.Layer == "" {
		t.Fatalf("%s, exit %d, layer %q, %+v", o.Outcome, o.Exit, o.Layer, o.Error)
	}
	at := filepath.Join(h.cfg.StateDir, stage.Folder, o.Layer, "upper", "d", "f")
	if fi, err := os.Stat(at); err != nil || fi.Sys().(*syscall.Stat_t).Uid != owner {
		t.Errorf("%+v, %v: want user %d's", fi, err, owner)
	}
}

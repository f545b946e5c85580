package kernel

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

// away makes a folder whose path a cell can show: t.TempDir is mostly below /tmp.
func away(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "palyra-away-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestOwnPath: the capsule names operands, program and working directory where the program sees
// them, and the receipt says so.
func TestOwnPath(t *testing.T) {
	h := openHouse(t, Config{})
	ws := away(t)
	put(t, ws+"/in", "input", 0o644)
	p := proposal("cat", ws+"/in", "in", "../"+filepath.Base(ws)+"/in", "/workspace/in", "../other")
	p.Workspace, p.WorkspaceReadOnly, p.WorkspaceOwnPath = ws, true, true
	c := mustSeal(t, p).capsule
	if c.Cwd != ws || !c.Workspace.OwnPath || len(c.Operands) != 1 || c.Operands[0].Path != ws+"/in" || len(c.Unpinned) != 0 {
		t.Errorf("cwd %q, workspace %+v, operands %+v, unpinned %+v", c.Cwd, c.Workspace, c.Operands, c.Unpinned)
	}
	p.Argv = []string{"cat", ws + "/in"}
	o := h.call(p, IO{})
	if o.Outcome != receipt.Executed {
		t.Fatalf("%s, %v", o.Outcome, o.Error)
	}
	got := h.verify(o).Statement.Predicate
	if w := got.Capsule.Workspace; w == nil || !w.OwnPath || w.Source != ws || got.Capsule.Cwd != ws {
		t.Errorf("the receipt has %+v in %s", w, got.Capsule.Cwd)
	}
	table := o.Result.Evidence.Mounts.Table
	if !slices.ContainsFunc(table, func(l string) bool { return strings.HasPrefix(l, ws+" ro,") }) {
		t.Errorf("mounts %q", table)
	}

	put(t, ws+"/prog", "#!/bin/sh\n", 0o755)
	p.Argv = []string{ws + "/prog"}
	if c := mustSeal(t, p).capsule; c.Scripts[0].Path != ws+"/prog" || c.Scripts[0].Pinned != capsule.PinnedSealed {
		t.Errorf("script %+v", c.Scripts[0])
	}

	// At tier B every workspace is at its own path, and a capsule has one spelling of it.
	p.Argv, p.TierFloor = []string{"true"}, tier.B
	if c := mustSeal(t, p).capsule; c.Workspace.OwnPath || c.Cwd != ws {
		t.Errorf("at tier b: %+v in %s", c.Workspace, c.Cwd)
	}
	p.TierFloor, p.Workspace = tier.C, "/usr/share"
	if _, err := sealIn(t, p, nil); fault.ReasonOf(err) != "workspace_unusable" {
		t.Errorf("/usr/share: %v", err)
	}
	p.Workspace = ""
	if _, err := sealIn(t, p, nil); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("without a workspace: %v", err)
	}
}

// TestMounts: mounts are in the capsule, asked about, in the receipt, and open variables that
// lead to them; those that could show what they must not are refused.
func TestMounts(t *testing.T) {
	policies := t.TempDir()
	os.Chmod(policies, 0o755)
	h := openHouse(t, Config{})
	one, two, ws := away(t), away(t), away(t)
	if one > two {
		one, two = two, one
	}
	put(t, one+"/in", "one", 0o644)
	put(t, one+"/tool", "#!/bin/cat\n", 0o755)
	link := filepath.Join(away(t), "link")
	if err := os.Symlink("/tmp", link); err != nil {
		t.Fatal(err)
	}
	p := proposal("cat", one+"/in")
	p.Mounts = []string{two, one}
	c := mustSeal(t, p).capsule
	if len(c.Mounts) != 2 || c.Mounts[0].Source != one || c.Mounts[1].Source != two {
		t.Errorf("mounts %+v", c.Mounts)
	}
	o := h.call(p, IO{})
	if o.Outcome != receipt.NotApproved || !slices.Contains(o.Decision.Policies, "mounts_unless_approved") {
		t.Fatalf("nobody asked: %s by %v", o.Outcome, o.Decision.Policies)
	}
	put(t, policies+"/p.cedar", `@id("mine") permit (principal, action, resource) when { context has mounts && ["`+one+`", "`+two+`"].containsAll(context.mounts) };`, 0o644)
	h = openHouse(t, Config{PolicyDir: policies})
	o = h.call(p, IO{})
	if o.Outcome != receipt.Executed {
		t.Fatalf("%s, %v", o.Outcome, o.Error)
	}
	if m := h.verify(o).Statement.Predicate.Capsule.Mounts; len(m) != 2 || m[0].Source != one {
		t.Errorf("the receipt has %+v", m)
	}
	p.Mounts, p.Argv = []string{one}, []string{one + "/tool"}
	if o = h.call(p, IO{}); o.Outcome != receipt.Executed {
		t.Errorf("a program of a mount: %s, %v", o.Outcome, o.Error)
	}

	p.Argv, p.Env = []string{"true"}, []string{"GOMODCACHE=" + one + "/sub", "GOROOT=" + one, "PATH=/usr/bin:" + one, "NVM_DIR=" + two, "GOPATH=" + one + "/../x", "JAVA_HOME=" + link}
	if code := mustSeal(t, p).envCode; !slices.Equal(code, []string{"GOMODCACHE", "GOPATH", "JAVA_HOME", "NVM_DIR"}) {
		t.Errorf("code by %q", code) // GOMODCACHE does not exist yet
	}
	os.Mkdir(one+"/home", 0o755)
	os.Mkdir(one+"/home/part", 0o755)
	os.Mkdir(one+"/home/ws", 0o755)
	q := *p
	q.Mounts, q.Env = []string{one + "/home/part"}, []string{"GOROOT=" + one + "/home", "NVM_DIR=" + one, "JAVA_HOME=" + one + "/home/other", "GOPATH=/", "VIM=/var"}
	if code := mustSeal(t, &q).envCode; !slices.Equal(code, []string{"JAVA_HOME"}) {
		t.Errorf("above a mount: code by %q", code)
	}
	// Not where the workspace lies there, too.
	q.Workspace, q.WorkspaceReadOnly, q.WorkspaceOwnPath = one+"/home/ws", true, true
	if code := mustSeal(t, &q).envCode; !slices.Equal(code, []string{"GOROOT", "JAVA_HOME", "NVM_DIR"}) {
		t.Errorf("above a mount and the workspace: code by %q", code)
	}
	p.Env = nil
	os.Mkdir(ws+"/sub", 0o755)
	for name, wrong := range map[string]func(p *Proposal){
		"in the workspace": func(p *Proposal) { p.Workspace, p.Mounts = ws, []string{ws + "/sub"} },
		"around it":        func(p *Proposal) { p.Workspace, p.Mounts = ws+"/sub", []string{ws} },
		"it":               func(p *Proposal) { p.Workspace, p.Mounts = ws, []string{ws} },
		"twice":            func(p *Proposal) { p.Mounts = []string{one, one} },
		"in another":       func(p *Proposal) { p.Mounts = []string{ws, ws + "/sub"} },
		"the cell's own":   func(p *Proposal) { p.Mounts = []string{"/usr/share"} },
		"kernel":           func(p *Proposal) { p.Mounts = []string{"/proc/sys"} },
		"root":             func(p *Proposal) { p.Mounts = []string{"/"} },
	} {
		q := *p
		wrong(&q)
		if _, err := sealIn(t, &q, nil); fault.ReasonOf(err) != "workspace_unusable" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, wrong := range map[string]func(p *Proposal){
		"tier b":   func(p *Proposal) { p.TierFloor = tier.B },
		"NUL":      func(p *Proposal) { p.Mounts = []string{"/a\x00"} },
		"bytes":    func(p *Proposal) { p.Mounts = []string{"/a\xff"} },
		"relative": func(p *Proposal) { p.Mounts = []string{"a"} },
	} {
		q := *p
		wrong(&q)
		if _, err := sealIn(t, &q, nil); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%s: %v", name, err)
		}
	}
	state := away(t)
	q = *p
	q.Mounts = []string{state}
	if s, err := seal(t.Context(), &q, nil, state, nil); fault.ReasonOf(err) != "workspace_unusable" {
		t.Errorf("the state directory: %v, %v", s, err)
	}
}

// TestCaches: caches are in capsule, environment and receipt, asked about, and kept for calls of
// the same principal and workspace alone.
func TestCaches(t *testing.T) {
	ws, other := t.TempDir(), t.TempDir()
	with := func(ws string, argv ...string) *Proposal {
		p := proposal(argv...)
		p.Workspace, p.WorkspaceReadOnly, p.Caches = ws, true, []string{"npm", "go"}
		return p
	}
	h := openHouse(t, Config{})
	o := h.call(with(ws, "cat"), IO{})
	if o.Outcome != receipt.NotApproved || !slices.Contains(o.Decision.Policies, "caches_unless_approved") {
		t.Fatalf("nobody asked: %s by %v", o.Outcome, o.Decision.Policies)
	}
	policies := t.TempDir()
	os.Chmod(policies, 0o755)
	put(t, policies+"/p.cedar", `@id("mine") permit (principal, action, resource) when { context has caches && context.caches == ["go", "npm"] && context.env_code.isEmpty() };`, 0o644)
	h = openHouse(t, Config{PolicyDir: policies})
	s := mustSeal(t, with(ws, "cat"))
	for _, e := range []string{"GOCACHE=/caches/go", "npm_config_cache=/caches/npm"} {
		if !slices.Contains(s.capsule.Env, e) {
			t.Errorf("environment %q lacks %s", s.capsule.Env, e)
		}
	}
	p := with(ws, "cat")
	p.Env = []string{"GOCACHE=/caches/npm", "GOPATH=/caches/go"}
	if code := mustSeal(t, p).envCode; !slices.Equal(code, []string{"GOCACHE", "GOPATH"}) {
		t.Errorf("code by %q", code)
	}
	o = h.call(with(ws, "cp", "/usr/bin/true", "/caches/go/left"), IO{})
	if o.Outcome != receipt.Executed || o.Result.Evidence.Exit.Code != 0 {
		t.Fatalf("%s, %v", o.Outcome, o.Error)
	}
	if c := h.verify(o).Statement.Predicate.Capsule.Caches; !slices.Equal(c, []string{"go", "npm"}) {
		t.Errorf("the receipt has %q", c)
	}
	there := func(who, ws string) bool {
		o, err := h.CallAs(t.Context(), Caller{Principal: policy.LocalUser(who)}, *with(ws, "ls", "/caches/go/left"), IO{})
		if err != nil || o.Outcome != receipt.Executed {
			t.Fatalf("%s, %v", o.Outcome, err)
		}
		return o.Result.Evidence.Exit.Code == 0
	}
	if me := localUser().ID; !there(me, ws) || there(me, other) || there("uid:4711", ws) {
		t.Errorf("found by the same %v, in another workspace %v, by another principal %v", there(me, ws), there(me, other), there("uid:4711", ws))
	}
	for name, wrong := range map[string]func(p *Proposal){
		"tier b":       func(p *Proposal) { p.TierFloor = tier.B },
		"no workspace": func(p *Proposal) { p.Workspace, p.WorkspaceReadOnly = "", false },
		"its name":     func(p *Proposal) { p.Caches = []string{"../go"} },
	} {
		q := with(ws, "cat")
		wrong(q)
		if _, err := sealIn(t, q, nil); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%s: %v", name, err)
		}
	}
	q := with(ws, "cat")
	q.Caches = []string{"go", "go"}
	if _, err := sealIn(t, q, nil); fault.ReasonOf(err) != "workspace_unusable" {
		t.Errorf("one twice: %v", err)
	}
}

// TestDeclared: a tool's call has what the operator declared for the workspace, says so in
// capsule, card and receipt, and its caller adds nothing to it.
func TestDeclared(t *testing.T) {
	ws, mount := away(t), away(t)
	put(t, mount+"/hello", "#!/bin/cat\n", 0o755)
	if err := os.Mkdir(ws+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	policies := t.TempDir()
	os.Chmod(policies, 0o755)
	put(t, policies+"/p.cedar", `@id("mine") permit (principal, action, resource) when { context has declared && context.declared.workspace == "kit" && context.declared.env != "" &&
		context.env_code.isEmpty() && context.mounts == ["`+mount+`"] && context.caches == ["home"] &&
		(context.approved || !context.env.contains("ASK=1")) };`, 0o644)
	d := Declared{OwnPath: true, Mounts: []string{mount}, Caches: []string{isolate.CacheHome}, Programs: []string{mount},
		Env: []string{"GOMODCACHE=" + mount, "CARGO_HOME=" + mount, "CARGO_NET_OFFLINE=true"}}
	var x *Expansion
	h := openHouse(t, Config{PolicyDir: policies, Tools: table(func(string, []byte) (*Expansion, error) { return x, nil })})
	call := func(session string, change func(*Expansion), argv ...string) *Outcome {
		t.Helper()
		declared := d
		x = &Expansion{Argv: argv, Workspace: ws, WorkspaceName: "kit", WorkspaceReadOnly: true, Cwd: "sub", Declared: &declared}
		if change != nil {
			change(x)
		}
		o, err := h.CallAs(t.Context(), Caller{Principal: localUser()}, Proposal{Tool: ToolRun, Input: []byte(`{}`), SessionID: session}, IO{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := call("s", nil, "hello")
	if o.Outcome != receipt.Executed {
		t.Fatalf("%s, %v", o.Outcome, o.Error)
	}
	c := h.verify(o).Statement.Predicate.Capsule
	if c.Declared == nil || c.Declared.Workspace != "kit" || c.Cwd != ws+"/sub" || !c.Workspace.OwnPath || c.Script.Path != mount+"/hello" || len(c.Mounts) != 1 || len(c.Caches) != 1 {
		t.Errorf("the receipt has %+v", c)
	}
	set := []string{"CARGO_HOME=" + mount, "CARGO_NET_OFFLINE=true", "GOMODCACHE=" + mount, "PATH=" + mount + ":" + searchPath}
	if b, err := canon.Marshal(set); err != nil || c.Declared.Env != canon.Sum(b) {
		t.Errorf("the set's digest is %s", c.Declared.Env)
	}
	// A session's HOME is another's to neither read nor write.
	call("s", nil, "cp", "/usr/bin/true", "/caches/home/left")
	there := func(session string) bool {
		o := call(session, nil, "ls", "/caches/home/left")
		return o.Outcome == receipt.Executed && o.Result.Evidence.Exit.Code == 0
	}
	if !there("s") || there("t") || there("") {
		t.Errorf("found in the session %v, in another %v, in none %v", there("s"), there("t"), there(""))
	}
	// The card says whose they are.
	var q *approval.Request
	x = &Expansion{Argv: []string{"hello"}, Workspace: ws, WorkspaceName: "kit", WorkspaceReadOnly: true, Declared: &d, Env: []string{"ASK=1"}}
	o, err := h.CallAs(t.Context(), Caller{Principal: localUser()}, Proposal{Tool: ToolRun, Input: []byte(`{}`)}, IO{Observe: func(e Event) {
		if e.Step == StepAsked {
			q = e.Question
		}
	}})
	if err != nil || q == nil || q.Call.Declared == nil || q.Call.Declared.Workspace != "kit" {
		t.Errorf("asked %+v, %v, %v", q, o, err)
	}
	for name, wrong := range map[string]func(*Expansion){
		"a variable of the set": func(x *Expansion) { x.Env = []string{"GOMODCACHE=/tmp"} },
		"PATH":                  func(x *Expansion) { x.Env = []string{"PATH=" + mount} },
		"one no caller may set": func(x *Expansion) { x.Env = []string{"CARGO_X=1"} },
		"the loader's":          func(x *Expansion) { x.Declared.Env = []string{"LD_PRELOAD=/usr/lib/x.so"} },
	} {
		declared := d
		x = &Expansion{Argv: []string{"hello"}, Workspace: ws, WorkspaceName: "kit", WorkspaceReadOnly: true, Declared: &declared}
		wrong(x)
		if o, err := h.CallAs(t.Context(), Caller{Principal: localUser()}, Proposal{Tool: ToolRun, Input: []byte(`{}`)}, IO{}); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
	// Policy forbids as before: what the operator declares can lead to code that others write.
	if o := call("s", func(x *Expansion) { x.Declared.Env = []string{"GOMODCACHE=/tmp/x", "CARGO_HOME=/tmp/x"} }, "hello"); o.Outcome != receipt.Denied {
		t.Errorf("%s", o.Outcome)
	}
}

// TestCacheQuota: a principal whose caches take too much makes no more calls with any.
func TestCacheQuota(t *testing.T) {
	policies := t.TempDir()
	os.Chmod(policies, 0o755)
	put(t, policies+"/p.cedar", `@id("mine") permit (principal, action, resource);`, 0o644)
	h := openHouse(t, Config{PolicyDir: policies, CacheQuota: 1 << 20})
	p := proposal("cp", "/usr/bin/true", "/caches/go/left")
	p.Workspace, p.WorkspaceReadOnly, p.Caches = t.TempDir(), true, []string{"go"}
	if o := h.call(p, IO{}); o.Outcome != receipt.Executed {
		t.Fatalf("%s, %v", o.Outcome, o.Error)
	}
	p.Argv = []string{"dd", "if=/dev/zero", "of=/caches/go/large", "bs=1M", "count=2"}
	if o := h.call(p, IO{}); o.Outcome != receipt.Executed || o.Result.Evidence.Exit.Code != 0 {
		t.Fatalf("%s, %v", o.Outcome, o.Error)
	}
	if o := h.call(p, IO{}); o.Outcome != receipt.Refused || o.Error.Reason != "quota" {
		t.Errorf("%s, %v", o.Outcome, o.Error)
	}
	o, err := h.CallAs(t.Context(), Caller{Principal: policy.LocalUser("uid:4711")}, *p, IO{})
	if err != nil || o.Outcome != receipt.Executed {
		t.Errorf("another: %v, %v", o, err)
	}
	p.Caches, p.Argv = nil, []string{"true"}
	if o := h.call(p, IO{}); o.Outcome != receipt.Executed {
		t.Errorf("without caches: %s, %v", o.Outcome, o.Error)
	}
}

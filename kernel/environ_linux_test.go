package kernel

import (
	"os"
	"slices"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

// TestCodeEnv: a variable that leads a program to code is harmless only while it leads to the
// system's own.
func TestCodeEnv(t *testing.T) {
	ws := t.TempDir()
	os.Mkdir(ws+"/bin", 0o755)
	os.Symlink("/usr/bin", ws+"/usr")
	for _, c := range []struct {
		env string
		bad bool
	}{
		{"PATH=" + searchPath, false},
		{"PATH=/usr/bin", false},
		{"PATH=/usr/bin:/bin", false},
		{"PATH=/usr/bin/palyra-none", false}, // only root can make it
		{"PATH=/nonexistent", false},
		{"PATH=", true},
		{"PATH=:/usr/bin", true},
		{"PATH=/usr/bin:", true},
		{"PATH=/usr/bin::/bin", true},
		{"PATH=bin", true},
		{"PATH=./bin:/usr/bin", true},
		{"PATH=.", true},
		{"PATH=/workspace/bin:/usr/bin", true},
		{"PATH=/usr/bin:/workspace/bin", true},
		{"PATH=//workspace/bin", true},
		{"PATH=/usr/../workspace/bin", true},
		{"PATH=/tmp", true},
		{"PATH=/dev/shm", true},
		{"PATH=/proc/self/cwd", true},
		{"PATH=" + ws + "/bin", true},
		{"PATH=" + ws + "/usr", true},
		{"PATH=~/bin", true},
		{"PATH=$HOME/bin", true},
		{"HOME=/tmp", false}, // as every call has it
		{"HOME=/tmp/x", true},
		{"HOME=/workspace", true},
		{"HOME=/nonexistent", false},
		{"HOME=/usr/share", false},
		{"SHELL=/bin/sh", false},
		{"SHELL=/workspace/sh", true},
		{"SHELL=sh", true},
		{"JAVA_HOME=/workspace/jdk", true},
		{"XDG_DATA_DIRS=/usr/share:/workspace", true},
		{"XDG_DATA_DIRS=/usr/share", false},
		{"TEXINPUTS=/usr/share;/workspace", true},
		{"PKG_CONFIG_PATH=/workspace", true},
		{"GOROOT=/workspace/go", true},
		{"LANG=de_DE.UTF-8", false},
		{"LANG=/workspace", true},
		{"LANGUAGE=de:en", false},
		{"LANGUAGE=../../../workspace", true}, // below /usr/share/locale
		{"LANGUAGE=de:../../../workspace", true},
		{"LC_ALL=/usr/lib/locale/C.utf8", false},
		{"LC_MESSAGES=/workspace/de", true},
		{"CI=/workspace", false},
	} {
		p := proposal("true")
		p.Workspace, p.Env = ws, []string{c.env}
		s := mustSeal(t, p)
		name, _, _ := strings.Cut(c.env, "=")
		if got := slices.Equal(s.envCode, []string{name}); got != c.bad || len(s.envCode) > 1 {
			t.Errorf("%s: got %q", c.env, s.envCode)
		}
	}
	// At tier B the workspace has its own name.
	p := proposal("true")
	p.Workspace, p.TierFloor, p.Env = ws, tier.B, []string{"PATH=" + ws + "/bin"}
	if s := mustSeal(t, p); len(s.envCode) != 1 {
		t.Error("tier b: a folder of the workspace is settled")
	}
}

// TestEnvironmentIsSeen: policy and approver see the names and values that differ, and no
// others. A variable that leads to code of the workspace causes a denial that names it.
func TestEnvironmentIsSeen(t *testing.T) {
	ws := t.TempDir()
	p := proposal("find", "/usr", "-maxdepth", "0", "-exec", "ls", "-d", "{}", "+")
	p.Workspace, p.Env = ws, []string{"PATH=/workspace/bin:/usr/bin", "A_1=x\ny", "LANG=C.UTF-8"}
	s := mustSeal(t, p)
	q := question(&Caller{Principal: localUser()}, s, p)
	if want := []string{"A_1=x\ny", "PATH=/workspace/bin:/usr/bin"}; !slices.Equal(q.Context.Env, want) {
		t.Errorf("policy sees %q", q.Context.Env)
	}
	text := approval.Card(cardOf(s, policy.Decision{}, policy.Default(), "", 0))
	path, other := strings.Index(text, `set to      "PATH=/workspace/bin:/usr/bin"`), strings.Index(text, `set to      "A_1=x\ny"`)
	if path < 0 || other < path || strings.Contains(text, "LANG=") {
		t.Errorf("the card is\n%s", text)
	}
	if text := approval.Card(cardOf(mustSeal(t, proposal("true")), policy.Decision{}, policy.Default(), "", 0)); strings.Contains(text, "set to") {
		t.Errorf("the card of a plain call is\n%s", text)
	}

	h := openHouse(t, Config{})
	o, err := h.Call(t.Context(), *p, IO{})
	if err != nil || o.Outcome != receipt.Denied || !slices.Equal(o.Decision.Policies, []string{"env_code_unless_named"}) {
		t.Fatalf("got %+v, %v", o.Decision, err)
	}
	if o.Error == nil || o.Error.Kind != fault.Denied.String() || !strings.Contains(o.Error.Text, "PATH") || strings.Contains(o.Error.Text, "A_1") {
		t.Errorf("the denial says %+v", o.Error)
	}
	if strings.Contains(string(o.Receipt), "workspace/bin") || strings.Contains(string(o.Receipt), "A_1=") {
		t.Error("a value is in the receipt")
	}
}

// TestReplayWithoutValues: sets that don't read variables' values can decide a recorded call
// that set variables again; others can't.
func TestReplayWithoutValues(t *testing.T) {
	h := openHouse(t, Config{})
	h.call(&Proposal{Tool: ToolRun, Argv: []string{"true"}, Env: []string{"CI=1", "HOME=/nonexistent"}}, IO{})
	h.call(&Proposal{Tool: ToolRun, Argv: []string{"true"}, Env: []string{"HOME=/tmp/x"}}, IO{})
	h.call(proposal("true"), IO{})
	st, err := h.JournalStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	size := st.Size
	set := func(cond string) *policy.Set {
		dir := t.TempDir()
		put(t, dir+"/a.cedar", `@id("a") permit (principal, action, resource);
			@id("b") @untested("x") forbid (principal, action == Palyra::Action::"tool.execute", resource) when { `+cond+` };`, 0o644)
		s, err := policy.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for cond, want := range map[string][2]int{ // decided, changed
		`context.env.contains("CI=1")`:         {1, 0},
		`context.env_names.contains("CI")`:     {3, 1},
		`context.env_names.contains("HOME")`:   {3, 2},
		`context.env_names.contains("PATH")`:   {3, 0},
		`context.env_code.contains("HOME")`:    {3, 1},
		`context.unpinned.contains("library")`: {3, 0},
	} {
		r, err := Replay(t.Context(), h.JournalEntries, size, 10, set(`context.tier == "a"`), set(cond))
		if err != nil || r.Decided != want[0] || len(r.Changed) != want[1] {
			t.Errorf("%s: %d decided, %d changed, %v", cond, r.Decided, len(r.Changed), err)
		}
	}
}

// TestUnpinnedVocabulary: policy knows every kind that a capsule has.
func TestUnpinnedVocabulary(t *testing.T) {
	for _, kind := range capsule.Kinds() {
		q := policy.Request{Principal: localUser(), Action: policy.ToolExecute, Resource: policy.Tool(ToolRun),
			Context: policy.Context{Unpinned: []string{kind}}}
		if d := policy.Default().Decide(q); d.Reason == policy.ReasonBadRequest {
			t.Errorf("%s: %v", kind, d.Errors)
		}
	}
}

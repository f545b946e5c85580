package kernel

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
)

// TestSecretsOfOne: a value is a matter of the principal that it was given to. The others' output
// has it, and their calls may, be it a word that everyone uses.
func TestSecretsOfOne(t *testing.T) {
	const value, ref = "workspace", "w=vault://global/word"
	dir := t.TempDir()
	put(t, dir+"/a.cedar", `@id("all") permit (principal, action, resource);`+"\n", 0o600)
	h := openHouse(t, Config{PolicyDir: dir, Vault: vaultWith(t, map[string]string{"vault://global/word": value})})
	alice, bob := policy.LocalUser("alice"), policy.LocalUser("bob")
	echo := Proposal{Tool: ToolRun, Argv: []string{"sh", "-c", "echo work''space"}}
	for _, c := range []struct {
		name   string
		who    policy.Entity
		p      Proposal
		stdout string
		reason string
	}{
		{"alice gets it", alice, Proposal{Tool: ToolRun, Argv: []string{"cat", "/run/secrets/w"}, Secrets: []string{ref}}, "[secret word]", ""},
		{"alice prints it again", alice, echo, "[secret word]\n", ""},
		{"bob prints it", bob, echo, value + "\n", ""},
		{"alice's call has it", alice, Proposal{Tool: ToolRun, Argv: []string{"echo", value}}, "", "secret_in_call"},
		{"bob's call has it", bob, Proposal{Tool: ToolRun, Argv: []string{"echo", value}}, value + "\n", ""},
		{"bob gets it", bob, Proposal{Tool: ToolRun, Argv: []string{"cat", "/run/secrets/w"}, Secrets: []string{ref}}, "[secret word]", ""},
		{"bob prints it again", bob, echo, "[secret word]\n", ""},
	} {
		var out bytes.Buffer
		o, err := h.CallAs(t.Context(), Caller{Principal: c.who}, c.p, IO{Stdout: &out})
		if fault.ReasonOf(err) != c.reason || out.String() != c.stdout || c.reason == "" && o.Outcome != receipt.Executed {
			t.Errorf("%s: %+v, %v, printed %q", c.name, o, err, out.String())
		}
	}
}

// TestOurNames: the members of our own tools are no caller's words, and all other text is.
func TestOurNames(t *testing.T) {
	h := openHouse(t, Config{PolicyDir: func() string {
		dir := t.TempDir()
		put(t, dir+"/a.cedar", `@id("all") permit (principal, action, resource);`+"\n", 0o600)
		return dir
	}(), Vault: vaultWith(t, map[string]string{"vault://global/word": "workspace", "vault://global/foreign": "password", "vault://global/whole": `"argv":["x"]`})})
	who := policy.LocalUser("alice")
	if o, err := h.CallAs(t.Context(), Caller{Principal: who}, Proposal{Tool: ToolRun, Argv: []string{"true"},
		Secrets: []string{"a=vault://global/word", "b=vault://global/foreign", "c=vault://global/whole"}}, IO{}); err != nil || o.Outcome != receipt.Executed {
		t.Fatal(o, err)
	}
	for text, want := range map[string]bool{
		`{"workspace":"src"}`:                         false,
		`{ "workspace" : "src" , "argv" : ["x"] }`:    false,
		`[{"a":[{"workspace":[]},{"workspace":{}}]}]`: false,
		`{"workspace":"workspace"}`:                   true,
		`{"argv":["workspace"]}`:                      true,
		`{"argv":[{"workspace":1},"workspace"]}`:      true,
		`{"workspaces":1}`:                            true, // none of ours
		`{"a_workspace":1}`:                           true,
		`{"password":"x"}`:                            true,
		`{"workspace":"src","argv":["x"]}`:            true, // a value with a name in it
		`{"workspace":"src"`:                          false,
		`{"a":tru, "workspace":"src"}`:                true, // no JSON
		`"workspace"`:                                 true,
		`workspace`:                                   true,
		`{"workspace":"src"} {"argv":"workspace"}`:    true,
		``: false,
	} {
		if got := h.HoldsSecret(&who, []byte(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	other := policy.LocalUser("bob")
	if h.HoldsSecret(&other, []byte(`{"workspace":"workspace"}`)) {
		t.Error("of another principal")
	}
}

// TestSecretInHead: the part of an input that a person is shown has no value, and no beginning of
// one that it cuts off.
func TestSecretInHead(t *testing.T) {
	const value = "correct horse battery"
	dir := t.TempDir()
	put(t, dir+"/a.cedar", `@id("expose") permit (principal, action == Palyra::Action::"vault.expose", resource);
@id("true") permit (principal, action == Palyra::Action::"tool.execute", resource) when { context.approved || context.stdin == "none" };
`, 0o600)
	h := openHouse(t, Config{PolicyDir: dir, Vault: vaultWith(t, map[string]string{"vault://global/key": value})})
	alice := policy.LocalUser("alice")
	if o, err := h.CallAs(t.Context(), Caller{Principal: alice}, Proposal{Tool: ToolRun, Argv: []string{"true"}, Secrets: []string{"k=vault://global/key"}}, IO{}); err != nil || o.Outcome != receipt.Executed {
		t.Fatal(o, err)
	}
	full := strings.Repeat("x", approval.MaxStdinHead-10)
	for text, want := range map[string]string{
		"it is " + value:        "it is [secret key]",
		full + value + " more":  full,
		full + value[:10]:       full + value[:10], // no value
		full + value[:9] + "..": full + value[:9] + ".",
	} {
		var shown string
		x := answer{while: func(q approval.Request) { shown = q.Call.StdinHead }}
		o, err := h.CallAs(t.Context(), Caller{Principal: alice, Approver: x}, Proposal{Tool: ToolRun, Argv: []string{"cat"}, Stdin: StdinSealed}, IO{Stdin: strings.NewReader(text)})
		if err != nil || o.Outcome != receipt.NotApproved {
			t.Fatal(o, err)
		}
		if shown != want {
			t.Errorf("of %q a person sees %q", text[max(0, len(text)-40):], shown[max(0, len(shown)-40):])
		}
	}
}

// TestSecretInName: the receipt lists what a program left in its workspace, and no value in a name.
func TestSecretInName(t *testing.T) {
	const value = "correct-horse-battery"
	dir, workspace := t.TempDir(), t.TempDir()
	put(t, dir+"/a.cedar", `@id("all") permit (principal, action, resource);`+"\n", 0o600)
	h := openHouse(t, Config{PolicyDir: dir, Vault: vaultWith(t, map[string]string{"vault://global/key": value})})
	o, err := h.Call(t.Context(), Proposal{Tool: ToolRun, Workspace: workspace, Secrets: []string{"k=vault://global/key"}, Argv: []string{"sh", "-c",
		"mkdir -p .git/hooks; cd .git/hooks; k=$(cat /run/secrets/k); echo >$k; echo >a-$(printf %s $k | base64); ln -s $k post-commit; chmod +x *"}}, IO{})
	if err != nil || o.Outcome != receipt.Executed {
		t.Fatal(o, err)
	}
	h.verify(o)
	if n := len(o.Planted.Found); n == 0 || bytes.Contains(o.Receipt, []byte(value)) {
		t.Errorf("%+v", o.Planted)
	}
	for _, f := range o.Planted.Found {
		if s := f.Path + f.Target; !strings.Contains(s, "[secret key]") && !strings.HasSuffix(f.Path, ".git/hooks") && !strings.HasSuffix(f.Path, ".git") {
			t.Errorf("%+v", f)
		}
	}
	if _, err := os.Lstat(workspace + "/.git/hooks/" + value); err != nil { // the control
		t.Error(err)
	}
}

// TestManySecretsInName: masks that are longer than their values don't keep a result from the record.
func TestManySecretsInName(t *testing.T) {
	key := strings.Repeat("k", 128)
	dir, workspace := t.TempDir(), t.TempDir()
	put(t, dir+"/a.cedar", `@id("all") permit (principal, action, resource);`+"\n", 0o600)
	h := openHouse(t, Config{PolicyDir: dir, Vault: vaultWith(t, map[string]string{"vault://global/" + key: "8 bytes."})})
	o, err := h.Call(t.Context(), Proposal{Tool: ToolRun, Workspace: workspace, Secrets: []string{"k=vault://global/" + key}, Argv: []string{"sh", "-c",
		`n=$(for i in $(seq 31); do cat /run/secrets/k; done); for i in $(seq 14); do mkdir "$n"; cd "$n"; done; mkdir -p .git/hooks; echo >.git/hooks/pre-commit; chmod +x .git/hooks/*`}}, IO{})
	if err != nil || o.Outcome != receipt.Executed {
		t.Fatal(o, err)
	}
	h.verify(o)
	if len(o.Planted.Found) == 0 || bytes.Contains(o.Receipt, []byte("8 bytes.")) {
		t.Errorf("%+v", o.Planted)
	}
}

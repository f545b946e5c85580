package kernel

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	sealing "palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate/tier"
)

// vaultWith is a vault with secrets, made when it's first used.
func vaultWith(t *testing.T, secrets map[string]string) VaultUser {
	t.Helper()
	id, err := sealing.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(id.Wipe)
	pub, err := id.Recipient("owner")
	if err != nil {
		t.Fatal(err)
	}
	dir, made := filepath.Join(t.TempDir(), "vault"), false
	return func(ctx context.Context, l vault.Ledger, use func(*vault.Vault) error) error {
		if made {
			v, err := vault.Open(ctx, dir, l, id)
			if err != nil {
				return err
			}
			defer v.Close()
			return use(v)
		}
		made = true
		v, err := vault.Create(ctx, dir, l, id, pub)
		if err != nil {
			return err
		}
		defer v.Close()
		for ref, value := range secrets {
			if err := store(ctx, v, ref, value, time.Time{}); err != nil {
				return err
			}
		}
		return use(v)
	}
}

func store(ctx context.Context, v *vault.Vault, ref, value string, expires time.Time) error {
	r, err := vault.ParseRef(ref)
	if err != nil {
		return err
	}
	d, err := v.Draft(ctx, r, []byte(value), expires)
	if err != nil {
		return err
	}
	return v.Store(ctx, d, d.Digest())
}

// TestSecrets: a program reads what was decided about: the version that was the newest when the
// call was sealed. If that is gone when the program is about to start, the call is refused.
func TestSecrets(t *testing.T) {
	const first, second, token = "the first value", "the second value", "vault://global/token"
	user := vaultWith(t, map[string]string{token: first})
	dir := t.TempDir()
	put(t, dir+"/a.cedar", `@id("all") permit (principal, action, resource);`+"\n", 0o600)
	var h *house
	var sealed func()
	h = openHouse(t, Config{Vault: user, PolicyDir: dir, TestOnlyStep: func(s string) {
		if s == "sealed" && sealed != nil {
			sealed()
		}
	}})
	with := func(f func(v *vault.Vault) error) func() {
		return func() {
			if err := user(t.Context(), h.VaultLedger(), f); err != nil {
				t.Error(err)
			}
		}
	}
	ref, err := vault.ParseRef(token)
	if err != nil {
		t.Fatal(err)
	}
	p := Proposal{Tool: ToolRun, Argv: []string{"wc", "-c", "/run/secrets/t"}, Secrets: []string{"t=" + token}}
	for _, c := range []struct {
		name    string
		between func()
		outcome string
		reason  string
		version uint64
		stdout  string
	}{
		{"the newest", nil, receipt.Executed, "", 1, first},
		{"a newer one that comes later", with(func(v *vault.Vault) error { return store(t.Context(), v, token, second, time.Time{}) }), receipt.Executed, "", 1, first},
		{"the next call", nil, receipt.Executed, "", 2, second},
		{"removed meanwhile", with(func(v *vault.Vault) error { return v.Remove(t.Context(), ref) }), receipt.Refused, "not_found", 2, ""},
		{"and stored again", with(func(v *vault.Vault) error { return store(t.Context(), v, token, first, time.Time{}) }), "", "not_found", 0, ""},
		{"under a new key", with(func(v *vault.Vault) error { return v.RotateKey(t.Context()) }), "", "", 0, ""},
	} {
		sealed = c.between
		if c.outcome == "" && c.reason != "" { // nothing to seal
			if _, err := h.Call(t.Context(), p, IO{}); fault.ReasonOf(err) != c.reason {
				t.Errorf("%s: %v", c.name, err)
			}
			c.between()
			continue
		}
		if c.outcome == "" {
			c.outcome, c.version, c.stdout = receipt.Executed, 3, first
		}
		var out bytes.Buffer
		o, err := h.Call(t.Context(), p, IO{Stdout: &out})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		st := h.verify(o).Statement.Predicate
		if o.Outcome != c.outcome || c.stdout != "" && out.String() != fmt.Sprintf("%d /run/secrets/t\n", len(c.stdout)) || c.reason != "" && o.Error.Reason != c.reason {
			t.Errorf("%s: %s %+v, read %q", c.name, o.Outcome, o.Error, out.String())
		}
		if s := st.Capsule.Secrets; len(s) != 1 || s[0].Version != c.version || s[0].Ref != token || s[0].Record.IsZero() {
			t.Errorf("%s: the receipt has %+v", c.name, s)
		}
		if c.outcome == receipt.Executed && !bytes.Contains(st.Evidence, []byte(`"secrets":{"basis":"observed","files":["t"]}`)) {
			t.Errorf("%s: evidence %s", c.name, st.Evidence)
		}
		if whole := string(o.Receipt) + string(o.Capsule); strings.Contains(whole, first) || strings.Contains(whole, second) {
			t.Errorf("%s: a value stands in the receipt", c.name)
		}
	}
}

// TestSecretsRefused: what isn't one call's to have.
func TestSecretsRefused(t *testing.T) {
	past := func(t *testing.T) VaultUser {
		user := vaultWith(t, nil)
		return func(ctx context.Context, l vault.Ledger, use func(*vault.Vault) error) error {
			return user(ctx, l, func(v *vault.Vault) error {
				if err := store(ctx, v, "vault://global/old", "value", time.Now().Add(-time.Hour)); err != nil {
					return err
				}
				return use(v)
			})
		}
	}
	for name, c := range map[string]struct {
		vault  func(*testing.T) VaultUser
		p      Proposal
		reason string
	}{
		"no vault":      {nil, Proposal{Secrets: []string{"t=vault://global/old"}}, "not_found"},
		"expired":       {past, Proposal{Secrets: []string{"t=vault://global/old"}}, "secret_expired"},
		"at tier b":     {past, Proposal{TierFloor: tier.B, Secrets: []string{"t=vault://global/old"}}, "invalid_input"},
		"no name":       {past, Proposal{Secrets: []string{"vault://global/old"}}, "invalid_input"},
		"no reference":  {past, Proposal{Secrets: []string{"t=old"}}, "invalid_input"},
		"too many":      {past, Proposal{Secrets: make([]string, 9)}, "too_large"},
		"beside a tool": {past, Proposal{Tool: "x", Input: []byte(`{}`), Secrets: []string{"t=vault://global/old"}}, "invalid_input"},
	} {
		var user VaultUser
		if c.vault != nil {
			user = c.vault(t)
		}
		h := openHouse(t, Config{Vault: user})
		if c.p.Tool == "" {
			c.p.Tool, c.p.Argv = ToolRun, []string{"true"}
		}
		if o, err := h.CallAs(t.Context(), Caller{Principal: policy.LocalUser("u")}, c.p, IO{}); fault.ReasonOf(err) != c.reason || o != nil {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
}

// TestScrubbed: what a program prints of a secret, in any of its encodings, reaches neither the
// caller nor a record, also from a later call; the receipt's digest is that of what is left. A call
// that has the value itself is refused.
func TestScrubbed(t *testing.T) {
	const value, short = "correct horse & battery", "1234567"
	state := t.TempDir()
	workspace := t.TempDir()
	dir := t.TempDir()
	put(t, dir+"/a.cedar", `@id("all") permit (principal, action, resource);`+"\n", 0o600)
	h := openHouse(t, Config{StateDir: filepath.Join(state, "s"), PolicyDir: dir, Vault: vaultWith(t, map[string]string{"vault://global/key": value, "vault://global/pin": short})})
	run := func(workspace, script string, secrets ...string) (string, string, *Outcome) {
		t.Helper()
		var out, errs bytes.Buffer
		o, err := h.Call(t.Context(), Proposal{Tool: ToolRun, Argv: []string{"sh", "-c", script}, Workspace: workspace, Secrets: secrets}, IO{Stdout: &out, Stderr: &errs})
		if err != nil || o.Outcome != receipt.Executed {
			t.Fatalf("%s: %v, %+v", script, err, o)
		}
		return out.String(), errs.String(), o
	}
	const both = "key=vault://global/key"
	out, errs, o := run(workspace, `cd /run/secrets; cat key; echo; base64 -w0 key; echo; { printf user:; cat key; } | base64 -w0; echo; od -An -v -tx1 key | tr -d ' \n'; echo
		for c in $(seq 1 23); do dd if=key bs=1 skip=$((c-1)) count=1 2>/dev/null; done; echo; cat pin; cat key >&2; cp key /workspace/copy; false || true`, both, "pin=vault://global/pin")
	lines := strings.Split(out, "\n")
	if len(lines) != 6 || lines[0] != "[secret key]" || lines[1] != "[secret key]" || !strings.Contains(lines[2], "[secret key]") || len(lines[2]) > 24 || lines[3] != "[secret key]" ||
		lines[4] != "[secret key]" || lines[5] != short || errs != "[secret key]" {
		t.Errorf("printed %q and %q", lines, errs)
	}
	if e := o.Result.Evidence.Output; e.StdoutBytes != int64(len(out)) || e.StdoutDigest != canon.Sum([]byte(out)) || e.StderrDigest != canon.Sum([]byte(errs)) {
		t.Errorf("the receipt says %+v of %q", e, out)
	}
	// It told the value to its workspace, where the next call finds it.
	if out, _, _ := run(workspace, "cat copy"); out != "[secret key]" {
		t.Errorf("another call printed %q", out)
	}
	if out, _, _ := run("", "echo correct horse; echo '& battery'"); out != "correct horse\n& battery\n" {
		t.Errorf("parts of it: %q", out)
	}
	for _, p := range []Proposal{
		{Tool: ToolRun, Argv: []string{"echo", "it is " + value}},
		{Tool: ToolRun, Argv: []string{"env"}, Env: []string{"KEY=" + value}},
		{Tool: "x", Input: []byte(`{"key":"correct horse \u0026 battery"}`)},
	} {
		if o, err := h.Call(t.Context(), p, IO{}); fault.ReasonOf(err) != "secret_in_call" || o != nil || strings.Contains(err.Error(), value) {
			t.Errorf("%q: %v, %v", p.Argv, o, err)
		}
	}
	if err := filepath.WalkDir(state, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(value)) {
			t.Errorf("%s has it", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(workspace + "/copy"); string(b) != value { // the control
		t.Errorf("the workspace has %q, %v", b, err)
	}
}

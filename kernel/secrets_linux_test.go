package kernel

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	sealing "palyra/crypt/seal"
	"palyra/crypt/vault"
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
	p := Proposal{Tool: ToolRun, Argv: []string{"cat", "/run/secrets/t"}, Secrets: []string{"t=" + token}}
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
		if o.Outcome != c.outcome || out.String() != c.stdout || c.reason != "" && o.Error.Reason != c.reason {
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

package local

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/crypt/scrub"
	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// vaultEach is how many secrets a member makes there. TestVaultOperations makes three.
const vaultEach = 4

// newVaultHouse is a house with a vault that it can open.
func newVaultHouse(t *testing.T, more func(*Config, *kernel.Config)) *house {
	t.Helper()
	id, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	var h *house
	known := scrub.New()
	h = newHouse(t, func(c *Config, k *kernel.Config) {
		first, err := kernel.Open(t.Context(), kernel.Config{StateDir: k.StateDir})
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(k.StateDir, "vault")
		pub, err := id.Recipient("owner")
		if err != nil {
			t.Fatal(err)
		}
		v, err := vault.Create(t.Context(), dir, first.VaultLedger(), id, pub)
		if err != nil {
			t.Fatal(err)
		}
		v.Close()
		first.Close()
		open := func(ctx context.Context, l vault.Ledger) (*vault.Vault, error) { return vault.Open(ctx, dir, l, id) }
		k.Scrub = known
		k.Vault = func(ctx context.Context, l vault.Ledger, use func(*vault.Vault) error) error {
			v, err := open(ctx, l)
			if err != nil {
				return err
			}
			defer v.Close()
			return use(v)
		}
		k.Tools = tool.New(tool.Config{Program: filepath.Join(bin(t), "palyra-tool"), Vault: &tool.Vault{Scrub: known, Each: vaultEach,
			Open: func(ctx context.Context) (*vault.Vault, error) { return open(ctx, h.k.VaultLedger()) }}})
		if more != nil {
			more(c, k)
		}
	})
	return h
}

// request does an operation as a surface does: what it holds is given back when it was answered.
func request[In, Out any](h *house, op hub.Op[In, Out], c hub.Caller, in In) (Out, error) {
	ctx, answered := budget.Request(h.t.Context())
	defer answered()
	return op.Do(ctx, h, c, in)
}

// executed fails unless the one step of a result was executed, and returns it.
func (h *house) executed(r hub.VaultResult, err error) hub.VaultResult {
	h.t.Helper()
	if err != nil || len(r.Run.Steps) != 1 || r.Run.Steps[0].Outcome != "executed" || r.Run.Steps[0].Exit != 0 {
		h.t.Fatalf("%+v, %v", r.Run, err)
	}
	return r
}

// answered answers the question about the next call in a session of c, as by.
func (h *house) answered(c, by hub.Caller, session string, yes bool) func() {
	h.t.Helper()
	var wg sync.WaitGroup
	before, err := hub.ListRuns.Do(h.t.Context(), h, c, hub.RunQuery{Session: session})
	if err != nil {
		h.t.Fatal(err)
	}
	wg.Go(func() {
		for h.t.Context().Err() == nil {
			p, err := hub.ListRuns.Do(h.t.Context(), h, c, hub.RunQuery{Session: session})
			if err != nil || len(p.Items) == len(before.Items) {
				continue
			}
			h.until(c, p.Items[0].ID, hub.EventRunWaitingApproval)
			q, err := hub.ListApprovals.Do(h.t.Context(), h, by, hub.ApprovalQuery{State: hub.ApprovalPending})
			if err == nil && len(q.Items) == 1 {
				_, err = hub.ResolveApproval.Do(h.t.Context(), h, by, hub.Resolution{ID: q.Items[0].ID, Answer: hub.Answer{Approve: yes}})
			}
			if err != nil || len(q.Items) != 1 {
				h.t.Errorf("%d questions, %v", len(q.Items), err)
			}
			return
		}
	})
	return wg.Wait
}

const hush = "correct horse battery"

// TestVaultOperations: each operation is one call, decided and attested; what reveals or destroys is
// asked about; and no value is anywhere but in the answer.
func TestVaultOperations(t *testing.T) {
	h := newVaultHouse(t, nil)
	ctx := t.Context()
	admin := h.member(1001, access.Admin)
	const token = "vault://global/token"

	r := h.executed(request(h, hub.SetSecret, admin, hub.SecretValue{Ref: token, Value: []byte(hush)}))
	if len(r.Secrets) != 1 || r.Secrets[0].Version != 1 || r.Value != nil {
		t.Errorf("set: %+v", r.Secrets)
	}
	if p := h.verify(r.Run.Steps[0]).Statement.Predicate; p.Capsule.Argv[1] != toolproto.VaultSet || p.Capsule.Argv[2] != token {
		t.Errorf("the receipt is about %q", p.Capsule.Argv)
	}
	in := hub.SecretImport{Secrets: []hub.NewSecret{{Ref: "vault://skill:x/a", Value: []byte("first " + hush)}, {Ref: "vault://skill:x/b", Value: []byte("second " + hush), Expires: "2125-01-02T03:04:05Z"}}}
	if r = h.executed(request(h, hub.ImportSecrets, admin, in)); len(r.Secrets) != 2 || r.Secrets[1].Expires == nil {
		t.Errorf("import: %+v", r.Secrets)
	}
	if len(bytes.Trim(in.Secrets[0].Value, "\x00")) > 0 {
		t.Error("the value that came in wasn't cleared")
	}
	if r = h.executed(request(h, hub.ListSecrets, admin, hub.SecretQuery{})); len(r.Secrets) != 3 || r.Secrets[0].Ref != token || r.Secrets[0].Size != len(hush) {
		t.Errorf("list: %+v", r.Secrets)
	}

	ses := h.session(admin)
	wait := h.answered(admin, h.owner, ses, false)
	no, err := request(h, hub.RevealSecret, admin, hub.SecretVersion{Session: ses, Ref: token})
	if wait(); err != nil || no.Run.Steps[0].Outcome != "not_approved" || no.Value != nil || len(no.Secrets) > 0 {
		t.Errorf("after a no: %+v, %v", no.Run.Steps, err)
	}
	wait = h.answered(admin, h.owner, ses, true)
	r = h.executed(request(h, hub.RevealSecret, admin, hub.SecretVersion{Session: ses, Ref: token}))
	if wait(); string(r.Value) != hush || r.Secrets[0].Version != 1 {
		t.Errorf("revealed %d bytes, %+v", len(r.Value), r.Secrets)
	}
	h.executed(request(h, hub.SetSecret, admin, hub.SecretValue{Ref: token, Value: []byte("another value")}))
	h.executed(request(h, hub.RollBackSecret, admin, hub.SecretRollback{Ref: token, Version: 1}))
	const until = "2125-01-02T03:04:05Z"
	r = h.executed(request(h, hub.RollBackSecret, admin, hub.SecretRollback{Ref: token, Version: 1, Expires: until}))
	if e := r.Secrets[0].Expires; e == nil || e.Format(time.RFC3339) != until {
		t.Errorf("rolled back until %v, want %s", e, until)
	}
	if r = h.executed(request(h, hub.ListSecrets, admin, hub.SecretQuery{Ref: token})); len(r.Secrets) != 4 || r.Secrets[2].Size != len(hush) {
		t.Errorf("history: %+v", r.Secrets)
	}
	wait = h.answered(admin, h.owner, ses, true)
	r = h.executed(request(h, hub.ExportSecrets, admin, hub.SecretExport{Session: ses, To: "age1sly849uz2uwdqseqcg5pd2gfjse3as6wrzrefs9naw3tq6snuy4qzey7ec"}))
	if wait(); !bytes.HasPrefix(r.File, []byte("age-encryption.org/v1\n")) || bytes.Contains(r.File, []byte(hush)) || len(r.Secrets) != 3 {
		t.Errorf("export: %d bytes, %+v", len(r.File), r.Secrets)
	}
	wait = h.answered(admin, h.owner, ses, true)
	h.executed(request(h, hub.RemoveSecret, admin, hub.SecretName{Session: ses, Ref: "vault://skill:x/a"}))
	wait()
	wait = h.answered(admin, h.owner, ses, true)
	h.executed(request(h, hub.RotateVault, admin, hub.VaultRotation{Session: ses}))
	wait()

	away, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := away.Recipient("safe")
	if err != nil {
		t.Fatal(err)
	}
	for _, yes := range []bool{false, true} {
		wait = h.answered(admin, h.owner, ses, yes)
		r, err := request(h, hub.AddVaultRecipient, admin, hub.NewVaultRecipient{Session: ses, Label: "safe", Recipient: string(pub.Encode())})
		if wait(); err != nil || len(r.Run.Steps) != 1 || (r.Run.Steps[0].Outcome == "executed") != yes {
			t.Fatalf("add: %+v, %v", r.Run.Steps, err)
		}
		v, err := vault.Open(ctx, filepath.Join(h.base, "state", "vault"), h.k.VaultLedger(), away)
		if (err == nil) != yes {
			t.Errorf("opened with the key after %v: %v", yes, err)
		}
		if err == nil {
			v.Close()
		}
	}
	if _, err := request(h, hub.AddVaultRecipient, admin, hub.NewVaultRecipient{Session: ses, Label: "x", Recipient: "palyra-recipient-1:x"}); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("no key: %v", err)
	}
	wait = h.answered(admin, h.owner, ses, true)
	h.executed(request(h, hub.RotateVault, admin, hub.VaultRotation{Session: ses, Drop: []string{"safe"}}))
	wait()
	s, err := hub.VerifyVault.Do(ctx, h, admin, hub.None{})
	if err != nil || s.Versions != 5 || len(s.Recipients) != 1 || s.Recipients[0].Label != "owner" {
		t.Errorf("verify: %+v, %v", s, err)
	}
	if err := h.st.Check(ctx); err != nil { // writes what it has
		t.Error(err)
	}
	kept := 0
	if err := filepath.WalkDir(h.base, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(token)) {
			kept++
		}
		for _, text := range []string{hush, "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5", "another value"} {
			if bytes.Contains(b, []byte(text)) {
				t.Errorf("%s has %q", path, text)
			}
		}
		return err
	}); err != nil || kept == 0 {
		t.Errorf("%d files name the secret: %v", kept, err)
	}
}

// TestVaultQuota: a member, and a token of the owner's, make so many secrets, by themselves or by an
// import, and the owner isn't bound.
func TestVaultQuota(t *testing.T) {
	h := newVaultHouse(t, nil)
	set := func(c hub.Caller, key string) string {
		t.Helper()
		r, err := request(h, hub.SetSecret, c, hub.SecretValue{Ref: "vault://global/" + key, Value: []byte(hush)})
		if err != nil || len(r.Run.Steps) != 1 {
			t.Fatalf("%+v, %v", r.Run, err)
		}
		return r.Run.Steps[0].Reason
	}
	token, _ := h.token(h.owner, "run.start", "session.read", "session.write", "vault.manage")
	token.Surface = surfaceToken
	for name, c := range map[string]hub.Caller{"a": h.member(1001, access.Admin), "t": token} {
		for i := range vaultEach {
			if reason := set(c, fmt.Sprint(name, i)); reason != "" {
				t.Errorf("%s %d: %s", name, i, reason)
			}
		}
		if reason := set(c, name+"more"); reason != "quota" {
			t.Errorf("one more of %s: %q", name, reason)
		}
		if reason := set(c, name+"1"); reason != "" {
			t.Errorf("another version of %s: %q", name, reason)
		}
		r, err := request(h, hub.ImportSecrets, c, hub.SecretImport{Secrets: []hub.NewSecret{{Ref: "vault://global/" + name + "i", Value: []byte(hush)}}})
		if err != nil || r.Run.Steps[0].Reason != "quota" {
			t.Errorf("an import of %s: %+v, %v", name, r.Run.Steps, err)
		}
	}
	for i := range vaultEach + 2 {
		if reason := set(h.owner, fmt.Sprint("o", i)); reason != "" {
			t.Errorf("the owner's %d: %s", i, reason)
		}
	}
}

// TestVaultCallers: who may not, and by which connections not.
func TestVaultCallers(t *testing.T) {
	h := newVaultHouse(t, nil)
	ctx := t.Context()
	set := func(c hub.Caller) error {
		r, err := request(h, hub.SetSecret, c, hub.SecretValue{Ref: "vault://global/token", Value: []byte(hush)})
		if err == nil && r.Run.Steps[0].Outcome != "executed" {
			t.Errorf("%+v", r.Run.Steps)
		}
		return err
	}
	operator := h.member(1002, access.Operator)
	if err := set(operator); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("an operator: %v", err)
	}
	agent, _ := h.token(h.owner, "run.start", "session.read", "session.write", "artifact.read")
	if err := set(agent); fault.KindOf(err) != fault.Denied {
		t.Errorf("an owner's agent: %v", err)
	}
	over, _ := h.token(h.owner, "run.start", "session.read", "session.write", "vault.manage")
	if err := set(over); fault.ReasonOf(err) != "connection_not_private" {
		t.Errorf("a token over TCP: %v", err)
	}
	over.Surface = hub.SurfaceConsole
	if err := set(over); fault.ReasonOf(err) != "connection_not_private" {
		t.Errorf("from the console: %v", err)
	}
	if _, err := request(h, hub.RevealSecret, over, hub.SecretVersion{Ref: "vault://global/token"}); fault.ReasonOf(err) != "connection_not_private" {
		t.Errorf("a reveal from the console: %v", err)
	}
	over.Surface = surfaceToken
	if err := set(over); err != nil {
		t.Errorf("the same over the unix socket: %v", err)
	}
	over.Surface = hub.SurfaceConsole
	if r := h.executed(request(h, hub.ListSecrets, over, hub.SecretQuery{})); len(r.Secrets) != 1 || r.Secrets[0].By != h.owner.User || r.Value != nil {
		t.Errorf("the console's list: %+v", r.Secrets)
	}
	over.Surface = surfaceHTTP
	if _, err := request(h, hub.ListSecrets, over, hub.SecretQuery{}); fault.ReasonOf(err) != "connection_not_private" {
		t.Errorf("a list over TCP: %v", err)
	}
	_, csr := deviceKey(t)
	_, chain := h.pair(h.owner, "laptop", csr, false, "run.start", "session.read", "session.write", "vault.manage")
	device, err := h.asDevice(chain)
	if err != nil {
		t.Fatal(err)
	}
	if err := set(device); err != nil {
		t.Errorf("a device: %v", err)
	}
	// The tools are called by these operations alone: nothing would take what they reveal.
	for _, name := range []string{toolproto.VaultGet, toolproto.VaultRemove} {
		in := []byte(`{"ref":"vault://global/token"}`)
		if _, err := hub.Call.Do(ctx, h, h.owner, hub.NewCall{Tool: name, Input: in}); fault.KindOf(err) != fault.Usage {
			t.Errorf("a call of %s: %v", name, err)
		}
		if _, err := hub.StartRun.Do(ctx, h, h.owner, hub.NewRun{Session: h.session(h.owner), Steps: []hub.Step{{Tool: name, Input: in}}}); fault.KindOf(err) != fault.Usage {
			t.Errorf("a run of %s: %v", name, err)
		}
	}
	for _, n := range []hub.SecretValue{{Ref: "token", Value: []byte("x")}, {Ref: "vault://global/empty"}, {Ref: "vault://global/large", Value: make([]byte, vault.MaxValue+1)},
		{Ref: "vault://global/a", Value: []byte("x"), Session: "ses_1"}, {Ref: "vault://global/a", Value: []byte("x"), Expires: "soon"}} {
		r, err := request(h, hub.SetSecret, h.owner, n)
		if err == nil && (len(r.Run.Steps) != 1 || r.Run.Steps[0].State != hub.StepFailed) {
			t.Errorf("%q: %+v", n.Ref, r.Run.Steps)
		}
	}
	if _, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Fatal(err)
	}
	if err := set(h.owner); fault.ReasonOf(err) != "stopped" {
		t.Errorf("amid a stop: %v", err)
	}
	if _, err := hub.Resume.Do(ctx, h, h.owner, hub.None{}); err != nil {
		t.Fatal(err)
	}
	if err := set(h.owner); err != nil {
		t.Error(err)
	}
	if n := h.pools.secrets.Held(); n != 0 {
		t.Errorf("answered requests hold %d bytes", n)
	}
}

// TestVaultCallerGone: a call whose caller leaves while a person is asked does nothing.
func TestVaultCallerGone(t *testing.T) {
	h := newVaultHouse(t, nil)
	admin := h.member(1001, access.Admin)
	h.executed(request(h, hub.SetSecret, admin, hub.SecretValue{Ref: "vault://global/token", Value: []byte(hush)}))
	ses := h.session(admin)
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			p, err := hub.ListRuns.Do(t.Context(), h, admin, hub.RunQuery{Session: ses})
			if err != nil || len(p.Items) == 1 {
				h.until(admin, p.Items[0].ID, hub.EventRunWaitingApproval)
				break
			}
		}
		leave()
	})
	r, err := hub.RevealSecret.Do(ctx, h, admin, hub.SecretVersion{Session: ses, Ref: "vault://global/token"})
	wg.Wait()
	if err != nil || r.Run.State != hub.RunCancelled || r.Value != nil {
		t.Errorf("%+v, %v", r.Run, err)
	}
}

// TestVaultCallsAtOnce: callers don't get each other's values.
func TestVaultCallsAtOnce(t *testing.T) {
	policies := t.TempDir()
	if err := os.WriteFile(filepath.Join(policies, "all.cedar"), []byte("@id(\"all\")\npermit (principal, action, resource);\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newVaultHouse(t, func(_ *Config, k *kernel.Config) { k.PolicyDir = policies })
	var wg sync.WaitGroup
	callers := []hub.Caller{h.owner, h.member(1001, access.Admin), h.member(1002, access.Admin)}
	for i := range 6 {
		wg.Go(func() {
			c, ref, text := callers[i%3], fmt.Sprintf("vault://global/s%d", i), fmt.Sprintf("the value of %d", i)
			if _, err := request(h, hub.SetSecret, c, hub.SecretValue{Ref: ref, Value: []byte(text)}); err != nil {
				t.Error(err)
			}
			if r, err := request(h, hub.RevealSecret, c, hub.SecretVersion{Ref: ref}); err != nil || string(r.Value) != text {
				t.Errorf("%s: %d bytes, %+v, %v", ref, len(r.Value), r.Run.Steps, err)
			}
		})
	}
	wg.Wait()
	r, err := request(h, hub.ListSecrets, h.owner, hub.SecretQuery{})
	if err != nil || !slices.ContainsFunc(r.Secrets, func(s hub.SecretInfo) bool { return strings.HasSuffix(s.Ref, "/s5") }) || len(r.Secrets) != 6 {
		t.Errorf("%+v, %v", r.Secrets, err)
	}
}

package kernel

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/isolate/tier"
)

// TestCertificate: what policy hears of a certificate that is in the state
// directory, and that one about anything else than this boot's sandbox is none.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	state, helper := filepath.Join(dir, "state"), filepath.Join(dir, "palyra-cell")
	policies := filepath.Join(dir, "policy")
	const rule = `@id("certified") permit (principal, action == Palyra::Action::"tool.execute", resource) when { context.certificate == "proven" };
`
	if err := os.WriteFile(helper, []byte("a palyra-cell"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(policies, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(policies, "all.cedar"), []byte(rule), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{StateDir: state, PolicyDir: policies, CellPath: helper}
	with := func(k *Kernel) string { return k.cellDigest() }
	good := func(cell string) map[string]string {
		return map[string]string{"kernel": osRelease(), "palyra-cell": cell, "tier.b": "refused: x", "tier.c": "proven 51, refuted 0, inconclusive 0"}
	}
	for _, c := range []struct {
		name   string
		act    string
		change map[string]string
		spoil  func(b []byte) []byte // the file; nil: none is written
		want   string
	}{
		{"good", CertifyAct, nil, bytes.Clone, policy.CertificateProven},
		{"none", CertifyAct, nil, nil, policy.CertificateNone},
		{"something is refuted", CertifyAct, map[string]string{"tier.c": "proven 50, refuted 1, inconclusive 0"}, bytes.Clone, policy.CertificateRefuted},
		{"nothing is proven", CertifyAct, map[string]string{"tier.c": "proven 0, refuted 0, inconclusive 51"}, bytes.Clone, policy.CertificateNone},
		{"the tier is refused", CertifyAct, map[string]string{"tier.c": "refused: no user namespaces"}, bytes.Clone, policy.CertificateNone},
		{"no word of the tier", CertifyAct, map[string]string{"tier.c": ""}, bytes.Clone, policy.CertificateNone},
		{"another kernel", CertifyAct, map[string]string{"kernel": "1.0"}, bytes.Clone, policy.CertificateNone},
		{"another palyra-cell", CertifyAct, map[string]string{"palyra-cell": "sha256:00"}, bytes.Clone, policy.CertificateNone},
		{"a test build", CertifyAct, map[string]string{"test_build": "palyra_knobs"}, bytes.Clone, policy.CertificateNone},
		{"another act", "policy.reload", nil, bytes.Clone, policy.CertificateNone},
		{"changed", CertifyAct, nil, func(b []byte) []byte { return bytes.Replace(b, []byte(`"payload":"e`), []byte(`"payload":"f`), 1) }, policy.CertificateNone},
		{"cut", CertifyAct, nil, func(b []byte) []byte { return b[:len(b)/2] }, policy.CertificateNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(state, CertificateFile)
			os.Remove(file)
			k, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			d := good(with(k))
			maps.Copy(d, c.change)
			i, err := k.Record(t.Context(), Act{Act: c.act, Principal: k.Self(), Detail: d})
			if err != nil {
				t.Fatal(err)
			}
			b, err := k.Receipt(i)
			if err == nil {
				err = k.Close()
			}
			if err == nil && c.spoil != nil {
				err = os.WriteFile(file, c.spoil(b), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			if k, err = Open(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			if got := k.certificate(tier.C); got != c.want {
				t.Errorf("tier C: %q, want %q", got, c.want)
			}
			if got := k.certificate(tier.B); got != policy.CertificateNone {
				t.Errorf("tier B, which was refused: %q", got)
			}
			e, _, err := k.Explain(t.Context(), Caller{Principal: policy.LocalUser("u")}, Proposal{Tool: ToolRun, Argv: []string{"/bin/true"}, Dir: "/", TierFloor: tier.C}, nil)
			if allowed := e.Decision.Effect == policy.Allow; err != nil || allowed != (c.want == policy.CertificateProven) {
				t.Errorf("a policy that wants one: %v, %v", e.Decision.Effect, err)
			}
		})
	}
}

// TestCertificateOfAnotherBoot makes one that is genuine and of another boot.
func TestCertificateOfAnotherBoot(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{StateDir: filepath.Join(dir, "state"), CellPath: "/bin/true"}
	k, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, boot := range []string{k.state.boot, "00000000-0000-0000-0000-000000000000"} {
		env, err := receipt.SignAct(k.state.ring.Attestation(), receipt.Act{Version: receipt.ActVersion, Act: CertifyAct, Principal: k.Self(),
			BootID: boot, Time: "2026-01-02T03:04:05Z", Seq: k.state.journal.Size(),
			Detail: map[string]string{"kernel": osRelease(), "palyra-cell": k.cellDigest(), "tier.c": "proven 1, refuted 0, inconclusive 0"}})
		if err != nil {
			t.Fatal(err)
		}
		i, err := k.state.append(t.Context(), env, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := k.Receipt(i)
		if err == nil {
			err = os.WriteFile(filepath.Join(cfg.StateDir, CertificateFile), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		want := policy.CertificateNone
		if boot == k.state.boot {
			want = policy.CertificateProven
		}
		if got := k.readCertificate()[tier.C]; got != want && !(got == "" && want == policy.CertificateNone) {
			t.Errorf("boot %q: %q, want %q", boot, got, want)
		}
	}
}

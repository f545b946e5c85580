package kernel

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate/tier"
)

// TestCertificate: policy's attribute for a certificate in the state directory. A certificate
// about anything but this boot's sandbox is none.
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
		return map[string]string{"kernel": osRelease(), "uid": strconv.Itoa(os.Geteuid()), "palyra-cell": cell, "tier.b": "refused: x",
			"tier.c": "proven 51, refuted 0, inconclusive 0, absent 0, inherited 0", "tape.c.cold": "sha256:01", "tape.c.warm": "sha256:01", "tape.c.void": "sha256:01", "tape.c.loop": "sha256:01"}
	}
	for _, c := range []struct {
		name   string
		act    string
		change map[string]string
		spoil  func(b []byte) []byte // of the file; nil: none is written
		want   string
	}{
		{"good", CertifyAct, nil, bytes.Clone, policy.CertificateProven},
		{"none", CertifyAct, nil, nil, policy.CertificateNone},
		{"something is refuted", CertifyAct, map[string]string{"tier.c": "proven 50, refuted 1, inconclusive 0, absent 0, inherited 0"}, bytes.Clone, policy.CertificateRefuted},
		{"something is refuted, and the kernel is old", CertifyAct, map[string]string{"tier.c": "proven 44, refuted 1, inconclusive 0, absent 6, inherited 0"}, bytes.Clone, policy.CertificateRefuted},
		{"the kernel is old", CertifyAct, map[string]string{"tier.c": "proven 45, refuted 0, inconclusive 0, absent 6, inherited 0"}, bytes.Clone, policy.CertificateProven},
		{"something is inherited", CertifyAct, map[string]string{"tier.c": "proven 48, refuted 0, inconclusive 0, absent 0, inherited 3"}, bytes.Clone, policy.CertificateProven},
		{"something is open, too", CertifyAct, map[string]string{"tier.c": "proven 47, refuted 0, inconclusive 1, absent 0, inherited 3"}, bytes.Clone, policy.CertificateNone},
		{"something is open", CertifyAct, map[string]string{"tier.c": "proven 50, refuted 0, inconclusive 1, absent 0, inherited 0"}, bytes.Clone, policy.CertificateNone},
		{"of an older palyra", CertifyAct, map[string]string{"tier.c": "proven 51, refuted 0, inconclusive 0"}, bytes.Clone, policy.CertificateNone},
		{"no number", CertifyAct, map[string]string{"tier.c": "proven 51, refuted 0, inconclusive 0, absent -1, inherited 0"}, bytes.Clone, policy.CertificateNone},
		{"another user", CertifyAct, map[string]string{"uid": "4711"}, bytes.Clone, policy.CertificateNone},
		{"no user", CertifyAct, map[string]string{"uid": ""}, bytes.Clone, policy.CertificateNone},
		{"a kind of cells is not made here", CertifyAct, map[string]string{"tape.c.warm": "", "unmade.c.warm": "cgroup"}, bytes.Clone, policy.CertificateProven},
		{"a kind of cells is refused", CertifyAct, map[string]string{"tape.c.void": "", "refused.c.void": "x"}, bytes.Clone, policy.CertificateNone},
		{"a kind of cells was not tested", CertifyAct, map[string]string{"tape.c.warm": ""}, bytes.Clone, policy.CertificateNone},
		{"loopback cells were not tested", CertifyAct, map[string]string{"tape.c.loop": ""}, bytes.Clone, policy.CertificateNone},
		{"nothing is proven", CertifyAct, map[string]string{"tier.c": "proven 0, refuted 0, inconclusive 0, absent 51, inherited 0"}, bytes.Clone, policy.CertificateNone},
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
			b, err := k.Receipt(t.Context(), i)
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
			if _, why := k.certificateOf(tier.C); why == nil { // tier B is refused at least
				t.Error("nothing says why")
			}
			wantFloor(t, k, cfg, c.want)
		})
	}
}

// TestCertificateOfAnotherBoot makes a genuine certificate, and then one of another boot, while
// a kernel is open.
func TestCertificateOfAnotherBoot(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{StateDir: filepath.Join(dir, "state"), CellPath: "/bin/true"}
	k, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if got := k.certificate(tier.C); got != policy.CertificateNone {
		t.Errorf("without one: %q", got)
	}
	for _, boot := range []string{k.state.boot, "00000000-0000-0000-0000-000000000000"} {
		env, err := receipt.SignAct(k.state.att(), receipt.Act{Version: receipt.ActVersion, Act: CertifyAct, Principal: k.Self(),
			BootID: boot, Time: "2026-01-02T03:04:05Z", Seq: k.state.journal.Size(),
			Detail: map[string]string{"kernel": osRelease(), "uid": strconv.Itoa(os.Geteuid()), "palyra-cell": k.cellDigest(),
				"tier.c": "proven 3, refuted 0, inconclusive 0, absent 0, inherited 0", "tape.c.cold": "x", "tape.c.warm": "x", "tape.c.void": "x", "tape.c.loop": "x"}})
		if err != nil {
			t.Fatal(err)
		}
		e, err := env.Entry(k.state.att())
		if err != nil {
			t.Fatal(err)
		}
		i, err := k.state.append(t.Context(), e, false, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := k.Receipt(t.Context(), i)
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
		if got := k.certificate(tier.C); got != want { // a kernel that had looked already
			t.Errorf("boot %q: the kernel says %q, want %q", boot, got, want)
		}
		tiers, _, why := k.readCertificate()
		if got := tiers[tier.C]; got != want && !(got == "" && want == policy.CertificateNone) {
			t.Errorf("boot %q: %q, want %q", boot, got, want)
		}
		if want == policy.CertificateNone && (why == nil || !strings.Contains(why.Error(), "boot")) {
			t.Errorf("another boot: %v", why)
		}
	}
}

// wantFloor: with the floor a call that policy allows runs at tier C only if the certificate is
// proven; without it, whatever the certificate. wantFloor closes k, which holds the directory.
func wantFloor(t *testing.T, k *Kernel, cfg Config, said string) {
	t.Helper()
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.PolicyDir = t.TempDir()
	const rule = `@id("all") permit (principal, action, resource);`
	if err := os.WriteFile(filepath.Join(cfg.PolicyDir, "all.cedar"), []byte(rule), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cfg.Floor = range []bool{false, true} {
		// Every allowed call fails here: this palyra-cell can't start.
		cfg.testOnlyStart = func(context.Context, tier.Tier, grant.Key) (runner, error) {
			return nil, fault.New(fault.Refused, "no_cell", "start palyra-cell", nil)
		}
		k, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		out, err := k.Call(t.Context(), Proposal{Tool: ToolRun, Argv: []string{"/bin/true"}, Dir: "/", TierFloor: tier.C}, IO{})
		if err != nil || out.Error == nil {
			t.Fatalf("floor %v: %+v, %v", cfg.Floor, out, err)
		}
		want := "no_cell"
		if cfg.Floor && said != policy.CertificateProven {
			want = "certificate_missing"
			if !slices.Equal(out.Decision.Policies, []string{policy.FloorCertificate}) || !strings.Contains(out.Error.Hint, "palyra sandbox certify") ||
				out.Error.Kind != fault.Denied.String() || len(out.Receipt) == 0 {
				t.Errorf("denied by %v: %+v", out.Decision.Policies, out.Error)
			}
		}
		if out.Error.Reason != want {
			t.Errorf("floor %v, certificate %s: %s: %s; want %s", cfg.Floor, said, out.Error.Reason, out.Error.Text, want)
		}
		if why := k.Uncertified(tier.C); (why != nil) != (cfg.Floor && said != policy.CertificateProven) {
			t.Errorf("floor %v, certificate %s: uncertified: %v", cfg.Floor, said, why)
		}
		// The floor outlives a reload of the directory.
		if err := k.Reload(); err != nil || k.PolicySet().Floored() != cfg.Floor {
			t.Errorf("floor %v after a reload: %v, %v", cfg.Floor, k.PolicySet().Floored(), err)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificateOfReplacedCell: a certificate is about a file. When that is replaced under a
// Kernel, the certificate doesn't count any more.
func TestCertificateOfReplacedCell(t *testing.T) {
	dir := t.TempDir()
	helper := filepath.Join(dir, "palyra-cell")
	if err := os.WriteFile(helper, []byte("a palyra-cell"), 0o755); err != nil {
		t.Fatal(err)
	}
	k, err := Open(t.Context(), Config{StateDir: filepath.Join(dir, "state"), CellPath: helper})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	i, err := k.Record(t.Context(), Act{Act: CertifyAct, Principal: k.Self(), Detail: map[string]string{"kernel": osRelease(), "uid": strconv.Itoa(os.Geteuid()),
		"palyra-cell": k.cellDigest(), "tier.b": "proven 8, refuted 0, inconclusive 0, absent 0, inherited 0", "tape.b": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := k.Receipt(t.Context(), i)
	if err == nil {
		err = os.WriteFile(filepath.Join(k.StateDir(), CertificateFile), b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, why := k.certificateOf(tier.B); got != policy.CertificateProven {
		t.Fatalf("%q: %v", got, why)
	}
	if err := os.WriteFile(helper+".new", []byte("other palyra-cell"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(helper+".new", helper); err != nil {
		t.Fatal(err)
	}
	if got, why := k.certificateOf(tier.B); got != policy.CertificateNone || why == nil || !strings.Contains(why.Error(), "palyra-cell") {
		t.Errorf("after it was replaced: %q, %v", got, why)
	}
}

// TestCertificateExplained: an explanation of a call uses the certificate that the call would
// use, and none without a palyra-cell.
func TestCertificateExplained(t *testing.T) {
	dir := t.TempDir()
	state, policies, helper := filepath.Join(dir, "state"), filepath.Join(dir, "policy"), filepath.Join(dir, "palyra-cell")
	if err := os.WriteFile(helper, []byte("a palyra-cell"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(policies, 0o700); err != nil {
		t.Fatal(err)
	}
	rule := `@id("certified") permit (principal, action == Palyra::Action::"tool.execute", resource) when { context.certificate == "proven" };`
	if err := os.WriteFile(filepath.Join(policies, "all.cedar"), []byte(rule), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{StateDir: state, PolicyDir: policies, CellPath: helper}
	k, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	i, err := k.Record(t.Context(), Act{Act: CertifyAct, Principal: k.Self(), Detail: map[string]string{"kernel": osRelease(), "uid": strconv.Itoa(os.Geteuid()),
		"palyra-cell": k.cellDigest(), "tier.c": "proven 8, refuted 0, inconclusive 0, absent 0, inherited 0", "tape.c.cold": "sha256:01", "tape.c.warm": "sha256:01", "tape.c.void": "sha256:01", "tape.c.loop": "sha256:01"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := k.Receipt(t.Context(), i)
	if err == nil {
		err = os.WriteFile(filepath.Join(state, CertificateFile), b, 0o644)
	}
	if err = errors.Join(err, k.Close()); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for path, want := range map[string]policy.Effect{helper: policy.Allow, "palyra-cell": policy.Allow, "": policy.Deny, filepath.Join(dir, "none"): policy.Deny} {
		cfg.CellPath = path
		x, _, err := Explain(t.Context(), cfg, Proposal{Tool: ToolRun, Argv: []string{"/bin/true"}, Dir: dir, TierFloor: tier.C}, nil)
		if err != nil || x.Decision.Effect != want {
			t.Errorf("palyra-cell %q: %v, %v; want %v", path, x.Decision.Effect, err, want)
		}
	}
}

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/hub"
)

// TestVault: a call gets a secret from a palyrad that has the vault's identity, from its
// configuration or as a credential of its service manager, and from no other. The value is in no
// output, tape, log or record.
func TestVault(t *testing.T) {
	const value = "correct horse battery"
	p := newPlace(t, "")
	key, policies := filepath.Join(p.dir, "vault.key"), filepath.Join(p.dir, "policy")
	command := func(stdin string, args ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(p.bin, "palyra"), args...)
		cmd.Stdin, cmd.Env = strings.NewReader(stdin), append(os.Environ(), "PALYRA_NO_INPUT=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("palyra %q: %v\n%s", args, err, out)
		}
	}
	state := filepath.Join(p.dir, "state")
	command("", "vault", "init", "--state", state, "--key", key)
	command(value, "vault", "set", "--state", state, "--key", key, "vault://global/token")
	if err := os.Mkdir(policies, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(policies+"/a.cedar", []byte(`@id("all") permit (principal, action, resource);
@id("token") @untested("here") forbid (principal, action == Palyra::Action::"vault.expose", resource) unless { context.executable.name == "cat" };
`), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(program string) string {
		return fmt.Sprintf(`{"tool":"process.run","input":{"argv":[%q,"/run/secrets/t"],"secrets":["t=vault://global/token"]}}`, program)
	}
	given := func(r *running) {
		t.Helper()
		if run := r.call(ask("cat")); run.Steps[0].Stdout.Text != "[secret token]" {
			t.Errorf("the program printed %q", run.Steps[0].Stdout.Text)
		}
		var run hub.Run
		if r.must(200, "POST", "/api/v1/calls", ask("wc"), &run); len(run.Steps) != 1 || run.Steps[0].Outcome != "denied" {
			t.Errorf("another program: %+v", run)
		}
		// From now on palyrad knows it.
		r.refused(400, "secret_in_call", "POST", "/api/v1/calls", fmt.Sprintf(`{"tool":"palyra.echo","input":{"text":%q}}`, value))
	}
	end := func(r *running) {
		t.Helper()
		r.signal(syscall.SIGTERM)
		if code := r.exit(); code != 0 {
			t.Errorf("status %d\n%s", code, r.log)
		}
		if strings.Contains(r.log.String(), value) {
			t.Error("the log has it")
		}
	}
	base := fmt.Sprintf("policy.dir = %q\n", policies)

	p.write(base + fmt.Sprintf("vault.identity = %q\n", key))
	r := p.start()
	if s := r.status(); !s.Confinement.Enforced {
		t.Errorf("%+v", s.Confinement)
	}
	given(r)
	end(r)

	credentials := filepath.Join(p.dir, "credentials")
	if err := os.Mkdir(credentials, 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(credentials, vaultCredential), b, 0o440); err != nil {
		t.Fatal(err)
	}
	p.write(base)
	r = p.start("CREDENTIALS_DIRECTORY=" + credentials)
	given(r)
	end(r)

	r = p.start()
	var run hub.Run
	if status, err := r.ask("POST", "/api/v1/calls", ask("cat"), &run); err != nil || strings.Contains(fmt.Sprintf("%+v", run), value) || len(run.Steps) == 1 && run.Steps[0].Outcome == "executed" {
		t.Errorf("without identity: %d, %v, %+v", status, err, run)
	}
	end(r)

	p.write(base + fmt.Sprintf("vault.identity = %q\n", filepath.Join(p.dir, "none")))
	if r := p.launch(); r.exit() == 0 || !strings.Contains(r.log.String(), "hint: palyra vault init") {
		t.Errorf("palyrad starts without its identity, or says no more than\n%s", r.log)
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
}

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// secretPolicy permits every program, and one of them a secret.
const secretPolicy = `@id("any_program")
permit (principal, action == Palyra::Action::"tool.execute", resource);

@id("token_for_base64")
permit (principal, action == Palyra::Action::"vault.expose", resource == Palyra::Secret::"vault://global/token")
when { context.executable.name == "base64" };
`

// secret is step 5: a secret reaches the program that policy names, and no other; what the program
// prints of it doesn't reach the caller, nor is it in a receipt.
func secret(ctx context.Context, d *demo) {
	const value, encoded = "hush-correct-horse", "aHVzaC1jb3JyZWN0LWhvcnNl"
	policy, file := filepath.Join(d.dir, "secrets"), filepath.Join(d.dir, "token.txt")
	for path, text := range map[string]string{filepath.Join(policy, "secrets.cedar"): secretPolicy, file: value + "\n"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			d.expect(false, "make a policy: %v", err)
			return
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			d.expect(false, "make a policy: %v", err)
			return
		}
	}
	for _, args := range [][]string{{"vault", "init"}, {"vault", "set", "--file", file, "vault://global/token"}} {
		r := d.run(ctx, "$", d.dir, append([]string{d.palyra}, args...)...)
		d.show(r.stdout + r.stderr)
		d.expect(r.status == 0, "palyra %s (status %d)", strings.Join(args[:2], " "), r.status)
	}
	give := func(name, outcome string, argv ...string) ended {
		r := d.call(ctx, name, outcome, append([]string{"--policy", policy, "--secret", "token=vault://global/token", "--"}, argv...)...)
		d.show(r.stdout + r.stderr)
		return r
	}
	r := give("secret", "executed", "base64", "/run/secrets/token")
	d.expect(r.status == 0 && r.stdout == "[secret token]\n", "the program read it, and a mask stands where it printed it in base64 (status %d)", r.status)
	b, err := os.ReadFile(d.receipt("secret"))
	d.expect(err == nil && !strings.Contains(string(b), value) && !strings.Contains(string(b), encoded), "the receipt has no value")
	shown := d.run(ctx, "$", d.dir, d.palyra, "attest", "show", d.receipt("secret"))
	d.expect(strings.Contains(shown.stdout, "vault://global/token") && strings.Contains(shown.stdout, "could be read by the program"), "the receipt says which secret the program could read")
	r = give("secretdenied", "denied", "cat", "/run/secrets/token")
	d.expect(r.status == 126 && r.stdout == "", "another program gets nothing (status %d)", r.status)
	d.expect(strings.Contains(r.stderr, `Palyra::Action::"vault.expose"`), "a change that would allow it is shown")
	r = d.run(ctx, "control: outside $", d.dir, "base64", file)
	d.show(r.stdout + r.stderr)
	d.expect(strings.HasPrefix(r.stdout, encoded[:20]), "the same program outside prints the value")
}

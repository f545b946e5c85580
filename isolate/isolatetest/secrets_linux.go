package isolatetest

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// secret gives a call a secret.
func (c *call) secret(name, value string) {
	c.t.Helper()
	f, err := sealed([]byte(value))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { f.Close() })
	c.spec.Secrets, c.files.Secrets = append(c.spec.Secrets, name), append(c.files.Secrets, f)
}

// testSecrets: a program reads the values of its secrets in files that it alone may read and that
// it can't change; no variable, argument or descriptor has one, and no later call finds them.
func testSecrets(t *testing.T, h *harness) {
	const value, other = "correct horse battery", "staple\x00\xff"
	c := h.shell(t, `cd /run/secrets; cat key; od -An -tx1 token; stat -c '%a %A %u' . key token; id -u
		! { echo x >key; } 2>/dev/null && ! rm -f key 2>/dev/null && ! touch new 2>/dev/null && ! chmod 644 key 2>/dev/null && echo fast
		ls -A . .. ; cp /bin/true true 2>/dev/null || echo none; ls -l /proc/self/fd | grep -c memfd
		tr '\0' '\n' </proc/$$/environ | grep -c horse; tr '\0' '\n' </proc/$$/cmdline | grep -c 'horse\sbattery'`)
	c.secret("key", value)
	c.secret("token", other)
	o := c.run()
	if h.sub.Tier == tier.B {
		if fault.ReasonOf(o.err) != "invalid_input" || o.res != nil {
			t.Errorf("at tier b: %s, %v", o, o.err)
		}
		return
	}
	if want := value + " 73 74 61 70 6c 65 00 ff\n500 dr-x------ 1000\n400 -r-------- 1000\n400 -r-------- 1000\n1000\nfast\n.:\nkey\ntoken\n\n..:\nsecrets\nnone\n0\n0\n0\n"; o.stdout != want {
		t.Fatalf("%s, %v: it saw %q, %q, want %q", o, o.err, o.stdout, o.stderr, want)
	}
	e := o.res.Evidence
	if !slices.Equal(e.Secrets.Files, []string{"key", "token"}) || e.Secrets.Basis != "observed" {
		t.Errorf("evidence of secrets: %+v", e.Secrets)
	}
	if !slices.ContainsFunc(e.Mounts.Table, func(l string) bool { return strings.HasPrefix(l, "/run/secrets ro,nosuid,nodev,noexec") }) ||
		!slices.Contains(e.Landlock.Rules, "r /run/secrets") && !slices.ContainsFunc(e.Landlock.Rules, func(l string) bool { return strings.HasPrefix(l, "r ") }) {
		t.Errorf("mounts %q, rules %q", e.Mounts.Table, e.Landlock.Rules)
	}
	// The control: what the host has at that place is what it had before.
	if _, err := os.Stat(isolate.SecretPath("key")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("on the host: %v", err)
	}
	if o = h.shell(t, "cat /run/secrets/key; ls -A /run /run/secrets").run(); strings.Contains(o.stdout, "horse") || strings.Contains(o.stdout, "key") {
		t.Errorf("the next call saw %q", o.stdout)
	}
	for what, f := range map[string]func(*call){
		"no descriptor":    func(c *call) { c.files.Secrets = nil },
		"one too many":     func(c *call) { c.spec.Secrets = nil },
		"a path":           func(c *call) { c.spec.Secrets = []string{"../key"} },
		"a hidden name":    func(c *call) { c.spec.Secrets = []string{".key"} },
		"a name twice":     func(c *call) { c.secret("key", value) },
		"in a wrong order": func(c *call) { c.secret("another", value) },
		"a mount there":    func(c *call) { c.mount("/run") },
		"more than a value": func(c *call) {
			c.spec.Secrets, c.files.Secrets = nil, nil
			c.secret("key", strings.Repeat("x", isolate.MaxSecretBytes+1))
		},
	} {
		c := h.shell(t, "cat /run/secrets/*")
		c.secret("key", value)
		f(c)
		if o := c.run(); o.err == nil || o.res != nil || o.stdout != "" {
			t.Errorf("%s: %s, %v, saw %q", what, o, o.err, o.stdout)
		}
	}
}

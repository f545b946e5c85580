package isolatetest

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// hostBundle is the file with the host's roots that a cell covers, where there is one.
const hostBundle = "/etc/ssl/certs/ca-certificates.crt"

// trusting is a call with an authority of its own.
func (h *harness) trusting(t *testing.T, authority []byte, script string) *call {
	t.Helper()
	c := h.program(t, "/bin/bash", "bash", "-c", script)
	c.spec.Network, c.spec.Session, c.spec.Egress = isolate.NetworkEgress, "", egressOf(isolate.NetworkEgress)
	c.spec.Egress.Roots = true
	f, err := sealed(authority)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c.files.Roots = f
	return c
}

// testRoots: the program of a call with an authority of its own reads its certificate behind the
// host's roots, at each place where programs look for them; it can change nothing of that, and no
// other call sees it.
func testRoots(t *testing.T, h *harness) {
	own := NewAuthority(t, "packages.example").PEM
	if h.sub.Tier != tier.C {
		if o := h.trusting(t, own, "echo ran").run(); o.err == nil || o.stdout != "" {
			t.Errorf("at tier %v: %s, %v", h.sub.Tier, o, o.err)
		}
		return
	}
	// A host's own roots are a file, or there are none to cover.
	before, err := os.ReadFile(hostBundle)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	files := []string{isolate.RootsFile}
	if fi, err := os.Lstat(hostBundle); err == nil && fi.Mode().IsRegular() {
		files = append(files, hostBundle)
	}
	slices.Sort(files)
	o := h.trusting(t, own, `cd `+isolate.RootsDir+`; ls -A; stat -c %a . roots.pem
		for f in `+strings.Join(files, " ")+`; do
			cat $f; echo; for i in 1 2 3; do echo x >>$f; rm -f $f; mv $f $f.old; chmod 644 $f; ln $f ${f%/*}/other; : >new; cp $f ${f%/*}/new; truncate -s 0 $f; umount $f; done 2>/dev/null && echo changed
			exec 3<>$f && echo opened; cp /proc/self/exe $f 2>/dev/null && echo replaced
		done 2>/dev/null
		ls -A; ls -l /proc/self/fd | grep -c memfd; cat /proc/self/environ | grep -c roots`).run()
	o.exited(t, 1) // grep found none
	want := "roots.pem\n555\n444\n"
	for range files {
		want += string(before) + string(own) + "\n"
	}
	want += "roots.pem\n0\n0\n"
	if o.stdout != want {
		t.Errorf("it saw %d bytes: %.120q … %q; want %d: %.120q", len(o.stdout), o.stdout, o.stdout[max(0, len(o.stdout)-120):], len(want), want)
	}
	e := o.res.Evidence
	if e.Roots.Basis != "observed" || e.Roots.Authority != canon.Sum(own) || !slices.Equal(e.Roots.Files, files) {
		t.Errorf("evidence %+v, want %v in %q", e.Roots, canon.Sum(own), files)
	}
	for _, at := range append(slices.Clone(files[:len(files)-1]), isolate.RootsDir) {
		if !slices.ContainsFunc(e.Mounts.Table, func(l string) bool { return strings.HasPrefix(l, at+" ro,nosuid,nodev,noexec") }) {
			t.Errorf("no mount at %s in %q", at, e.Mounts.Table)
		}
	}
	// The controls: the host and the next call have what they had.
	if after, _ := os.ReadFile(hostBundle); !bytes.Equal(after, before) {
		t.Error("the host's roots are others now")
	}
	if _, err := os.Stat(isolate.RootsDir); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("on the host: %v", err)
	}
	c := h.trusting(t, own, "ls -A "+isolate.RootsDir+"; cat "+hostBundle)
	c.spec.Egress.Roots, c.files.Roots = false, nil
	if o := c.run(); o.stdout != string(before) || o.res.Evidence.Roots.Basis != "" {
		t.Errorf("the next call saw %d bytes, want the host's %d; evidence %+v", len(o.stdout), len(before), o.res.Evidence.Roots)
	}
	for what, f := range map[string]func(*call){
		"no descriptor":   func(c *call) { c.files.Roots = nil },
		"not ordered":     func(c *call) { c.spec.Egress.Roots = false },
		"another network": func(c *call) { c.spec.Network, c.spec.Egress = isolate.NetworkLoopback, nil },
		"a key": func(c *call) {
			c.files.Roots = h.trusting(t, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), "").files.Roots
		},
		"two of them": func(c *call) { c.files.Roots = h.trusting(t, slices.Concat(own, own), "").files.Roots },
		"nothing":     func(c *call) { c.files.Roots = h.trusting(t, nil, "").files.Roots },
		"more than a cell takes": func(c *call) {
			c.files.Roots = h.trusting(t, bytes.Repeat(own, isolate.MaxRoots/len(own)+1), "").files.Roots
		},
	} {
		c := h.trusting(t, own, "echo ran")
		f(c)
		if o := c.run(); o.err == nil || o.res != nil || o.stdout != "" {
			t.Errorf("%s: %s, %v, printed %q", what, o, o.err, o.stdout)
		}
	}
}

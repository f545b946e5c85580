package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// verifier says of each file what is wrong with it as a receipt, by the public keys of a folder:
// "" of a good one.
type verifier struct {
	name  string
	judge func(files []string, trust string) map[string]string
}

// verified is the last step.
func verified(ctx context.Context, d *demo) {
	verifiers := []verifier{{"palyra", func(files []string, trust string) map[string]string {
		wrong := make(map[string]string)
		for _, f := range files {
			wrong[f] = ""
			if got := d.quiet(ctx, d.palyra, "attest", "verify", "--trust", trust, f); got.status != 0 {
				wrong[f] = fmt.Sprintf("status %d: %s", got.status, got.stdout+got.stderr)
			}
		}
		return wrong
	}}}
	if js, why := d.sigstore(ctx); why == "" {
		verifiers = append(verifiers, js)
	} else {
		fmt.Fprintf(d.out, "     npm's @sigstore/verify is NOT asked: %s\n", why)
		if os.Getenv("CI") != "" {
			d.expect(false, "CI has a verifier that is not ours")
		}
	}
	whole, bad := make(map[string][]string), make(map[string][]string) // by trust
	for i, r := range d.receipts {
		flipped := filepath.Join(d.dir, fmt.Sprintf("flipped-%d.json", i))
		if err := flip(r.file, flipped); err != nil {
			d.show(err.Error())
			continue
		}
		trust := d.keys(r)
		whole[trust], bad[trust] = append(whole[trust], r.file), append(bad[trust], flipped)
	}
	for _, v := range verifiers {
		accepted, rejected := 0, 0
		for trust, files := range whole {
			wrong := v.judge(append(slices.Clone(files), bad[trust]...), trust)
			for i, f := range files {
				if why, judged := wrong[f]; judged && why == "" {
					accepted++
				} else {
					d.show(filepath.Base(f) + ": " + why)
				}
				if wrong[bad[trust][i]] != "" {
					rejected++
				}
			}
		}
		n := len(d.receipts)
		d.expect(accepted == n, "%s accepts %d of %d receipts", v.name, accepted, n)
		d.expect(rejected == n, "%s rejects %d of %d of them with one byte flipped", v.name, rejected, n)
	}
	d.outcomes(ctx)
	r := d.run(ctx, "$", d.dir, d.palyra, "journal", "verify")
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 0, "the journal is sound and no intent is without a result (status %d)", r.status)
}

// outcomes compares each receipt with the demo's own observations: a good signature isn't
// yet a true statement.
func (d *demo) outcomes(ctx context.Context) {
	right := 0
	for _, r := range d.receipts {
		got := d.quiet(ctx, d.palyra, "attest", "show", "--json", r.file)
		outcome := find(got.stdout, "outcome")
		// Whether a program over its memory limit is refused memory or killed
		// depends on the host; both are the limit's work.
		if outcome == r.outcome || (r.outcome == "" && (outcome == "executed" || outcome == "killed")) {
			right++
		} else {
			d.show(fmt.Sprintf("%s: outcome %q, want %q", filepath.Base(r.file), outcome, r.outcome))
		}
	}
	d.expect(right == len(d.receipts), "%d of %d receipts state the outcome that was seen", right, len(d.receipts))
}

// quiet is run without printing.
func (d *demo) quiet(ctx context.Context, argv ...string) ended {
	cmd := d.command(ctx, d.dir, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return ended{status(err), stdout.String(), stderr.String()}
}

// sigstore prepares the verifier that is not ours, or says why there is none.
func (d *demo) sigstore(ctx context.Context) (verifier, string) {
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			return verifier{}, tool + " is not installed"
		}
	}
	script := filepath.Join(d.js, "verify.mjs")
	if _, err := os.Stat(script); d.js == "" || err != nil {
		return verifier{}, "its script is missing"
	}
	// Installed into the demo's own directory from the committed lock file: the work tree
	// may belong to another user, and stays as it is.
	dir := filepath.Join(d.dir, "js")
	if err := os.CopyFS(dir, sources{os.DirFS(d.js)}); err != nil {
		return verifier{}, err.Error()
	}
	cmd := d.command(ctx, dir, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
	cmd.Env = append(os.Environ(), "HOME="+d.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return verifier{}, fmt.Sprintf("npm ci: %v: %s", err, lastLines(string(out), 3))
	}
	return verifier{"npm @sigstore/verify", func(files []string, trust string) map[string]string {
		argv := []string{"node", filepath.Join(dir, "verify.mjs"), "--trusted-root", filepath.Join(trust, "trusted_root.json")}
		keys, _ := filepath.Glob(filepath.Join(trust, "att*.pub")) // the pattern is good
		for _, k := range keys {
			argv = append(argv, "--key", k)
		}
		got := d.quiet(ctx, append(argv, files...)...)
		wrong := make(map[string]string)
		for line := range strings.Lines(got.stdout + got.stderr) {
			if f, _, ok := strings.Cut(line, ": verified by sigstore-js"); ok {
				wrong[f] = ""
			} else if f, why, ok := strings.Cut(line, ": REFUSED by sigstore-js: "); ok {
				wrong[f] = why
			}
		}
		return wrong
	}}, ""
}

// flip writes a copy of the receipt with one bit of the signed statement
// changed. It stays base64 and JSON, so that what rejects it is the signature.
func flip(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	payload := find(string(b), "payload")
	at := bytes.Index(b, []byte(payload))
	if len(payload) < 100 || at < 0 {
		return fmt.Errorf("%s: no payload to flip", filepath.Base(from))
	}
	c := &b[at+len(payload)/2]
	if *c == 'A' {
		*c = 'B'
	} else {
		*c = 'A'
	}
	return os.WriteFile(to, b, 0o644)
}

// find returns the first string called name at any depth of a JSON text.
func find(text, name string) string {
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		return ""
	}
	var walk func(any) string
	walk = func(v any) string {
		switch v := v.(type) {
		case map[string]any:
			if s, ok := v[name].(string); ok {
				return s
			}
			for _, x := range v {
				if s := walk(x); s != "" {
					return s
				}
			}
		case []any:
			for _, x := range v {
				if s := walk(x); s != "" {
					return s
				}
			}
		}
		return ""
	}
	return walk(v)
}

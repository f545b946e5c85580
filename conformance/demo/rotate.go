package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// rotated is the step of the signing key's rotation. The last step verifies its receipts again,
// with a verifier that is not ours.
func rotated(ctx context.Context, d *demo) {
	trust := filepath.Join(d.dir, "state", "palyra", "trust")
	old := filepath.Join(d.dir, "trust-before")
	if err := os.CopyFS(old, os.DirFS(trust)); err != nil {
		d.expect(false, "copy of the trust directory: %v", err)
		return
	}
	r := d.run(ctx, "$", d.dir, d.palyra, "keys", "rotate")
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 0 && strings.Contains(r.stdout, "in_force"), "the journal has a new key in force (status %d)", r.status)
	d.call(ctx, "rotated", "executed", "--", "/usr/bin/id")
	for _, name := range []string{"allowed", "rotated"} {
		r = d.run(ctx, "$", d.dir, d.palyra, "attest", "verify", "--trust", trust, d.receipt(name))
		d.show(r.stdout + r.stderr)
		d.expect(r.status == 0, "the receipt %s verifies with the trust directory (status %d)", name, r.status)
	}
	r = d.run(ctx, "$", d.dir, d.palyra, "attest", "verify", "--trust", old, d.receipt("rotated"))
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 8, "a trust directory from before doesn't know the new key (status %d)", r.status)
	r = d.run(ctx, "$", d.dir, d.palyra, "journal", "verify", "--trust", old)
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 0, "with the journal it follows the rotation (status %d)", r.status)
}

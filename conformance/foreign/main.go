// Command foreign holds receipts to a verifier that is not ours.
//
//	make build
//	go run ./conformance/foreign
//
// It makes receipts of calls that end in different ways, with rotations of the attestation key and
// of the log's key between them, and verifies each with palyra
// attest verify and with npm's @sigstore/verify: both must accept it, and so must cosign where
// -cosign names it. Then it changes
// single bits all over each receipt: palyra must reject every one, and sigstore-js every
// one that it can see (it doesn't look at the key hint and reads JSON and base64 more
// freely than we do). A receipt that ours accepts and theirs doesn't is a bug of ours,
// whatever was changed.
//
// Then it changes every byte and every field of three of conformance/vectors, and of
// statement, log entry, proof and checkpoint inside. palyra must reject every change but
// other JSON spellings of the same bundle. A change that sigstore-js accepts must be of a
// kind in the table of conformance/foreign/README.md, which says why, and must leave the
// meaning of the receipt alone.
//
// It asks npm for the verifier only if conformance/sigstore-js has none yet. Exit status 0
// if everything is as it must be, 1 if not, 2 if it couldn't look.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// call is a way in which a call ends.
type call struct {
	name   string
	status int
	args   []string
}

var calls = []call{
	{"executed", 0, []string{"--", "/bin/echo", "hello"}},
	{"executed_1", 1, []string{"--", "/bin/false"}},
	{"executed_tier_b", 0, []string{"--tier", "b", "--", "/bin/true"}},
	{"denied", 126, []string{"--", "/bin/sh", "-c", "true"}},
	{"timed_out", 124, []string{"--timeout", "200ms", "--", "/bin/sleep", "60"}},
}

// rotations are made before the call of this number: what comes after is under another key, and
// verified with the same trust directory.
var rotations = map[int][]string{1: {"--log"}, 2: {}, 4: {"--log"}}

type bench struct {
	palyra, js, dir string
	cosign          string // "": not asked
	node            string
	problems        int
}

func main() {
	palyra := flag.String("palyra", "bin/palyra", "`FILE` under test")
	js := flag.String("js", "conformance/sigstore-js", "`FOLDER` of the foreign verifier")
	cosign := flag.String("cosign", "", "`FILE` of cosign, if it is to be asked, too")
	flips := flag.Int("flips", 50, "changed bits per receipt")
	vectors := flag.String("vectors", "conformance/vectors/receipt", "`FOLDER` of receipts to change everywhere")
	readme := flag.String("readme", "conformance/foreign/README.md", "`FILE` with the table of known disagreements")
	flag.Parse()
	dir, err := os.MkdirTemp("", "palyra-foreign-")
	if err == nil {
		defer os.RemoveAll(dir)
		b := &bench{palyra: *palyra, js: *js, dir: dir, cosign: *cosign}
		if err = b.run(*flips); err == nil {
			err = b.mutants(*vectors, *readme)
		}
		if err == nil && b.problems > 0 {
			fmt.Fprintf(os.Stderr, "foreign: %d problems\n", b.problems)
			os.RemoveAll(dir)
			os.Exit(1)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "foreign:", err)
		os.RemoveAll(dir)
		os.Exit(2)
	}
}

func (b *bench) problem(format string, args ...any) {
	b.problems++
	fmt.Fprintf(os.Stderr, "foreign: "+format+"\n", args...)
}

func (b *bench) run(flips int) (err error) {
	if b.palyra, err = filepath.Abs(b.palyra); err != nil {
		return err
	}
	if b.js, err = filepath.Abs(b.js); err != nil {
		return err
	}
	if b.node, err = exec.LookPath("node"); err != nil {
		return fmt.Errorf("find node: %w", err)
	}
	if err := b.install(); err != nil {
		return err
	}
	var good, bad []string
	for i, c := range calls {
		if more, ok := rotations[i]; ok {
			if got, out := b.palyraStatus(append([]string{"keys", "rotate", "--state", filepath.Join(b.dir, "state")}, more...)...); got != 0 {
				return fmt.Errorf("palyra keys rotate %s: status %d\n%s", strings.Join(more, " "), got, out)
			}
		}
		receipt := filepath.Join(b.dir, c.name+".json")
		args := append([]string{"exec", "--state", filepath.Join(b.dir, "state"), "--receipt", receipt}, c.args...)
		if got, out := b.palyraStatus(args...); got != c.status {
			return fmt.Errorf("palyra exec %s: status %d, want %d\n%s", strings.Join(c.args, " "), got, c.status, out)
		}
		good = append(good, receipt)
		more, err := flipped(receipt, flips)
		if err != nil {
			return err
		}
		bad = append(bad, more...)
	}
	for _, f := range good {
		if got, out := b.ours(f); got != 0 {
			b.problem("palyra rejects %s: %s", filepath.Base(f), out)
		}
	}
	theirs, err := b.theirs(good)
	if err != nil {
		return err
	}
	for _, f := range good {
		if !theirs[f] {
			b.problem("sigstore-js rejects %s", filepath.Base(f))
		}
	}
	if b.cosign != "" {
		for _, f := range good {
			if err := b.cosigns(f); err != nil {
				b.problem("cosign rejects %s: %v", filepath.Base(f), err)
			}
		}
		if err := b.cosigns(bad[0]); err == nil { // control
			b.problem("cosign accepts %s", filepath.Base(bad[0]))
		}
		fmt.Printf("%d receipts verified by cosign\n", len(good))
	}
	accepted, err := b.theirs(bad)
	if err != nil {
		return err
	}
	rejected := 0
	for _, f := range bad {
		if got, _ := b.ours(f); got != 0 {
			rejected++
		} else {
			b.problem("palyra accepts %s", filepath.Base(f))
		}
	}
	// sigstore-js can't see some of the JSON around the signed bytes.
	if len(accepted) > len(bad)/20 {
		b.problem("sigstore-js accepts %d of %d changed receipts", len(accepted), len(bad))
	}
	fmt.Printf("%d receipts verified by palyra and by sigstore-js; of %d changed ones palyra rejected %d, sigstore-js %d\n",
		len(good), len(bad), rejected, len(bad)-len(accepted))
	return nil
}

// install asks npm for the packages of package-lock.json, without running scripts.
func (b *bench) install() error {
	if _, err := os.Stat(filepath.Join(b.js, "node_modules", "@sigstore", "verify")); err == nil {
		return nil
	}
	c := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	c.Dir = b.js
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci in %s: %w\n%s", b.js, err, out)
	}
	return nil
}

func (b *bench) palyraStatus(args ...string) (int, string) {
	c := exec.Command(b.palyra, args...)
	out, err := c.CombinedOutput()
	if ee, ok := errors.AsType[*exec.ExitError](err); ok {
		return ee.ExitCode(), string(out)
	}
	if err != nil {
		return -1, err.Error()
	}
	return 0, string(out)
}

func (b *bench) ours(file string) (int, string) {
	return b.palyraStatus("attest", "verify", "--trust", filepath.Join(b.dir, "state", "trust"), file)
}

// cosigns verifies a receipt with cosign, which takes one key: that of the receipt's hint.
func (b *bench) cosigns(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var r struct {
		Material struct {
			PublicKey struct{ Hint []byte } `json:"publicKey"`
		} `json:"verificationMaterial"`
		Envelope struct{ Payload []byte } `json:"dsseEnvelope"`
	}
	var s struct {
		PredicateType string `json:"predicateType"`
		Subject       []struct {
			Digest struct{ SHA256 string } `json:"digest"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	if err := json.Unmarshal(r.Envelope.Payload, &s); err != nil || len(s.Subject) == 0 {
		return fmt.Errorf("no statement with a subject: %w", err)
	}
	trust := filepath.Join(b.dir, "state", "trust")
	c := exec.Command(b.cosign, "verify-blob-attestation", "--key", filepath.Join(trust, fmt.Sprintf("att-%x.pub", r.Material.PublicKey.Hint)),
		"--trusted-root", filepath.Join(trust, "trusted_root.json"), "--bundle", file, "--type", s.PredicateType,
		"--digest", s.Subject[0].Digest.SHA256, "--digestAlg", "sha256")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// theirs returns the files that sigstore-js accepts.
func (b *bench) theirs(files []string) (map[string]bool, error) {
	trust := filepath.Join(b.dir, "state", "trust")
	args := []string{"verify.mjs", "--trusted-root", filepath.Join(trust, "trusted_root.json")}
	keys, err := filepath.Glob(filepath.Join(trust, "att*.pub"))
	if err != nil || len(keys) == 0 {
		return nil, fmt.Errorf("no keys in %s", trust)
	}
	for _, k := range keys {
		args = append(args, "--key", k)
	}
	c := exec.Command(b.node, append(args, files...)...)
	c.Dir = b.js
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil && c.ProcessState == nil {
		return nil, fmt.Errorf("run verify.mjs: %w", err)
	}
	accepted := make(map[string]bool)
	for line := range strings.Lines(stdout.String()) {
		if f, _, ok := strings.Cut(line, ": verified by sigstore-js"); ok {
			accepted[f] = true
		}
	}
	if n := len(accepted) + strings.Count(stderr.String(), ": REFUSED by sigstore-js"); n != len(files) {
		return nil, fmt.Errorf("verify.mjs judged %d of %d receipts\n%s", n, len(files), stderr.String())
	}
	return accepted, nil
}

// flipped writes copies of a receipt, each with one bit changed, spread evenly.
func flipped(receipt string, n int) ([]string, error) {
	orig, err := os.ReadFile(receipt)
	if err != nil {
		return nil, err
	}
	orig = bytes.TrimRight(orig, "\n")
	var out []string
	for i := range n {
		at := len(orig) * i / n
		b := bytes.Clone(orig)
		b[at] ^= 1 << (i % 3) // stays printable, so that it reaches more than the JSON parser
		name := fmt.Sprintf("%s.flip-%d", receipt, at)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			return nil, err
		}
		out = append(out, name)
	}
	return out, nil
}

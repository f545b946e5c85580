// Command demo walks one call after another through the built palyra and says after each
// whether the promises came true. It is the README's claim made checkable: ten steps, each
// with its expectations, and each attack with a control run outside of the sandbox, because
// an attack that fails there too shows nothing.
//
// It ends with status 0 if every expectation was met and 1 otherwise, naming
// each that was not. It works as root and as any other user, in a directory of
// its own, and leaves nothing behind but what it prints and a picture of the console.
//
//	make demo
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// limit bounds the whole demo: it must end by itself.
const limit = 4 * time.Minute

// demo is one walk. Owned by main.
type demo struct {
	palyra  string // absolute path
	hostile string // absolute path
	js      string // folder of the verifier that is not ours; "" none
	dir     string // everything that the demo writes is below it, but for picture
	picture string // file for the picture of the console
	out     io.Writer

	policy   string    // directory of the demo's own policy
	receipts []receipt // of every call so far
	checks   int
	failures []string
}

// receipt is the file that a call left, with its expected content.
type receipt struct {
	file    string
	outcome string
	trust   string // directory of the public keys; "": those of palyra exec
}

// keys returns the directory of the public keys that a receipt is verified with.
func (d *demo) keys(r receipt) string {
	if r.trust == "" {
		return filepath.Join(d.dir, "state", "palyra", "trust")
	}
	return r.trust
}

func main() {
	var d demo
	flag.StringVar(&d.palyra, "palyra", "bin/palyra", "the palyra to show")
	flag.StringVar(&d.hostile, "hostile", "", "the built hostile program")
	flag.StringVar(&d.js, "js", "", "folder of the @sigstore/verify script")
	flag.StringVar(&d.dir, "dir", "", "empty directory to work in")
	flag.StringVar(&d.picture, "picture", "conformance/results/demo-console.png", "where the picture of the console goes, if Chromium is installed")
	within := flag.String("within", "", "run the step of the network alone, in a world of its own, and leave its results in this file")
	flag.Parse()
	d.out = os.Stdout
	if *within != "" {
		os.Exit(d.within(*within))
	}
	if err := d.prepare(); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	began := time.Now()
	for i, s := range steps {
		fmt.Fprintf(d.out, "\n== %d. %s\n\n", i+1, s.title)
		s.run(ctx, &d)
	}
	cancel()
	fmt.Fprintf(d.out, "\n%d of %d expectations met in %.1f s\n", d.checks-len(d.failures), d.checks, time.Since(began).Seconds())
	for _, f := range d.failures {
		fmt.Fprintf(d.out, "NOT MET: %s\n", f)
	}
	if len(d.failures) > 0 {
		os.Exit(1)
	}
}

var steps = []struct {
	title string
	run   func(context.Context, *demo)
}{
	{"An allowed call runs a real program in a cell, and its receipt verifies", allowed},
	{"A call that policy forbids is denied, with the reason and the fix", forbidden},
	{"A sensitive call waits for a person; what was approved is what runs", approved},
	{"A hostile program, outside and inside", attacked},
	{"A secret reaches the program that policy names, and no output", secret},
	{"A call reaches the hosts that it names, and no other until a person permits it; an agent that a page misleads is stopped", reached},
	{"A daemon: a call that waits, a second principal who answers, a paired device, the emergency stop, a kill in the middle", operated},
	{"An agent mends a failing test over MCP; a person is asked once, about the changes", served},
	{"The signing key is replaced; receipts from before and after verify with one trust directory", rotated},
	{"Every receipt, verified by Palyra and by a verifier that is not ours", verified},
}

// prepare makes the demo's directories. The state directory is a fresh one, so
// the first call also shows that keys are made on first use.
func (d *demo) prepare() error {
	for _, p := range []*string{&d.palyra, &d.hostile, &d.dir, &d.picture} {
		if *p == "" {
			return fmt.Errorf("-palyra, -hostile, -dir and -picture are needed; run conformance/demo/run")
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	for _, p := range []string{d.palyra, filepath.Join(filepath.Dir(d.palyra), "palyra-cell"), filepath.Join(filepath.Dir(d.palyra), "palyrad"), d.hostile} {
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("%w (make build)", err)
		}
	}
	d.policy = filepath.Join(d.dir, "policy")
	for _, sub := range []string{"receipts", "work", "policy"} {
		if err := os.Mkdir(filepath.Join(d.dir, sub), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(d.policy, "demo.cedar"), []byte(demoPolicy), 0o644)
}

// demoPolicy is a whole policy that allows one program by name.
const demoPolicy = `@id("demo_allows_hostile")
permit (principal, action == Palyra::Action::"tool.execute", resource)
when { context.executable.name == "hostile" };
`

// expect records whether a promise came true.
func (d *demo) expect(ok bool, format string, args ...any) {
	d.checks++
	text := fmt.Sprintf(format, args...)
	if ok {
		fmt.Fprintf(d.out, "   ok  %s\n", text)
		return
	}
	d.failures = append(d.failures, text)
	fmt.Fprintf(d.out, " FAIL  %s\n", text)
}

// show prints a program's output, indented.
func (d *demo) show(text string) {
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if line != "" {
			fmt.Fprintf(d.out, "       | %s\n", line)
		}
	}
}

func (d *demo) receipt(name string) string { return filepath.Join(d.dir, "receipts", name+".json") }

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// ended is the end of a program.
type ended struct {
	status         int
	stdout, stderr string
}

// command prepares a program in the demo's world: its own state directory, and no variable
// of the environment that could change palyra.
func (d *demo) command(ctx context.Context, dir string, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"HOME=" + d.dir, "XDG_STATE_HOME=" + filepath.Join(d.dir, "state"), "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
	// A session of its own: without a controlling terminal the call asks no person by
	// accident, whoever started the demo.
	cmd.SysProcAttr = session()
	return cmd
}

// run runs argv to its end and prints the command line.
func (d *demo) run(ctx context.Context, prompt, dir string, argv ...string) ended {
	fmt.Fprintf(d.out, "     %s %s\n", prompt, d.spell(argv))
	cmd := d.command(ctx, dir, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return ended{status(err), stdout.String(), stderr.String()}
}

// call runs palyra exec with a receipt of that name and remembers the receipt.
func (d *demo) call(ctx context.Context, name, outcome string, args ...string) ended {
	argv := append([]string{d.palyra, "exec", "--receipt", d.receipt(name)}, args...)
	d.receipts = append(d.receipts, receipt{file: d.receipt(name), outcome: outcome})
	return d.run(ctx, "$", filepath.Join(d.dir, "work"), argv...)
}

// spell writes argv the way a reader would type it.
func (d *demo) spell(argv []string) string {
	var words []string
	for i, w := range argv {
		switch {
		case i == 0 && w == d.palyra:
			w = "palyra"
		case w == d.hostile:
			w = "./hostile"
		}
		w = strings.ReplaceAll(w, filepath.Join(d.dir, "receipts")+"/", "")
		w = strings.ReplaceAll(w, d.dir+"/", "")
		if w == "" || strings.ContainsAny(w, " ;|&'\"$") {
			w = "'" + w + "'"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// status is the exit status as a shell would give it.
func status(err error) int {
	if err == nil {
		return 0
	}
	ee, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return -1
	}
	if ws, ok := ee.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ee.ExitCode()
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"palyra/conformance/pty"
)

// allowed is step 1.
func allowed(ctx context.Context, d *demo) {
	r := d.call(ctx, "allowed", "executed", "--", "/usr/bin/id")
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 0 && strings.HasPrefix(r.stdout, "uid="), "id ran (status %d)", r.status)
	r = d.run(ctx, "$", d.dir, d.palyra, "attest", "show", d.receipt("allowed"))
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 0 && strings.Contains(r.stdout, "sandbox_tier_c_linux_native"), "the receipt names the executor that was observed")
	r = d.run(ctx, "$", d.dir, d.palyra, "attest", "verify", d.receipt("allowed"))
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 0, "the receipt verifies (status %d)", r.status)
}

// forbidden is step 2.
func forbidden(ctx context.Context, d *demo) {
	r := d.call(ctx, "denied", "denied", "--", "bash", "-c", "id")
	d.show(r.stdout + r.stderr)
	d.expect(r.status == 126 && r.stdout == "", "bash did not run (status %d)", r.status)
	d.expect(strings.Contains(r.stderr, "interpreters_unless_permitted"), "the determining policy is named")
	d.expect(strings.Contains(r.stderr, `Palyra::Executable::"bash"`), "a change that would allow it is shown")
	_, err := os.Stat(d.receipt("denied"))
	d.expect(err == nil, "a denial has a receipt too")
}

// approved is step 3. The program and its operand are replaced on disk while
// the person is still reading.
func approved(ctx context.Context, d *demo) {
	if err := d.approve(ctx); err != nil {
		d.expect(false, "approval on a terminal: %v", err)
	}
}

func (d *demo) approve(ctx context.Context) error {
	ws := filepath.Join(d.dir, "work")
	tool, operand := filepath.Join(ws, "greet"), filepath.Join(ws, "note.txt")
	program, err := os.ReadFile(d.hostile)
	if err != nil {
		return err
	}
	if err := os.WriteFile(tool, program, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(operand, []byte("what you approved\n"), 0o644); err != nil {
		return err
	}
	argv := []string{d.palyra, "exec", "--receipt", d.receipt("approved"), "--workspace", ws, "--", "./greet", "print", "note.txt"}
	d.receipts = append(d.receipts, receipt{file: d.receipt("approved"), outcome: "executed"})
	in, _, err := d.permitted(ctx, ws, argv, func() error {
		fmt.Fprintln(d.out, "       (while it waits, both files are replaced on disk)")
		if err := replace(tool, "#!/bin/sh\necho TAMPERED program\n", 0o755); err != nil {
			return err
		}
		// The operand is changed in place: same inode, which a path check misses.
		return os.WriteFile(operand, []byte("TAMPERED operand\n"), 0o644)
	})
	if err != nil {
		return err
	}
	d.expect(in.status == 0 && in.stdout == "what you approved\n", "the approved program printed the approved bytes (status %d)%s", in.status, in.complaint())
	r := d.run(ctx, "control: outside $", ws, "./greet", "print", "note.txt")
	d.show(r.stdout + r.stderr)
	d.expect(strings.Contains(r.stdout, "TAMPERED"), "the same command outside runs what is on disk now")
	return nil
}

// permitted runs palyra on a terminal, where a person says yes to the card that it shows.
func (d *demo) permitted(ctx context.Context, dir string, argv []string, meanwhile func() error) (e ended, card string, err error) {
	fmt.Fprintf(d.out, "     $ %s\n", d.spell(argv))
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := d.command(ctx, dir, argv...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	term, err := pty.Start(cmd)
	if err != nil {
		return e, "", err
	}
	card, err = term.Expect(ctx, "denies: ")
	if err == nil {
		d.show(strings.ReplaceAll(card, "\r", ""))
		err = meanwhile()
	}
	if err == nil {
		code := codeIn(card)
		fmt.Fprintf(d.out, "       (the person types %s)\n", code)
		err = term.Type(code + "\n")
	}
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		term.Close()
		return e, card, err
	}
	werr := cmd.Wait()
	term.Close()
	d.show(stdout.String())
	return ended{status(werr), stdout.String(), strings.ReplaceAll(strings.TrimPrefix(term.Shown(), card), "\r", "")}, card, nil
}

func onFailure(err error, text string) string {
	if err == nil {
		return ""
	}
	return ": " + text
}

// complaint is what a program that failed said.
func (e ended) complaint() string {
	if e.status == 0 {
		return ""
	}
	return ": " + e.stderr
}

// codeIn finds what the prompt asks to be typed.
func codeIn(prompt string) string {
	_, after, _ := strings.Cut(prompt, "Type ")
	code, _, _ := strings.Cut(after, " ")
	return code
}

// replace puts a new file in the old one's place.
func replace(path, content string, mode os.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(content), mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

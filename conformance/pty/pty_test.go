//go:build linux

package pty

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestTerminal types into a shell that reads /dev/tty while its standard input
// is something else, as palyra's prompt does.
func TestTerminal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `printf 'name? ' >/dev/tty; read n </dev/tty; echo "hello $n" >&2; cat`)
	cmd.Stdin = strings.NewReader("from stdin")
	var out strings.Builder
	cmd.Stdout = &out
	term, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := term.Expect(ctx, "name? "); err != nil {
		t.Fatal(err)
	}
	if err := term.Type("ada\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := term.Expect(ctx, "hello ada"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := term.Expect(ctx, "never"); !errors.Is(err, ErrClosed) {
		t.Errorf("expect after the end: %v, want ErrClosed", err)
	}
	if err := term.Close(); err != nil {
		t.Error(err)
	}
	if out.String() != "from stdin" {
		t.Errorf("stdout %q", out.String())
	}
}

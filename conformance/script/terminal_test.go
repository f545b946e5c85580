//go:build linux

package script

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/conformance/pty"
)

// TestTwoCallsOnOneTerminal: while one call waits at its card, another on the same
// terminal, which needs no approval, tries to show a card of its own with the digits that
// the requester can know. Nothing of it comes to the terminal before the answer, and then
// as text; the digits that the requester knows are a no.
func TestTwoCallsOnOneTerminal(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"ws/in.txt": "input\n", "both.sh": `
palyra exec --state "$PWD/a" --workspace ws --receipt a.json -- cat in.txt &
while [ ! -e go ]; do sleep 0.05; done
palyra policy explain --state "$PWD/c" --workspace ws --json -- cat in.txt >explained.json
palyra exec --state "$PWD/b" --receipt b.json -- printf '\033[2J\033[H FORGED card\n\342\200\256' >/dev/tty
wait
`} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "both.sh")
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + tools + ":" + os.Getenv("PATH"), "HOME=" + dir}
	term, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	card, err := term.Expect(ctx, "denies: ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// The second call is under way when its receipt file is there, and over soon after.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var begun time.Time
	for begun.IsZero() || time.Since(begun) < 2*time.Second {
		if _, err := os.Stat(filepath.Join(dir, "b", "journal")); err == nil && begun.IsZero() {
			begun = time.Now()
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the second call did not begin; shown %q", term.Shown())
		case <-tick.C:
		}
	}
	if rest := strings.TrimPrefix(term.Shown(), card); rest != "" {
		t.Errorf("while the card is up the terminal is shown %q", rest)
	}
	b, err := os.ReadFile(filepath.Join(dir, "explained.json"))
	_, known, ok := strings.Cut(string(b), "sha256:")
	if err != nil || !ok || !strings.Contains(card, known[:64]) {
		t.Fatalf("explain does not give the capsule: %v, %q", err, b)
	}
	if err := term.Type(known[:4] + "\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := term.Expect(ctx, "^[[2J^[[H FORGED card"); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Log(err) // the status of the last wait
	}
	term.Close()
	shown := term.Shown()
	if strings.ContainsAny(shown, "\x1b\u202e") || strings.Index(shown, "FORGED") < strings.Index(shown, "denied\r\n") || !strings.Contains(shown, "denied\r\n") {
		t.Errorf("shown %q", shown)
	}
}

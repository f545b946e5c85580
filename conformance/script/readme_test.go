//go:build linux

package script

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// varies matches what differs from machine to machine: digests, ids, key hints.
var varies = regexp.MustCompile(`[0-9A-Za-z/+]{43}=|\b[0-9a-f]{16,}\b`)

// TestReadmeTranscript runs the commands of the README's console block in order
// in an empty directory, and compares what they print, digests masked.
func TestReadmeTranscript(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(readme), "```console\n")
	block, _, closed := strings.Cut(block, "```\n")
	if !ok || !closed {
		t.Fatal("README.md has no console block")
	}
	dir := t.TempDir()
	ran := 0
	for _, entry := range strings.Split("\n"+block, "\n$ ")[1:] {
		line, want, _ := strings.Cut(strings.TrimSuffix(entry, "\n")+"\n", "\n")
		cmd := exec.Command("/bin/sh", "-c", line)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + tools + ":" + os.Getenv("PATH"), "HOME=" + dir, "XDG_STATE_HOME=" + filepath.Join(dir, "state")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil && !strings.Contains(want, "palyra: ") {
			t.Errorf("$ %s: %v", line, err)
		}
		if got := mask(out.String()); got != mask(want) {
			t.Errorf("$ %s\nprints\n%s\nthe README says\n%s", line, got, want)
		}
		ran++
	}
	if ran < 3 {
		t.Errorf("the transcript has %d commands", ran)
	}
}

// TestMask: a key hint begins with any of the 64.
func TestMask(t *testing.T) {
	for _, hint := range []string{"A7MQPXhuesq13OgKiqfCY0vXXY8rtZqWVNmAAmftw2c=", "/A7MQPXhuesq13OgKiqfCY0v//YK8rtZqWVNmAAmftw=", "+A7MQPXhuesq13OgKiqfCY0v//YK8rtZqWVNmAAmft+="} {
		if got := mask("signed by " + hint); got != "signed by XXXX" {
			t.Errorf("%s: %q", hint, got)
		}
	}
}

func mask(s string) string { return varies.ReplaceAllString(s, "XXXX") }

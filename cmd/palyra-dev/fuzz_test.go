package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/internal/fault"
)

func TestFuzzTargets(t *testing.T) {
	dir := t.TempDir()
	if _, err := fuzzTargets(dir); fault.ReasonOf(err) != "bad_file" {
		t.Errorf("without a list: %v", err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "targets"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"x\n", "a.FuzzB ../sh.test\n", "a.FuzzB /bin/sh\n", "a.FuzzB b.test\n\n", "a.Test b.test\n", "a.FuzzB b.test c\n"} {
		write(bad)
		if _, err := fuzzTargets(dir); fault.ReasonOf(err) != "bad_file" {
			t.Errorf("%q: %v", bad, err)
		}
	}
	write("internal/canon.FuzzDecode internal-canon.test\ninternal/toolproto.FuzzDecode internal-toolproto.test\ncrypt/receipt.FuzzVerify crypt-receipt.test\n")
	ts, err := fuzzTargets(dir)
	if err != nil || len(ts) != 3 {
		t.Fatal(ts, err)
	}
	for name, want := range map[string]string{"FuzzVerify": "crypt/receipt.FuzzVerify", "canon.FuzzDecode": "internal/canon.FuzzDecode",
		"crypt/receipt.FuzzVerify": "crypt/receipt.FuzzVerify", "FuzzDecode": "bad_command", "Verify": "bad_command", "": "bad_command", "FuzzX": "bad_command"} {
		got, err := fuzzTargetOf(ts, name)
		if s := got.name + fault.ReasonOf(err); s != want {
			t.Errorf("%q: %s, want %s", name, s, want)
		}
	}
}

// TestFuzzRefuses has the command end before it would become something else.
func TestFuzzRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "targets"), []byte("a.FuzzB a.test\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"fuzz", "--from", dir, "--list"}, 0, "a.FuzzB"},
		{[]string{"fuzz", "--from", dir}, 2, "--target"},
		{[]string{"fuzz", "--from", dir, "--target", "FuzzC"}, 2, "no such target"},
	} {
		var stdout, stderr strings.Builder
		if got := run(t.Context(), c.args, &stdout, &stderr); got != c.status || !strings.Contains(stdout.String()+stderr.String(), c.says) {
			t.Errorf("%q: status %d: %s%s", c.args, got, stdout.String(), stderr.String())
		}
	}
}

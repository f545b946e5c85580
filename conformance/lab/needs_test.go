package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestMissing: what is not there is named with its package, once.
func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	ms := []machine{{}, {suite: "trixie", arch: "amd64"}, {suite: "trixie", arch: "arm64"}, {suite: "bookworm", arch: "arm64"}}
	err := missing(ms)
	if err == nil {
		t.Fatal("with nothing in PATH nothing is missing")
	}
	for _, want := range []string{"qemu-system-x86_64", "qemu-system-aarch64", " qemu-system-x86 ", " qemu-system-arm", "apt-get, ", " xz-utils"} {
		if n := strings.Count(err.Error(), want); n != 1 {
			t.Errorf("%q is %d times in %q", want, n, err)
		}
	}
}

// TestReach: only what is a matter of the network may be left out; see lab.do.
func TestReach(t *testing.T) {
	for text, want := range map[string]string{
		"Err:1 http://x trixie InRelease\n  Temporary failure resolving 'x'\nE: Failed to fetch": "Temporary failure resolving 'x'",
		"E: Failed to fetch http://x/InRelease  Could not connect to x:80 (192.0.2.1)":           "Could not connect to x:80 (192.0.2.1)",
		"  Connection failed [IP: 192.0.2.1 80]":                                                 "Connection failed [IP: 192.0.2.1 80]",
		"  503  Service Unavailable\n  503 Service Unavailable":                                  "503 Service Unavailable",
		"  404  Not Found [IP: 192.0.2.1 80]":                                                    "",
		"E: The repository 'http://x bullseye Release' does not have a Release file.":            "",
		"At least one invalid signature was encountered.\n Could not connect to y":               "",
		"E: Failed to fetch http://x/Packages  Hash Sum mismatch\n  Connection failed":           "",
		"exit status 100": "",
	} {
		err := reach(fmt.Errorf("index: %w", errors.New(text)))
		if got := away(errors.Join(errors.New("machine"), err)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if reach(nil) != nil {
		t.Error("no error is one")
	}
}

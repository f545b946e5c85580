package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/crypt/journal"
	"palyra/internal/fault"
	"palyra/kernel"
)

// unpackState unpacks the state directory that palyra of commit 917b8c9 made with
//
//	palyra exec --state state -- /bin/echo hello
//	palyra exec --state state -- /bin/bash -c true
//	setsid palyra exec --state state -- /usr/bin/make --version </dev/null
//	palyra exec --state state --policy pol --tier b --workspace ws -- /usr/bin/sort f
//	palyra exec --state state --policy pol --timeout 1s -- /usr/bin/sleep 5
//
// where pol permits everything. Its keys sign nothing else.
func unpackState(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open("testdata/state-917b8c9.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, strings.TrimPrefix(filepath.Clean(h.Name), "state"))
		mode := h.FileInfo().Mode().Perm()
		if h.Typeflag == tar.TypeDir {
			if err := os.Mkdir(path, mode); err != nil {
				t.Fatal(err)
			}
			continue
		}
		b, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(path, b, mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestOldReasons: a state directory whose receipts have reason codes that are no more opens, is
// listed with them as they are, verifies, is decided again, and goes on.
func TestOldReasons(t *testing.T) {
	h := newHouse(t)
	unpackState(t, h.state)
	reasons := func() (out []string) {
		r, err := journal.OpenReader(filepath.Join(h.state, "journal"))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for d, err := range kernel.Decisions(r.Entries, r.Size(), r.Size()) {
			if err != nil {
				t.Fatal(err)
			}
			if e := d.Statement.Predicate.Error; e != nil {
				out = append(out, e.Reason)
			}
		}
		slices.Sort(out)
		return out
	}
	want := []string{"forbidden", "unreachable", "wall", "workspace_owner"}
	if got := reasons(); !slices.Equal(got, want) {
		t.Fatalf("the receipts have the reasons %q, want %q", got, want)
	}
	gone := slices.DeleteFunc(want, func(code string) bool {
		return slices.ContainsFunc(fault.Reasons(), func(v fault.Vocabulary) bool {
			return slices.ContainsFunc(v.Reasons, func(r fault.Reason) bool { return r.Code == code })
		})
	})
	if len(gone) != 2 {
		t.Errorf("of the recorded codes the table lacks %q, want two", gone)
	}
	sees := func(status int, has []string, args ...string) {
		t.Helper()
		got, stdout, stderr := h.run("", append(args, "--state", h.state)...)
		if got != status {
			t.Errorf("palyra %q: status %d, want %d: %s%s", args, got, status, stdout, stderr)
		}
		for _, s := range has {
			if !strings.Contains(stdout+stderr, s) {
				t.Errorf("palyra %q lacks %q:\n%s%s", args, s, stdout, stderr)
			}
		}
	}
	verifies := func(denied string) {
		t.Helper()
		sees(0, []string{"sound", denied, "1 executed", "1 not_approved", "1 refused", "1 timed_out"}, "journal", "verify")
	}
	verifies("1 denied")
	pol := t.TempDir()
	if err := os.WriteFile(filepath.Join(pol, "all.cedar"), []byte("@id(\"all\")\npermit (principal, action, resource);\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sees(3, []string{"5 decisions made again, 0 skipped, 3 would change", "deny -> allow", "needs_approval -> allow"}, "policy", "diff", pol)
	sees(0, []string{"deny: forbidden", "/bin/bash -c true"}, "policy", "why", "4c5aa31ff7071586cecb6474b1a852cc")
	got, _, stderr := h.run("", "exec", "--state", h.state, "--", "/bin/sh", "-c", "id")
	if got != 126 || !strings.Contains(stderr, "forbidden") {
		t.Errorf("a further call: status %d: %s", got, stderr)
	}
	verifies("2 denied")
}

package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFaulty: the faults of testdata/faulty are found, each once, and no others.
func TestFaulty(t *testing.T) {
	everywhere := []string{
		"faulty.go:12:33 (printf)", "faulty.go:14:16 (copylocks)", "faulty.go:17:2 (lostcancel)", "faulty.go:19:3 (lostcancel)",
		"faulty_test.go:6:12 (printf)", "faulty_test.go:7:14 (testinggoroutine)", "ignored.go:5:1 (directive)", "other_test.go:5:42 (printf)",
	}
	for platform, more := range map[string][]string{
		"linux/amd64": {"faulty_amd64.s:4:1 (asmdecl)", "faulty_amd64.s:5:1 (asmdecl)"}, "linux/arm64": {"faulty_arm64.s:5:1 (asmdecl)"},
	} {
		want := slices.Sorted(slices.Values(append(more, everywhere...)))
		if got := found(t, platform); !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", platform, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if err := check("testdata/faulty", "windows/amd64"); err == nil || !strings.Contains(err.Error(), "faulty_windows.go:3:18: cannot use") {
		t.Errorf("windows/amd64: %v", err)
	}
}

var fault = regexp.MustCompile(`^(.+:\d+:\d+): .* (\([a-z]+\))$`)

// found returns where check finds what; go vet finds the same.
func found(t *testing.T, platform string) (faults []string) {
	err := check("testdata/faulty", platform)
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		m := fault.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("%s: %s", platform, line)
		}
		faults = append(faults, filepath.Base(m[1])+" "+m[2])
	}
	slices.Sort(faults)
	return faults
}

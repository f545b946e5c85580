package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// asMain makes the test binary be the command: it becomes a subreaper and waits
// for every child, which a test process must not.
const asMain = "LANE_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// lane runs the command and returns its status and standard error.
func lane(t *testing.T, args ...string) (int, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	c := exec.Command(self, args...)
	c.Env, c.Stderr, c.WaitDelay = append(os.Environ(), asMain+"=1"), &stderr, time.Minute
	err = c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), stderr.String()
}

// sleeping counts processes with this argument.
func sleeping(t *testing.T, mark string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, l := range lines {
		b, _ := os.ReadFile(l) // it may be gone
		if bytes.HasSuffix(b, []byte("\x00"+mark+"\x00")) && bytes.HasPrefix(b, []byte("sleep\x00")) {
			n++
		}
	}
	return n
}

func TestStatus(t *testing.T) {
	said := regexp.MustCompile(`^lane: at work on [0-9]+\.[0-9] of [0-9]+ processors\n$`)
	for _, c := range []struct {
		script string
		want   int
	}{{"exit 0", 0}, {"exit 7", 7}, {"kill -9 $$", 137}} {
		if got, stderr := lane(t, "60", "sh", "-c", c.script); got != c.want || !said.MatchString(stderr) {
			t.Errorf("%s: status %d, want %d; said %q", c.script, got, c.want, stderr)
		}
	}
	if got, stderr := lane(t, "60", "/nonexistent"); got != statusBroken || stderr == "" {
		t.Errorf("absent program: status %d, want %d; said %q", got, statusBroken, stderr)
	}
}

// A grandchild in a session of its own, whose parent is gone, is out of reach of
// a signal to the group.
const away = `( setsid sh -c 'sleep %[1]s & trap "" TERM; sleep %[1]s & wait' & ) >/dev/null 2>&1; sleep 0.2; `

func TestOverBudget(t *testing.T) {
	t.Parallel() // it waits for the budget
	mark := fmt.Sprintf("3600.%d", os.Getpid())
	began := time.Now()
	got, stderr := lane(t, "1", "sh", "-c", fmt.Sprintf(away+"sleep %[1]s", mark))
	if got != statusOver || !strings.Contains(stderr, "over its budget of 1s") || !strings.Contains(stderr, " sleep") {
		t.Errorf("status %d, want %d; said %q", got, statusOver, stderr)
	}
	if n := sleeping(t, mark); n != 0 {
		t.Errorf("%d of its processes are left", n)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %v", took)
	}
}

func TestLeftBehind(t *testing.T) {
	t.Parallel()
	mark := fmt.Sprintf("3601.%d", os.Getpid())
	got, stderr := lane(t, "60", "sh", "-c", fmt.Sprintf(away+"exit 3", mark))
	if got != 3 || !strings.Contains(stderr, "left behind and ended: ") {
		t.Errorf("status %d, want 3; said %q", got, stderr)
	}
	if n := sleeping(t, mark); n != 0 {
		t.Errorf("%d of its processes are left", n)
	}
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// makefile stands in for the project's in a repository that has .ci/lanes.
const makefile = `
.PHONY: $(MAKECMDGOALS)
check cross-turn build demo battery battery-turn sigstore cedar-turn swaps-turn sysfuzz agents lab-turn: ; @echo $@ by $$(id -u) in $$PWD >&2
console clients test race-turn arch exhaustive-turn user-exhaustive-turn outside outside-turn: ; @printf '{"Action":"%s","Package":"p","Test":"TestA"}\n' run pass
oracle: ; @printf '{"Action":"%s","Package":"q","Test":"TestB"}\n' run pass
`

// repository makes one of .ci, the commands that it needs, and a Makefile.
func repository(t *testing.T, make string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []string{".ci", "conformance/lane", "conformance/tally"} {
		if err := os.CopyFS(filepath.Join(dir, p), os.DirFS(filepath.Join("../..", p))); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"go.mod": "module palyra\n\ngo 1.26.0\n", "Makefile": make} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", "t"}} {
		c := exec.Command("git", args...)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return dir
}

// lanes runs .ci/lanes there.
func lanes(t *testing.T, dir string, env string, args ...string) (int, string) {
	t.Helper()
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(filepath.Join(dir, ".ci/lanes"), args...)
	c.Dir, c.Env = dir, append(os.Environ(), "GOCACHE="+string(bytes.TrimSpace(cache)), env)
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), string(out)
}

func has(t *testing.T, out string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !regexp.MustCompile("(?m)^" + l + "$").MatchString(out) {
			t.Errorf("no line %q", l)
		}
	}
	if t.Failed() {
		t.Logf("output:\n%s", out)
	}
}

// TestLanes: all lanes run, each as its user, and their tests are counted.
func TestLanes(t *testing.T) {
	t.Parallel()
	dir := repository(t, makefile)
	got, out := lanes(t, dir, "LANE_BUDGET=60")
	want := []string{`check +\d+ of  60 s  ok`, `demo +\d+ of  60 s  ok`, `sysfuzz +\d+ of  60 s  ok`}
	if os.Getuid() == 0 {
		want = append(want, `exhaustive +\d+ of  60 s  ok`, `race +\d+ of  60 s  ok`, `user-exhaustive +\d+ of  60 s  ok`, `user-demo +\d+ of  60 s  ok`, `lab +\d+ of  60 s  ok`, "11 passed, 0 failed")
	} else {
		want = append(want, `race +\d+ of  60 s  ok`, "user-demo: not run: not root", "lab: not run: not root", "8 passed, 0 failed")
	}
	has(t, out, want...)
	if got != 0 || !strings.HasSuffix(out, "0 failed\n") {
		t.Errorf("status %d, want 0; ends %q", got, out[max(0, len(out)-40):])
	}
	if _, err := os.Stat(filepath.Join(dir, "lane")); err == nil {
		t.Error("it has written into the tree")
	}
}

// TestLanesBroken: a lane that fails, one that exceeds its budget, a failed test
// and a skip that is not listed are named, and the others run.
func TestLanesBroken(t *testing.T) {
	t.Parallel()
	mark := fmt.Sprintf("3602.%d", os.Getpid())
	dir := repository(t, `
.PHONY: $(MAKECMDGOALS)
build: ; @:
check: ; @echo no such luck; exit 1
demo: ; @(setsid sh -c 'sleep `+mark+`; sleep `+mark+`' >/dev/null 2>&1 &) ; sleep `+mark+`
test: ; @printf '{"Action":"%s","Package":"p","Test":"TestS"}\n' run skip
oracle: ; @printf '{"Action":"%s","Package":"q","Test":"TestB"}\n' run fail; exit 1
`)
	got, out := lanes(t, dir, "LANE_BUDGET=60", "check", "build", "test", "oracle")
	has(t, out, `check +\d+ of  60 s  FAIL: status 2`, "no such luck", `build +\d+ of  60 s  ok`, `oracle .* FAIL: .*`, "FAIL q TestB",
		`test .* FAIL: tests`, "FAIL p TestS skipped, which is not expected here: .*",
		"broken: check: status 2", "broken: oracle: .*", "only: check build test oracle ")
	if got != 1 || !strings.HasSuffix(out, "\n0 passed, 3 failed\n") {
		t.Errorf("status %d, want 1; ends %q", got, out[max(0, len(out)-40):])
	}
	got, out = lanes(t, dir, "LANE_BUDGET=4", "build", "demo")
	has(t, out, `lane: over its budget of [4-8]s: .*`, `demo +\d+ of   4 s  FAIL: over its budget`, "broken: demo: over its budget")
	if got != 1 || !strings.HasSuffix(out, "\n0 passed, 1 failed\n") {
		t.Errorf("status %d, want 1; ends %q", got, out[max(0, len(out)-40):])
	}
	if n := sleeping(t, mark); n != 0 {
		t.Errorf("%d processes of the lane that was too slow are left", n)
	}
}

// TestLanesTogether: of a group two lanes run at once, each of which waits for another one here, and
// one that fails is named.
func TestLanesTogether(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := repository(t, `
.PHONY: $(MAKECMDGOALS)
cedar-turn: ; @echo answered as the corpus >`+fifo+`
sigstore: ; @cat `+fifo+`
oracle: ; @printf '{"Action":"%s","Package":"q","Test":"TestB"}\n' run pass
swaps-turn: ; @exit 3
check: ; @:
`)
	got, out := lanes(t, dir, "LANE_BUDGET=60", "check", "cedar", "sigstore", "oracle", "swaps")
	has(t, out, `check +\d+ of  60 s  ok`, `cedar +\d+ of  60 s  ok`, `sigstore +\d+ of  60 s  ok`, "answered as the corpus", `oracle +\d+ of  60 s  ok`,
		`swaps +\d+ of  60 s  FAIL: status 2`, "broken: swaps: status 2", "1 passed, 1 failed")
	if got != 1 {
		t.Errorf("status %d, want 1", got)
	}
}

// TestLanesRooted: what the user skipped for want of root is run as root, and that alone.
func TestLanesRooted(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root: is two users")
	}
	dir := repository(t, `
.PHONY: $(MAKECMDGOALS)
test: ; @printf '{"Action":"%s","Package":"p","Test":"TestA"}\n' run pass; \
	[ $$(id -u) = 0 ] || printf '{"Action":"output","Package":"q","Test":"TestR","Output":"    a_test.go:7: needs root: is two\\n"}\n{"Action":"skip","Package":"q","Test":"TestR"}\n'; \
	[ $$(id -u) != 0 ] || printf '{"Action":"%s","Package":"q","Test":"TestR"}\n' run $(if $(and $(filter q,$(PACKAGES)),$(findstring -run '^(TestR)$$',$(TESTFLAGS))),pass,fail)
`)
	got, out := lanes(t, dir, "LANE_BUDGET=60", "test", "rooted")
	has(t, out, `test +\d+ of  60 s  ok`, `SKIP q TestR: needs root: is two`, `rooted +\d+ of  60 s  ok`, "3 passed, 0 failed, 1 skipped")
	if got != 0 {
		t.Errorf("status %d", got)
	}
	got, out = lanes(t, dir, "LANE_BUDGET=60", "rooted")
	has(t, out, "rooted: NOT RUN: .*")
	if got != 0 {
		t.Errorf("alone: status %d", got)
	}
}

// TestLanesUnsteady: a test that fails once and not again is named, and fails no lane. One
// that fails again does.
func TestLanesUnsteady(t *testing.T) {
	t.Parallel()
	dir := repository(t, `
.PHONY: $(MAKECMDGOALS)
test: ; @printf '{"Action":"%s","Package":"p","Test":"TestA"}\n{"Action":"pass","Package":"p","Test":"TestB"}\n' \
	run $(if $(and $(filter p,$(PACKAGES)),$(findstring -json -count=5 -run '^(TestA)$$',$(TESTFLAGS))),pass,fail)
`)
	got, out := lanes(t, dir, "LANE_BUDGET=60", "test")
	has(t, out, `test +\d+ of  60 s  ok, 1 unsteady`, "FAIL p TestA", "UNSTEADY: failed once, passed 5 times alone: test: p TestA", "2 passed, 0 failed")
	if got != 0 {
		t.Errorf("status %d", got)
	}
	dir = repository(t, `
.PHONY: $(MAKECMDGOALS)
test: ; @printf '{"Action":"%s","Package":"p","Test":"TestA"}\n' run fail
`)
	got, out = lanes(t, dir, "LANE_BUDGET=60", "test")
	has(t, out, `test +\d+ of  60 s  FAIL: tests`, "broken: test: tests", "0 passed, 1 failed")
	if got != 1 {
		t.Errorf("status %d, want 1", got)
	}
}

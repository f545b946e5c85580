package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pass = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name, in, allow string
		ok              bool
		last            string
		says            string
		again           string
	}{
		{name: "pass", in: pass, ok: true, last: "1 passed, 0 failed"},
		{name: "nothing ran", in: `{"Action":"pass","Package":"p"}`, last: "0 passed, 0 failed"},
		{name: "fail counts the case and not its parent", in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/x"}
{"Action":"output","Package":"p","Test":"TestA/x","Output":"    a_test.go:1: got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestA/x"}
{"Action":"run","Package":"p","Test":"TestA/y"}
{"Action":"pass","Package":"p","Test":"TestA/y"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`, last: "1 passed, 1 failed", says: "got 1, want 2", again: "p TestA\n"},
		{name: "parent by itself", in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA/x"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`, last: "1 passed, 1 failed", again: "p TestA\n"},
		{name: "two of two packages", in: pass + failed("p", "TestB", "slow") + failed("q", "TestC", ""), last: "1 passed, 2 failed", again: "p TestB\nq TestC\n"},
		{name: "a race", in: pass + failed("p", "TestB", "slow") + failed("q", "TestC", "WARNING: DATA RACE"), last: "1 passed, 2 failed"},
		{name: "a time-out", in: pass + failed("q", "TestC", "panic: test timed out after 10m0s"), last: "1 passed, 1 failed"},
		{name: "too many", in: failed("p", "TestB", "") + failed("p", "TestC", "") + failed("p", "TestD", "") + failed("p", "TestE", "") + pass, last: "1 passed, 4 failed"},
		{name: "one beside a skip", in: pass + failed("p", "TestB", "slow") + skip, allow: "# none\n", last: "1 passed, 2 failed"},
		{name: "crash", in: pass + `{"Action":"run","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Output":"panic: x\n"}
{"Action":"fail","Package":"q"}`, last: "1 passed, 1 failed", says: "FAIL q TestB"},
		{name: "build", in: pass + `{"ImportPath":"q","Action":"build-output","Output":"q.go:1: undefined\n"}
{"Action":"fail","Package":"q"}`, last: "1 passed, 1 failed", says: "undefined"},
		{name: "skip", in: pass + skip, ok: true, last: "1 passed, 0 failed, 1 skipped", says: "TestS: needs root"},
		{name: "skip expected", in: pass + skip, allow: "TestS: needs root\n", ok: true, last: "1 passed, 0 failed, 1 skipped"},
		{name: "skip unexpected", in: pass + skip, allow: "# none\n", last: "1 passed, 1 failed", says: "not expected"},
		{name: "cut short", in: pass + `{"Action":"run","Package":"q","Test":"TestB"}
{"Action":"out`, last: "1 passed, 2 failed", says: "FAIL q TestB"},
		{name: "skip for another reason", in: pass + skip, allow: "TestS: needs npm\n", last: "1 passed, 1 failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var allow string
			if c.allow != "" {
				allow = filepath.Join(t.TempDir(), "allow")
				if err := os.WriteFile(allow, []byte(c.allow), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			again := filepath.Join(t.TempDir(), "again")
			ok, err := run(strings.NewReader(c.in), &out, allow, again)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := lines[len(lines)-1]; ok != c.ok || got != c.last {
				t.Errorf("run = %v, %q; want %v, %q", ok, got, c.ok, c.last)
			}
			if !strings.Contains(out.String(), c.says) {
				t.Errorf("output %q does not say %q", out.String(), c.says)
			}
			if got, err := os.ReadFile(again); err != nil || string(got) != c.again {
				t.Errorf("to run again: %q, %v; want %q", got, err, c.again)
			}
		})
	}
}

// failed is what go test says of a test that failed.
func failed(pkg, test, output string) string {
	return fmt.Sprintf(`{"Action":"run","Package":%[1]q,"Test":%[2]q}
{"Action":"output","Package":%[1]q,"Test":%[2]q,"Output":%[3]q}
{"Action":"fail","Package":%[1]q,"Test":%[2]q}
{"Action":"fail","Package":%[1]q}
`, pkg, test, output+"\n")
}

const skip = `{"Action":"run","Package":"p","Test":"TestS"}
{"Action":"output","Package":"p","Test":"TestS","Output":"    a_test.go:7: needs root\n"}
{"Action":"skip","Package":"p","Test":"TestS"}`

func TestRunRefusesOtherInput(t *testing.T) {
	if _, err := run(strings.NewReader("ok  \tp\t0.1s\n"), new(strings.Builder), "", ""); err == nil {
		t.Error("plain go test output was accepted")
	}
}

func TestBattery(t *testing.T) {
	file := func(text string) string {
		p := filepath.Join(t.TempDir(), "f.json")
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	expect := file(`{"inconclusive": [
		{"case": "9", "tier": "*", "user": "unprivileged", "control": "EPERM", "reason": "only root may"},
		{"case": "42/ping", "tier": "b", "user": "*", "control": "*", "reason": "no ping"}]}`)
	results := file(`{"run": 6, "not_applicable": 2, "cases": [
		{"case": "9/null", "tier": "c", "user": "unprivileged", "control": "EPERM", "verdict": "inconclusive"},
		{"case": "9", "tier": "b", "user": "unprivileged", "control": "EPERM", "verdict": "inconclusive"},
		{"case": "9", "tier": "b", "user": "root", "control": "EPERM", "verdict": "inconclusive"},
		{"case": "90", "tier": "b", "user": "unprivileged", "control": "EPERM", "verdict": "inconclusive"},
		{"case": "42/ping", "tier": "b", "user": "root", "control": "x", "verdict": "inconclusive"},
		{"case": "1", "tier": "b", "user": "root", "control": "OPEN", "verdict": "passed"}]}`)
	var out strings.Builder
	ok, err := battery(&out, results, expect)
	want := `    6 run
    2 not applicable to the tier or mode
    1 inconclusive: no ping
    2 inconclusive: no reason on the list
    2 inconclusive: only root may
`
	if !ok || err != nil || out.String() != want {
		t.Errorf("battery = %v, %v, printed\n%swant\n%s", ok, err, &out, want)
	}
	if ok, _ := battery(new(strings.Builder), file(`{}`), expect); ok {
		t.Error("results of nothing pass")
	}
}

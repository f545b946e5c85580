// Command tally reads the output of go test -json, prints what failed, and
// counts.
//
//	go test -json ./... | go run ./conformance/tally [-allow FILE] [-again FILE]
//	go run ./conformance/tally -battery RESULTS -expect FILE
//
// It prints the output of failed tests and of packages that did not build, the
// skipped tests with their reasons, and as its last line the counts:
//
//	N passed, N failed[, N skipped]
//
// A test counts once; one with subtests counts by its subtests only, so that a
// failed case is one failure. -allow names a file of lines "TestName: reason";
// with it a skip that the file does not list is a failure, because a run that
// ought to look must not pass by not looking. A line is matched by the
// beginnings of the test's name and of its reason. Input that ends in the middle
// of a line, as that of a run that was cut short, is counted up to there and is
// a failure.
//
// -again names a file to write the tests to that may be run again, "PACKAGE TEST" a
// line. It's empty if anything failed that chance doesn't explain: a race, a panic, a
// time-out, a package that did not build, a skip, or more than againMost tests.
//
// -battery counts the attack cases of a results file that conformance/escape
// has written: run, not applicable, and the inconclusive ones by the reason
// that expect.json gives. Only escape itself says whether a case failed.
//
// Exit status: 0 if nothing failed and something passed, otherwise 1; 2 for
// input that cannot be read.
//
// It believes what go test says; it does not protect against a test that
// prints what a test would print.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is a line of go test -json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
}

// id names a test, or a package where Test is empty.
type id struct{ pkg, test string }

// tally has the results read so far.
type tally struct {
	output  map[id][]string
	verdict map[id]string
	parent  map[id]bool // has subtests
	build   []string
	cut     bool // the input ends in the middle of a line
}

func main() {
	allow := flag.String("allow", "", "file of skips that are expected here")
	again := flag.String("again", "", "file for the failed tests that may be run again")
	results := flag.String("battery", "", "file of results to count instead of tests")
	expect := flag.String("expect", "conformance/escape/expect.json", "file of reasons for inconclusive cases")
	flag.Parse()
	var ok bool
	var err error
	if *results != "" {
		ok, err = battery(os.Stdout, *results, *expect)
	} else {
		ok, err = run(os.Stdin, os.Stdout, *allow, *again)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(r io.Reader, w io.Writer, allow, again string) (bool, error) {
	var allowed []string
	if allow != "" {
		b, err := os.ReadFile(allow)
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(b)) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				allowed = append(allowed, line)
			}
		}
	}
	t := tally{output: make(map[id][]string), verdict: make(map[id]string), parent: make(map[id]bool)}
	if err := t.read(r); err != nil {
		return false, err
	}
	ok := t.print(w, allowed, allow != "")
	if again != "" {
		if err := os.WriteFile(again, []byte(strings.Join(t.unsteady(allowed, allow != ""), "")), 0o600); err != nil {
			return false, err
		}
	}
	return ok, nil
}

// againMost is how many tests that failed may be run again.
const againMost = 3

// unsteady returns a line for each test that failed, or none if what failed is no case
// for another try.
func (t *tally) unsteady(allowed []string, strict bool) (lines []string) {
	if t.cut || len(t.build) > 0 {
		return nil
	}
	failed := make(map[string]bool) // packages with a test that did
	for k, v := range t.verdict {
		out := strings.Join(t.output[k], "")
		switch {
		case v == "skip" && k.test != "" && strict && !expected(allowed, k.test, reason(t.output[k])),
			strings.Contains(out, "WARNING: DATA RACE"), strings.Contains(out, "panic: "), strings.Contains(out, "fatal error: "):
			return nil
		case v == "fail" && k.test != "" && !strings.Contains(k.test, "/"):
			failed[k.pkg] = true
			lines = append(lines, k.pkg+" "+k.test+"\n")
		}
	}
	for k, v := range t.verdict {
		if k.test == "" && v == "fail" && !failed[k.pkg] {
			return nil
		}
	}
	if len(lines) > againMost {
		return nil
	}
	slices.Sort(lines)
	return lines
}

func (t *tally) read(r io.Reader) error {
	b := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, end := b.ReadBytes('\n')
		if end != nil && end != io.EOF {
			return end
		}
		if len(line) == 0 {
			return nil
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			if end == io.EOF && n > 1 {
				t.cut = true
				return nil
			}
			return fmt.Errorf("read line %d: %v", n, err)
		}
		k := id{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			t.build = append(t.build, e.Output)
		case "output":
			t.output[k] = append(t.output[k], e.Output)
		case "pass", "fail", "skip":
			t.verdict[k] = e.Action
			for i := strings.LastIndexByte(e.Test, '/'); i > 0; i = strings.LastIndexByte(e.Test[:i], '/') {
				t.parent[id{e.Package, e.Test[:i]}] = true
			}
		case "run":
			if t.verdict[k] == "" {
				t.verdict[k] = "fail" // until it says otherwise: a crash leaves it so
			}
		}
	}
}

func (t *tally) print(w io.Writer, allowed []string, strict bool) bool {
	var keys []id
	for k := range t.verdict {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b id) int {
		return strings.Compare(a.pkg+"\x00"+a.test, b.pkg+"\x00"+b.test)
	})
	var passed, failed, skipped int
	broken := make(map[string]bool) // packages in which a test failed
	for _, k := range keys {
		if k.test == "" {
			continue
		}
		switch v := t.verdict[k]; {
		case v == "fail":
			broken[k.pkg] = true
			fmt.Fprintf(w, "FAIL %s %s\n%s", k.pkg, k.test, strings.Join(t.output[k], ""))
			if !t.subFailed(k) {
				failed++
			}
		case t.parent[k]:
		case v == "pass":
			passed++
		case v == "skip":
			why := reason(t.output[k])
			line := k.test + ": " + why
			if strict && !expected(allowed, k.test, why) {
				broken[k.pkg] = true
				failed++
				fmt.Fprintf(w, "FAIL %s %s skipped, which is not expected here: %s\n", k.pkg, k.test, why)
				continue
			}
			skipped++
			fmt.Fprintf(w, "SKIP %s %s\n", k.pkg, line)
		}
	}
	for _, k := range keys { // did not build, or died outside a test
		if k.test == "" && t.verdict[k] == "fail" && !broken[k.pkg] {
			failed++
			fmt.Fprintf(w, "FAIL %s\n%s", k.pkg, strings.Join(t.output[k], ""))
		}
	}
	for _, s := range t.build {
		fmt.Fprint(w, s)
	}
	if t.cut {
		failed++
		fmt.Fprintln(w, "FAIL: the input ends in the middle of a line")
	}
	fmt.Fprintf(w, "%d passed, %d failed", passed, failed)
	if skipped > 0 {
		fmt.Fprintf(w, ", %d skipped", skipped)
	}
	fmt.Fprintln(w)
	return failed == 0 && passed > 0
}

// subFailed reports whether a subtest of k failed, which then is the one that counts.
func (t *tally) subFailed(k id) bool {
	if !t.parent[k] {
		return false
	}
	for o, v := range t.verdict {
		if v == "fail" && o.pkg == k.pkg && strings.HasPrefix(o.test, k.test+"/") {
			return true
		}
	}
	return false
}

// reason finds the text given to Skip: " file_test.go:12: needs root".
func reason(out []string) string {
	for _, s := range out {
		if _, why, ok := strings.Cut(s, ".go:"); ok && strings.HasPrefix(s, " ") {
			if _, why, ok = strings.Cut(why, ": "); ok {
				return strings.TrimSpace(why)
			}
		}
	}
	return "no reason given"
}

func expected(allowed []string, test, why string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool {
		name, r, ok := strings.Cut(a, ": ")
		return ok && strings.HasPrefix(test, name) && strings.HasPrefix(why, r)
	})
}

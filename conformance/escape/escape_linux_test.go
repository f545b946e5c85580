package main

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/CONFORMANCE.md and conformance/CASES.md")

func TestJudge(t *testing.T) {
	success := &observation{started: true, outcome: "OPEN"}
	harmless := &observation{started: true, outcome: "OPEN", canary: true}
	harmed := &observation{started: true, outcome: "EPERM", canary: true, tripped: true}
	stopped := &observation{started: true, outcome: "EPERM"}
	accept := []string{"EPERM", "OPEN"}
	for _, c := range []struct {
		name            string
		control, inside *observation
		accept          []string
		want            string
	}{
		{"stopped as the table says", success, stopped, accept, passed},
		{"succeeded inside", success, success, accept, open},
		{"succeeded inside, whatever the control", stopped, success, accept, open},
		{"the host saw it, whatever the probe says", success, harmed, accept, open},
		{"the probe believes so, the host saw nothing, the table allows it", harmed, harmless, accept, passed},
		{"the probe believes so, the host saw nothing, the table does not", harmed, harmless, []string{"EPERM"}, failed},
		{"control stopped too", stopped, stopped, accept, inconclusive},
		{"control believes so, the host saw nothing", harmless, stopped, accept, inconclusive},
		{"stopped by something else", success, &observation{started: true, outcome: "EFAULT"}, accept, failed},
		{"hung", success, &observation{started: true, outcome: "EPERM", hung: true}, accept, hung},
		{"hung and open", success, &observation{started: true, outcome: "OPEN", hung: true}, accept, open},
		{"never ran", success, &observation{outcome: "EPERM", exit: 127}, accept, failed},
		{"refused where it must run", success, &observation{outcome: refused, exit: 125}, accept, failed},
		{"refused where it must be", success, &observation{outcome: refused, exit: 125}, []string{refused}, passed},
		{"refused for another reason", success, &observation{outcome: refused + "_OTHERWISE", exit: 125}, []string{refused}, failed},
		{"no control", &observation{broken: errors.New("x")}, stopped, accept, failed},
		{"no inside", success, &observation{broken: errors.New("x")}, accept, failed},
	} {
		if got, detail := judge(c.control, c.inside, c.accept); got != c.want {
			t.Errorf("%s: %s (%s), want %s", c.name, got, detail, c.want)
		}
	}
}

// wanted are the numbers of the attack table that the battery must hold.
var wanted = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 32, 33, 34, 35, 36, 37, 38,
	40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 55, 56, 57, 58, 59, 62, 63, 64, 65, 66, 67, 68, 70,
	79, 80, 81, 82, 83, 84, 85, 86, 87, 90, 91, 92, 93, 95, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 110, 111, 115, 116, 117, 118, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129}

func TestTable(t *testing.T) {
	numbers, ids := make(map[int]bool), make(map[string]bool)
	for _, c := range cases() {
		numbers[c.number] = true
		if ids[c.id()] {
			t.Errorf("case %s stands twice", c.id())
		}
		ids[c.id()] = true
		if c.name == "" || c.attack == "" || c.stage == nil {
			t.Errorf("case %s lacks a name, an attempt or a stage", c.id())
		}
		for _, tier := range []string{"b", "c"} {
			if stopped, absent := c.stopped[tier], c.absent[tier]; len(stopped) == 0 && absent == "" {
				t.Errorf("case %s: neither stopped at tier %s nor a reason why it is not applicable", c.id(), tier)
			}
		}
	}
	for _, n := range wanted {
		if !numbers[n] {
			t.Errorf("no case %d", n)
		}
	}
}

func TestExpectations(t *testing.T) {
	es, err := loadExpect()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if !slices.ContainsFunc(cases(), func(c attackCase) bool { return selected([]string{e.Case}, &c) }) {
			t.Errorf("expect.json: no case %q", e.Case)
		}
		if e.Tier != "*" && e.Tier != "b" && e.Tier != "c" || e.User != "*" && e.User != "root" && e.User != "unprivileged" {
			t.Errorf("expect.json: %+v: unknown tier or user", e)
		}
	}
	skips, err := loadSkips()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range skips.only {
		if !slices.Contains(modes, o.Mode) || o.Mode == modeCold {
			t.Errorf("expect.json: %+v: unknown mode", o)
		}
		for _, id := range o.Cases {
			if !slices.ContainsFunc(cases(), func(c attackCase) bool { return strconv.Itoa(c.number) == id }) {
				t.Errorf("expect.json: no case %q", id)
			}
		}
	}
	for _, l := range skips.like {
		if l.Case != "*" && !slices.ContainsFunc(cases(), func(c attackCase) bool { return selected([]string{l.Case}, &c) }) {
			t.Errorf("expect.json: no case %q", l.Case)
		}
		if !slices.Contains(modes[1:], l.Mode) && l.Mode != "*" || l.With != "" && l.With != withWorkspace && l.With != withNone && l.With != withHosts || l.Case == "*" && l.With == "" {
			t.Errorf("expect.json: %+v leaves out too much, or nothing", l)
		}
	}
	granted, plain := &scene{opt: options{workspace: "/x"}}, &scene{}
	some := &attackCase{number: 7, variant: "chmod"}
	for _, c := range []struct {
		sc   *scene
		mode string
		skip bool
	}{{granted, modeWarm, true}, {plain, modeWarm, false}, {granted, modeVoid, false}, {granted, modeStaged, false}, {plain, modeStaged, true}, {plain, modeSession, true}, {granted, modeTTY, true}} {
		if got := reason(skips, some, c.sc, c.mode) != ""; got != c.skip {
			t.Errorf("7/chmod in mode %s with workspace %q: left out %t, want %t", c.mode, c.sc.opt.workspace, got, c.skip)
		}
	}
	list := expectations{{Case: "9", Tier: "*", User: "unprivileged", Control: "EPERM", Reason: "x"}}
	for _, c := range []struct {
		r    record
		want bool
	}{
		{record{Case: "9/char", Tier: "b", User: "unprivileged", Control: "EPERM"}, true},
		{record{Case: "9/char", Tier: "b", User: "unprivileged", Control: "ENOSYS"}, false},
		{record{Case: "9/char", Tier: "b", User: "root", Control: "EPERM"}, false},
		{record{Case: "90/char", Tier: "b", User: "unprivileged", Control: "EPERM"}, false},
	} {
		if got := list.covers(&c.r); got != c.want {
			t.Errorf("covers %+v: %t, want %t", c.r, got, c.want)
		}
	}
}

// TestCasesPage holds conformance/CASES.md to the table: each case has its item.
func TestCasesPage(t *testing.T) {
	const path = "../CASES.md"
	want := casesPage(cases())
	for _, c := range cases() {
		if n := strings.Count(want, "\n- "+c.id()+":") + strings.Count(want, "\n- "+c.id()+" ") + strings.Count(want, "\n- "+c.id()+"\n"); n != 1 {
			t.Errorf("case %s has %d items, want 1", c.id(), n)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the table says; go test ./conformance/escape -update", path)
	}
}

// TestFindsOpenCases runs the battery against a sandbox that shows the whole
// host and passes descriptors on: it must say so, and only so.
func TestFindsOpenCases(t *testing.T) {
	b, users := bwrapBattery(t)
	known, err := loadExpect()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"1/open": open, "2/create": passed, "7/openat2": open, "19": open, "24/cmdline-by-pid": passed,
		"27/kill": passed, "38/stream": open, "40/v4": passed, "63": open, "66/keyctl": open, "81/one-file": open}
	for _, c := range cases() {
		if verdict, ok := want[c.id()]; ok {
			r, _ := b.try(&c, users[0], "c", "bwrap", nil)
			if r.Verdict == inconclusive && known.covers(&r) {
				t.Logf("case %s proves nothing on this kernel: %s", c.id(), r.Detail)
			} else if r.Verdict != verdict {
				t.Errorf("case %s: %s (%s), want %s", c.id(), r.Verdict, r.Detail, verdict)
			}
		}
	}
}

// TestTurns: two turns make each attempt as both users. A case that runs alone has one control in a
// turn, but for those that prove nothing as one of the users: these have each in each.
func TestTurns(t *testing.T) {
	known, err := loadExpect()
	if err != nil {
		t.Fatal(err)
	}
	lopsided := 0
	for _, c := range cases() {
		for turn := range 2 {
			b, next, roots := &battery{turn: turn, known: known}, &battery{turn: turn + 1, known: known}, 0
			for _, mode := range modes {
				root, other := b.plays(&c, &user{name: "root"}, mode), b.plays(&c, &user{name: "unprivileged"}, mode)
				if root == other || root == next.plays(&c, &user{name: "root"}, mode) {
					t.Errorf("case %s, %s, turn %d: as root %t, as a user %t, as root in the next turn, too", c.id(), mode, turn, root, other)
				}
				if root {
					roots++
				}
			}
			if one := roots == 0 || roots == len(modes); c.alone && one == known.ofUser(&c) {
				t.Errorf("case %s has %d of %d modes as root in turn %d", c.id(), roots, len(modes), turn)
			}
		}
		if c.alone && known.ofUser(&c) {
			lopsided++
		}
	}
	if lopsided == 0 {
		t.Error("no such case is alone: the rule has nothing to do")
	}
}

// TestAgain says that a case failed which bwrap stops, and one which it doesn't.
func TestAgain(t *testing.T) {
	b, users := bwrapBattery(t)
	var jobs []job
	for _, c := range cases() {
		jobs = append(jobs, job{c, users[0]})
	}
	failure := func(id string) record {
		return record{Case: id, Tier: "c", Mode: "bwrap", User: users[0].name, Verdict: failed}
	}
	for _, c := range []struct {
		name           string
		records        []record
		passed, failed int
		open           int
	}{
		{"passes alone", []record{failure("2/create")}, 1, 0, 0},
		{"open alone", []record{failure("19")}, 0, 1, 0},
		{"too many", []record{failure("2/create"), failure("2/create"), failure("2/create"), failure("2/create")}, 0, 4, 0},
		{"beside an open one", []record{failure("2/create"), {Case: "19", Verdict: open}}, 0, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var res results
			for i := range c.records {
				res.add(&c.records[i], expectations{})
			}
			b.again(&res, jobs, expectations{})
			if res.Passed != c.passed || res.Failed != c.failed || res.Open != c.open || res.Run != len(c.records) {
				t.Errorf("%d passed, %d failed, %d open of %d, want %d, %d, %d of %d", res.Passed, res.Failed, res.Open, res.Run, c.passed, c.failed, c.open, len(c.records))
			}
		})
	}
}

// bwrapBattery is a battery against a sandbox that is not ours, for an unprivileged user.
func bwrapBattery(t *testing.T) (*battery, []*user) {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("needs bwrap")
	}
	if exec.Command("bwrap", "--ro-bind", "/", "/", "--unshare-user", "true").Run() != nil {
		t.Skip("needs user namespaces")
	}
	b, users, err := setup(config{sandbox: "bwrap", palyra: "bwrap", users: []string{"unprivileged"}, uid: 64321})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(b.dir) })
	return b, users
}

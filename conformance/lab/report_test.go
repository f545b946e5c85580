package main

import (
	"reflect"
	"testing"
)

func TestCount(t *testing.T) {
	want := map[string]string{"facts/kernel": "6.1 x86_64", "a/b/root": "ok", "a/b/user": "ok, skipped TestX", "v/cases": "none open; inconclusive: 45 user EPERM", "gone": "ok"}
	got := []result{
		{"facts/kernel", "6.1 x86_64", "0.1 s"},
		{"a/b/root", "ok", "1.5 s"},
		{"a/b/user", "ok, skipped TestX", "2.5 s; TestX: no cgroup"},
		{"v/cases", "none open; inconclusive: 45 user EPERM", "1.0 s"},
		{"new", "ok", ""},
		{"battery/cases", "none open; inconclusive: ", ""},
	}
	var p played
	p.count(got, want)
	if p.Run != 6 || p.Passed != 3 || p.Unsure != 2 || p.Failed != 1 || p.Kernel != "6.1 x86_64" || !reflect.DeepEqual(p.Missing, []string{"gone"}) {
		t.Errorf("%+v", p)
	}
	for i, w := range []record{
		{Check: "facts/kernel", Verdict: "passed", Got: "6.1 x86_64", Seconds: 0.1},
		{Check: "a/b/root", User: "root", Verdict: "passed", Got: "ok", Seconds: 1.5},
		{Check: "a/b/user", User: "unprivileged", Verdict: "inconclusive", Got: "ok, skipped TestX", Reason: "skipped TestX: TestX: no cgroup", Seconds: 2.5},
		{Check: "v/cases", Verdict: "inconclusive", Got: got[3].Got, Reason: "45 user EPERM", Seconds: 1},
		{Check: "new", Verdict: "failed", Got: "ok"},
		{Check: "battery/cases", Verdict: "passed", Got: got[5].Got},
	} {
		if p.Checks[i] != w {
			t.Errorf("record %d is %+v, want %+v", i, p.Checks[i], w)
		}
	}
	// A difference from the expectation fails, whatever it says.
	for _, bad := range []result{{"a/b/root", "ok, skipped TestX", ""}, {"a/b/root", "failed: no", ""}, {"a/b/user", "ok", ""}} {
		var p played
		if p.count([]result{bad}, want); p.Failed != 1 {
			t.Errorf("%+v: %+v", bad, p)
		}
	}
}

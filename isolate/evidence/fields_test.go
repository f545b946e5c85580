package evidence

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"palyra/internal/canon"
)

// TestFields: the table has each member of evidence but the bases of groups, each with a
// basis that there is, and each number with a unit.
func TestFields(t *testing.T) {
	have := make(map[string]Field)
	for _, f := range Fields() {
		have[f.Name] = f
		for b := range strings.SplitSeq(f.Basis, ", ") {
			if !slices.Contains([]Basis{Verified, Observed, Reported}, Basis(b)) {
				t.Errorf("%s has the basis %q", f.Name, b)
			}
		}
	}
	var walk func(t reflect.Type, prefix string)
	walk = func(typ reflect.Type, prefix string) {
		for f := range typ.Fields() {
			at := f.Type
			for at.Kind() == reflect.Pointer || at.Kind() == reflect.Slice || at.Kind() == reflect.Map {
				at = at.Elem()
			}
			row, ok := have[prefix+name(f)]
			delete(have, prefix+name(f))
			switch at.Kind() {
			case reflect.Struct:
				if f.Type.Kind() == reflect.Struct {
					walk(f.Type, prefix+name(f)+".")
					continue
				}
				if _, group := at.FieldByName("Basis"); !group {
					walk(at, prefix+name(f)+"[].")
				}
			case reflect.Int, reflect.Int64, reflect.Uint32, reflect.Uint64:
				if row.Unit == "" {
					t.Errorf("%s%s is a number without a unit", prefix, name(f))
				}
			}
			if ok == (f.Name == "Basis") {
				t.Errorf("%s%s is a row: %v", prefix, name(f), ok)
			}
		}
	}
	walk(reflect.TypeFor[Evidence](), "")
	for n := range have {
		t.Errorf("%s is a row, and no member", n)
	}
}

func TestLines(t *testing.T) {
	d := canon.Sum(nil)
	for _, c := range []struct {
		e    Evidence
		want []Line
	}{
		{Evidence{}, nil},
		{Evidence{Namespaces: Namespaces{Basis: Observed}, Host: Host{Basis: Observed, Release: "6"}}, []Line{{"namespaces", "none", "observed"}}},
		{Evidence{Namespaces: Namespaces{Basis: Observed, Fresh: []string{"mnt", "pid"}},
			Process:  Process{Basis: Observed, NoNewPrivs: 1, CapEff: "00", HostUID: 7},
			Seccomp:  Seccomp{Basis: Verified, Program: d, Instructions: 9},
			Landlock: Landlock{Basis: Observed, ABI: 7, Rules: []string{"rx /usr", "r /etc"}},
			Cgroup:   Cgroup{Basis: Observed, State: "enforced"},
			Usage:    Usage{Basis: Reported, WallNS: 5_400_000, MaxRSS: 3 << 10}},
			[]Line{{"namespaces", "mnt, pid", "observed"}, {"process", "no_new_privs 1, capabilities 00, host uid 7", "observed"},
				{"seccomp", d.String() + ", 9 instructions", "verified"}, {"landlock", "ABI 7, 2 rules", "observed"},
				{"cgroup", "enforced", "observed"}, {"used", "0.005 s, 3 KiB", "reported"}}},
		{Evidence{Egress: Egress{Basis: Reported}}, []Line{{"egress", "0 queries, 0 KiB sent, 0 KiB received", "reported"}}},
		{Evidence{Egress: Egress{Basis: Reported, Queries: 2, Connections: []Connection{{}}, Sent: 2048, Received: 4096,
			Denied: []Denial{{Host: "a.example", Why: DenyNotListed, Times: 2}, {Host: "2001:db8::1", Port: 443, Why: DenyForbidden, Times: 1}}}},
			[]Line{{"egress", "2 queries, 1 connections listed, 2 KiB sent, 4 KiB received, denied: a.example (not_listed), [2001:db8::1]:443 (forbidden)", "reported"}}},
	} {
		if got := c.e.Lines(); !slices.Equal(got, c.want) {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

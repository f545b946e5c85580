package main

import (
	"slices"
	"strings"
	"testing"
)

// TestCritical: every critical case has two layers by the recorded attribution, or
// a reason why not, and no reason is given for one that has.
func TestCritical(t *testing.T) {
	d, err := loadCritical()
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool) // and numbers
	for _, c := range cases() {
		id, _, _ := strings.Cut(c.id(), "/")
		ids[c.id()], ids[id] = true, true
		n := 0
		for _, h := range d.Harms {
			if selected(h.Cases, &c) && (len(h.Except) == 0 || !selected(h.Except, &c)) {
				n++
			}
		}
		if n > 1 {
			t.Errorf("critical.json: case %s does %d kinds of harm", c.id(), n)
		}
	}
	var named []string
	for _, h := range d.Harms {
		named = slices.Concat(named, h.Cases, h.Except)
		if h.Name == "" || h.Why == "" {
			t.Errorf("critical.json: harm %+v lacks a name or a reason", h)
		}
	}
	for _, x := range d.Together {
		named = append(named, x.Cases...)
	}
	for _, o := range d.OneLayer {
		named = append(named, o.Cases...)
		if o.Reason == "" || o.Tier != "b" && o.Tier != "c" && o.Tier != "*" {
			t.Errorf("critical.json: %+v lacks a tier or a reason", o)
		}
	}
	for _, id := range named {
		if !ids[id] {
			t.Errorf("critical.json: no case %q", id)
		}
	}
	var a attribution
	if ok, err := read(attributionFile, &a); err != nil || !ok {
		t.Fatalf("%s: %v", attributionFile, err)
	}
	for _, line := range d.shallow(&a) {
		t.Error(line)
	}
}

// TestShallow holds the comparison to what it must notice.
func TestShallow(t *testing.T) {
	d := &critical{Harms: []harm{{Name: "host_read", Cases: []string{"1"}, Except: []string{"1/stat"}}},
		OneLayer: []oneLayer{{Cases: []string{"1/symlink"}, Tier: "c", Reason: "x"}}}
	of := func(id, tier string, opens []string, changes map[string]string, verdict string) *attribution {
		return &attribution{Cases: []traced{{Case: id, Tier: tier, Inside: "ENOENT", Verdict: verdict, Opens: opens, Changes: changes}}}
	}
	change := map[string]string{"mount": "EACCES"}
	for _, c := range []struct {
		name string
		a    *attribution
		want string
	}{
		{"a second layer followed", of("1/open", "c", nil, change, passed), ""},
		{"it took two", of("1/open", "c", []string{"mount+landlock_fs"}, nil, passed), ""},
		{"one is enough", of("1/open", "c", []string{"mount"}, nil, passed), "fewer than two"},
		{"one is enough, whatever another changes", of("1/open", "c", []string{"seccomp"}, change, passed), "fewer than two"},
		{"one is enough, and so are two", of("1/open", "c", []string{"mount", "mount+landlock_fs"}, nil, passed), "fewer than two"},
		{"nothing was seen", of("1/open", "b", nil, nil, passed), "fewer than two"},
		{"nothing is proven here", of("1/open", "c", []string{"mount"}, nil, inconclusive), ""},
		{"on the list", of("1/symlink", "c", []string{"mount"}, nil, passed), ""},
		{"on the list of the other tier", of("1/symlink", "b", []string{"mount"}, nil, passed), "fewer than two"},
		{"on the list, with two", of("1/symlink", "c", nil, change, passed), "has two"},
		{"not critical", of("1/stat", "c", []string{"mount"}, nil, passed), ""},
	} {
		got := strings.Join(d.shallow(c.a), "; ")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	d.OneLayer[0].Cases = []string{"2/create"}
	if got := d.shallow(of("2/create", "c", []string{"mount"}, nil, passed)); len(got) != 1 || !strings.Contains(got[0], "not critical") {
		t.Errorf("a list with a case that is not critical: %q", got)
	}
}

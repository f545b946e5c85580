package landlock

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		abi             int
		fs, net, scoped uint64
		missing         int
	}{
		{-1, 0, 0, 0, 7},
		{0, 0, 0, 0, 7},
		{1, 0x1fff, 0, 0, 6},
		{2, 0x3fff, 0, 0, 6},
		{3, 0x7fff, 0, 0, 5},
		{4, 0x7fff, 3, 0, 4},
		{5, 0xffff, 3, 0, 3},
		{6, 0xffff, 3, 3, 2},
		{7, 0xffff, 3, 3, 2},
		{8, 0xffff, 3, 3, 2},
		{9, 0x1ffff, 3, 3, 1},
		{10, 0x1ffff, 15, 3, 0},
		{99, 0x1ffff, 15, 3, 0}, // what we do not know is not handled
	} {
		rs, missing := Plan(tt.abi, []Grant{{Access: "rwx"}})
		if rs.ABI != tt.abi || rs.HandledFS != tt.fs || rs.HandledNet != tt.net || rs.Scoped != tt.scoped {
			t.Errorf("ABI %d: got %+v", tt.abi, rs)
		}
		if len(missing) != tt.missing {
			t.Errorf("ABI %d: missing %q", tt.abi, missing)
		}
		if rs.Rules[0].Rights&^rs.HandledFS != 0 {
			t.Errorf("ABI %d: rule has rights that are not handled", tt.abi)
		}
	}
}

func TestAccess(t *testing.T) {
	for s, want := range map[string]uint64{
		"r": FSReadFile | FSReadDir, "rx": FSReadFile | FSReadDir | FSExecute,
		"": 0, "w": 0, "x": 0, "xr": 0, "rwxx": 0, "rwx(no)": 0, "R": 0,
	} {
		if got := access(s); got != want {
			t.Errorf("access(%q) = %#x, want %#x", s, got, want)
		}
	}
	for _, never := range []uint64{FSMakeChar, FSMakeBlock, FSMakeFIFO, FSResolveUnix} {
		if access("rwx")&never != 0 {
			t.Errorf("rwx grants %#x", never)
		}
	}
	if access("rw")&FSExecute != 0 || access("rwx") != access("rw")|FSExecute {
		t.Error("rw and rwx differ by more than execute")
	}
}

func TestCheck(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	good, _ := Plan(7, []Grant{{Access: "r", Path: "/x", File: null}})
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, rs := range map[string]Ruleset{
		"zero":           {},
		"unknown access": func() Ruleset { r, _ := Plan(7, []Grant{{Access: "rz", File: null}}); return r }(),
		"no file":        func() Ruleset { r, _ := Plan(7, []Grant{{Access: "r"}}); return r }(),
		"no landlock":    func() Ruleset { r, _ := Plan(0, nil); return r }(),
		"not handled":    {HandledFS: 1, Rules: []Rule{{Grant{Access: "r", Path: "/x", File: null}, 4}}},
	} {
		if err := rs.check(); err == nil {
			t.Errorf("%s: passed", name)
		}
	}
}

func TestLines(t *testing.T) {
	rs, _ := Plan(7, []Grant{{Access: "rx", Path: "/usr"}, {Access: "r", Path: "/etc"}, {Access: "rx", Path: "/usr"}})
	if got := rs.Lines(); !slices.Equal(got, []string{"r /etc", "rx /usr"}) {
		t.Errorf("got %q", got)
	}
	if (Ruleset{}).Lines() == nil {
		t.Error("nil lines become null in JSON")
	}
}

// TestLevels holds the table to its order and to one bit per right.
func TestLevels(t *testing.T) {
	var fs, net, scoped uint64
	last := 0
	for _, l := range levels {
		if l.abi <= last || l.since == "" || fs&l.fs|net&l.net|scoped&l.scoped != 0 {
			t.Errorf("level %+v", l)
		}
		last, fs, net, scoped = l.abi, fs|l.fs, net|l.net, scoped|l.scoped
		if l.open != "" && !strings.HasPrefix(l.open, "landlock: ") {
			t.Errorf("level %d: %q", l.abi, l.open)
		}
	}
}

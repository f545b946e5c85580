package serve

import (
	"slices"
	"testing"

	"palyra/isolate/evidence"
)

// TestOutsideIDs: evidence has the ids that others see, not those of palyra-cell's own user namespace.
func TestOutsideIDs(t *testing.T) {
	for _, c := range []struct {
		users, groups string
		uid, gid      uint32
		all           []uint32
	}{
		{"         0       4711          1\n", "         0       4712          1\n", 4711, 4712, []uint32{65534, 4712}},
		{"         0          0 4294967295\n", "         0          0 4294967295\n", 0, 0, []uint32{65534, 0}},
		{"1000 5 1\n0 100000 1000\n", "7 7 1\n0 100 2\n", 100000, 100, []uint32{65534, 100}},
	} {
		var s server
		var err error
		if s.userIDs, err = parseIDMap(c.users); err != nil {
			t.Fatal(err)
		}
		if s.groupIDs, err = parseIDMap(c.groups); err != nil {
			t.Fatal(err)
		}
		p := evidence.Process{Groups: []uint32{65534, 0}}
		s.outsideIDs(&p)
		if p.HostUID != c.uid || p.HostGID != c.gid || !slices.Equal(p.Groups, c.all) {
			t.Errorf("%q, %q: %d, %d, %v", c.users, c.groups, p.HostUID, p.HostGID, p.Groups)
		}
	}
	for _, text := range []string{"", "\n", "0 1\n", "0 x 1\n", "0 0 4294967296\n"} {
		if m, err := parseIDMap(text); err == nil {
			t.Errorf("%q: %v", text, m)
		}
	}
	p := evidence.Process{HostUID: 7, HostGID: 8, Groups: []uint32{9}}
	new(server).outsideIDs(&p)
	if p.HostUID != 7 || p.HostGID != 8 || p.Groups[0] != 9 {
		t.Errorf("tier B: %+v", p)
	}
}

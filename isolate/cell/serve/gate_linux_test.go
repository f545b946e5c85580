package serve

import (
	"os"
	"slices"
	"strings"
	"testing"

	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
)

// TestMountsAsOrdered: the mounts that template and spec order, and each way in which a table
// may differ.
func TestMountsAsOrdered(t *testing.T) {
	private := []string{
		"/tmp rw,nosuid,nodev,relatime tmpfs private size=1024k,nr_inodes=64",
		"/dev/shm rw,nosuid,nodev,relatime tmpfs private size=1024k,nr_inodes=64",
		"/workspace rw,nosuid,nodev,relatime tmpfs private size=1024k,nr_inodes=64",
		"/ ro,nosuid,nodev,relatime tmpfs private size=4096k,nr_inodes=4096",
		"/usr ro,nosuid,nodev,relatime ext4 private",
		"/usr/local ro,nosuid,nodev,relatime xfs private",
		"/etc/fonts ro,nosuid,nodev,noexec,relatime ext4 private",
		"/dev/null ro,nosuid,noexec,relatime devtmpfs private size=12334460k,nr_inodes=3083615",
		"/proc rw,nosuid,nodev,noexec,relatime proc private",
		"/proc/keys ro,nosuid,noexec,relatime devtmpfs private size=12334460k,nr_inodes=3083615",
	}
	host := slices.Concat(private[:2], private[3:], []string{"/workspace ro,nosuid,nodev,relatime ext4 private",
		"/workspace/sub ro,nosuid,nodev,relatime ext4 private", `/workspace/a\040b ro,nosuid,nodev,relatime tmpfs private size=1024k`})
	of := func(w *isolate.Mount, operands ...isolate.File) *process {
		s := &server{masked: []string{"/proc/keys"}, shown: []shown{{"/usr", true, false}, {"/etc/fonts", false, false}, {"/dev/null", false, true}}}
		return &process{run: &run{s: s, spec: &isolate.Spec{Workspace: w, Operands: operands, Limits: isolate.Limits{Disk: 1 << 20, Inodes: 64}}}}
	}
	trusting := of(nil)
	trusting.roots = &roots{covered: []string{"/etc/fonts/ca.crt"}}
	cells := map[string]struct {
		*process
		table []string
	}{
		"private": {of(nil), private},
		"roots": {trusting, slices.Concat(private, []string{"/etc/ssl/palyra ro,nosuid,nodev,noexec,relatime tmpfs private size=228k,nr_inodes=2",
			"/etc/fonts/ca.crt ro,nosuid,nodev,noexec,relatime tmpfs private size=228k,nr_inodes=2"})},
		"staged":    {of(&isolate.Mount{Staged: true}), slices.Concat(private[:2], private[3:], []string{"/workspace rw,nosuid,nodev,relatime overlay private userxattr"})},
		"directory": {of(&isolate.Mount{ReadOnly: true}, isolate.File{Path: "/workspace/a b"}), host},
	}
	for name, c := range cells {
		if err := c.checkMounts(c.table); err != nil {
			t.Errorf("%s, as ordered: %v", name, err)
		}
		if err := c.checkMounts(append(slices.Clone(c.table), "/mnt ro,nosuid,nodev,noexec tmpfs private")); err == nil {
			t.Errorf("%s: a mount that was not ordered passes", name)
		}
		for i, line := range c.table {
			without := slices.Delete(slices.Clone(c.table), i, i+1)
			optional := strings.HasPrefix(line, "/usr/local ") || strings.HasPrefix(line, "/workspace/sub ")
			if err := c.checkMounts(without); (err == nil) != optional {
				t.Errorf("%s, without %q: %v", name, line, err)
			}
			if err := c.checkMounts(append(slices.Clone(c.table), line)); err == nil && (c.own(strings.Fields(line)[0]) || strings.HasPrefix(line, "/proc/keys ")) {
				t.Errorf("%s, with %q twice: passes", name, line)
			}
			for old, new := range map[string]string{" ro,": " rw,", ",nosuid": "", ",nodev": "", ",noexec": "", " private": " shared",
				"size=1024k": "size=2048k", "nr_inodes=64": "nr_inodes=65", " tmpfs ": " ext4 ", " proc ": " tmpfs ",
				" overlay ": " ext4 ", " userxattr": " ro,userxattr", "overlay private userxattr": "overlay private"} {
				changed := strings.Replace(line, old, new, 1)
				if changed == line || old == " tmpfs " && (strings.HasPrefix(line, "/dev/null") || strings.HasPrefix(line, "/etc/fonts/")) || strings.HasPrefix(line, `/workspace/a`) && old == "size=1024k" {
					continue
				}
				table := slices.Clone(c.table)
				table[i] = changed
				if err := c.checkMounts(table); err == nil {
					t.Errorf("%s: %q passes for %q", name, changed, line)
				}
			}
		}
	}
	// A writable workspace must be mounted writable.
	rw := of(&isolate.Mount{})
	table := slices.Concat(private[:2], private[3:], []string{"/workspace rw,nosuid,nodev ext4 private"})
	if err := rw.checkMounts(table); err != nil {
		t.Error(err)
	}
}

func TestDescriptorsAsOrdered(t *testing.T) {
	plain := []string{"0 /dev/null", "1 pipe", "2 pipe", "4 /usr/bin/true cloexec", "5 pipe cloexec", "6 pipe cloexec"}
	script := slices.Insert(slices.Clone(plain), 3, "3 memfd:script")
	if err := checkDescriptors(plain, false); err != nil {
		t.Error(err)
	}
	if err := checkDescriptors(script, true); err != nil {
		t.Error(err)
	}
	for name, got := range map[string][]string{
		"a script nobody named": script, "one more": append(slices.Clone(plain), "7 socket"), "twice": append(slices.Clone(plain), "6 pipe cloexec"),
		"one less": plain[1:], "not a number": append([]string{"x y"}, plain[1:]...), "one that stays": append(slices.Clone(plain[:5]), "6 pipe"),
	} {
		if err := checkDescriptors(got, false); err == nil {
			t.Errorf("%s: %q passes", name, got)
		}
	}
}

// TestCwdAsOrdered: the gate compares the process's place with the folder and the mount that
// were opened.
func TestCwdAsOrdered(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	proc, err := sys.OpenDirAt(sys.AtCWD, "/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(proc)
	here, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	at, err := sys.PlaceOf(int(here.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	inode, device, mount := at, at, at
	inode.Inode.Ino++
	device.Inode.Dev++
	mount.Mount++
	for name, c := range map[string]struct {
		want sys.Place
		ok   bool
	}{"as ordered": {at, true}, "another inode": {inode, false}, "another device": {device, false}, "another mount": {mount, false}, "none": {sys.Place{}, false}} {
		p := &process{run: &run{cwd: c.want}}
		if err := p.checkCwd(proc); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (&process{run: &run{cwd: at}}).checkCwd(int(here.Fd())); err == nil {
		t.Error("a working directory that can't be read passes")
	}
}

func TestLimitsAsOrdered(t *testing.T) {
	want := []steps.Limit{{Name: "cpu", Soft: 1, Hard: 2}}
	for _, c := range []struct {
		soft, hard int64
		ok         bool
	}{{1, 2, true}, {1, 3, false}, {2, 2, false}, {-1, 2, false}, {1, -1, false}, {0, 0, false}} {
		got := &evidence.Limits{Soft: map[string]int64{"cpu": c.soft}, Hard: map[string]int64{"cpu": c.hard}}
		if err := checkLimitsHeld(got, want); (err == nil) != c.ok {
			t.Errorf("%d, %d: %v", c.soft, c.hard, err)
		}
	}
	if err := checkLimitsHeld(&evidence.Limits{}, want); err == nil {
		t.Error("a limit that was not read passes")
	}
}

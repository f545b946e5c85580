package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fake is a directory that imitates a cgroup v2 mount: files exist, nothing
// acts on them.
type fake struct{ proc, mount string }

func newFake(t *testing.T, controllers string) fake {
	t.Helper()
	dir := t.TempDir()
	f := fake{filepath.Join(dir, "proc"), filepath.Join(dir, "cg")}
	put(t, filepath.Join(f.proc, "self/cgroup"), "4:memory:/old\n0::/user.slice/palyra.scope\n")
	put(t, filepath.Join(f.proc, "self/mountinfo"), "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"+
		"31 25 0:27 / "+f.mount+" rw shared:4 - cgroup2 cgroup2 rw\n")
	group := filepath.Join(f.mount, "user.slice/palyra.scope")
	put(t, filepath.Join(group, "cgroup.controllers"), controllers)
	put(t, filepath.Join(group, "cgroup.subtree_control"), "")
	put(t, filepath.Join(group, "cgroup.procs"), strconv.Itoa(os.Getpid())+"\n")
	return f
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fill gives a new group the files that the kernel would.
func fill(t *testing.T) func(string) {
	return func(dir string) {
		for name, v := range map[string]string{
			"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0", "pids.max": "max", "cpu.max": "max 100000",
			"cgroup.kill": "", "cgroup.procs": "", "cgroup.subtree_control": "", "memory.peak": "4096\n", "cpu.stat": "usage_usec 30\nuser_usec 20\nsystem_usec 10\nnr_periods 0\n",
			"cgroup.events": "populated 1\nfrozen 0\n", "memory.events": "low 0\noom 1\noom_kill 2\n", "pids.events": "max 3\n",
		} {
			put(t, filepath.Join(dir, name), v)
		}
	}
}

func TestFind(t *testing.T) {
	for name, tt := range map[string]struct {
		controllers, want string
	}{
		"delegated": {"cpuset cpu io memory pids\n", "enforced"},
		"none":      {"\n", "unavailable: cgroup v2 controllers cpu, memory, pids are not delegated"},
		"one":       {"cpu pids\n", "unavailable: cgroup v2 controllers memory are not delegated"},
		"prefix":    {"cpuset memory pids\n", "unavailable: cgroup v2 controllers cpu are not delegated"},
	} {
		f := newFake(t, tt.controllers)
		tree, err := Find(f.proc)
		if got := State(err); got != tt.want || (err == nil) != (tree != nil) {
			t.Errorf("%s: got %q (%v), want %q", name, got, tree, tt.want)
		}
	}
	f := newFake(t, "cpu memory pids")
	os.Remove(filepath.Join(f.mount, "user.slice/palyra.scope/cgroup.controllers"))
	if _, err := Find(f.proc); State(err) != "unavailable: cgroup v2 without a list of controllers: open cgroup.controllers: no such file or directory" {
		t.Errorf("got %q", State(err))
	}
}

func TestLocate(t *testing.T) {
	const v2 = "31 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for _, tt := range []struct{ self, mounts, want string }{
		{"0::/a/b\n", v2, "/sys/fs/cgroup/a/b"},
		{"0::/\n", v2, "/sys/fs/cgroup"},
		{"0::/box/a\n", "31 25 0:27 /box /cg rw - cgroup2 x rw\n", "/cg/a"},
		{"0::/boxer/a\n", "31 25 0:27 /box /cg rw - cgroup2 x rw\n", ""},
		{"0::/../x\n", v2, ""},    // beyond a cgroup namespace
		{"4:memory:/a\n", v2, ""}, // version 1 only
		{"0::/a\n", "30 25 0:1 / /sys/fs/cgroup rw - cgroup x rw\n", ""},
		{"", "", ""},
		{"0::/a\n", "garbage\n - cgroup2 \n", ""},
	} {
		got, err := locate([]byte(tt.self), []byte(tt.mounts))
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("locate(%q, %q) = %q, %v; want %q", tt.self, tt.mounts, got, err, tt.want)
		}
	}
}

func TestLeaf(t *testing.T) {
	f := newFake(t, "cpu memory pids")
	tree, err := Find(f.proc)
	if err != nil {
		t.Fatal(err)
	}
	tree.testOnlyMade = fill(t)
	if err := tree.Prepare(); err != nil {
		t.Fatal(err)
	}
	if s, _ := read(tree.dir, "cgroup.subtree_control"); s != "+cpu +memory +pids" {
		t.Errorf("subtree_control: %q", s)
	}
	if s, _ := read(filepath.Join(tree.dir, main), "cgroup.procs"); s != "0" {
		t.Errorf("processes of %s: %q", main, s)
	}
	leaf, err := tree.New("call-1", Limits{Memory: 1 << 20, PIDs: 7, MilliCPU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"memory.max": "1048576", "memory.swap.max": "0", "pids.max": "7", "cpu.max": "150000 100000"}
	got, err := leaf.Values()
	if err != nil || got["memory.max"] != want["memory.max"] || !maps.Equal(trim(got, want), want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if p, err := leaf.Peak(); p != 4096 || err != nil {
		t.Errorf("peak %d, %v", p, err)
	}
	if u, s, err := leaf.Times(); u != 20*time.Microsecond || s != 10*time.Microsecond || err != nil {
		t.Errorf("times %v, %v, %v", u, s, err)
	}
	if e, err := leaf.Events(); e != (Events{2, 3}) || err != nil {
		t.Errorf("events %+v, %v", e, err)
	}
	if leaf.Dir() == nil {
		t.Error("no descriptor")
	}
	if _, err := tree.New("call-1", Limits{1, 1, 1}); err == nil {
		t.Error("a second cell in the same group")
	}
	if err := leaf.Remove(); err == nil { // the fake is a directory with files in it
		t.Error("removed a group that the kernel would call busy")
	}
}

// TestMoved: palyra-cell's threads enter a mount namespace in which no path leads
// to a cgroup. Here the path changes instead.
func TestMoved(t *testing.T) {
	f := newFake(t, "cpu memory pids")
	nest := filepath.Join(f.mount, "user.slice/palyra.scope/cell-1")
	put(t, filepath.Join(nest, own, "cgroup.procs"), "")
	put(t, filepath.Join(f.proc, "self/cgroup"), "0::/user.slice/palyra.scope/cell-1/"+own+"\n")
	tree, err := Inherit(f.proc)
	if err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(f.mount, "elsewhere")
	if err := os.Rename(nest, moved); err != nil {
		t.Fatal(err)
	}
	tree.testOnlyMade = func(string) { fill(t)(filepath.Join(moved, "call-1")) }
	leaf, err := tree.New("call-1", Limits{1 << 20, 1, 1})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := leaf.Peak(); p != 4096 || err != nil {
		t.Errorf("peak %d, %v", p, err)
	}
	if v, err := leaf.Values(); err != nil || v["memory.max"] != "1048576" {
		t.Errorf("limits %v, %v", v, err)
	}
	if err := os.RemoveAll(filepath.Join(moved, "call-1")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(moved, "call-1"), 0o755); err != nil { // as the kernel sees a group: nothing in it is in the way
		t.Fatal(err)
	}
	if err := leaf.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(moved, "call-1")); err == nil {
		t.Error("the group is left")
	}
}

// trim cuts what the fake leaves behind: a file keeps its tail when a shorter
// value is written over it, which a control file does not.
func trim(got, want map[string]string) map[string]string {
	out := make(map[string]string)
	for k, v := range got {
		out[k] = v[:min(len(v), len(want[k]))]
	}
	return out
}

func TestNewRefuses(t *testing.T) {
	f := newFake(t, "cpu memory pids")
	tree, err := Find(f.proc)
	if err != nil {
		t.Fatal(err)
	}
	ok := Limits{1, 1, 1}
	for _, name := range []string{"", ".", "..", "a/b", "../x", ".hidden", "cgroup.procs", own} {
		if _, err := tree.New(name, ok); err == nil {
			t.Errorf("made %q", name)
		}
	}
	for _, l := range []Limits{{}, {0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {-1, 1, 1}} {
		if _, err := tree.New("x", l); err == nil {
			t.Errorf("made a group with %+v", l)
		}
	}
	// Control files are missing: nothing may be left behind.
	if _, err := tree.New("bare", ok); err == nil {
		t.Error("made a group without controls")
	}
	if _, err := os.Lstat(filepath.Join(tree.dir, "bare")); err == nil {
		t.Error("left a group behind")
	}
	if strings.Contains(State(err), f.mount) {
		t.Error("state names a path")
	}
}

func TestPrepareMissing(t *testing.T) {
	f := newFake(t, "cpu memory pids")
	tree, err := Find(f.proc)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(tree.dir, "cgroup.subtree_control"))
	if got := State(tree.Prepare()); got != "unavailable: open cgroup.subtree_control: no such file or directory" {
		t.Errorf("got %q", got)
	}
}

func TestPrepareCrowded(t *testing.T) {
	f := newFake(t, "cpu memory pids")
	tree, err := Find(f.proc)
	if err != nil {
		t.Fatal(err)
	}
	tree.testOnlyMade = fill(t)
	const want = "unavailable: other processes are in the delegated cgroup"
	for _, procs := range []string{"1\n" + strconv.Itoa(os.Getpid()) + "\n", "1\n", "0\n"} {
		put(t, filepath.Join(tree.dir, "cgroup.procs"), procs)
		if got := State(tree.Prepare()); got != want {
			t.Errorf("beside %q: %q, want %q", procs, got, want)
		}
		if s, _ := read(tree.dir, "cgroup.subtree_control"); s != "" {
			t.Errorf("wrote %q", s)
		}
	}
	if entries, err := filepath.Glob(filepath.Join(tree.dir, "*", "cgroup.procs")); len(entries) > 0 || err != nil {
		t.Errorf("made %v, %v", entries, err)
	}
	// What enforces the rule is not there: the group already hands controllers on.
	put(t, filepath.Join(tree.dir, "cgroup.subtree_control"), "cpu memory pids")
	if err := tree.Prepare(); err != nil {
		t.Error(err)
	}
}

func TestInherit(t *testing.T) {
	f := newFake(t, "cpu memory pids")
	group := filepath.Join(f.mount, "user.slice/palyra.scope")
	put(t, filepath.Join(group, "cell-x/palyra-cell/cgroup.procs"), "")
	for _, tt := range []struct{ group, procs, dir, want string }{
		{"/user.slice/palyra.scope/cell-x/palyra-cell", "", group + "/cell-x", "enforced"},
		{"/user.slice/palyra.scope", "0\n1\n", "", "unavailable: palyra made no group for palyra-cell"},
		{"/user.slice/palyra.scope", "0\n0\n1\n", "", "unavailable: other processes are in the delegated cgroup"},
		{"/user.slice/palyra.scope/palyra-main", "", "", "unavailable: palyra made no group for palyra-cell"},
	} {
		put(t, filepath.Join(f.proc, "self/cgroup"), "0::"+tt.group+"\n")
		put(t, filepath.Join(group, "cgroup.procs"), tt.procs)
		tree, err := Inherit(f.proc)
		if got := State(err); got != tt.want || (tree == nil) != (tt.dir == "") || tree != nil && tree.dir != tt.dir {
			t.Errorf("in %s beside %q: %q (%v), want %q", tt.group, tt.procs, got, tree, tt.want)
		}
	}
}

func TestNest(t *testing.T) {
	f := newFake(t, "cpu memory pids")
	tree, err := Find(f.proc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Nest(); err == nil {
		t.Error("made a nest without controls")
	}
	if left, err := filepath.Glob(filepath.Join(tree.dir, "cell-*")); len(left) > 0 || err != nil {
		t.Errorf("left %v behind, %v", left, err)
	}
	tree.testOnlyMade = fill(t)
	nest, err := tree.Nest()
	if err != nil {
		t.Fatal(err)
	}
	if s, _ := read(nest.path, "cgroup.subtree_control"); s != "+cpu +memory +pids" {
		t.Errorf("subtree_control: %q", s)
	}
	if nest.Dir() == nil || nest.Dir().Name() != filepath.Join(nest.path, own) {
		t.Errorf("directory %v", nest.Dir())
	}
	if err := nest.Remove(); err == nil { // the fake is a directory with files in it
		t.Error("removed a group that the kernel would call busy")
	}
	if s, _ := read(nest.path, "cgroup.kill"); s != "1" {
		t.Errorf("cgroup.kill: %q", s)
	}
}

func FuzzLocate(f *testing.F) {
	f.Add([]byte("0::/a\n"), []byte("31 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"))
	f.Fuzz(func(t *testing.T, self, mounts []byte) {
		dir, err := locate(self, mounts)
		if err == nil && strings.Contains("/"+dir+"/", "/../") {
			t.Errorf("locate(%q, %q) = %s", self, mounts, strconv.Quote(dir))
		}
	})
}

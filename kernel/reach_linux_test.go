package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"palyra/authz/policy"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

// opened returns the place where open(2) finds a name from here, "" for none.
func opened(name string) string {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return ""
	}
	return at
}

// TestReach compares reach with open(2). Each file of the workspace that a name leads to is
// held under its true place, or the name is listed. A name that is neither leads to no file,
// whatever happens to the workspace in between. The test is at tier B, where a program sees
// what this process sees.
func TestReach(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	rounds := sample.Of(40, 200)
	var held, listed, nowhere, reached int
	for range rounds {
		base, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		ws := base + "/ws"
		names := []string{"a", "b", "c", "d"}
		some := func() string { return names[r.IntN(len(names))] }
		plant := func() { // each may fail: the name is taken, or its folder is missing
			at := ws + "/" + some()
			for range r.IntN(3) {
				at += "/" + some()
			}
			switch r.IntN(5) {
			case 0, 1:
				_ = os.MkdirAll(at, 0o755)
			case 2, 3:
				_ = os.WriteFile(at, []byte("x"), 0o644)
			default:
				to := []string{some(), "../" + some(), some() + "/" + some(), ws, ws + "/" + some(), base, "..", "/usr"}
				_ = os.Symlink(to[r.IntN(len(to))], at)
			}
		}
		_ = os.MkdirAll(ws+"/a/b", 0o755)
		for range 30 {
			plant()
		}
		cwd := []string{ws, ws + "/a", ws + "/a/b"}[r.IntN(3)]
		if fi, err := os.Lstat(cwd); err != nil || !fi.IsDir() {
			continue
		}
		t.Chdir(cwd)
		var args, before []string
		for range 20 {
			parts := []string{"", ws, base, "/proc/self/cwd", "/usr/bin/..", "ws", ".."}[r.IntN(7):][:1]
			for range 1 + r.IntN(3) {
				parts = append(parts, []string{some(), some(), some(), "..", "..", ".", "", "ws"}[r.IntN(8)])
			}
			name := strings.Join(parts, "/")
			if parts[0] == "" && r.IntN(4) > 0 {
				name = strings.TrimLeft(name, "/")
			}
			args, before = append(args, name), append(before, opened(name))
		}
		var seals []*sealed
		for _, name := range args {
			p := proposal("true", name)
			p.Workspace, p.Cwd, p.TierFloor = ws, cwd, tier.B
			seals = append(seals, mustSeal(t, p))
		}
		for range 8 { // then things move
			at := ws + "/" + some()
			if r.IntN(2) == 0 {
				_ = os.Rename(at, ws+"/"+some()+"/moved")
			}
			plant()
		}
		for i, name := range args {
			c := seals[i].capsule
			inside := func(at string) bool {
				fi, err := os.Lstat(at)
				return strings.HasPrefix(at, ws+"/") && err == nil && fi.Mode().IsRegular()
			}
			switch {
			case len(c.Unpinned) > 0:
				listed++
			case len(c.Operands) == 1:
				held++
				if c.Operands[0].Path != before[i] {
					t.Errorf("%q in %s: held is %s, opened %s", name, cwd, c.Operands[0].Path, before[i])
				}
			default:
				nowhere++
				if name == "" {
					continue
				}
				for _, at := range []string{before[i], opened(name)} {
					if at != "" && inside(at) {
						t.Errorf("%q in %s: leads to %s, and nothing was said", name, cwd, at)
					}
				}
			}
			if before[i] != "" && strings.HasPrefix(before[i], ws+"/") {
				reached++
			}
		}
	}
	t.Logf("held %d, listed %d, nowhere %d, in the workspace %d", held, listed, nowhere, reached)
	if held < rounds/10 || listed < rounds || nowhere < rounds/2 || reached < rounds/2 {
		t.Errorf("too few: held %d, listed %d, nowhere %d, in the workspace %d", held, listed, nowhere, reached)
	}
}

// TestReachLong: a file whose path exceeds PATH_MAX can be reached from its folder. It can't be
// held, and is listed.
func TestReachLong(t *testing.T) {
	ws, dir := t.TempDir(), strings.Repeat("d", 250)
	t.Chdir(ws)
	cwd := view
	for range 16 {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chdir(dir); err != nil {
			t.Fatal(err)
		}
		if len(ws+cwd+dir) < 3900 {
			cwd += "/" + dir
		}
	}
	name := strings.Repeat(dir+"/", 16-strings.Count(cwd, "d")/250) + strings.Repeat("e", 200)
	if err := os.WriteFile(filepath.Base(name), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := proposal("true", name)
	p.Workspace, p.Cwd = ws, cwd
	s := mustSeal(t, p)
	if u := s.capsule.Unpinned; len(s.capsule.Operands) != 0 || len(u) != 1 || u[0].Kind != capsule.KindUnreadable || u[0].Path != cwd+"/"+name {
		t.Errorf("%d held, %+v", len(s.capsule.Operands), u)
	}
	if err := s.holdOperands(); fault.ReasonOf(err) != "operand_unpinnable" {
		t.Errorf("a person is asked: %v", err)
	}
}

// TestReachOfNothing: a name with ".." after a missing element is listed as it's spelled and
// doesn't prevent asking a person. After a folder it does.
func TestReachOfNothing(t *testing.T) {
	ws := t.TempDir()
	for name, want := range map[string]string{"s/a/../": capsule.KindAbsent, "d/../x": capsule.KindSymlink, "d/s/../x": capsule.KindAbsent} {
		if err := os.MkdirAll(ws+"/d", 0o755); err != nil {
			t.Fatal(err)
		}
		p := proposal("true", name)
		p.Workspace = ws
		s := mustSeal(t, p)
		if u := s.capsule.Unpinned; len(u) != 1 || u[0] != (capsule.Unpinned{Path: view + "/" + name, Kind: want}) {
			t.Errorf("%s: %+v", name, u)
		}
		if err := s.holdOperands(); (err == nil) != (want == capsule.KindAbsent) {
			t.Errorf("%s, and a person is asked: %v", name, err)
		}
	}
}

// TestArgumentsNamed: the approver gets the place that each argument names, even if it's
// spelled through a link of the system.
func TestArgumentsNamed(t *testing.T) {
	ws := t.TempDir()
	put(t, ws+"/f", "f", 0o644)
	if err := os.Mkdir(ws+"/d", 0o755); err != nil {
		t.Fatal(err)
	}
	argv := []string{"true", "f", "--dir=d", "/workspace/d/", "none", "d/../f", "-x"}
	want := []string{"", "file", "folder", "folder", "", "loose", ""}
	for _, link := range []string{"/usr/lib/ssl/certs/../../..", "/usr/bin/X11/../.."} {
		if at, err := filepath.EvalSymlinks(link); err == nil && at == "/" && filepath.Clean(link) != "/" {
			argv, want = append(argv, link+"/workspace/f", link+"/workspace/d"), append(want, "file", "folder")
		}
	}
	p := proposal(argv...)
	p.Workspace = ws
	if got := cardOf(mustSeal(t, p), policy.Decision{}, policy.Default(), "", 0).Call.Named; !slices.Equal(got, want) {
		t.Errorf("%q: got %q, want %q", argv, got, want)
	}
}

// TestReachIsBounded: an argument's cost before the decision is bounded.
func TestReachIsBounded(t *testing.T) {
	ws := t.TempDir()
	deep := "/tmp" + strings.Repeat("/x", maxPath/2-4)
	for name, c := range map[string]struct {
		args   []string
		reason string
	}{
		"one deep name":      {[]string{deep}, ""},
		"many":               {slices.Repeat([]string{deep}, 20), "too_large: elements of paths"},
		"longer than a path": {slices.Repeat([]string{"/tmp" + strings.Repeat("/x", 60_000)}, 4), ""},
	} {
		p := proposal(append([]string{"true"}, c.args...)...)
		p.Workspace = ws
		if _, err := sealIn(t, p, nil); !says(err, c.reason) {
			t.Errorf("%s: %v, want %q", name, err, c.reason)
		}
	}
	// Variables and links count too.
	p := proposal("true")
	for i := range 20 {
		p.Env = append(p.Env, fmt.Sprintf("V%d_HOME=/usr%s", i, strings.Repeat("/x", 2045)))
	}
	if _, err := sealIn(t, p, nil); !says(err, "too_large: elements of paths") {
		t.Errorf("variables: %v", err)
	}
	links, err := os.MkdirTemp("/var/tmp", "reach") // a folder of the host that the program doesn't have
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(links)
	for i := range 30 {
		if err := os.Symlink(links+strings.Repeat("/.", 400)+strings.Repeat("/x/..", 600)+fmt.Sprintf("/l%d", i+1), fmt.Sprintf("%s/l%d", links, i)); err != nil {
			t.Fatal(err)
		}
	}
	for first, reason := range map[string]string{"/l28": "", "/l0": "too_large: elements of paths"} {
		p := proposal("true", links+first)
		p.Workspace = ws
		if _, err := sealIn(t, p, nil); !says(err, reason) {
			t.Errorf("links from %s: %v, want %q", first, err, reason)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	pl := mustSeal(t, &Proposal{Tool: ToolRun, Argv: []string{"true"}, Workspace: ws}).place
	if _, _, err := pl.operands(ctx, []string{"a"}); fault.KindOf(err) != fault.Canceled {
		t.Errorf("a caller that has gone: %v", err)
	}
}

// TestFoundIsBounded: a waiting call keeps only names whose place a list has, and shares the
// list's text.
func TestFoundIsBounded(t *testing.T) {
	ws := t.TempDir()
	deep := ws
	for range 10 {
		if deep += "/" + strings.Repeat("d", 240); os.Mkdir(deep, 0o755) != nil {
			t.Fatal(deep)
		}
	}
	put(t, deep+"/f", "f", 0o644)
	p := proposal("true")
	p.Workspace, p.Cwd = ws, view+strings.TrimPrefix(deep, ws)
	for i := range 2000 {
		p.Argv = append(p.Argv, fmt.Sprintf("n%d=n%d", i, i))
	}
	for i := range 60 {
		p.Argv = append(p.Argv, strings.Repeat("./", i)+"f")
	}
	pl := mustSeal(t, p).place
	if len(pl.found) != maxAbsent+60 {
		t.Errorf("%d names are kept", len(pl.found))
	}
}

// TestReachAtTierB: the program has the host's /dev and /tmp there. Their writers can lead a
// name to the workspace, before the seal and after it.
func TestReachAtTierB(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "reach")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(shm)
	ws := shm + "/ws"
	if err := errors.Join(os.Mkdir(ws, 0o755), os.Symlink(ws, shm+"/alias")); err != nil {
		t.Fatal(err)
	}
	put(t, ws+"/f", "f", 0o644)
	for name, want := range map[string]string{
		ws + "/f":        "file",
		shm + "/alias/f": capsule.KindSymlink,
		shm + "/later/f": capsule.KindAbsent,
		"/dev/null":      "",
		"/var/tmp/palyra-none/../../../usr/bin/true": capsule.KindAbsent,
		"/dev/shm/../null":                           capsule.KindSpecial,
		"/usr/bin/true":                              "",
		"/usr/none/of/this":                          "",
	} {
		p := proposal("true", name)
		p.Workspace, p.TierFloor = ws, tier.B
		s, got := mustSeal(t, p), ""
		if len(s.operands) > 0 {
			got = "file"
		}
		for _, u := range s.capsule.Unpinned {
			got = u.Kind
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestOwnersRights: a file that the workspace's owner may not read or run is neither hashed nor
// copied, though palyra is root.
func TestOwnersRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives a file away")
	}
	ws := t.TempDir()
	if err := errors.Join(os.Chown(ws, 65534, 65534), os.Mkdir(ws+"/theirs", 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, perm := range map[string]fs.FileMode{"own": 0o400, "group": 0o040, "others": 0o644, "secret": 0o600, "theirs/f": 0o644, "run": 0o755, "norun": 0o700} {
		put(t, ws+"/"+name, "#!/bin/sh\n", perm)
	}
	if err := errors.Join(os.Chown(ws+"/own", 65534, 1), os.Chown(ws+"/group", 1, 65534)); err != nil {
		t.Fatal(err)
	}
	p := proposal("true", "own", "group", "others", "secret", "theirs/f", "none")
	p.Workspace = ws
	s := mustSeal(t, p)
	var got []string
	for _, o := range s.operands {
		got = append(got, o.rel)
	}
	for _, u := range s.capsule.Unpinned {
		got = append(got, u.Path+" "+u.Kind)
	}
	want := []string{"group", "others", "own", "/workspace/none absent", "/workspace/secret unreadable", "/workspace/theirs/f unreadable"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	for name, reason := range map[string]string{"./run": "", "./norun": "program_not_executable: may not read it", "./others": "program_not_executable: permission denied"} {
		p := proposal(name)
		p.Workspace = ws
		if _, err := sealIn(t, p, nil); !says(err, reason) {
			t.Errorf("%s: %v, want %q", name, err, reason)
		}
	}
}

// TestDeepDirectory: what an argument costs root doesn't grow with the working
// directory, and that one must be the workspace's owner's to enter.
func TestDeepDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: looks at each folder as the workspace's owner")
	}
	ws := t.TempDir()
	cost := func(cwd string) int {
		if err := os.MkdirAll(ws+"/"+cwd, 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, ws+"/"+cwd+"/f", "", 0o644)
		p := proposal("true")
		p.Workspace, p.Cwd = ws, view+"/"+cwd
		pl, err := openPlace(p, "")
		if err != nil {
			t.Fatal(err)
		}
		defer pl.close()
		return int(testing.AllocsPerRun(10, func() {
			h, err := pl.at(cwd + "/f")
			if err != nil {
				t.Fatal(err)
			}
			h.Close()
		}))
	}
	if near, far := cost("d"), cost(strings.Repeat("d/", 60)+"d"); far > near+near/2 {
		t.Errorf("a look-up allocates %d times in a deep folder, %d in another", far, near)
	}
	for perm, reason := range map[fs.FileMode]string{0o755: "", 0o700: "invalid_input"} {
		if err := errors.Join(os.Chown(ws, 65534, 65534), os.Chmod(ws+"/d", perm)); err != nil {
			t.Fatal(err)
		}
		for _, cwd := range []string{"/d", "/d/d", "/d/none"} {
			want := reason
			if cwd == "/d/none" {
				want = "invalid_input"
			}
			p := proposal("true")
			p.Workspace, p.Cwd = ws, view+cwd
			if _, err := sealIn(t, p, nil); fault.ReasonOf(err) != want || perm == 0o700 && !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s, mode %v: %v, want %q", cwd, perm, err, want)
			}
		}
	}
}

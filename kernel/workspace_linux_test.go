package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/pin"
)

func TestWorkspaceRefused(t *testing.T) {
	base := t.TempDir()
	state := base + "/outer/state"
	for _, d := range []string{state + "/keys", base + "/good", base + "/foreign"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, base+"/file", "x", 0o644)
	os.Symlink("good", base+"/link")
	os.Symlink("outer", base+"/tostate")
	syscall.Mkfifo(base+"/fifo", 0o644)
	cases := []struct{ name, reason string }{
		{base + "/good", ""},
		{base + "/good/", ""},
		{base + "/good/../good", ""},
		{base + "/none", "workspace_unusable: no such file"},
		{base + "/file", "workspace_unusable: not a directory"},
		{base + "/fifo", "workspace_unusable: not a directory"},
		{base + "/link", "workspace_unusable: is a symbolic link"},
		{base + "/link/", "workspace_unusable: is a symbolic link"},
		{base + "/link/.", "workspace_unusable: is a symbolic link"},
		{"/proc/self/cwd", "workspace_unusable: is a symbolic link"},
		{"/", "workspace_unusable: is the root directory"},
		{"/..", "workspace_unusable: is the root directory"},
		{state, "workspace_unusable: lies inside the state"},
		{state + "/keys", "workspace_unusable: lies inside the state"},
		{base + "/tostate/state/keys", "workspace_unusable: lies inside the state"},
		{base + "/outer", "workspace_unusable: contains the state"},
		{base, "workspace_unusable: contains the state"},
		{"relative", "invalid_input: not absolute"},
	}
	if os.Geteuid() != 0 {
		cases = append(cases, struct{ name, reason string }{"/usr/share", "workspace_unusable: belongs to user"})
	}
	for _, c := range cases {
		p := proposal("true")
		p.Workspace = c.name
		s, err := seal(t.Context(), p, nil, state, nil)
		if !says(err, c.reason) || err != nil && fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: got %v", c.name, err)
		}
		if err == nil {
			if w := s.capsule.Workspace; w.Source != base+"/good" || w.ReadOnly || w.UID != uint32(os.Geteuid()) {
				t.Errorf("%s: %+v", c.name, w)
			}
			s.close()
		}
	}
	// A read-only workspace may belong to any user.
	p := proposal("true")
	p.Workspace, p.WorkspaceReadOnly = "/usr/share", true
	if s, err := sealIn(t, p, nil); err != nil || !s.capsule.Workspace.ReadOnly {
		t.Errorf("read-only: %v", err)
	}
}

// TestWorkspaceIsStateElsewhere: a bind mount doesn't hide that a workspace is in the state
// directory, or holds it.
func TestWorkspaceIsStateElsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes bind mounts")
	}
	base := t.TempDir()
	state := base + "/outer/state"
	for _, d := range []string{state + "/keys/deep", base + "/outer/beside", base + "/bound"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ source, name, reason string }{
		{state, "", "workspace_unusable: lies inside the state"},
		{state + "/keys", "", "workspace_unusable: lies inside the state"},
		{state + "/keys", "/deep", "workspace_unusable: lies inside the state"},
		{base + "/outer", "", "workspace_unusable: contains the state"},
		{base + "/outer", "/state/keys", "workspace_unusable: lies inside the state"},
		{base + "/outer", "/beside", ""},
	} {
		if err := syscall.Mount(c.source, base+"/bound", "", syscall.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		p := proposal("true")
		p.Workspace = base + "/bound" + c.name
		s, err := seal(t.Context(), p, nil, state, nil)
		if !says(err, c.reason) {
			t.Errorf("%s%s: got %v, want %q", strings.TrimPrefix(c.source, base), c.name, err, c.reason)
		}
		if err == nil {
			s.close()
		}
		if err := syscall.Unmount(base+"/bound", 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOperands(t *testing.T) {
	ws := t.TempDir()
	os.MkdirAll(ws+"/sub/deep", 0o755)
	put(t, ws+"/in", "in", 0o644)
	put(t, ws+"/empty", "", 0o644)
	put(t, ws+"/sub/in", "sub", 0o644)
	put(t, ws+"/-f", "dash", 0o644)
	put(t, ws+"/a=b", "eq", 0o644)
	put(t, ws+"/b", "b", 0o644)
	os.Symlink("in", ws+"/link")
	os.Symlink("/etc/passwd", ws+"/out")
	os.Symlink("sub", ws+"/sublink")
	shallow := shallowLink(t)
	to, err := filepath.EvalSymlinks(shallow)
	if err != nil {
		t.Fatal(err)
	}
	root := shallow + strings.Repeat("/..", strings.Count(to, "/")) // for a process that follows the link
	syscall.Mkfifo(ws+"/fifo", 0o644)
	for _, c := range []struct {
		arg, cwd string
		want     string // "path", "path kind" for an unpinned one, several by ", ", "" for none
	}{
		{"in", "", "/workspace/in"},
		{"./in", "", "/workspace/in"},
		{"sub//in", "", "/workspace/sub/in"},
		{"in", "/workspace/sub", "/workspace/sub/in"},
		{"../in", "/workspace/sub", "/workspace/in"},
		{"/workspace/in", "", "/workspace/in"},
		{"/workspace//in", "", "/workspace/in"},
		{"././/in", "", "/workspace/in"},
		{"/workspace/sub/../in", "", "/workspace/sub/../in symlink"}, // sub may be a link by then
		{"sub/../in", "", "/workspace/sub/../in symlink"},
		{"sublink/../in", "", "/workspace/sublink/../in symlink"},
		{"none/../in", "", "/workspace/none/../in absent"},
		{"deep/../../in", "/workspace/sub", "/workspace/sub/deep/../../in symlink"},
		{"../sub/in", "/workspace/sub", "/workspace/sub/in"},
		{"../../workspace/in", "/workspace/sub/deep", "/workspace/workspace/in absent"},
		{"../../../workspace/in", "/workspace/sub/deep", "/workspace/in"},
		{"sublink/../../workspace/in", "", "/workspace/sublink/../../workspace/in symlink"},
		{"--file=sub/../in", "", "/workspace/sub/../in symlink"},
		{"/workspace/../workspace/in", "", "/workspace/in"},
		{"/workspace/sub/../../workspace/in", "", "/workspace/sub/../../workspace/in symlink"},
		{"in/", "", "/workspace/in/ absent"},
		{"sub/.", "", "/workspace/sub directory"},
		{"link/", "", "/workspace/link symlink"},
		{"/proc/self/cwd/in", "", "/proc/self/cwd/in special"},
		{"/proc/thread-self/cwd/in", "", "/proc/thread-self/cwd/in special"},
		{"/proc/self/root/workspace/in", "", "/proc/self/root/workspace/in special"},
		{"/proc/self/fd/../cwd/in", "", "/proc/self/fd/../cwd/in special"},
		{"/dev/fd/../cwd/in", "", "/dev/fd/../cwd/in special"},
		{"--file=/proc/1/cwd/in", "", "/proc/1/cwd/in special"},
		{"../proc/self/cwd/in", "", "/workspace/../proc/self/cwd/in special"},
		{"/usr/../proc/self/cwd/in", "", "/usr/../proc/self/cwd/in special"},
		{"/dev/fd/0", "", ""},
		{"/dev/stdin", "", ""},
		{"/dev/null", "", ""},
		{"/proc/self/fd/0", "", ""},
		{"/proc/self/status", "", ""},
		{"/proc/cpuinfo", "", ""},
		{"/tmp/x", "", ""},
		{"/tmp/../workspace/in", "", "/workspace/in"},
		{"/tmp/x/../../workspace/in", "", "/tmp/x/../../workspace/in symlink"},
		{strings.Repeat("./", 2040) + "in", "/workspace/sub", "/workspace/sub/in"}, // as long as a path can be
		{"/../workspace/in", "", "/workspace/in"},
		{"/usr/../workspace/in", "", "/workspace/in"},
		{"../workspace/in", "", "/workspace/in"},
		{root + "/workspace/in", "", "/workspace/in"},
		{"--file=" + root + "/workspace/none", "", "/workspace/none absent"},
		{".." + root + "/workspace/sub", "", "/workspace/sub directory"},
		{"empty", "", "/workspace/empty"},
		{"-f", "", "/workspace/-f"},
		{"--file=in", "", "/workspace/in"},
		{"if=sub/in", "", "/workspace/sub/in, /workspace/if=sub/in absent"},
		{"--file=/workspace/in", "", "/workspace/in"},
		{"a=b", "", "/workspace/a=b, /workspace/b"},
		{"--x=a=b", "", "/workspace/a=b"},
		{"sub", "", "/workspace/sub directory"},
		{".", "", "/workspace directory"},
		{"/workspace", "", "/workspace directory"},
		{"..", "/workspace/sub", "/workspace directory"},
		{"link", "", "/workspace/link symlink"},
		{"out", "", "/workspace/out symlink"},
		{"sublink/in", "", "/workspace/sublink/in symlink"},
		{"fifo", "", "/workspace/fifo special"},
		{"none", "", "/workspace/none absent"},
		{"none/x", "", "/workspace/none/x absent"},
		{"in/x", "", "/workspace/in/x absent"},
		{"--file=none", "", "/workspace/none absent"},
		{"if=-none", "", "/workspace/-none absent, /workspace/if=-none absent"},
		{"-none", "", ""},
		{"", "", ""},
		{"-fin", "", ""},
		{"../x", "", ""},
		{"/etc/passwd", "", ""},
		{"/workspacex/in", "", ""},
		{strings.Repeat("x", 5000), "", "/workspace absent"},
		{strings.Repeat("x", 300), "", "/workspace absent"},
		{"-" + strings.Repeat("x", 300), "", ""},
		{"-" + strings.Repeat("x", 5000), "", ""},
		{"--file=" + strings.Repeat("x", 300), "", "/workspace absent"},
		{"a\nb", "", "/workspace/a\nb absent"},
	} {
		p := proposal("true", c.arg)
		p.Workspace, p.Cwd = ws, c.cwd
		s, err := sealIn(t, p, nil)
		if err != nil {
			t.Errorf("%q: %v", clip(c.arg), err)
			continue
		}
		var got []string
		for _, o := range s.capsule.Operands {
			got = append(got, o.Path)
			b, err := os.ReadFile(ws + strings.TrimPrefix(o.Path, "/workspace"))
			if err != nil || o.Digest != canon.Sum(b) || o.Size != int64(len(b)) || o.Pinned != capsule.PinnedOnApproval {
				t.Errorf("%q: %+v, %v", c.arg, o, err)
			}
		}
		for _, u := range s.capsule.Unpinned {
			got = append(got, u.Path+" "+u.Kind)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%q in %q: got %q, want %q", clip(c.arg), c.cwd, got, c.want)
		}
		if spec := s.spec(); len(spec.Operands) != 0 {
			t.Errorf("%q: operands in the spec without approval", c.arg)
		}
	}
	if os.Geteuid() != 0 {
		put(t, ws+"/locked", "x", 0)
		p := proposal("true", "locked")
		p.Workspace = ws
		if u := mustSeal(t, p).capsule.Unpinned; len(u) != 1 || u[0].Kind != capsule.KindUnreadable {
			t.Errorf("unreadable: %v", u)
		}
	}
	if s := mustSeal(t, proposal("true", "/etc/passwd", "in")); len(s.capsule.Operands)+len(s.capsule.Unpinned) != 0 {
		t.Errorf("no workspace: %+v", s.capsule)
	}
}

// TestOperandsBesideOthers: one argument's spelling hides nothing that another one names.
func TestOperandsBesideOthers(t *testing.T) {
	ws := t.TempDir()
	os.MkdirAll(ws+"/sub/dir", 0o755)
	put(t, ws+"/f", "f", 0o644)
	put(t, ws+"/sub/x", "x", 0o644)
	os.Symlink("sub/dir", ws+"/link")
	syscall.Mkfifo(ws+"/fifo", 0o644)
	for args, want := range map[string]string{
		"f/ f":            "/workspace/f, /workspace/f/ absent",
		"f f/":            "/workspace/f, /workspace/f/ absent",
		"f/. f":           "/workspace/f, /workspace/f/ absent",
		"f/x/.. f":        "/workspace/f, /workspace/f/x/.. symlink",
		"no/../f f":       "/workspace/f, /workspace/no/../f absent",
		"--l=f/ f":        "/workspace/f, /workspace/f/ absent",
		"x link/../x":     "/workspace/link/../x symlink, /workspace/x absent",
		"sub link/../x":   "/workspace/link/../x symlink, /workspace/sub directory",
		"no/../link link": "/workspace/link symlink, /workspace/no/../link absent",
		"fifo/ fifo":      "/workspace/fifo special, /workspace/fifo/ absent",
		"no/ no no/":      "/workspace/no absent, /workspace/no/ absent",
		"sub sub/ sub/.":  "/workspace/sub directory",
	} {
		p := proposal(append([]string{"true"}, strings.Fields(args)...)...)
		p.Workspace = ws
		s := mustSeal(t, p)
		var got []string
		for _, o := range s.capsule.Operands {
			got = append(got, o.Path)
		}
		for _, u := range s.capsule.Unpinned {
			got = append(got, u.Path+" "+u.Kind)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
}

// TestAbsent: a name without a file is listed as absent, however it looks, and a call with many
// such names remains possible.
func TestAbsent(t *testing.T) {
	ws := t.TempDir()
	seal := func(argv ...string) *sealed {
		p := proposal(argv...)
		p.Workspace = ws
		return mustSeal(t, p)
	}
	if s := seal("true", "--", "-x", "late_in.txt"); len(s.capsule.Unpinned) != 2 || s.capsule.Unpinned[0].Path != "/workspace/-x" {
		t.Errorf("behind --: %+v", s.capsule.Unpinned)
	}
	s := seal("true", "late_in.txt")
	card := cardOf(s, policy.Decision{}, policy.Default(), "", 0)
	if text := approval.Card(card); !strings.Contains(text, `NOT THERE   "/workspace/late_in.txt"`) {
		t.Errorf("the card does not say it:\n%s", text)
	}
	if q := question(&Caller{}, s, proposal("true")); !slices.Equal(q.Context.Unpinned, []string{capsule.KindAbsent}) {
		t.Errorf("policy sees %q", q.Context.Unpinned)
	}
	if err := s.holdOperands(); err != nil {
		t.Errorf("it cannot be asked about: %v", err)
	}
	var words []string
	for i := range 5000 {
		words = append(words, fmt.Sprintf("word%d", i))
	}
	s = seal(append([]string{"true"}, words...)...)
	all := capsule.Unpinned{Path: "/workspace", Kind: capsule.KindAbsent}
	if n := len(s.capsule.Unpinned); n != maxAbsent+1 || !slices.Contains(s.capsule.Unpinned, all) {
		t.Errorf("%d listed, the rest unsaid", n)
	}
	s = seal(append([]string{"true", "."}, words...)...)
	if !slices.Contains(s.capsule.Unpinned, all) {
		t.Error("a folder hides the rest")
	}
}

// TestOperandContentCounts: policy and approver see the content, so the identity must change
// with it.
func TestOperandContentCounts(t *testing.T) {
	ws := t.TempDir()
	put(t, ws+"/in", "one", 0o644)
	p := proposal("cat", "in", "in", "./in")
	p.Workspace = ws
	a := mustSeal(t, p)
	put(t, ws+"/in", "two", 0o644)
	b := mustSeal(t, p)
	if a.id == b.id {
		t.Error("the same identity for other content")
	}
	if len(a.capsule.Operands) != 1 {
		t.Errorf("one file, three names: %v", a.capsule.Operands)
	}
}

// TestHoldOperands: the program reads the bytes that the person was asked about.
func TestHoldOperands(t *testing.T) {
	newCall := func(t *testing.T) (string, *sealed) {
		ws := t.TempDir()
		put(t, ws+"/a", "aaa", 0o640)
		put(t, ws+"/run.sh", "#!/bin/sh\n", 0o750)
		p := proposal("cat", "run.sh", "a")
		p.Workspace = ws
		return ws, mustSeal(t, p)
	}
	t.Run("changed afterwards", func(t *testing.T) {
		ws, s := newCall(t)
		if err := s.holdOperands(); err != nil {
			t.Fatal(err)
		}
		put(t, ws+"/a", "evil", 0o640)
		os.Remove(ws + "/run.sh")
		spec := s.spec()
		if len(spec.Operands) != 2 || spec.Operands[0].Path != "/workspace/a" || spec.Operands[0].Pinned != "sealed" {
			t.Fatalf("spec: %+v", spec.Operands)
		}
		if contentOf(t, s.copies[0]) != "aaa" || contentOf(t, s.copies[1]) != "#!/bin/sh\n" {
			t.Error("a copy changed")
		}
		for i, perm := range []fs.FileMode{0o444, 0o554} {
			c := &pin.Sealed{File: s.copies[i], Digest: spec.Operands[i].Digest, Size: spec.Operands[i].Size}
			st, err := s.copies[i].Stat()
			if c.Verify() != nil || err != nil || st.Mode().Perm() != perm {
				t.Errorf("copy %d: %v, mode %v, %v", i, c.Verify(), st.Mode(), err)
			}
		}
	})
	for name, tamper := range map[string]func(ws string) error{
		"rewritten": func(ws string) error { return os.WriteFile(ws+"/a", []byte("bbb"), 0o640) },
		"removed":   func(ws string) error { return os.Remove(ws + "/a") },
		"a link now": func(ws string) error {
			os.Rename(ws+"/a", ws+"/b")
			return os.Symlink("b", ws+"/a")
		},
		"a FIFO now": func(ws string) error {
			os.Remove(ws + "/a")
			return syscall.Mkfifo(ws+"/a", 0o644)
		},
	} {
		t.Run(name+" in between", func(t *testing.T) {
			ws, s := newCall(t)
			if err := tamper(ws); err != nil {
				t.Fatal(err)
			}
			if err := s.holdOperands(); fault.ReasonOf(err) != "changed" || fault.KindOf(err) != fault.Refused {
				t.Errorf("got %v", err)
			}
			if s.copies != nil {
				t.Error("copies left")
			}
		})
	}
	t.Run("the folder is replaced", func(t *testing.T) {
		ws, s := newCall(t)
		if err := os.Rename(ws, ws+".old"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(ws + ".old") })
		os.Mkdir(ws, 0o755)
		put(t, ws+"/a", "evil", 0o640)
		if err := s.holdOperands(); err != nil || contentOf(t, s.copies[0]) != "aaa" {
			t.Errorf("got %v", err) // the descriptor still leads to the folder that was opened
		}
	})
}

func TestHoldOperandsRefused(t *testing.T) {
	ws := t.TempDir()
	put(t, ws+"/in", "x", 0o644)
	os.Symlink("in", ws+"/link")
	os.Mkdir(ws+"/dir", 0o755)
	big := put(t, ws+"/big", "x", 0o644)
	os.Truncate(big, maxSealed+1)
	huge := put(t, ws+"/huge", "x", 0o644)
	os.Truncate(huge, maxHashed+1)
	many := []string{"cat"}
	for i := range maxMounted + 1 {
		put(t, fmt.Sprintf("%s/m%d", ws, i), "x", 0o644)
		many = append(many, fmt.Sprintf("m%d", i))
	}
	for _, c := range []struct {
		argv   []string
		floor  tier.Tier
		reason string
	}{
		{[]string{"cat", "in"}, tier.C, ""},
		{[]string{"cat", "in", "dir"}, tier.C, ""},
		{[]string{"cat", "link"}, tier.C, "operand_unpinnable"},
		{[]string{"cat", "huge"}, tier.C, "operand_unpinnable"},
		{[]string{"cat", "dir/../in"}, tier.C, "operand_unpinnable"},
		{[]string{"cat", "none/../in", "in"}, tier.C, "operand_unpinnable"},
		{[]string{"cat", "none/../in"}, tier.C, ""},
		{[]string{"cat", "in", "none/../in"}, tier.C, "operand_unpinnable"},
		{[]string{"cat", "/proc/self/cwd/in"}, tier.C, "operand_unpinnable"},
		{[]string{"cat", "/proc/cpuinfo", "/dev/stdin", "../usr/share/x"}, tier.C, ""},
		{[]string{"cat", "big"}, tier.C, "too_large: bytes in all"},
		{many, tier.C, "too_large: files, at most "},
		{many[:maxMounted+1], tier.C, ""},
		{[]string{"cat", "in"}, tier.B, "operand_unpinnable: at tier b"},
		{[]string{"cat"}, tier.B, ""},
	} {
		p := &Proposal{Tool: ToolRun, Argv: c.argv, Workspace: ws, TierFloor: c.floor}
		s := mustSeal(t, p)
		if err := s.holdOperands(); !says(err, c.reason) {
			t.Errorf("%q: got %v", c.argv[:min(3, len(c.argv))], err)
		}
	}
	var all []string
	for i := range maxOperands + 1 {
		name := fmt.Sprintf("n%d", i)
		put(t, ws+"/"+name, "", 0o644)
		all = append(all, name)
	}
	p := &Proposal{Tool: ToolRun, Argv: append([]string{"cat"}, all...), Workspace: ws}
	if _, err := sealIn(t, p, nil); !says(err, "too_large: more than 1024 arguments") || fault.KindOf(err) != fault.Usage {
		t.Errorf("%d operands: %v", len(all), err)
	}
}

// TestWorkspaceRace swaps folders of the workspace for links while calls are sealed. Every file
// that is found lies beneath the workspace.
func TestWorkspaceRace(t *testing.T) {
	base := t.TempDir()
	ws := base + "/ws"
	os.MkdirAll(ws+"/dir", 0o755)
	os.MkdirAll(base+"/outside", 0o755)
	put(t, ws+"/dir/file", "inside", 0o644)
	put(t, base+"/outside/file", "outside", 0o644)
	os.Symlink(base+"/outside", ws+"/lnk")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			syscall.Rename(ws+"/dir", ws+"/tmp")
			syscall.Rename(ws+"/lnk", ws+"/dir")
			syscall.Rename(ws+"/dir", ws+"/lnk")
			syscall.Rename(ws+"/tmp", ws+"/dir")
		}
	}()
	p := proposal("true", "dir/file")
	p.Workspace = ws
	kinds := make(map[string]int)
	for range sample.Of(250, 800) {
		s, err := seal(t.Context(), p, nil, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		switch c := s.capsule; {
		case len(c.Operands) == 1:
			kinds["file"]++
			if c.Operands[0].Digest != canon.Sum([]byte("inside")) {
				t.Fatal("a file outside the workspace was hashed")
			}
		case len(c.Unpinned) == 1:
			kinds[c.Unpinned[0].Kind]++
		default:
			kinds["none"]++
		}
		s.close()
	}
	close(stop)
	<-done
	if kinds["file"] == 0 || len(kinds) < 2 {
		t.Errorf("the race never happened: %v", kinds)
	}
}

func TestRefusedNamesAreDistinct(t *testing.T) {
	names := slices.Clone(refusedNames)
	slices.Sort(names)
	if len(slices.Compact(names)) != len(refusedNames) {
		t.Error("a name is listed twice")
	}
}

// TestCwdIsSealed: the Spec identifies the working directory's folder, and the call holds it,
// so that no other folder gets its inode number while the call waits.
func TestCwdIsSealed(t *testing.T) {
	ws := t.TempDir()
	at := filepath.Join(ws, "scratch")
	inode := func() string {
		fi, err := os.Stat(at)
		if err != nil {
			t.Fatal(err)
		}
		st := fi.Sys().(*syscall.Stat_t)
		return isolate.Inode(uint64(st.Dev), st.Ino)
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	p := proposal("true")
	p.Workspace, p.WorkspaceReadOnly = ws, true
	if got := mustSeal(t, p).spec().CwdInode; got != "" {
		t.Errorf("in the workspace itself: inode %q", got)
	}
	p.Cwd = view + "/scratch"
	s := mustSeal(t, p)
	want := inode()
	for range 20 {
		if err := errors.Join(os.Remove(at), os.Mkdir(at, 0o755)); err != nil {
			t.Fatal(err)
		}
		if x := s.spec(); x.CwdInode != want || inode() == want || x.Cwd != p.Cwd {
			t.Fatalf("sealed was %s in %s, another folder at that name is %s; the spec says %s in %s", want, p.Cwd, inode(), x.CwdInode, x.Cwd)
		}
	}
}

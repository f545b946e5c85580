package tool

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate"
	"palyra/kernel"
	"palyra/kernel/capsule"
)

// TestCellReading: the tools that read run in a cell, without a question, with
// the workspace read-only.
func TestCellReading(t *testing.T) {
	b := newBench(t)
	text := "one\ntwo\nthree\n"
	put(t, b.dir+"/a/b.txt", text, 0o644)

	var e toolproto.EchoResult
	if b.do(toolproto.Echo, obj{"text": "grüße"}, &e); e.Text != "grüße" {
		t.Errorf("echo: %+v", e)
	}
	var s toolproto.SleepResult
	if b.do(toolproto.Sleep, obj{"ms": 20}, &s); s.SleptMS < 20 {
		t.Errorf("sleep: %+v", s)
	}
	var r toolproto.ReadFileResult
	o := b.do(toolproto.ReadFile, obj{"workspace": "src", "path": "a/b.txt", "unit": "lines", "offset": 1, "limit": 1}, &r)
	if r.Content.Text != "two\n" || r.NextOffset != 2 || r.Size != int64(len(text)) || r.Digest != canon.Sum([]byte(text)) || r.HardLinks != 1 {
		t.Errorf("read: %+v", r)
	}
	c, err := capsule.Parse(o.Capsule)
	if err != nil {
		t.Fatal(err)
	}
	if c.Tool != toolproto.ReadFile || c.Workspace == nil || !c.Workspace.ReadOnly || c.Network != isolate.NetworkVoid ||
		!slices.Equal(c.Argv[1:], []string{toolproto.ReadFile, "path=a/b.txt"}) || c.Stdin.Mode != capsule.StdinSealed || len(c.Operands) > 0 {
		t.Errorf("capsule: %s", o.Capsule)
	}
	if !slices.Equal(o.Decision.Policies, []string{"read_only_tools"}) {
		t.Errorf("policies: %v", o.Decision.Policies)
	}
	var l toolproto.ListDirResult
	if b.do(toolproto.ListDir, obj{"workspace": "ro", "depth": 2}, &l); len(l.Entries) != 2 || l.Entries[1].Path != "a/b.txt" {
		t.Errorf("list: %+v", l)
	}
	var f toolproto.SearchResult
	if b.do(toolproto.Search, obj{"workspace": "src", "pattern": "^t[a-z]o$", "regexp": true}, &f); len(f.Matches) != 1 || f.Matches[0].Line != 2 {
		t.Errorf("search: %+v", f)
	}
	if len(b.asked) > 0 {
		t.Errorf("asked %d questions", len(b.asked))
	}
	b.fails(toolproto.ReadFile, obj{"workspace": "src", "path": "nope"}, toolproto.Failed, "not_found")
}

// TestCellWriting: the tools that write run in a cell after a question that
// says what they write and where.
func TestCellWriting(t *testing.T) {
	b := newBench(t)
	var w toolproto.WriteFileResult
	o := b.do(toolproto.WriteFile, obj{"workspace": "src", "path": ".git/hooks/pre-commit", "mode": "create", "content": "#!/bin/sh\n",
		"permissions": "0755", "parents": true}, &w)
	if w.Action != "created" || len(w.Flags) != 1 || w.Flags[0].Kind != "hook" || get(t, b.dir+"/.git/hooks/pre-commit") != "#!/bin/sh\n" {
		t.Errorf("write: %+v", w)
	}
	if want := []string{"approved_tools", "host_write_unless_approved", "sensitive_unless_approved"}; !slices.Equal(o.Decision.Policies, want) {
		t.Errorf("policies: %v, want %v", o.Decision.Policies, want)
	}
	if len(b.asked) != 1 {
		t.Fatalf("asked %d questions", len(b.asked))
	}
	for _, want := range []string{"path=.git/hooks/pre-commit", "mode=create", "size=10", "flag=hook", "permissions=0755"} {
		if !slices.Contains(b.asked[0].Call.Argv, want) {
			t.Errorf("the question lacks %s: %q", want, b.asked[0].Call.Argv)
		}
	}
	st, err := os.Stat(b.dir + "/.git/hooks/pre-commit")
	if err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}

	put(t, b.dir+"/x", "a\nb\nc\n", 0o644)
	put(t, b.dir+"/gone", "bye\n", 0o644)
	put(t, b.dir+"/from", "same\n", 0o600)
	diff := "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n" +
		"diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n" +
		"diff --git a/from b/to\nsimilarity index 100%\nrename from from\nrename to to\n" +
		"diff --git a/deep/er/new b/deep/er/new\nnew file mode 100644\n--- /dev/null\n+++ b/deep/er/new\n@@ -0,0 +1 @@\n+x\n"
	var p toolproto.ApplyPatchResult
	if b.do(toolproto.ApplyPatch, obj{"workspace": "src", "patch": diff, "dry_run": true}, &p); len(p.Changes) != 4 || get(t, b.dir+"/x") != "a\nb\nc\n" {
		t.Errorf("dry run: %+v", p)
	}
	b.do(toolproto.ApplyPatch, obj{"workspace": "src", "patch": diff}, &p)
	if get(t, b.dir+"/x") != "a\nB\nc\n" || get(t, b.dir+"/to") != "same\n" || get(t, b.dir+"/deep/er/new") != "x\n" {
		t.Errorf("patch: %+v", p)
	}
	for _, name := range []string{"gone", "from"} {
		if _, err := os.Lstat(filepath.Join(b.dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	if got := b.asked[len(b.asked)-1].Call.Argv[2:]; !slices.Equal(got, []string{"modify=x", "delete=gone", "rename=from", "to=to", "create=deep/er/new", "permissions=0644"}) {
		t.Errorf("asked about %q", got)
	}
	b.fails(toolproto.ApplyPatch, obj{"workspace": "src", "patch": diff}, toolproto.Conflict, "changed")
	noTemps(t, b.dir)
}

// TestCellPlantedNames: files that are called like a tool or like its arguments
// change nothing: nothing is mounted over what is written.
func TestCellPlantedNames(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{toolproto.WriteFile, "path=x", "mode=overwrite"} {
		if err := os.Symlink("/etc/passwd", filepath.Join(b.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	put(t, b.dir+"/x", "old", 0o644)
	var w toolproto.WriteFileResult
	b.do(toolproto.WriteFile, obj{"workspace": "src", "path": "x", "mode": "overwrite", "content": "new"}, &w)
	if get(t, b.dir+"/x") != "new" || w.Before != canon.Sum([]byte("old")) {
		t.Errorf("%+v", w)
	}
}

// TestCellHostile: a workspace that an attacker prepared.
func TestCellHostile(t *testing.T) {
	b := newBench(t)
	outside := t.TempDir()
	put(t, outside+"/secret", "SECRET", 0o644)
	links := map[string]string{"abs": "/etc/passwd", "rel": "../../../../../../etc/passwd", "dir": outside, "loop": "loop",
		"dangling": outside + "/planted", "inside": "real/file", "up": "real/../real/file"}
	put(t, b.dir+"/real/file", "inside\n", 0o644)
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(b.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(b.dir+"/fifo", 0o666); err != nil {
		t.Fatal(err)
	}
	sock, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(sock)
	t.Chdir(b.dir)
	if err := syscall.Bind(sock, &syscall.SockaddrUnix{Name: "sock"}); err != nil {
		t.Fatal(err)
	}
	device := os.Geteuid() == 0 && syscall.Mknod(b.dir+"/dev", syscall.S_IFCHR|0o666, 1<<8|5) == nil
	put(t, b.dir+"/setuid", "x", 0o755)
	if err := os.Chmod(b.dir+"/setuid", 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	odd := "a\nb\x1b[31m\xff\u202e\\"
	put(t, filepath.Join(b.dir, odd), "odd", 0o644)
	if err := os.Link(outside+"/secret", b.dir+"/hard"); err != nil {
		t.Fatal(err)
	}

	read := func(path string) obj { return obj{"workspace": "src", "path": path} }
	for path, reason := range map[string]string{"abs": "outside_workspace", "rel": "outside_workspace", "dir/secret": "outside_workspace",
		"loop": "bad_file", "dangling": "outside_workspace", "fifo": "bad_file", "sock": "bad_file", "real": "bad_file",
		"real/file/x": "bad_file"} {
		b.fails(toolproto.ReadFile, read(path), toolproto.Failed, reason)
	}
	if device {
		b.fails(toolproto.ReadFile, read("dev"), toolproto.Failed, "bad_file")
	}
	var r toolproto.ReadFileResult
	if b.do(toolproto.ReadFile, read("inside"), &r); r.Content.Text != "inside\n" {
		t.Errorf("a link that stays: %+v", r)
	}
	if b.do(toolproto.ReadFile, read("setuid"), &r); !r.SetID {
		t.Errorf("setuid is not said: %+v", r)
	}
	if b.do(toolproto.ReadFile, read("hard"), &r); r.HardLinks != 2 {
		t.Errorf("hard link is not said: %+v", r)
	}
	if b.do(toolproto.ReadFile, read(toolproto.Escape(odd)), &r); r.Content.Text != "odd" {
		t.Errorf("an odd name: %+v", r)
	}
	var l toolproto.ListDirResult
	b.do(toolproto.ListDir, obj{"workspace": "src", "depth": 9, "limit": 100}, &l)
	kinds := make(map[string]string)
	for _, e := range l.Entries {
		kinds[e.Path] = e.Type
		if strings.HasPrefix(e.Path, "dir/") {
			t.Errorf("listed through a link: %s", e.Path)
		}
	}
	for path, want := range map[string]string{"fifo": "fifo", "sock": "socket", "abs": "symlink", "dir": "symlink", "real": "directory",
		`a\x0ab\x1b[31m\xff\xe2\x80\xae\x5c`: "file"} {
		if kinds[path] != want {
			t.Errorf("%s is listed as %q, want %s", path, kinds[path], want)
		}
	}
	var s toolproto.SearchResult
	b.do(toolproto.Search, obj{"workspace": "src", "pattern": "SECRET"}, &s)
	if len(s.Matches) != 1 || s.Matches[0].Path != "hard" {
		t.Errorf("search: %+v", s.Matches)
	}
	write := func(path, mode string) obj {
		return obj{"workspace": "src", "path": path, "mode": mode, "content": "OVERWRITTEN", "parents": true}
	}
	for path, reason := range map[string]string{"abs": "bad_file", "inside": "bad_file", "dir/secret": "bad_file", "dangling": "bad_file",
		"fifo": "bad_file", "sock": "bad_file", "real": "bad_file", "dir/new/x": "bad_file"} {
		b.fails(toolproto.WriteFile, write(path, "overwrite"), toolproto.Failed, reason)
		b.fails(toolproto.WriteFile, write(path, "append"), toolproto.Failed, reason)
	}
	b.fails(toolproto.WriteFile, write("dangling", "create"), toolproto.Conflict, "exists")
	var w toolproto.WriteFileResult
	if b.do(toolproto.WriteFile, write("hard", "append"), &w); w.LinksBroken != 1 || get(t, b.dir+"/hard") != "SECRETOVERWRITTEN" {
		t.Errorf("write to a hard link: %+v", w)
	}
	if b.do(toolproto.WriteFile, write("setuid", "overwrite"), &w); !w.SetIDDropped {
		t.Errorf("write to a setuid file: %+v", w)
	}
	if st, err := os.Stat(b.dir + "/setuid"); err != nil || st.Mode() != 0o755 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	diff := "--- a/%s\n+++ b/%s\n@@ -1 +1 @@\n-x\n+y\n"
	for path, reason := range map[string]string{"inside": "bad_file", "dir/secret": "bad_file", "fifo": "bad_file"} {
		b.fails(toolproto.ApplyPatch, obj{"workspace": "src", "patch": fmt.Sprintf(diff, path, path)}, toolproto.Failed, reason)
	}
	if get(t, outside+"/secret") != "SECRET" {
		t.Error("a file outside was written")
	}
	if names, err := os.ReadDir(outside); err != nil || len(names) != 1 {
		t.Errorf("something was planted outside: %v, %v", names, err)
	}
	noTemps(t, b.dir)
}

// TestCellMany: ten thousand files, and a huge one.
func TestCellMany(t *testing.T) {
	b := newBench(t)
	for i := range 10_000 {
		name := fmt.Sprintf("%s/d%02d/f%04d", b.dir, i%50, i)
		if i < 50 {
			if err := os.Mkdir(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(name, []byte(fmt.Sprintf("line\nnumber %d\n", i)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	huge := put(t, b.dir+"/huge", "begin\n", 0o644)
	if err := os.Truncate(huge, 1<<40); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	var l toolproto.ListDirResult
	if b.do(toolproto.ListDir, obj{"workspace": "src", "depth": 2, "limit": 20000}, &l); len(l.Entries) != 10_051 || l.Truncated {
		t.Errorf("listed %d, truncated %v", len(l.Entries), l.Truncated)
	}
	if !slices.IsSortedFunc(l.Entries, func(a, b toolproto.Entry) int { return strings.Compare(a.Path, b.Path) }) {
		t.Error("not sorted")
	}
	if b.do(toolproto.ListDir, obj{"workspace": "src", "depth": 2, "limit": 77}, &l); len(l.Entries) != 77 || !l.Truncated {
		t.Errorf("listed %d, truncated %v", len(l.Entries), l.Truncated)
	}
	var s toolproto.SearchResult
	b.do(toolproto.Search, obj{"workspace": "src", "pattern": "number 777"}, &s)
	if len(s.Matches) != 11 || s.Files != 10_000 || s.Large != 1 || s.Stopped != "" {
		t.Errorf("%d matches in %d files, %d large, %q", len(s.Matches), s.Files, s.Large, s.Stopped)
	}
	if b.do(toolproto.Search, obj{"workspace": "src", "pattern": "line", "max_matches": 5}, &s); len(s.Matches) != 5 || s.Stopped != "max_matches" {
		t.Errorf("%d matches, %q", len(s.Matches), s.Stopped)
	}
	if b.do(toolproto.Search, obj{"workspace": "src", "pattern": "line", "max_files": 100}, &s); s.Files != 100 || s.Stopped != "max_files" {
		t.Errorf("%d files, %q", s.Files, s.Stopped)
	}
	var r toolproto.ReadFileResult
	if b.do(toolproto.ReadFile, obj{"workspace": "src", "path": "huge", "limit": 6}, &r); r.Content.Text != "begin\n" || !r.Digest.IsZero() || r.Size != 1<<40 {
		t.Errorf("huge: %+v", r)
	}
	if b.do(toolproto.ReadFile, obj{"workspace": "src", "path": "huge", "offset": 1<<40 - 2}, &r); r.Length != 2 || !r.Content.Binary || r.NextOffset != 0 {
		t.Errorf("end of huge: %+v", r)
	}
	b.fails(toolproto.ReadFile, obj{"workspace": "src", "path": "huge", "unit": "lines", "offset": 1}, toolproto.Failed, "too_large")
	b.fails(toolproto.WriteFile, obj{"workspace": "src", "path": "huge", "mode": "append", "content": "x"}, toolproto.Failed, "too_large")
	t.Logf("eight calls took %v", time.Since(start))
}

// TestCellArtifact: the cell gets the part that was asked for, of content that
// has the digest.
func TestCellArtifact(t *testing.T) {
	text := strings.Repeat("grüße\n", 20_000)
	binary := []byte("a\x00b")
	bad := canon.Sum([]byte("damaged"))
	b := benchAt(t, t.TempDir(), store{canon.Sum([]byte(text)): []byte(text), canon.Sum(binary): binary, bad: []byte("something else")})
	var r toolproto.ArtifactReadResult
	var all strings.Builder
	for offset, n := int64(0), 0; ; n++ {
		o := b.do(toolproto.ArtifactRead, obj{"digest": canon.Sum([]byte(text)).String(), "offset": offset, "limit": 65537}, &r)
		if r.Content.Binary || r.Size != int64(len(text)) || r.Offset != offset || r.Length != int64(len(r.Content.Text)) || n > 4 {
			t.Fatalf("%+v", r)
		}
		if c, err := capsule.Parse(o.Capsule); err != nil || c.Workspace != nil {
			t.Fatalf("capsule %s, %v", o.Capsule, err)
		}
		all.WriteString(r.Content.Text)
		if offset = r.NextOffset; offset == 0 {
			break
		}
	}
	if all.String() != text {
		t.Error("the parts are not the whole")
	}
	b.do(toolproto.ArtifactRead, obj{"digest": canon.Sum(binary).String()}, &r)
	if got, err := base64.StdEncoding.DecodeString(r.Content.Base64); err != nil || !bytes.Equal(got, binary) {
		t.Errorf("%+v", r)
	}
	if b.do(toolproto.ArtifactRead, obj{"digest": canon.Sum(binary).String(), "offset": 99}, &r); r.Length != 0 || r.NextOffset != 0 {
		t.Errorf("behind the end: %+v", r)
	}
	for d, reason := range map[canon.Digest]string{bad: "store_corrupt", canon.Sum(nil): "not_found"} {
		if _, _, err := b.call(toolproto.ArtifactRead, obj{"digest": d.String()}); fault.ReasonOf(err) != reason {
			t.Errorf("%s: %v, want %s", d, err, reason)
		}
	}
	if _, _, err := b.call(toolproto.ArtifactRead, obj{"digest": canon.Sum(binary).String(), "size": 99}); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("a caller that sets the size: %v", err)
	}
}

// TestCellRun: process.run by its input.
func TestCellRun(t *testing.T) {
	b := newBench(t)
	put(t, b.dir+"/sub/in", "from a file\n", 0o644)
	for _, c := range []struct {
		in   obj
		want string
	}{
		{obj{"argv": []string{"/bin/cat"}, "stdin": "from stdin"}, "from stdin"},
		{obj{"argv": []string{"/bin/cat"}, "stdin": "AAE=", "encoding": "base64"}, "\x00\x01"},
		{obj{"argv": []string{"cat", "in"}, "workspace": "ro", "read_only": true, "cwd": "sub"}, "from a file\n"},
		{obj{"argv": []string{"printenv", "COLOUR"}, "env": []string{"COLOUR=blue"}, "network": "void"}, "blue\n"},
	} {
		o, out, err := b.call(kernel.ToolRun, c.in)
		if err != nil || o.Outcome != receipt.Executed || o.Exit != 0 || string(out) != c.want {
			t.Errorf("%v: %+v, %q, %v", c.in, o, out, err)
		}
	}
	if len(b.asked) > 0 {
		t.Errorf("asked %+v", b.asked)
	}
	// With a network a person is asked, whatever the program.
	o, out, err := b.call(kernel.ToolRun, obj{"argv": []string{"cat", "/proc/net/fib_trie"}, "network": "loopback"})
	if err != nil || o.Outcome != receipt.Executed || !strings.Contains(string(out), "127.0.0.1") || len(b.asked) != 1 || b.asked[0].Call.Network != "loopback" {
		t.Errorf("%+v, %q, %v, asked %+v", o, out, err, b.asked)
	}
	o, _, err = b.call(kernel.ToolRun, obj{"argv": []string{"sleep", "60"}, "timeout_ms": 100})
	if err != nil || o.Outcome != receipt.TimedOut {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestCellNobody: writing tools don't run unasked, nor reading ones for a user without a
// role.
func TestCellNobody(t *testing.T) {
	b := newBench(t)
	put(t, b.dir+"/x", "x", 0o644)
	in := []byte(`{"workspace":"src","path":"y","mode":"create","content":"y"}`)
	user := policy.LocalUser("tester")
	o, err := b.k.CallAs(t.Context(), kernel.Caller{Principal: user, Approver: answer{}}, kernel.Proposal{Tool: toolproto.WriteFile, Input: in}, kernel.IO{})
	if err != nil || o.Outcome != receipt.NotApproved {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := os.Lstat(b.dir + "/y"); err == nil {
		t.Error("written without approval")
	}
	stray := kernel.Caller{Principal: policy.Entity{Type: user.Type, ID: "stray"}, Approver: answer{yes: true}}
	o, err = b.k.CallAs(t.Context(), stray, kernel.Proposal{Tool: toolproto.ReadFile, Input: []byte(`{"workspace":"src","path":"x"}`)}, kernel.IO{})
	if err != nil || o.Outcome != receipt.Denied {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestCardNamesHiddenFile: a file behind many others of a patch is on the card that a
// person is shown, with what makes it dangerous, and it is an argument for policy. A patch
// that is too wide for that asks no approver.
func TestCardNamesHiddenFile(t *testing.T) {
	b := newBench(t)
	var text strings.Builder
	add := func(name string) {
		fmt.Fprintf(&text, "--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+x\n", name)
	}
	for i := range 150 {
		add(fmt.Sprintf("junk%03d", i))
	}
	add(".git/hooks/pre-commit")
	add("prod.yaml")
	var res toolproto.ApplyPatchResult
	b.do(toolproto.ApplyPatch, map[string]any{"workspace": "src", "patch": text.String(), "dry_run": true}, &res)
	if len(b.asked) != 1 || !slices.Contains(b.asked[0].Call.Argv, "create=prod.yaml") {
		t.Fatalf("asked %d times", len(b.asked))
	}
	card := approval.Card(b.asked[0])
	for _, want := range []string{`"create=prod.yaml"`, `DANGER      ".git/hooks/pre-commit": git runs it, or what it names, as a hook (hook)`} {
		if !strings.Contains(card, want) {
			t.Errorf("the card lacks %s", want)
		}
	}
	if f := b.asked[0].Call.Planted; len(f) != 1 || len(res.Flags) != 1 || f[0].Why != res.Flags[0].Why || f[0].Kind != res.Flags[0].Kind {
		t.Errorf("before %+v, after %+v", f, res.Flags)
	}

	for i := range 340 {
		add(fmt.Sprintf("%03d%s", i, strings.Repeat("y", 200)))
	}
	o, _, err := b.call(toolproto.ApplyPatch, map[string]any{"workspace": "src", "patch": text.String()})
	if fault.ReasonOf(err) != "too_large" || o != nil || len(b.asked) != 1 {
		t.Errorf("too wide: %+v, %v, asked %d times", o, err, len(b.asked))
	}
}

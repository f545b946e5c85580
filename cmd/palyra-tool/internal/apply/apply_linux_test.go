package apply

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/internal/toolproto"
)

// victim is the environment variable that makes this test binary a tool that kills itself: the
// folder, the step, and whether it recovers.
const victim = "PALYRA_TEST_VICTIM"

type deed struct {
	Dir, Step string
	Recover   bool
	Job       job
}

// job is an input with its payload.
type job struct {
	In      toolproto.ChangesInput
	Payload []byte
}

func TestMain(m *testing.M) {
	text := os.Getenv(victim)
	if text == "" {
		os.Exit(m.Run())
	}
	var d deed
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		panic(err)
	}
	_, err := d.Job.run(d.Dir, d.Recover, func(name string) error {
		if name == d.Step {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it takes effect
		}
		return nil
	})
	fmt.Fprintln(os.Stderr, "not killed:", err)
	os.Exit(0)
}

// kill runs a job in another process that is killed with SIGKILL at a step.
func kill(t *testing.T, d deed) {
	t.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victim+"="+string(text))
	out, err := cmd.CombinedOutput()
	if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("it was not killed at %s: %v %s", d.Step, err, out)
	}
}

func (j *job) run(dir string, recover bool, step func(string) error) (*toolproto.ChangesResult, error) {
	payload := j.Payload
	if recover {
		line, _, _ := bytes.Cut(payload, []byte("\n"))
		payload = append(slices.Clone(line), '\n')
	}
	r, err := Read(&j.In, payload, recover, step)
	if err != nil {
		return nil, err
	}
	if recover {
		return r.Recover(dir)
	}
	return r.Apply(dir)
}

// snapshot is a workspace: for each name its type, mode, and content or target.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		switch {
		case fi.IsDir():
			out[name] = fmt.Sprintf("d%04o", fi.Mode().Perm())
		case fi.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			out[name] = "l" + target
			return err
		case !fi.Mode().IsRegular():
			out[name] = "special"
		default:
			b, err := os.ReadFile(path)
			out[name] = fmt.Sprintf("f%04o%s", fi.Mode().Perm(), b)
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// build makes a workspace of a snapshot.
func build(t testing.TB, dir string, is map[string]string) {
	t.Helper()
	var modes []func() error
	for _, name := range slices.Sorted(maps.Keys(is)) {
		path, s := filepath.Join(dir, name), is[name]
		var mode uint32
		if s[0] != 'l' {
			fmt.Sscanf(s[1:5], "%o", &mode)
		}
		var err error
		switch s[0] {
		case 'd':
			err = os.Mkdir(path, 0o700)
		case 'l':
			err = os.Symlink(s[1:], path)
		default:
			err = os.WriteFile(path, []byte(s[5:]), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if s[0] != 'l' {
			modes = append(modes, func() error { return os.Chmod(path, fs.FileMode(mode)) })
		}
	}
	for _, f := range slices.Backward(modes) {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
}

func node(s string) *toolproto.Node {
	if s == "" {
		return nil
	}
	switch s[0] {
	case 'd':
		return &toolproto.Node{Type: toolproto.NodeDirectory, Mode: s[1:]}
	case 'l':
		return &toolproto.Node{Type: toolproto.NodeSymlink, Mode: "0777", Target: toolproto.Escape(s[1:])}
	}
	return &toolproto.Node{Type: toolproto.NodeFile, Mode: s[1:5], Size: int64(len(s) - 5), Digest: canon.Sum([]byte(s[5:]))}
}

// between makes the job that turns one snapshot into another.
func between(t testing.TB, old, now map[string]string) *job {
	t.Helper()
	list := toolproto.ChangeList{Version: 1, Changes: []toolproto.ListedChange{}}
	all := maps.Clone(old)
	maps.Copy(all, now)
	var content []byte
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if old[name] == now[name] {
			continue
		}
		list.Changes = append(list.Changes, toolproto.ListedChange{Path: toolproto.Escape(name), Kind: "modify", Old: node(old[name]), New: node(now[name])})
		if s := now[name]; s != "" && s[0] == 'f' && !toolproto.InGit(name) {
			content = append(content, s[5:]...)
		}
	}
	line, err := canon.Marshal(&list)
	if err != nil {
		t.Fatal(err)
	}
	return &job{toolproto.ChangesInput{Layer: "l", Digest: canon.Sum(line).String(), ID: strings.Repeat("A", 26)},
		slices.Concat(line, []byte("\n"), content)}
}

// Every type becomes every other, in folders that stay, come and go.
var (
	former = map[string]string{
		"modify": "f0644old", "mode": "f0644same", "gone": "f0600bye", "d": "d0755", "d/stays": "f0644x", "d/inner": "f0644old", "e/f": "f0644keep",
		"e": "d0755", "link": "lold", "tofile": "d0755", "tofile/a": "f0644a", "tofile/sub": "d0500", "tofile/sub/b": "f0400b", "todir": "f0644file",
		"tolink": "f0644file", "rm": "d0755", "rm/x": "d0700", "rm/x/y": "f0644y", "rm/l": "l/etc/passwd", "bytes\xff\\\n": "f0644odd",
	}
	latter = map[string]string{
		"modify": "f0644new content", "mode": "f0755same", "d": "d0750", "d/stays": "f0644x", "d/inner": "f0644new", "e": "d0755", "e/f": "f0644keep",
		"link": "lnew", "tofile": "f0640now a file", "todir": "d0711", "todir/deep": "d0755", "todir/deep/er": "f0644new", "todir/l": "l../x",
		"tolink": "lsomewhere", "new": "f0644new", "d/new": "f0644", "tree": "d0555", "tree/ro": "f0444ro", "bytes\xff\\\n": "f0644odder",
	}
)

func check(t testing.TB, what, dir string, want map[string]string) {
	t.Helper()
	if got := snapshot(t, dir); !maps.Equal(got, want) {
		for name := range maps.Keys(got) {
			if got[name] != want[name] {
				t.Errorf("%s: %q is %q, want %q", what, name, got[name], want[name])
			}
		}
		for name := range want {
			if _, ok := got[name]; !ok {
				t.Errorf("%s: %q is missing", what, name)
			}
		}
	}
}

// tempDir is a folder in memory, where there is such a place: SIGKILL loses nothing of a cache,
// and a disk's flushes would take most of the time. Nothing in it keeps the test
// from removing it.
func tempDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "palyra-apply-")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return cleaned(t, dir)
}

func cleaned(t testing.TB, dir string) string {
	t.Cleanup(func() {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				os.Chmod(path, 0o700)
			}
			return nil
		})
	})
	return dir
}

// steps runs the job and returns the names of its steps.
func steps(t *testing.T, j *job, dir string, recover bool) []string {
	t.Helper()
	var names []string
	if _, err := j.run(dir, recover, func(name string) error { names = append(names, name); return nil }); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestApply(t *testing.T) {
	there, back := between(t, former, latter), between(t, latter, former)
	dir := cleaned(t, t.TempDir()) // on a disk
	build(t, dir, former)
	r, err := there.run(dir, false, nil)
	if err != nil || !r.Applied || r.Left != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	check(t, "applied", dir, latter)
	if _, err := back.run(dir, false, nil); err != nil {
		t.Fatal(err)
	}
	check(t, "undone", dir, former)
}

// TestKilled: killed with SIGKILL at each step, the next process makes it whole or takes it back,
// and so it does if it's killed itself at each of its steps.
func TestKilled(t *testing.T) {
	j := between(t, former, latter)
	dir := tempDir(t)
	build(t, dir, former)
	whole := false
	for i, at := range steps(t, j, dir, false) {
		whole = whole || strings.HasPrefix(at, StepSynced)
		want := former
		if whole {
			want = latter
		}
		dir := tempDir(t)
		build(t, dir, former)
		kill(t, deed{Dir: dir, Step: at, Job: *j})
		for name, s := range snapshot(t, dir) {
			if (strings.HasPrefix(name, ".palyra-was-") || strings.Contains(name, "/.palyra-was-")) || s == former[name] || s == latter[name] || strings.HasPrefix(name, "d") {
				continue
			}
			t.Errorf("killed at %s: %q is half written: %q", at, name, s)
		}
		thens := steps(t, j, clone(t, dir), true)
		if n := len(thens); n > 0 {
			thens = slices.Repeat(thens, 2)[i%n:][:sample.Of(1, n)]
		}
		for _, then := range append(thens, "") {
			dir := clone(t, dir)
			if then != "" {
				kill(t, deed{Dir: dir, Step: then, Recover: true, Job: *j})
			}
			r, err := j.run(dir, true, nil)
			// Where all is in place but not yet marked, either will do.
			if err == nil && r.Applied && !whole {
				want = latter
			}
			if err != nil || r.Left != nil {
				t.Errorf("killed at %s, then at %q: %+v, %v", at, then, r, err)
			}
			check(t, "killed at "+at+", then at "+then, dir, want)
		}
	}
}

// clone copies a workspace.
func clone(t *testing.T, dir string) string {
	to := tempDir(t)
	build(t, to, snapshot(t, dir))
	return to
}

// TestFails: an error at any step before the mark takes everything back.
func TestFails(t *testing.T) {
	j := between(t, former, latter)
	dir := tempDir(t)
	build(t, dir, former)
	for _, at := range steps(t, j, dir, false) {
		if strings.HasPrefix(at, StepDropped) {
			continue
		}
		dir := tempDir(t)
		build(t, dir, former)
		if _, err := j.run(dir, false, func(name string) error {
			if name == at {
				return fault.New(fault.Unavailable, "disk_full", "test", nil)
			}
			return nil
		}); fault.ReasonOf(err) != "disk_full" {
			t.Errorf("at %s: %v", at, err)
		}
		check(t, "failed at "+at, dir, former)
	}
}

// TestChanged: whatever another writer does to a name before or during the job, it's refused by
// name, the writer's content stays, and all else is as it was.
func TestChanged(t *testing.T) {
	j := between(t, former, latter)
	write := func(dir, name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, deed := range map[string]struct {
		do   func(dir string)
		seen map[string]string // what the workspace has besides
	}{
		"content":                 {func(dir string) { write(dir, "modify", "theirs") }, map[string]string{"modify": "f0644theirs"}},
		"mode":                    {func(dir string) { os.Chmod(dir+"/mode", 0o600) }, map[string]string{"mode": "f0600same"}},
		"created":                 {func(dir string) { write(dir, "new", "theirs") }, map[string]string{"new": "f0644theirs"}},
		"in a folder":             {func(dir string) { write(dir, "rm/theirs", "theirs") }, map[string]string{"rm/theirs": "f0644theirs"}},
		"in one that is replaced": {func(dir string) { write(dir, "tofile/theirs", "theirs") }, map[string]string{"tofile/theirs": "f0644theirs"}},
		"a link":                  {func(dir string) { os.Remove(dir + "/link"); os.Symlink("theirs", dir+"/link") }, map[string]string{"link": "ltheirs"}},
		"removed":                 {func(dir string) { os.Remove(dir + "/gone") }, map[string]string{"gone": ""}},
		"a FIFO":                  {func(dir string) { os.Remove(dir + "/modify"); syscall.Mkfifo(dir+"/modify", 0o644) }, map[string]string{"modify": "special"}},
	} {
		for _, at := range []string{"", StepStaged, StepCommitted} {
			dir := tempDir(t)
			build(t, dir, former)
			if at == "" {
				deed.do(dir)
			}
			done := false
			_, err := j.run(dir, false, func(step string) error {
				if at != "" && !done && strings.HasPrefix(step, at) {
					done = true
					deed.do(dir)
				}
				return nil
			})
			if err == nil && at == StepCommitted {
				continue // it came after that name's turn
			}
			if r := fault.ReasonOf(err); r != "changed" && r != "exists" {
				t.Errorf("%s at %q: %v", name, at, err)
			}
			want := maps.Clone(former)
			for n, s := range deed.seen {
				if want[n] = s; s == "" {
					delete(want, n)
				}
			}
			check(t, name+" at "+at, dir, want)
		}
	}
}

// TestRefused: what can't be applied is named before anything is touched.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		old, now map[string]string
		reason   string
	}{
		"a folder with git's files goes": {map[string]string{"sub": "d0755", "sub/.git": "d0755", "sub/.git/HEAD": "f0644ref"}, nil, "cannot_apply"},
	} {
		dir := tempDir(t)
		build(t, dir, c.old)
		if _, err := between(t, c.old, c.now).run(dir, false, nil); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v", name, err)
		}
		check(t, name, dir, c.old)
	}
	dir := tempDir(t)
	build(t, dir, former)
	j := between(t, former, latter)
	for name, spoil := range map[string]func(j *job){
		"another list":    func(j *job) { j.Payload = bytes.Replace(j.Payload, []byte(`"0755"`), []byte(`"0777"`), 1) },
		"another content": func(j *job) { j.Payload[len(j.Payload)-1] ^= 1 },
		"less content":    func(j *job) { j.Payload = j.Payload[:len(j.Payload)-1] },
		"more content":    func(j *job) { j.Payload = append(j.Payload, 'x') },
		"no id":           func(j *job) { j.In.ID = "" },
	} {
		other := job{j.In, slices.Clone(j.Payload)}
		spoil(&other)
		if _, err := other.run(dir, false, nil); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, path := range []string{"../x", "/x", "a/../b", ".", "a//b"} {
		list := toolproto.ChangeList{Version: 1, Changes: []toolproto.ListedChange{{Path: path, Kind: "create", New: node("lx")}}}
		line, err := canon.Marshal(&list)
		if err != nil {
			t.Fatal(err)
		}
		other := job{toolproto.ChangesInput{Layer: "l", Digest: canon.Sum(line).String(), ID: j.In.ID}, append(line, '\n')}
		if _, err := other.run(dir, false, nil); fault.KindOf(err) != fault.Usage {
			t.Errorf("%q: %v", path, err)
		}
	}
	check(t, "refused", dir, former)

	// Two at once.
	var inner error
	if _, err := j.run(dir, false, func(step string) error {
		if step == "staged:0" {
			_, inner = j.run(dir, false, nil)
		}
		return nil
	}); err != nil || fault.ReasonOf(inner) != "locked" {
		t.Errorf("two at once: %v, %v", err, inner)
	}
	check(t, "two at once", dir, latter)
}

// TestGitStays: git's own files, in any case, are left out on both sides.
func TestGitStays(t *testing.T) {
	old := map[string]string{"a": "f0644a", ".git": "d0755", ".git/HEAD": "f0644one"}
	now := map[string]string{"a": "f0644b", ".git": "d0755", ".git/HEAD": "f0644two", ".git/hooks": "d0755", ".git/hooks/x": "f0755evil",
		"sub": "d0755", "sub/.GIT": "d0755", "sub/.GIT/config": "f0644evil", "sub/f": "f0644f"}
	dir := tempDir(t)
	build(t, dir, old)
	if r, err := between(t, old, now).run(dir, false, nil); err != nil || r.Changes != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	check(t, "applied", dir, map[string]string{"a": "f0644b", ".git": "d0755", ".git/HEAD": "f0644one", "sub": "d0755", "sub/f": "f0644f"})
}

// TestSwapped: while jobs run, an attacker swaps a folder for a link to one outside, and back.
// Nothing outside is changed, and each job is whole or not at all.
func TestSwapped(t *testing.T) {
	dir, outside := tempDir(t), tempDir(t)
	build(t, outside, map[string]string{"f": "f0644SECRET"})
	was := map[string]string{"d": "d0755", "d/f": "f0644one", "top": "f0644one", "evil": "l" + outside}
	now := map[string]string{"d": "d0755", "d/f": "f0644two", "d/new": "f0644two", "top": "f0644two", "evil": "l" + outside}
	build(t, dir, was)
	swap := func() {
		for _, r := range [][2]string{{"d", "t"}, {"evil", "d"}, {"d", "evil"}, {"t", "d"}} {
			if err := os.Rename(filepath.Join(dir, r[0]), filepath.Join(dir, r[1])); err != nil {
				t.Error(err)
			}
		}
	}
	there, back := between(t, was, now), between(t, now, was)
	done, refused := 0, 0
	at := was
	for i := range 600 {
		j, want := there, now
		if maps.Equal(at, now) {
			j, want = back, was
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for range i % 4 * 20 {
				swap()
			}
		})
		_, err := j.run(dir, false, nil)
		wg.Wait()
		if _, partial := errors.AsType[*Failed](err); partial {
			// The folder was away when all was to be taken back: the kernel has it recovered.
			r, rerr := j.run(dir, true, nil)
			if rerr != nil || r.Left != nil {
				t.Fatalf("%+v, %v", r, rerr)
			}
			if r.Applied {
				err = nil
			}
		}
		if err == nil {
			done++
			at = want
		} else {
			refused++
		}
		check(t, fmt.Sprintf("round %d: %v", i, err), dir, at)
		if t.Failed() {
			break
		}
	}
	t.Logf("%d done, %d refused", done, refused)
	if done == 0 || refused == 0 {
		t.Errorf("%d done, %d refused: nothing was raced", done, refused)
	}
	check(t, "outside", outside, map[string]string{"f": "f0644SECRET"})
}

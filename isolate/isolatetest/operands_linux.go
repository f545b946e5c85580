package isolatetest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// covering starts a call with a workspace whose file name is covered by a
// sealed copy with the content approved.
func covering(t *testing.T, h *harness, name, script string) (c *call, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte("changed since"), 0o644); err != nil {
		t.Fatal(err)
	}
	approved := []byte("approved")
	f, err := sealed(approved)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c = h.shell(t, script)
	ws := c.workspace(dir, os.Geteuid(), os.Getegid())
	t.Cleanup(func() { ws.Close() })
	c.spec.Operands = []isolate.File{{Path: "/workspace/" + name, Digest: canon.Sum(approved), Size: int64(len(approved)), Pinned: "sealed"}}
	c.files.Operands = []*os.File{f}
	return c, dir
}

func testOperands(t *testing.T, h *harness) {
	c, dir := covering(t, h, "in", "cat in; echo more >> in; echo $?; rm -f in; mv in other; cat in")
	o := c.run()
	if h.sub.Tier == tier.B {
		if fault.KindOf(o.err) != fault.Refused {
			t.Errorf("operands at tier B: %s, %v; want refused", o, o.err)
		}
		return
	}
	o.exited(t, 0)
	if o.stdout != "approved2\napproved" && o.stdout != "approved1\napproved" {
		t.Errorf("the program saw %q, want the approved bytes, read-only and in place", o.stdout)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "in")); err != nil || string(b) != "changed since" {
		t.Errorf("the file on the host is %q, %v; want it untouched", b, err)
	}
	// What the cell could not read of the workspace is read as it was approved.
	if os.Getuid() == 0 {
		c, dir = covering(t, h, "in", "cat in")
		if err := errors.Join(os.Chown(filepath.Join(dir, "in"), 4242, 4242), os.Chmod(filepath.Join(dir, "in"), 0o600)); err != nil {
			t.Fatal(err)
		}
		o = c.run()
		o.exited(t, 0)
		if o.stdout != "approved" {
			t.Errorf("of another user's file the program saw %q, want the approved bytes", o.stdout)
		}
	}
	// Somebody outside replaces the file while the program runs: the kernel then
	// drops the mount, and the run must not pass for what was approved.
	c, dir = covering(t, h, "in", "cat in; echo; while read line; do cat in; exit; done")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c.files.Stdin = r
	if err := os.Remove(filepath.Join(dir, "in")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "in"), []byte("swapped before"), 0o644); err != nil {
		t.Fatal(err)
	}
	done := make(chan outcome, 1)
	out, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	g := c.grant()
	go func() {
		c.files.Stdout, c.files.Stderr = outW, outW
		var o outcome
		o.res, o.err = c.start(t.Context(), g)
		outW.Close()
		done <- o
	}()
	b := make([]byte, 64)
	n, err := out.Read(b)
	if err != nil || string(b[:8]) != "approved" {
		t.Fatalf("swapped before the start: read %q, %v; want the approved bytes", b[:n], err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), []byte("evil"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "in")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	o = <-done
	if fault.KindOf(o.err) != fault.Integrity || fault.ReasonOf(o.err) != "operand_moved" || o.res == nil || o.res.Outcome != isolate.Failed {
		t.Errorf("swapped during the run: %s, %v; want failed with operand_moved", o, o.err)
	}
}

// testExchanged has another process of the host put the operand, or a folder above it,
// out of the way and back while the program runs. The copy that covers the operand
// moves with it and is where it was when the program has ended.
func testExchanged(t *testing.T, h *harness) {
	if h.sub.Tier == tier.B {
		return // no operands
	}
	const in = "deep/sub/in"
	for _, x := range []exchange{
		{name: "folder", arg: in, a: "deep/sub", b: "deep/evil"},
		{name: "folder above", arg: in, a: "deep", b: "other"},
		{name: "file", arg: in, a: in, b: "deep/evil/in"},
		{name: "folder before ..", arg: "way/../" + in, a: "way", b: "trap"},
		{name: "removed folder before ..", arg: "gone/../" + in, a: "gone", removed: true},
		{name: "working directory", cwd: "room", arg: "../" + in, a: "room", b: "other/room", leads: "other/room/../" + in},
	} {
		t.Run(x.name, func(t *testing.T) { x.during(t, h) })
	}
	// What happens beside the operand is no attack.
	c, _ := covering(t, h, "deep/sub/in", "cat deep/sub/in; echo x > deep/sub/new; mv deep/sub/new deep/newer; mkdir deep/more; mv deep/more deep/sub; touch deep; cat deep/sub/in")
	o := c.run()
	o.exited(t, 0)
	if o.stdout != "approvedapproved" {
		t.Errorf("the program saw %q, want the approved bytes twice", o.stdout)
	}
}

// exchange is one way to put another file where the operand deep/sub/in is.
type exchange struct {
	name  string
	cwd   string // below the workspace
	arg   string // how the program names its operand
	a, b  string // are exchanged
	leads string // where arg leads then, as seen from the workspace; "": arg

	removed bool     // a, an empty folder, is not exchanged but removed while held is open
	held    *os.File // which keeps its removal from being told
}

// swap exchanges a and b in dir and looks, outside, where that leads.
func (x *exchange) swap(t *testing.T, dir, leads, want string) {
	t.Helper()
	a := filepath.Join(dir, x.a)
	switch {
	case x.removed && x.held == nil:
		var err error
		if x.held, err = os.Open(a); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { x.held.Close() })
		if err := errors.Join(os.Remove(a), os.Symlink("other/room", a)); err != nil {
			t.Fatal(err)
		}
	case x.removed:
		if err := errors.Join(os.Remove(a), os.Mkdir(a, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	renames := [][2]string{{x.a, "aside"}, {x.b, x.a}, {"aside", x.b}}
	if x.removed {
		renames = nil
	}
	for _, m := range renames {
		if err := os.Rename(filepath.Join(dir, m[0]), filepath.Join(dir, m[1])); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(dir + "/" + leads); err != nil || string(got) != want {
		t.Fatalf("exchanged, %s leads to %q, %v outside; want %q: the test would prove nothing", leads, got, err, want)
	}
}

// during makes the exchange while a program runs.
func (x *exchange) during(t *testing.T, h *harness) {
	c, dir := covering(t, h, "deep/sub/in", "cat $1; read line; cat $1; read line")
	c.spec.Argv = append(c.spec.Argv, "sh", x.arg)
	for _, name := range []string{"deep/evil/in", "other/sub/in", "other/deep/sub/in", "other/room/file", "way/file", "room/file"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("evil"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if x.cwd != "" {
		room := c.in(x.cwd)
		t.Cleanup(func() { room.Close() })
	}
	if err := errors.Join(os.Symlink("other/room", filepath.Join(dir, "trap")), os.Mkdir(filepath.Join(dir, "gone"), 0o755)); err != nil {
		t.Fatal(err)
	}
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c.files.Stdin, c.files.Stdout, c.files.Stderr = in, stdout, stdout
	done := make(chan outcome, 1)
	g := c.grant()
	go func() {
		var o outcome
		o.res, o.err = c.start(t.Context(), g)
		stdout.Close()
		done <- o
	}()
	got := make([]byte, len("approved"))
	if _, err := io.ReadFull(out, got); err != nil || string(got) != "approved" {
		t.Fatalf("before: read %q, %v; want the approved bytes", got, err)
	}
	leads := x.leads
	if leads == "" {
		leads = x.arg
	}
	x.swap(t, dir, leads, "evil")
	tell := func() {
		t.Helper()
		if _, err := stdin.WriteString("go\n"); err != nil { // should the program be dead by now, the pipe takes it
			t.Fatal(err)
		}
	}
	tell()
	seen := make([]byte, len("evil"))
	n, _ := io.ReadFull(out, seen) // the end, where the program was killed first
	x.swap(t, dir, "deep/sub/in", "changed since")
	tell()
	o := <-done
	want := "watch sealed operands: a file that was approved, or a folder above it, was moved"
	if x.removed {
		want = "look for sealed operands after the run: "
	}
	if fault.KindOf(o.err) != fault.Integrity || fault.ReasonOf(o.err) != "operand_moved" || !strings.HasPrefix(o.err.Error(), want) || o.res == nil || o.res.Outcome != isolate.Failed {
		t.Errorf("exchanged and back during the run, when it saw %q: %s, %v; want failed with %s", seen[:n], o, o.err, want)
	}
}

package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/stage"
	"palyra/kernel"
)

// staged is a kernel, a workspace and a layer over it.
type staged struct {
	Bin, State, Dir string
}

func newStaged(t *testing.T) *staged {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	s := &staged{bin, filepath.Join(t.TempDir(), "state"), t.TempDir()}
	s.kernel(t, nil).Close() // makes the state directory
	if err := os.Chmod(s.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, s.Dir+"/a", "old\n", 0o644)
	put(t, s.Dir+"/gone", "bye\n", 0o644)
	l, err := stage.Take(s.State, "fix", stage.Source{Path: s.Dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	upper := filepath.Join(s.State, stage.Folder, "fix", "upper")
	put(t, upper+"/a", "new\n", 0o644)
	put(t, upper+"/sub/b", "b\n", 0o755)
	put(t, upper+"/.envrc", "evil\n", 0o644)
	put(t, upper+"/.git/HEAD", "ref\n", 0o644)
	return s
}

func (s *staged) kernel(t testing.TB, step func(string)) *kernel.Kernel {
	k, err := kernel.Open(context.Background(), kernel.Config{StateDir: s.State, CellPath: filepath.Join(s.Bin, "palyra-cell"), Once: true,
		Tools: New(Config{Program: filepath.Join(s.Bin, "palyra-tool"), State: s.State}), TestOnlyStep: step})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (s *staged) digest(t *testing.T, prepare func(*stage.Layer, context.Context) (*stage.Effect, error)) string {
	t.Helper()
	l, err := stage.Open(s.State, "fix")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, err := prepare(l, t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e.Record.Digest.String()
}

// call makes a call, with an approver that answers.
func (s *staged) call(t testing.TB, k *kernel.Kernel, a answer, tool, digest string) (*kernel.Outcome, []byte, error) {
	in, _ := json.Marshal(obj{"layer": "fix", "digest": digest})
	var out bytes.Buffer
	o, err := k.CallAs(context.Background(), kernel.Caller{Principal: policy.LocalUser("tester"), Approver: a}, kernel.Proposal{Tool: tool, Input: in}, kernel.IO{Stdout: &out})
	return o, out.Bytes(), err
}

// is reports what the workspace is: "former", "latter" or something else.
func (s *staged) is(t testing.TB) string {
	var b strings.Builder
	filepath.WalkDir(s.Dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.Type().IsRegular() {
			text, _ := os.ReadFile(path)
			rel, _ := filepath.Rel(s.Dir, path)
			b.WriteString(rel + "=" + string(text) + " ")
		}
		return err
	})
	switch got := strings.ReplaceAll(b.String(), "\n", ""); got {
	case "a=old gone=bye ":
		return "former"
	case ".envrc=evil a=new gone=bye sub/b=b ":
		return "latter"
	default:
		return got
	}
}

// TestChanges: the card has the changes and each danger, a no changes nothing, another digest is
// refused, and a yes, an undo and a second undo do what they say, each with a receipt.
func TestChanges(t *testing.T) {
	s := newStaged(t)
	k := s.kernel(t, nil)
	defer k.Close()
	there := s.digest(t, (*stage.Layer).Prepare)
	b := &bench{t: t}
	if o, _, err := s.call(t, k, answer{false, &b.asked}, toolproto.ChangesApply, there); err != nil || o.Outcome != receipt.NotApproved || s.is(t) != "former" {
		t.Fatalf("%+v, %v: %s", o, err, s.is(t))
	}
	q := b.asked[0].Call
	args := strings.Join(q.Argv[2:], " ")
	for _, want := range []string{"layer=fix", "digest=" + there, "changes=4", "deletes=0", "lines=4", "size=small", "left_git=2", "path=.envrc kind=create flag=shell", "path=sub/b kind=create flag=executable", "modify=a", "create=sub"} {
		if !strings.Contains(args+" ", want+" ") {
			t.Errorf("the card lacks %q: %s", want, args)
		}
	}
	if len(q.Planted) != 2 || q.Planted[0].Path != ".envrc" || q.Workspace != s.Dir || q.ReadOnly {
		t.Errorf("%+v", q)
	}
	if _, _, err := s.call(t, k, answer{yes: true}, toolproto.ChangesApply, canon.Sum(nil).String()); fault.ReasonOf(err) != "changed" {
		t.Errorf("another digest: %v", err)
	}
	if _, _, err := s.call(t, k, answer{yes: true}, toolproto.ChangesRecover, there); fault.ReasonOf(err) != "not_found" {
		t.Errorf("nothing to recover: %v", err)
	}
	o, out, err := s.call(t, k, answer{yes: true}, toolproto.ChangesApply, there)
	if err != nil || o.Outcome != receipt.Executed || o.Exit != 0 || o.Receipt == nil || s.is(t) != "latter" {
		t.Fatalf("%+v, %v: %s, %s", o, err, s.is(t), out)
	}
	for _, want := range []string{"former", "latter"} {
		back := s.digest(t, (*stage.Layer).PrepareUndo)
		if o, out, err := s.call(t, k, answer{yes: true}, toolproto.ChangesUndo, back); err != nil || o.Exit != 0 || s.is(t) != want {
			t.Fatalf("%+v, %v: %s, %s; want %s", o, err, s.is(t), out, want)
		}
	}
	// A file that changes while a person thinks.
	back := s.digest(t, (*stage.Layer).PrepareUndo)
	o, _, err = s.call(t, k, answer{yes: true, asked: nil}, toolproto.ChangesUndo, back)
	if err != nil || o.Exit != 0 || s.is(t) != "former" {
		t.Fatalf("%+v, %v: %s", o, err, s.is(t))
	}
}

// victim is the environment variable that makes this test binary a palyra that kills itself in
// the middle of an apply.
const victim = "PALYRA_TEST_VICTIM"

type deed struct {
	S            staged
	Step, Digest string
}

func (d *deed) do() {
	var t testing.T
	k := d.S.kernel(&t, func(name string) {
		if name == d.Step {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it takes effect
		}
	})
	d.S.call(&t, k, answer{yes: true}, toolproto.ChangesApply, d.Digest)
}

// TestChangesKilled: palyra killed with SIGKILL at each step from the intent on. Afterwards the
// layer is as it was with the workspace as it was, or the workspace has all, or a recovering
// call makes it so, which policy allows without a person.
func TestChangesKilled(t *testing.T) {
	for _, at := range []string{"intent", "begun", "executed", "ended", "result"} {
		s := newStaged(t)
		there := s.digest(t, (*stage.Layer).Prepare)
		text, err := json.Marshal(deed{*s, at, there})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), victim+"="+string(text))
		out, err := cmd.CombinedOutput()
		if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("it was not killed at %s: %v %s", at, err, out)
		}
		l, unfinished, err := stage.OpenUnfinished(s.State, "fix")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		half := at == "begun" || at == "executed"
		if (unfinished != nil) != half {
			t.Errorf("%s: unfinished %v", at, unfinished != nil)
		}
		want := "latter"
		if at == "intent" || at == "begun" {
			want = "former"
		}
		k := s.kernel(t, nil)
		if unfinished != nil {
			if _, _, err := s.call(t, k, answer{yes: true}, toolproto.ChangesApply, there); fault.ReasonOf(err) != "apply_unfinished" {
				t.Errorf("%s: %v", at, err)
			}
			status := toolproto.Done
			if want == "former" {
				status = toolproto.Undone
			}
			o, out, err := s.call(t, k, answer{}, toolproto.ChangesRecover, there)
			if err != nil || o.Outcome != receipt.Executed || o.Exit != int(status) || o.Approval != nil {
				t.Errorf("%s: %+v, %v: %s", at, o, err, out)
			}
		}
		if got := s.is(t); got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
		if want == "former" {
			if o, out, err := s.call(t, k, answer{yes: true}, toolproto.ChangesApply, there); err != nil || o.Exit != 0 || s.is(t) != "latter" {
				t.Errorf("%s: again: %+v, %v: %s", at, o, err, out)
			}
		}
		if d := s.digest(t, (*stage.Layer).PrepareUndo); d == "" {
			t.Error("no undo")
		}
		k.Close()
	}
}

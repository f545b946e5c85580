package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/sample"
)

// The crash tests run the test binary as a process that changes an authority, and kill it with
// SIGKILL at each step. The record, a file beside, must know each certificate that is in force.
const asVictim = "PALYRA_TEST_VICTIM" // JSON of victim

type victim struct {
	State, Act string
	Step       int // that kills; 0 prints the steps instead
}

// acts are what a victim does.
var acts = map[string]func(context.Context, victim, Options, Record) error{
	"create": func(ctx context.Context, v victim, o Options, r Record) error {
		_, err := Create(ctx, v.State, domain, now, o, r)
		return err
	},
	"rotate": func(ctx context.Context, v victim, o Options, r Record) error {
		a, err := Open(v.State, o)
		if err != nil {
			return err
		}
		return a.Rotate(ctx, now, r)
	},
	"introduce": func(ctx context.Context, v victim, o Options, r Record) error {
		a, err := Open(v.State, o)
		if err != nil {
			return err
		}
		return a.Introduce(ctx, now, r)
	},
	"begin": func(ctx context.Context, v victim, o Options, r Record) error {
		a, err := Open(v.State, o)
		if err != nil {
			return err
		}
		return a.Begin(ctx, now, r)
	},
}

func TestMain(m *testing.M) {
	spec := os.Getenv(asVictim)
	if spec == "" {
		os.Exit(m.Run())
	}
	var v victim
	err := json.Unmarshal([]byte(spec), &v)
	if err == nil {
		n := 0
		o := Options{TestOnlyStep: func(name string) {
			n++
			if v.Step == 0 {
				fmt.Println(name)
			}
			if n == v.Step {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // until the signal arrives
			}
		}}
		err = acts[v.Act](context.Background(), v, o, recordIn(v.State))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// recordIn records in a file beside a state directory.
func recordIn(state string) Record {
	return func(detail map[string]string) error {
		f, err := os.OpenFile(state+".record", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		for _, d := range detail {
			if _, err := fmt.Fprintln(f, d); err != nil {
				return err
			}
		}
		return f.Close()
	}
}

func (v victim) run(t *testing.T) (steps []string) {
	t.Helper()
	spec, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), asVictim+"="+string(spec))
	out, err := c.Output()
	if v.Step == 0 {
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("it isn't killed: %v", err)
	}
	return nil
}

// TestCrash kills a process at each step of each change. The
// folder that is left opens, issues, has only recorded certificates in force, and is cleaned up by
// the next change.
func TestCrash(t *testing.T) {
	for act, least := range map[string]int{"create": 22, "rotate": 12, "introduce": 16, "begin": 15} {
		t.Run(act, func(t *testing.T) {
			prepare := func(name string) victim {
				v := victim{State: filepath.Join(t.TempDir(), name), Act: act}
				if err := os.Mkdir(v.State, 0o700); err != nil {
					t.Fatal(err)
				}
				if act == "create" {
					return v
				}
				a, err := Create(t.Context(), v.State, domain, now, Options{}, recordIn(v.State))
				if err == nil && act == "begin" {
					err = a.Introduce(t.Context(), now, recordIn(v.State))
				}
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			steps := prepare("count").run(t)
			if len(steps) < least {
				t.Fatalf("%d steps: %q", len(steps), steps)
			}
			for _, i := range sample.Steps(steps) {
				t.Run(steps[i], func(t *testing.T) {
					t.Parallel()
					v := prepare("state")
					v.Step = i + 1
					v.run(t)
					judge(t, v)
				})
			}
		})
	}
}

// judge finishes what a crash left.
func judge(t *testing.T, v victim) {
	t.Helper()
	var a *Authority
	var err error
	if Exists(v.State) {
		if a, err = Open(v.State, Options{}); err != nil {
			t.Fatal(err)
		}
		recorded(t, v.State, a)
		if err := a.Rotate(t.Context(), now, recordIn(v.State)); err != nil {
			t.Fatal(err)
		}
		if _, introduced := a.BeginAt(); introduced {
			if err := a.Begin(t.Context(), now, recordIn(v.State)); err != nil {
				t.Fatal(err)
			}
		}
	} else if a, err = Create(t.Context(), v.State, domain, now, Options{}, recordIn(v.State)); err != nil {
		t.Fatal(err)
	}
	recorded(t, v.State, a)
	if _, err := Verify(issue(t, a, Device), a.Roots(), Device, now); err != nil {
		t.Error(err)
	}
	es, err := os.ReadDir(v.State)
	if err != nil || len(es) != 2 {
		t.Errorf("the state directory holds %v, %v", es, err)
	}
	want := 4
	if a.previous != nil {
		want++
	}
	if got := names(t, filepath.Join(v.State, caDir)); len(got) != want {
		t.Errorf("ca/ holds %q", got)
	}
	if a, err = Open(v.State, Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(issue(t, a, Device), a.Roots(), Device, now); err != nil {
		t.Error(err)
	}
}

// recorded checks that the record has what is in force.
func recorded(t *testing.T, state string, a *Authority) {
	t.Helper()
	b, err := os.ReadFile(state + ".record")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*x509.Certificate{a.root, a.issuer, a.next, a.previous} {
		if c == nil {
			continue
		}
		want := certDigest(c)
		if !bytes.Contains(b, []byte(want+"\n")) {
			t.Errorf("%s is in force and isn't recorded", want)
		}
	}
}

// TestNotRecorded: what the record refuses doesn't happen, and leaves nothing.
func TestNotRecorded(t *testing.T) {
	no := errors.New("no")
	refuse := func(map[string]string) error { return no }
	dir := state(t)
	if _, err := Create(t.Context(), dir, domain, now, Options{}, refuse); !errors.Is(err, no) || Exists(dir) || len(names(t, dir)) != 1 {
		t.Errorf("create: %v, %q", err, names(t, dir))
	}
	a := create(t, dir)
	before := files(t, filepath.Join(dir, caDir))
	issuer := a.issuer
	if err := a.Rotate(t.Context(), now, refuse); !errors.Is(err, no) || a.issuer != issuer {
		t.Errorf("rotate: %v", err)
	}
	if after := names(t, filepath.Join(dir, caDir)); len(after) != len(before) {
		t.Errorf("rotate leaves %q", after)
	}
	if err := a.Introduce(t.Context(), now, refuse); !errors.Is(err, no) || len(a.Roots()) != 1 || len(a.Links()) != 0 {
		t.Errorf("introduce: %v", err)
	}
	if err := a.Introduce(t.Context(), now, unrecorded); err != nil {
		t.Fatal(err)
	}
	introduced := names(t, filepath.Join(dir, caDir))
	if err := a.Begin(t.Context(), now, refuse); !errors.Is(err, no) || a.issuer != issuer || len(a.Roots()) != 2 {
		t.Errorf("begin: %v", err)
	}
	if after := names(t, filepath.Join(dir, caDir)); !slices.Equal(after, introduced) {
		t.Errorf("begin leaves %q, there were %q", after, introduced)
	}
	if after := files(t, filepath.Join(dir, caDir)); !bytes.Equal(after[issuerCert], before[issuerCert]) {
		t.Error("rotate: the issuer is another")
	}
}

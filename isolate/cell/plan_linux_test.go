package cell_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/cell/wire"
	"palyra/isolate/evidence"
	"palyra/isolate/isolatetest"
	"palyra/isolate/tier"
)

// TestPlanIsWhatRuns: a plan agrees with the evidence of the same call.
func TestPlanIsWhatRuns(t *testing.T) {
	exe, err := os.Open("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	dir := t.TempDir()
	ws, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	exec := func(path string) *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	shown := func(s *isolate.Spec, f *isolate.Files) {
		s.Workspace = &isolate.Mount{Source: dir, ReadOnly: true, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
		f.Workspace = ws
	}
	for i, c := range []struct {
		name string
		tier tier.Tier
		mod  func(*isolate.Spec, *isolate.Files)
	}{
		{"c", tier.C, nil},
		{"c void", tier.C, func(s *isolate.Spec, _ *isolate.Files) { s.Network = isolate.NetworkVoid }},
		{"c loopback", tier.C, func(s *isolate.Spec, _ *isolate.Files) { s.Network = isolate.NetworkLoopback }},
		{"c session", tier.C, func(s *isolate.Spec, _ *isolate.Files) { s.Network, s.Session = isolate.NetworkSession, "ses_1" }},
		{"c egress", tier.C, func(s *isolate.Spec, f *isolate.Files) {
			s.Network, s.Egress = isolate.NetworkEgress, &isolate.Egress{Sockets: 1}
			b := isolatetest.StartBroker(t)
			t.Cleanup(func() { b.Close() })
			f.Egress = b.Cell
		}},
		{"c roots", tier.C, func(s *isolate.Spec, f *isolate.Files) {
			s.Network, s.Egress = isolate.NetworkEgress, &isolate.Egress{Sockets: 1, Roots: true}
			b := isolatetest.StartBroker(t)
			t.Cleanup(func() { b.Close() })
			roots, err := isolatetest.NewAuthority(t, "packages.example").File()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { roots.Close() })
			f.Egress, f.Roots = b.Cell, roots
		}},
		{"c workspace", tier.C, shown},
		{"c limits", tier.C, func(s *isolate.Spec, _ *isolate.Files) { s.Limits.PIDs = 9 }},
		{"c arguments", tier.C, func(s *isolate.Spec, f *isolate.Files) {
			s.Argv, s.Env, f.Exec = []string{"true", "a", "b"}, []string{"A=1", "B=2"}, exec("/usr/bin/true")
		}},
		{"b private", tier.B, nil},
		{"b", tier.B, func(s *isolate.Spec, f *isolate.Files) { shown(s, f); s.Cwd = dir }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &isolate.Spec{Version: 1, Capsule: canon.Sum(fmt.Append(nil, i)), Tier: c.tier, Cwd: "/workspace", Stdin: "none", Argv: []string{"true"},
				Exec: isolate.File{Path: "/bin/true", Pinned: "system"},
				Limits: isolate.Limits{Wall: time.Minute, CPU: time.Minute, Memory: 1 << 28, PIDs: 20, Output: 1 << 20, FileSize: 1 << 20,
					OpenFiles: 64, Disk: 1 << 20, Inodes: 64}}
			f := &isolate.Files{Exec: exe, Stdout: null, Stderr: null}
			if c.mod != nil {
				c.mod(s, f)
			}
			client := startPool(t, c.tier, cell.Pool{Cells: 1})
			asked := *f
			asked.Egress, asked.Roots = nil, nil // a plan opens no way
			p, err := client.Explain(t.Context(), s, &asked)
			if err != nil {
				t.Fatal(err)
			}
			res, err := client.Run(t.Context(), mint(t, testKey, s), s, f)
			if err != nil || res.Outcome != isolate.Exited {
				t.Fatalf("run: %+v, %v", res, err)
			}
			e := res.Evidence
			if len(p.Tape.Steps) != e.Tape.Steps || p.Tier != e.Tier || p.Executor != e.Executor {
				t.Errorf("%s %s of %d steps, evidence says %s %s of %d", p.Tier, p.Executor, len(p.Tape.Steps), e.Tier, e.Executor, e.Tape.Steps)
			}
			// From its ABI 7 on Landlock would log what it denies a domain of the program's own.
			flags := 0
			if e.Landlock.ABI >= 7 {
				flags = 5 // LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF, _LOG_SUBDOMAINS_OFF
			}
			if want := fmt.Sprintf("landlock_restrict_self(fd:ruleset, %d)", flags); !slices.ContainsFunc(p.Tape.Steps, func(s wire.PlanStep) bool { return s.Call == want }) {
				t.Errorf("no step %q", want)
			}
			// At tier B the tape may hold the user's present number of processes.
			if p.Tape.Digest != e.Tape.Digest && (c.tier != tier.B || os.Getuid() == 0 && s.Workspace == nil) {
				t.Errorf("tape %s, evidence says %s", p.Tape.Digest, e.Tape.Digest)
			}
			if p.Seccomp.Policy != e.Seccomp.Policy || p.Seccomp.Instructions != e.Seccomp.Instructions {
				t.Errorf("filter %s, evidence says %s", p.Seccomp.Policy, e.Seccomp.Policy)
			}
			others := func(rules []string) []string { // except those of this call's directory
				return slices.DeleteFunc(slices.Clone(rules), func(r string) bool { return strings.Contains(r, "/palyra-b-cell-") })
			}
			if !slices.Equal(others(p.Landlock.Rules), others(e.Landlock.Rules)) || p.Landlock.Scoped != e.Landlock.Scoped || !slices.Equal(p.Degraded, e.Degraded) {
				t.Errorf("landlock %+v and %q, evidence says %+v and %q", p.Landlock, p.Degraded, e.Landlock, e.Degraded)
			}
			if p.Network != e.Network.Mode || c.tier == tier.C && !slices.Equal(p.Namespaces, e.Namespaces.Fresh) {
				t.Errorf("network %s, namespaces %q, evidence says %s, %q", p.Network, p.Namespaces, e.Network.Mode, e.Namespaces.Fresh)
			}
			// The program sees the template's mounts, except those that the tape attaches.
			for _, line := range p.Template {
				if !strings.HasPrefix(line, "/proc ") && !slices.Contains(e.Mounts.Table, line) {
					t.Errorf("the template has %q, which evidence has not", line)
				}
			}
			if c.tier == tier.C && len(p.Template) < 5 {
				t.Errorf("template %q", p.Template)
			}
			if len(p.Seccomp.Rules) < 10 || p.Seccomp.Default != "errno 1" {
				t.Errorf("policy %+v", p.Seccomp)
			}
			if warm := c.tier == tier.C && s.Workspace == nil && !isolate.Connects(s.Network); warm != (p.Warm != nil) {
				t.Fatalf("tape of a cell that waits: %+v, want one: %v", p.Warm, warm)
			} else if !warm {
				return
			}
			if _, err := client.Expect(t.Context(), s.Network, s.Limits); err != nil {
				t.Fatal(err)
			}
			if res, err = client.Run(t.Context(), mint(t, testKey, s), s, f); err != nil || res.Evidence.Cell.Mode != evidence.CellWarm {
				t.Fatalf("run: %+v, %v; want a warm call", res, err)
			}
			if e := res.Evidence.Tape; p.Warm.Digest != e.Digest || len(p.Warm.Steps) != e.Steps || e.Digest == p.Tape.Digest {
				t.Errorf("warm tape %s of %d steps, evidence says %s of %d", p.Warm.Digest, len(p.Warm.Steps), e.Digest, e.Steps)
			}
		})
	}
}

// TestFailedStepIsAsPlanned: an error names a failed step by its number in the plan.
func TestFailedStepIsAsPlanned(t *testing.T) {
	path := t.TempDir() + "/text"
	if err := os.WriteFile(path, []byte("no program\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	f := &isolate.Files{Exec: text, Stdout: os.Stderr, Stderr: os.Stderr}
	for _, tr := range []tier.Tier{tier.C, tier.B} {
		t.Run(tr.String(), func(t *testing.T) { // which closes one before the other starts
			s := benchSpec(path, "")
			s.Tier, s.Exec.Pinned = tr, "sealed"
			client := startPool(t, tr, cell.Pool{Cells: 1})
			p, err := client.Explain(t.Context(), s, f)
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.Run(t.Context(), mint(t, testKey, s), s, f)
			if want := failedStep(p.Tape, "execveat"); fault.KindOf(err) != fault.NotExec || !strings.Contains(err.Error(), want) {
				t.Errorf("tier %s: %v, want %q", tr, err, want)
			}
			if tr != tier.C {
				return
			}
			if _, err := client.Expect(t.Context(), s.Network, s.Limits); err != nil {
				t.Fatal(err)
			}
			_, err = client.Run(t.Context(), mint(t, testKey, s), s, f)
			want, cold := failedStep(*p.Warm, "execveat"), failedStep(p.Tape, "execveat")
			if st, serr := client.Stats(t.Context()); serr != nil || st.Warm != 1 || want == cold || !strings.Contains(err.Error(), want) {
				t.Errorf("warm: %v, %+v, want %q", err, st, want)
			}
		})
	}
}

// failedStep is an error's name for the only step of a plan with that system call.
func failedStep(p cell.PlanTape, call string) string {
	i := slices.IndexFunc(p.Steps, func(s cell.PlanStep) bool { return strings.HasPrefix(s.Call, call+"(") })
	return fmt.Sprintf("step %d: %s: ", p.Steps[i].Number, call)
}

// TestPlanRefuses: a plan needs no grant, and gives none. It refuses the calls that Run would
// refuse, and leaves the same palyra-cell able to serve.
func TestPlanRefuses(t *testing.T) {
	client := start(t, tier.C)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f := &isolate.Files{Exec: w, Stdout: w, Stderr: w}
	s := &isolate.Spec{Version: 1, Tier: tier.B, Argv: []string{"x"}, Cwd: "/"}
	if _, err := client.Explain(t.Context(), s, f); fault.ReasonOf(err) != "tier_unavailable" {
		t.Errorf("another tier: %v", err)
	}
	s.Tier = tier.C
	if _, err := client.Explain(t.Context(), s, f); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("no limits: %v", err)
	}
	w.Close()
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d, %v: somebody holds the other end", n, err)
	}
}

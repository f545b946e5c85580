package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/built"
	"palyra/internal/canon"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// scratch is a folder of this test run; set by TestMain.
var scratch string

// binaries builds palyra-cell and palyra-tool once. PALYRA_TEST_BIN names a
// folder that holds them, where there is no go command.
var binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("PALYRA_TEST_BIN"); dir != "" {
		return dir, nil
	}
	return scratch, built.Into(scratch, "palyra-cell", "palyra-tool", "palyra-fetch")
})

func TestMain(m *testing.M) {
	var err error
	if text := os.Getenv(victim); text != "" {
		var d deed
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			panic(err)
		}
		d.do()
		os.Exit(0)
	}
	if scratch, err = os.MkdirTemp("", "palyra-tool-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// answer is an approver that answers, and remembers what it was asked.
type answer struct {
	yes   bool
	asked *[]approval.Request
}

func (a answer) Ask(_ context.Context, q approval.Request) (approval.Answer, error) {
	if a.asked != nil {
		*a.asked = append(*a.asked, q)
	}
	return approval.Answer{Approved: a.yes, Approver: "tester", Surface: "test"}, nil
}

// bench is a kernel with the table and one workspace, "src".
type bench struct {
	t     testing.TB
	k     *kernel.Kernel
	dir   string // the workspace
	asked []approval.Request
}

func newBench(t testing.TB) *bench { return benchAt(t, t.TempDir(), nil) }

func benchAt(t testing.TB, dir string, artifacts Artifacts) *bench {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	table := New(Config{Program: filepath.Join(bin, "palyra-tool"), Artifacts: artifacts,
		Workspaces: map[string]Workspace{"src": {Path: dir}, "ro": {Path: dir, ReadOnly: true}}})
	k, err := kernel.Open(t.Context(), kernel.Config{StateDir: filepath.Join(t.TempDir(), "state"),
		CellPath: filepath.Join(bin, "palyra-cell"), Tools: table})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return &bench{t: t, k: k, dir: dir}
}

// call makes a call as the local user, with an approver that says yes.
func (b *bench) call(tool string, input any) (*kernel.Outcome, []byte, error) {
	b.t.Helper()
	in, err := json.Marshal(input)
	if err != nil {
		b.t.Fatal(err)
	}
	var out, errs bytes.Buffer
	who := kernel.Caller{Principal: policy.LocalUser("tester"), Approver: answer{true, &b.asked}}
	o, err := b.k.CallAs(b.t.Context(), who, kernel.Proposal{Tool: tool, Input: in}, kernel.IO{Stdout: &out, Stderr: &errs})
	if errs.Len() > 0 {
		b.t.Errorf("%s wrote to standard error: %s", tool, errs.Bytes())
	}
	return o, out.Bytes(), err
}

// do calls a tool and wants a result.
func (b *bench) do(tool string, input, result any) *kernel.Outcome {
	b.t.Helper()
	o, out, err := b.call(tool, input)
	if err != nil {
		b.t.Fatalf("%s: %v", tool, err)
	}
	if o.Outcome != receipt.Executed || o.Exit != 0 {
		b.t.Fatalf("%s: %s, exit %d, %+v: %s", tool, o.Outcome, o.Exit, o.Error, out)
	}
	if err := canon.Decode(bytes.TrimSuffix(out, []byte("\n")), result, canon.Limits{Bytes: 32 << 20}); err != nil {
		b.t.Fatalf("%s: %v in %.300s", tool, err, out)
	}
	return o
}

// fails calls a tool and wants a failure with a status and a reason.
func (b *bench) fails(tool string, input any, status toolproto.Status, reason string) toolproto.Failure {
	b.t.Helper()
	o, out, err := b.call(tool, input)
	if err != nil {
		b.t.Fatalf("%s: %v", tool, err)
	}
	var f toolproto.Failure
	if err := canon.Decode(bytes.TrimSuffix(out, []byte("\n")), &f, canon.Limits{}); err != nil {
		b.t.Fatalf("%s: %s, exit %d: %v in %.300s", tool, o.Outcome, o.Exit, err, out)
	}
	if o.Exit != int(status) || f.Error.Reason != reason {
		b.t.Errorf("%s %v: exit %d, %+v; want %d, %s", tool, input, o.Exit, f.Error, status, reason)
	}
	return f
}

func put(t testing.TB, name, content string, perm os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), perm); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, perm); err != nil {
		t.Fatal(err)
	}
	return name
}

func get(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// noTemps wants no temporary file to be left anywhere.
func noTemps(t testing.TB, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(p), ".palyra-") {
			t.Errorf("%s is left", p)
		}
		return err
	})
	if err != nil {
		t.Error(fmt.Errorf("walk: %w", err))
	}
}

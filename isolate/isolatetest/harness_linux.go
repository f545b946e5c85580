package isolatetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"os"
	"palyra/authz/grant"
	"palyra/internal/canon"
	"palyra/isolate"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

type harness struct {
	sub    Subject
	runner isolate.Runner
}

// call is one run in the making.
type call struct {
	t     *testing.T
	h     *harness
	spec  *isolate.Spec
	files *isolate.Files
}

// outcome is what came back.
type outcome struct {
	res            *isolate.Result
	err            error
	stdout, stderr string
}

// limits are ample. At tier B a plain user's other processes count among those of a
// call, and more of them may come while it runs: other tests, a compiler.
func limits() isolate.Limits {
	return isolate.Limits{Wall: 20 * time.Second, CPU: 10 * time.Second, Memory: 512 << 20, PIDs: 2048, Output: 1 << 20,
		FileSize: 16 << 20, OpenFiles: 128, Disk: 32 << 20, Inodes: 1024}
}

// program starts a call of the executable at path.
func (h *harness) program(t *testing.T, path string, argv ...string) *call {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		t.Fatal(err)
	}
	s := &isolate.Spec{Version: 1, Capsule: canon.Sum([]byte(t.Name())), Tier: h.sub.Tier, Argv: argv,
		Env: []string{"HOME=/tmp", "LANG=C.UTF-8", "PATH=/usr/bin:/bin"}, Cwd: "/workspace",
		Exec:   isolate.File{Path: path, Digest: canon.Digest(sum.Sum(nil)), Size: n, Pinned: "system"},
		Limits: limits(), Stdin: "none", Network: h.sub.Network, Egress: egressOf(h.sub.Network)}
	if s.Network == isolate.NetworkSession {
		s.Session = t.Name()
	}
	return &call{t: t, h: h, spec: s, files: &isolate.Files{Exec: f}}
}

// shell starts a call of /bin/sh -c script.
func (h *harness) shell(t *testing.T, script string) *call {
	t.Helper()
	return h.program(t, "/bin/sh", "sh", "-c", script)
}

func (c *call) grant() grant.Grant { return c.h.sub.Grant(c.t, c.spec) }

func (c *call) run() outcome { c.t.Helper(); return c.runWith(c.t.Context(), c.grant()) }

func (c *call) runWith(ctx context.Context, g grant.Grant) outcome {
	c.t.Helper()
	var o outcome
	var wg sync.WaitGroup
	collect := func(to *string) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			c.t.Fatal(err)
		}
		wg.Go(func() {
			b, _ := io.ReadAll(r)
			*to = string(b)
			r.Close()
		})
		return w
	}
	c.files.Stdout, c.files.Stderr = collect(&o.stdout), collect(&o.stderr)
	o.res, o.err = c.start(ctx, g)
	c.files.Stdout.Close()
	c.files.Stderr.Close()
	wg.Wait()
	return o
}

// exited fails the test unless the program ended by itself with that status.
func (o outcome) exited(t *testing.T, status int) {
	t.Helper()
	if o.err != nil || o.res == nil || o.res.Outcome != isolate.Exited || o.res.Evidence.Exit.Code != status {
		t.Fatalf("run: %s, error %v, stdout %q, stderr %q; want exit status %d", o, o.err, o.stdout, o.stderr, status)
	}
}

// String describes how a run ended.
func (o outcome) String() string {
	if o.res == nil {
		return "no result"
	}
	if o.res.Evidence == nil {
		return string(o.res.Outcome) + " without evidence"
	}
	e := o.res.Evidence.Exit
	return string(o.res.Outcome) + " code " + strconv.Itoa(e.Code) + " signal " + strconv.Itoa(e.Signal) + " limit " + e.LimitHit
}

// running returns the host's processes with text in their command line.
func running(t *testing.T, text string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(text)) {
			pids = append(pids, filepath.Dir(f))
		}
	}
	return pids
}

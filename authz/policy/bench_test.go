package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"palyra/internal/canon"
)

// benchRequest is a call with every part of the context filled in.
func benchRequest() Request {
	return Request{
		Principal: Entity{Type: TypeUser, ID: "alice", Roles: []string{RoleOperator}},
		Action:    ToolExecute,
		Resource:  Tool("process.run"),
		Context: Context{
			CapsuleDigest: canon.Sum([]byte("capsule")),
			Executable:    Executable{Path: "/usr/bin/sha256sum", Digest: canon.Sum([]byte("exe")), System: true},
			Args:          []string{"--check", "--", "/workspace/list"},
			Cwd:           "/workspace",
			Capabilities:  []string{CapProcessExec},
			Tier:          "c",
			Limits: Limits{Wall: 30 * time.Second, CPU: 10 * time.Second, Memory: 512 << 20, PIDs: 64,
				Output: 1 << 20, FileSize: 64 << 20},
			WorkspaceSource:   "/home/alice/src",
			WorkspaceReadOnly: true,
			Stdin:             "none",
			SessionID:         "ses_1", RunID: "run_1", DeviceID: "dev_1", ChannelID: "cli",
		},
	}
}

// benchSet is the default set with n-len(default) more policies of the shape that FORMATS.md
// measures: principal, action and resource named, two conditions.
func benchSet(tb testing.TB, n int) *Set {
	fsys := make(fstest.MapFS)
	files, err := readFS(DefaultFS())
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range files {
		if f.kind == kindPolicy {
			fsys[f.name] = &fstest.MapFile{Data: f.data}
		}
	}
	var b strings.Builder
	flush := func(i int) {
		fsys[fmt.Sprintf("90-generated-%05d.cedar", i)] = &fstest.MapFile{Data: []byte(b.String())}
		b.Reset()
	}
	for i := len(Default().rules); i < n; i++ {
		effect := []string{"permit", "forbid"}[i%2]
		fmt.Fprintf(&b, `@id("p%d") %s (principal == Palyra::User::"user%d", action == Palyra::Action::"tool.execute",
			resource == Palyra::Tool::"tool%d") when { context.tier == "c" && context.limits.memory < %d };`+"\n", i, effect, i%97, i, i)
		if i%1000 == 999 {
			flush(i)
		}
	}
	flush(n)
	fs, err := readFS(fsys)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := compile(fs)
	if err != nil {
		tb.Fatal(err)
	}
	if n >= len(Default().rules) && len(s.rules) != n {
		tb.Fatalf("%d policies, want %d", len(s.rules), n)
	}
	return s
}

// BenchmarkDecide measures a decision. The goal, 2 µs and 12 allocations, is for allowed calls:
// the same one repeated, at several numbers of policies, and varied ones, whose texts the memo
// mostly knows. A call that isn't allowed is decided twice, without approval and with it.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{13, 100, 1000, 10000} {
		s := benchSet(b, n)
		b.Run(fmt.Sprintf("allow/%d", n), func(b *testing.B) {
			r := benchRequest()
			b.ReportAllocs()
			for b.Loop() {
				if d := s.Decide(r); d.Effect != Allow {
					b.Fatal(d)
				}
			}
		})
	}
	s := Default()
	// Realistic calls: two people use three tools and eleven programs of the host in seven
	// directories, each time with its own arguments, capsule and run.
	b.Run("varied", func(b *testing.B) {
		all := variedRequests()
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if d := s.Decide(all[i%len(all)]); d.Effect != Allow {
				b.Fatal(d)
			}
		}
	})
	for name, path := range map[string]string{"needs_approval": "/usr/bin/jq", "deny": "/usr/bin/bash"} {
		b.Run(name, func(b *testing.B) {
			r := benchRequest()
			r.Context.Executable.Path = path
			b.ReportAllocs()
			for b.Loop() {
				s.Decide(r)
			}
		})
	}
}

// BenchmarkFix measures the search for a change that would allow a call.
func BenchmarkFix(b *testing.B) {
	for name, path := range map[string]string{"needs_approval": "/usr/bin/jq", "deny": "/usr/bin/bash"} {
		b.Run(name, func(b *testing.B) {
			r := benchRequest()
			r.Context.Executable.Path = path
			b.ReportAllocs()
			for b.Loop() {
				if Default().Fix(r) == "" {
					b.Fatal("no fix")
				}
			}
		})
	}
}

func variedRequests() (out []Request) {
	for i := range 2 * 3 * 7 * 11 { // periods without a common divisor
		r := benchRequest()
		r.Principal.ID = []string{"alice", "bob"}[i%2]
		r.Resource = Tool([]string{"process.run", "fs.read_file", "fs.list_dir"}[i%3])
		r.Context.Executable.Path = "/usr/bin/" + []string{"cat", "cut", "diff", "grep", "head", "ls", "sha256sum", "stat", "tac", "tail", "wc"}[i%11]
		r.Context.Executable.Digest = canon.Sum([]byte(r.Context.Executable.Path))
		r.Context.WorkspaceSource = fmt.Sprintf("/home/%s/%d", r.Principal.ID, i%7)
		r.Context.CapsuleDigest = canon.Sum(fmt.Append(nil, i))
		r.Context.Args = []string{"--", fmt.Sprintf("/workspace/%d", i)}
		r.Context.SessionID, r.Context.RunID = fmt.Sprintf("ses_%d", i%13), fmt.Sprintf("run_%d", i)
		out = append(out, r)
	}
	return out
}

// manyPolicies is a directory of n policies that loads: the default set and policies of
// benchSet's shape.
func manyPolicies(tb testing.TB, n int) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	for name, data := range Default().Files() {
		write(name, data)
	}
	var b strings.Builder
	for i := len(Default().rules); i < n; i++ {
		effect := []string{"permit", "forbid"}[i%2]
		fmt.Fprintf(&b, `@id("p%d") @untested("generated") %s (principal == Palyra::User::"user%d", action == Palyra::Action::"tool.execute",
			resource == Palyra::Tool::"tool%d") when { context.tier == "c" && context.limits.memory < %d };`+"\n", i, effect, i%97, i, i)
		if i%1000 == 999 || i == n-1 {
			write(fmt.Sprintf("90-generated-%05d.cedar", i), []byte(b.String()))
			b.Reset()
		}
	}
	return dir
}

func BenchmarkLoad(b *testing.B) {
	b.Run("10000", func(b *testing.B) { // palyrad's work on a reload
		dir := manyPolicies(b, 10000)
		b.ReportAllocs()
		for b.Loop() {
			s, err := Load(dir)
			if err != nil || len(s.rules) != 10000 {
				b.Fatal(len(s.rules), err)
			}
		}
	})
	b.Run("default", func(b *testing.B) {
		for b.Loop() {
			if _, err := LoadFS(DefaultFS()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("default_unchecked", func(b *testing.B) { // Default's cost to a process
		for b.Loop() {
			files, _ := readFS(DefaultFS())
			if _, err := compile(files); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDecideWhileLoading measures decisions by the set in force while another goroutine
// reads and checks 10,000 policies over and over.
func BenchmarkDecideWhileLoading(b *testing.B) {
	dir := manyPolicies(b, 10000)
	s, r := Default(), benchRequest()
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				done <- n
				return
			default:
			}
			if _, err := Load(dir); err != nil {
				b.Error(err)
			}
			n++
		}
	}()
	var all []time.Duration
	for b.Loop() {
		start := time.Now()
		if s.Decide(r).Effect != Allow {
			b.Fatal("denied")
		}
		all = append(all, time.Since(start))
	}
	close(stop)
	loads := <-done
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1000, "µs-p50")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1000, "µs-p99")
	b.ReportMetric(float64(all[len(all)*999/1000].Nanoseconds())/1000, "µs-p99.9")
	b.ReportMetric(float64(all[len(all)-1].Nanoseconds())/1e6, "ms-worst")
	b.ReportMetric(float64(loads), "loads")
}

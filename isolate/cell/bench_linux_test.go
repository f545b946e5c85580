package cell_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

func benchSpec(path, network string) *isolate.Spec {
	return &isolate.Spec{Version: 1, Capsule: canon.Sum([]byte(path)), Tier: tier.C, Argv: []string{path}, Env: []string{"LANG=C.UTF-8", "PATH=/usr/bin:/bin"},
		Cwd: "/workspace", Exec: isolate.File{Path: path, Pinned: "system"}, Stdin: "none", Network: network,
		Limits: isolate.Limits{Wall: time.Minute, CPU: time.Minute, Memory: 1 << 29, PIDs: 64, Output: 1 << 20, FileSize: 1 << 26,
			OpenFiles: 256, Disk: 1 << 26, Inodes: 4096}}
}

// BenchmarkCall compares calls of a running palyra-cell with fork and exec of the same program.
// The variants take turns, so that their ratios hold on a busy machine. The benchmark's own
// time means nothing.
func BenchmarkCall(b *testing.B) {
	program := "/usr/bin/true"
	if p := os.Getenv("PROGRAM"); p != "" {
		program = p
	}
	exe, err := os.Open(program)
	if err != nil {
		b.Fatal(err)
	}
	defer exe.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	type variant struct {
		name string
		once func() (time.Duration, error) // without the grant
		took []time.Duration
	}
	var cold int
	call := func(network string, pool cell.Pool) func() (time.Duration, error) {
		c := startPool(b, tier.C, pool)
		s := benchSpec(program, network)
		return func() (time.Duration, error) {
			g := mint(b, testKey, s)
			start := time.Now()
			res, err := c.Run(context.Background(), g, s, &isolate.Files{Exec: exe, Stdout: null, Stderr: null})
			took := time.Since(start)
			if err == nil && pool.Cells > 0 && res.Evidence.Cell.Mode != evidence.CellWarm {
				cold++
			}
			if err == nil && res.Outcome != isolate.Exited {
				err = fmt.Errorf("it ended as %s", res.Outcome)
			}
			return took, err
		}
	}
	variants := []*variant{
		{name: "floor", once: func() (time.Duration, error) {
			start := time.Now()
			pid, err := syscall.ForkExec(program, []string{program}, &syscall.ProcAttr{Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}})
			if err == nil {
				_, err = syscall.Wait4(pid, nil, 0, nil)
			}
			return time.Since(start), err
		}},
		{name: "cold", once: call(isolate.NetworkFresh, cell.Pool{})},
		{name: "pooled", once: call(isolate.NetworkFresh, cell.Pool{Networks: 8})},
		{name: "void", once: call(isolate.NetworkVoid, cell.Pool{})},
		{name: "warm", once: call(isolate.NetworkFresh, cell.Pool{Cells: 8})},
	}
	gap := 8 * time.Millisecond
	if v, err := time.ParseDuration(os.Getenv("GAP")); err == nil {
		gap = v
	}
	for b.Loop() {
		for _, v := range variants {
			<-time.After(gap)
			took, err := v.once()
			if err != nil {
				b.Fatalf("%s: %v", v.name, err)
			}
			v.took = append(v.took, took)
		}
	}
	b.ReportMetric(float64(cold), "missed")
	for _, v := range variants {
		slices.Sort(v.took)
		p50 := v.took[len(v.took)/2]
		b.ReportMetric(float64(p50.Microseconds()), v.name+"-µs")
		b.ReportMetric(float64(p50)/float64(variants[0].took[len(variants[0].took)/2]), v.name+"-ratio")
	}
}

// BenchmarkDirectory measures the median of cold calls with a directory of the host, 8 ms
// apart. Its own time means nothing.
func BenchmarkDirectory(b *testing.B) {
	c := start(b, tier.C)
	exe, err := os.Open("/usr/bin/true")
	if err != nil {
		b.Fatal(err)
	}
	defer exe.Close()
	dir, err := os.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer dir.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	s := benchSpec("/usr/bin/true", isolate.NetworkVoid)
	s.Workspace = &isolate.Mount{Source: dir.Name(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	var took []time.Duration
	for b.Loop() {
		<-time.After(8 * time.Millisecond)
		g := mint(b, testKey, s)
		start := time.Now()
		res, err := c.Run(context.Background(), g, s, &isolate.Files{Exec: exe, Stdout: null, Stderr: null, Workspace: dir})
		took = append(took, time.Since(start))
		if err != nil || res.Outcome != isolate.Exited {
			b.Fatalf("%+v, %v", res, err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
}

// BenchmarkArm makes a cell ahead and throws it away, which isn't timed. The time includes the
// message to palyra-cell and back; the metric says how long that takes alone.
func BenchmarkArm(b *testing.B) {
	for _, v := range []struct{ name, network string }{{"own network", isolate.NetworkFresh}, {"void network", isolate.NetworkVoid}} {
		b.Run(v.name, func(b *testing.B) {
			// Every cell is too old at once, and its kind forgotten.
			c := startPool(b, tier.C, cell.Pool{Cells: 1, MaxAge: 1})
			var asked []time.Duration
			for b.Loop() {
				b.StopTimer()
				gone := func() bool {
					start := time.Now()
					st, err := c.Stats(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					asked = append(asked, time.Since(start))
					return st.Waiting == 0
				}
				for !gone() {
					<-time.After(time.Millisecond)
				}
				b.StartTimer()
				if _, err := c.Expect(b.Context(), v.network, limits()); err != nil {
					b.Fatal(err)
				}
			}
			st, err := c.Stats(b.Context())
			if err != nil || st.Armed < uint64(b.N) {
				b.Errorf("%+v, %v; want a cell made for each of %d times", st, err, b.N)
			}
			slices.Sort(asked)
			b.ReportMetric(float64(asked[len(asked)/2].Microseconds()), "ask-µs")
		})
	}
}

// BenchmarkWaiting reports the cost of a waiting cell, over 500 of them: the kernel's memory
// and the arena. Go's heap for them is some KiB and drowns in garbage. The benchmark's time
// means nothing. Run one variant at a time, because the kernel frees network namespaces at
// leisure.
func BenchmarkWaiting(b *testing.B) {
	const cells = 500
	for _, v := range []struct{ name, network string }{{"own network", isolate.NetworkFresh}, {"void network", isolate.NetworkVoid}} {
		b.Run(v.name, func(b *testing.B) {
			for b.Loop() {
				c := startPool(b, tier.C, cell.Pool{Cells: cells, MaxAge: time.Hour})
				before := held(b)
				deadline := time.After(2 * time.Minute)
				for n := 0; n < cells; {
					// It asks for one cell at least; the pool makes the others by itself.
					st, err := c.Expect(b.Context(), v.network, limits())
					if err != nil {
						b.Fatal(err)
					}
					n = st.Waiting
					select {
					case <-deadline:
						b.Fatalf("%+v after two minutes, want %d cells", st, cells)
					case <-time.After(10 * time.Millisecond):
					}
				}
				b.ReportMetric(float64(held(b)-before)/cells, "KiB/cell")
				c.Close()
			}
		})
	}
}

// held returns the memory that the kernel holds for processes and namespaces, and that
// instances of palyra-cell share with their cells, in KiB. Stacks of tasks are among
// VmallocUsed.
func held(b *testing.B) (kib int) {
	b.Helper()
	sum := func(file string, names ...string) {
		text, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			if n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB"))); err == nil && slices.Contains(names, name) {
				kib += n
			}
		}
	}
	sum("/proc/meminfo", "Slab", "PageTables", "Percpu", "VmallocUsed")
	// A palyra-cell and its waiting cells have one memory, which counts once.
	if pids := processes(b); len(pids) > 0 {
		sum("/proc/"+strconv.Itoa(slices.Min(pids))+"/status", "RssShmem")
	}
	return kib
}

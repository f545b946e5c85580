// Command bench measures what a confined call costs beside an unconfined one.
//
//	make bench
//	go run ./bench -n 200 -gap 8ms -program /bin/true
//
// One run takes the variants in turn, in a new order each round, so that what
// disturbs the machine disturbs all of them: bare fork and exec, bwrap with
// arguments as near to a cell's as it has, and palyra exec, which includes
// starting palyra and palyra-cell and writing two durable journal entries and a
// receipt. Medians are comparable within one run only; the ratios are the
// result.
//
// It prints a table and writes records {path, program, pattern, n, p50_us,
// p99_us, ratio, bwrap_ratio} to bench/results/latest.json. A peer that is not
// installed is left out by name.
//
// What it does not show: throughput, and a cell without the start of palyra.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// variant is one way to run the program.
type variant struct {
	name string
	argv []string
	took []time.Duration
}

// record is one line of the results.
type record struct {
	Path    string  `json:"path"`
	Program string  `json:"program"`
	Pattern string  `json:"pattern"`
	N       int     `json:"n"`
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
	Ratio   float64 `json:"ratio"`       // of medians, to bare
	Bwrap   float64 `json:"bwrap_ratio"` // of medians, bwrap's to this; 0 without bwrap
}

// results is the file.
type results struct {
	Time    string   `json:"time"`
	Machine string   `json:"machine"`
	Records []record `json:"records"`
}

func main() {
	n := flag.Int("n", 100, "rounds")
	gap := flag.Duration("gap", 8*time.Millisecond, "pause between two runs; 0 is a burst")
	program := flag.String("program", "/bin/true", "absolute path of what is run; policy must allow it")
	palyra := flag.String("palyra", "bin/palyra", "palyra under measurement")
	out := flag.String("out", "bench/results/latest.json", "file for the records; empty writes none")
	flag.Parse()
	if err := run(*n, *gap, *program, *palyra, *out, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(n int, gap time.Duration, program, palyra, out string, w io.Writer) error {
	if n < 1 {
		return errors.New("-n must be at least 1")
	}
	state, err := os.MkdirTemp("", "palyra-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	vs, err := variants(program, palyra, filepath.Join(state, "state"), w)
	if err != nil {
		return err
	}
	for _, v := range vs { // once before measuring: caches, keys, journal
		if _, err := v.once(); err != nil {
			return err
		}
	}
	order := make([]int, len(vs))
	for i := range order {
		order[i] = i
	}
	for range n {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, i := range order {
			time.Sleep(gap)
			d, err := vs[i].once()
			if err != nil {
				return err
			}
			vs[i].took = append(vs[i].took, d)
		}
	}
	r := results{Time: time.Now().UTC().Format(time.RFC3339), Machine: machine(), Records: records(vs, program, gap, n)}
	print(w, &r)
	if out == "" {
		return nil
	}
	b, err := json.MarshalIndent(&r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, append(b, '\n'), 0o644)
}

// variants lists what can be measured here, bare first.
func variants(program, palyra, state string, w io.Writer) ([]*variant, error) {
	palyra, err := filepath.Abs(palyra)
	if err != nil {
		return nil, err
	}
	vs := []*variant{{name: "bare", argv: []string{program}}}
	if bwrap, err := exec.LookPath("bwrap"); err == nil {
		args := []string{bwrap, "--unshare-all", "--new-session", "--die-with-parent", "--clearenv", "--cap-drop", "ALL",
			"--ro-bind", "/usr", "/usr", "--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"}
		for _, l := range []string{"/bin", "/lib", "/lib64", "/sbin"} {
			if to, err := os.Readlink(l); err == nil {
				args = append(args, "--symlink", to, l)
			} else if _, err := os.Stat(l); err == nil {
				args = append(args, "--ro-bind", l, l)
			}
		}
		args = append(args, "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/workspace", "--chdir", "/workspace",
			"--uid", "1000", "--gid", "1000", "--", program)
		vs = append(vs, &variant{name: "bwrap", argv: args})
	} else {
		fmt.Fprintln(w, "bwrap is not installed: left out")
	}
	return append(vs,
		&variant{name: "palyra exec, tier b", argv: []string{palyra, "exec", "--tier", "b", "--state", state, "--", program}},
		&variant{name: "palyra exec, tier c", argv: []string{palyra, "exec", "--state", state, "--", program}}), nil
}

// once runs v and returns how long it took, from the request to the reap.
func (v *variant) once() (time.Duration, error) {
	c := exec.Command(v.argv[0], v.argv[1:]...)
	var stderr strings.Builder
	c.Stderr = &stderr
	start := time.Now()
	err := c.Run()
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("run %s: %w: %s", v.name, err, strings.TrimSpace(stderr.String()))
	}
	return took, nil
}

func records(vs []*variant, program string, gap time.Duration, n int) []record {
	pattern := "burst"
	if gap > 0 {
		pattern = gap.String() + " gap"
	}
	median := make(map[string]float64)
	for _, v := range vs {
		slices.Sort(v.took)
		median[v.name] = at(v.took, 50)
	}
	var out []record
	for _, v := range vs {
		p50 := median[v.name]
		out = append(out, record{Path: v.name, Program: program, Pattern: pattern, N: n, P50: p50, P99: at(v.took, 99),
			Ratio: p50 / median["bare"], Bwrap: median["bwrap"] / p50})
	}
	return out
}

// at returns the p-th percentile of sorted durations in microseconds.
func at(sorted []time.Duration, p int) float64 {
	i := min(len(sorted)*p/100, len(sorted)-1)
	return float64(sorted[i].Nanoseconds()) / 1e3
}

func print(w io.Writer, r *results) {
	fmt.Fprintf(w, "%s\n\n%-22s %10s %10s %8s %12s\n", r.Machine, "path", "p50 us", "p99 us", "× bare", "bwrap ÷ this")
	for _, x := range r.Records {
		fmt.Fprintf(w, "%-22s %10.0f %10.0f %8.2f %12.2f\n", x.Path, x.P50, x.P99, x.Ratio, x.Bwrap)
	}
}

// machine says on what it was measured, as far as a file tells.
func machine() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		release = []byte("unknown kernel")
	}
	return fmt.Sprintf("%s/%s, %d CPUs, %s, uid %d", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), strings.TrimSpace(string(release)), os.Geteuid())
}

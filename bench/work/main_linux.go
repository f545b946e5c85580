// Command work measures real work in a staged cell beside the same outside: builds and tests of a
// Go, an npm and a C project with caches, and calls of an agent over MCP.
//
//	make build && go run ./bench/work                # some minutes; the first build of each kind is cold
//	go run ./bench/work -rounds 9 -only go-build,mcp
//
// A job runs outside, in a cell that writes to the project (rw) and in one whose writes go to a
// layer (staged), in a new order each round. The ratios are of medians of one run; each job must
// end with status 0 and say what it should, wherever it runs. npm is asked for two packages by
// name, outside and once; without npm, node, gcc or git a job is named as skipped, with the reason.
//
// The MCP part starts a palyrad of its own with the preset coding and speaks with palyra mcp serve
// as an agent does.
//
// It says nothing about other machines, nor about a cold cache.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"palyra/bench/measure"
)

// bench is what all jobs have.
type bench struct {
	dir     string // of this run, outside the folders that each cell has for itself
	bin     string
	rounds  int
	skipped []string
}

func main() {
	bin := flag.String("bin", "bin", "folder of palyra, palyra-cell and palyrad")
	rounds := flag.Int("rounds", 5, "counted runs of each job in each place")
	only := flag.String("only", "", "only these, comma-separated: "+strings.Join(names(), ", "))
	at := flag.String("dir", "", "keep projects and caches in this `folder`, for a next run (default: a new one, removed)")
	flag.Parse()
	if flag.NArg() > 0 || *rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *bin, *at, *rounds, *only); err != nil {
		fmt.Fprintln(os.Stderr, "work:", err)
		os.Exit(1)
	}
}

func names() []string {
	var all []string
	for _, j := range jobs() {
		all = append(all, j.name)
	}
	return append(all, mcpName)
}

func run(ctx context.Context, bin, at string, rounds int, only string) (err error) {
	b := &bench{rounds: rounds}
	if b.bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(b.bin, "palyra")); err != nil {
		return fmt.Errorf("%w\nhint: make build", err)
	}
	if b.dir, err = filepath.Abs(at); err != nil {
		return err
	}
	if at == "" {
		if b.dir, err = os.MkdirTemp("/var/tmp", "palyra-work-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, remove(b.dir)) }()
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	wanted := func(name string) bool { return only == "" || slices.Contains(strings.Split(only, ","), name) }
	for name := range strings.SplitSeq(only, ",") {
		if only != "" && !slices.Contains(names(), name) {
			return fmt.Errorf("no job %q: want some of %s", name, strings.Join(names(), ", "))
		}
	}
	before := load()
	table := measure.Table{Title: "Work in a cell beside the same outside: medians in seconds", Left: 2,
		Head: []string{"job", "command", "outside", "rw", "staged", "staged ÷ outside", "staged ÷ rw", "least and most of the pairs' staged ÷ rw"}}
	for _, j := range jobs() {
		if !wanted(j.name) {
			continue
		}
		row, err := b.measure(ctx, &j)
		if err != nil {
			return fmt.Errorf("%s: %w", j.name, err)
		}
		if row != nil {
			table.Rows = append(table.Rows, row)
		}
	}
	if len(table.Rows) > 0 {
		table.Text(os.Stdout)
	}
	if wanted(mcpName) {
		t, err := b.mcp(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", mcpName, err)
		}
		t.Text(os.Stdout)
	}
	for _, s := range b.skipped {
		fmt.Println("skipped:", s)
	}
	fmt.Printf("\n%s/%s, %d processors, %s, %d rounds; load %s before, %s after\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), rounds, before, load())
	return nil
}

// remove removes the run's folder, in which Go's module cache and programs leave folders without
// rights.
func remove(dir string) error {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// load returns the three averages of /proc/loadavg.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(b)); err == nil && len(f) > 3 {
		return strings.Join(f[:3], " ")
	}
	return "unknown"
}

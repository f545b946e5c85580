package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"palyra/bench/measure"
)

// job is a command of a project.
type job struct {
	name string
	argv []string
	// project makes the project's folder. An error that is errSkip says why it can't be had.
	project func(ctx context.Context, b *bench, dir string) error
	// change, if not nil, changes the project before each run, differently each time, so that it has
	// something to do.
	change func(dir string, n int) error
	says   string            // what its output must hold
	makes  string            // what it leaves in the project, relative to it; removed before each run
	caches map[string]string // names, and the variables by which programs outside find theirs
	mounts func() (dirs, env []string, err error)
}

var errSkip = errors.New("skipped")

// The npm packages: one with tests of its own, and the one that brings SQLite in one C file.
const (
	tested = "through@2.3.8"
	inC    = "better-sqlite3@12.11.1"
)

func jobs() []job {
	gobin := "go"
	if at, err := exec.LookPath("go"); err == nil {
		gobin, _ = filepath.EvalSymlinks(at)
	}
	goCaches := map[string]string{"go": "GOCACHE", "home": "HOME"}
	return []job{
		{name: "go-build", argv: []string{gobin, "build", "./..."}, project: thisTree, caches: goCaches, mounts: modules, change: func(dir string, n int) error {
			return os.WriteFile(filepath.Join(dir, "internal", "patch", "changed.go"), fmt.Appendf(nil, "package patch\n\nvar _ = %d\n", n), 0o644)
		}},
		{name: "go-test", argv: []string{gobin, "test", "-count=1", "./internal/patch"}, project: thisTree, caches: goCaches, mounts: modules, says: "ok  \tpalyra/internal/patch"},
		{name: "npm-test", argv: []string{"npm", "test"}, project: npmProject, caches: map[string]string{"npm": "npm_config_cache", "home": "HOME"}, says: "# ok"},
		{name: "c-build", argv: []string{"gcc", "-O0", "-c", "deps/sqlite3/sqlite3.c", "-o", "sqlite3.o"}, project: cProject, makes: "sqlite3.o"},
	}
}

// thisTree is this repository as it is committed.
func thisTree(ctx context.Context, b *bench, dir string) error {
	out, err := exec.CommandContext(ctx, "git", "-c", "safe.directory=*", "archive", "--format=tar", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("%w: git archive: %v", errSkip, err)
	}
	tar := exec.CommandContext(ctx, "tar", "-x", "-C", dir)
	tar.Stdin = bytes.NewReader(out)
	return tar.Run()
}

// modules are Go and its module cache.
func modules() (dirs, env []string, err error) {
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return nil, nil, err
	}
	at := strings.Fields(string(out))
	if len(at) != 2 {
		return nil, nil, fmt.Errorf("go env says %q", out)
	}
	dirs = at[:1]
	if !strings.HasPrefix(at[1], "/usr/") { // else each cell shows it
		dirs = at
	}
	return dirs, []string{"GOMODCACHE=" + at[0], "GOTOOLCHAIN=local"}, nil
}

func npmProject(ctx context.Context, b *bench, dir string) error {
	if err := fetch(ctx, tested, dir); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: npm install for %s: %v: %.200s", errSkip, tested, err, out)
	}
	return nil
}

func cProject(ctx context.Context, b *bench, dir string) error {
	if _, err := exec.LookPath("gcc"); err != nil {
		return fmt.Errorf("%w: %v", errSkip, err)
	}
	return fetch(ctx, inC, dir)
}

// fetch has npm fetch a package's files, and runs nothing of them.
func fetch(ctx context.Context, pkg, dir string) error {
	c := exec.CommandContext(ctx, "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", dir, pkg)
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("%w: npm pack %s: %v", errSkip, pkg, err)
	}
	file := filepath.Join(dir, strings.TrimSpace(string(out)))
	if out, err := exec.CommandContext(ctx, "tar", "-xzf", file, "-C", dir, "--strip-components", "1").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return os.Remove(file)
}

// The places in which a job runs.
var places = []string{"outside", "rw", "staged"}

// measure runs a job in each place, and returns its row; nil if it is skipped.
func (b *bench) measure(ctx context.Context, j *job) ([]string, error) {
	dir := filepath.Join(b.dir, j.name)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		making := dir + ".new"
		err := os.MkdirAll(making, 0o755)
		if err == nil {
			err = j.project(ctx, b, making)
		}
		if errors.Is(err, errSkip) {
			b.skipped = append(b.skipped, j.name+": "+strings.TrimPrefix(err.Error(), errSkip.Error()+": "))
			return nil, remove(making)
		}
		if err == nil {
			err = os.Rename(making, dir)
		}
		if err != nil {
			return nil, err
		}
	}
	commands, env, err := b.commands(j, dir)
	if err != nil {
		return nil, err
	}
	took := make(map[string][]time.Duration)
	n := int(time.Now().Unix()) // a change that no cache has
	for round := range b.rounds + 1 {
		order := slices.Clone(places)
		rand.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
		for _, place := range order {
			if n++; j.change != nil {
				if err := j.change(dir, n); err != nil {
					return nil, err
				}
			}
			if j.makes != "" {
				if err := os.RemoveAll(filepath.Join(dir, j.makes)); err != nil {
					return nil, err
				}
			}
			d, err := j.once(ctx, dir, commands[place], env)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", place, err)
			}
			if _, err := os.Stat(filepath.Join(dir, j.makes)); j.makes != "" && (err == nil) == (place == "staged") {
				return nil, fmt.Errorf("%s: %s in the project: %v", place, j.makes, err)
			}
			fmt.Fprintf(os.Stderr, "%s, round %d of %d, %s: %.2f s\n", j.name, round, b.rounds, place, d.Seconds())
			if round > 0 { // the first fills the caches
				took[place] = append(took[place], d)
			}
		}
	}
	row := []string{j.name, strings.Join(append([]string{filepath.Base(j.argv[0])}, j.argv[1:]...), " ")}
	median := func(place string) float64 { return measure.Summarize(took[place]).P50 / 1e6 }
	for _, p := range places {
		row = append(row, fmt.Sprintf("%.2f", median(p)))
	}
	var pairs []float64
	for i := range took["rw"] {
		pairs = append(pairs, measure.Over(took["staged"][i].Seconds(), took["rw"][i].Seconds()))
	}
	return append(row, ratio(median("staged"), median("outside")), ratio(median("staged"), median("rw")),
		fmt.Sprintf("%.2f to %.2f", slices.Min(pairs), slices.Max(pairs))), nil
}

func ratio(a, b float64) string { return strconv.FormatFloat(measure.Over(a, b), 'f', 2, 64) }

// commands returns the job's command in each place, and its environment outside.
func (b *bench) commands(j *job, dir string) (map[string][]string, []string, error) {
	policies := filepath.Join(b.dir, "policy")
	if err := os.MkdirAll(policies, 0o755); err != nil {
		return nil, nil, err
	}
	const all = "@id(\"all\")\npermit (principal, action, resource);\n"
	if err := os.WriteFile(filepath.Join(policies, "all.cedar"), []byte(all), 0o644); err != nil {
		return nil, nil, err
	}
	flags := []string{"--no-daemon", "--state", filepath.Join(b.dir, "state"), "--policy", policies, "--timeout", "1h", "--cpu", "2h", "--memory", "8G", "--pids", "4096"}
	env := []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
	for name, variable := range j.caches {
		at := filepath.Join(b.dir, "outside", name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return nil, nil, err
		}
		flags, env = append(flags, "--cache", name), append(env, variable+"="+at)
	}
	if j.mounts != nil {
		dirs, more, err := j.mounts()
		if err != nil {
			return nil, nil, err
		}
		for _, d := range dirs {
			flags = append(flags, "--mount", d)
		}
		for _, e := range more {
			env = append(env, e)
			if strings.HasPrefix(e, "GOMODCACHE=") { // a call's toolchain is its own affair: there is no network
				flags = append(flags, "--env", e)
			}
		}
	}
	in := func(mode string) []string {
		c := append([]string{filepath.Join(b.bin, "palyra"), "exec", "--workspace", dir + mode}, flags...)
		return slices.Concat(c, []string{"--"}, j.argv)
	}
	return map[string][]string{"outside": j.argv, "rw": in(":own-path"), "staged": in(":staged,own-path")}, env, nil
}

// once runs the job's command and returns how long it took.
func (j *job) once(ctx context.Context, dir string, argv, env []string) (time.Duration, error) {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir, c.Env = dir, env
	// A cell's program has a session of its own, and so a group of the scheduler's (sched(7),
	// autogroup): outside it gets the same share of a busy machine.
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	start := time.Now()
	out, err := c.CombinedOutput()
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, tail(out))
	}
	if !bytes.Contains(out, []byte(j.says)) {
		return 0, fmt.Errorf("the output lacks %q: %s", j.says, tail(out))
	}
	return took, nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-2000):] }

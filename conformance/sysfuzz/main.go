// Command sysfuzz makes random system calls inside cells and watches the host.
//
//	make build
//	go run ./conformance/sysfuzz -calls 400000          # what make conformance does
//	go run ./conformance/sysfuzz -calls 10000000 -seed 7 -mode warm
//	go run ./conformance/sysfuzz -third .               # Debian's trinity and stress-ng
//
// The program is inside.c.txt, static, built with gcc; one cell per slice of
// calls, and the modes take turns: tier C in a cold cell, in one that waited, in
// the shared network namespace (void), and tier B. A slice is a function of its
// seed, which is printed with anything that goes wrong: -seed and -mode run one again.
//
// On the host stand canaries: files that must stay as they are, a process that must live,
// TCP, UDP, unix and abstract sockets that must not be spoken to, a System V segment that
// no process may attach. After each slice no process of it may be left, palyra must have
// ended in a way that a random program can cause, and the kernel log, where it can be read,
// must have nothing new that speaks of a bug.
//
// It doesn't find bugs that need two calls at once, or that random arguments don't hit.
// Exit status 0 if it found nothing, 1 if it found something, 2 if it couldn't look.
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// mode is a kind of cell.
type mode struct {
	name string
	args []string
	warm bool
}

var modes = []mode{
	{"cold", []string{"--tier", "c"}, false},
	{"warm", []string{"--tier", "c"}, true},
	{"void", []string{"--tier", "c", "--network", "void"}, false},
	{"b", []string{"--tier", "b"}, false},
}

// total is the sum of a mode.
type total struct {
	slices, calls, children, crashed, stuck, ok, eperm, enosys, other uint64
	ended                                                             map[string]int
	numbers                                                           map[int]bool // called
	// passed are the calls that succeeded at least once.
	passed map[int]bool
}

type run struct {
	palyra, cell, warm, inside, dir string
	findings                        int
	totals                          map[string]*total
}

func main() {
	calls := flag.Uint64("calls", 400_000, "system calls in all")
	slice := flag.Uint64("per", 50_000, "system calls per slice, which is one cell")
	seed := flag.Uint64("seed", 1, "seed of the first slice; the next has the next")
	only := flag.String("mode", "", "one of cold, warm, void, b; all by default")
	third := flag.String("third", "", "run trinity and stress-ng instead, all or what this regular expression finds")
	palyra := flag.String("palyra", "bin/palyra", "`FILE` under test")
	flag.Parse()
	r := &run{palyra: *palyra, cell: filepath.Join(filepath.Dir(*palyra), "palyra-cell"), totals: make(map[string]*total)}
	err := r.run(*calls, *slice, *seed, *only, *third)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "sysfuzz:", err)
		os.Exit(2)
	case r.findings > 0:
		os.Exit(1)
	}
}

func (r *run) finding(format string, args ...any) {
	r.findings++
	fmt.Fprintf(os.Stderr, "sysfuzz: FINDING: "+format+"\n", args...)
}

func (r *run) run(calls, per, seed uint64, only, third string) (err error) {
	for _, p := range []*string{&r.palyra, &r.cell} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	if r.dir, err = os.MkdirTemp("", "palyra-sysfuzz-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	if err := os.Chmod(r.dir, 0o755); err != nil {
		return err
	}
	if err := r.build(); err != nil {
		return err
	}
	log := newKernelLog()
	c, err := setCanaries(r.dir)
	if err != nil {
		return err
	}
	defer c.close()
	watch := func(what string) {
		for _, seen := range append(c.tripped(), log.bugs()...) {
			r.finding("%s: %s", what, seen)
		}
	}
	if third != "" {
		return r.thirdParties(third, watch)
	}
	begin, done := time.Now(), uint64(0)
	for i := uint64(0); done < calls; i++ {
		m := modes[i%uint64(len(modes))]
		if only != "" && m.name != only {
			if i > 0 && i%4 == 3 && len(r.totals) == 0 {
				return fmt.Errorf("no mode %q", only)
			}
			continue
		}
		n, err := r.slice(m, seed+i, min(per, calls-done))
		if err != nil {
			return err
		}
		watch(fmt.Sprintf("mode %s, seed %d", m.name, seed+i))
		done += max(n, per/50) // a slice that ended itself at once counts little, but counts
	}
	r.report(time.Since(begin), log)
	return nil
}

// build compiles the program and the launcher of warm cells.
func (r *run) build() error {
	r.inside, r.warm = filepath.Join(r.dir, "palyra-sysfuzz"), filepath.Join(r.dir, "warm")
	if out, err := exec.Command("gcc", "-O2", "-static", "-o", r.inside, "-x", "c", "conformance/sysfuzz/inside.c.txt").CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, out)
	}
	c := exec.Command("go", "build", "-o", r.warm, "./conformance/escape/warm")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build warm: %w\n%s", err, out)
	}
	policy := filepath.Join(r.dir, "policy")
	if err := os.Mkdir(policy, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(policy, "all.cedar"), []byte("@id(\"fuzz_permits_everything\")\npermit (principal, action, resource);\n"), 0o644)
}

// slice makes one cell and the calls in it.
func (r *run) slice(m mode, seed, calls uint64) (uint64, error) {
	what := fmt.Sprintf("mode %s, seed %d", m.name, seed)
	e, err := r.confined(m, what, time.Minute, r.inside, strconv.FormatUint(seed, 10), strconv.FormatUint(calls, 10))
	if err != nil {
		return 0, err
	}
	t := r.totals[m.name]
	if t == nil {
		t = &total{ended: make(map[string]int), numbers: make(map[int]bool), passed: make(map[int]bool)}
		r.totals[m.name] = t
	}
	t.slices++
	t.ended[e.how]++
	return t.add(&e.stdout), nil
}

// ending is how a program in a cell ended.
type ending struct {
	how            string
	status         int
	stdout, stderr bytes.Buffer
}

// confined runs a program in a cell of a mode. A wrong end is a finding.
func (r *run) confined(m mode, what string, timeout time.Duration, argv ...string) (*ending, error) {
	mark := "PALYRA_FUZZ=" + rand.Text()
	line := []string{r.palyra, "exec"}
	if m.warm {
		line = []string{r.warm, "--cell", r.cell}
	}
	line = append(line, m.args...)
	line = append(line, "--state", filepath.Join(r.dir, "state"), "--policy", filepath.Join(r.dir, "policy"), "--timeout", timeout.String(),
		"--memory", "1G", "--max-file", "16M", "--env", mark, "--")
	line = append(line, argv...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + r.dir}
	e := new(ending)
	cmd.Stdout, cmd.Stderr = &e.stdout, &e.stderr
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	timer := time.AfterFunc(timeout+2*time.Minute, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() {
		r.finding("%s: palyra hung", what)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		r.finding("%s: somebody kept palyra's standard output", what)
	}
	e.status = cmd.ProcessState.ExitCode()
	switch {
	case e.status == 124:
		e.how = "timed out"
	case e.status == 125 || e.status == 126 || e.status < 0: // palyra's own trouble, or its end
		r.finding("%s: palyra ended with status %d: %.400s", what, e.status, e.stderr.String())
	case strings.Contains(e.stderr.String(), "palyra: killed"):
		e.how = "ran into a limit"
	case e.status > 128 && e.status < 193:
		e.how = "ended by a signal of its own"
	case e.status == 0:
		e.how = "done"
	default:
		e.how = fmt.Sprintf("done, status %d", e.status)
	}
	for _, pid := range left(mark) {
		r.finding("%s: process %d outlived the cell", what, pid)
	}
	return e, nil
}

// add reads the program's own sums: the last one counts.
func (t *total) add(out *bytes.Buffer) uint64 {
	var sum [8]uint64
	for sc := bufio.NewScanner(out); sc.Scan(); {
		f := strings.Fields(sc.Text())
		switch {
		case len(f) == 9 && f[0] == "sum":
			for i := range sum {
				sum[i], _ = strconv.ParseUint(f[i+1], 10, 64)
			}
		case len(f) == 4 && f[0] == "nr":
			nr, _ := strconv.Atoi(f[1])
			t.numbers[nr] = true
			if f[3] == "0" {
				t.passed[nr] = true
			}
		}
	}
	for i, to := range []*uint64{&t.calls, &t.children, &t.crashed, &t.stuck, &t.ok, &t.eperm, &t.enosys, &t.other} {
		*to += sum[i]
	}
	return sum[0]
}

// left returns the processes that have the mark in their environment, after
// giving those that are just dying a moment. Palyra itself has it in no environment.
func left(mark string) (pids []int) {
	for range 100 {
		pids = nil
		envs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, f := range envs {
			if env, err := os.ReadFile(f); err == nil && bytes.Contains(env, []byte(mark)) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
				pids = append(pids, pid)
			}
		}
		if len(pids) == 0 {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return pids
}

func (r *run) report(took time.Duration, log *kernelLog) {
	var all uint64
	numbers := make(map[int]bool)
	fmt.Println("| mode | cells | calls | numbers | succeeded once | ok | EPERM | ENOSYS | other | children | crashed | stuck | how the program ended |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, m := range modes {
		t := r.totals[m.name]
		if t == nil {
			continue
		}
		all += t.calls
		for nr := range t.numbers {
			numbers[nr] = true
		}
		fmt.Printf("| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %v |\n", m.name, t.slices, t.calls, len(t.numbers), len(t.passed),
			t.ok, t.eperm, t.enosys, t.other, t.children, t.crashed, t.stuck, t.ended)
	}
	fmt.Printf("%d system calls of %d numbers in cells, %d findings, %s; kernel log %s\n", all, len(numbers), r.findings, took.Round(time.Second), log.state())
}

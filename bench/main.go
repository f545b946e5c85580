// Command bench measures the cost of a confined call beside an unconfined one.
//
//	make bench            # under five minutes
//	make bench-baseline   # the same, and then this run is the committed baseline
//	make bench-full       # more samples, every sustained run for 20 s
//	make bench-compare    # the last run against bench/baseline.json
//	go run ./bench -set cells -scale 0.1
//
// The paths of a set take turns in one process, in a new order each round, so that a
// disturbance of the machine hits all of them. A ratio is of two medians of one set, one
// program and one arrival pattern. Medians themselves aren't comparable between runs.
//
// bench prints tables. It writes records {set, path, program, pattern, n, p50_us, p99_us,
// ratio, bwrap_ratio} and its other findings to bench/results/latest.json, with a histogram
// beside it. It names peers that aren't installed and leaves them out. README.md describes the
// paths and has the values of the committed baseline.
//
// Exit status: 0; 1 for an error; 2 for wrong usage; 3 if -compare finds a slower path.
//
// It says nothing about other machines.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"palyra/bench/measure"
	"palyra/bench/selfbench"
)

type options struct {
	bin       string        // folder of palyra and palyra-cell
	out       string        // file for the results
	sets      string        // comma-separated, empty is all
	scale     float64       // of the numbers of samples
	full      bool          // more samples, longer storms
	sustained time.Duration // length of a storm; 0 leaves storms out
	rest      time.Duration // longest wait for the kernel to settle after a storm
	cells     int           // waiting cells whose memory is measured
	accept    bool          // make the run the committed baseline
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "folder of palyra and palyra-cell")
	flag.StringVar(&o.out, "out", "bench/results/latest.json", "file for the results")
	flag.StringVar(&o.sets, "set", "", "measure only these: cells, call, one-shot, memory")
	flag.IntVar(&o.cells, "cells", 500, "waiting cells to measure the memory of")
	flag.BoolVar(&o.accept, "accept", false, "make this run the baseline: baseline.json, the pictures and the tables of README.md beside it")
	flag.Float64Var(&o.scale, "scale", 1, "multiply the numbers of samples")
	flag.BoolVar(&o.full, "full", false, "three times the samples, and storms to compare with as long as those that are judged")
	flag.DurationVar(&o.sustained, "sustained", 20*time.Second, "length of sustained runs, 0 for none")
	baseline := flag.String("baseline", "bench/baseline.json", "what -compare compares with and -document documents")
	doCompare := flag.Bool("compare", false, "compare the results with the baseline instead of measuring")
	doDocument := flag.String("document", "", "write the baseline's tables into this README instead of measuring")
	flag.Parse()
	if o.full {
		o.scale *= 3
	}
	o.rest = min(30*time.Second, o.sustained*3/2)
	if flag.NArg() > 0 || o.scale <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	code, err := 0, error(nil)
	switch {
	case *doCompare:
		code, err = runCompare(*baseline, o.out, os.Stdout)
	case *doDocument != "":
		err = runDocument(*baseline, *doDocument)
	default:
		var r *results
		if r, err = run(o, os.Stdout); err == nil && o.accept {
			err = accept(r, o.out, *baseline)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	os.Exit(code)
}

func runCompare(baseline, latest string, w io.Writer) (int, error) {
	was, err := readResults(baseline)
	if err != nil {
		return 1, err
	}
	is, err := readResults(latest)
	if errors.Is(err, fs.ErrNotExist) {
		return 1, fmt.Errorf("there is no run to compare: %w\nhint: run make bench first", err)
	}
	if err != nil {
		return 1, err
	}
	older, err := is.before(was)
	if err != nil {
		return 1, err
	}
	if older {
		return 1, fmt.Errorf("the last run (%s, %s) is older than the baseline (%s, %s) and says nothing of what came since\nhint: run make bench first",
			is.Commit, is.Time, was.Commit, was.Time)
	}
	c := compare(was, is)
	c.print(w, was, is)
	if len(c.Slower) > 0 {
		return 3, nil
	}
	return 0, nil
}

// accept makes a run the committed baseline: its file, and the pictures and the README's tables
// beside it.
func accept(r *results, latest, baseline string) error {
	if err := r.write(baseline); err != nil {
		return err
	}
	dir := filepath.Dir(baseline)
	for _, program := range []string{programNoop, programTrue} {
		b, err := os.ReadFile(picturePath(latest, program))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "latency-"+filepath.Base(program)+".svg"), b, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return runDocument(baseline, filepath.Join(dir, "README.md"))
}

func runDocument(baseline, readme string) error {
	r, err := readResults(baseline)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	s, err := document(string(b), r)
	if err != nil {
		return err
	}
	return os.WriteFile(readme, []byte(s), 0o644)
}

func (o options) wants(name string) bool {
	return o.sets == "" || strings.Contains(","+o.sets+",", ","+name+",")
}

func samples(set, pattern string) float64 {
	n := map[string]float64{patternBurst: 300, pattern8ms: 150, pattern100ms: 30}[pattern]
	if set == setOneShot { // its paths take a hundred times as long
		n = map[string]float64{patternBurst: 30, pattern8ms: 30, pattern100ms: 20}[pattern]
	}
	return n
}

func run(o options, w io.Writer) (*results, error) {
	l, err := newLab(o.bin)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	r := &results{Version: formatVersion, Time: time.Now().UTC().Format(time.RFC3339), Commit: commit(), Full: o.full,
		Machine: measure.ReadMachine(os.TempDir())}
	picture := make(map[string][]measure.Series) // by program
	for _, name := range []string{setCells, setCall, setOneShot} {
		for _, program := range l.Programs() {
			if !o.wants(name) {
				continue
			}
			if err := one(o, l, name, program, r, picture); err != nil {
				return nil, err
			}
		}
	}
	if o.wants("memory") && o.cells > 0 {
		for _, kind := range []string{selfbench.WaitingVoid, selfbench.WaitingFresh} {
			x, err := l.Waiting(kind, o.cells)
			if err != nil {
				l.Miss("waiting cell, "+kind, programTrue, err)
				continue
			}
			r.Waiting = append(r.Waiting, *x)
		}
	}
	r.Absent = l.Absent
	r.Machine.Cell, r.Machine.Tools, r.Machine.LoadEnd = l.InForce(), l.Tools, measure.LoadAverage()
	printText(w, r)
	for program, all := range picture {
		if err := drawTo(picturePath(o.out, program), fmt.Sprintf("%s, 8 ms gap, %s", program, r.Commit), all); err != nil {
			return nil, err
		}
	}
	return r, r.write(o.out)
}

func picturePath(out, program string) string {
	return strings.TrimSuffix(out, ".json") + "-" + filepath.Base(program) + ".svg"
}

// one takes the samples of one set with one program, then its storms.
func one(o options, l *lab, name, program string, r *results, picture map[string][]measure.Series) (err error) {
	s, err := l.set(name, program)
	if err != nil || s == nil {
		return err
	}
	defer func() { err = errors.Join(err, measure.Close(s.Paths)) }()
	if err := s.WarmUp(); err != nil {
		return err
	}
	for _, p := range measure.Patterns() {
		s.Forget()
		took, err := measure.Interleave(s.Paths, p, max(1, int(samples(name, p.Name)*o.scale)))
		if err != nil {
			return err
		}
		r.Records = append(r.Records, measure.Records(name, program, p.Name, measure.Names(s.Paths), took)...)
		if p.Name != pattern8ms {
			continue
		}
		r.Parts = append(r.Parts, s.Parts(program, p.Name)...)
		for i, path := range s.Paths {
			if len(took[i]) > 0 && (name == setCells || name == setCall && i > 0 && path.Name != pathBwrap) { // once each
				picture[program] = append(picture[program], measure.Series{Name: path.Name, Samples: took[i]})
			}
		}
	}
	if o.sustained <= 0 {
		return nil
	}
	s.Stop()
	for _, st := range storms(name, program) {
		for _, p := range s.Paths {
			if p.Name != st.path {
				continue
			}
			length := o.sustained
			if !st.long && !o.full {
				length /= 4 // it is only compared with
			}
			x, err := measure.Sustain(p, program, st.concurrency, length, o.rest)
			if err != nil {
				return err
			}
			r.Sustained = append(r.Sustained, x)
		}
	}
	return nil
}

// aStorm names a path that is also run without pause by several callers at once.
type aStorm struct {
	path        string
	concurrency int
	long        bool // for the whole time, because its leftovers are judged
}

func storms(set, program string) []aStorm {
	switch {
	case program != programNoop:
		return nil // the program's own work would hide ours
	case set == setCells:
		return []aStorm{{pathFloor, sustainedCell, false}, {pathCellC, sustainedCell, true}, {pathCellVoid, sustainedCell, true}, {pathBwrap, sustainedCell, false}}
	case set == setCall:
		return []aStorm{{pathCall, 1, false}, {pathCall, callsAtOnce, false}}
	}
	return nil
}

func drawTo(path, title string, all []measure.Series) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := measure.Histogram(f, title, all); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// Command bench measures what a confined call costs beside an unconfined one.
//
//	make bench            # under five minutes
//	make bench-full       # more samples, sustained for 20 s each
//	make bench-compare    # the last run against bench/baseline.json
//	go run ./bench -set cells -scale 0.1
//
// The paths of a set take turns in one process, in a new order each round, so
// that what disturbs the machine disturbs all of them. A ratio is of two medians
// of one set, one program and one arrival pattern; medians themselves are not
// comparable between runs.
//
// It prints tables and writes records {set, path, program, pattern, n, p50_us,
// p99_us, ratio, bwrap_ratio} with what else it found to
// bench/results/latest.json and a histogram beside it. A peer that is not
// installed is named and left out. README.md says what each path is and holds
// the values of the committed baseline.
//
// Exit status: 0; 1 if something went wrong; 2 usage; 3 if -compare finds that
// something became slower.
//
// What it does not show: another machine, and paths that do not exist yet.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// options are what the flags say.
type options struct {
	bin       string        // folder of palyra and palyra-cell
	out       string        // file for the results
	sets      string        // comma-separated, empty is all
	scale     float64       // of the numbers of samples
	full      bool          // more samples, longer storms
	sustained time.Duration // length of a storm; 0 leaves storms out
	rest      time.Duration // longest wait for the kernel to settle after a storm
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "folder of palyra and palyra-cell")
	flag.StringVar(&o.out, "out", "bench/results/latest.json", "file for the results")
	flag.StringVar(&o.sets, "set", "", "measure only these sets: cells, call, one-shot")
	flag.Float64Var(&o.scale, "scale", 1, "multiply the numbers of samples")
	flag.BoolVar(&o.full, "full", false, "three times the samples, 20 s sustained")
	flag.DurationVar(&o.sustained, "sustained", -1, "length of sustained runs, 0 for none (default 3s, 20s with -full)")
	baseline := flag.String("baseline", "bench/baseline.json", "what -compare compares with and -document documents")
	doCompare := flag.Bool("compare", false, "compare the results with the baseline instead of measuring")
	doDocument := flag.String("document", "", "write the baseline's tables into this README instead of measuring")
	flag.Parse()
	if o.sustained < 0 {
		if o.sustained = 3 * time.Second; o.full {
			o.sustained = 20 * time.Second
		}
	}
	if o.full {
		o.scale *= 3
	}
	if o.rest = 5 * time.Second; o.sustained >= 20*time.Second {
		o.rest = 30 * time.Second
	}
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
		err = run(o, os.Stdout)
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
	if err != nil {
		return 1, err
	}
	c := compare(was, is)
	c.print(w, was, is)
	if len(c.Slower) > 0 {
		return 3, nil
	}
	return 0, nil
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

// wants reports whether a set is to be measured.
func (o options) wants(name string) bool {
	return o.sets == "" || strings.Contains(","+o.sets+",", ","+name+",")
}

// samples is how many of each path to take, unless scaled.
func samples(set, pattern string) float64 {
	n := map[string]float64{patternBurst: 300, pattern8ms: 150, pattern100ms: 20}[pattern]
	if set == setOneShot { // its paths take a hundred times as long
		n = map[string]float64{patternBurst: 40, pattern8ms: 40, pattern100ms: 20}[pattern]
	}
	return n
}

// run measures everything, prints it and writes it.
func run(o options, w io.Writer) error {
	dir, err := os.MkdirTemp("", "palyra-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := newLab(o, dir)
	if err != nil {
		return err
	}
	defer l.close()
	r := &results{Version: formatVersion, Time: time.Now().UTC().Format(time.RFC3339), Commit: commit(), Full: o.full, Machine: readMachine(dir)}
	picture := make(map[string][]series) // by program
	for _, name := range []string{setCells, setCall, setOneShot} {
		for _, program := range l.programs {
			if !o.wants(name) {
				continue
			}
			if err := measure(o, l, name, program, r, picture); err != nil {
				return err
			}
		}
	}
	r.Absent = l.absent
	r.Machine.Cell, r.Machine.Tools, r.Machine.LoadEnd = l.inForce, l.tools, loadAverage()
	printText(w, r)
	for program, all := range picture {
		path := strings.TrimSuffix(o.out, ".json") + "-" + filepath.Base(program) + ".svg"
		if err := drawTo(path, fmt.Sprintf("%s, 8 ms gap, %s", program, r.Commit), all); err != nil {
			return err
		}
	}
	return r.write(o.out)
}

// measure takes the samples of one set with one program, then its storms.
func measure(o options, l *lab, name, program string, r *results, picture map[string][]series) (err error) {
	s, err := l.set(name, program)
	if err != nil || s == nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, p := range s.paths { // caches, keys, journal
		for range 3 {
			if _, err := p.once(); err != nil {
				return fmt.Errorf("measure %s: %w", p.name, err)
			}
		}
	}
	for _, p := range patterns() {
		if s.parts != nil {
			s.parts.take("", "", "")
		}
		took, err := interleave(s.paths, p, max(1, int(samples(name, p.name)*o.scale)))
		if err != nil {
			return err
		}
		r.Records = append(r.Records, records(name, program, p.name, s.names(), took)...)
		if p.name != pattern8ms {
			continue
		}
		if s.parts != nil {
			r.Parts = append(r.Parts, s.parts.take(pathCall, program, p.name))
		}
		for i, path := range s.paths {
			if name == setCells || name == setCall && i > 0 && path.name != pathBwrap { // once each
				picture[program] = append(picture[program], series{path.name, took[i]})
			}
		}
	}
	if o.sustained <= 0 {
		return nil
	}
	if s.parts != nil {
		s.parts.stop()
	}
	for _, st := range storms(name, program) {
		for _, p := range s.paths {
			if p.name != st.path {
				continue
			}
			x, err := sustain(p, program, st.concurrency, o.sustained, o.rest)
			if err != nil {
				return err
			}
			r.Sustained = append(r.Sustained, x)
		}
	}
	return nil
}

// aStorm names a path that is also run without pause by several at once.
type aStorm struct {
	path        string
	concurrency int
}

func storms(set, program string) []aStorm {
	switch {
	case program != programNoop:
		return nil // the program's own work would hide ours
	case set == setCells:
		return []aStorm{{pathFloor, sustainedCell}, {pathCellC, sustainedCell}, {pathCellVoid, sustainedCell}, {pathBwrap, sustainedCell}}
	case set == setCall:
		return []aStorm{{pathCall, 1}, {pathCall, callsAtOnce}}
	}
	return nil
}

func drawTo(path, title string, all []series) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := histogram(f, title, all); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

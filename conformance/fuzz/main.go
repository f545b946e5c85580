// Command fuzz runs the fuzz targets of the tree, or builds them for hosts
// without Go.
//
//	go run ./conformance/fuzz -time 20s          # make fuzz: each target, one line of report each
//	go run ./conformance/fuzz -target FuzzWAL    # some: a regular expression on PACKAGE.NAME
//	go run ./conformance/fuzz -build bin/fuzz    # make fuzzers: what palyra fuzz runs
//
// The report has executions, inputs that were new to coverage in this run and
// all that are kept, and the coverage that the seeds and kept inputs reach and
// that the run reached, in bits of the instrumentation's counters: a number to
// compare with itself, not a percentage.
//
// A finding writes its input to testdata/fuzz of the package, and fails. go test
// also fails sometimes with its own deadline, which is no finding.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// target is a fuzz test.
type target struct {
	pkg  string // folder, with slashes
	name string
}

func (t target) String() string { return t.pkg + "." + t.name }

func main() {
	length := flag.Duration("time", 20*time.Second, "for each target")
	only := flag.String("target", "", "regular expression on PACKAGE.NAME")
	build := flag.String("build", "", "`FOLDER` to build test binaries into, instead of running")
	list := flag.Bool("list", false, "name the targets and stop")
	flag.Parse()
	ts, err := targets(".")
	if err == nil && *only != "" {
		var re *regexp.Regexp
		if re, err = regexp.Compile(*only); err == nil {
			ts = slices.DeleteFunc(ts, func(t target) bool { return !re.MatchString(t.String()) })
		}
	}
	switch {
	case err != nil:
	case len(ts) == 0:
		err = fmt.Errorf("no target matches %q", *only)
	case *list:
		for _, t := range ts {
			fmt.Println(t)
		}
	case *build != "":
		err = buildAll(ts, *build)
	default:
		err = runAll(ts, *length)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

var declared = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// targets finds the fuzz tests of the module.
func targets(root string) (ts []target, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || path != root && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range declared.FindAllSubmatch(b, -1) {
			ts = append(ts, target{filepath.ToSlash(filepath.Dir(path)), string(m[1])})
		}
		return nil
	})
	slices.SortFunc(ts, func(a, b target) int { return strings.Compare(a.String(), b.String()) })
	return ts, err
}

// outcome is what go test said of a run.
type outcome struct {
	execs, fresh, kept, before, after string
}

var (
	progress = regexp.MustCompile(`^fuzz: elapsed: .*execs: (\d+) .*new interesting: (\d+) \(total: (\d+)\)`)
	initial  = regexp.MustCompile(`initial coverage bits: (\d+)`)
	later    = regexp.MustCompile(`coverage bits: (\d+)`)
)

func read(out []byte) (o outcome) {
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		line := sc.Text()
		if m := progress.FindStringSubmatch(line); m != nil {
			o.execs, o.fresh, o.kept = m[1], m[2], m[3]
		}
		if m := initial.FindStringSubmatch(line); m != nil {
			o.before, o.after = m[1], m[1]
		} else if m := later.FindStringSubmatch(line); m != nil {
			o.after = m[1]
		}
	}
	return o
}

func runAll(ts []target, length time.Duration) error {
	findings := 0
	fmt.Printf("%-44s %12s %6s %6s %9s %9s\n", "target", "executions", "new", "kept", "coverage", "then")
	for _, t := range ts {
		c := exec.Command("go", "test", "./"+t.pkg, "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", length.String(), "-fuzzminimizetime", "10x")
		c.Env = append(os.Environ(), "GODEBUG=fuzzdebug=1") // says what is covered
		out, err := c.CombinedOutput()
		o := read(out)
		fmt.Printf("%-44s %12s %6s %6s %9s %9s\n", t, o.execs, o.fresh, o.kept, o.before, o.after)
		if err == nil && o.execs != "" {
			continue
		}
		if bytes.Contains(out, []byte("    context deadline exceeded")) && !bytes.Contains(out, []byte("Failing input")) {
			continue
		}
		findings++
		os.Stdout.Write(out[max(0, len(out)-8000):])
	}
	if findings > 0 {
		return fmt.Errorf("%d of %d targets failed", findings, len(ts))
	}
	fmt.Printf("%d targets\n", len(ts))
	return nil
}

// buildAll builds one instrumented test binary per package, and the list that
// palyra fuzz reads: lines of "TARGET FILE".
func buildAll(ts []target, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var list bytes.Buffer
	built := make(map[string]bool)
	for _, t := range ts {
		file := strings.ReplaceAll(t.pkg, "/", "-") + ".test"
		fmt.Fprintf(&list, "%s %s\n", t, file)
		if built[file] {
			continue
		}
		built[file] = true
		c := exec.Command("go", "test", "-c", "-fuzz", ".", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, file), "./"+t.pkg)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", t.pkg, err, out)
		}
	}
	return os.WriteFile(filepath.Join(dir, "targets"), list.Bytes(), 0o644)
}

// Command lab runs Palyra on other kernels, architectures and service managers,
// in emulated machines.
//
//	go run ./conformance/lab                    # every machine of the matrix
//	go run ./conformance/lab -run trixie        # those whose name matches
//	go run ./conformance/lab -turn 7            # a third of the long ones: 8 and 9 have the others
//	go run ./conformance/lab -work DIR          # elsewhere than in bin/lab: what is downloaded and built
//	go run ./conformance/lab -accept            # write expect/*.json anew
//	go run ./conformance/lab -summarize FILE    # write recorded.json from the records of every machine
//
// A machine is a kernel of Debian's archive, an initramfs that is this program,
// and an ext4 disk made of the archive's packages. The archive is where this
// machine's apt says; a package is used only if its digest is in an index that
// Debian signed. There are two kinds:
//
//   - cells: this program is the first process. It delegates a cgroup as systemd does, runs
//     the tests of isolate/cell, the prober and a case of the attack battery, as root and
//     as a user, and looks for leftovers.
//   - service: systemd is the first process. The lab follows docs/OPERATIONS.md to the
//     letter, and then tests the promises of the units.
//
// Each check prints one JSON line on the console. expect/MACHINE.json has the expected
// lines; any difference fails, and so does a check that didn't run. The records of a run of
// every machine are conformance/results/lab.json, as README.md describes them.
//
// Machines have no network. They are emulated (qemu's tcg), so the host needs only apt,
// dpkg, xz, mke2fs and qemu; times in it mean nothing. The lab names missing programs with
// their packages, and doesn't install them. It plays two machines at once, while it makes
// the next one.
//
// If the archive can't be reached, and an earlier run left no copy of the needed packages,
// a machine is reported as NOT CHECKED, which is no failure.
//
// It doesn't prove what other kernels of the same version, built with other options,
// enforce.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	if os.Getpid() == 1 {
		guest() // does not return
	}
	if len(os.Args) > 1 && os.Args[1] == "service" {
		service() // does not return
	}
	if len(os.Args) > 2 && os.Args[1] == "fetch" {
		fetch(os.Args[2]) // does not return
	}
	if len(os.Args) > 3 && os.Args[1] == "browse" {
		browse(os.Args[2], os.Args[3]) // does not return
	}
	var l lab
	run := flag.String("run", "", "machines to boot, as a regular expression (default: all)")
	turn := flag.Int("turn", -1, "of the long machines boot a third, which `N` chooses: all of them in three turns")
	flag.StringVar(&l.work, "work", "bin/lab", "directory for what is downloaded and built; what is there is used for a week")
	flag.StringVar(&l.out, "out", "conformance/results/lab.json", "where to write the records")
	flag.StringVar(&l.expect, "expect", "conformance/lab/expect", "directory with what is expected")
	flag.DurationVar(&l.timeout, "timeout", 900*time.Second, "longest time that a machine may take")
	flag.BoolVar(&l.accept, "accept", false, "write down what came out as what is expected")
	flag.BoolVar(&l.verbose, "v", false, "show the consoles")
	flag.StringVar(&l.only, "parts", "", "play only these parts, separated by commas, and expect nothing of others")
	sum := flag.String("summarize", "", "write "+summaryFile+" from the records in `FILES`, separated by commas, and play nothing")
	flag.Parse()
	err := error(nil)
	if *sum != "" {
		var s *summary
		if s, err = summarize(strings.Split(*sum, ","), l.expect); err == nil {
			err = s.write(summaryFile)
		}
	} else {
		err = l.do(*run, *turn)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

type lab struct {
	work, expect, only, out string
	timeout                 time.Duration
	accept, verbose         bool
	gone                    error // why the archive could not be reached; of whoever makes machines
}

func (l *lab) do(run string, turn int) error {
	which, err := regexp.Compile(run)
	if err != nil {
		return err
	}
	if l.work, err = filepath.Abs(l.work); err != nil {
		return err
	}
	plays := []machine{{name: "archive"}} // no machine, but what all of them are made of
	plays = slices.DeleteFunc(append(plays, machines...), func(m machine) bool {
		return !which.MatchString(m.name) || turn >= 0 && m.turns != nil && !slices.Contains(m.turns, turn%3)
	})
	if len(plays) == 0 {
		return fmt.Errorf("no machine is called %q", run)
	}
	if err := missing(plays); err != nil {
		return err
	}
	var errs []error
	all := report{Version: 1, Machines: make([]played, len(plays))}
	var mu sync.Mutex // of what is printed, and of errs
	var lanes sync.WaitGroup
	ready := l.ahead(plays)
	for range min(atOnce, runtime.NumCPU()) {
		lanes.Go(func() {
			for m := range ready {
				err := m.err
				if err == nil {
					err = m.play(l)
				}
				mu.Lock()
				errs = append(errs, m.end(err))
				all.Machines[m.at] = *m.p
				mu.Unlock()
			}
		})
	}
	lanes.Wait()
	all.print()
	return errors.Join(append(errs, all.write(l.out))...)
}

// atOnce is the number of machines played at once: each has one processor of the host, see
// boot.
const atOnce = 2

// end notes and prints how a machine ended.
func (x *made) end(err error) error {
	why := away(err)
	switch x.p.Verdict = "ok"; {
	case why != "":
		x.p.Verdict, x.p.Error, err = "not checked", why, nil
	case err != nil:
		x.p.Verdict, x.p.Error = "fail", err.Error()
		err = fmt.Errorf("%s: %w", x.name, err)
	}
	x.p.print()
	return err
}

// made is a machine that is ready to boot, or the reason why it isn't.
type made struct {
	machine
	at                    int // among those that are played
	p                     *played
	vmlinuz, initrd, disk string
	err                   error
}

// ahead makes machines, each while those before it are played. It ends with the
// last one.
func (l *lab) ahead(ms []machine) <-chan *made {
	next := make(chan *made) // closed when all are made
	go func() {
		defer close(next)
		runtime.LockOSThread() // whose niceness and end are those of what it starts
		yield()
		for i, m := range ms {
			x := l.make(m)
			x.at = i
			next <- x
		}
	}()
	return next
}

// make makes a machine, all but its boot.
func (l *lab) make(m machine) *made {
	p := &played{Machine: m.name, Suite: m.suite, Arch: m.arch, Init: "lab"}
	x := &made{machine: m, p: p}
	if m.service {
		p.Init = "systemd"
	}
	if m.suite != "" {
		x.err = x.build(l)
	}
	return x
}

func (x *made) build(l *lab) error {
	m := x.machine
	a, err := l.open(m.suite, m.arch)
	if err != nil {
		return err
	}
	dir, err := a.kernel(m.flavour)
	if err != nil {
		return err
	}
	x.p.Package = a.kernelPackage()
	var modules []string
	if x.vmlinuz, modules, err = image(dir, m.modules()); err != nil {
		return err
	}
	x.disk, x.initrd = filepath.Join(l.work, m.root()+".disk"), filepath.Join(l.work, m.name+".initrd")
	if err := l.buildDisk(a, m, x.disk); err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	if err := l.buildInitrd(m, x.initrd, modules); err != nil {
		return fmt.Errorf("make initramfs: %w", err)
	}
	return nil
}

// play boots a machine and compares its results with the expected ones.
func (x *made) play(l *lab) (err error) {
	if x.suite == "" {
		x.p, err = l.tampered()
		return err
	}
	start := time.Now()
	got, first, err := l.boot(x.machine, x.vmlinuz, x.initrd, x.disk)
	x.p.Seconds, x.p.Boot = time.Since(start).Seconds(), first.Seconds()
	want, jerr := l.judge(x.machine, got, err)
	x.p.count(got, want)
	return errors.Join(err, jerr)
}

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// party is a program of others that does its worst.
type party struct {
	name, what string
	timeout    time.Duration
	argv       []string
}

// classes are those of stress-ng 0.15; gpu wants a device.
var classes = []string{"cpu", "cpu-cache", "device", "filesystem", "gpu", "interrupt", "io", "memory", "network", "os", "pipe", "scheduler", "security", "vm"}

// parties are trinity for a while and every class of stress-ng, one stressor after
// the other, a second each, for a minute at most. trinity is told to make no perf and socket
// descriptors before it begins, because it tries until it has enough of them.
func parties() (out []party) {
	for seed := range 4 {
		out = append(out, party{"trinity", fmt.Sprint("64-bit calls, seed ", seed+1), 30 * time.Second, []string{"/usr/bin/trinity", "-a", "64", "-C", "2", "-N", "1000000",
			"-s", fmt.Sprint(seed + 1), "-l", "off", "-V", "/usr/share/zoneinfo", "--disable-fds=perf,sockets"}})
	}
	for _, c := range classes {
		out = append(out, party{"stress-ng", c, time.Minute, []string{"/usr/bin/stress-ng", "--class", c, "--sequential", "1", "--timeout", "1s", "--verbose"}})
	}
	return out
}

// thirdParties runs those whose name, class and tier match, each at tier C and B,
// and prints a table; README.md has its counts.
func (r *run) thirdParties(match string, watch func(string)) error {
	re, err := regexp.Compile(match)
	if err != nil {
		return err
	}
	fmt.Println("| program | what | tier | made | well | refused, skipped or without what it needs | how it ended |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, p := range parties() {
		if _, err := exec.LookPath(p.argv[0]); err != nil {
			fmt.Printf("| %s | %s | | NOT CHECKED: not installed | | | |\n", p.name, p.what)
			continue
		}
		for _, m := range []mode{modes[0], modes[3]} {
			tier := m.args[1]
			if !re.MatchString(p.name + " " + p.what + " " + tier) {
				continue
			}
			what := fmt.Sprintf("%s %s, tier %s", p.name, p.what, tier)
			e, err := r.confined(m, what, p.timeout, p.argv...)
			if err != nil {
				return err
			}
			watch(what)
			if p.name == "trinity" {
				made, well, not := calls(e.stdout.Bytes())
				fmt.Printf("| %s | %s | %s | %s | %s | %s | %s |\n", p.name, p.what, tier, made, well, not, e.how)
				continue
			}
			s := stressed(e.stdout.Bytes(), e.stderr.Bytes())
			fmt.Printf("| %s | %s | %s | %d of %d stressors | %d | %s | %s |\n", p.name, p.what, tier,
				len(s.began), len(s.all), s.well(), strings.Join(s.unwell, " "), e.how)
			if err := r.oneByOne(m, p, s.rest(strings.HasPrefix(e.how, "done")), watch); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%d findings\n", r.findings)
	return nil
}

var trinityCall = regexp.MustCompile(`^\[child\d+:\d+\] \[\d+\] (\w+)\(.*\) = (-?\w+)`)

// calls counts the calls that trinity reports.
func calls(out []byte) (made, well, not string) {
	names, n, ok, failed := make(map[string]bool), 0, 0, 0
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Buffer(nil, 1<<22)
	for sc.Scan() {
		if m := trinityCall.FindStringSubmatch(sc.Text()); m != nil {
			names[m[1]] = true
			if n++; m[2] == "-1" {
				failed++
			} else {
				ok++
			}
		}
	}
	return fmt.Sprintf("%d calls of %d names", n, len(names)), fmt.Sprint(ok), fmt.Sprintf("%d failed", failed)
}

// oneByOne runs the stressors of a class that were not reached, since one before
// them met a limit that ends the cell or took the time, each in a cell of its own.
func (r *run) oneByOne(m mode, p party, names []string, watch func(string)) error {
	if len(names) == 0 {
		return nil
	}
	began, well, ended := 0, 0, make(map[string][]string)
	var unwell []string
	for _, name := range names {
		what := fmt.Sprintf("%s %s, tier %s", p.name, name, m.args[1])
		e, err := r.confined(m, what, 15*time.Second, p.argv[0], "--"+name, "1", "--timeout", "1s", "--verbose")
		if err != nil {
			return err
		}
		watch(what)
		s := stressed(e.stdout.Bytes(), e.stderr.Bytes())
		began += len(s.began)
		unwell = append(unwell, s.unwell...)
		if !strings.HasPrefix(e.how, "done") {
			ended[e.how] = append(ended[e.how], name)
		} else {
			well += s.well()
		}
	}
	hows := []string{"done"}
	for how, names := range ended {
		hows = append(hows, fmt.Sprintf("%s: %s", how, strings.Join(names, " ")))
	}
	slices.Sort(hows[1:])
	fmt.Printf("| %s | %s, a cell for each that was not reached | %s | %d of %d stressors | %d | %s | %s |\n", p.name, p.what, m.args[1],
		began, len(names), well, strings.Join(unwell, " "), strings.Join(hows, "; "))
	return nil
}

var (
	dispatched = regexp.MustCompile(`dispatching hogs: (.*)$`)
	started    = regexp.MustCompile(`([\w-]+): started \[`)
	unwell     = regexp.MustCompile(`process \[\d+\] \(([\w-]+)\) (?:terminated with an error|aborted early)|(?:info|warn): +\[\d+\] ([\w-]+):? .*(?:skip|not supported|not implemented|cannot)`)
)

// stressors are what stress-ng says of its own: which it has, which began, and
// which failed or could not.
type stressors struct{ all, began, unwell []string }

// well is the number that began and reported no fault.
func (s *stressors) well() int {
	n := 0
	for _, name := range s.began {
		if !slices.Contains(s.unwell, name) {
			n++
		}
	}
	return n
}

// rest returns those that did not come to their end.
func (s *stressors) rest(done bool) []string {
	over := s.began
	if !done && len(over) > 0 {
		over = over[:len(over)-1]
	}
	return slices.DeleteFunc(slices.Clone(s.all), func(name string) bool { return done || slices.Contains(over, name) })
}

func stressed(outs ...[]byte) *stressors {
	s := new(stressors)
	add := func(to *[]string, name string) {
		if !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	for _, out := range outs {
		sc := bufio.NewScanner(bytes.NewReader(out))
		sc.Buffer(nil, 1<<22)
		for sc.Scan() {
			line := sc.Text()
			if m := dispatched.FindStringSubmatch(line); m != nil {
				for hog := range strings.SplitSeq(m[1], ", ") {
					_, name, _ := strings.Cut(hog, " ")
					add(&s.all, name)
				}
			}
			if m := started.FindStringSubmatch(line); m != nil {
				add(&s.began, m[1])
			}
			if m := unwell.FindStringSubmatch(line); m != nil && m[1]+m[2] != "dispatching" {
				add(&s.unwell, m[1]+m[2])
			}
		}
	}
	slices.Sort(s.unwell)
	return s
}

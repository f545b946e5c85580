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
// and prints a table for conformance/README.md.
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
			made, well, not := stressed(e.stdout.Bytes(), e.stderr.Bytes())
			if p.name == "trinity" {
				made, well, not = calls(e.stdout.Bytes())
			}
			fmt.Printf("| %s | %s | %s | %s | %s | %s | %s |\n", p.name, p.what, tier, made, well, not, e.how)
		}
	}
	fmt.Printf("%d findings\n", r.findings)
	return nil
}

var trinityCall = regexp.MustCompile(`^\[child\d+:\d+\] \[\d+\] (\w+)\(.*\) = (-?\w+)`)

// calls counts what trinity says that it did.
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

var (
	dispatched = regexp.MustCompile(`dispatching hogs: (.*)$`)
	started    = regexp.MustCompile(`: started \[`)
	unwell     = regexp.MustCompile(`process \[\d+\] \(([\w-]+)\) (?:terminated with an error|aborted early)|(?:info|warn): +\[\d+\] ([\w-]+):? .*(?:skip|not supported|not implemented|cannot)`)
)

// stressed counts stressors: how many stress-ng had, and names those that failed
// or could not.
func stressed(outs ...[]byte) (made, well, not string) {
	bad := make(map[string]bool)
	n, began := 0, 0
	for _, out := range outs {
		sc := bufio.NewScanner(bytes.NewReader(out))
		sc.Buffer(nil, 1<<22)
		for sc.Scan() {
			line := sc.Text()
			if m := dispatched.FindStringSubmatch(line); m != nil {
				n = len(strings.Split(m[1], ","))
			}
			if started.MatchString(line) {
				began++
			}
			if m := unwell.FindStringSubmatch(line); m != nil {
				bad[m[1]+m[2]] = m[1]+m[2] != "dispatching"
			}
		}
	}
	var names []string
	for name, is := range bad {
		if is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return fmt.Sprintf("%d of %d stressors", min(began, n), n), fmt.Sprint(max(0, min(began, n)-len(names))), strings.Join(names, " ")
}

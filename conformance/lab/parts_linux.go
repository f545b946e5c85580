package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// facts: the kernel's features, and the outcome of one call of each tier on it. That is the
// ladder of degradations.
func facts() {
	told("facts/kernel", func() (string, error) {
		var u syscall.Utsname
		err := syscall.Uname(&u)
		return series(text(u.Release[:])) + " " + text(u.Machine[:]), err
	})
	for _, u := range users {
		told("facts/probe/"+u.name, func() (string, error) { return probe(place{delegated: true}, u.uid) })
		for _, tier := range []string{"b", "c"} {
			told("facts/call/"+tier+"/"+u.name, func() (string, error) { return call(place{delegated: true}, u.uid, "--tier", tier) })
		}
	}
}

func text(c any) string {
	var s strings.Builder
	switch c := c.(type) {
	case []int8:
		for _, b := range c {
			s.WriteByte(byte(b))
		}
	case []uint8:
		s.Write(c)
	}
	return strings.TrimRight(s.String(), "\x00")
}

// contract: every runner keeps what isolate.Runner promises.
func contract() {
	keeps("contract/TestContractTierB", users[1])
	keeps("contract/TestContractTierC", users[1])
}

// rooted: tier C does for root, too.
func rooted() { keeps("rooted/TestContractTierC", users[0]) }

// warm: so do cells that waited.
func warm() { keeps("warm/TestContractWarm", users[0]) }

func keeps(check string, u user) {
	_, test, _ := strings.Cut(check, "/")
	told(check+"/"+u.name, func() (string, error) {
		return place{delegated: true}.tests(u.uid, enforced, "cell.test", "^"+test+"$", "-test.short")
	})
}

// enforced turns a skip for want of a cgroup into a failure.
var enforced = []string{"PALYRA_TEST_CGROUP=1"}

// cgroup: limits are read back, kill what is over them and nothing else, and
// leave no group; where palyra has no group of its own calls say so.
func cgroup() {
	for _, u := range users {
		own, beneath := place{delegated: true}, place{delegated: true, inner: "palyra-main"}
		told("cgroup/own/"+u.name, func() (string, error) {
			return own.tests(u.uid, enforced, "cell.test", "TestCgroup|TestDeath|TestStartRefuses")
		})
		told("cgroup/subgroup/"+u.name, func() (string, error) { return beneath.tests(u.uid, enforced, "cell.test", "TestCgroup$") })
		for _, c := range []struct {
			name string
			place
		}{{"crowded", place{delegated: true, crowded: true}}, {"session", place{delegated: true, inner: "session"}}, {"undelegated", place{inner: "session"}}} {
			told("cgroup/"+c.name+"/"+u.name, func() (string, error) { return call(c.place, u.uid) })
		}
	}
}

// pool: cells that wait, where there is no group, and where each is in one of its
// own.
func pool() {
	const tests = "TestPoolServes|TestPoolKinds|TestPoolExpires|TestPoolCellDies|TestPoolNetworks"
	for _, u := range users {
		grouped := tests + "|TestPoolDescriptors|TestPoolDeadline" // cgroup has TestCgroupWarm
		if u.uid == 0 {
			grouped += "|TestPoolDeath"
		}
		told("pool/no-cgroup/"+u.name, func() (string, error) {
			return place{inner: "session"}.tests(u.uid, nil, "cell.test", tests)
		})
		told("pool/cgroup/"+u.name, func() (string, error) {
			return place{delegated: true}.tests(u.uid, enforced, "cell.test", grouped)
		})
	}
}

// cases runs cases of the attack battery, and names those that didn't pass.
func cases(which string, limit time.Duration, args ...string) (string, error) {
	const out = "/tmp/lab/battery.json"
	argv := append([]string{programs + "/escape", "-palyra", programs + "/palyra", "-attack", programs + "/attack", "-warm", programs + "/warm", "-j", "2",
		"-uid", "1000", "-out", out, "-case", which}, args...)
	said, err := place{inner: "session"}.run(0, limit, nil, argv...)
	var end *exec.ExitError
	if err != nil && !errors.As(err, &end) {
		return "", fmt.Errorf("%w: %s", err, said[max(0, len(said)-2000):])
	}
	var doc struct {
		Passed, Open, Hung, Failed int
		Cases                      []struct{ Case, Tier, Mode, User, Control, Verdict, Detail string }
	}
	b, err := os.ReadFile(out)
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err == nil && doc.Passed == 0 {
		err = fmt.Errorf("nothing passed: %s", said[max(0, len(said)-2000):])
	}
	var rest []string
	for _, c := range doc.Cases {
		switch c.Verdict {
		case "passed", "not_applicable":
		case "inconclusive":
			rest = append(rest, c.Case+" "+c.User+" "+c.Control)
		default:
			err = errors.Join(err, fmt.Errorf("case %s at %s %s as %s is %s %s", c.Case, c.Tier, c.Mode, c.User, c.Verdict, c.Detail))
		}
	}
	slices.Sort(rest)
	if err != nil {
		return "", err
	}
	return "none open; inconclusive: " + strings.Join(slices.Compact(rest), ", "), nil
}

// vsock: the loopback of vsock is there, and no cell reaches it.
func vsock() {
	told("vsock/cases", func() (string, error) { return cases("45", 120*time.Second, "-mode", "cold,warm,session") })
}

// battery is the part of the attack battery that says more on a kernel like this
// than on a host in a container.
func battery() {
	told("battery/cases", func() (string, error) {
		return cases("1/open,7,9,42,46,55,57,64,66,67,86", 300*time.Second, "-mode", "cold")
	})
}

// noUserns: without user namespaces there is no tier C, and it says so; tier B
// works.
func noUserns() {
	const most = "/proc/sys/user/max_user_namespaces"
	old, err := os.ReadFile(most)
	if err != nil {
		say("nouserns", verdict(err), "")
		return
	}
	settings := [][3]string{{"max", most, string(old)}}
	if b, err := os.ReadFile("/proc/sys/kernel/unprivileged_userns_clone"); err == nil { // Debian's
		settings = append(settings, [3]string{"unprivileged", "/proc/sys/kernel/unprivileged_userns_clone", string(b)})
	}
	for _, s := range settings {
		name := s[0]
		if err := os.WriteFile(s[1], []byte("0"), 0); err != nil {
			say("nouserns/"+name, verdict(err), "")
			continue
		}
		for _, u := range users {
			for _, tier := range []string{"b", "c"} {
				told("nouserns/"+name+"/"+tier+"/"+u.name, func() (string, error) { return call(place{delegated: true}, u.uid, "--tier", tier) })
			}
		}
		if err := os.WriteFile(s[1], []byte(s[2]), 0); err != nil {
			say("nouserns/"+name, verdict(err), "")
		}
	}
}

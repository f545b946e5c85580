package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// The ways in which AppArmor keeps user namespaces from programs, as Ubuntu does
// with those that have no profile: none can be made, or one that gives no
// capability.
var restrictions = []struct{ name, rules string }{
	{"none", "  capability,\n"},
	{"powerless", "  userns create,\n  deny capability,\n"},
}

// restricted runs a command line at each tier where AppArmor forbids what tier C
// is made of. AppArmor 3 knows no such rule.
func (m *manager) restricted(name, rules, tier string) (string, error) {
	if _, err := os.Stat("/etc/apparmor.d/abi/4.0"); err != nil {
		return "not known to this AppArmor", nil
	}
	profile := fmt.Sprintf("abi <abi/4.0>,\nprofile lab_%s flags=(attach_disconnected) {\n  file,\n  network,\n  unix,\n  signal,\n  ptrace,\n  mount,\n  umount,\n  pivot_root,\n%s}\n", name, rules)
	file := "/tmp/lab_" + name
	err := os.WriteFile(file, []byte(profile), 0o644)
	if err == nil {
		_, err = m.do("apparmor_parser", "--replace", file)
	}
	if err != nil {
		return "", err
	}
	out, err := m.as(m.alice, "env", "-C", "/home/alice", "aa-exec", "-p", "lab_"+name, "--", "palyra", "exec", "--json", "--state", "/tmp/alice-"+name, "--tier", tier, "--", "/usr/bin/id", "-u")
	var end *exec.ExitError
	if err != nil && !errors.As(err, &end) {
		return "", err
	}
	var doc struct {
		Outcome string
		Error   struct{ Reason, Message string }
	}
	if jerr := json.Unmarshal([]byte(out), &doc); jerr != nil {
		return "", errors.Join(err, jerr)
	}
	if doc.Error.Reason != "" {
		return fmt.Sprintf("exit %d, %s: %s", exitOf(end), doc.Error.Reason, doc.Error.Message), nil
	}
	return fmt.Sprintf("exit %d, %s", exitOf(end), doc.Outcome), nil
}

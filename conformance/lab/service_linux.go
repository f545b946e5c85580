package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// manager is shared by the checks of a machine with systemd.
type manager struct {
	alice, palyra *syscall.Credential
}

// service plays the life of palyra's units on a machine with systemd. If it can't install
// them, it ends.
func service() {
	m := &manager{}
	for _, c := range m.checks() {
		start := time.Now()
		got, err := c.run()
		if err == nil && got == "" {
			got = "ok"
		}
		if err != nil {
			got = verdict(err)
			fmt.Println(m.output("journalctl", "--no-pager", "-q", "-n", "60", "-o", "short-monotonic"))
			fmt.Println(m.output("systemctl", "--no-pager", "list-units", "--all", "palyra*"))
		}
		say(c.name, got, fmt.Sprintf("%.1f s", time.Since(start).Seconds()))
		if err != nil && strings.HasPrefix(c.name, "install/") {
			break
		}
	}
	halt()
}

// patience is for one command: what starts palyrad tests the sandbox before it,
// with a deadline of 20 s for each of a hundred attempts.
const patience = 4 * time.Minute

// do runs a command as root and returns what it wrote on standard output.
func (m *manager) do(args ...string) (string, error) { return m.as(nil, args...) }

// as runs a command as a user.
func (m *manager) as(who *syscall.Credential, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin", "HOME=/tmp", "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(out.String() + errs.String())
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args[:min(len(args), 3)], " "), err, said[max(0, len(said)-800):])
	}
	return strings.TrimSpace(out.String()), nil
}

func (m *manager) output(args ...string) string {
	out, err := m.do(args...)
	if err != nil {
		return err.Error()
	}
	return out
}

// property reads one property of a unit.
func (m *manager) property(unit, name string) string {
	return m.output("systemctl", "show", "--value", "-p", name, unit)
}

// object runs a command as a user that prints JSON.
func (m *manager) object(who *syscall.Credential, into any, args ...string) error {
	out, err := m.as(who, args...)
	if err == nil {
		err = json.Unmarshal([]byte(out), into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// until waits for something that the machine does by itself.
func until(what string, ok func() bool) error {
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("waited in vain: " + what)
		}
	}
	return nil
}

// same compares an observation with the expectation.
func same(what, got, want string) error {
	if got != want {
		return fmt.Errorf("%s is %q, want %q", what, got, want)
	}
	return nil
}

// processes lists those of a user.
func (m *manager) processes(user string) string {
	out, _ := m.do("pgrep", "-u", user, "-a") // nothing found is status 1
	return strings.ReplaceAll(strings.TrimSpace(out), "\n", ", ")
}

// edit changes a file.
func edit(name string, change func(string) string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(change(string(b))), 0o644)
}

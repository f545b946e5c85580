package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// pending returns the one question that waits.
func (m *manager) pending() (id, capsule string, err error) {
	var doc struct {
		Approvals []struct{ ID, Capsule string }
	}
	err = until("a question is asked", func() bool {
		return m.object(nil, &doc, "palyra", "approvals", "ls", "--json") == nil && len(doc.Approvals) == 1
	})
	if err != nil {
		return "", "", err
	}
	return doc.Approvals[0].ID, strings.TrimPrefix(doc.Approvals[0].Capsule, "sha256:"), nil
}

// answered calls a tool as alice whose call root approves; she may not herself.
func (m *manager) answered(name, tool, input string) (run, error) {
	type end struct {
		r   run
		err error
	}
	done := make(chan end, 1)
	go func() {
		r, err := m.tool(name, tool, input)
		done <- end{r, err}
	}()
	id, capsule, err := m.pending()
	if err != nil {
		select {
		case e := <-done:
			return e.r, errors.Join(err, e.err, errors.New(e.r.String()))
		default:
			return run{}, err
		}
	}
	if out, err := m.as(m.alice, "palyra", "approvals", "approve", "--capsule", capsule, id); err == nil {
		return run{}, fmt.Errorf("alice approved her own call: %s", out)
	}
	if _, err := m.do("palyra", "approvals", "approve", "--capsule", capsule, id); err != nil {
		return run{}, err
	}
	e := <-done
	return e.r, e.err
}

// approval: an approved call runs, as palyra.
func (m *manager) approval() (string, error) {
	r, err := m.answered("write", "fs.write_file", `{"workspace":"reports","path":"a.txt","mode":"create","content":"hi"}`)
	if err != nil || r.State != "done" {
		return "", fmt.Errorf("%v: %v", err, r)
	}
	b, err := os.ReadFile("/srv/palyra/reports/a.txt")
	if err == nil {
		err = same("the file", string(b), "hi")
	}
	if err != nil {
		return "", err
	}
	owner, err := m.do("stat", "-c", "%U %a", "/srv/palyra/reports/a.txt")
	return owner, err
}

// pids are those of the two services.
func (m *manager) pids() string {
	return m.property("palyrad.service", "MainPID") + " " + m.property("palyra-cell.service", "MainPID")
}

// oom: a tool that wants more memory than its cell may have ends, nothing else.
func (m *manager) oom() (string, error) {
	before := m.pids()
	r, err := m.tool("oom", "process.run", `{"argv":["/usr/bin/tail","/dev/zero"]}`)
	if err != nil {
		return "", err
	}
	e, err := evidence("oom")
	if err != nil {
		return "", err
	}
	if err := same("processes", m.pids(), before); err != nil {
		return "", err
	}
	if s, err := m.status(); err != nil || s.Mode != "normal" {
		return "", fmt.Errorf("status %+v, %v", s, err)
	}
	return fmt.Sprintf("%s by %s, tree dead %v", r.Steps[0].Outcome, e.Exit.LimitHit, e.Exit.TreeDead), nil
}

// logged says whether palyrad has logged something since a moment.
func (m *manager) logged(cursor, text string) bool {
	return strings.Contains(m.output("journalctl", "-q", "-u", "palyrad", "-o", "cat", "--after-cursor", cursor), text)
}

func (m *manager) cursor() string {
	out := m.output("journalctl", "-q", "-n", "0", "--show-cursor")
	_, c, _ := strings.Cut(out, "-- cursor: ")
	return strings.TrimSpace(c)
}

// reload: a wrong configuration changes nothing and is told; a right one is used.
func (m *manager) reload() (string, error) {
	const file = "/etc/palyra/palyrad.toml"
	before, cursor := m.pids(), m.cursor()
	good, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file, append(good, "\nnonsense = 1\n"...), 0o644); err != nil {
		return "", err
	}
	if _, err := m.do("systemctl", "reload", "palyrad"); err != nil {
		return "", err
	}
	if err := until("reload refused", func() bool { return m.logged(cursor, "reload refused") }); err != nil {
		return "", err
	}
	if s, err := m.status(); err != nil || s.Mode != "normal" || !strings.Contains(strings.Join(s.Warnings, " "), "reload refused") {
		return "", fmt.Errorf("after a wrong reload: %+v, %v", s, err)
	}
	if err := os.WriteFile(file, append(good, "log_level = \"debug\"\n"...), 0o644); err != nil {
		return "", err
	}
	cursor = m.cursor()
	if _, err := m.do("systemctl", "reload", "palyrad"); err != nil {
		return "", err
	}
	if err := until("reloaded", func() bool { return m.logged(cursor, "log_level") }); err != nil {
		return "", err
	}
	s, err := m.status()
	if err == nil && strings.Contains(strings.Join(s.Warnings, " "), "reload refused") {
		err = fmt.Errorf("warnings %q", s.Warnings)
	}
	return "", errors.Join(err, same("processes", m.pids(), before))
}

// begin starts a run of alice's that waits in a cell, and returns its id when it
// does.
func (m *manager) begin(ms int) (string, error) {
	out, err := m.as(m.alice, "palyra", "sessions", "new")
	if err != nil {
		return "", err
	}
	session := regexp.MustCompile(`ses_\w+`).FindString(out)
	steps := fmt.Sprintf(`[{"tool":"palyra.sleep","input":{"ms":%d}}]`, ms)
	if err := os.WriteFile("/tmp/steps.json", []byte(steps), 0o644); err != nil {
		return "", err
	}
	out, err = m.as(m.alice, "palyra", "runs", "start", "--session", session, "/tmp/steps.json")
	if err != nil {
		return "", err
	}
	id := regexp.MustCompile(`run_\w+`).FindString(out)
	return id, until("the tool runs", m.asleep)
}

// asleep says whether a program of a cell runs: it is the child of a reaper.
func (m *manager) asleep() bool {
	return strings.Contains(m.output("ps", "-eo", "args"), "palyra-tool")
}

// became returns the outcome of a run.
func (m *manager) became(id string) (string, error) {
	var doc struct{ Run run }
	err := until("palyrad answers", func() bool { return m.object(m.alice, &doc, "palyra", "runs", "show", "--json", id) == nil })
	if err == nil {
		err = until(id+" has ended", func() bool {
			return m.object(m.alice, &doc, "palyra", "runs", "show", "--json", id) == nil && doc.Run.State != "in_progress" && doc.Run.State != "accepted"
		})
	}
	return doc.Run.String(), err
}

// restart: a run that would outlast the drain is ended, and says so.
func (m *manager) restart() (string, error) {
	id, err := m.begin(60000)
	if err == nil {
		_, err = m.do("systemctl", "restart", "palyrad.service")
	}
	if err == nil {
		err = m.noStrays()
	}
	if err != nil {
		return "", err
	}
	return m.became(id)
}

// noStrays waits until no program of a cell is left.
func (m *manager) noStrays() error {
	return until("no tool runs", func() bool { return !m.asleep() })
}

// kill: a call whose end wasn't seen is unknown, and isn't made again.
func (m *manager) kill() (string, error) {
	id, err := m.begin(60000)
	if err == nil {
		_, err = m.do("systemctl", "kill", "--kill-who=main", "--signal=KILL", "palyrad.service")
	}
	if err == nil {
		err = m.noStrays()
	}
	if err != nil {
		return "", err
	}
	got, err := m.became(id)
	return got + "; restarts " + m.property("palyrad.service", "NRestarts"), err
}

// cellService: palyrad ends with palyra-cell's service and comes back with it.
func (m *manager) cellService() (string, error) {
	before := m.property("palyrad.service", "MainPID")
	if _, err := m.do("systemctl", "kill", "--kill-who=main", "--signal=KILL", "palyra-cell.service"); err != nil {
		return "", err
	}
	err := until("palyrad is another", func() bool {
		pid := m.property("palyrad.service", "MainPID")
		return pid != before && pid != "0" && m.property("palyrad.service", "ActiveState") == "active"
	})
	if err != nil {
		return "", err
	}
	r, err := m.tool("again", "palyra.echo", `{"text":"hello"}`)
	return r.String(), err
}

// watchdog: palyrad keeps it, and is replaced when it hangs.
func (m *manager) watchdog() (string, error) {
	const dir = "/run/systemd/system/palyrad.service.d"
	drop := "[Service]\nWatchdogSec=4\nTimeoutAbortSec=1\n"
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/lab.conf", []byte(drop), 0o644)); err != nil {
		return "", err
	}
	for _, c := range [][]string{{"systemctl", "daemon-reload"}, {"systemctl", "restart", "palyrad.service"}} {
		if _, err := m.do(c...); err != nil {
			return "", err
		}
	}
	restarts, seen := m.property("palyrad.service", "NRestarts"), make(map[string]bool)
	pid := m.property("palyrad.service", "MainPID")
	err := until("three signs of life", func() bool {
		seen[m.property("palyrad.service", "WatchdogTimestampMonotonic")] = true
		return len(seen) > 3
	})
	if err := errors.Join(err, same("restarts", m.property("palyrad.service", "NRestarts"), restarts)); err != nil {
		return "", err
	}
	if _, err := m.do("kill", "-STOP", pid); err != nil {
		return "", err
	}
	err = until("palyrad is replaced", func() bool {
		p := m.property("palyrad.service", "MainPID")
		return p != pid && p != "0" && m.property("palyrad.service", "ActiveState") == "active"
	})
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		return "", err
	}
	if _, err := m.do("systemctl", "daemon-reload"); err != nil {
		return "", err
	}
	s, err := m.status()
	return s.Mode, err
}

// drain: a call that is about to end may do so.
func (m *manager) drain() (string, error) {
	id, err := m.begin(3000)
	if err == nil {
		_, err = m.do("systemctl", "stop", "palyrad.service")
	}
	if err == nil {
		err = same("result of the unit", m.property("palyrad.service", "Result"), "success")
	}
	if err != nil {
		return "", err
	}
	return m.became(id) // its socket starts it again
}

// socket: a connection starts both services.
func (m *manager) socket() (string, error) {
	for _, u := range []string{"palyrad.service", "palyra-cell.service"} {
		if _, err := m.do("systemctl", "stop", u); err != nil {
			return "", err
		}
	}
	r, err := m.tool("socket", "palyra.echo", `{"text":"hello"}`)
	return r.String(), err
}

// stop: nothing is left of the user but its files.
func (m *manager) stop() (string, error) {
	if _, err := m.begin(60000); err != nil {
		return "", err
	}
	units := []string{"palyrad.socket", "palyrad-http.socket", "palyrad-diag.socket", "palyrad-egress.socket", "palyra-cell.socket", "palyrad.service", "palyra-cell.service"}
	if _, err := m.do(append([]string{"systemctl", "stop"}, units...)...); err != nil {
		return "", err
	}
	for _, u := range units {
		if s := m.property(u, "ActiveState"); s != "inactive" {
			return "", fmt.Errorf("%s is %s", u, s)
		}
	}
	for _, user := range []string{"palyra", "palyra-egress"} {
		if p := m.processes(user); p != "" {
			return "", fmt.Errorf("processes are left: %s", p)
		}
	}
	if m.asleep() {
		return "", errors.New("a tool is left")
	}
	for _, u := range []string{"palyrad", "palyra-cell", "palyra-egress"} {
		if _, err := os.Stat("/sys/fs/cgroup/system.slice/" + u + ".service"); err == nil {
			return "", fmt.Errorf("the cgroup of %s is left", u)
		}
	}
	return "", nil
}

// journal: every call has its result.
func (m *manager) journal() (string, error) {
	out, err := m.as(m.palyra, "palyra", "journal", "verify", "--state", stateDir)
	var end *exec.ExitError
	if errors.As(err, &end) && end.ExitCode() == 3 { // there are findings: life/kill
		err = nil
	}
	found := regexp.MustCompile(`finding +(.*)`).FindStringSubmatch(out)
	if err == nil && (!strings.HasPrefix(out, "sound") || found == nil) {
		err = fmt.Errorf("it says %s", out)
	}
	if err != nil {
		return "", err
	}
	return "sound; " + found[1], nil
}

// denials: AppArmor had nothing to refuse, but what restricted asked it to.
func (m *manager) denials() (string, error) {
	var found []string
	for line := range strings.Lines(m.output("journalctl", "-q", "-k", "-o", "cat")) {
		if _, what, ok := strings.Cut(line, `apparmor="DENIED"`); ok && strings.Contains(what, "palyra") && !strings.Contains(what, `profile="lab_`) {
			found = append(found, strings.TrimSpace(what))
		}
	}
	if len(found) > 0 {
		return "", fmt.Errorf("%d denials: %s", len(found), strings.Join(found, "; "))
	}
	return "", nil
}

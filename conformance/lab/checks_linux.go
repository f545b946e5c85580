package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

type check struct {
	name string
	run  func() (string, error)
}

const stateDir = "/var/lib/palyra"

// checks are played in this order.
func (m *manager) checks() []check {
	all := []check{
		{"facts/kernel", func() (string, error) {
			b, err := os.ReadFile("/proc/sys/kernel/osrelease")
			return series(string(b)), err
		}},
		{"facts/systemd", func() (string, error) {
			out, err := m.do("systemctl", "--version")
			return strings.Join(strings.Fields(out)[:2], " "), err
		}},
		{"facts/apparmor", func() (string, error) {
			out, err := m.do("apparmor_parser", "--version")
			if b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err != nil || string(b) != "Y\n" {
				return "not enabled", err
			}
			v := regexp.MustCompile(`version (\d+)`).FindStringSubmatch(out)
			return "version " + v[1], err
		}},
		{"install/profiles", func() (string, error) { return m.script("install-1") }},
		{"install/units", m.install},
		{"install/egress", m.installEgress},
		{"start/active", m.active},
		{"start/profile", m.profiles},
		{"start/confined", m.confined},
		{"start/exposure", m.exposure},
		{"start/certificate", m.certificate},
		{"start/console", m.console},
		{"call/cgroup", m.call},
		{"call/receipt", m.receipt},
		{"call/approval", m.approval},
		{"call/oom", m.oom},
		{"call/verity", m.verity},
		{"call/egress", m.egress},
		{"call/nohost", m.noHost},
		{"vault/credentials", m.credentials},
		{"vault/unit", m.unitVault},
		{"certificate/missing", m.uncertified},
		{"certificate/again", m.recertified},
		{"life/reload", m.reload},
		{"life/restart", m.restart},
		{"life/kill", m.kill},
		{"life/cellservice", m.cellService},
		{"life/watchdog", m.watchdog},
		{"life/drain", m.drain},
		{"life/socket", m.socket},
	}
	for _, r := range restrictions {
		for _, tier := range []string{"b", "c"} {
			all = append(all, check{"restricted/" + r.name + "/" + tier, func() (string, error) { return m.restricted(r.name, r.rules, tier) }})
		}
	}
	if b, err := os.ReadFile("/proc/cmdline"); err == nil && strings.Contains(string(b), "lab_clock=true") {
		all = append(all, m.clock()...)
	}
	return append(all, []check{
		{"life/stop", m.stop},
		{"after/journal", m.journal},
		{"after/denials", m.denials},
	}...)
}

// script runs commands of docs/OPERATIONS.md, as root in the sources.
func (m *manager) script(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(sources, name))
	if err != nil {
		return "", err
	}
	text := strings.Replace(string(b), "make build\n", "", 1) // bin/ is there
	_, err = m.do("sh", "-eu", "-c", text)
	return "", err
}

// series is a kernel's version without its last numbers, which change with each
// update.
func series(release string) string {
	f := strings.SplitN(strings.TrimSpace(release), ".", 3)
	if len(f) < 2 {
		return release
	}
	return f[0] + "." + strings.SplitN(f[1], "-", 2)[0]
}

// install follows the document, and adds a workspace as its configuration file
// shows, and alice, who is in palyra-users.
func (m *manager) install() (string, error) {
	_, err := m.do("useradd", "--create-home", "alice")
	if err == nil {
		_, err = m.script("install-0")
	}
	if err != nil {
		return "", err
	}
	if m.alice, err = account("alice"); err != nil {
		return "", err
	}
	if m.palyra, err = account("palyra"); err != nil {
		return "", err
	}
	_, err = m.do("install", "-d", "-o", "palyra", "-g", "palyra", "/srv/palyra/reports")
	if err == nil {
		err = edit("/etc/palyra/palyrad.toml", func(s string) string {
			return s + "\n[workspaces.reports]\npath = \"/srv/palyra/reports\"\nread_only = false\n" +
				// The lab's calls are short or will be killed.
				"[daemon]\ndrain_timeout = \"6s\"\n"
		})
	}
	if err == nil {
		_, err = m.do("systemctl", "restart", "palyrad.service")
	}
	if err == nil {
		_, err = m.do("palyra", "members", "set", fmt.Sprintf("uid:%d", m.alice.Uid), "operator")
	}
	return "", err
}

// account reads a user and its groups.
func account(name string) (*syscall.Credential, error) {
	users, err := os.ReadFile("/etc/passwd")
	groups, err2 := os.ReadFile("/etc/group")
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	c := new(syscall.Credential)
	for line := range strings.Lines(string(users)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) > 3 && f[0] == name {
			uid, _ := strconv.ParseUint(f[2], 10, 32)
			gid, _ := strconv.ParseUint(f[3], 10, 32)
			c.Uid, c.Gid = uint32(uid), uint32(gid)
		}
	}
	for line := range strings.Lines(string(groups)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		for member := range strings.SplitSeq(f[len(f)-1], ",") {
			if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && member == name {
				c.Groups = append(c.Groups, uint32(gid))
			}
		}
	}
	if c.Uid == 0 {
		return nil, fmt.Errorf("user %s is not there", name)
	}
	return c, nil
}

// active: palyrad said by sd_notify that it is ready, and what it does.
func (m *manager) active() (string, error) {
	for _, u := range []string{"palyra-cell.socket", "palyrad.socket", "palyrad-http.socket", "palyrad-diag.socket", "palyra-cell.service", "palyra-certify.service", "palyrad.service"} {
		if err := same(u, m.property(u, "ActiveState"), "active"); err != nil {
			return "", err
		}
	}
	if m.property("palyrad.service", "StatusText") == "" {
		return "", errors.New("palyrad says nothing of what it does")
	}
	if err := same("user", m.property("palyrad.service", "User"), "palyra"); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, watchdog %s, %s restarts", m.property("palyrad.service", "Type"), m.property("palyrad.service", "WatchdogUSec"),
		m.property("palyrad.service", "NRestarts")), nil
}

// profiles says in which AppArmor profiles the two are.
func (m *manager) profiles() (string, error) {
	var in []string
	for _, u := range []string{"palyrad.service", "palyra-cell.service"} {
		b, err := os.ReadFile("/proc/" + m.property(u, "MainPID") + "/attr/apparmor/current")
		if err != nil {
			return "", err
		}
		in = append(in, strings.TrimSuffix(u, ".service")+" in "+strings.TrimRight(string(b), "\n\x00"))
	}
	return strings.Join(in, ", "), nil
}

// status asks as root, who is an owner.
func (m *manager) status() (s status, err error) {
	var doc struct{ Status status }
	err = m.object(nil, &doc, "palyra", "status", "--json")
	return doc.Status, err
}

type status struct {
	Mode        string
	PID         int
	Confinement struct {
		Enforced bool
		Controls []struct {
			Name, Detail string
			On           bool
		}
	}
	Warnings []string
}

func (m *manager) confined() (string, error) {
	s, err := m.status()
	if err != nil {
		return "", err
	}
	var on []string
	for _, c := range s.Confinement.Controls {
		if !c.On {
			return "", fmt.Errorf("%s is off: %s", c.Name, c.Detail)
		}
		on = append(on, c.Name)
	}
	if !s.Confinement.Enforced || s.Mode != "normal" || strconv.Itoa(s.PID) != m.property("palyrad.service", "MainPID") {
		return "", fmt.Errorf("status is %+v", s)
	}
	return fmt.Sprintf("%s; %d warnings", strings.Join(on, ", "), len(s.Warnings)), nil
}

// exposure is what systemd computes of the units that run.
func (m *manager) exposure() (string, error) {
	var all []string
	for _, u := range []string{"palyrad.service", "palyra-cell.service", "palyra-certify.service", "palyra-egress.service"} {
		out, err := m.do("systemd-analyze", "security", "--no-pager", u)
		v := regexp.MustCompile(`exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
		if err != nil || v == nil {
			return "", fmt.Errorf("systemd-analyze: %v: %s", err, out)
		}
		all = append(all, v[1])
	}
	return strings.Join(all, ", "), nil
}

// run is what palyra call and palyra runs show print.
type run struct {
	ID, State, Reason string
	Steps             []struct {
		State, Outcome, Reason, Error string
		Exit                          int
		Stdout                        struct{ Text string }
	}
}

func (r run) String() string {
	s := r.State + " " + r.Reason
	for _, st := range r.Steps {
		s += fmt.Sprintf("; step %s %s %s %s exit %d", st.State, st.Outcome, st.Reason, st.Error, st.Exit)
	}
	return strings.Join(strings.Fields(s), " ")
}

// tool calls a tool as alice; the receipt lies in /tmp/NAME.json.
func (m *manager) tool(name, tool, input string) (run, error) {
	var doc struct{ Run run }
	out, err := m.as(m.alice, "palyra", "call", "--json", "--receipt", "/tmp/"+name+".json", tool, input)
	if jerr := json.Unmarshal([]byte(out), &doc); jerr != nil || len(doc.Run.Steps) != 1 {
		return doc.Run, errors.Join(err, jerr)
	}
	return doc.Run, nil
}

// evidence reads a receipt.
func evidence(name string) (seen, error) { return receiptOf("/tmp/" + name + ".json") }

// call: a program runs in a cell whose limits the kernel read back from its
// cgroup.
func (m *manager) call() (string, error) {
	r, err := m.tool("id", "process.run", `{"argv":["/usr/bin/id","-u"]}`)
	if err != nil || r.State != "done" || r.Steps[0].Stdout.Text != "1000\n" {
		return "", fmt.Errorf("%v: %v", err, r)
	}
	e, err := evidence("id")
	if err != nil {
		return "", err
	}
	if e.Usage.Peak <= 0 || e.Cgroup.State != "enforced" {
		return "", fmt.Errorf("evidence is %+v", e)
	}
	v := e.Cgroup.Values
	return fmt.Sprintf("%s; memory.max %s, pids.max %s; degradations %q", e.Executor, v["memory.max"], v["pids.max"], e.Degradations), nil
}

// receipt is verified by alice, who has the public keys only.
func (m *manager) receipt() (string, error) {
	_, err := m.do("cp", "-r", stateDir+"/trust", "/tmp/trust")
	if err == nil {
		_, err = m.do("chmod", "-R", "a+rX", "/tmp/trust")
	}
	if err == nil {
		_, err = m.as(m.alice, "palyra", "attest", "verify", "--trust", "/tmp/trust", "/tmp/id.json")
	}
	return "", err
}

// verity: a new file's digest is remembered at once if fs-verity protects it, and
// the receipt says so; one without is read again.
func (m *manager) verity() (string, error) {
	const name = "/usr/bin/id"
	var got []string
	for _, protected := range []bool{false, true} {
		// Another inode, of now.
		if _, err := m.do("sh", "-c", "cp -p "+name+" /usr/bin/new && touch /usr/bin/new && mv /usr/bin/new "+name); err != nil {
			return "", err
		}
		if protected {
			if _, err := m.do("fsverity", "enable", name); err != nil {
				return "", err
			}
			if err := os.WriteFile(name, nil, 0o755); err == nil {
				return "", errors.New("a protected file was written")
			}
		}
		// A file that changed within the last two seconds is read each time.
		if _, err := m.do("sleep", "2.1"); err != nil {
			return "", err
		}
		for range 2 {
			if r, err := m.tool("verity", "process.run", `{"argv":["`+name+`","-u"]}`); err != nil || r.State != "done" {
				return "", fmt.Errorf("%v: %v", err, r)
			}
		}
		e, err := evidence("verity")
		if err != nil {
			return "", err
		}
		got = append(got, e.Executable.Basis)
	}
	return strings.Join(got, ", "), nil
}

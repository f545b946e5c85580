package deploy

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"palyra/hub/config"
)

// scores are the highest exposures that the units may have, as systemd-analyze security
// computes them: 0 is nothing, 10 is everything. README.md names the settings that would
// lower them, each with the reason why it's missing.
var scores = map[string]float64{"palyrad.service": 1.2, "palyra-cell.service": 3.3, "palyra-certify.service": 3.5, "palyra-egress.service": 1.7}

func TestExposure(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze")
	}
	level := regexp.MustCompile(`Overall exposure level for (\S+): ([0-9.]+)`)
	for unit, most := range scores {
		out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "systemd/"+unit).CombinedOutput()
		m := level.FindSubmatch(out)
		if err != nil || m == nil {
			t.Errorf("%s: %v\n%s", unit, err, out)
			continue
		}
		got, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil || got > most {
			t.Errorf("%s: exposure %v, want at most %v", unit, got, most)
		}
		t.Logf("%s: exposure %v, at most %v", unit, got, most)
	}
	// The control: a unit without directives is exposed.
	bare := filepath.Join(t.TempDir(), "bare.service")
	if err := os.WriteFile(bare, []byte("[Service]\nExecStart=/bin/true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", bare).CombinedOutput()
	if m := level.FindSubmatch(out); m == nil || !strings.HasPrefix(string(m[2]), "9") {
		t.Errorf("a bare unit: %s", out)
	}
}

// settings reads a unit: its keys with all values, without sections.
func settings(t *testing.T, name string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	s := make(map[string][]string)
	for line := range strings.Lines(string(b)) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(k, "#") {
			s[k] = append(s[k], v)
		}
	}
	return s
}

// TestCellCanWork: the directives that would keep palyra-cell from building
// cells are not there. README.md says of each what it breaks, and this test that
// it says it.
func TestCellCanWork(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	s := settings(t, "palyra-cell.service")
	for _, k := range []string{"RestrictNamespaces", "RestrictSUIDSGID", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectControlGroups", "ProtectHostname",
		"ProcSubset", "PrivateUsers", "MemoryDenyWriteExecute", "IPAddressDeny", "SystemCallFilter=@system-service"} {
		key, value, _ := strings.Cut(k, "=")
		for _, v := range s[key] {
			if value == "" || strings.HasPrefix(v, value) {
				t.Errorf("palyra-cell.service has %s=%s", key, v)
			}
		}
		if !strings.Contains(string(readme), "`"+key+"`") {
			t.Errorf("README.md does not say why palyra-cell.service has no %s", key)
		}
	}
	if d := s["Delegate"]; len(d) != 1 || d[0] != "cpu memory pids" {
		t.Errorf("Delegate is %v, cells have no limits of their cgroups then", d)
	}
	if v := strings.Join(s["StartLimitIntervalSec"], ","); v != "0" {
		t.Errorf("StartLimitIntervalSec is %q: the manager gives palyra-cell up after a few kills", v)
	}
	for _, k := range []string{"RestrictSUIDSGID", "PrivateUsers", "ProcSubset"} {
		if v := settings(t, "palyrad.service")[k]; v != nil {
			t.Errorf("palyrad.service has %s=%v", k, v)
		}
	}
}

// TestCertifyIsAlike: what is certified is what palyra-cell.service makes. The
// two units differ in what README.md says they do, and in nothing else.
func TestCertifyIsAlike(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	cell, certify := settings(t, "palyra-cell.service"), settings(t, "palyra-certify.service")
	differ := map[string][]string{ // what palyra-certify.service has; nil: nothing
		// How it is run.
		"Description": certify["Description"], "Documentation": certify["Documentation"], "Requires": nil, "After": {"local-fs.target"}, "Before": {"palyrad.service"},
		"WantedBy": nil, "Type": {"oneshot"}, "RemainAfterExit": {"yes"}, "Restart": nil, "RestartSec": nil, "StartLimitIntervalSec": nil, "TimeoutStartSec": {"300"},
		"ExecStart": {"/usr/bin/palyra sandbox certify --state /var/lib/palyra"},
		// Its surroundings.
		"StateDirectory": {"palyra"}, "StateDirectoryMode": {"0700"}, "TemporaryFileSystem": nil, "BindPaths": nil, "NoNewPrivileges": nil,
	}
	keys := slices.Collect(maps.Keys(cell))
	for k := range certify {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		want, known := differ[k]
		if !known {
			want = cell[k]
		}
		if !slices.Equal(certify[k], want) {
			t.Errorf("palyra-certify.service has %s=%q, want %q as palyra-cell.service or as listed here", k, certify[k], want)
		}
		delete(differ, k)
	}
	if len(differ) > 0 {
		t.Errorf("neither unit has %v", differ)
	}
	for _, k := range []string{"StateDirectory", "TemporaryFileSystem", "BindPaths", "NoNewPrivileges"} {
		if !strings.Contains(string(readme), "`"+k+"`") {
			t.Errorf("README.md does not say why palyra-certify.service differs in %s", k)
		}
	}
	c, err := config.Load("palyrad.toml", nil)
	if err != nil {
		t.Fatal(err)
	}
	d := settings(t, "palyrad.service")
	if !c.WantsCertificate() || !strings.Contains(certify["ExecStart"][0], "--state "+c.State.Dir) || !slices.Equal(d["PartOf"], []string{"palyra-certify.service"}) ||
		!strings.Contains(strings.Join(d["Wants"], " "), "palyra-certify.service") || !strings.Contains(strings.Join(d["After"], " "), "palyra-certify.service") ||
		!slices.Equal(certify["User"], d["User"]) {
		t.Error("palyrad wants no certificate, or gets none before it starts")
	}
}

// TestDaemonCanWork: what kept palyrad from working under systemd, seen in
// conformance/lab, does not come back.
func TestDaemonCanWork(t *testing.T) {
	s := settings(t, "palyrad.service")
	last := 0
	for i, f := range s["SystemCallFilter"] {
		if strings.HasPrefix(f, "~") {
			last = i
		}
	}
	// @ipc, which is taken away, has both; later lines give them back.
	given := strings.Fields(strings.Join(s["SystemCallFilter"][last+1:], " "))
	for _, call := range []string{"pipe2", "memfd_create"} {
		if !slices.Contains(given, call) {
			t.Errorf("palyrad.service does not allow %s: no call can be made", call)
		}
	}
	// The manager goes on starting palyrad, which has a safe mode for starts that fail.
	number := func(k string) float64 {
		n, err := strconv.ParseFloat(strings.Join(s[k], ","), 64)
		if err != nil {
			t.Fatalf("palyrad.service: %s: %v", k, err)
		}
		return n
	}
	if number("StartLimitBurst")*number("RestartSec") <= number("StartLimitIntervalSec") {
		t.Error("palyrad.service: the manager gives palyrad up after a few starts")
	}
	// A Go program that panics or is aborted by the watchdog exits with 2.
	for _, v := range s["RestartPreventExitStatus"] {
		if slices.Contains(strings.Fields(v), "2") {
			t.Errorf("palyrad.service is not started again after a crash: RestartPreventExitStatus=%s", v)
		}
	}
	profile, err := os.ReadFile("apparmor.d/palyrad")
	if err != nil {
		t.Fatal(err)
	}
	// The files in /proc of a process that can't be dumped are root's.
	if regexp.MustCompile(`(?m)^ *owner @\{PROC\}`).Match(profile) {
		t.Error("the profile of palyrad gives it only what its user owns in /proc: it cannot confine itself")
	}
}

// TestCellSees: palyra-cell sees of the state directory what programs of calls write, and no more.
// tmpfiles.d makes it before, as palyrad would.
func TestCellSees(t *testing.T) {
	s := settings(t, "palyra-cell.service")
	made, err := os.ReadFile("tmpfiles.d/palyra.conf")
	if err != nil {
		t.Fatal(err)
	}
	if v := s["TemporaryFileSystem"]; !slices.Equal(v, []string{"/var/lib/palyra:ro"}) {
		t.Errorf("TemporaryFileSystem is %q", v)
	}
	if v := s["BindPaths"]; !slices.Equal(v, []string{"-/var/lib/palyra/layers -/var/lib/palyra/caches"}) {
		t.Errorf("BindPaths is %q", v)
	}
	for _, dir := range []string{"", "/layers", "/caches"} {
		if !regexp.MustCompile(`(?m)^d +/var/lib/palyra` + dir + ` +0700 palyra palyra `).Match(made) {
			t.Errorf("tmpfiles.d makes no /var/lib/palyra%s", dir)
		}
	}
}

// TestAgreement: units, users and configuration speak of the same places.
func TestAgreement(t *testing.T) {
	c, err := config.Load("palyrad.toml", []string{"STATE_DIRECTORY=/var/lib/palyra"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Profile != "single-vm" || c.State.Dir != "/var/lib/palyra" {
		t.Errorf("the example is %+v", c)
	}
	api, http, cell := settings(t, "palyrad.socket"), settings(t, "palyrad-http.socket"), settings(t, "palyra-cell.socket")
	for _, p := range [][2]string{
		{api["ListenStream"][0], c.Listen.Socket}, {api["SocketGroup"][0], c.Listen.SocketGroup}, {api["SocketMode"][0], c.Listen.SocketMode.String()},
		{api["FileDescriptorName"][0], "api"}, {http["FileDescriptorName"][0], "http"},
		{http["ListenStream"][0], c.Listen.HTTP}, {cell["ListenSequentialPacket"][0], c.Cell.Starter}, {cell["SocketMode"][0], "0600"},
	} {
		if p[0] != p[1] {
			t.Errorf("%q and %q differ", p[0], p[1])
		}
	}
	d := settings(t, "palyrad.service")
	stop, err := strconv.Atoi(d["TimeoutStopSec"][0])
	if err != nil || float64(stop) <= c.Daemon.DrainTimeout.Std().Seconds() {
		t.Errorf("TimeoutStopSec %v is not longer than daemon.drain_timeout %v", d["TimeoutStopSec"], c.Daemon.DrainTimeout)
	}
	users, err := os.ReadFile("sysusers.d/palyra.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{d["User"][0], c.Listen.SocketGroup} {
		if !strings.Contains(string(users), " "+u+" ") {
			t.Errorf("sysusers.d makes no %s", u)
		}
	}
}

// TestEgress: palyra-egress comes to the socket that palyrad is given, as a user of its own who may
// open that and no other of ours, and neither outlives nor starts palyrad.
func TestEgress(t *testing.T) {
	socket, d, e := settings(t, "palyrad-egress.socket"), settings(t, "palyrad.service"), settings(t, "palyra-egress.service")
	at := socket["ListenSequentialPacket"][0]
	if want := "/usr/libexec/palyra/palyra-egress -connect " + at; e["ExecStart"][0] != want {
		t.Errorf("it is started as %q, want %q", e["ExecStart"][0], want)
	}
	if socket["FileDescriptorName"][0] != "egress" || !slices.Contains(strings.Fields(d["Sockets"][0]), "palyrad-egress.socket") {
		t.Errorf("palyrad gets the socket as %v, and inherits %v", socket["FileDescriptorName"], d["Sockets"])
	}
	user := e["User"][0]
	if user == d["User"][0] || socket["SocketGroup"][0] != user || socket["SocketMode"][0] != "0660" || socket["SocketUser"][0] != "root" {
		t.Errorf("the socket is %v's and %v's with %v, the service %s's", socket["SocketUser"], socket["SocketGroup"], socket["SocketMode"], user)
	}
	users, err := os.ReadFile("sysusers.d/palyra.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(users), " "+user+" ") {
		t.Errorf("sysusers.d makes no %s", user)
	}
	for _, dir := range []string{"/var/lib/palyra", "/etc/palyra", "/run/palyra"} {
		if !slices.Contains(strings.Fields(e["InaccessiblePaths"][0]), "-"+dir) {
			t.Errorf("it may look into %s", dir)
		}
	}
	if e["BindsTo"][0] != "palyrad.service" || e["WantedBy"][0] != "palyrad.service" || e["Restart"][0] != "always" || e["StartLimitIntervalSec"][0] != "0" {
		t.Errorf("BindsTo %v, WantedBy %v, Restart %v, StartLimitIntervalSec %v", e["BindsTo"], e["WantedBy"], e["Restart"], e["StartLimitIntervalSec"])
	}
}

// TestDiag: palyrad is given the two sockets by which it asks whose connections to the console are.
func TestDiag(t *testing.T) {
	socket, d := settings(t, "palyrad-diag.socket"), settings(t, "palyrad.service")
	if got := strings.Join(socket["ListenNetlink"], ", "); got != "inet-diag 0, route 0" || socket["FileDescriptorName"][0] != "diag" {
		t.Errorf("it opens %s as %v", got, socket["FileDescriptorName"])
	}
	for _, k := range []string{"Sockets", "Wants", "After"} {
		if !slices.Contains(strings.Fields(d[k][0]), "palyrad-diag.socket") {
			t.Errorf("palyrad.service: %s=%s", k, d[k][0])
		}
	}
	profile, err := os.ReadFile("apparmor.d/palyrad")
	if err != nil || !strings.Contains(string(profile), "\n  network netlink raw,\n") {
		t.Errorf("the profile of palyrad lets it not ask: %v", err)
	}
}

// TestAppArmor: the profiles parse. The second wants a parser that knows user
// namespaces. That they fit what they confine is for conformance/lab, where the
// kernel has AppArmor.
func TestAppArmor(t *testing.T) {
	parser, err := exec.LookPath("apparmor_parser")
	if err != nil {
		t.Skip("needs apparmor_parser")
	}
	for name, abi := range map[string]string{"palyrad": "3.0", "palyra-cell": "4.0"} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/etc/apparmor.d/abi/" + abi); err != nil {
				t.Skip("needs apparmor_parser") // of a version with that ABI
			}
			if out, err := exec.Command(parser, "--skip-kernel-load", "--skip-cache", "apparmor.d/"+name).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

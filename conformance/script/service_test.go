//go:build linux

package script

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestServiceStages has the units of deploy/ serve a staged workspace and a cache under a systemd
// that is the first process of namespaces of its own, over a copy of this host's files. palyra-cell
// sees nothing else of the state directory.
func TestServiceStages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Skip("needs systemd as a first process")
	}
	units, err := filepath.Abs("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"play.service": "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nTimeoutStartSec=240\nExecStart=/bin/sh /play.sh\nExecStopPost=/bin/systemctl exit 0 --force --force\n",
		"play.sh":      asService,
		"all.cedar":    "@id(\"all\")\npermit (principal, action, resource);\n",
		"more.toml":    "\n[policy]\ndir = \"/etc/palyra/policy\"\n[workspaces.src]\npath = \"/srv/palyra/src\"\nread_only = false\nstaged = true\ncaches = [\"go\"]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "unshare", "-m", "-p", "-u", "-n", "-f", "--mount-proc", "sh", "-c", underFirst, "sh", dir, tools, units, strconv.Itoa(os.Getpid()))
	console, err := c.CombinedOutput()
	exec.Command("rmdir", "/sys/fs/cgroup/palyra-service-"+strconv.Itoa(os.Getpid())).Run() // it may be no cgroup v2
	if strings.Contains(string(console), "NO ROOT") {
		t.Logf("%s", console)
		t.Skip("needs systemd as a first process")
	}
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	said := string(log)
	for _, want := range []string{
		"SEES caches layers\n",
		"one\ntwo\nx\n",
		"HOST one\n",
		"applied layer src-", "HOST one two\n",
		"undid layer src-", "HOST one\n",
	} {
		i := strings.Index(said, want)
		if i < 0 {
			t.Fatalf("no %q in turn in\n%s\nthe console: %v\n%s", want, log, err, console)
		}
		said = said[i+len(want):]
	}
}

// underFirst makes the root of such a systemd and becomes it: the host's files with a layer in
// memory, and file systems of their own where palyra's state and workspaces lie.
const underFirst = `
set -eu
mount --make-rprivate /
mkdir "$1/over" "$1/root" "$1/out"
mount -t tmpfs none "$1/over"
mkdir "$1/over/up" "$1/over/work"
mount -t overlay none -o "lowerdir=/,upperdir=$1/over/up,workdir=$1/over/work" "$1/root" || { echo NO ROOT; exit 1; }
cd "$1/root"
mount -t proc proc proc
mount --rbind /sys sys
umount -R sys/fs/cgroup || true
mount -t cgroup2 none sys/fs/cgroup
mkdir -p "sys/fs/cgroup/palyra-service-$4"
echo $$ >"sys/fs/cgroup/palyra-service-$4/cgroup.procs"
mount --rbind /dev dev
for at in run tmp var/lib srv; do mount -t tmpfs none $at; done
mkdir -p usr/libexec/palyra etc/palyra/policy usr/lib/systemd/system usr/lib/sysusers.d usr/lib/tmpfiles.d old play
mount --bind "$1" play
cp "$2"/palyra* usr/libexec/palyra/
cp "$2/palyra" usr/bin/
cp "$3"/systemd/* play/play.service usr/lib/systemd/system/
cp "$3/sysusers.d/palyra.conf" usr/lib/sysusers.d/
cp "$3/tmpfiles.d/palyra.conf" usr/lib/tmpfiles.d/
cat "$3/palyrad.toml" play/more.toml >etc/palyra/palyrad.toml
cp play/all.cedar etc/palyra/policy/
cp play/play.sh play.sh
ln -sf /dev/null usr/lib/systemd/system/systemd-sysctl.service # what it would write is the host's
pivot_root . old
umount -l /old
exec env -i container=palyra PATH=/usr/sbin:/usr/bin:/sbin:/bin unshare -C /lib/systemd/systemd --system --unit=play.service --log-target=console --log-level=warning
`

// asService is what the machine plays.
const asService = `
exec >/play/log 2>&1
systemd-sysusers /usr/lib/sysusers.d/palyra.conf
systemd-tmpfiles --create /usr/lib/tmpfiles.d/palyra.conf
mkdir /srv/palyra/src
echo one >/srv/palyra/src/a
chown -R palyra:palyra /srv/palyra/src
systemctl start palyra-cell.socket palyrad.socket palyrad-http.socket palyrad-diag.socket palyrad.service
palyra status
session=$(palyra sessions new t)
call() { palyra call --session $session process.run "{\"argv\":[\"/bin/sh\",\"-c\",\"$1\"],\"workspace\":\"src\"}"; }
call 'echo two >>a; echo x >/caches/go/y'
echo SEES $(nsenter -t $(systemctl show --value -p MainPID palyra-cell) -m -r -w ls /var/lib/palyra)
call 'cat a /caches/go/y'
echo HOST $(cat /srv/palyra/src/a)
for what in apply undo; do
	palyra changes $what --socket /run/palyra/palyrad.sock
	echo HOST $(cat /srv/palyra/src/a)
done
journalctl --no-pager -u palyrad -u palyra-cell -u palyra-certify -n 30
systemctl stop palyrad
`

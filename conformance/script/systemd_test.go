//go:build linux

package script

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestSetupUnderSystemd has palyra setup enter palyrad into a real systemd of an unprivileged
// user, which it starts in namespaces of its own: its own cgroup tree, its own /run.
func TestSetupUnderSystemd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Skip("needs systemd for a user")
	}
	home := t.TempDir()
	for dir := home; len(dir) > 1; dir = dir[:strings.LastIndexByte(dir, '/')] {
		if fi, err := os.Stat(dir); err == nil && fi.Mode()&0o001 == 0 {
			if err := os.Chmod(dir, fi.Mode()|0o011); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := exec.Command("unshare", "-m", "-p", "-f", "--mount-proc", "sh", "-c", underSystemd, "sh", home, tools, strconv.Itoa(os.Getpid()))
	out, err := c.CombinedOutput()
	if err != nil && strings.Contains(string(out), "NO MANAGER") {
		t.Logf("%s", out)
		t.Skip("needs systemd for a user")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := string(out)
	for _, want := range []string{
		"proved: true ran in a cell, receipt ",
		"next: start the agent as ever;",
		"FIRST active",
		"SECOND ends 0",
		"this folder is its workspace two-x",
		"RESTARTED",
		"UNDONE inactive",
	} {
		i := strings.Index(said, want)
		if i < 0 {
			t.Fatalf("no %q in turn in\n%s", want, out)
		}
		said = said[i+len(want):]
	}
}

// underSystemd is run by root in namespaces of its own, with a home and the folder of the
// programs.
const underSystemd = `
set -eu
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/user/x "$1/one" "$1/two%x"
group=/sys/fs/cgroup/palyra-test-$3
mkdir "$group"
trap 'echo $$ >/sys/fs/cgroup/cgroup.procs; find "$group" -depth -type d -exec rmdir {} +' EXIT
chown -R 64321:64321 /run/user/x "$1" "$group"
chmod 700 /run/user/x "$1"
echo $$ >"$group/cgroup.procs"
setpriv --reuid 64321 --regid 64321 --clear-groups env -i HOME="$1" XDG_RUNTIME_DIR=/run/user/x PATH="$2:/usr/bin:/bin" sh -euc '
/lib/systemd/systemd --user --log-target=console </dev/null >"$HOME/log" 2>&1 &
manager=$!
until systemctl --user show-environment >/dev/null 2>&1; do
	kill -0 $manager || { echo NO MANAGER; cat "$HOME/log"; exit 1; }
done
cd "$HOME/one"
palyra setup claude --project
echo FIRST $(systemctl --user is-active palyrad.service)
first=$(systemctl --user show -P MainPID palyrad.service)
cd "$HOME/two%x"
palyra setup codex
echo SECOND ends $?
palyra setup palyrad
[ "$first" = "$(systemctl --user show -P MainPID palyrad.service)" ] || echo RESTARTED
palyra setup palyrad --undo
echo UNDONE $(systemctl --user is-active palyrad.service)
kill $manager
wait
'
`

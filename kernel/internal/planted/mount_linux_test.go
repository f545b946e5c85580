package planted

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// asMounter has the test binary be the process that may mount.
const asMounter = "PALYRA_TEST_MOUNTS_IN"

// What is mounted in the workspace is not the workspace: it is counted and not
// looked into, be it a folder or a file.
func TestMounts(t *testing.T) {
	if dir := os.Getenv(asMounter); dir != "" {
		s := &site{t, dir}
		l := s.begin()
		s.file("kept/.envrc", "tmp/x", "file", "other")
		s.must(unix.Mount("tmpfs", s.at("tmp"), "tmpfs", 0, ""))
		s.must(unix.Mount(s.at("other"), s.at("file"), "", unix.MS_BIND, ""))
		s.file("tmp/.envrc")
		s.must(unix.Mkfifo(s.at("tmp/fifo"), 0o600))
		s.want(l.End(true, Limits{}), "mounts 2", "shell kept/.envrc")
		// With a mount as the workspace, what is in it is looked at.
		s = &site{t, s.at("tmp")}
		dir, err := os.OpenFile(s.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		s.must(err)
		defer dir.Close()
		l = Begin(dir)
		s.must(os.Chmod(s.at("fifo"), 0o644))
		if got := lines(l.End(true, Limits{})); len(got) == 0 || got[len(got)-1] != "fifo fifo" {
			t.Errorf("found %v", got)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestMounts$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), asMounter+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Skip("needs user namespaces")
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
}

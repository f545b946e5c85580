package cell_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/isolate"
	"palyra/isolate/tier"
)

// TestReachAtTierB: without namespaces a program can see the host's files and its own user's
// processes. As such a user, testdata/reach tries the calls that Landlock has no right for:
// first outside, where all must succeed or the test proves nothing, then in calls with a
// writable and a read-only workspace.
func TestReachAtTierB(t *testing.T) {
	if os.Getuid() == 0 {
		asAnother(t)
		return
	}
	reach := os.Getenv("PALYRA_TEST_REACH")
	if reach == "" {
		reach = buildReach(t, t.TempDir())
	}
	c := start(t, tier.B)
	for _, mode := range []string{"outside", "writable", "read-only"} {
		t.Run(mode, func(t *testing.T) {
			r := newReached(t)
			s := benchSpec(reach, "")
			s.Tier, s.Cwd, s.Argv = tier.B, r.workspace, []string{"reach", r.data, r.secret, strconv.Itoa(r.other.Process.Pid)}
			var out string
			if mode == "outside" {
				b, err := exec.Command(reach, s.Argv[1:]...).Output()
				if err != nil {
					t.Fatal(err)
				}
				out = string(b)
			} else {
				d, err := os.Open(r.workspace)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				s.Workspace = &isolate.Mount{Source: r.workspace, ReadOnly: mode == "read-only", UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
				_, out = runIn(t, c, s, d)
			}
			r.judge(t, mode, out)
		})
	}
}

func asAnother(t *testing.T) {
	path := os.Getenv("PALYRA_TEST_CELL")
	if path == "" {
		var err error
		if path, err = binary(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	reach := buildReach(t, dir)
	helper, self, tmp := filepath.Join(dir, "palyra-cell"), filepath.Join(dir, "test"), filepath.Join(dir, "tmp")
	for to, from := range map[string]string{helper: path, self: "/proc/self/exe"} { // whose folders are ours alone
		b, err := os.ReadFile(from)
		if err := errors.Join(err, os.WriteFile(to, b, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	// The test's own directory and the one around it; the world may enter their parent.
	if err := errors.Join(os.Mkdir(tmp, 0o700), os.Chown(tmp, 65534, 65534), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestReachAtTierB$", "-test.v", "-test.timeout=2m")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "PALYRA_TEST_CELL="+helper, "PALYRA_TEST_REACH="+reach, "TMPDIR="+tmp, "HOME="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestReachAtTierB/read-only")) {
		t.Errorf("as a plain user: %v\n%s", err, out)
	}
}

// buildReach builds testdata/reach, static because the test itself may not be.
func buildReach(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "reach")
	cmd := exec.Command("go", "build", "-o", path, "./testdata/reach")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build reach: %v\n%s", err, out)
	}
	return path
}

// reached is the user's property: files and a process.
type reached struct {
	workspace, data, secret string
	attributes              bool // the file system supports users' extended attributes
	other                   *exec.Cmd
	before                  string
}

func newReached(t *testing.T) *reached {
	t.Helper()
	r := &reached{workspace: t.TempDir(), other: exec.Command("sleep", "600")}
	r.data, r.secret = filepath.Join(r.workspace, "data"), filepath.Join(t.TempDir(), "secret")
	old := time.Unix(1e9, 0)
	for _, f := range []string{r.data, r.secret} {
		if err := errors.Join(os.WriteFile(f, []byte("text"), 0o600), os.Chtimes(f, old, old)); err != nil {
			t.Fatal(err)
		}
		switch err := syscall.Setxattr(f, "user.keep", []byte("kept"), 0); {
		case err == nil:
			r.attributes = true
		case !errors.Is(err, syscall.ENOTSUP):
			t.Fatal(err)
		}
	}
	if err := r.other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.other.Process.Kill(); r.other.Wait() })
	r.before = r.state(t)
	return r
}

// state is everything in it that a program might change.
func (r *reached) state(t *testing.T) string {
	t.Helper()
	var s strings.Builder
	for _, f := range []string{r.data, r.secret} {
		fi, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		st, names := fi.Sys().(*syscall.Stat_t), make([]byte, 999)
		n, err := syscall.Listxattr(f, names)
		if err != nil {
			n = 0
		}
		fmt.Fprintf(&s, "%s: %v, %v, changed %v, attributes %q\n", filepath.Base(f), fi.Mode(), fi.ModTime().UTC(), st.Ctim, names[:n])
	}
	proc := fmt.Sprintf("/proc/%d/", r.other.Process.Pid)
	stat, err := os.ReadFile(proc + "stat")
	status, err2 := os.ReadFile(proc + "status")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // field 3 follows the name, and policy is 41
	_, cpus, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	cpus, _, _ = strings.Cut(cpus, "\n")
	fmt.Fprintf(&s, "process: policy %s, processors %s\n", strings.Fields(rest)[41-3], strings.TrimSpace(cpus))
	return s.String()
}

// judge compares reach's output with the results that it must get.
func (r *reached) judge(t *testing.T, mode, out string) {
	t.Helper()
	const open = syscall.Errno(0)
	writable, readOnly := []syscall.Errno{open, open, open}, []syscall.Errno{open, open, syscall.EROFS}
	column := map[string]int{"outside": 0, "writable": 1, "read-only": 2}[mode]
	got := make(map[string]syscall.Errno)
	for line := range strings.Lines(out) {
		what, n, _ := strings.Cut(strings.TrimSpace(line), " ")
		e, err := strconv.Atoi(n)
		if err != nil {
			t.Fatalf("reach printed %q", out)
		}
		got[what] = syscall.Errno(e)
	}
	for what, want := range map[string][]syscall.Errno{
		"data.open": writable, "data.fgetxattr": writable,
		"data.fchmod": readOnly, "data.fchown": readOnly, "data.futimens": readOnly, "data.fremovexattr": readOnly,
		"data.fsetxattr":   {open, syscall.ENOTSUP, syscall.EROFS},
		"secret.open":      {open, syscall.EACCES, syscall.EACCES},
		"secret.getxattr":  {open, syscall.ENOTSUP, syscall.ENOTSUP},
		"secret.listxattr": {open, syscall.ENOTSUP, syscall.ENOTSUP},
		"secret.watch":     {open, syscall.ENOSYS, syscall.ENOSYS},
		"other.affinity":   {open, syscall.EPERM, syscall.EPERM},
		"other.scheduler":  {open, syscall.EPERM, syscall.EPERM},
		"self.affinity":    writable, "self.scheduler": writable,
	} {
		if !r.attributes && strings.Contains(what, "xattr") {
			continue
		}
		if e, ok := got[what]; !ok || e != want[column] {
			t.Errorf("%s: %v (%t), want %v", what, e, ok, want[column])
		}
	}
	after := r.state(t)
	_, kept, _ := strings.Cut(r.before, "\nsecret") // a writable file may be changed
	if mode == "writable" && !strings.HasSuffix(after, kept) || mode == "read-only" && after != r.before {
		t.Errorf("it is\n%s, was\n%s", after, r.before)
	}
	if mode == "outside" && after == r.before {
		t.Error("the attempts change nothing outside either")
	}
}

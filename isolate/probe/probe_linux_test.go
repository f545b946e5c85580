package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native/seccomp"
	"palyra/isolate/tier"
)

// The test binary stands in for palyra-cell. With one of these set it first
// takes something away from itself and then probes.
const (
	withoutCall   = "PALYRA_PROBE_WITHOUT_CALL"   // this call gives ENOSYS
	withoutUserns = "PALYRA_PROBE_WITHOUT_USERNS" // max_user_namespaces is 0
	report        = "PALYRA_PROBE_REPORT"
)

func TestMain(m *testing.M) {
	// Not os.Exit, which sleeps for a second under the race detector.
	if len(os.Args) > 1 && os.Args[1] == childWord {
		syscall.Exit(Main(os.Args[1:]))
	}
	if os.Getenv(withoutCall)+os.Getenv(withoutUserns)+os.Getenv(report) != "" {
		if err := lame(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			syscall.Exit(99)
		}
		syscall.Exit(0)
	}
	os.Exit(m.Run())
}

func lame() error {
	if call := os.Getenv(withoutCall); call != "" {
		a, err := seccomp.ParseArch(runtime.GOARCH)
		if err != nil {
			return err
		}
		f, err := seccomp.Compile(seccomp.Policy{Name: "lame", Default: seccomp.Allow, Unknown: seccomp.Allow,
			Rules: []seccomp.Rule{{Calls: []string{call}, Else: seccomp.Errno(seccomp.ENOSYS), Why: "a host without it"}}}, a)
		if err != nil {
			return err
		}
		runtime.LockOSThread()
		if err := sys.NoNewPrivs(); err != nil {
			return err
		}
		if err := sys.InstallFilter(f.Bytes()); err != nil {
			return err
		}
		return syscall.Exec("/proc/self/exe", []string{"lame"}, []string{report + "=1"})
	}
	if os.Getenv(withoutUserns) != "" {
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
			return err
		}
	}
	r, err := Run(context.Background(), "/proc/self/exe")
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// probeWith runs the probes in a process of its own, as uid.
func probeWith(t *testing.T, uid int, env string, attr *syscall.SysProcAttr) *Report {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{env}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	if uid != os.Getuid() {
		// The binary is reached through /proc/self/exe of a child that is root no
		// more: a copy that it may execute.
		cmd.Path = copySelf(t)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	cmd.Dir = "/"
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return &r
}

func copySelf(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "probe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "helper")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func uids() []int {
	if os.Getuid() == 0 {
		return []int{0, nobody}
	}
	return []int{os.Getuid()}
}

// TestRun demands an answer to every question, and that a host new enough can
// do all that the tiers need.
func TestRun(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, uid := range uids() {
		r := probeWith(t, uid, report+"=1", &syscall.SysProcAttr{})
		if r.UID != uid || r.Kernel == "" || len(r.Findings) != len(Controls()) {
			t.Errorf("uid %d: %+v", uid, r)
		}
		for _, f := range r.Findings {
			if f.Answer == Unknown || f.Detail == "" {
				t.Errorf("uid %d: %s: %s %q", uid, f.Name, f.Answer, f.Detail)
			}
			if f.Answer == No {
				t.Logf("uid %d: %s: %s", uid, f.Name, f.Detail)
			}
		}
		if got := r.Missing(tier.B); len(got) != 0 {
			t.Errorf("uid %d: tier B misses %q", uid, got)
		}
		if os.Getenv("PALYRA_NO_USERNS") == "" {
			if got := r.Missing(tier.C); len(got) != 0 {
				t.Errorf("uid %d: tier C misses %q; set PALYRA_NO_USERNS if this host forbids user namespaces", uid, got)
			}
		}
	}
	if now, err := os.Hostname(); err != nil || now != name {
		t.Errorf("host name is now %q, was %q (%v)", now, name, err)
	}
}

// TestWithout takes one system call away and demands that exactly the controls
// which stand on it are missed, by name, and none becomes unknown.
func TestWithout(t *testing.T) {
	for call, want := range map[string][]string{
		"landlock_create_ruleset": {"landlock", "landlock_scopes"},
		"landlock_restrict_self":  {"landlock", "landlock_scopes"},
		// Without it the filter that takes it away couldn't exist: see below.
		"seccomp":       nil,
		"close_range":   {"close_range"},
		"pidfd_open":    {"pidfd"},
		"clone3":        {"clone3"},
		"execveat":      {"execveat"},
		"memfd_create":  {"memfd_seals", "memfd_noexec"},
		"openat2":       {"openat2"},
		"fsopen":        {"mount_api", "proc_mount", "tmpfs_quota"},
		"mount_setattr": {"mount_api", "idmapped_mount"},
		"sethostname":   {"user_namespace", "user_namespace_unprivileged"},
	} {
		if want == nil {
			want = []string{"seccomp_filter", "seccomp_kill_process"}
		}
		r := probeWith(t, os.Getuid(), withoutCall+"="+call, &syscall.SysProcAttr{})
		for _, f := range r.Findings {
			lacks := slices.Contains(want, f.Name)
			if lacks && f.Answer != No || !lacks && f.Answer == Unknown {
				t.Errorf("without %s: %s: %s %q", call, f.Name, f.Answer, f.Detail)
			}
			if lacks && f.Cost == "" {
				t.Errorf("without %s: %s: no word on the cost", call, f.Name)
			}
			if !lacks && f.Answer == No && f.Name != "cgroup_v2" && f.Name != "idmapped_mount" {
				t.Errorf("without %s: %s: %s %q", call, f.Name, f.Answer, f.Detail)
			}
		}
	}
}

// TestWithoutUserns probes a host whose limit of user namespaces is 0.
func TestWithoutUserns(t *testing.T) {
	r := probeWith(t, os.Getuid(), withoutUserns+"=1", &syscall.SysProcAttr{Cloneflags: newUser,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}})
	if f := r.Find("user_namespace"); f.Answer != No || !strings.Contains(f.Detail, "no space left") || !strings.Contains(f.Hint, "max_user_namespaces") {
		t.Errorf("%+v", f)
	}
	if !slices.Contains(r.Missing(tier.C), "user_namespace") || len(r.Missing(tier.B)) != 0 {
		t.Errorf("C misses %q, B misses %q", r.Missing(tier.C), r.Missing(tier.B))
	}
}

func TestHelperMissing(t *testing.T) {
	if _, err := Run(t.Context(), filepath.Join(t.TempDir(), "none")); fault.KindOf(err) != fault.Refused {
		t.Errorf("got %v", err)
	}
	notExec := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(notExec, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), notExec)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		if f.Answer == Yes {
			t.Errorf("%s: yes, by a helper that cannot be executed", f.Name)
		}
	}
}

func TestMainUsage(t *testing.T) {
	for _, args := range [][]string{nil, {childWord}, {childWord, "landlock"}, {"other", "landlock", "0"}} {
		if got := Main(args); got != 2 {
			t.Errorf("Main(%q) = %d", args, got)
		}
	}
}

package selfconfine

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"palyra/isolate/native/seccomp"
)

// stage builds the program that tries, without cgo as everything that ships, and
// a directory for it.
func stage(t *testing.T) (program, dir string) {
	t.Helper()
	dir = t.TempDir()
	program = filepath.Join(dir, "try")
	cmd := exec.Command("go", "build", "-o", program, "./testdata/try")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, d := range []string{"read", "write/a", "write/b"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"secret", "read/file", "write/setuid"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return program, dir
}

func try(t *testing.T, program, where, op, dir string) string {
	t.Helper()
	cmd := exec.Command(program, where, op, dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", where, op, err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// TestOperations: what palyrad never does fails inside and works outside, which
// shows that it is the confinement that refuses it; what it does works in both.
func TestOperations(t *testing.T) {
	program, dir := stage(t)
	for _, tc := range []struct {
		op, inside, outside string // how the result begins; outside "" is <nil>
		root                bool   // outside it works for root only
	}{
		{op: "start a program", inside: "EPERM"},
		{op: "execve", inside: "EPERM", outside: "gone"},
		{op: "be traced", inside: "EPERM"},
		{op: "unshare", inside: "EPERM", root: true},
		{op: "mount", inside: "EPERM", root: true},
		{op: "bpf", inside: "EPERM", outside: "EINVAL", root: true},
		{op: "io_uring", inside: "EPERM", outside: "not EPERM"},
		{op: "signal", inside: "EPERM"},
		{op: "code", inside: "EPERM"},
		{op: "make it code", inside: "EPERM"},
		{op: "tcp socket", inside: "EPERM"},
		{op: "udp socket", inside: "EPERM"},
		{op: "unix socket", inside: "EPERM"},
		{op: "netlink", inside: "EPERM"},
		{op: "read outside", inside: "EACCES"},
		{op: "write in read", inside: "EACCES"},
		{op: "write outside", inside: "EACCES"},
		{op: "other status", inside: "EACCES"},
		{op: "setuid", inside: "EPERM"},
		{op: "raise a limit", inside: "EPERM"},
		{op: "threads", inside: "EPERM"},
		{op: "read"},
		{op: "write"},
		{op: "own status"},
		{op: "pair"},
		{op: "datagram pair", inside: "EPERM"},
		{op: "unsent"},
		{op: "serve"},
	} {
		t.Run(tc.op, func(t *testing.T) {
			if got := try(t, program, "inside", tc.op, dir); !strings.HasPrefix(got, or(tc.inside, "<nil>")) {
				t.Errorf("inside: %s, want %s", got, or(tc.inside, "<nil>"))
			}
			if tc.root && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			got := try(t, program, "outside", tc.op, dir)
			switch {
			case tc.outside == "not EPERM" && !strings.HasPrefix(got, "EPERM"), tc.outside == "gone" && got == "":
			case !strings.HasPrefix(got, or(tc.outside, "<nil>")):
				t.Errorf("outside: %s, want %s: the refusal inside proves nothing", got, or(tc.outside, "<nil>"))
			}
			if tc.op == "mount" {
				exec.Command("umount", dir).Run()
			}
		})
	}
	t.Run("move", func(t *testing.T) {
		f := filepath.Join(dir, "write", "a", "f")
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := try(t, program, "inside", "move", dir); got != "<nil>" {
			t.Error(got)
		}
	})
}

// TestInternet: a process with the Internet has its sockets, and reads; else it has less than one
// without.
func TestInternet(t *testing.T) {
	program, dir := stage(t)
	for _, tc := range []struct{ op, want string }{
		{"start a program", "EPERM"}, {"execve", "EPERM"}, {"be traced", "EPERM"}, {"unshare", "EPERM"}, {"mount", "EPERM"}, {"bpf", "EPERM"},
		{"io_uring", "EPERM"}, {"signal", "EPERM"}, {"code", "EPERM"}, {"make it code", "EPERM"}, {"setuid", "EPERM"}, {"raise a limit", "EPERM"},
		{"unix socket", "EPERM"}, {"netlink", "EPERM"}, {"raw socket", "EPERM"}, {"ping socket", "EPERM"}, {"packet socket", "EPERM"},
		{"multipath socket", "EPERM"}, {"pair", "EPERM"}, {"datagram pair", "EPERM"}, {"read outside", "EACCES"}, {"write in read", "EPERM"},
		{"write outside", "EPERM"}, {"write", "EPERM"}, {"other status", "EACCES"},
		{"tcp socket", "<nil>"}, {"udp socket", "<nil>"}, {"connect", "<nil>"}, {"read", "<nil>"}, {"own status", "<nil>"},
	} {
		if got := try(t, program, "internet", tc.op, dir); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %s, want %s", tc.op, got, tc.want)
		}
	}
	// What only this test tries fails for no other reason.
	for _, op := range []string{"connect", "multipath socket"} {
		if got := try(t, program, "outside", op, dir); got != "<nil>" {
			t.Errorf("%s outside: %s", op, got)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, op := range []string{"raw socket", "packet socket"} {
		if got := try(t, program, "outside", op, dir); got != "<nil>" {
			t.Errorf("%s outside: %s", op, got)
		}
	}
}

// TestLeaveRoot: root is nobody afterwards, on each thread and without a way back.
func TestLeaveRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	program, dir := stage(t)
	if got := try(t, program, "outside", "leave root", dir); got != "<nil>" {
		t.Error(got)
	}
}

func or(s, t string) string {
	if s == "" {
		return t
	}
	return s
}

func TestReport(t *testing.T) {
	program, dir := stage(t)
	read := func(where string) (r Controls) {
		t.Helper()
		line, _, _ := strings.Cut(try(t, program, where, "report", dir), "\n")
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	in, out := read("inside"), read("outside")
	if !in.Enforced || len(in.Controls) < 5 {
		t.Errorf("inside: %+v", in)
	}
	if out.Enforced {
		t.Errorf("outside: %+v", out)
	}
	for _, c := range out.Controls {
		// A plain user has no capabilities to begin with.
		if c.On && c.Name != "landlock_abi" && !(c.Name == "capabilities" && os.Geteuid() != 0) {
			t.Errorf("outside %s is on: %s", c.Name, c.Detail)
		}
		if !c.On && c.Fix == "" {
			t.Errorf("%s: nothing says what to do", c.Name)
		}
	}
}

// TestPolicy: it compiles for both machines, and names calls that must not be in
// it.
func TestPolicy(t *testing.T) {
	for _, a := range []seccomp.Arch{seccomp.AMD64, seccomp.ARM64} {
		for _, p := range []seccomp.Policy{Policy(4711), InternetPolicy(4711)} {
			if _, err := seccomp.Compile(p, a); err != nil {
				t.Error(err)
			}
		}
	}
	never := map[string]bool{}
	for _, c := range []string{"execve", "execveat", "fork", "vfork", "ptrace", "mount", "unshare", "setns", "bpf", "kexec_load", "kexec_file_load",
		"init_module", "finit_module", "perf_event_open", "io_uring_setup", "socket", "connect", "bind", "kill", "tkill", "pidfd_send_signal",
		"process_vm_writev", "process_vm_readv", "pidfd_getfd", "keyctl", "userfaultfd", "chroot", "pivot_root", "reboot", "setuid", "setgid", "capset",
		"personality", "open_by_handle_at", "symlinkat", "mknodat"} {
		never[c] = true
	}
	for _, p := range []seccomp.Policy{Policy(1), InternetPolicy(1)} {
		for _, r := range p.Rules {
			for _, c := range r.Calls {
				if never[c] && r.Else == seccomp.Allow && !(p.Name == "palyra-egress" && (c == "connect" || c == "bind")) {
					t.Errorf("the policy of %s allows %s", p.Name, c)
				}
			}
		}
	}
}

func TestParseThread(t *testing.T) {
	const status = "Name:\tx\nCapPrm:\t0000000000000004\nCapEff:\t0000000000000004\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	got, err := parseThread(status)
	if err != nil || got != (thread{noNewPrivs: true, seccomp: 2, effective: 4, permitted: 4}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", strings.Replace(status, "Seccomp:\t2\n", "", 1), strings.Replace(status, "0004", "xyz", 1), strings.Replace(status, "Seccomp:\t2", "Seccomp:\tx", 1)} {
		if _, err := parseThread(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

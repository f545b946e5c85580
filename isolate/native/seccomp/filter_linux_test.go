package seccomp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"palyra/isolate/internal/sys"
	"palyra/isolate/native/seccomp"
	"palyra/isolate/tier"
)

// The test binary is its own helper: with asHelper set it installs the filter
// of a tier and then either executes a program or makes calls.
const asHelper = "PALYRA_SECCOMP_HELPER"

const cookie = 0x1122334455667788

func TestMain(m *testing.M) {
	if mode := os.Getenv(asHelper); mode != "" {
		helper(mode)
	}
	os.Exit(m.Run())
}

func helper(mode string) {
	os.Unsetenv(asHelper)
	runtime.LockOSThread()
	die := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "helper:", err)
			os.Exit(99)
		}
	}
	what, name, _ := strings.Cut(mode, ":")
	var f seccomp.Filter
	if name != "" {
		tr, err := tier.Parse(name)
		die(err)
		a, err := seccomp.ParseArch(runtime.GOARCH)
		die(err)
		f, err = seccomp.Compile(seccomp.Cell(seccomp.Options{Tier: tr, ExecCookie: cookie, AllowInet: true, AllowUnix: true, AllowPathMetadata: true,
			AllowUncounted: true, AllowShared: true, AllowIPC: true}), a)
		die(err)
	}
	var calls []call
	if what == "calls" {
		die(json.NewDecoder(os.Stdin).Decode(&calls))
	}
	die(sys.NoNewPrivs())
	if f.Len() > 0 {
		die(sys.InstallFilter(f.Bytes()))
	}
	switch what {
	case "exec":
		die(syscall.Exec(os.Args[1], os.Args[1:], os.Environ()))
	case "calls":
		for i, c := range calls {
			_, _, e := syscall.RawSyscall6(uintptr(c.Nr), c.Args[0], c.Args[1], c.Args[2], c.Args[3], c.Args[4], c.Args[5])
			calls[i].Errno = int(e)
		}
		die(json.NewEncoder(os.Stdout).Encode(calls))
		syscall.Exit(0) // os.Exit sleeps for a second under the race detector
	}
	os.Exit(99)
}

// call is one system call for the helper to make, with arguments that would do
// no harm if it were let through.
type call struct {
	Name  string
	Nr    uint32
	Args  [6]uintptr
	Want  int // errno that the filter must give
	Errno int
}

// bad is an address or a descriptor that is never valid.
const bad = ^uintptr(0)

func runHelper(t *testing.T, mode string, calls []call, uid uint32) []call {
	t.Helper()
	self := filepath.Join(t.TempDir(), "helper")
	copyFile(t, "/proc/self/exe", self)
	if err := os.Chmod(filepath.Dir(filepath.Dir(self)), 0o755); err != nil {
		t.Fatal(err)
	}
	in, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), asHelper+"="+mode)
	cmd.Stdin = strings.NewReader(string(in))
	cmd.Stderr = os.Stderr
	if int(uid) != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helper %s: %v", mode, err)
	}
	var got []call
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	for dir := filepath.Dir(to); err == nil && strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

const (
	eperm, eacces, enosys, enotty, einval, enotsup, eafnosupport, eprotonosupport = 1, 13, 38, 25, 22, 95, 97, 93
)

// denials are calls that must fail at tier C (and most at B) with exactly this
// errno, whoever makes them. Arguments are such that the kernel itself would
// say something else, or, where it would say the same, the control below notes
// that the call proves nothing here.
func denials(t *testing.T) []call {
	const x = 1 << 32 // what the kernel ignores in an int
	list := []call{
		{Name: "unshare", Want: eperm}, // unshare(0) succeeds
		// CLONE_SIGHAND without CLONE_VM: EINVAL in a kernel that gets to see it
		{Name: "clone", Args: [6]uintptr{0x10000000 | 0x800}, Want: eperm},
		{Name: "clone", Args: [6]uintptr{0x40000000 | 0x800}, Want: eperm},
		{Name: "clone", Args: [6]uintptr{0x00008000 | 0x800}, Want: eperm}, // CLONE_PARENT
		{Name: "clone3", Args: [6]uintptr{0, 0}, Want: enosys},
		{Name: "setns", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "io_uring_setup", Args: [6]uintptr{0, bad}, Want: enosys},
		{Name: "io_uring_enter", Args: [6]uintptr{bad}, Want: enosys},
		{Name: "io_uring_register", Args: [6]uintptr{bad}, Want: enosys},
		{Name: "bpf", Args: [6]uintptr{bad, bad}, Want: eperm},
		{Name: "perf_event_open", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "userfaultfd", Args: [6]uintptr{0xffff}, Want: eperm},
		{Name: "keyctl", Args: [6]uintptr{0xffff}, Want: enosys},
		{Name: "add_key", Args: [6]uintptr{bad, bad}, Want: enosys},
		{Name: "request_key", Args: [6]uintptr{bad, bad}, Want: enosys},
		{Name: "ptrace", Args: [6]uintptr{0xffff, 1}, Want: eperm},
		{Name: "process_vm_readv", Args: [6]uintptr{0x7fffffff, 0, 0, 0, 0, 1}, Want: eperm},
		{Name: "process_vm_writev", Args: [6]uintptr{0x7fffffff, 0, 0, 0, 0, 1}, Want: eperm},
		{Name: "pidfd_getfd", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "kcmp", Args: [6]uintptr{0x7fffffff, 0x7fffffff}, Want: eperm},
		{Name: "process_madvise", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "madvise", Args: [6]uintptr{0, 0, 12}, Want: einval}, // MADV_MERGEABLE
		{Name: "madvise", Args: [6]uintptr{0, 0, x | 12}, Want: einval},
		{Name: "mount", Args: [6]uintptr{bad, bad, bad, 0, 0}, Want: eperm},
		{Name: "umount2", Args: [6]uintptr{bad, 0xffff}, Want: eperm},
		{Name: "pivot_root", Args: [6]uintptr{bad, bad}, Want: eperm},
		{Name: "chroot", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "open_tree", Args: [6]uintptr{bad, bad, 0xffff}, Want: eperm},
		{Name: "move_mount", Args: [6]uintptr{bad, 0, bad, 0, 0xffff}, Want: eperm},
		{Name: "fsopen", Args: [6]uintptr{bad, 0xffff}, Want: eperm},
		{Name: "fsconfig", Args: [6]uintptr{bad, 0xffff}, Want: eperm},
		{Name: "fsmount", Args: [6]uintptr{bad, 0xffff}, Want: eperm},
		{Name: "fspick", Args: [6]uintptr{bad, bad, 0xffff}, Want: eperm},
		{Name: "mount_setattr", Args: [6]uintptr{bad, bad, 0xffff}, Want: eperm},
		{Name: "name_to_handle_at", Args: [6]uintptr{bad, bad, bad, bad, 0xffff}, Want: eperm},
		{Name: "open_by_handle_at", Args: [6]uintptr{bad, bad}, Want: eperm},
		{Name: "fanotify_init", Args: [6]uintptr{0xffffffff}, Want: eperm},
		{Name: "fanotify_mark", Args: [6]uintptr{bad, 0xffffffff}, Want: eperm},
		{Name: "personality", Args: [6]uintptr{0x0040000}, Want: eperm},     // ADDR_NO_RANDOMIZE
		{Name: "personality", Args: [6]uintptr{x | 0x0400000}, Want: eperm}, // READ_IMPLIES_EXEC, high bits set
		{Name: "kexec_load", Args: [6]uintptr{0, 0, 0, 0xffff}, Want: eperm},
		{Name: "init_module", Args: [6]uintptr{bad, 0, bad}, Want: eperm},
		{Name: "finit_module", Args: [6]uintptr{bad, bad, 0xffff}, Want: eperm},
		{Name: "delete_module", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "swapon", Args: [6]uintptr{bad, 0x7fffffff}, Want: eperm},
		{Name: "quotactl", Args: [6]uintptr{bad, bad}, Want: eperm},
		{Name: "acct", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "reboot", Args: [6]uintptr{1, 2, 3}, Want: eperm},
		{Name: "settimeofday", Args: [6]uintptr{bad, bad}, Want: eperm},
		{Name: "clock_settime", Args: [6]uintptr{0x7fff, bad}, Want: eperm},
		{Name: "adjtimex", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "syslog", Args: [6]uintptr{0x7fff}, Want: eperm},
		{Name: "memfd_secret", Args: [6]uintptr{0xffff}, Want: enosys},
		{Name: "memfd_create", Args: [6]uintptr{bad, 0}, Want: enosys},
		{Name: "memfd_create", Args: [6]uintptr{bad, 0x10}, Want: enosys}, // MFD_EXEC
		{Name: "execveat", Args: [6]uintptr{bad, bad, 0, 0, 0, 0}, Want: enosys},
		{Name: "execveat", Args: [6]uintptr{bad, bad, 0, 0, 0, cookie & 0xffffffff}, Want: enosys},
		{Name: "execveat", Args: [6]uintptr{bad, bad, 0, 0, 0, cookie ^ 1<<32}, Want: enosys},
		{Name: "openat2", Args: [6]uintptr{bad, bad, 0, 0}, Want: enosys},
		{Name: "sched_setscheduler", Args: [6]uintptr{0, 1, bad}, Want: eperm},
		{Name: "sched_setscheduler", Args: [6]uintptr{0, 2 | 0x40000000, bad}, Want: eperm},
		{Name: "sched_setscheduler", Args: [6]uintptr{0, 6 | x, bad}, Want: eperm},
		{Name: "sched_setattr", Args: [6]uintptr{0, bad, 0xffff}, Want: eperm},
		{Name: "prctl", Args: [6]uintptr{0x59616d61, 0x7fff}, Want: eperm}, // PR_SET_PTRACER
		{Name: "prctl", Args: [6]uintptr{35, 0xffff, 1}, Want: eperm},      // PR_SET_MM
		{Name: "prctl", Args: [6]uintptr{67, 0}, Want: eperm},              // PR_SET_MEMORY_MERGE
		{Name: "prctl", Args: [6]uintptr{47, 4, 1}, Want: eperm},           // PR_CAP_AMBIENT
		{Name: "seccomp", Args: [6]uintptr{1, 0, bad}, Want: einval},       // SECCOMP_SET_MODE_FILTER
		{Name: "seccomp", Args: [6]uintptr{1 | x, 8 | x, bad}, Want: einval},
		{Name: "prctl", Args: [6]uintptr{22, 2, bad}, Want: einval}, // PR_SET_SECCOMP
		{Name: "prctl", Args: [6]uintptr{22 | x, 2, bad}, Want: einval},
		{Name: "ioctl", Args: [6]uintptr{bad, 0x5412}, Want: eperm},     // TIOCSTI
		{Name: "ioctl", Args: [6]uintptr{bad, x | 0x5412}, Want: eperm}, // CVE-2019-10063
		{Name: "ioctl", Args: [6]uintptr{bad, 0xffffffff<<32 | 0x541c}, Want: eperm},
		{Name: "ioctl", Args: [6]uintptr{bad, 0x5423}, Want: eperm},
		{Name: "ioctl", Args: [6]uintptr{bad, 0xb702}, Want: enotty}, // NS_GET_PARENT
		{Name: "fchmod", Args: [6]uintptr{bad, 0o4755}, Want: eperm},
		{Name: "fchmod", Args: [6]uintptr{bad, x | 0o2755}, Want: eperm},
		{Name: "fchmodat", Args: [6]uintptr{bad, bad, 0o4755}, Want: eperm},
		{Name: "fchmodat2", Args: [6]uintptr{bad, bad, 0o4755}, Want: eperm},
		{Name: "openat", Args: [6]uintptr{bad, bad, 0o100, 0o4755}, Want: eperm},
		{Name: "openat", Args: [6]uintptr{bad, bad, 0o20200000, 0o2755}, Want: eperm}, // O_TMPFILE
		{Name: "mkdirat", Args: [6]uintptr{bad, bad, 0o2755}, Want: eperm},
		{Name: "mknodat", Args: [6]uintptr{bad, bad, 0o010644}, Want: eperm}, // FIFO
		{Name: "mknodat", Args: [6]uintptr{bad, bad, 0o020644}, Want: eperm}, // character device
		{Name: "mknodat", Args: [6]uintptr{bad, bad, 0o060644}, Want: eperm}, // block device
		{Name: "mknodat", Args: [6]uintptr{bad, bad, 0o104755}, Want: eperm}, // setuid regular file
		{Name: "setsockopt", Args: [6]uintptr{bad, 1, 50}, Want: eperm},      // SO_ATTACH_BPF
		{Name: "setsockopt", Args: [6]uintptr{bad, 6 | x, 31}, Want: eperm},  // TCP_ULP
		{Name: "socket", Args: [6]uintptr{16, 3, 0}, Want: eafnosupport},     // AF_NETLINK
		{Name: "socket", Args: [6]uintptr{17, 3, 0}, Want: eafnosupport},     // AF_PACKET
		{Name: "socket", Args: [6]uintptr{38, 5, 0}, Want: eafnosupport},     // AF_ALG
		{Name: "socket", Args: [6]uintptr{40, 1, 0}, Want: eafnosupport},     // AF_VSOCK
		{Name: "socket", Args: [6]uintptr{x | 40, 1, 0}, Want: eafnosupport}, //
		{Name: "socket", Args: [6]uintptr{15, 3, 2}, Want: eafnosupport},     // AF_KEY
		{Name: "socket", Args: [6]uintptr{33, 2, 2}, Want: eafnosupport},     // AF_RXRPC
		{Name: "socket", Args: [6]uintptr{2, 3, 1}, Want: eafnosupport},      // raw
		{Name: "socket", Args: [6]uintptr{2, 10, 0}, Want: eafnosupport},     // SOCK_PACKET
		{Name: "socket", Args: [6]uintptr{1, 3, 0}, Want: eafnosupport},      // unix raw
		{Name: "socketpair", Args: [6]uintptr{2, 1, 0}, Want: eafnosupport},  //
		{Name: "socketpair", Args: [6]uintptr{30, 1, 0}, Want: eafnosupport}, // AF_TIPC
		{Name: "prctl", Args: [6]uintptr{0x7ffffff, 0}, Want: einval},        // unknown
		{Name: "statmount", Args: [6]uintptr{bad, bad, 1, 0xff}, Want: enosys},
	}
	if runtime.GOARCH == "amd64" {
		list = append(list,
			call{Name: "modify_ldt", Args: [6]uintptr{0x7fff}, Want: eperm},
			call{Name: "iopl", Args: [6]uintptr{99}, Want: eperm},
			call{Name: "chmod", Args: [6]uintptr{bad, 0o4755}, Want: eperm},
			call{Name: "open", Args: [6]uintptr{bad, 0o100, 0o4755}, Want: eperm},
			call{Name: "creat", Args: [6]uintptr{bad, 0o4755}, Want: eperm},
			call{Name: "mkdir", Args: [6]uintptr{bad, 0o2755}, Want: eperm},
			call{Name: "mknod", Args: [6]uintptr{bad, 0o010644}, Want: eperm},
		)
	}
	return list
}

func fill(t *testing.T, list []call) []call {
	a, err := seccomp.ParseArch(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		nr, ok := a.Number(list[i].Name)
		if !ok {
			t.Fatalf("no system call %q", list[i].Name)
		}
		list[i].Nr = nr
	}
	return list
}

// TestDenied installs the filter in a process of its own and makes the calls.
// The same calls are made without the filter first: those which fail there in
// the same way prove nothing about the filter, and there must be few.
func TestDenied(t *testing.T) {
	onlyB := fill(t, []call{
		{Name: "socket", Args: [6]uintptr{2, 1, 0}, Want: eafnosupport},
		{Name: "socket", Args: [6]uintptr{1, 1, 0}, Want: eafnosupport},
		{Name: "socketpair", Args: [6]uintptr{1, 2, 0, bad}, Want: eafnosupport},
		{Name: "prctl", Args: [6]uintptr{1, 0}, Want: eperm},          // PR_SET_PDEATHSIG 0
		{Name: "prctl", Args: [6]uintptr{1 | 1<<32, 15}, Want: eperm}, // high bits set
		{Name: "connect", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "bind", Args: [6]uintptr{bad}, Want: eperm},
		{Name: "pidfd_open", Args: [6]uintptr{1, 0xffff}, Want: eperm},
		{Name: "prlimit64", Args: [6]uintptr{0x7fffffff, 0xffff}, Want: eperm},
		{Name: "sched_setaffinity", Args: [6]uintptr{0x7fffffff, 8, bad}, Want: eperm},
		{Name: "sched_setscheduler", Args: [6]uintptr{0x7fffffff, 0, bad}, Want: eperm},
		{Name: "openat", Args: [6]uintptr{bad, bad, 3}, Want: eacces},
		{Name: "inotify_init1", Args: [6]uintptr{0xffff}, Want: enosys},
		{Name: "inotify_add_watch", Args: [6]uintptr{bad, bad, 1}, Want: enosys},
		{Name: "getxattr", Args: [6]uintptr{bad, bad, bad, 1}, Want: enotsup},
		{Name: "llistxattr", Args: [6]uintptr{bad, bad, 1}, Want: enotsup},
		{Name: "shmget", Args: [6]uintptr{1, 0, 0}, Want: enosys},
		{Name: "mq_open", Args: [6]uintptr{bad}, Want: enosys},
	})
	onlyC := fill(t, []call{
		{Name: "socket", Args: [6]uintptr{2, 2, 1}, Want: eprotonosupport},   // ICMP
		{Name: "socket", Args: [6]uintptr{2, 1, 262}, Want: eprotonosupport}, // MPTCP
	})
	// What root may not do without the filter either, or what this kernel lacks.
	sameAnyway := map[string]bool{"execveat": true, "iopl": true}
	for _, uid := range []uint32{0, 65534} {
		if uid != uint32(os.Getuid()) && os.Getuid() != 0 {
			continue // an unprivileged run of the tests covers the unprivileged half
		}
		for _, tr := range []tier.Tier{tier.B, tier.C} {
			list := fill(t, denials(t))
			if tr == tier.B {
				list = append(list, onlyB...)
			} else {
				list = append(list, onlyC...)
			}
			t.Run(fmt.Sprintf("%s/uid%d", tr, uid), func(t *testing.T) {
				got := runHelper(t, "calls:"+tr.String(), list, uid)
				control := runHelper(t, "calls", list, uid)
				same := 0
				for i, g := range got {
					want := g.Want
					if tr == tier.B && (g.Name == "socket" || g.Name == "socketpair") {
						want = eafnosupport
					}
					if g.Errno != want {
						t.Errorf("%s%x: got errno %d, want %d", g.Name, g.Args, g.Errno, want)
					}
					if control[i].Errno == want && !sameAnyway[g.Name] {
						same++
						t.Logf("%s%x: errno %d without the filter, too", g.Name, g.Args, want)
					}
				}
				if same > len(list)/3 {
					t.Errorf("%d of %d calls prove nothing about the filter", same, len(list))
				}
			})
		}
	}
}

// TestCookie runs execveat with the cookie under the filter: it must reach the
// kernel's own checks.
func TestCookie(t *testing.T) {
	list := fill(t, []call{
		{Name: "execveat", Args: [6]uintptr{bad, bad, 0, 0, 0, cookie}},
		{Name: "memfd_create", Args: [6]uintptr{bad, 8}},
		{Name: "prctl", Args: [6]uintptr{1, 9}},
		{Name: "personality", Args: [6]uintptr{0xffffffff}},
		{Name: "fchmod", Args: [6]uintptr{bad, 0o1755}},
		{Name: "openat", Args: [6]uintptr{bad, bad, 0, 0o4755}}, // mode without O_CREAT
	})
	for i, c := range runHelper(t, "calls:c", list, uint32(os.Getuid())) {
		want := []syscall.Errno{syscall.EFAULT, syscall.EFAULT, 0, 0, syscall.EBADF, syscall.EFAULT}[i]
		if syscall.Errno(c.Errno) != want {
			t.Errorf("%s%x: got %v, want %v", c.Name, c.Args, syscall.Errno(c.Errno), want)
		}
	}
}

// TestPrograms runs ordinary programs under the filter of tier C and compares
// with a run without. Those that are not installed are left out, but a shell
// and coreutils are everywhere.
func TestPrograms(t *testing.T) {
	const c = "#include <stdio.h>\nint main(){puts(\"hello\");return 0;}\n"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello.c"), []byte(c), 0o644); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, argv := range [][]string{
		{"sh", "-c", "echo a | cat; for i in 1 2 3; do (echo $i) & wait; done; test -d / && pwd >/dev/null"},
		{"ls", "-l", "/"}, {"cp", "-a", "hello.c", "copy.c"}, {"touch", "x"}, {"sort", "hello.c"},
		{"bash", "-c", "cat <(echo sub); read x < <(echo y); echo $x; [[ -t 0 ]] || echo notty"},
		{"tar", "cf", "a.tar", "hello.c"}, {"tar", "xf", "a.tar"},
		{"python3", "-c", "import os,subprocess,threading,socket,ssl,sqlite3,asyncio,multiprocessing as m\n" +
			"t=threading.Thread(target=print,args=('thread',));t.start();t.join()\n" +
			"print(subprocess.check_output(['echo','child']).decode())\n" +
			"a,b=socket.socketpair();a.send(b'x');print(b.recv(1))\n" +
			"s=socket.socket();s.bind(('127.0.0.1',0));s.listen()\n" +
			"asyncio.run(asyncio.create_subprocess_exec('true'))"},
		{"python3", "-c", "from multiprocessing import Pool\nif __name__=='__main__':\n with Pool(2) as p: print(p.map(abs,[-1,2]))"},
		{"node", "-e", "const c=require('child_process').execSync('echo hi');require('net').createServer().listen(0,'127.0.0.1',function(){this.close();console.log(''+c)})"},
		{"node", "-e", "new (require('worker_threads').Worker)('console.log(1)',{eval:true});require('fs').promises.readFile('hello.c').then(()=>fetch('http://127.0.0.1:1')).catch(()=>console.log('refused'))"},
		{"gcc", "-o", "hello", "hello.c"}, {"./hello"},
		{"git", "init", "-q", "repo"}, {"git", "-C", "repo", "status"},
		{"perl", "-e", "open(F,'hello.c');print <F>;system('true')==0 or die"},
		{"curl", "--version"}, {"find", "/etc", "-maxdepth", "1"}, {"sha256sum", "hello.c"}, {"gzip", "-k", "hello.c"},
		{"make", "--version"}, {"id"}, {"env"}, {"date"}, {"timeout", "5", "true"}, {"nice", "true"}, {"xargs", "echo"},
		{"java", "-version"}, {"go", "version"}, {"awk", "BEGIN{print 1}"}, {"sed", "s/a/b/", "hello.c"}, {"ps"}, {"script", "-qec", "true", "/dev/null"},
	} {
		path := argv[0]
		if !strings.Contains(path, "/") {
			var err error
			if path, err = exec.LookPath(argv[0]); errors.Is(err, exec.ErrNotFound) {
				continue
			}
		}
		run := func(filter bool) (string, error) {
			cmd := exec.Command(path, argv[1:]...)
			if filter {
				cmd = exec.Command("/proc/self/exe", append([]string{path}, argv[1:]...)...)
			}
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "HOME="+dir, asHelper+"=exec:c")
			if !filter {
				cmd.Env = append(os.Environ(), "HOME="+dir)
			}
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := run(true); err != nil {
			if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(argv[0], "./") {
				continue
			}
			plain, perr := run(false)
			if perr == nil {
				t.Errorf("%s: %v under the filter, fine without\n%s\nwithout: %s", strings.Join(argv, " "), err, out, plain)
			} else {
				t.Logf("%s: %v without the filter, too", strings.Join(argv, " "), perr)
			}
			continue
		}
		ran++
	}
	t.Logf("%d programs ran", ran)
	if ran < 10 {
		t.Errorf("only %d programs ran", ran)
	}
}

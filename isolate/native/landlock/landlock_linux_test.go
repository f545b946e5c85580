package landlock

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"palyra/isolate/internal/sys"
)

const asHelper = "PALYRA_LANDLOCK_HELPER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(asHelper); mode != "" {
		helper(mode == "confined")
	}
	os.Exit(m.Run())
}

// target tells the helper what to try; everything in it belongs to the test.
type target struct {
	Dir, TCP, Abstract string
	PID                int
}

// helper tries every operation, confined or not, and prints what came of it.
// It stands in Dir, which has r/ (granted r), rw/, rx/, one file "only" granted
// rw by itself, and out/ (not granted).
func helper(confined bool) {
	runtime.LockOSThread()
	var tg target
	die := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "helper:", err)
			os.Exit(99)
		}
	}
	die(json.Unmarshal([]byte(os.Args[1]), &tg))
	in := func(name string) string { return filepath.Join(tg.Dir, name) }
	abi, err := ABI()
	die(err)
	var grants []Grant
	for name, access := range map[string]string{"r": "r", "rw": "rw", "rx": "rx", "only": "rw"} {
		fd, err := unix.Open(in(name), unix.O_PATH|unix.O_CLOEXEC, 0)
		die(err)
		grants = append(grants, Grant{Access: access, Path: in(name), File: os.NewFile(uintptr(fd), name)})
	}
	rs, _ := Plan(abi, grants)
	f, err := Build(rs)
	die(err)
	die(sys.NoNewPrivs())
	if confined {
		die(sys.LandlockRestrict(int(f.Fd())))
	}
	errno := func(err error) int {
		if err == nil {
			return 0
		}
		if e, ok := errors.AsType[syscall.Errno](err); ok {
			return int(e)
		}
		return -1
	}
	open := func(name string, flags int) int {
		fd, err := unix.Open(name, flags, 0o600)
		unix.Close(fd)
		return errno(err)
	}
	// Threads that Go starts from here on are confined too or not used: all calls
	// below are made on this locked thread.
	out := map[string]int{
		"read r":         open(in("r/file"), unix.O_RDONLY),
		"list r":         open(in("r"), unix.O_RDONLY|unix.O_DIRECTORY),
		"write r":        open(in("r/file"), unix.O_WRONLY),
		"create r":       open(in("r/new"), unix.O_CREAT|unix.O_WRONLY),
		"truncate r":     errno(unix.Truncate(in("r/file"), 1)),
		"unlink r":       errno(unix.Unlink(in("r/gone"))),
		"exec r":         start(in("r/true")),
		"read out":       open(in("out/file"), unix.O_RDONLY),
		"list out":       open(in("out"), unix.O_RDONLY|unix.O_DIRECTORY),
		"write out":      open(in("out/file"), unix.O_WRONLY),
		"create out":     open(in("out/new"), unix.O_CREAT|unix.O_WRONLY),
		"dotdot":         open(in("rw/../out/file"), unix.O_RDONLY),
		"symlink":        open(in("rw/link"), unix.O_RDONLY),
		"create rw":      open(in("rw/new"), unix.O_CREAT|unix.O_WRONLY),
		"mkdir rw":       errno(unix.Mkdir(in("rw/dir"), 0o700)),
		"truncate rw":    errno(unix.Truncate(in("rw/file"), 1)),
		"exec rw":        start(in("rw/true")),
		"mkfifo rw":      errno(unix.Mkfifo(in("rw/fifo"), 0o600)),
		"link out to rw": errno(unix.Link(in("out/file"), in("rw/hard"))),
		"write only":     open(in("only"), unix.O_WRONLY),
		"read only":      open(in("only"), unix.O_RDONLY),
		"read rx":        open(in("rx/file"), unix.O_RDONLY),
		"write rx":       open(in("rx/file"), unix.O_WRONLY),
		"exec rx":        start(in("rx/true")),
		"signal":         errno(unix.Kill(tg.PID, 0)),
		"connect tcp":    tcp(tg.TCP, unix.Connect),
		"bind tcp":       tcp("0", unix.Bind),
		"abstract":       abstract(tg.Abstract),
	}
	die(json.NewEncoder(os.Stdout).Encode(out))
	syscall.Exit(0) // os.Exit sleeps for a second under the race detector
}

// start executes a program from a child of this thread, as Go's os/exec would
// choose a thread by itself.
func start(path string) int {
	pid, err := syscall.ForkExec(path, []string{"true"}, nil)
	if err != nil {
		return int(err.(syscall.Errno))
	}
	syscall.Wait4(pid, nil, 0, nil)
	return 0
}

func tcp(port string, f func(int, unix.Sockaddr) error) int {
	n, _ := strconv.Atoi(port)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(fd)
	if err := f(fd, &unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return int(err.(syscall.Errno))
	}
	return 0
}

func abstract(name string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return int(err.(syscall.Errno))
	}
	return 0
}

// TestEnforced tables what a confined process gets for each operation, next to
// what an unconfined one gets, as this user and, if this is root, as another.
func TestEnforced(t *testing.T) {
	abi, err := ABI()
	if err != nil {
		t.Fatalf("this kernel ought to have Landlock: %v", err)
	}
	const eperm, eacces, exdev = 1, 13, 18
	want := map[string]int{ // errno when confined; without, all succeed
		"read r": 0, "list r": 0, "write r": eacces, "create r": eacces, "truncate r": eacces, "unlink r": eacces, "exec r": eacces,
		"read out": eacces, "list out": eacces, "write out": eacces, "create out": eacces, "dotdot": eacces, "symlink": eacces,
		"create rw": 0, "mkdir rw": 0, "truncate rw": 0, "exec rw": eacces, "mkfifo rw": eacces, "link out to rw": exdev,
		"write only": 0, "read only": 0,
		"read rx": 0, "write rx": eacces, "exec rx": 0,
		"signal": eperm, "connect tcp": eacces, "bind tcp": eacces, "abstract": eperm,
	}
	since := map[string]int{"truncate r": 3, "connect tcp": 4, "bind tcp": 4, "signal": 6, "abstract": 6}
	for op, v := range since {
		if abi < v {
			t.Logf("ABI %d: %s is not confined", abi, op)
			want[op] = 0
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	name := fmt.Sprintf("@palyra-landlock-%d", os.Getpid())
	un, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer un.Close()
	uids := []int{os.Getuid()}
	if os.Getuid() == 0 {
		uids = append(uids, 65534)
	}
	for _, uid := range uids {
		t.Run(fmt.Sprintf("uid%d", uid), func(t *testing.T) {
			// Somebody of the same user to send a signal to.
			victim := exec.Command("sleep", "1000")
			victim.SysProcAttr = &syscall.SysProcAttr{Credential: credential(uid)}
			if err := victim.Start(); err != nil {
				t.Fatal(err)
			}
			defer victim.Wait()
			defer victim.Process.Kill()
			for _, mode := range []string{"open", "confined"} {
				dir := lay(t, uid)
				arg, err := json.Marshal(target{dir, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port), name, victim.Process.Pid})
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(filepath.Join(dir, "helper"), string(arg))
				cmd.Dir = "/"
				cmd.Env = []string{asHelper + "=" + mode}
				cmd.Stderr = os.Stderr
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(uid)}
				b, err := cmd.Output()
				if err != nil {
					t.Fatalf("%s helper: %v", mode, err)
				}
				var got map[string]int
				if err := json.Unmarshal(b, &got); err != nil {
					t.Fatal(err)
				}
				for op, w := range want {
					if mode == "open" {
						w = 0
					}
					g, ok := got[op]
					if !ok || g != w {
						t.Errorf("%s: %s: got errno %d (%t), want %d", mode, op, g, ok, w)
					}
				}
				if len(got) != len(want) {
					t.Errorf("helper tried %d operations, want %d", len(got), len(want))
				}
			}
		})
	}
}

func credential(uid int) *syscall.Credential {
	if uid == os.Getuid() {
		return nil
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
}

// lay makes the directory that the helper stands in, owned by uid.
func lay(t *testing.T, uid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "landlock") // not under t.TempDir: its parents are 0700 of another user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	// A static program without loader: the ruleset grants no libraries.
	files := map[string][]byte{"helper": self, "r/true": tiny(), "rx/true": tiny(), "rw/true": tiny()}
	for _, name := range []string{"r/file", "r/gone", "rw/file", "rx/file", "out/file", "only"} {
		files[name] = []byte("content")
	}
	for name, b := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "rw"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../out/file", filepath.Join(dir, "rw/link")); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || uid == os.Getuid() {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestConstants holds our copies to golang.org/x/sys.
func TestConstants(t *testing.T) {
	for _, c := range [][2]uint64{
		{FSExecute, unix.LANDLOCK_ACCESS_FS_EXECUTE}, {FSWriteFile, unix.LANDLOCK_ACCESS_FS_WRITE_FILE},
		{FSReadFile, unix.LANDLOCK_ACCESS_FS_READ_FILE}, {FSReadDir, unix.LANDLOCK_ACCESS_FS_READ_DIR},
		{FSRemoveDir, unix.LANDLOCK_ACCESS_FS_REMOVE_DIR}, {FSRemoveFile, unix.LANDLOCK_ACCESS_FS_REMOVE_FILE},
		{FSMakeChar, unix.LANDLOCK_ACCESS_FS_MAKE_CHAR}, {FSMakeDir, unix.LANDLOCK_ACCESS_FS_MAKE_DIR},
		{FSMakeReg, unix.LANDLOCK_ACCESS_FS_MAKE_REG}, {FSMakeSock, unix.LANDLOCK_ACCESS_FS_MAKE_SOCK},
		{FSMakeFIFO, unix.LANDLOCK_ACCESS_FS_MAKE_FIFO}, {FSMakeBlock, unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK},
		{FSMakeSym, unix.LANDLOCK_ACCESS_FS_MAKE_SYM}, {FSRefer, unix.LANDLOCK_ACCESS_FS_REFER},
		{FSTruncate, unix.LANDLOCK_ACCESS_FS_TRUNCATE}, {FSIoctlDev, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
		{FSResolveUnix, unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
		{NetBindTCP, unix.LANDLOCK_ACCESS_NET_BIND_TCP}, {NetConnectTCP, unix.LANDLOCK_ACCESS_NET_CONNECT_TCP},
		{NetBindUDP, unix.LANDLOCK_ACCESS_NET_BIND_UDP}, {NetConnectSendUDP, unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP},
		{ScopeAbstractUnix, unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}, {ScopeSignal, unix.LANDLOCK_SCOPE_SIGNAL},
	} {
		if c[0] != c[1] {
			t.Errorf("got %#x, want %#x", c[0], c[1])
		}
	}
}

// A kind that is given is believed: the kernel refuses rights of a directory on a
// file, and a directory as something else gets those of files only.
func TestKind(t *testing.T) {
	abi, err := ABI()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		give Kind
		want Kind
		ok   bool
	}{{dir, Unknown, Directory, true}, {dir, Directory, Directory, true}, {path, Unknown, Other, true}, {path, Other, Other, true}, {path, Directory, Other, false}} {
		f, err := os.Open(c.path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if k, err := KindOf(f); err != nil || k != c.want {
			t.Errorf("%s is %v, %v", c.path, k, err)
		}
		rs, _ := Plan(abi, []Grant{{Access: "rwx", Path: c.path, File: f, Kind: c.give}})
		b, err := Build(rs)
		if (err == nil) != c.ok {
			t.Errorf("%s as %v: %v", c.path, c.give, err)
		}
		if err == nil {
			b.Close()
		}
	}
}

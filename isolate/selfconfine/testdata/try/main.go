// Command try makes one operation, confined or not, and prints how it ended.
//
//	try inside|internet|outside OPERATION DIR
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"palyra/isolate/selfconfine"
)

func main() {
	where, op, dir := os.Args[1], os.Args[2], os.Args[3]
	f, ok := operations[op]
	if !ok {
		fmt.Println("no such operation")
		os.Exit(2)
	}
	try := f(dir) // what must be open before
	if where == "inside" {
		err := selfconfine.Apply(selfconfine.Config{Read: []string{filepath.Join(dir, "read"), filepath.Join(dir, "missing")},
			Write: []string{filepath.Join(dir, "write")}, KeepCapabilities: 1 << 2})
		if err != nil {
			fmt.Println("apply:", err)
			os.Exit(2)
		}
	}
	if where == "internet" {
		err := selfconfine.Apply(selfconfine.Config{Read: []string{filepath.Join(dir, "read")}, Internet: true})
		if err != nil {
			fmt.Println("apply:", err)
			os.Exit(2)
		}
	}
	err := try()
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		fmt.Println(map[syscall.Errno]string{syscall.EPERM: "EPERM", syscall.EACCES: "EACCES", syscall.EINVAL: "EINVAL", syscall.ENOSYS: "ENOSYS"}[e], e)
		return
	}
	fmt.Println(err)
}

// now returns an operation that needs nothing before.
func now(f func(dir string) error) func(string) func() error {
	return func(dir string) func() error { return func() error { return f(dir) } }
}

func raw(nr uintptr, a ...uintptr) error {
	var x [6]uintptr
	copy(x[:], a)
	r, _, e := syscall.Syscall6(nr, x[0], x[1], x[2], x[3], x[4], x[5])
	if e != 0 {
		return e
	}
	_ = r
	return nil
}

func socket(family, kind int) func(string) func() error { return protocol(family, kind, 0) }

// connect connects to itself, over both protocols of the Internet.
func connect(string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer u.Close()
	_, err = u.WriteTo([]byte("x"), u.LocalAddr())
	return err
}

func leaveRoot(string) error {
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 { // threads that are there already
		wg.Go(func() { runtime.LockOSThread(); <-stop })
	}
	defer wg.Wait()
	defer close(stop)
	if err := selfconfine.LeaveRoot(0); err != nil {
		return err
	}
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		return err
	}
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		for _, line := range []string{"\nUid:\t65534\t65534\t65534\t65534\n", "\nGid:\t65534\t65534\t65534\t65534\n", "\nGroups:\t \n", "\nCapEff:\t0000000000000000\n"} {
			if !strings.Contains(string(b), line) {
				return fmt.Errorf("%s lacks %q: %s", f, line, b)
			}
		}
	}
	if syscall.Setuid(0) == nil {
		return errors.New("it is root again")
	}
	return nil
}

func protocol(family, kind, proto int) func(string) func() error {
	return now(func(string) error {
		fd, err := syscall.Socket(family, kind, proto)
		if err == nil {
			syscall.Close(fd)
		}
		return err
	})
}

func write(path string, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString("x"); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return f.Sync()
}

func read(path string) error {
	_, err := os.ReadFile(path)
	return err
}

var operations = map[string]func(dir string) func() error{
	"start a program": now(func(string) error {
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err == nil {
			p.Wait()
		}
		return err
	}),
	"execve":    now(func(string) error { return syscall.Exec("/bin/true", []string{"true"}, nil) }),
	"be traced": now(func(string) error { return raw(syscall.SYS_PTRACE, 0) }),
	"unshare":   now(func(string) error { return syscall.Unshare(syscall.CLONE_NEWUTS) }),
	"mount":     now(func(d string) error { return syscall.Mount(d, d, "", syscall.MS_BIND, "") }),
	"bpf": now(func(string) error {
		return raw(map[string]uintptr{"amd64": 321, "arm64": 280}[runtime.GOARCH], 0, 0, 0)
	}),
	"io_uring":         now(func(string) error { return raw(425, 1, 0) }),
	"signal":           now(func(string) error { return syscall.Kill(os.Getppid(), 0) }),
	"code":             now(func(string) error { _, err := syscall.Mmap(-1, 0, 4096, 5, 0x22); return err }),
	"make it code":     makeCode,
	"tcp socket":       socket(syscall.AF_INET, syscall.SOCK_STREAM),
	"udp socket":       socket(syscall.AF_INET, syscall.SOCK_DGRAM),
	"unix socket":      socket(syscall.AF_UNIX, syscall.SOCK_STREAM),
	"netlink":          socket(syscall.AF_NETLINK, syscall.SOCK_RAW),
	"raw socket":       protocol(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP),
	"ping socket":      protocol(syscall.AF_INET, syscall.SOCK_DGRAM, syscall.IPPROTO_ICMP),
	"packet socket":    socket(syscall.AF_PACKET, syscall.SOCK_DGRAM),
	"multipath socket": protocol(syscall.AF_INET, syscall.SOCK_STREAM, 262),
	"connect":          now(connect),
	"leave root":       now(leaveRoot),
	"read outside":     now(func(d string) error { return read(filepath.Join(d, "secret")) }),
	"read":             now(func(d string) error { return read(filepath.Join(d, "read", "file")) }),
	"write in read":    now(func(d string) error { return write(filepath.Join(d, "read", "file"), 0o600) }),
	"write outside":    now(func(d string) error { return write(filepath.Join(d, "new"), 0o600) }),
	"write":            now(func(d string) error { return write(filepath.Join(d, "write", "file"), 0o640) }),
	"setuid":           now(func(d string) error { return syscall.Chmod(filepath.Join(d, "write", "setuid"), 0o4755) }),
	"move": now(func(d string) error {
		return os.Rename(filepath.Join(d, "write", "a", "f"), filepath.Join(d, "write", "b", "f"))
	}),
	"raise a limit": now(func(string) error {
		return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 100, Max: 100})
	}),
	"own status":   now(func(string) error { return read("/proc/self/status") }),
	"other status": now(func(string) error { return read("/proc/1/status") }),
	"pair": now(func(string) error {
		_, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
		return err
	}),
	"datagram pair": now(func(string) error {
		_, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
		return err
	}),
	"unsent": now(func(string) error {
		p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err == nil {
			_, err = syscall.Write(p[0], []byte("x"))
		}
		if err != nil {
			return err
		}
		n, err := unix.IoctlGetInt(p[0], unix.TIOCOUTQ)
		if err == nil && n == 0 {
			err = errors.New("nothing waits")
		}
		return err
	}),
	"threads": threads,
	"serve":   serve,
	"report": now(func(string) error {
		b, err := json.Marshal(selfconfine.Report())
		fmt.Println(string(b))
		return err
	}),
}

func makeCode(string) func() error {
	return func() error {
		m, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, 0x22)
		if err != nil {
			return err
		}
		return syscall.Mprotect(m, syscall.PROT_READ|syscall.PROT_EXEC)
	}
}

// threads tries on threads that were there before, and on new ones.
func threads(string) func() error {
	var start, done sync.WaitGroup
	gate := make(chan struct{})
	results := make(chan error, 16)
	one := func() {
		runtime.LockOSThread()
		start.Done()
		<-gate
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		if err == nil {
			syscall.Close(fd)
		}
		results <- err
		done.Done()
	}
	for range 8 {
		start.Add(1)
		done.Add(1)
		go one()
	}
	start.Wait()
	return func() error {
		for range 8 {
			start.Add(1)
			done.Add(1)
			go one()
		}
		start.Wait()
		close(gate)
		done.Wait()
		first := <-results
		for range 15 {
			if err := <-results; err != first {
				return fmt.Errorf("threads differ: %v and %v", err, first)
			}
		}
		return first
	}
}

// serve answers one connection on a socket from before.
func serve(dir string) func() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return func() error { return err }
	}
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return func() error { return err }
	}
	return func() error {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
		c.Close()
		b, err := io.ReadAll(client)
		if err == nil && string(b) != "hello" {
			err = errors.New("answer is cut")
		}
		return err
	}
}

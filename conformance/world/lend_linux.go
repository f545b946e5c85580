package world

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Lent is a world beside a program that isn't a test. The program serves it, and starts other
// programs in it; it stays itself where it is. Nothing of it outlives the program.
type Lent struct {
	*World
	namespaces []namespace
}

// namespace is one that programs enter, by an option of nsenter(1).
type namespace struct {
	option string
	file   *os.File
}

// lender is the stage in which a process makes a world for the one that started it, and ends.
const lender = "lend"

// lendFD is the socket on which it hands the world over.
const lendFD = 3

// lendNamespaces are what a lender hands over before the sockets; the last where it has one alone.
var lendNamespaces = []struct{ option, path string }{{"--net", "/proc/thread-self/ns/net"}, {"--mount", "/proc/thread-self/ns/mnt"}, {"--user", "/proc/thread-self/ns/user"}}

// Lend makes a world whose files are in dir, which every user can read. Main of the program has to
// begin with [Lending].
func Lend(dir string) (*Lent, error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	c := exec.Command("/proc/self/exe")
	c.Stderr, c.ExtraFiles = os.Stderr, []*os.File{theirs}
	c.Env = append(os.Environ(), stageVar+"="+lender, dirVar+"="+dir)
	c.SysProcAttr = inNamespaces()
	runtime.LockOSThread() // or Pdeathsig counts the end of whichever thread starts it
	defer runtime.UnlockOSThread()
	err = c.Start()
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("make a world: %w", err)
	}
	files, text, err := receive(ours)
	if err := errors.Join(err, c.Wait()); err != nil {
		return nil, fmt.Errorf("make a world: %w", err)
	}
	l := new(Lent)
	for i, f := range files[:len(lendNamespaces)] {
		if o := lendNamespaces[i].option; o != "--user" || os.Geteuid() != 0 {
			l.namespaces = append(l.namespaces, namespace{o, f})
		} else {
			f.Close()
		}
	}
	var sockets []string
	for i, what := range strings.Fields(text) {
		fd, err := syscall.Dup(int(files[len(lendNamespaces)+i].Fd())) // start's own
		if err != nil {
			return nil, os.NewSyscallError("dup", err)
		}
		files[len(lendNamespaces)+i].Close()
		sockets = append(sockets, fmt.Sprintf("%s=%d", what, fd))
	}
	l.World, err = start(dir, strings.Join(sockets, " "))
	return l, err
}

// Enter returns the command line that runs argv in the world, in a directory and as a user, whom
// the caller is if it isn't root.
func (l *Lent) Enter(dir string, uid, gid int, argv []string) []string {
	out := []string{"nsenter", "--wdns=" + dir}
	for _, n := range l.namespaces {
		out = append(out, fmt.Sprintf("%s=/proc/%d/fd/%d", n.option, os.Getpid(), n.file.Fd()))
		if n.option == "--user" {
			out = append(out, "--preserve-credentials")
		}
	}
	if os.Geteuid() == 0 && uid != 0 {
		out = append(out, "--setuid="+strconv.Itoa(uid), "--setgid="+strconv.Itoa(gid))
	}
	return append(append(out, "--"), argv...)
}

// Lending makes a world for the program that started this one for it, and reports whether it did:
// then main has nothing more to do.
func Lending() bool {
	if os.Getenv(stageVar) != lender {
		return false
	}
	if err := lend(os.Getenv(dirVar)); err != nil {
		fmt.Fprintln(os.Stderr, "world:", err)
		os.Exit(1)
	}
	return true
}

func lend(dir string) error {
	runtime.LockOSThread()
	sockets, err := surround(dir)
	if err != nil {
		return err
	}
	var fds []int
	for _, n := range lendNamespaces {
		f, err := os.Open(n.path)
		if err != nil {
			return err
		}
		fds = append(fds, int(f.Fd()))
	}
	var names []string
	for _, s := range strings.Fields(sockets) {
		what, number, _ := strings.Cut(s, "=")
		fd, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		names, fds = append(names, what), append(fds, fd)
	}
	return os.NewSyscallError("sendmsg", syscall.Sendmsg(lendFD, []byte(strings.Join(names, " ")), syscall.UnixRights(fds...), nil, 0))
}

// receive takes what a lender hands over: files, and the names of those behind the namespaces.
func receive(from *net.UnixConn) ([]*os.File, string, error) {
	b, oob := make([]byte, 4096), make([]byte, syscall.CmsgSpace(4*64))
	n, oobn, _, _, err := from.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, "", err
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return nil, "", fmt.Errorf("the world's maker ended: %w", errors.Join(err, os.ErrInvalid))
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err == nil && len(fds) != len(lendNamespaces)+len(strings.Fields(string(b[:n]))) {
		err = errors.New("descriptors without names")
	}
	var files []*os.File
	for _, fd := range fds {
		syscall.CloseOnExec(fd)
		files = append(files, os.NewFile(uintptr(fd), "world"))
	}
	return files, string(b[:n]), err
}

func socketpair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	f := os.NewFile(uintptr(fds[0]), "world")
	defer f.Close()
	c, err := net.FileConn(f)
	theirs = os.NewFile(uintptr(fds[1]), "world")
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return c.(*net.UnixConn), theirs, nil
}

// inNamespaces are the attributes of a process that makes a world.
func inNamespaces() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		a.AmbientCaps = []uintptr{unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_SYS_ADMIN}
	}
	return a
}

package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ipcProbes are cases 32 to 38: rendezvous that no file permission guards.
var ipcProbes = map[string]probe{
	"key-search":  searchKey,
	"key-request": requestKey,
	"key-list":    listKey,
	"key-add":     addKey,
	"key-parent":  keyToParent,
	"shm":         sharedMemory,
	"mq":          messageQueue,
	"mq-create":   createQueue,
	"unix":        unixSocket,
}

// The numbers of keyctl(2) that x/sys does not name.
const (
	keyctlSetPerm         = 5
	keyctlSearch          = 10
	keyctlRead            = 11
	keyctlJoinSession     = 1
	keyctlSessionToParent = 18
	userKeyring           = ^uintptr(3) // KEY_SPEC_USER_KEYRING, -4
	processKeyring        = ^uintptr(1) // KEY_SPEC_PROCESS_KEYRING, -2
)

func readKey(id uintptr) (string, error) {
	b := make([]byte, 256)
	n, err := raw("keyctl read", unix.SYS_KEYCTL, keyctlRead, id, address(b), uintptr(len(b)))
	if err != nil {
		return "", err
	}
	return string(b[:min(int(n), len(b))]), nil
}

// searchKey finds the host's key in the user's keyring and reads it.
func searchKey(a args) (string, error) {
	kind, desc := cstring("user"), cstring(a.str("desc"))
	id, err := raw("keyctl search", unix.SYS_KEYCTL, keyctlSearch, userKeyring, address(kind), address(desc), 0)
	keep(kind, desc)
	if err != nil {
		return "", err
	}
	return readKey(id)
}

// listKey finds the name of a key in the kernel's list.
func listKey(a args) (string, error) {
	b, err := os.ReadFile("/proc/keys")
	if err == nil && !strings.Contains(string(b), " "+a.str("desc")+":") {
		err = unix.ENOKEY
	}
	return "", failed("read /proc/keys", err)
}

// requestKey finds the same through the keyrings that a process has by default.
func requestKey(a args) (string, error) {
	kind, desc := cstring("user"), cstring(a.str("desc"))
	id, err := raw("request_key", unix.SYS_REQUEST_KEY, address(kind), address(desc), 0, 0)
	keep(kind, desc)
	if err != nil {
		return "", err
	}
	return readKey(id)
}

func newKey(ring uintptr, desc, payload string) (uintptr, error) {
	kind, d, p := cstring("user"), cstring(desc), []byte(payload)
	id, err := raw("add_key", unix.SYS_ADD_KEY, address(kind), address(d), address(p), uintptr(len(p)), ring)
	keep(kind, d, p)
	return id, err
}

func addKey(a args) (string, error) {
	_, err := newKey(processKeyring, a.str("desc"), "x")
	return "", err
}

// keyToParent installs a new session keyring on the parent, the way out of a
// Landlock domain of CVE-2024-42318. Both processes must have one thread.
func keyToParent(args) (string, error) {
	return "", failed("keyctl session to parent", inChild(func() syscall.Errno {
		pid, errno := rawFork(0)
		if errno != 0 {
			return errno
		}
		if pid == 0 {
			if _, errno := call(unix.SYS_KEYCTL, keyctlJoinSession, 0, 0, 0, 0); errno != 0 {
				exit(errno)
			}
			_, errno := call(unix.SYS_KEYCTL, keyctlSessionToParent, 0, 0, 0, 0)
			exit(errno)
		}
		return wait(pid)
	}))
}

// status is where wait has the kernel put a wait status: a forked child cannot
// allocate.
var status = make([]byte, 8)

// wait reaps a child in a forked child and returns its exit status as an errno.
func wait(pid int) syscall.Errno {
	if _, errno := call(unix.SYS_WAIT4, uintptr(pid), address(status), 0, 0, 0); errno != 0 {
		return errno
	}
	if status[0]&0x7f != 0 { // WIFSIGNALED
		call(unix.SYS_KILL, uintptr(unix.Getpid()), uintptr(status[0]&0x7f), 0, 0, 0)
	}
	return syscall.Errno(status[1])
}

// sharedMemory attaches the host's segment and reads it.
func sharedMemory(a args) (string, error) {
	id, err := unix.SysvShmGet(a.num("key"), 0, 0)
	if err != nil {
		return "", failed("shmget", err)
	}
	b, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
	if err != nil {
		return "", failed("shmat", err)
	}
	return strings.TrimRight(string(b[:64]), "\x00"), nil
}

// openQueue is mq_open(3) of a name without its slash.
func openQueue(name string, flags int) (int, error) {
	n := cstring(name)
	attr := make([]byte, 64) // struct mq_attr: flags, maxmsg, msgsize, curmsgs
	attr[8], attr[16] = 4, 128
	fd, err := raw("mq_open", unix.SYS_MQ_OPEN, address(n), uintptr(flags), 0o666, address(attr))
	keep(n, attr)
	return int(fd), err
}

// messageQueue takes a message from the host's queue.
func messageQueue(a args) (string, error) {
	fd, err := openQueue(a.str("name"), unix.O_RDWR|unix.O_NONBLOCK)
	if err != nil {
		return "", err
	}
	b := make([]byte, 128)
	n, err := raw("mq_timedreceive", unix.SYS_MQ_TIMEDRECEIVE, uintptr(fd), address(b), uintptr(len(b)), 0, 0)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// createQueue makes a queue that a host process could open.
func createQueue(a args) (string, error) {
	_, err := openQueue(a.str("name"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	return "", err
}

// unixSocket sends token to a unix socket; a name that begins with @ is abstract.
func unixSocket(a args) (string, error) {
	kind := unix.SOCK_STREAM
	if a.str("type") == "dgram" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err != nil {
		return "", failed("socket", err)
	}
	addr, token := &unix.SockaddrUnix{Name: a.str("path")}, []byte(a.str("token"))
	if kind == unix.SOCK_DGRAM && a.word["connect"] == "" {
		return "", failed("sendto", unix.Sendto(fd, token, 0, addr))
	}
	if err := unix.Connect(fd, addr); err != nil {
		return "", failed("connect", err)
	}
	n, err := unix.Write(fd, token)
	return fmt.Sprintf("wrote %d bytes", n), failed("write", err)
}

package certify

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// stage has the things on the host that attempts reach for.
type stage struct {
	dir    string // ours, world-readable but not writable
	secret string
	path   string // file with the secret, which every user may read
	leak   int    // descriptor of it that is not closed on exec
	host   string // the host's name

	abstract  int // datagram socket at an abstract address
	name      string
	semaphore uintptr // id
	key, held int     // its key and value
	closers   []func()
}

// leakFD is the lowest number for the descriptor that is left open: above those
// that palyra-cell hands out itself, which would cover it.
const leakFD = 200

// IPC_CREAT, IPC_EXCL, IPC_RMID and SETVAL; linux/ipc.h, linux/sem.h.
const (
	ipcCreat  = 0o1000
	ipcExcl   = 0o2000
	ipcRemove = 0
	semSetVal = 16
)

func newStage() (_ *stage, err error) {
	s := &stage{secret: "secret-" + rand.Text(), leak: -1, abstract: -1}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.host, err = os.Hostname(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "palyra-certify-"); err != nil {
		return nil, err
	}
	s.later(func() { os.RemoveAll(s.dir) })
	s.path = filepath.Join(s.dir, "secret")
	if err := errors.Join(os.Chmod(s.dir, 0o755), os.WriteFile(s.path, []byte(s.secret), 0o644), os.Chmod(s.path, 0o644)); err != nil {
		return nil, err
	}
	if err := s.policies(); err != nil {
		return nil, err
	}
	for _, f := range []func() error{s.leave, s.listenAbstract, s.raise} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *stage) later(f func()) { s.closers = append(s.closers, f) }

func (s *stage) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

// permitAll is a policy that permits every call: the test is about the steps after it.
const permitAll = "@id(\"all\") permit (principal, action, resource);\n"

func (s *stage) policies() error {
	dir := filepath.Join(s.dir, "policy")
	return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "all.cedar"), []byte(permitAll), 0o600))
}

// leave opens the secret as a careless launcher would: on a descriptor that its
// children inherit.
func (s *stage) leave() error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	fd, _, e := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), syscall.F_DUPFD, leakFD)
	if e != 0 {
		return os.NewSyscallError("fcntl", e)
	}
	s.leak = int(fd)
	s.later(func() { syscall.Close(s.leak) })
	return nil
}

func (s *stage) listenAbstract() (err error) {
	if s.abstract, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	s.later(func() { syscall.Close(s.abstract) })
	s.name = "palyra-certify-" + rand.Text()
	return os.NewSyscallError("bind", syscall.Bind(s.abstract, &syscall.SockaddrUnix{Name: "@" + s.name}))
}

// raise makes a semaphore that every user may use. On a host without semaphores the control
// finds no key.
func (s *stage) raise() error {
	var b [4]byte
	for range 16 {
		rand.Read(b[:])
		s.key, s.held = int(binary.NativeEndian.Uint32(b[:])>>1)|1, 1+int(b[0])
		id, _, e := syscall.Syscall(syscall.SYS_SEMGET, uintptr(s.key), 1, ipcCreat|ipcExcl|0o666)
		if e == syscall.EEXIST {
			continue
		}
		if e != 0 {
			return nil
		}
		s.semaphore = id
		s.later(func() { syscall.Syscall6(syscall.SYS_SEMCTL, s.semaphore, 0, ipcRemove, 0, 0, 0) })
		syscall.Syscall6(syscall.SYS_SEMCTL, id, 0, semSetVal, uintptr(s.held), 0, 0)
		return nil
	}
	return nil
}

// heard reports whether a datagram with the token has arrived at a socket within
// a time. Others are thrown away.
func heard(fd int, token string, within time.Duration) bool {
	if fd < 0 {
		return false
	}
	b := make([]byte, 512)
	for end := time.Now().Add(within); ; {
		n, _, err := syscall.Recvfrom(fd, b, syscall.MSG_DONTWAIT)
		switch {
		case err == nil && string(b[:n]) == token:
			return true
		case err == nil, errors.Is(err, syscall.EINTR):
			continue
		case time.Now().After(end):
			return false
		}
		time.Sleep(time.Millisecond)
	}
}

// hostOnly names a directory of the host that no cell has. It isn't ours: we could only
// make one below /tmp, of which a cell has its own.
func hostOnly() string {
	for _, dir := range []string{"/var", "/home", "/root", "/boot", "/srv", "/run"} {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return "/sys"
}

// scene is an attempt on the stage.
type scene struct {
	attempt string
	a, b    string
	socket  int // where the token must arrive; -1: the attempt's own word counts
	// given is the family of our socket that is its standard input, AF_UNIX (datagrams) or
	// AF_INET (TCP); 0: none.
	given  int
	lasts  bool // it does not end by itself
	mighty bool // where the control is stopped, try it as root of a user namespace
}

// scene returns the attempt of a claim at a tier.
func (s *stage) scene(claim, tier string) scene {
	x := scene{socket: -1}
	switch claim {
	case "user_namespace":
		x.attempt = "uid0"
	case "mount_namespace":
		x.attempt, x.a = "stat", hostOnly()
	case "pid_namespace":
		x.attempt = "processes"
	case "net_namespace":
		x.attempt, x.a = "namespace", "net"
		x.b, _ = os.Readlink("/proc/self/ns/net")
	case "ipc_namespace":
		x.attempt, x.a, x.b = "semaphore", strconv.Itoa(s.key), strconv.Itoa(s.held)
	case "uts_namespace":
		x.attempt, x.a = "hostname", s.host
	case "cgroup_namespace", "time_namespace":
		kind := claim[:len(claim)-len("_namespace")]
		x.attempt, x.a = "namespace", kind
		x.b, _ = os.Readlink("/proc/self/ns/" + kind)
	case "no_new_privs":
		x.attempt = "privs"
	case "capabilities":
		x.attempt, x.mighty = "override", true
	case "rlimits":
		x.attempt, x.a = "files", strconv.Itoa(openFiles+64)
	case "landlock_files":
		x.attempt, x.a, x.b = "read", s.path, s.secret
		if tier == "c" { // where the secret is not there to begin with
			x.attempt, x.a, x.b = "write", "/proc/self/comm", "certify"
		}
	case "landlock_ports":
		x.attempt, x.given = "listen", syscall.AF_INET
	case "landlock_scopes":
		x.attempt, x.a, x.b, x.socket, x.given = "abstract", s.name, rand.Text(), s.abstract, syscall.AF_UNIX
	case "seccomp":
		x.attempt = "calls"
	case "descriptors":
		x.attempt, x.a, x.b = "inherited", strconv.Itoa(s.leak), s.secret
	case "deadline":
		x.attempt, x.lasts = "stay", true
	default:
		panic("certify: internal error: claim " + claim + " has no attempt")
	}
	return x
}

package certify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Main makes one attempt, args behind Word, prints how it ended and returns the
// exit status.
func Main(args []string) int {
	if len(args) != 1+Args || args[0] != Word {
		fmt.Fprintln(os.Stderr, Word+": want an attempt and two operands")
		return 2
	}
	try := attempts()[args[1]]
	if try == nil {
		fmt.Fprintf(os.Stderr, Word+": no attempt %q\n", args[1])
		return 2
	}
	detail, err := try(args[2], args[3])
	res := Result{Outcome: Open, Detail: detail}
	if err != nil {
		res = Result{Outcome: outcome(err), Detail: err.Error()}
	}
	if json.NewEncoder(os.Stdout).Encode(res) != nil {
		return 1
	}
	return 0
}

// The errors of attempts that were stopped without an errno, or not made.
var (
	errOther  = errors.New("not the host's")
	errSet    = errors.New("it is set")
	errUntold = errors.New("not tried")
)

func untold(err error) error { return fmt.Errorf("%w: %w", errUntold, err) }

func outcome(err error) string {
	switch {
	case errors.Is(err, errUntold):
		return Untold
	case errors.Is(err, errOther):
		return Other
	case errors.Is(err, errSet):
		return Set
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		if name, ok := errnoNames[e]; ok {
			return name
		}
		return "errno " + strconv.Itoa(int(e))
	}
	return Untold
}

// errnoNames are those that an attempt may end with.
var errnoNames = map[syscall.Errno]string{
	syscall.EPERM: "EPERM", syscall.ENOENT: "ENOENT", syscall.EACCES: "EACCES", syscall.EBADF: "EBADF", syscall.ENOSYS: "ENOSYS",
	syscall.EMFILE: "EMFILE", syscall.ENFILE: "ENFILE", syscall.EINVAL: "EINVAL", syscall.EROFS: "EROFS", syscall.ESRCH: "ESRCH",
	syscall.ENETUNREACH: "ENETUNREACH", syscall.EAFNOSUPPORT: "EAFNOSUPPORT", syscall.ECONNREFUSED: "ECONNREFUSED",
	syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL", syscall.ENOTSOCK: "ENOTSOCK", syscall.ENOMEM: "ENOMEM",
}

// attempts has the attempts by kernel/certify's word for them. An attempt returns nil if it
// succeeded.
func attempts() map[string]func(a, b string) (string, error) {
	return map[string]func(a, b string) (string, error){
		"uid0":      tryUser,
		"stat":      tryStat,
		"processes": tryProcesses,
		"semaphore": trySemaphore,
		"hostname":  tryHostname,
		"namespace": tryNamespace,
		"privs":     tryPrivs,
		"override":  tryOverride,
		"files":     tryFiles,
		"write":     tryWrite,
		"read":      tryRead,
		"listen":    tryListen,
		"abstract":  tryAbstract,
		"calls":     tryCalls,
		"inherited": tryInherited,
		"stay":      tryStay,
	}
}

// tryUser looks whether its user namespace has a user 0, who has power in it: without one,
// root's files belong to no user.
func tryUser(string, string) (string, error) {
	fi, err := os.Stat("/")
	if err != nil {
		return "", untold(err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return "", untold(errors.New("no owner"))
	}
	text := fmt.Sprintf("/ belongs to %d", st.Uid)
	if st.Uid == 0 {
		return text, nil
	}
	return "", fmt.Errorf("%w: %s", errOther, text)
}

// tryStat looks at a file of the host. Landlock does not see it.
func tryStat(path, _ string) (string, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d bytes", fi.Size()), nil
}

// mostPIDs is the number of process ids that tryProcesses tries. The first processes of a
// namespace have the smallest.
const mostPIDs = 1 << 15

// tryProcesses looks for processes besides this one and its parent. getpgid(2)
// asks for no permission.
func tryProcesses(string, string) (string, error) {
	var found []int
	for pid := 1; pid <= mostPIDs; pid++ {
		if _, err := syscall.Getpgid(pid); err == nil && pid != os.Getpid() && pid != os.Getppid() {
			found = append(found, pid)
		}
	}
	// Our own threads have numbers, too, and answer to them.
	for _, pid := range found {
		if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(pid)); err != nil {
			return fmt.Sprintf("process %d", pid), nil
		}
	}
	return "", fmt.Errorf("%w: none besides its own", errOther)
}

// semctl(2) command, linux/sem.h.
const semGetVal = 12

// trySemaphore reads the value of a semaphore by its key.
func trySemaphore(key, value string) (string, error) {
	n, err := strconv.ParseUint(key, 10, 31)
	if err != nil {
		return "", untold(err)
	}
	id, _, e := syscall.Syscall(syscall.SYS_SEMGET, uintptr(n), 1, 0)
	if e != 0 {
		return "", os.NewSyscallError("semget", e)
	}
	v, _, e := syscall.Syscall6(syscall.SYS_SEMCTL, id, 0, semGetVal, 0, 0, 0)
	if e != 0 {
		return "", os.NewSyscallError("semctl", e)
	}
	if got := strconv.Itoa(int(v)); got != value {
		return "", fmt.Errorf("%w: value %s", errOther, got)
	}
	return "its value is right", nil
}

func tryHostname(host, _ string) (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", untold(err)
	}
	if name != host {
		return "", fmt.Errorf("%w: it is called %q", errOther, name)
	}
	return name, nil
}

// tryNamespace compares its namespace of a kind with the host's.
func tryNamespace(kind, host string) (string, error) {
	link, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return "", untold(err)
	}
	if link != host {
		return "", fmt.Errorf("%w: %s", errOther, link)
	}
	return link, nil
}

// prctl(2) and keyctl(2), clone(2).
const (
	prGetNoNewPrivs   = 39
	keyctlGetKeyring  = 0
	keySpecSession    = -3
	cloneFS           = 0x200
	maxInheritedBytes = 256
)

func tryPrivs(string, string) (string, error) {
	v, _, e := syscall.Syscall6(syscall.SYS_PRCTL, prGetNoNewPrivs, 0, 0, 0, 0, 0)
	switch {
	case e != 0:
		return "", untold(os.NewSyscallError("prctl", e))
	case v != 0:
		return "", fmt.Errorf("no_new_privs: %w", errSet)
	}
	return "no_new_privs is not set", nil
}

// tryOverride makes a file that no user may read, and reads it: CAP_DAC_OVERRIDE.
func tryOverride(string, string) (string, error) {
	dir, err := os.MkdirTemp(".", "certify-")
	if err != nil {
		dir, err = os.MkdirTemp("/tmp", "certify-")
	}
	if err != nil {
		return "", untold(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "secret")
	if err := os.WriteFile(path, []byte("x"), 0); err != nil {
		return "", untold(err)
	}
	_, err = os.ReadFile(path)
	return "read a file of mode 0", err
}

// tryFiles has n files open at once.
func tryFiles(n, _ string) (string, error) {
	most, err := strconv.Atoi(n)
	if err != nil {
		return "", untold(err)
	}
	for range most {
		if _, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err != nil {
			return "", os.NewSyscallError("open", err)
		}
	}
	return n + " open files", nil
}

// tryWrite opens an existing file and writes to it.
func tryWrite(path, text string) (string, error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", untold(err)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = io.WriteString(f, text)
	return "wrote to " + path, err
}

func tryRead(path, secret string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return told(string(b), secret)
}

// told is success if a text holds the secret.
func told(text, secret string) (string, error) {
	if !strings.Contains(text, secret) {
		return "", fmt.Errorf("%w: without the secret", errOther)
	}
	return "the secret came out", nil
}

// tryListen binds its standard input, a TCP socket, to a port and listens.
func tryListen(string, string) (string, error) {
	if err := syscall.Bind(0, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", os.NewSyscallError("bind", err)
	}
	return "listens", os.NewSyscallError("listen", syscall.Listen(0, 1))
}

// tryAbstract sends to an abstract address over its standard input, a datagram
// socket that was made in the host's network namespace.
func tryAbstract(name, token string) (string, error) {
	return "sent", os.NewSyscallError("sendto", syscall.Sendto(0, []byte(token), 0, &syscall.SockaddrUnix{Name: "@" + name}))
}

// tryCalls makes calls that only the filter can forbid.
func tryCalls(string, string) (string, error) {
	session := keySpecSession
	_, _, first := syscall.Syscall(syscall.SYS_UNSHARE, cloneFS, 0, 0)
	if first == 0 {
		return "unshare", nil
	}
	if _, _, e := syscall.Syscall(syscall.SYS_KEYCTL, keyctlGetKeyring, uintptr(session), 1); e == 0 {
		return "keyctl", nil
	}
	return "", os.NewSyscallError("unshare", first)
}

// tryInherited reads a descriptor that it was never given.
func tryInherited(fd, secret string) (string, error) {
	n, err := strconv.Atoi(fd)
	if err != nil {
		return "", untold(err)
	}
	b := make([]byte, maxInheritedBytes)
	got, err := syscall.Pread(n, b, 0)
	if err != nil {
		return "", os.NewSyscallError("pread", err)
	}
	return told(string(b[:got]), secret)
}

// tryStay reports that it runs and waits for ever.
func tryStay(string, string) (string, error) {
	if err := json.NewEncoder(os.Stdout).Encode(Result{Outcome: Open, Detail: "waits"}); err != nil {
		return "", untold(err)
	}
	for {
		time.Sleep(time.Hour)
	}
}

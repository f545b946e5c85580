package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hostProbes are 95 and 96: set-id programs that the host made, and its devices.
var hostProbes = map[string]probe{
	"run-setid":   runSetID,
	"identity":    identity,
	"run-program": runProgram,
	"dev-list":    listDevices,
	"dev-open":    openDevices,
}

// runSetID executes a set-id copy of this program, which says who it is.
func runSetID(a args) (string, error) {
	return "", failed("exec", unix.Exec(a.str("path"), []string{"attack", "identity"}, []string{}))
}

// identity succeeds if this process acts as another user than the one who started it.
func identity(args) (string, error) {
	_, euid, suid := unix.Getresuid()
	_, egid, sgid := unix.Getresgid()
	who := fmt.Sprintf("uid %d %d %d, gid %d %d %d", unix.Getuid(), euid, suid, unix.Getgid(), egid, sgid)
	if unix.Getuid() != euid || euid != suid || unix.Getgid() != egid || egid != sgid {
		return who, nil
	}
	return who, failed("gain privileges", unix.EPERM)
}

// runProgram starts a set-id program of the host and looks in /proc whose it is.
// A process that has ended keeps its identity until it is waited for.
func runProgram(a args) (string, error) {
	path := a.str("path")
	if path == "" {
		return "", failed("find a set-id program", unix.ENOENT)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return "", failed("pipe", err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", failed("open /dev/null", err)
	}
	// It reads from a pipe without a writer, in case it asks for something.
	pid, err := syscall.ForkExec(path, []string{filepath.Base(path)}, &syscall.ProcAttr{Dir: "/", Env: []string{},
		Files: []uintptr{uintptr(p[0]), uintptr(null), uintptr(null)}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return "", failed("exec "+path, err)
	}
	defer func() {
		unix.Kill(pid, unix.SIGKILL)
		unix.Wait4(pid, nil, 0, nil)
	}()
	// The kernel closes what closes on exec a moment before it changes the identity:
	// it has done so when the program waits for something, or has ended, and that for
	// a while.
	line, still := "", 0
	for end := time.Now().Add(20 * time.Second); still < 100 && time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return "", err
		}
		for l := range strings.Lines(string(b)) {
			switch f := strings.Fields(l); {
			case len(f) > 1 && f[0] == "State:" && (f[1] == "S" || f[1] == "Z"):
				still++
			case len(f) == 5 && f[0] == "Uid:":
				if line = path + " " + strings.Join(f, " "); f[1] != f[2] || f[2] != f[3] {
					return line, nil
				}
			}
		}
	}
	return line, failed("gain privileges", unix.EPERM)
}

// devices are the nodes that a cell has, by major and minor number.
var devices = map[string][2]uint32{"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}}

// harmless are what else is in the /dev of a cell: links into /proc, and a tmpfs.
var harmless = []string{"fd", "stdin", "stdout", "stderr", "shm"}

// listDevices succeeds if /dev shows anything besides what a cell has.
func listDevices(a args) (string, error) {
	names, err := os.ReadDir("/dev")
	if err != nil {
		return "", failed("read /dev", err)
	}
	var more []string
	for _, n := range names {
		var st unix.Stat_t
		if err := unix.Lstat("/dev/"+n.Name(), &st); err != nil {
			return "", failed("lstat", err)
		}
		want, known := devices[n.Name()]
		switch kind := st.Mode & unix.S_IFMT; {
		case known && kind == unix.S_IFCHR && st.Rdev == unix.Mkdev(want[0], want[1]):
		case slices.Contains(harmless, n.Name()) && (kind == unix.S_IFLNK || kind == unix.S_IFDIR):
		case a.word["terminal"] == "" && isPlace(n.Name(), &st), a.word["terminal"] != "" && isTerminal(n.Name(), &st):
		default:
			more = append(more, fmt.Sprintf("%s (%s, %d:%d)", n.Name(), n.Type(), unix.Major(st.Rdev), unix.Minor(st.Rdev)))
		}
	}
	if len(more) == 0 {
		return fmt.Sprint(slices.Sorted(maps.Keys(devices))), failed("find another device", unix.ENOENT)
	}
	return strings.Join(more, ", "), nil
}

// isPlace reports whether it is where the terminal of a call that has one is attached: without one
// there is an empty folder, an empty file without any right, and a link into the folder.
func isPlace(name string, st *unix.Stat_t) bool {
	switch name {
	case "pts":
		in, err := os.ReadDir("/dev/pts")
		return err == nil && len(in) == 0
	case "tty":
		return st.Mode == unix.S_IFREG && st.Size == 0
	case "ptmx":
		to, err := os.Readlink("/dev/ptmx")
		return err == nil && to == "pts/ptmx"
	}
	return false
}

// isTerminal reports whether it belongs to the terminal of a call that has one: a devpts with that
// terminal alone, the device that leads to it, and the link to the maker of more.
func isTerminal(name string, st *unix.Stat_t) bool {
	switch name {
	case "pts":
		in, err := os.ReadDir("/dev/pts")
		return err == nil && len(in) == 2 && in[0].Name() == "0" && in[1].Name() == "ptmx"
	case "tty":
		return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(5, 0)
	}
	return isPlace(name, st)
}

func isPlaceAt(name string) bool {
	var st unix.Stat_t
	return unix.Lstat("/dev/"+name, &st) == nil && isPlace(name, &st)
}

// others are devices that some hosts let a user open, and that do nothing when opened.
var others = []string{"ptmx", "tty", "kmsg", "mem", "kvm", "fuse", "cuse", "vsock", "userfaultfd", "loop-control", "net/tun", "vhost-net",
	"vhost-vsock", "console", "btrfs-control", "mapper/control", "dri/card0", "vfio/vfio", "uinput", "vda", "sda"}

// openDevices succeeds if one of them can be opened.
func openDevices(a args) (string, error) {
	var opened []string
	last := error(unix.ENOENT)
	for _, name := range others {
		var st unix.Stat_t
		if a.word["terminal"] != "" && unix.Lstat("/dev/"+name, &st) == nil && isTerminal(name, &st) {
			continue
		}
		fd, err := unix.Open("/dev/"+name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			unix.Close(fd)
			opened = append(opened, name)
		case err == unix.EACCES && isPlaceAt(name):
		case err == unix.EACCES || err == unix.EPERM:
			last = err
		}
	}
	if len(opened) == 0 {
		return "", failed("open", last)
	}
	return strings.Join(opened, ", "), nil
}

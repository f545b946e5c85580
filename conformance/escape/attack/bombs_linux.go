package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bombProbes are cases 79 to 83: more than one's share.
var bombProbes = map[string]probe{
	"fork":   forkBomb,
	"memory": memoryBomb,
	"fill":   fill,
	"inodes": inodes,
	"flood":  flood,
}

// forkBomb wants count children at once.
func forkBomb(a args) (string, error) {
	want := a.num("count")
	var pids []int
	var errno syscall.Errno
	for len(pids) < want {
		var pid int
		if pid, errno = rawFork(0); errno != 0 {
			break
		}
		if pid == 0 {
			park()
		}
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		unix.Kill(pid, unix.SIGKILL)
	}
	for _, pid := range pids {
		unix.Wait4(pid, nil, 0, nil)
	}
	detail := fmt.Sprintf("%d children at once", len(pids))
	if errno != 0 {
		return detail, failed("fork", errno)
	}
	return detail, nil
}

const mib = 1 << 20

// memoryBomb touches want MiB of memory of the kind that how names.
func memoryBomb(a args) (string, error) {
	want := a.num("mib")
	how := a.str("how")
	have := 0
	var err error
	switch how {
	case "private", "shared":
		flags := unix.MAP_ANON | unix.MAP_PRIVATE
		if how == "shared" {
			flags = unix.MAP_ANON | unix.MAP_SHARED
		}
		for ; have < want && err == nil; have++ {
			err = touch(flags)
		}
	case "memfd": // in no address space: what RLIMIT_AS does not see
		b := make([]byte, mib)
		for ; have < want && err == nil; have += 4 {
			var fd int
			// With the flag that the filter asks for: without it the limit is not tried.
			if fd, err = unix.MemfdCreate("x", unix.MFD_NOEXEC_SEAL); err == nil {
				for range 4 {
					if _, err = unix.Write(fd, b); err != nil {
						break
					}
				}
			}
		}
	case "tree": // shared out over children, each within a limit of its own
		return memoryTree(want, a.num("children"))
	default:
		return "", fmt.Errorf("no kind of memory named %q", how)
	}
	detail := fmt.Sprintf("touched %d MiB", have)
	return detail, failed("memory", err)
}

func touch(flags int) error {
	b, err := unix.Mmap(-1, 0, mib, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return err
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return nil
}

// memoryTree has children touch their share and say so through a pipe.
func memoryTree(want, children int) (string, error) {
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return "", failed("pipe", err)
	}
	share := uintptr(want/children) * mib
	one := []byte{1}
	var pids []int
	for range children {
		pid, errno := rawFork(0)
		if errno != 0 {
			return "", failed("fork", errno)
		}
		if pid == 0 {
			m, _, errno := syscall.RawSyscall6(unix.SYS_MMAP, 0, share, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE, none, 0)
			if errno != 0 || m == 0 {
				exit(errno)
			}
			call(unix.SYS_WRITE, uintptr(p[1]), address(one), 1, 0, 0)
			park()
		}
		pids = append(pids, pid)
	}
	unix.Close(p[1])
	var have int
	b := []byte{0}
	poll := []unix.PollFd{{Fd: int32(p[0]), Events: unix.POLLIN}}
	for have < children {
		n, err := unix.Poll(poll, 10000)
		if err == unix.EINTR {
			continue // no read without a timeout
		}
		if err != nil || n == 0 {
			break
		}
		if n, err := unix.Read(p[0], b); err != nil || n == 0 {
			break
		}
		have++
	}
	for _, pid := range pids {
		unix.Kill(pid, unix.SIGKILL)
		unix.Wait4(pid, nil, 0, nil)
	}
	detail := fmt.Sprintf("%d children touched %d MiB each", have, want/children)
	if have < children {
		return detail, failed("memory", unix.ENOMEM)
	}
	return detail, nil
}

// fill writes mib MiB into files of at most file MiB below dir.
func fill(a args) (string, error) {
	dir, want, file := a.str("dir"), a.num("mib"), a.num("file")
	b := make([]byte, mib)
	for i := range b {
		b[i] = byte(i * 7)
	}
	have, hide, at := 0, a.word["hide"], unix.AT_FDCWD
	if hide == "folder" { // that its owner may not read, and where we are already
		err := os.MkdirAll(dir+"/hidden/in", 0o700)
		if err == nil {
			at, err = unix.Open(dir+"/hidden/in", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		var outer int
		if err == nil {
			outer, err = unix.Open(dir+"/hidden", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		if err == nil {
			err = unix.Fchmod(outer, 0)
		}
		if err != nil {
			return "", fmt.Errorf("hide a folder: %w", err)
		}
		dir = "."
	}
	stop := func(op string, err error) (string, error) {
		return fmt.Sprintf("wrote %d MiB", have), failed(op, err)
	}
	for n := 0; have < want; n++ {
		name := dir + "/fill" + strconv.Itoa(n)
		fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
		if err != nil {
			return stop("open O_CREAT", err)
		}
		if hide == "name" {
			if err := unix.Unlinkat(at, name, 0); err != nil {
				return stop("unlink", err)
			}
		}
		for i := 0; i < file && have < want; i++ {
			w, err := unix.Write(fd, b)
			if err != nil {
				return stop("write", err)
			}
			if w < len(b) {
				return stop("write", unix.ENOSPC)
			}
			have++
		}
		if hide != "name" {
			unix.Close(fd)
		}
	}
	if hide != "" { // so that a directory that is sampled can be found too full
		time.Sleep(time.Duration(a.num("stay")) * time.Second)
	}
	return stop("", nil)
}

// inodes makes count empty files below dir and stays for some seconds.
func inodes(a args) (string, error) {
	dir, want := a.str("dir"), a.num("count")
	for n := range want {
		fd, err := unix.Open(dir+"/inode"+strconv.Itoa(n), unix.O_WRONLY|unix.O_CREAT, 0o600)
		if err != nil {
			return fmt.Sprintf("made %d files", n), failed("open O_CREAT", err)
		}
		unix.Close(fd)
	}
	time.Sleep(time.Duration(a.num("stay")) * time.Second)
	return fmt.Sprintf("made %d files", want), nil
}

// flood writes mib MiB of bytes that are no text and hold no newline.
func flood(a args) (string, error) {
	fd := 1
	if a.str("to") == "stderr" {
		fd = 2
	}
	b := make([]byte, mib)
	for i := range b {
		if b[i] = byte(i * 31); b[i] == '\n' {
			b[i] = 0xff
		}
	}
	want := a.num("mib") * mib
	for have := 0; have < want; {
		n, err := unix.Write(fd, b[:min(len(b), want-have)])
		if err != nil {
			return fmt.Sprintf("wrote %d bytes", have), failed("write", err)
		}
		have += n
	}
	return fmt.Sprintf("wrote %d bytes", want), nil
}

func errnoOf(err error) syscall.Errno {
	e, _ := errors.AsType[syscall.Errno](err)
	return e
}

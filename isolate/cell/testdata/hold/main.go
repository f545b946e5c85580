//go:build linux

// Hold holds MIB mebibytes in the way HOW for some tenths of a second.
//
//	hold HOW[-leader] MIB
//
// With -leader the process' first thread has ended.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func init() { runtime.LockOSThread() } // main has the first thread

func main() {
	n, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	how, alone := strings.CutSuffix(os.Args[1], "-leader")
	if !alone {
		hold(how, n)
		return
	}
	go hold(how, n) // and the process' first thread ends
	unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

func hold(how string, n int) {
	switch how {
	case "tables": // a page of the table for every 2 MiB that is read
		b, err := unix.Mmap(-1, 0, n*256*2*mib, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		check(err)
		check(unix.Madvise(b, unix.MADV_NOHUGEPAGE))
		sum := 0
		for i := 0; i < len(b); i += 2 * mib {
			sum += int(b[i])
		}
		rest(sum)
	case "private":
		b, err := unix.Mmap(-1, 0, n*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
		check(err)
		rest(int(b[0]))
	case "file": // a file system in memory; nothing of it is mapped
		f, err := os.Create("/tmp/hold")
		check(err)
		check(f.Truncate(int64(n * mib)))
		for range n {
			_, err := f.Write(make([]byte, mib))
			check(err)
		}
		rest(0)
	case "shared": // memory of which all but a page is unmapped again
		for range n {
			b, err := unix.Mmap(-1, 0, mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON|unix.MAP_POPULATE)
			check(err)
			check(munmap(b[os.Getpagesize():]))
		}
		rest(0)
	case "sockets", "left": // pairs of sockets, until descriptors run out; of "left" the senders are closed
		b := make([]byte, 32<<10)
		for held := 0; held < n*mib; {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
			check(err)
			for _, fd := range p {
				for err = nil; err == nil; {
					var w int
					if w, err = unix.Write(fd, b); err == nil {
						held += w
					}
				}
				if how == "left" {
					unix.Close(fd)
					break
				}
			}
		}
		rest(0)
	case "received", "unaccepted": // TCP connections: accepted and not read; or neither, and closed by the sender
		l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		check(err)
		check(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
		check(unix.Listen(l, 1<<12))
		to, err := unix.Getsockname(l)
		check(err)
		b := make([]byte, 32<<10)
		for held := 0; held < n*mib; {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			check(err)
			check(unix.Connect(fd, to))
			check(unix.SetNonblock(fd, true))
			for err == nil {
				var w int
				if w, err = unix.Write(fd, b); err == nil {
					held += w
				}
			}
			if how == "unaccepted" {
				check(unix.Close(fd))
				continue
			}
			_, _, err = unix.Accept(l)
			check(err)
		}
		rest(0)
	case "events": // unread events of 512 bytes each
		check(os.Mkdir("/tmp/watched", 0o700))
		const instances = 16
		for range instances {
			fd, err := unix.InotifyInit1(0)
			check(err)
			_, err = unix.InotifyAddWatch(fd, "/tmp/watched", unix.IN_CREATE)
			check(err)
		}
		for i := range min(n*mib/512/instances, 16384) {
			name := fmt.Sprintf("/tmp/watched/%0255d", i)
			fd, err := unix.Open(name, unix.O_CREAT|unix.O_WRONLY, 0o600)
			check(err)
			unix.Close(fd)
			check(unix.Unlink(name))
		}
		rest(0)
	case "texts": // texts of fdinfo, a MiB each, which stay when the locks that they list are gone
		const locks = 10_000
		fd, err := unix.Open("/proc/self/stat", unix.O_RDONLY, 0)
		check(err)
		for i := range int64(locks) { // backwards, so that each is the first of the list
			check(unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: 2 * (locks - i), Len: 1}))
		}
		b := make([]byte, 1)
		for range n {
			info, err := unix.Open("/proc/self/fdinfo/"+strconv.Itoa(fd), unix.O_RDONLY, 0)
			check(err)
			_, err = unix.Read(info, b)
			check(err)
		}
		check(unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}))
		rest(0)
	case "inotify": // instances, as many as there are, up to MIB
		var err error
		for have := 0; have < n && err == nil; have++ {
			_, err = unix.InotifyInit1(0)
		}
		fmt.Println("ready")
		rest(0)
	case "unlinked", "mapped", "hidden", "undumpable": // files of a MiB in the working folder that no walk of it finds
		wd, err := os.Getwd()
		check(err)
		fmt.Println(wd)
		where := "."
		if how == "hidden" {
			where = "x/y"
			check(os.MkdirAll(where, 0o700))
		}
		dir, err := unix.Open(where, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		check(err)
		if where != "." {
			x, err := os.Open("x")
			check(err)
			check(x.Chmod(0)) // it can't be opened by name
		}
		b := make([]byte, mib)
		for i := range n {
			name := strconv.Itoa(i)
			fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_RDWR, 0o600)
			check(err)
			_, err = unix.Write(fd, b)
			check(err)
			if where != "." {
				unix.Close(fd)
				continue
			}
			check(unix.Unlinkat(dir, name, 0))
			if how == "mapped" {
				_, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
				check(err)
				unix.Close(fd)
			}
		}
		if how == "undumpable" {
			check(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
		}
		rest(0)
	case "merge": // none: whether its memory may be merged with equal pages of others
		r, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_GET_MEMORY_MERGE, 0, 0, 0, 0, 0)
		if errno == unix.EINVAL || errno == 0 && r == 0 {
			fmt.Println("no")
		} else {
			fmt.Println(r, errno)
		}
	default:
		panic(how)
	}
}

// rest waits for a sample. A process that holds too much is killed before rest ends.
func rest(status int) {
	time.Sleep(3 * time.Second)
	os.Exit(status)
}

// munmap is munmap(2), of a part too.
func munmap(b []byte) error {
	if _, _, e := unix.Syscall(unix.SYS_MUNMAP, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0); e != 0 {
		return e
	}
	return nil
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
}

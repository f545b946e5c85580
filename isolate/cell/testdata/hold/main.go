//go:build linux

// Hold holds MIB mebibytes in the way HOW for some tenths of a second.
//
//	hold HOW MIB
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func init() { runtime.LockOSThread() } // main has the first thread

func main() {
	n, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	switch os.Args[1] {
	case "tables": // a page of the table for every 2 MiB that is read
		b, err := unix.Mmap(-1, 0, n*256*2*mib, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		check(err)
		check(unix.Madvise(b, unix.MADV_NOHUGEPAGE))
		sum := 0
		for i := 0; i < len(b); i += 2 * mib {
			sum += int(b[i])
		}
		rest(sum)
	case "leader": // memory of a process whose first thread has ended
		go func() {
			b, err := unix.Mmap(-1, 0, n*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
			check(err)
			rest(int(b[0]))
		}()
		unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	case "file": // of a file system in memory, of which nothing is mapped
		f, err := os.Create("/tmp/hold")
		check(err)
		check(f.Truncate(int64(n * mib)))
		check(unix.Fallocate(int(f.Fd()), 0, 0, int64(n*mib)))
		rest(0)
	case "sockets": // of pairs, until there are no more descriptors
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
			}
		}
		rest(0)
	case "inotify": // instances, as many as there are up to MIB
		have := 0
		for ; have < n && err == nil; have++ {
			_, err = unix.InotifyInit1(0)
		}
		fmt.Println("ready")
		rest(0)
	default:
		panic(os.Args[1])
	}
}

func rest(status int) {
	time.Sleep(700 * time.Millisecond)
	os.Exit(status)
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
}

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
	case "events": // that nothing reads, of 512 bytes each
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
	case "texts": // of fdinfo, a MiB each, which stay when the locks that they tell of are gone
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

// rest waits for a sample; one that holds too much is killed before it ends.
func rest(status int) {
	time.Sleep(3 * time.Second)
	os.Exit(status)
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
}

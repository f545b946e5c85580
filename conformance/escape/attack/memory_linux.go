package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// memoryProbes are cases 101 and 102: memory that no process has mapped, and what the
// kernel counts for a user.
var memoryProbes = map[string]probe{
	"unmapped": unmapped,
	"inotify":  inotify,
}

// holders hold about a mebibyte or more each time, and say how much. The function that they
// return removes things that outlive the process; it may be nil.
var holders = map[string]func(a args) (hold func() (int, error), remove func()){
	"memfd":     holdMemfd,
	"shared":    func(args) (func() (int, error), func()) { return func() (int, error) { return holdShared(-1) }, nil },
	"zero":      holdZero,
	"semaphore": holdSemaphores,
	"message":   holdMessages,
	"segment":   holdSegments,
	"tables":    holdTables,
	"socket":    holdSockets,
	"received":  func(a args) (func() (int, error), func()) { return holdConnections(false) },
	"orphan":    func(a args) (func() (int, error), func()) { return holdConnections(true) },
	"datagram":  func(args) (func() (int, error), func()) { return holdDatagrams, nil },
	"pipe":      holdPipes,
	"mapping":   holdMappings,
	"lock":      holdLocks,
	"policy":    holdPolicies,
	"folder":    holdFolders,
	"acl":       holdLists,
}

// unmapped has the kernel hold want MiB, and stays for a while.
func unmapped(a args) (string, error) {
	how, want := a.str("how"), a.num("mib")*mib
	make, ok := holders[how]
	if !ok {
		return "", fmt.Errorf("no way named %q", how)
	}
	hold, remove := make(a)
	if remove != nil {
		defer remove()
	}
	have := 0
	var err error
	for have < want && err == nil {
		var n int
		n, err = hold()
		have += n
	}
	detail := fmt.Sprintf("the kernel held %d MiB", have/mib)
	if err == nil || errors.Is(err, unix.EMFILE) { // all descriptors are full: let a sample see it
		unix.Nanosleep(&unix.Timespec{Sec: 1}, nil) // time.Sleep may want a descriptor
	}
	return detail, err
}

var mebibyte = make([]byte, mib)

func holdMemfd(args) (func() (int, error), func()) {
	fd := -1
	size := 0
	return func() (int, error) {
		if fd < 0 || size == 4*mib {
			var err error
			if fd, err = unix.MemfdCreate("x", unix.MFD_NOEXEC_SEAL); err != nil {
				return 0, failed("memfd_create", err)
			}
			size = 0
		}
		n, err := unix.Write(fd, mebibyte)
		size += n
		return n, failed("write", err)
	}, nil
}

// holdShared leaves one page of a shared mapping of 4 MiB mapped, and that untouched.
func holdShared(fd int) (int, error) {
	flags := unix.MAP_SHARED | unix.MAP_ANON
	if fd >= 0 {
		flags = unix.MAP_SHARED
	}
	const size = 4 * mib
	p, err := raw("mmap", unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, uintptr(flags), uintptr(fd), 0)
	if err != nil {
		return 0, err
	}
	if _, err = raw("madvise", unix.SYS_MADVISE, p, size, unix.MADV_POPULATE_WRITE); err != nil {
		return 0, err
	}
	if _, err = raw("munmap", unix.SYS_MUNMAP, p+4096, size-4096); err != nil {
		return 0, err
	}
	_, err = raw("madvise", unix.SYS_MADVISE, p, 4096, unix.MADV_DONTNEED)
	return size, err
}

func holdZero(args) (func() (int, error), func()) {
	fd, err := unix.Open("/dev/zero", unix.O_RDWR, 0)
	return func() (int, error) {
		if err != nil {
			return 0, failed("open", err)
		}
		return holdShared(fd)
	}, nil
}

func holdSemaphores(args) (func() (int, error), func()) {
	var ids []uintptr
	return func() (int, error) {
			const sets = 64
			for range sets {
				id, err := raw("semget", unix.SYS_SEMGET, unix.IPC_PRIVATE, 250, unix.IPC_CREAT|0o600)
				if err != nil {
					return 0, err
				}
				ids = append(ids, id)
			}
			return sets * 250 * 64, nil
		}, func() {
			for _, id := range ids {
				raw("semctl", unix.SYS_SEMCTL, id, 0, unix.IPC_RMID)
			}
		}
}

// holdMessages sends messages without a content, which no limit of bytes bounds.
func holdMessages(args) (func() (int, error), func()) {
	var ids []uintptr
	text := make([]byte, 16)
	text[0] = 1
	return func() (int, error) {
			id, err := raw("msgget", unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|0o600)
			if err != nil {
				return 0, err
			}
			ids = append(ids, id)
			n := 0
			for err == nil {
				if _, err = raw("msgsnd", unix.SYS_MSGSND, id, address(text), 0, unix.IPC_NOWAIT); err == nil {
					n += 64
				}
			}
			keep(text)
			if errnoOf(err) != unix.EAGAIN {
				return n, err
			}
			return n, nil
		}, func() {
			for _, id := range ids {
				raw("msgctl", unix.SYS_MSGCTL, id, unix.IPC_RMID)
			}
		}
}

func holdSegments(args) (func() (int, error), func()) {
	var ids []int
	return func() (int, error) {
			const size = 8 * mib
			id, err := unix.SysvShmGet(unix.IPC_PRIVATE, size, unix.IPC_CREAT|0o600)
			if err != nil {
				return 0, failed("shmget", err)
			}
			ids = append(ids, id)
			b, err := unix.SysvShmAttach(id, 0, 0)
			if err != nil {
				return 0, failed("shmat", err)
			}
			for i := 0; i < size; i += 4096 {
				b[i] = 1
			}
			return size, failed("shmdt", unix.SysvShmDetach(b))
		}, func() {
			for _, id := range ids {
				unix.SysvShmCtl(id, unix.IPC_RMID, nil)
			}
		}
}

// holdTables reads a byte in every 2 MiB of nothing: each takes a page of the table.
func holdTables(args) (func() (int, error), func()) {
	return func() (int, error) {
		const tables = 1024
		b, err := unix.Mmap(-1, 0, tables*2*mib, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		if err != nil {
			return 0, failed("mmap", err)
		}
		unix.Madvise(b, unix.MADV_NOHUGEPAGE)
		var sum byte
		for i := 0; i < len(b); i += 2 * mib {
			sum += b[i]
		}
		return tables*4096 + int(sum), nil
	}, nil
}

func holdSockets(args) (func() (int, error), func()) {
	return func() (int, error) {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return 0, failed("socketpair", err)
		}
		n := 0
		for _, fd := range p {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<30)
			for err = nil; err == nil; {
				var w int
				if w, err = unix.Write(fd, mebibyte[:32<<10]); err == nil {
					n += w
				}
			}
		}
		if err != unix.EAGAIN {
			return n, failed("write", err)
		}
		return n, nil
	}, nil
}

// holdConnections fills TCP connections whose peer doesn't read: accepted ones, or ones that
// are never accepted and that the sender closes, so that no descriptor is left of them.
func holdConnections(orphan bool) (func() (int, error), func()) {
	l, to := -1, unix.Sockaddr(nil)
	return func() (int, error) {
		var err error
		if l < 0 {
			if l, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
				return 0, failed("socket", err)
			}
			if err = unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err == nil {
				err = unix.Listen(l, 1<<12)
			}
			if err != nil {
				return 0, failed("listen", err)
			}
			if to, err = unix.Getsockname(l); err != nil {
				return 0, failed("getsockname", err)
			}
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return 0, failed("socket", err)
		}
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<30)
		if err := again(func() error { return unix.Connect(fd, to) }); err != nil && err != unix.EISCONN {
			return 0, failed("connect", err)
		}
		n, err := pour(fd)
		if err == nil && orphan {
			err = unix.Close(fd)
		} else if err == nil {
			_, _, err = unix.Accept(l)
		}
		return n, failed("accept", err)
	}, nil
}

// pour writes until there is no room.
func pour(fd int) (n int, err error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return 0, failed("fcntl", err)
	}
	for {
		w, err := unix.Write(fd, mebibyte[:32<<10])
		switch err {
		case nil:
			n += w
		case unix.EAGAIN:
			return n, nil
		default:
			return n, failed("write", err)
		}
	}
}

// holdDatagrams fills the queue of a UDP socket, which is its own peer.
func holdDatagrams() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return 0, failed("socket", err)
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<30)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, failed("bind", err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		return 0, failed("getsockname", err)
	}
	// What doesn't fit is dropped without a word.
	for range 64 {
		if err := unix.Sendto(fd, mebibyte[:32<<10], unix.MSG_DONTWAIT, own); err != nil {
			return 0, failed("sendto", err)
		}
	}
	size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	return size, failed("getsockopt", err)
}

func holdPipes(args) (func() (int, error), func()) {
	return func() (int, error) {
		var p [2]int
		if err := unix.Pipe(p[:]); err != nil {
			return 0, failed("pipe", err)
		}
		if _, err := unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, mib); err != nil {
			return 0, failed("fcntl F_SETPIPE_SZ", err)
		}
		n, err := unix.Write(p[1], mebibyte)
		return n, failed("write", err)
	}, nil
}

// holdMappings cuts a mapping into pieces and has children with the same.
func holdMappings(args) (func() (int, error), func()) {
	const pieces = 40000
	cut := false
	var pids []int
	return func() (int, error) {
			if !cut {
				p, err := raw("mmap", unix.SYS_MMAP, 0, pieces*4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE, none, 0)
				if err != nil {
					return 0, err
				}
				for i := uintptr(0); i < pieces; i += 2 {
					if _, err := raw("mprotect", unix.SYS_MPROTECT, p+i*4096, 4096, unix.PROT_NONE); err != nil {
						return 0, err
					}
				}
				cut = true
				return pieces * 200, nil
			}
			pid, errno := rawFork(0)
			if errno != 0 {
				return 0, failed("fork", errno)
			}
			if pid == 0 {
				park()
			}
			pids = append(pids, pid)
			return pieces * 200, nil
		}, func() {
			for _, pid := range pids {
				unix.Kill(pid, unix.SIGKILL)
				unix.Wait4(pid, nil, 0, nil)
			}
		}
}

// holdLocks locks every second byte of files in the working directory.
func holdLocks(a args) (func() (int, error), func()) {
	n := 0
	return func() (int, error) {
			const locks = 1024
			n++
			fd, err := unix.Open(a.str("dir")+"/lock"+strconv.Itoa(n), unix.O_RDWR|unix.O_CREAT, 0o600)
			if err != nil {
				return 0, failed("open", err)
			}
			for i := range locks {
				l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 * i), Len: 1}
				if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &l); err != nil {
					return 0, failed("fcntl F_SETLK", err)
				}
			}
			return locks * 216, nil
		}, func() {
			for i := range n {
				os.Remove(a.str("dir") + "/lock" + strconv.Itoa(i+1))
			}
		}
}

// holdPolicies gives every second page of files a policy of its own: mbind(2). On a file system
// in memory that stays with the file, which is empty and not mapped afterwards.
func holdPolicies(a args) (func() (int, error), func()) {
	n := 0
	name := func(i int) string { return a.str("dir") + "/policy" + strconv.Itoa(i) }
	return func() (int, error) {
			const pages, preferred = 4096, 1 // MPOL_PREFERRED
			n++
			fd, err := unix.Open(name(n), unix.O_RDWR|unix.O_CREAT, 0o600)
			if err != nil {
				return 0, failed("open", err)
			}
			defer unix.Close(fd)
			if err := unix.Ftruncate(fd, pages*4096); err != nil {
				return 0, failed("ftruncate", err)
			}
			p, err := raw("mmap", unix.SYS_MMAP, 0, pages*4096, unix.PROT_READ, unix.MAP_SHARED, uintptr(fd), 0)
			if err != nil {
				return 0, err
			}
			defer raw("munmap", unix.SYS_MUNMAP, p, pages*4096)
			nodes := []byte{1, 0, 0, 0, 0, 0, 0, 0}
			for i := uintptr(0); i < pages; i += 2 {
				if _, err := raw("mbind", unix.SYS_MBIND, p+i*4096, 4096, preferred, address(nodes), 8, 0); err != nil {
					return 0, err
				}
			}
			keep(nodes)
			return pages / 2 * (288 + 48), nil
		}, func() {
			for i := range n {
				os.Remove(name(i + 1))
			}
		}
}

// holdFolders opens a folder again and again, and reads a name: ext4 then keeps a block of
// names with each descriptor. Children have descriptors of their own.
func holdFolders(args) (func() (int, error), func()) {
	const each, size = 1000, 8 << 10
	path, names := []byte("/usr/bin\x00"), make([]byte, 512)
	var pids []int
	return func() (int, error) {
			pid, errno := rawFork(0)
			if errno != 0 {
				return 0, failed("fork", errno)
			}
			if pid == 0 {
				for range each {
					fd, _, errno := syscall.RawSyscall6(syscall.SYS_OPENAT, none, address(path), unix.O_RDONLY, 0, 0, 0)
					if errno != 0 {
						break
					}
					syscall.RawSyscall(syscall.SYS_GETDENTS64, fd, address(names), uintptr(len(names)))
				}
				park()
			}
			pids = append(pids, pid)
			return each * size, nil
		}, func() {
			for _, pid := range pids {
				unix.Kill(pid, unix.SIGKILL)
				unix.Wait4(pid, nil, 0, nil)
			}
		}
}

// holdLists gives folders access control lists of as many entries as an attribute can have
// (acl(5)), by descriptor. A file system in memory keeps them in the kernel's.
func holdLists(a args) (func() (int, error), func()) {
	const most = 8191
	le := binary.LittleEndian
	list := le.AppendUint32(make([]byte, 0, 4+8*most), 2)
	entry := func(tag, rights uint16, id uint32) {
		list = le.AppendUint32(le.AppendUint16(le.AppendUint16(list, tag), rights), id)
	}
	const nobody = 1<<32 - 1
	entry(1, 7, nobody)
	for range most - 4 {
		entry(2, 4, uint32(os.Getuid()))
	}
	for _, tag := range []uint16{4, 0x10, 0x20} { // group, mask, others
		entry(tag, 4, nobody)
	}
	n := 0
	name := func(i int) string { return a.str("dir") + "/list" + strconv.Itoa(i) }
	return func() (int, error) {
			n++
			if err := unix.Mkdir(name(n), 0o700); err != nil {
				return 0, failed("mkdir", err)
			}
			fd, err := unix.Open(name(n), unix.O_RDONLY|unix.O_DIRECTORY, 0)
			if err != nil {
				return 0, failed("open", err)
			}
			defer unix.Close(fd)
			for _, kind := range []string{"access", "default"} {
				if err := unix.Fsetxattr(fd, "system.posix_acl_"+kind, list, 0); err != nil {
					return 0, failed("fsetxattr", err)
				}
			}
			return 2 * (128 << 10), nil
		}, func() {
			for i := range n {
				os.Remove(name(i + 1))
			}
		}
}

// inotify makes instances, or watches with how=watches, until there are count or no
// more are to be had, and stays for some milliseconds.
func inotify(a args) (string, error) {
	want := a.num("count")
	have := 0
	var err error
	fd := -1
	for ; have < want; have++ {
		if fd < 0 || a.str("how") == "instances" {
			if fd, err = unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
				err = failed("inotify_init1", err)
				break
			}
		}
		if a.str("how") == "watches" {
			dir := a.str("dir") + "/w" + strconv.Itoa(have)
			if err = unix.Mkdir(dir, 0o700); err != nil {
				err = failed("mkdir", err)
				break
			}
			if _, err = unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
				err = failed("inotify_add_watch", err)
				break
			}
		}
	}
	time.Sleep(time.Duration(a.num("stay")) * time.Millisecond)
	return fmt.Sprintf("had %d %s", have, a.str("how")), err
}

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaceProbes are cases 48 to 53: new namespaces, and what can be mounted
// in them. Each attempt first tries to become root of a user namespace, as an
// attacker would, and goes on if it may not: outside, any user succeeds so.
var namespaceProbes = map[string]probe{
	"clone":   cloneNamespace,
	"clone3":  clone3,
	"unshare": unshare,
	"setns":   setns,
	"mount":   mountOld,
	"mount2":  mountNew,
	"root":    changeRoot,
}

// namespaceFlags are the clone(2) flags by the names of the kinds.
var namespaceFlags = map[string]uintptr{
	"user": unix.CLONE_NEWUSER, "mnt": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET,
	"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
}

func flagsOf(a args) (uintptr, error) {
	var flags uintptr
	for _, k := range strings.Split(a.str("kind"), "+") {
		f, ok := namespaceFlags[k]
		if !ok {
			return 0, fmt.Errorf("no namespace kind %q", k)
		}
		flags |= f
	}
	return flags, nil
}

// cloneNamespace makes a child with clone(2) in new namespaces.
func cloneNamespace(a args) (string, error) {
	flags, err := flagsOf(a)
	if err != nil {
		return "", err
	}
	pid, errno := rawFork(flags)
	if errno != 0 {
		return "", failed("clone", errno)
	}
	if pid == 0 {
		exit(0)
	}
	return "", reap(pid)
}

// clone3 makes a child with clone3(2), whose flags a filter cannot see.
func clone3(a args) (string, error) {
	var flags uintptr
	if a.word["kind"] != "" {
		var err error
		if flags, err = flagsOf(a); err != nil {
			return "", err
		}
	}
	v := make([]byte, 64) // struct clone_args, first version: flags at 0, exit_signal at 32
	for i := range 8 {
		v[i] = byte(flags >> (8 * i))
	}
	v[32] = byte(unix.SIGCHLD)
	p := address(v)
	pid, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, p, uintptr(len(v)), 0)
	if errno == 0 && pid == 0 {
		exit(0)
	}
	keep(v)
	if errno != 0 {
		return "", failed("clone3", errno)
	}
	return "", reap(int(pid))
}

// becomeRoot is for a forked child: a user and a mount namespace of its own
// where it may, else a mount namespace, so that no mount reaches the host.
type becomeRoot struct {
	uidMap, setgroups, gidMap []byte // contents, prepared before the fork
	uidPath, groupsPath       []byte
	gidPath, slash            []byte
}

func newBecomeRoot() *becomeRoot {
	return &becomeRoot{
		uidMap: []byte("0 " + strconv.Itoa(os.Geteuid()) + " 1"), setgroups: []byte("deny"),
		gidMap:  []byte("0 " + strconv.Itoa(os.Getegid()) + " 1"),
		uidPath: cstring("/proc/self/uid_map"), groupsPath: cstring("/proc/self/setgroups"),
		gidPath: cstring("/proc/self/gid_map"), slash: cstring("/"),
	}
}

func (b *becomeRoot) do() {
	if _, errno := call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS, 0, 0, 0, 0); errno != 0 {
		call(unix.SYS_UNSHARE, unix.CLONE_NEWNS, 0, 0, 0, 0)
	} else {
		b.put(b.groupsPath, b.setgroups)
		b.put(b.uidPath, b.uidMap)
		b.put(b.gidPath, b.gidMap)
	}
	call(unix.SYS_MOUNT, 0, address(b.slash), 0, unix.MS_REC|unix.MS_PRIVATE, 0)
}

func (b *becomeRoot) put(path, content []byte) {
	cwd := unix.AT_FDCWD
	if fd, errno := call(unix.SYS_OPENAT, uintptr(cwd), address(path), unix.O_WRONLY, 0, 0); errno == 0 {
		call(unix.SYS_WRITE, fd, address(content), uintptr(len(content)), 0, 0)
		call(unix.SYS_CLOSE, fd, 0, 0, 0, 0)
	}
}

// asRoot runs f in a forked child that has tried to become root.
func asRoot(op string, f func() syscall.Errno) error {
	b := newBecomeRoot()
	err := inChild(func() syscall.Errno {
		b.do()
		return f()
	})
	keep(b)
	return failed(op, err)
}

// unshare enters new namespaces; a user namespace first, for the others.
func unshare(a args) (string, error) {
	flags, err := flagsOf(a)
	if err != nil {
		return "", err
	}
	if flags == unix.CLONE_NEWUSER {
		return "", failed("unshare", inChild(func() syscall.Errno {
			_, errno := call(unix.SYS_UNSHARE, flags, 0, 0, 0, 0)
			return errno
		}))
	}
	return "", asRoot("unshare", func() syscall.Errno {
		_, errno := call(unix.SYS_UNSHARE, flags, 0, 0, 0, 0)
		return errno
	})
}

// setns joins the network namespace that the child is in already.
func setns(a args) (string, error) {
	path := cstring("/proc/self/ns/net")
	cwd := unix.AT_FDCWD
	defer keep(path)
	return "", asRoot("setns", func() syscall.Errno {
		call(unix.SYS_UNSHARE, unix.CLONE_NEWNET, 0, 0, 0, 0)
		var fd uintptr
		var errno syscall.Errno
		if a.word["how"] == "pidfd" {
			fd, errno = call(unix.SYS_PIDFD_OPEN, uintptr(unix.Getpid()), 0, 0, 0, 0)
		} else {
			fd, errno = call(unix.SYS_OPENAT, uintptr(cwd), address(path), 0, 0, 0)
		}
		if errno == 0 {
			_, errno = call(unix.SYS_SETNS, fd, unix.CLONE_NEWNET, 0, 0, 0)
		}
		return errno
	})
}

// scratch makes a directory to mount on and returns its path.
func scratch() ([]byte, error) {
	name := "scratch" + strconv.Itoa(unix.Getpid())
	dir, err := writable(func(dir string) error { return unix.Mkdir(dir+"/"+name, 0o777) })
	return cstring(dir + "/" + name), failed("mkdir", err)
}

// mountOld mounts with mount(2).
func mountOld(a args) (string, error) {
	dir, err := scratch()
	if err != nil {
		return "", err
	}
	defer unix.Rmdir(string(dir[:len(dir)-1]))
	tmpfs, overlay, root := cstring("tmpfs"), cstring("overlay"), cstring("/")
	options := cstring("lowerdir=/usr:/etc")
	usr := cstring("/usr")
	defer keep(dir, tmpfs, overlay, root, options, usr)
	mount := func(src, dst, kind []byte, flags uintptr, data []byte) syscall.Errno {
		p := func(b []byte) uintptr {
			if b == nil {
				return 0
			}
			return address(b)
		}
		_, errno := call(unix.SYS_MOUNT, p(src), p(dst), p(kind), flags, p(data))
		return errno
	}
	how := a.str("how")
	return "", asRoot("mount", func() syscall.Errno {
		switch how {
		case "tmpfs":
			return mount(tmpfs, dir, tmpfs, 0, nil)
		case "bind":
			return mount(root, dir, nil, unix.MS_BIND|unix.MS_REC, nil)
		case "overlay":
			return mount(overlay, dir, overlay, 0, options)
		case "remount": // make what is mounted read-only writable
			if errno := mount(nil, usr, nil, unix.MS_REMOUNT|unix.MS_BIND, nil); errno != unix.EINVAL {
				return errno
			}
			if errno := mount(usr, usr, nil, unix.MS_BIND, nil); errno != 0 {
				// Not a mount here: make it one.
				return errno
			}
			return mount(nil, usr, nil, unix.MS_REMOUNT|unix.MS_BIND, nil)
		case "umount": // uncover what is mounted over
			if errno := mount(tmpfs, dir, tmpfs, 0, nil); errno != 0 {
				_, errno = call(unix.SYS_UMOUNT2, address(root), unix.MNT_DETACH, 0, 0, 0)
				return errno
			}
			_, errno := call(unix.SYS_UMOUNT2, address(dir), unix.MNT_DETACH, 0, 0, 0)
			return errno
		}
		return unix.EDOM // no such way
	})
}

// mountNew mounts with the descriptor calls of 5.2 and later.
func mountNew(a args) (string, error) {
	dir, err := scratch()
	if err != nil {
		return "", err
	}
	defer unix.Rmdir(string(dir[:len(dir)-1]))
	tmpfs, root, empty := cstring("tmpfs"), cstring("/"), cstring("")
	attr := make([]byte, 32) // struct mount_attr: set, clear, propagation, userns
	attr[0] = unix.MOUNT_ATTR_NOSUID
	defer keep(dir, tmpfs, root, empty, attr)
	cwd := unix.AT_FDCWD
	tree := func() (uintptr, syscall.Errno) {
		return call(unix.SYS_OPEN_TREE, uintptr(cwd), address(root), unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE, 0, 0)
	}
	how := a.str("how")
	return "", asRoot(how, func() syscall.Errno {
		switch how {
		case "fsopen", "fsmount":
			fd, errno := call(unix.SYS_FSOPEN, address(tmpfs), 0, 0, 0, 0)
			if errno != 0 || how == "fsopen" {
				return errno
			}
			if _, errno = call(unix.SYS_FSCONFIG, fd, unix.FSCONFIG_CMD_CREATE, 0, 0, 0); errno != 0 {
				return errno
			}
			_, errno = call(unix.SYS_FSMOUNT, fd, 0, 0, 0, 0)
			return errno
		case "fspick":
			_, errno := call(unix.SYS_FSPICK, uintptr(cwd), address(root), 0, 0, 0)
			return errno
		case "open_tree":
			_, errno := tree()
			return errno
		case "move_mount":
			fd, errno := tree()
			if errno != 0 {
				// Without a tree: the call itself, on something that is no mount.
				_, errno = call(unix.SYS_MOVE_MOUNT, uintptr(cwd), address(root), uintptr(cwd), address(dir), 0)
				return errno
			}
			_, _, errno = syscall.RawSyscall6(unix.SYS_MOVE_MOUNT, fd, address(empty), uintptr(cwd), address(dir), unix.MOVE_MOUNT_F_EMPTY_PATH, 0)
			return errno
		case "mount_setattr":
			_, errno := call(unix.SYS_MOUNT_SETATTR, uintptr(cwd), address(root), 0, address(attr), uintptr(len(attr)))
			return errno
		}
		return unix.EDOM
	})
}

// changeRoot is chroot(2) and pivot_root(2).
func changeRoot(a args) (string, error) {
	dir, err := scratch()
	if err != nil {
		return "", err
	}
	defer unix.Rmdir(string(dir[:len(dir)-1]))
	root, tmpfs := cstring("/"), cstring("tmpfs")
	defer keep(root, tmpfs, dir)
	switch how := a.str("how"); how {
	case "chroot":
		return "", asRoot(how, func() syscall.Errno {
			_, errno := call(unix.SYS_CHROOT, address(root), 0, 0, 0, 0)
			return errno
		})
	case "pivot":
		return "", asRoot("pivot_root", func() syscall.Errno {
			if _, errno := call(unix.SYS_MOUNT, address(tmpfs), address(dir), address(tmpfs), 0, 0); errno != 0 {
				_, errno = call(unix.SYS_PIVOT_ROOT, address(root), address(root), 0, 0, 0)
				return errno
			}
			if _, errno := call(unix.SYS_CHDIR, address(dir), 0, 0, 0, 0); errno != 0 {
				return errno
			}
			dot := address(dot)
			_, errno := call(unix.SYS_PIVOT_ROOT, dot, dot, 0, 0, 0)
			return errno
		})
	}
	return "", errors.New("no such way to change the root")
}

var dot = cstring(".")

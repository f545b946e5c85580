package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileProbes are cases 1 to 10: what is outside the grants, and what is left
// behind inside them.
var fileProbes = map[string]probe{
	"read":     readOutside,
	"write":    writeOutside,
	"drop":     drop,
	"hardlink": hardlink,
	"symlink":  plantSymlink,
	"setid":    plantSetid,
	"fifo":     plantFIFO,
	"device":   plantDevice,
	"trust":    plantTrusted,
}

// slurp reads the beginning of a file.
func slurp(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", failed("open", err)
	}
	defer unix.Close(fd)
	return slurpFD(fd)
}

func slurpFD(fd int) (string, error) {
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	if err != nil {
		return "", failed("read", err)
	}
	return string(b[:n]), nil
}

// readOutside reads path in the way that how names.
func readOutside(a args) (string, error) {
	path := a.str("path")
	switch how := a.str("how"); how {
	case "open":
		return slurp(path)
	case "openat2":
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_RDONLY})
		if err != nil {
			return "", failed("openat2", err)
		}
		return slurpFD(fd)
	case "o-path": // a descriptor that allows nothing, opened again through /proc
		fd, err := unix.Open(path, unix.O_PATH, 0)
		if err != nil {
			return "", failed("open O_PATH", err)
		}
		return slurp(fmt.Sprintf("/proc/self/fd/%d", fd))
	case "symlink":
		link, err := writable(func(dir string) error { return unix.Symlink(path, dir+"/in") })
		if err != nil {
			return "", failed("symlink", err)
		}
		defer unix.Unlink(link + "/in")
		return slurp(link + "/in")
	case "proc-root":
		return slurp("/proc/self/root" + path)
	case "dotdot":
		return slurp(strings.Repeat("../", 40) + path[1:])
	case "stat":
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		return fmt.Sprintf("size %d", st.Size), failed("stat", err)
	default:
		return "", fmt.Errorf("no way to read named %q", how)
	}
}

// writable finds a directory in which f succeeds.
func writable(f func(dir string) error) (string, error) {
	var err error
	for _, dir := range []string{".", "/tmp", "/dev/shm", "/workspace", "/var/tmp"} {
		if err = f(dir); err == nil {
			return dir, nil
		}
	}
	return "", err
}

// writeOutside changes something at or beside path in the way that how names.
func writeOutside(a args) (string, error) {
	path := a.str("path")
	switch how := a.str("how"); how {
	case "create":
		return create(path + ".new")
	case "mkdir":
		return "", failed("mkdir", unix.Mkdir(path+".new", 0o777))
	case "symlink":
		return "", failed("symlink", unix.Symlink("x", path+".new"))
	case "append":
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND, 0)
		if err != nil {
			return "", failed("open", err)
		}
		_, err = unix.Write(fd, []byte("palyra was here"))
		return "", failed("write", err)
	case "truncate":
		return "", failed("truncate", unix.Truncate(path, 1))
	case "unlink":
		return "", failed("unlink", unix.Unlink(path))
	case "rename":
		return "", failed("rename", unix.Rename(path, path+".new"))
	case "chmod":
		return "", failed("chmod", unix.Chmod(path, 0))
	case "utimes":
		return "", failed("utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Sec: 1}, {Sec: 1}}, 0))
	case "xattr":
		return "", failed("setxattr", unix.Setxattr(path, "user.palyra", []byte("1"), 0))
	case "o-path-chmod": // fchmod through /proc of a descriptor that allows nothing
		fd, err := unix.Open(path, unix.O_PATH, 0)
		if err != nil {
			return "", failed("open O_PATH", err)
		}
		return "", failed("chmod", unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0))
	default:
		return "", fmt.Errorf("no way to write named %q", how)
	}
}

func create(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o666)
	if err != nil {
		return "", failed("open O_CREAT", err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("palyra was here"))
	return path, failed("write", err)
}

// drop leaves a file where a host process would find it.
func drop(a args) (string, error) { return create(a.str("path")) }

// hardlink gives a host file a name in the workspace and edits it there.
func hardlink(a args) (string, error) {
	if err := unix.Link(a.str("path"), "linked"); err != nil {
		return "", failed("link", err)
	}
	return writeOutside(args{word: map[string]string{"path": "linked", "how": "append"}})
}

// plantSymlink leaves a link out of the workspace for host tooling to follow.
func plantSymlink(a args) (string, error) {
	return "", failed("symlink", unix.Symlink(a.str("to"), a.str("name")))
}

// plantSetid makes a set-user-id or set-group-id file in the workspace. The
// ways differ in what a filter can see: the mode of openat2 is in memory.
func plantSetid(a args) (string, error) {
	const name, mode = "setid", 0o4755
	touch := func() (int, error) {
		fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT, 0o755)
		return fd, failed("open O_CREAT", err)
	}
	unix.Umask(0)
	switch how := a.str("how"); how {
	case "chmod", "chmod-setgid", "fchmod", "fchmodat", "fchmodat2":
		fd, err := touch()
		if err != nil {
			return "", err
		}
		p := cstring(name)
		defer keep(p)
		switch how {
		case "chmod":
			err = unix.Chmod(name, mode)
		case "chmod-setgid":
			err = unix.Chmod(name, 0o2755)
		case "fchmod":
			err = unix.Fchmod(fd, mode)
		case "fchmodat":
			err = unix.Fchmodat(unix.AT_FDCWD, name, mode, 0)
		case "fchmodat2":
			cwd := unix.AT_FDCWD
			_, err = raw("fchmodat2", unix.SYS_FCHMODAT2, uintptr(cwd), address(p), mode, 0)
		}
		return "", failed(how, err)
	case "open":
		_, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
		return "", failed("open with mode 4755", err)
	case "openat2":
		_, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL, Mode: mode})
		return "", failed("openat2 with mode 4755", err)
	case "mknod":
		return "", failed("mknod S_IFREG|4755", unix.Mknod(name, unix.S_IFREG|mode, 0))
	case "tmpfile":
		fd, err := unix.Open(".", unix.O_WRONLY|unix.O_TMPFILE, mode)
		if err != nil {
			return "", failed("open O_TMPFILE with mode 4755", err)
		}
		return "", failed("linkat", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW))
	case "mkdir-chmod":
		if err := unix.Mkdir(name, 0o755); err != nil {
			return "", failed("mkdir", err)
		}
		return "", failed("chmod 2777", unix.Chmod(name, 0o2777))
	default:
		return "", fmt.Errorf("no way to set an id named %q", how)
	}
}

// plantFIFO leaves a pipe in the workspace on which a host reader would block.
func plantFIFO(a args) (string, error) {
	if a.str("how") == "mknod" {
		return "", failed("mknod S_IFIFO", unix.Mknod("fifo", unix.S_IFIFO|0o666, 0))
	}
	return "", failed("mknodat S_IFIFO", unix.Mknodat(unix.AT_FDCWD, "fifo", unix.S_IFIFO|0o666, 0))
}

// plantDevice leaves a device node in the workspace.
func plantDevice(a args) (string, error) {
	kind, dev := uint32(unix.S_IFCHR), unix.Mkdev(1, 3)
	if a.str("how") == "block" {
		kind, dev = unix.S_IFBLK, unix.Mkdev(7, 0)
	}
	return "", failed("mknod", unix.Mknod("device", kind|0o666, int(dev)))
}

// plantTrusted leaves a file that other programs of the host run or believe.
func plantTrusted(a args) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(a.str("path"))
	if err != nil {
		return "", err
	}
	path := string(b)
	dir := filepath.Dir(path)
	switch how := a.str("how"); how {
	case "write", "flood":
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", failed("mkdir", err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\nid\n"), 0o755); err != nil {
			return "", failed("write", err)
		}
		if how == "write" {
			return "", nil
		}
		n, err := strconv.Atoi(a.str("n"))
		if err != nil {
			return "", err
		}
		for i := range n {
			fd, err := unix.Open("flood"+strconv.Itoa(i), unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
			if err != nil {
				return "", failed("open O_CREAT", err)
			}
			unix.Close(fd)
		}
		return fmt.Sprintf("%d files", n), nil
	case "link":
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", failed("mkdir", err)
		}
		return "", failed("symlink", unix.Symlink("../mine", path))
	case "move": // the file is there already, in a folder of another name
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return "", failed("mkdir", err)
		}
		return "", failed("rename", unix.Rename("old", dir))
	default:
		return "", fmt.Errorf("no way to plant named %q", how)
	}
}

// copySelf puts a copy of this program at path.
func copySelf(path string) error {
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o755)
}

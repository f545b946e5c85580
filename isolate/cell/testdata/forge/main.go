//go:build linux

// Forge tries to put into the folder that it starts in what would mislead a reader of an
// overlay's upper layer: marks that names are gone, that a folder's former content is hidden or
// elsewhere, set-id bits, devices. It prints the error number of each attempt, 0 if it
// succeeded, and then what it knows of its mounts.
//
// The folder has a file "was" and a folder "folder" with a file "a".
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	say := func(what string, err error) {
		var n unix.Errno
		errors.As(err, &n)
		fmt.Printf("%s %d\n", what, int(n))
	}
	say("whiteout", unix.Mknod("folder/a2", unix.S_IFCHR, 0))
	say("device", unix.Mknod("null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	say("fifo", unix.Mkfifo("fifo", 0o600))
	os.WriteFile("moved", nil, 0o600)
	say("rename-whiteout", unix.Renameat2(unix.AT_FDCWD, "moved", unix.AT_FDCWD, "moved2", unix.RENAME_WHITEOUT))
	for _, a := range []struct{ name, value string }{{"opaque", "y"}, {"opaque", "x"}, {"whiteout", ""}, {"redirect", "/.git"}, {"metacopy", ""}, {"origin", ""}} {
		for _, prefix := range []string{"user.overlay.", "trusted.overlay.", "user.overlay.overlay."} {
			say("setxattr "+prefix+a.name, unix.Setxattr("folder", prefix+a.name, []byte(a.value), 0))
			if f, err := os.Open("folder"); err == nil {
				say("fsetxattr "+prefix+a.name, unix.Fsetxattr(int(f.Fd()), prefix+a.name, []byte(a.value), 0))
				f.Close()
			}
		}
	}
	f, err := os.OpenFile("was", os.O_RDWR, 0)
	say("open", err)
	if err == nil {
		say("fallocate", unix.Fallocate(int(f.Fd()), 1, 0, 1<<26)) // FALLOC_FL_KEEP_SIZE
		say("setid", unix.Fchmod(int(f.Fd()), 0o4755))
		say("immutable", unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0x10)) // FS_IMMUTABLE_FL
		unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
		f.Close()
	}
	os.Mkdir("made", 0o700)
	say("setgid", unix.Chmod("made", 0o2755))
	fd, err := unix.Open(".", unix.O_TMPFILE|unix.O_RDWR, 0o600)
	say("tmpfile", err)
	if err == nil {
		say("link", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, "linked", unix.AT_SYMLINK_FOLLOW))
	}
	say("up", unix.Access("../../layers", unix.F_OK))
	say("upper", unix.Access("/upper", unix.F_OK))
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, " /workspace ") {
			fmt.Print("mount ", line)
		}
	}
}

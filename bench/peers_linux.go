package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// What bwrap and an OCI runtime are asked for: as near to a tier C cell as they
// can get. Neither is given a seccomp filter (bwrap wants one compiled, a cell
// brings its own), and neither has Landlock; both do less than a cell does.

// links returns the names in the root directory that lead into /usr, and those
// that are folders of their own.
func links() (symlinks map[string]string, folders []string) {
	symlinks = make(map[string]string)
	for _, l := range []string{"/bin", "/lib", "/lib64", "/sbin"} {
		if to, err := os.Readlink(l); err == nil {
			symlinks[l] = to
		} else if _, err := os.Stat(l); err == nil {
			folders = append(folders, l)
		}
	}
	return symlinks, folders
}

// bwrap returns a bwrap command line for a program.
func (l *lab) bwrap(bin, program string) []string {
	args := []string{bin, "--unshare-all", "--new-session", "--die-with-parent", "--clearenv", "--cap-drop", "ALL",
		"--ro-bind", "/usr", "/usr", "--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"}
	symlinks, folders := links()
	for at, to := range symlinks {
		args = append(args, "--symlink", to, at)
	}
	for _, f := range folders {
		args = append(args, "--ro-bind", f, f)
	}
	args = append(args, "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/workspace", "--chdir", "/workspace",
		"--uid", "1000", "--gid", "1000")
	inside := program
	if program == programNoop {
		inside = "/noop"
		args = append(args, "--ro-bind", l.noop, inside)
	}
	return append(args, "--", inside)
}

// bundle writes an OCI bundle whose container runs a program of /usr.
func (l *lab) bundle(program string) (string, error) {
	type m = map[string]any
	dir := filepath.Join(l.dir, "oci")
	rootfs := filepath.Join(dir, "rootfs")
	for _, d := range []string{"usr", "proc", "dev", "tmp", "workspace"} {
		if err := os.MkdirAll(filepath.Join(rootfs, d), 0o755); err != nil {
			return "", err
		}
	}
	tmpfs := func(at string) m {
		return m{"destination": at, "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev", "mode=1777", "size=65536k"}}
	}
	bind := func(at string) m {
		return m{"destination": at, "type": "bind", "source": at, "options": []string{"rbind", "ro", "nosuid", "nodev"}}
	}
	mounts := []m{{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=64k"}}, tmpfs("/tmp"), tmpfs("/workspace"), bind("/usr")}
	symlinks, folders := links()
	for at, to := range symlinks {
		if err := os.Symlink(to, rootfs+at); err != nil {
			return "", err
		}
	}
	for _, f := range folders {
		mounts = append(mounts, bind(f))
	}
	var namespaces []m
	for _, n := range []string{"pid", "network", "ipc", "uts", "mount"} {
		namespaces = append(namespaces, m{"type": n})
	}
	b, err := json.Marshal(m{
		"ociVersion": "1.0.2",
		"process": m{"terminal": false, "user": m{"uid": 65534, "gid": 65534}, "args": []string{program}, "env": environment(),
			"cwd": "/workspace", "noNewPrivileges": true, "capabilities": m{}},
		"root": m{"path": "rootfs", "readonly": true}, "hostname": "cell", "mounts": mounts,
		"linux": m{"namespaces": namespaces},
	})
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
}

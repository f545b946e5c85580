package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	"palyra/bench/selfbench"
)

// bundle writes an OCI bundle whose container runs a program of /usr, as near to a tier C cell
// as OCI allows. It has neither seccomp filter nor Landlock.
func bundle(base, program string) (string, error) {
	type m = map[string]any
	dir := filepath.Join(base, "oci")
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
	symlinks, folders := selfbench.Links()
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
		"process": m{"terminal": false, "user": m{"uid": 65534, "gid": 65534}, "args": []string{program}, "env": selfbench.Environment(),
			"cwd": "/workspace", "noNewPrivileges": true, "capabilities": m{}},
		"root": m{"path": "rootfs", "readonly": true}, "hostname": "cell", "mounts": mounts,
		"linux": m{"namespaces": namespaces},
	})
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
}

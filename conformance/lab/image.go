package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are those that the tests start.
var programs = []string{"cat", "chmod", "cp", "cut", "dd", "echo", "env", "false", "grep", "head", "id", "ln", "ls", "mkdir", "mv",
	"printf", "pwd", "rm", "seq", "setsid", "sh", "sleep", "sort", "tail", "touch", "tr", "true", "wc"}

// buildDisk makes an ext4 file system: as root, tier C wants one that has
// id-mapped mounts, which tmpfs got in 6.3 only.
func (l *lab) buildDisk(disk string) error {
	root, err := os.MkdirTemp(l.work, "root-")
	if err != nil {
		return err
	}
	err = os.Chmod(root, 0o755)
	for _, d := range []string{"proc", "sys", "dev", "tmp", "etc", "run", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/lib/palyra"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		err = errors.Join(err, os.Symlink("usr/"+d, filepath.Join(root, d)))
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0::/:/bin/sh\nlab:x:1000:1000::/tmp:/bin/sh\n"), 0o644))
	if err != nil {
		return err
	}
	for _, p := range programs {
		path, err := exec.LookPath(p)
		if err != nil {
			return err
		}
		libs, err := libraries(path)
		if err != nil {
			return err
		}
		to := map[string]string{path: "usr/bin/" + p}
		for _, lib := range libs {
			to[lib] = "usr" + strings.TrimPrefix(lib, "/usr")
		}
		for from, name := range to {
			if err := copyFile(from, filepath.Join(root, name)); err != nil {
				return err
			}
		}
	}
	to := filepath.Join(root, "usr/lib/palyra")
	err = command(".", "go", "build", "-o", to+"/palyra-cell", "palyra/cmd/palyra-cell")
	if err == nil {
		err = command(".", "go", "test", "-c", "-o", to+"/cell.test", "palyra/isolate/cell")
	}
	if err != nil {
		return err
	}
	return command(".", "/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-d", root, disk, "512M")
}

// buildInitrd writes an archive in cpio's "newc" format: this program as /init
// and the modules, in the order to load them.
func buildInitrd(path string, modules []string) error {
	var b bytes.Buffer
	n := 0
	add := func(name string, mode int, data []byte) {
		n++
		fmt.Fprintf(&b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00", n, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
		b.Write(make([]byte, -b.Len()&3))
		b.Write(data)
		b.Write(make([]byte, -b.Len()&3))
	}
	init, err := os.ReadFile("/proc/self/exe") // static: it uses neither net nor os/user
	if err != nil {
		return err
	}
	const insmod = "/sbin/insmod" // reads compressed modules, too
	files, err := libraries(insmod)
	if err != nil {
		return err
	}
	files = append(files, insmod)
	made := make(map[string]bool)
	mkdirs := func(path string) {
		for i, c := range path {
			if dir := path[:i]; c == '/' && !made[dir] {
				made[dir] = true
				add(dir, 0o040755, nil)
			}
		}
	}
	mkdirs("disk/")
	mkdirs("modules/")
	mkdirs("dev/")
	add("init", 0o100755, init)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		mkdirs(f[1:])
		add(f[1:], 0o100755, data)
	}
	for i, m := range modules {
		data, err := os.ReadFile(m)
		if err != nil {
			return err
		}
		add(fmt.Sprintf("modules/%02d-%s", i, filepath.Base(m)), 0o100644, data)
	}
	add("TRAILER!!!", 0, nil)
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// libraries lists what a program is linked with, as this host finds it.
func libraries(program string) (libs []string, err error) {
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	for _, f := range strings.Fields(string(out)) {
		if strings.HasPrefix(f, "/") {
			libs = append(libs, f)
		}
	}
	return libs, nil
}

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

// buildDisk makes an ext4 file system: as root, tier C wants one that has
// id-mapped mounts, which tmpfs got in 6.3 only.
func (l *lab) buildDisk(a *archive, m machine, disk string) error {
	debs, err := a.with(m.packages()...)
	if err != nil {
		return err
	}
	root := strings.TrimSuffix(disk, ".disk") + ".root"
	list, made := []byte(strings.Join(debs, "\n")), root+".packages"
	if old, err := os.ReadFile(made); err != nil || !bytes.Equal(old, list) {
		err := errors.Join(os.RemoveAll(root), os.RemoveAll(made), os.Mkdir(root, 0o755))
		if err == nil {
			err = errors.Join(unpack(root, debs), settle(root))
		}
		if err == nil {
			err = os.WriteFile(made, list, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if m.service {
		err = l.addService(m, root)
	} else {
		err = l.addTests(m, root)
	}
	if err != nil {
		return err
	}
	// Only root may own the files of a machine; an unprivileged user makes the disk in a
	// user namespace in which it is root. 5.10 doesn't know the features that newer
	// versions of mke2fs turn on.
	mke2fs, err := lookPath("mke2fs")
	if err != nil {
		return err
	}
	cmd := exec.Command(mke2fs, "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal,^orphan_file,^metadata_csum_seed,verity",
		"-E", "root_owner=0:0", "-d", root, disk, "1G")
	if err := os.Remove(disk); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	asRoot(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mke2fs: %w: %s", err, out)
	}
	return nil
}

// settle makes of unpacked packages a system: what their scripts would do.
func settle(root string) error {
	var errs []error
	for _, d := range []string{"proc", "sys", "dev", "tmp", "etc", "run", "root", "home", "srv", "var/lib", "var/log", "var/tmp"} {
		errs = append(errs, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for _, f := range []string{"passwd", "group"} {
		b, err := os.ReadFile(filepath.Join(root, "usr/share/base-passwd", f+".master"))
		errs = append(errs, err, os.WriteFile(filepath.Join(root, "etc", f), b, 0o644))
	}
	if _, err := os.Lstat(filepath.Join(root, "usr/bin/sh")); err != nil {
		errs = append(errs, os.Symlink("dash", filepath.Join(root, "usr/bin/sh")))
	}
	return errors.Join(errs...)
}

// addTests adds what machines of cells run.
func (l *lab) addTests(m machine, root string) error {
	to := filepath.Join(root, "usr/lib/palyra")
	err := errors.Join(m.build(to, "palyra/cmd/palyra", "palyra/cmd/palyra-cell", "palyra/conformance/escape", "palyra/conformance/escape/attack",
		"palyra/conformance/escape/warm"),
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0::/:/bin/sh\nlab:x:1000:1000::/tmp:/bin/sh\n"), 0o644))
	return errors.Join(err, m.golang("test", "-c", "-o", filepath.Join(to, "cell.test"), "palyra/isolate/cell"))
}

// build builds programs for the machine, static.
func (m machine) build(to string, packages ...string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return m.golang(append([]string{"build", "-ldflags", "-s -w", "-o", to + "/"}, packages...)...)
}

func (m machine) golang(args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+m.arch, "GOFLAGS=-buildvcs=false -trimpath")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", args[0], err, out)
	}
	return nil
}

// buildInitrd writes an archive in cpio's "newc" format: this program as /init
// and the modules, in the order to load them.
func (l *lab) buildInitrd(m machine, path string, modules []string) error {
	dir := filepath.Join(l.work, "init-"+m.arch)
	if err := m.build(dir, "palyra/conformance/lab"); err != nil {
		return err
	}
	init, err := os.ReadFile(filepath.Join(dir, "lab"))
	if err != nil {
		return err
	}
	var b bytes.Buffer
	n := 0
	add := func(name string, mode int, data []byte) {
		n++
		fmt.Fprintf(&b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00", n, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
		b.Write(make([]byte, -b.Len()&3))
		b.Write(data)
		b.Write(make([]byte, -b.Len()&3))
	}
	for _, d := range []string{"dev", "disk", "modules"} {
		add(d, 0o040755, nil)
	}
	add("init", 0o100755, init)
	for i, name := range modules {
		data, err := os.ReadFile(name)
		if err == nil && strings.HasSuffix(name, ".xz") {
			data, err = exec.Command("xz", "-dc", name).Output()
		}
		if err != nil {
			return fmt.Errorf("module %s: %w", filepath.Base(name), err)
		}
		add(fmt.Sprintf("modules/%02d-%s", i, strings.TrimSuffix(filepath.Base(name), ".xz")), 0o100644, data)
	}
	add("TRAILER!!!", 0, nil)
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// Command lab runs the tests of isolate/cell on another kernel, in a virtual
// machine that delegates a cgroup.
//
//	go run ./conformance/lab                                        # the distribution's kernel
//	go run ./conformance/lab -kernel linux-image-6.12-cloud-amd64   # another package's
//
// What it proves, as root and as a user: the contract of isolate.Runner and
// TestCgroup hold where cgroup v2 is delegated, in the manner of systemd's
// Delegate= and of DelegateSubgroup=palyra-main: limits are read back, a tree
// that uses more memory than it may is killed and nothing else is, pids.max
// stops forks, and no group is left. Where something else is in the delegated
// group, evidence says so and calls work without. On a kernel older than the
// host's it also shows what is missing there.
//
// The machine boots a kernel package that apt finds, unpacked and not installed,
// an initramfs that is this program, and an ext4 disk with a few programs of
// this host. It has no network. It is emulated (qemu's tcg), so it needs nothing
// of the host but qemu-system-x86_64, kmod and mke2fs, and its times mean
// nothing. It says nothing about other architectures.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	if os.Getpid() == 1 {
		guest() // does not return
	}
	var l lab
	flag.StringVar(&l.kernel, "kernel", "linux-image-cloud-amd64", "package whose kernel to boot; found through apt")
	flag.StringVar(&l.work, "work", "", "directory for what is downloaded and built (default: a temporary one)")
	flag.DurationVar(&l.timeout, "timeout", 120*time.Second, "longest time that a boot may take")
	flag.Parse()
	if err := l.do(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

type lab struct {
	kernel, work string
	timeout      time.Duration
}

func (l *lab) do() error {
	if l.work == "" {
		dir, err := os.MkdirTemp("", "palyra-lab-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		l.work = dir
	}
	vmlinuz, modules, err := l.fetch()
	if err != nil {
		return err
	}
	initrd, disk := filepath.Join(l.work, "initrd"), filepath.Join(l.work, "disk")
	if err := l.buildDisk(disk); err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	if err := buildInitrd(initrd, modules); err != nil {
		return fmt.Errorf("make initramfs: %w", err)
	}
	var errs []error
	for i, s := range scenes {
		for _, uid := range []int{0, 1000} {
			if err := l.boot(vmlinuz, initrd, disk, i, uid); err != nil {
				errs = append(errs, fmt.Errorf("%s, %s as user %d: %w", l.kernel, s.test, uid, err))
			}
		}
	}
	return errors.Join(errs...)
}

// scene is one boot: a way to be started and what must come of it.
type scene struct {
	test     string // pattern
	enforced bool   // the tests must have a cgroup
	inner    string // group below the delegated one to start in
	crowded  bool   // a stranger is in the delegated group
	want     string // what the output must hold
}

var scenes = []scene{
	{test: "TestContractTierB", enforced: true},
	{test: "TestContractTierC", enforced: true},
	{test: "TestCgroup|TestDeath|TestStart", enforced: true},
	{test: "TestCgroup$", inner: "palyra-main", enforced: true},
	{test: "TestCgroup$|TestContractTierC/Ends", crowded: true, want: "unavailable: other processes are in the delegated cgroup"},
	{test: "TestCgroup$|TestContractTierC/Ends", inner: "session", want: "unavailable: cgroup v2 controllers cpu, memory, pids are not delegated"},
}

// fetch unpacks the kernel of a package without installing it.
func (l *lab) fetch() (vmlinuz string, modules []string, err error) {
	dir := filepath.Join(l.work, l.kernel)
	if _, err := os.Stat(dir); err != nil {
		name, err := l.resolve()
		if err != nil {
			return "", nil, err
		}
		if err := command(l.work, "apt-get", "download", "-q", name); err != nil {
			return "", nil, err
		}
		debs, err := filepath.Glob(filepath.Join(l.work, name+"_*.deb"))
		if err != nil || len(debs) != 1 {
			return "", nil, fmt.Errorf("download %s: %d packages, %v", name, len(debs), err)
		}
		if err := command(l.work, "dpkg-deb", "-x", debs[0], dir); err != nil {
			return "", nil, err
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return "", nil, fmt.Errorf("%s has %d kernels, %v", l.kernel, len(found), err)
	}
	// Both places: /usr is merged from Debian 13 on. A module that is missing is built in.
	for _, name := range []string{"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"} {
		err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if base := filepath.Base(path); base == name+".ko" || base == name+".ko.xz" {
				modules = append(modules, path)
			}
			return err
		})
		if err != nil {
			return "", nil, err
		}
	}
	return found[0], modules, nil
}

// resolve follows a meta package to the one that holds a kernel.
func (l *lab) resolve() (string, error) {
	out, err := exec.Command("apt-cache", "depends", l.kernel).Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache depends %q: %w", l.kernel, err)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return "linux-image-" + name, nil
		}
	}
	return l.kernel, nil
}

// boot runs the machine and judges its console.
func (l *lab) boot(vmlinuz, initrd, disk string, scene, uid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "1536", "-smp", "2",
		"-nographic", "-no-reboot", "-nic", "none", "-kernel", vmlinuz, "-initrd", initrd,
		"-drive", "if=virtio,format=raw,snapshot=on,file="+disk,
		"-append", fmt.Sprintf("console=ttyS0 panic=-1 quiet lab_uid=%d lab_scene=%d", uid, scene))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	verdict := "it ended early"
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := strings.TrimRight(lines.Text(), "\r")
		fmt.Println(line)
		if _, v, ok := strings.Cut(line, "LAB verdict "); ok { // the firmware may stand before it
			verdict = v
		}
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("not done after %v", l.timeout)
	case err != nil:
		return err
	case verdict != "<nil>":
		return errors.New(verdict)
	}
	return nil
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const cgroups = "/sys/fs/cgroup"

// guest is the first process of the machine. It ends with a verdict for the host.
func guest() {
	err := enter()
	if err == nil {
		err = delegate()
	}
	fmt.Println("LAB verdict", strings.ReplaceAll(fmt.Sprint(err), "\n", " "))
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_RESTART)
	select {}
}

// enter makes the disk the root, as switch_root(8): a cell pivots to a root of
// its own, which the kernel refuses while the root is the initial one.
func enter() error {
	if err := mount("devtmpfs", "/dev"); err != nil {
		return err
	}
	modules, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, m := range modules {
		if out, err := exec.Command("/sbin/insmod", m).CombinedOutput(); err != nil {
			return fmt.Errorf("insmod %s: %w: %s", m, err, out)
		}
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err = syscall.Mount("/dev/vda", "/disk", "ext4", 0, ""); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("mount disk: %w", err)
		}
	}
	if err := errors.Join(os.Chdir("/disk"), syscall.Mount(".", "/", "", syscall.MS_MOVE, ""), syscall.Chroot("."), os.Chdir("/")); err != nil {
		return fmt.Errorf("switch root: %w", err)
	}
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"cgroup2", cgroups}, {"tmpfs", "/dev/shm"}} {
		if err := errors.Join(os.MkdirAll(m[1], 0o755), mount(m[0], m[1])); err != nil {
			return err
		}
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	fmt.Println("LAB kernel", strings.TrimSpace(string(release)))
	return errors.Join(err, os.Setenv("PATH", "/usr/bin"), os.Chmod("/tmp", 0o1777), os.Chmod("/dev/shm", 0o1777))
}

func mount(kind, on string) error {
	if err := syscall.Mount(kind, on, kind, 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", on, err)
	}
	return nil
}

// delegate plays the scene that the kernel's parameters name, which the kernel
// hands on as environment.
func delegate() error {
	if err := os.WriteFile(cgroups+"/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0); err != nil {
		return err
	}
	uid, err := strconv.Atoi(os.Getenv("lab_uid"))
	scene, err2 := strconv.Atoi(os.Getenv("lab_scene"))
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	return scenes[scene].play(uid)
}

// play makes a group, hands it to the user as systemd does (cgroups(7),
// "delegation"), runs the tests in it and looks at what is left.
func (s scene) play(uid int) error {
	group, tmp := filepath.Join(cgroups, "lab.scope"), "/tmp/lab"
	start := filepath.Join(group, s.inner)
	if err := errors.Join(os.MkdirAll(start, 0o755), os.Mkdir(tmp, 0o755), os.Chown(tmp, uid, uid)); err != nil {
		return err
	}
	for _, dir := range []string{group, start} {
		for _, f := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(dir, f), uid, uid); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 110*time.Second)
	defer cancel()
	if s.crowded {
		stranger := exec.CommandContext(ctx, "/usr/bin/sleep", "1000")
		if err := startIn(start, uid, stranger); err != nil {
			return err
		}
		defer stranger.Wait()
		defer cancel()
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "/usr/lib/palyra/cell.test", "-test.v", "-test.timeout", "100s", "-test.run", s.test)
	cmd.Dir, cmd.Stdout = tmp, io.MultiWriter(os.Stdout, &out)
	cmd.Stderr = cmd.Stdout
	cmd.Env = []string{"PATH=/usr/bin", "HOME=" + tmp, "TMPDIR=" + tmp, "PALYRA_TEST_CELL=/usr/lib/palyra/palyra-cell"}
	if s.enforced {
		cmd.Env = append(cmd.Env, "PALYRA_TEST_CGROUP=1") // a skip is a failure
	}
	if err := startIn(start, uid, cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return err
	}
	if !strings.Contains(out.String(), s.want) || strings.Contains(out.String(), "no tests to run") {
		return fmt.Errorf("its output lacks %q", s.want)
	}
	return filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != group && path != start && !(s.enforced && filepath.Base(path) == "palyra-main") {
			err = fmt.Errorf("group %s is left", path)
		}
		return err
	})
}

func startIn(group string, uid int, cmd *exec.Cmd) error {
	dir, err := os.Open(group)
	if err != nil {
		return err
	}
	defer dir.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()),
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	return cmd.Start()
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const cgroups = "/sys/fs/cgroup"

// say tells the host the result of a check.
func say(check, got, note string) {
	b, err := json.Marshal(result{check, got, note})
	if err != nil {
		panic("lab: internal error: " + err.Error())
	}
	fmt.Printf("%s%s\n", mark, b)
}

// verdict is "ok", or the fault.
func verdict(err error) string {
	if err == nil {
		return "ok"
	}
	return "failed: " + strings.ReplaceAll(err.Error(), "\n", "; ")
}

// guest is the first process of the machine.
func guest() {
	// The kernel hands parameters that it does not know on as environment.
	err := enter()
	if err == nil && os.Getenv("lab_service") != "" {
		err = syscall.Exec("/usr/lib/systemd/systemd", []string{"systemd"}, []string{"TERM=linux"})
	}
	if err == nil {
		err = mounts()
	}
	if err == nil {
		err = network()
	}
	if err == nil {
		say(booted, "", "")
		err = processors()
	}
	if err != nil {
		say("boot", verdict(err), "")
		halt()
	}
	cells(strings.Split(os.Getenv("lab_parts"), ","))
	halt()
}

// halt says that all was said, and ends the machine: qemu takes a reboot as the
// end.
func halt() {
	say("done", "", "")
	_ = unix.IoctlSetInt(int(os.Stdout.Fd()), unix.TCSBRK, 1) // tcdrain(3): a reboot loses what waits for the line
	syscall.Sync()
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
		image, err := os.ReadFile(m)
		if err == nil {
			err = unix.InitModule(image, "")
		}
		if err != nil {
			return fmt.Errorf("load %s: %w", m, err)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
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
	return nil
}

// mounts is what a service manager would mount.
func mounts() error {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"cgroup2", cgroups}, {"tmpfs", "/dev/shm"}, {"tmpfs", "/run"}} {
		if err := errors.Join(os.MkdirAll(m[1], 0o755), mount(m[0], m[1])); err != nil {
			return err
		}
	}
	return errors.Join(os.Setenv("PATH", "/usr/bin"), os.Chmod("/tmp", 0o1777), os.Chmod("/dev/shm", 0o1777), os.Chmod("/run", 0o755))
}

// network switches on lo and an interface of the module dummy, which drops what it's given, and
// names a name server. A call in the host's network is refused where only lo is up.
func network() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("switch on the network: %w", err)
	}
	defer unix.Close(s)
	for _, name := range []string{"lo", "dummy0"} {
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		r.SetUint16(unix.IFF_UP)
		if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r); err != nil {
			return fmt.Errorf("switch on %s: %w", name, err)
		}
		if name == "lo" {
			continue // it has its address
		}
		if err := r.SetInet4Addr([]byte{192, 0, 2, 1}); err != nil { // RFC 5737
			return err
		}
		if err := unix.IoctlIfreq(s, unix.SIOCSIFADDR, r); err != nil {
			return fmt.Errorf("give %s an address: %w", name, err)
		}
	}
	return os.WriteFile("/etc/resolv.conf", []byte("nameserver 192.0.2.1\n"), 0o644)
}

// processors starts those that wait for it (maxcpus=1).
func processors() error {
	online, err := filepath.Glob("/sys/devices/system/cpu/cpu*/online")
	for _, f := range online {
		err = errors.Join(err, os.WriteFile(f, []byte("1"), 0o644))
	}
	return err
}

func mount(kind, on string) error {
	if err := syscall.Mount(kind, on, kind, 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", on, err)
	}
	return nil
}

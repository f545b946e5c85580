package main

import (
	"fmt"
	"strings"
)

// machine is one boot.
type machine struct {
	name    string
	suite   string // of the archive; kernel and programs are from it
	arch    string // as Debian calls it
	flavour string // of the kernel
	service bool   // systemd is the first process
	clock   bool   // and a check sets its clock
	append  string // kernel parameters
	turns   []int  // of three, in which -turn plays it; nil: in each
	parts   []string
}

// parts of a machine of cells: all but the battery, which an emulated machine takes ten minutes
// for (-parts battery plays it), and warm, the contract once more for cells that waited, which the
// newest kernel plays. See cells in cells_linux.go.
var mostParts = []string{"facts", "contract", "rooted", "cgroup", "pool", "nouserns", "vsock"}

// machines in the order to play them: two at once, and the long ones first. Each turn has systemd,
// and a kernel before 6.12 or arm64.
var machines = []machine{
	{name: "trixie-systemd", suite: "trixie", arch: "amd64", flavour: "cloud-amd64", turns: []int{1}, service: true, clock: true},
	{name: "trixie-6.12", suite: "trixie", arch: "amd64", flavour: "cloud-amd64", turns: []int{2}, parts: append(mostParts, "warm")},
	{name: "bookworm-systemd", suite: "bookworm", arch: "amd64", flavour: "cloud-amd64", turns: []int{2, 0}, service: true},
	{name: "bookworm-6.1", suite: "bookworm", arch: "amd64", flavour: "cloud-amd64", turns: []int{1}, parts: mostParts},
	{name: "trixie-6.12-arm64", suite: "trixie", arch: "arm64", flavour: "cloud-arm64", turns: []int{0}, parts: []string{"facts", "contract"}},
	{name: "bullseye-5.10", suite: "bullseye", arch: "amd64", flavour: "cloud-amd64", parts: []string{"facts"}},
}

// root names the disk; machines of one name share it.
func (m machine) root() string {
	if m.service {
		return m.suite + "-" + m.arch + "-service"
	}
	return m.suite + "-" + m.arch
}

// modules are those that a machine may need, in the order to load them.
func (m machine) modules() []string {
	return []string{"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk",
		"vsock", "vmw_vsock_virtio_transport_common", "vsock_loopback", "dummy", "inet_diag", "tcp_diag"}
}

// packages are the packages of the disk, besides their dependencies.
func (m machine) packages() []string {
	p := []string{"bash", "coreutils", "dash", "grep", "sed", "util-linux", "base-passwd"}
	if m.service {
		p = append(p, "systemd", "apparmor", "passwd", "procps", "kmod", "fsverity")
	}
	return p
}

// emulator is qemu's command for this architecture.
func (m machine) emulator() []string {
	if m.arch == "arm64" {
		return []string{"qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72"}
	}
	// Without cmpxchg16b, whose emulation in qemu 7.2 can leave an operand in the
	// flags: 6.12 allocates memory with it, and panicked.
	return []string{"qemu-system-x86_64", "-cpu", "max,-cx16"}
}

func (m machine) console() string {
	if m.arch == "arm64" {
		return "ttyAMA0"
	}
	return "ttyS0"
}

// cmdline is the kernel's command line. Words with a point or without "=" that it doesn't
// know reach the first process as arguments and environment.
func (m machine) cmdline(only string) string {
	// The kernel's defences of its own against processors that guess take a quarter of the
	// emulator's time.
	words := []string{"console=" + m.console(), "panic=-1", "quiet", "sysrq_always_enabled", "mitigations=off", m.append}
	if m.service {
		words = append(words, "lab_service=1", fmt.Sprintf("lab_clock=%v", m.clock), "systemd.show_status=0", "systemd.journald.forward_to_console=0")
	} else {
		if only == "" {
			only = strings.Join(m.parts, ",")
		}
		// The second processor comes when the machine has booted, which it does faster
		// alone.
		words = append(words, "maxcpus=1", "lab_parts="+only)
	}
	return strings.Join(words, " ")
}

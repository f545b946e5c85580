package seccomp

import "fmt"

// Arch is an architecture that filters can be compiled for. The zero Arch is
// none.
type Arch uint8

// The architectures.
const (
	AMD64 Arch = iota + 1
	ARM64
)

// ParseArch takes Go's name of the architecture (runtime.GOARCH).
func ParseArch(goarch string) (Arch, error) {
	switch goarch {
	case "amd64":
		return AMD64, nil
	case "arm64":
		return ARM64, nil
	}
	return 0, fmt.Errorf("parse architecture %q: want amd64 or arm64", goarch)
}

// String is the inverse of ParseArch.
func (a Arch) String() string {
	switch a {
	case AMD64:
		return "amd64"
	case ARM64:
		return "arm64"
	}
	return "none"
}

// Audit returns the AUDIT_ARCH_* value that the kernel puts into seccomp_data.
func (a Arch) Audit() uint32 {
	switch a {
	case AMD64:
		return 0xc000003e // AUDIT_ARCH_X86_64
	case ARM64:
		return 0xc00000b7 // AUDIT_ARCH_AARCH64
	}
	return 0
}

// Number returns the number of a system call.
func (a Arch) Number(name string) (nr uint32, ok bool) {
	nr, ok = a.numbers()[name]
	return nr, ok
}

func (a Arch) numbers() map[string]uint32 {
	switch a {
	case AMD64:
		return numbersAMD64()
	case ARM64:
		return numbersARM64()
	}
	return nil
}

// x32Bit marks a call through the x32 table on amd64, which carries the same
// AUDIT_ARCH as the native one. Numbers at and above it kill there; this takes
// the numbers that look negative along.
const x32Bit = 0x40000000

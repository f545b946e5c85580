package serve

import (
	"bytes"
	"syscall"

	"palyra/isolate/internal/steps"
)

// coreLimit returns the core file limit that every program gets. It raises our own if that is
// lower and we may: a program can't, because its user namespace has no say over the host's hard
// limits.
func coreLimit() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &l); err != nil {
		return 0
	}
	if l.Max >= steps.NoCore {
		return steps.NoCore
	}
	l.Max = steps.NoCore
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &l); err != nil {
		return 0
	}
	return steps.NoCore
}

const corePattern = "/proc/sys/kernel/core_pattern"

// openCorePattern opens the variable once: each call reads it anew.
func openCorePattern() int {
	fd, err := syscall.Open(corePattern, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// coreDegraded names the handlers outside the cell that a crash would start or inform.
func (s *server) coreDegraded() []string {
	var b [128]byte // CORENAME_MAX_SIZE
	n, err := syscall.Pread(s.handler, b[:], 0)
	return handled(b[:max(n, 0)], err, s.core)
}

// handled is coreDegraded for a pattern. The kernel starts a program in it unless the limit
// forbids it; it sends the core to a socket in it (kernel 6.16) whatever the limit.
func handled(pattern []byte, err error, core uint64) []string {
	switch {
	case err != nil:
		return []string{"core: how the host handles cores is unknown"}
	case bytes.HasPrefix(pattern, []byte("|")) && core != steps.NoCore:
		return []string{"core: a crash starts the host's handler, outside of the cell"}
	case bytes.HasPrefix(pattern, []byte("@")):
		return []string{"core: a crash is sent to the host's handler, outside of the cell"}
	}
	return nil
}

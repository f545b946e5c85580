package cell

import (
	"bytes"
	"os"
	"syscall"

	"palyra/isolate/internal/steps"
)

// coreLimit returns the limit of a core file that every program gets, and raises our
// own where that is lower and we may. A program cannot: its user namespace has no say
// over hard limits of the host.
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

// corePattern says what the kernel does with cores.
const corePattern = "/proc/sys/kernel/core_pattern"

// coreDegraded names what a crash starts or tells outside of the cell.
func (s *server) coreDegraded() []string {
	b, err := os.ReadFile(corePattern)
	return handled(b, err, s.core)
}

// handled is coreDegraded for a pattern: a program in it is started unless the limit
// forbids it, a socket in it (kernel 6.16) is sent the core whatever the limit is.
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

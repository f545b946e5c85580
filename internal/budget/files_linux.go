package budget

import (
	"math"
	"syscall"
)

// Files returns how many descriptors this process may have. Go has raised the soft
// limit to the hard one by now.
func Files() int64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int64(l.Cur)
}

package cell

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// sampleEvery is how often a tree's memory is looked at where no cgroup bounds
// it. RLIMIT_DATA bounds each process exactly and at once; the samples bound
// what processes use together and what they share.
const sampleEvery = 50 * time.Millisecond

// treeMemory sums the anonymous, shared and swapped memory of the program and
// its descendants, in bytes. Memory that two of them share counts twice: the
// sum errs towards the limit. The reaper is left out, whose memory is
// palyra-cell's own.
func treeMemory(reaper int) int64 {
	var sum int64
	for _, pid := range descendants(reaper) {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err == nil {
			sum += memoryOf(string(b))
		}
	}
	return sum
}

// memoryOf adds up the lines of /proc/pid/status, proc_pid_status(5), in bytes.
func memoryOf(status string) (sum int64) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "RssAnon", "RssShmem", "VmSwap":
			n, _, _ := strings.Cut(strings.TrimSpace(value), " ")
			if v, err := strconv.ParseInt(n, 10, 64); err == nil {
				sum += v << 10
			}
		}
	}
	return sum
}

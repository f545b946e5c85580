package cell

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// sampleEvery is how often a tree's memory is looked at where no cgroup bounds
// it. RLIMIT_DATA bounds each process exactly and at once; the samples bound
// what processes use together and what they share.
const sampleEvery = 50 * time.Millisecond

// overQuota reports whether a directory holds more than bytes of allocated
// blocks or more than inodes files. It stops at the first of the two.
func overQuota(dir string, bytes, inodes int64) bool {
	over := errors.New("over")
	return filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone since, or not ours to read: what is unreadable is still bounded by the walk's count
		}
		inodes--
		if fi, err := d.Info(); err == nil {
			bytes -= fi.Sys().(*syscall.Stat_t).Blocks * 512
		}
		if inodes < 0 || bytes < 0 {
			return over
		}
		return nil
	}) == over
}

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

package budget

import (
	"os"
	"path"
	"strconv"
	"strings"
)

// Memory returns how many bytes of memory this process may use. If limited is true, it is
// the least memory.max of its cgroups (limit_in_bytes of version 1), else all memory of the
// host. It is 0 if neither can be read.
//
// proc_pid_cgroup(5), Documentation/admin-guide/cgroup-v2.rst.
func Memory() (bytes int64, limited bool) { return memoryIn("/") }

func memoryIn(root string) (bytes int64, limited bool) {
	if b, err := os.ReadFile(root + "proc/meminfo"); err == nil {
		for l := range strings.Lines(string(b)) {
			if f := strings.Fields(l); len(f) == 3 && f[0] == "MemTotal:" {
				kib, _ := strconv.ParseInt(f[1], 10, 53)
				bytes = kib << 10
			}
		}
	}
	groups, _ := os.ReadFile(root + "proc/self/cgroup")
	for l := range strings.Lines(string(groups)) {
		f := strings.SplitN(strings.TrimSpace(l), ":", 3) // number, controllers, path
		if len(f) != 3 {
			continue
		}
		var dir, file string
		switch {
		case f[0] == "0":
			dir, file = root+"sys/fs/cgroup", "memory.max"
		case strings.Contains(","+f[1]+",", ",memory,"):
			dir, file = root+"sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for at := path.Clean("/" + f[2]); ; at = path.Dir(at) {
			b, err := os.ReadFile(path.Join(dir, at, file))
			// "max" is no number; version 1 writes a number that no machine has.
			if n, perr := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && perr == nil && n > 0 && (bytes == 0 || n < bytes) {
				bytes, limited = n, true
			}
			if at == "/" {
				break
			}
		}
	}
	return bytes, limited
}

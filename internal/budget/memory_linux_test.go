package budget

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		files   map[string]string
		want    int64
		limited bool
	}{
		"nothing": {},
		"no limit": {map[string]string{"proc/meminfo": "MemTotal:  1024 kB\nMemFree: 1 kB\n", "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n"}, 1 << 20, false},
		"the parent's": {map[string]string{"proc/meminfo": "MemTotal:  1024 kB\n", "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max": "4096\n", "sys/fs/cgroup/a/b/memory.max": "8192\n"}, 4096, true},
		"version 1": {map[string]string{"proc/meminfo": "MemTotal:  1024 kB\n", "proc/self/cgroup": "3:cpu:/x\n2:memory:/a\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "5000\n"}, 5000, true},
	} {
		root := t.TempDir() + "/"
		for file, text := range tt.files {
			if err := os.MkdirAll(filepath.Dir(root+file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root+file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, limited := memoryIn(root); got != tt.want || limited != tt.limited {
			t.Errorf("%s: got %d %v, want %d %v", name, got, limited, tt.want, tt.limited)
		}
	}
	if n, _ := Memory(); n == 0 {
		t.Error("this host says nothing of its memory")
	}
}

package measure

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Machine describes the measuring machine, as far as files tell.
type Machine struct {
	System  string            `json:"system"` // GOOS/GOARCH
	CPUs    int               `json:"cpus"`
	CPU     string            `json:"cpu"`
	Memory  int64             `json:"memory_kb"`
	Kernel  string            `json:"kernel"`
	UID     int               `json:"uid"`
	Go      string            `json:"go"`
	StateFS string            `json:"state_fs"` // file system of the state directory, which decides the cost of fsync
	Load    string            `json:"load"`     // /proc/loadavg when the run began
	LoadEnd string            `json:"load_end"`
	Tools   map[string]string `json:"tools"` // versions of peers
	Cell    string            `json:"cell"`  // the confinement in force, by the evidence of a tier C cell
}

// ReadMachine reads the facts. dir is where state is written.
func ReadMachine(dir string) Machine {
	return Machine{System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), CPU: field("/proc/cpuinfo", "model name"),
		Memory: kilobytes("/proc/meminfo", "MemTotal"), Kernel: line("/proc/sys/kernel/osrelease"), UID: os.Geteuid(), Go: runtime.Version(),
		StateFS: fileSystem(text("/proc/self/mounts"), dir), Load: LoadAverage(), Tools: make(map[string]string)}
}

// line returns a file's trimmed text, "" without a file.
func line(path string) string { return strings.TrimSpace(text(path)) }

func text(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// field returns the text after "name:" in a file, "" for none.
func field(path, name string) string {
	for l := range strings.Lines(text(path)) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// kilobytes returns a field that is a number of kB, 0 for none.
func kilobytes(path, name string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(field(path, name), " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// LoadAverage returns the three averages of /proc/loadavg, "" without that.
func LoadAverage() string {
	f := strings.Fields(line("/proc/loadavg"))
	return strings.Join(f[:min(3, len(f))], " ")
}

// fileSystem returns the type of dir's file system, from the text of /proc/self/mounts.
func fileSystem(mounts, dir string) string {
	best, kind := -1, "unknown"
	for l := range strings.Lines(mounts) {
		f := strings.Fields(l)
		if len(f) < 3 {
			continue
		}
		at := strings.TrimSuffix(f[1], "/") + "/"
		if strings.HasPrefix(dir+"/", at) && len(at) >= best {
			best, kind = len(at), f[2]
		}
	}
	return kind
}

type counts struct {
	netns int   // -1: can't be read
	slab  int64 // kB
}

func (c counts) max(d counts) counts { return counts{max(c.netns, d.netns), max(c.slab, d.slab)} }

func readLoad() counts {
	return counts{slabObjects(text("/proc/slabinfo"), "net_namespace"), kilobytes("/proc/meminfo", "Slab")}
}

// slabObjects returns the number of objects in use in a slab cache, from the text of
// /proc/slabinfo. It returns -1 if that can't be read, as by any plain user.
func slabObjects(slabinfo, cache string) int {
	for l := range strings.Lines(slabinfo) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == cache {
			if n, err := strconv.Atoi(f[1]); err == nil {
				return n
			}
		}
	}
	return -1
}

// processors is the time of all processors together since the system began.
type processors struct{ all, used, idle time.Duration }

func (p processors) since(q processors) processors {
	return processors{p.all - q.all, p.used - q.used, p.idle - q.idle}
}

// busy is the share of time in which no processor was idle. Time that the host gave to other
// guests counts as busy. It's 0 if unknown.
func (p processors) busy() float64 {
	return Over(float64(p.all-p.idle), float64(p.all))
}

func readProcessors() processors { return processorTime(line("/proc/stat")) }

// processorTime reads the first line of /proc/stat (proc_stat(5)), in ticks of 10 ms: user,
// nice, system, idle, iowait, irq, softirq, steal. The time of this system's own guests is in
// user already.
func processorTime(stat string) (p processors) {
	first, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(first)
	if len(f) < 9 || f[0] != "cpu" {
		return processors{}
	}
	for i, s := range f[1:9] {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return processors{}
		}
		d := time.Duration(n) * 10 * time.Millisecond
		p.all += d
		switch i {
		case 3, 4:
			p.idle += d
		case 7:
		default:
			p.used += d
		}
	}
	return p
}

// The tolerance of settled. The rest of the machine shares the slab, and each CPU keeps some
// slabs of seven net_namespace objects that count as in use.
const (
	slabSlack  = 4 << 10 // kB
	netnsSlack = 28
)

// settled reports whether a storm left nothing worth naming behind.
func settled(before, now counts) bool {
	return now.slab <= before.slab+slabSlack && (before.netns < 0 || now.netns <= before.netns+netnsSlack)
}

// String describes the machine in a few lines.
func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d CPUs (%s), %d MiB, kernel %s, uid %d, %s, state on %s, load %s before and %s after",
		m.System, m.CPUs, m.CPU, m.Memory>>10, m.Kernel, m.UID, m.Go, m.StateFS, m.Load, m.LoadEnd)
	if m.Cell != "" {
		s += "; in force in the tier C cell: " + m.Cell
	}
	return s
}

// Memory is the part of a system's memory that cells use, in kB, from /proc/meminfo.
type Memory struct {
	Kernel    int64 // slab and percpu
	Stacks    int64 // kernel stacks and page tables
	Anonymous int64 // anonymous and shared memory
}

// ReadMemory reads it; unreadable values are zero.
func ReadMemory() Memory {
	kb := func(names ...string) (sum int64) {
		for _, n := range names {
			sum += kilobytes("/proc/meminfo", n)
		}
		return sum
	}
	return Memory{Kernel: kb("Slab", "Percpu"), Stacks: kb("KernelStack", "PageTables"), Anonymous: kb("AnonPages", "Shmem")}
}

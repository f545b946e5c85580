package cell

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"palyra/isolate/internal/sys"
)

// palyra-cell has a private copy of the host's mounts, made when it started. Later mounts and
// unmounts reach the process that seals a call, but not the cell that runs it. So a palyra-cell
// is good for one state of the mounts that matter to a call: those on the way to its folders or
// inside them, and likewise for the folders that every cell shows.

// shownPaths are the host's folders that every cell shows; see collect.
var shownPaths = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/dev"}

// mounts is our own mount table, and its changes since it was first read.
type mounts struct {
	file *os.File // /proc/self/mountinfo

	mu      sync.Mutex
	first   map[string]bool // immutable: the mounts then
	changed []string        // guarded by mu: mount points that are new, different or gone
}

// newMounts reads the table. Call it before starting palyra-cell, so that no change is missed.
func newMounts() (*mounts, error) {
	// Not os.Open: Go would poll the file too, and only the first poll reports a change.
	const path = "/proc/self/mountinfo"
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	m := &mounts{file: f}
	if m.first, err = m.read(); err != nil {
		f.Close()
		return nil, err
	}
	return m, nil
}

// read returns the mounts, each by its first six fields of proc_pid_mountinfo(5). Propagation,
// in the fields after them, doesn't matter here.
func (m *mounts) read() (map[string]bool, error) {
	text, err := io.ReadAll(io.NewSectionReader(m.file, 0, 1<<30))
	if err != nil {
		return nil, err
	}
	all := make(map[string]bool)
	for line := range bytes.Lines(text) {
		f := strings.SplitN(string(line), " ", 7)
		if len(f) < 7 {
			return nil, fmt.Errorf("mount %q: %d fields", line, len(f))
		}
		all[strings.Join(f[:6], " ")] = true
	}
	return all, nil
}

// since returns a mount point that matters to a call with these folders and has changed, or "". It
// costs one system call if nothing was mounted or unmounted.
func (m *mounts) since(folders []string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	told, err := sys.MountsChanged(int(m.file.Fd()))
	if err != nil {
		return "", err
	}
	if told {
		now, err := m.read()
		if err != nil {
			return "", err
		}
		m.changed = append(difference(m.first, now), difference(now, m.first)...)
	}
	for _, point := range m.changed {
		for _, path := range slices.Concat(shownPaths, folders) {
			if related(point, path) {
				return point, nil
			}
		}
	}
	return "", nil
}

// spaces undoes mountinfo's escapes in paths.
var spaces = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)

func difference(a, b map[string]bool) (points []string) {
	for line := range a {
		if !b[line] {
			points = append(points, spaces.Replace(strings.Split(line, " ")[4]))
		}
	}
	return points
}

// related reports whether one of the paths is the other, or leads to it.
func related(a, b string) bool {
	a, b = strings.TrimSuffix(a, "/")+"/", strings.TrimSuffix(b, "/")+"/"
	return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

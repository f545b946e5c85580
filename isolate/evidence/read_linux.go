package evidence

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Read fills the groups of e that are read from the process pid: host,
// namespaces of the cell, process, limits and mounts. proc is where a proc file
// system is mounted that shows pid. The caller holds the process in place; what
// is read is what was true at some moment between call and return. On an error
// e is unchanged.
func Read(e *Evidence, proc string, pid int) error {
	host, err := ReadHost(proc)
	if err != nil {
		return err
	}
	ns, err := ReadNamespaces(proc, pid)
	if err != nil {
		return err
	}
	process, err := ReadProcess(proc, pid)
	if err != nil {
		return err
	}
	limits, err := ReadLimits(proc, pid)
	if err != nil {
		return err
	}
	mounts, err := ReadMounts(proc, pid)
	if err != nil {
		return err
	}
	e.Host, e.Process, e.Limits, e.Mounts = host, process, limits, mounts
	e.Namespaces.Basis, e.Namespaces.Cell = Observed, ns
	return nil
}

// ReadHost identifies the running kernel.
func ReadHost(proc string) (Host, error) {
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		return Host{}, fmt.Errorf("uname: %w", err)
	}
	id, err := os.ReadFile(filepath.Join(proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return Host{}, fmt.Errorf("read boot id: %w", err)
	}
	return Host{Basis: Observed, Release: text(u.Release[:]), Machine: text(u.Machine[:]), BootID: plain(strings.TrimSpace(string(id)))}, nil
}

// text converts a NUL-terminated field of utsname; its type differs between
// architectures.
func text[T int8 | uint8](field []T) string {
	var b []byte
	for _, c := range field {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return plain(string(b))
}

// ReadNamespaces returns the inode numbers of the process's namespaces, by kind.
// The time namespace is the one for its children: a process that was cloned
// with CLONE_VM enters its own at execve (time_namespaces(7)). A kind that the
// kernel does not have is left out.
func ReadNamespaces(proc string, pid int) (map[string]uint64, error) {
	out := make(map[string]uint64, len(kinds))
	for _, kind := range kinds {
		name := kind
		if kind == "time" {
			name = "time_for_children"
		}
		link, err := os.Readlink(filepath.Join(proc, strconv.Itoa(pid), "ns", name))
		if os.IsNotExist(err) && len(out) > 0 { // the process exists
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read namespaces: %w", err)
		}
		if out[kind], err = parseNamespace(link); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ReadProcess returns identity, privileges, session and descriptors.
func ReadProcess(proc string, pid int) (Process, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return Process{}, fmt.Errorf("read process: %w", err)
	}
	p, err := parseStatus(b)
	if err != nil {
		return Process{}, err
	}
	if b, err = os.ReadFile(filepath.Join(dir, "stat")); err != nil {
		return Process{}, fmt.Errorf("read process: %w", err)
	}
	id, session, tty, err := parseStat(b)
	if err != nil {
		return Process{}, err
	}
	if id == session {
		p.Session = 1
	}
	p.TTY = tty
	if p.Descriptors, err = readDescriptors(dir); err != nil {
		return Process{}, err
	}
	p.Basis = Observed
	return p, nil
}

// readDescriptors lists what is open, by number: "0 pipe", "5 /usr/bin/true cloexec".
func readDescriptors(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return nil, fmt.Errorf("read descriptors: %w", err)
	}
	var numbers []int
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, fmt.Errorf("read descriptors: %w", err)
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	lines := []string{}
	for _, n := range numbers {
		name := strconv.Itoa(n)
		link, err := os.Readlink(filepath.Join(dir, "fd", name))
		if os.IsNotExist(err) {
			continue // closed since; a process that reads itself just did so
		}
		if err != nil {
			return nil, fmt.Errorf("read descriptors: %w", err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "fdinfo", name))
		if err != nil {
			return nil, fmt.Errorf("read descriptors: %w", err)
		}
		flags, err := parseFlags(b)
		if err != nil {
			return nil, err
		}
		line := name + " " + target(link)
		if flags&syscall.O_CLOEXEC != 0 {
			line += " cloexec"
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// ReadLimits returns the resource limits in force.
func ReadLimits(proc string, pid int) (Limits, error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "limits"))
	if err != nil {
		return Limits{}, fmt.Errorf("read limits: %w", err)
	}
	l, err := parseLimits(b)
	if err != nil {
		return Limits{}, err
	}
	l.Basis = Observed
	return l, nil
}

// ReadMounts returns the mount table as the process sees it, beneath its root.
func ReadMounts(proc string, pid int) (Mounts, error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "mountinfo"))
	if err != nil {
		return Mounts{}, fmt.Errorf("read mount table: %w", err)
	}
	m, err := parseMountinfo(b)
	if err != nil {
		return Mounts{}, err
	}
	m.Basis = Observed
	return m, nil
}

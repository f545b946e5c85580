package evidence

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"palyra/internal/canon"
)

// kinds are the kinds of namespaces that evidence records.
var kinds = []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"}

// Fresh returns the kinds whose inodes are known on both sides and differ,
// sorted.
func Fresh(cell, host map[string]uint64) []string {
	fresh := []string{} // never nil: it becomes a JSON array
	for kind, inode := range cell {
		if h, ok := host[kind]; ok && h != inode {
			fresh = append(fresh, kind)
		}
	}
	slices.Sort(fresh)
	return fresh
}

// parseNamespace reads the target of a link in /proc/<pid>/ns, "net:[4026531840]".
func parseNamespace(link string) (uint64, error) {
	_, rest, ok := strings.Cut(link, ":[")
	num, ok2 := strings.CutSuffix(rest, "]")
	inode, err := strconv.ParseUint(num, 10, 64)
	if !ok || !ok2 || err != nil || inode == 0 {
		return 0, fmt.Errorf("parse namespace %q: want kind:[inode]", link)
	}
	return inode, nil
}

// parseStatus reads the lines of /proc/<pid>/status that Process has. Every
// one of them must be there: a kernel that does not print one cannot prove it.
func parseStatus(b []byte) (p Process, err error) {
	missing := map[string]bool{"Uid": true, "Gid": true, "Groups": true, "CapInh": true, "CapPrm": true, "CapEff": true,
		"CapBnd": true, "CapAmb": true, "NoNewPrivs": true, "Seccomp": true, "Seccomp_filters": true}
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if !ok || !missing[name] {
			continue // a line that we do not need, or one that came before
		}
		delete(missing, name)
		value = strings.TrimSpace(value)
		switch name {
		case "Uid":
			p.HostUID, err = parseID(value)
		case "Gid":
			p.HostGID, err = parseID(value)
		case "Groups":
			p.Groups, err = parseGroups(value)
		case "CapInh":
			p.CapInh, err = parseCaps(value)
		case "CapPrm":
			p.CapPrm, err = parseCaps(value)
		case "CapEff":
			p.CapEff, err = parseCaps(value)
		case "CapBnd":
			p.CapBnd, err = parseCaps(value)
		case "CapAmb":
			p.CapAmb, err = parseCaps(value)
		case "NoNewPrivs":
			p.NoNewPrivs, err = strconv.Atoi(value)
		case "Seccomp":
			p.Seccomp, err = strconv.Atoi(value)
		case "Seccomp_filters": // kernel 5.9
			p.Filters, err = strconv.Atoi(value)
		}
		if err != nil {
			return Process{}, fmt.Errorf("parse process status: %s: %w", name, err)
		}
	}
	for name := range missing {
		return Process{}, fmt.Errorf("parse process status: no line %q", name)
	}
	return p, nil
}

// parseID reads "real effective saved filesystem" and demands that all four are
// the same: a process with a second identity can become it.
func parseID(s string) (uint32, error) {
	f := strings.Fields(s)
	if len(f) != 4 || f[1] != f[0] || f[2] != f[0] || f[3] != f[0] {
		return 0, fmt.Errorf("%q: want four times the same", s)
	}
	id, err := strconv.ParseUint(f[0], 10, 32)
	return uint32(id), err
}

func parseGroups(s string) ([]uint32, error) {
	groups := []uint32{}
	for f := range strings.FieldsSeq(s) {
		id, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, err
		}
		groups = append(groups, uint32(id))
	}
	return groups, nil
}

func parseCaps(s string) (string, error) {
	if _, err := strconv.ParseUint(s, 16, 64); err != nil || len(s) != 16 {
		return "", fmt.Errorf("%q: want 16 hexadecimal digits", s)
	}
	return s, nil
}

// parseStat reads session and controlling terminal from /proc/<pid>/stat. The
// name, in parentheses, may hold anything; the fields follow its last ")".
func parseStat(b []byte) (pid, session, tty int, err error) {
	s := string(b)
	end := strings.LastIndexByte(s, ')')
	head, _, ok := strings.Cut(s, " (")
	if !ok || end < len(head) {
		return 0, 0, 0, errors.New("parse process stat: no name")
	}
	f := strings.Fields(s[end+1:]) // state, ppid, pgrp, session, tty_nr
	if len(f) < 5 {
		return 0, 0, 0, fmt.Errorf("parse process stat: %d fields", len(f))
	}
	pid, e1 := strconv.Atoi(head)
	session, e2 := strconv.Atoi(f[3])
	tty, e3 := strconv.Atoi(f[4])
	if err = errors.Join(e1, e2, e3); err != nil {
		return 0, 0, 0, fmt.Errorf("parse process stat: %v", err)
	}
	return pid, session, tty, nil
}

// limitNames maps the lines of /proc/<pid>/limits to short names.
var limitNames = map[string]string{
	"Max cpu time": "cpu", "Max file size": "fsize", "Max data size": "data", "Max stack size": "stack",
	"Max core file size": "core", "Max resident set": "rss", "Max processes": "nproc", "Max open files": "nofile",
	"Max locked memory": "memlock", "Max address space": "as", "Max file locks": "locks",
	"Max pending signals": "sigpending", "Max msgqueue size": "msgqueue", "Max nice priority": "nice",
	"Max realtime priority": "rtprio", "Max realtime timeout": "rttime",
}

// parseLimits reads /proc/<pid>/limits: a heading, then name, soft, hard and
// sometimes a unit in columns. All sixteen must be there.
func parseLimits(b []byte) (l Limits, err error) {
	l = Limits{Soft: make(map[string]int64), Hard: make(map[string]int64)}
	for line := range strings.Lines(string(b)) {
		if len(line) < 26 {
			continue
		}
		// The name's column is 26 wide and no name is longer (fs/proc/base.c).
		short, ok := limitNames[strings.TrimSpace(line[:25])]
		f := strings.Fields(line[25:])
		if !ok || len(f) < 2 {
			continue
		}
		soft, e1 := parseLimit(f[0])
		hard, e2 := parseLimit(f[1])
		if err := errors.Join(e1, e2); err != nil {
			return Limits{}, fmt.Errorf("parse limits: %s: %v", short, err)
		}
		l.Soft[short], l.Hard[short] = soft, hard
	}
	if len(l.Soft) != len(limitNames) {
		return Limits{}, fmt.Errorf("parse limits: %d of %d limits", len(l.Soft), len(limitNames))
	}
	return l, nil
}

func parseLimit(s string) (int64, error) {
	if s == "unlimited" {
		return -1, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && n < 0 {
		err = fmt.Errorf("negative limit %q", s)
	}
	return n, err
}

// superOptions are the options of a file system that say what it shows or how
// much it holds. The others name things of the host (devices, users, sources).
var superOptions = []string{"ro", "size", "nr_inodes", "hidepid", "subset", "nosymfollow"}

// parseMountinfo reads /proc/<pid>/mountinfo (proc_pid_mountinfo(5)) into lines
// without numbers or paths of the host:
//
//	/usr ro,nosuid,nodev,relatime ext4 private
//	/tmp rw,nosuid,nodev,relatime tmpfs private size=65536k,nr_inodes=1024
func parseMountinfo(b []byte) (m Mounts, err error) {
	m.Table = []string{}
	for line := range strings.Lines(string(b)) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		f, g := strings.Split(left, " "), strings.Split(right, " ")
		if !ok || len(f) < 6 || len(g) < 3 {
			return Mounts{}, fmt.Errorf("parse mount table: line %d: %d and %d fields", len(m.Table)+1, len(f), len(g))
		}
		propagation := "private"
		for _, opt := range f[6:] {
			switch name, _, _ := strings.Cut(opt, ":"); name {
			case "shared":
				propagation = "shared"
			case "master":
				if propagation == "private" {
					propagation = "slave"
				}
			case "unbindable":
				propagation = "unbindable"
			}
		}
		out := []string{plain(f[4]), plain(f[5]), plain(g[0]), propagation}
		var super []string
		for opt := range strings.SplitSeq(g[len(g)-1], ",") {
			if name, _, _ := strings.Cut(opt, "="); slices.Contains(superOptions, name) {
				super = append(super, plain(opt))
			}
		}
		if len(super) > 0 {
			out = append(out, strings.Join(super, ","))
		}
		m.Table = append(m.Table, strings.Join(out, " "))
	}
	if len(m.Table) == 0 {
		return Mounts{}, errors.New("parse mount table: empty")
	}
	m.Digest = canon.Sum([]byte(strings.Join(m.Table, "\n")))
	return m, nil
}

// plain makes foreign text safe to print and to put into JSON unchanged: bytes
// outside printable ASCII become \ooo, as the kernel writes a space.
func plain(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if s[i] > ' ' && s[i] < 0x7f {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "\\%03o", s[i])
		}
	}
	return b.String()
}

// target shortens what a descriptor refers to: inode numbers of pipes and
// sockets mean nothing, and a memfd's path is only its name.
func target(link string) string {
	for _, kind := range []string{"pipe", "socket"} {
		if strings.HasPrefix(link, kind+":[") {
			return kind
		}
	}
	if name, ok := strings.CutPrefix(link, "/memfd:"); ok {
		return "memfd:" + plain(strings.TrimSuffix(name, " (deleted)"))
	}
	return plain(link)
}

// parseFlags reads the flags line of /proc/<pid>/fdinfo/<n>, octal.
func parseFlags(b []byte) (uint64, error) {
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "flags:"); ok {
			return strconv.ParseUint(strings.TrimSpace(v), 8, 64)
		}
	}
	return 0, errors.New("parse descriptor flags: no line flags")
}

package evidence

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"palyra/internal/canon"
)

// kinds are the kinds of namespaces that evidence records, and what the kernel
// calls the one that is meant. The time namespace is the one for children: a
// process that was cloned with CLONE_VM enters its own at execve
// (time_namespaces(7)).
var kinds = [...]struct{ kind, entry string }{
	{"cgroup", "cgroup"}, {"ipc", "ipc"}, {"mnt", "mnt"}, {"net", "net"}, {"pid", "pid"}, {"time", "time_for_children"},
	{"user", "user"}, {"uts", "uts"},
}

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
func parseNamespace(link []byte) (uint64, error) {
	_, rest, ok := bytes.Cut(link, []byte(":["))
	num, ok2 := bytes.CutSuffix(rest, []byte("]"))
	inode, ok3 := number(num, 10, 64)
	if !ok || !ok2 || !ok3 || inode == 0 {
		return 0, fmt.Errorf("parse namespace %q: want kind:[inode]", link)
	}
	return inode, nil
}

// parseGroup reads the line of version 2 in /proc/<pid>/cgroup, cgroups(7):
// "0::/path". Those of version 1 have other numbers.
func parseGroup(b []byte) (string, error) {
	for line := range bytes.Lines(b) {
		if group, ok := bytes.CutPrefix(line, []byte("0::/")); ok {
			return "/" + string(plain(nil, bytes.TrimSuffix(group, []byte("\n")))), nil
		}
	}
	return "", errors.New(`parse cgroup: no line of version 2 ("0::/")`)
}

// networkTables is what the files of /proc/<pid>/net say, proc_pid_net(5).
type networkTables struct {
	names []string // of interfaces
	local []string // addresses
	out   int64    // routes that lead out of Loopback
}

// interfaces reads net/dev: two lines of heading, then "    lo:    1296 …".
func (n *networkTables) interfaces(b []byte) error {
	for line := range bytes.Lines(b) {
		if name, _, ok := bytes.Cut(line, []byte(":")); ok {
			n.names = append(n.names, string(plain(nil, bytes.TrimSpace(name))))
		}
	}
	if len(n.names) == 0 {
		return errors.New("parse interfaces: there is none")
	}
	return nil
}

// addresses reads net/fib_trie, in which "/32 host LOCAL" is a line below that of the address,
// "|-- 127.0.0.1". A network of which each address is local has its own length there. That of the
// loopback interface, 127.0.0.0/8, isn't told.
func (n *networkTables) addresses(b []byte) error {
	leaf := ""
	for line := range bytes.Lines(b) {
		line = bytes.TrimSpace(line)
		if a, ok := bytes.CutPrefix(line, []byte("|-- ")); ok {
			leaf = string(plain(nil, a))
		}
		size, ok := bytes.CutSuffix(line, []byte(" host LOCAL"))
		switch {
		case !ok || leaf == "127.0.0.0" && string(size) == "/8":
		case string(size) == "/32":
			n.local = append(n.local, leaf)
		default:
			n.local = append(n.local, leaf+string(plain(nil, size)))
		}
	}
	return nil
}

// loopback6 is ::1.
const loopback6 = "00000000000000000000000000000001"

// addresses6 reads net/if_inet6: loopback6 and " 01 80 10 80       lo". Others, which there
// should not be, keep this form.
func (n *networkTables) addresses6(b []byte) error {
	for line := range bytes.Lines(b) {
		word, rest, ok := bytes.Cut(line, []byte(" "))
		if !ok || len(word) != len(loopback6) || len(rest) == 0 {
			return fmt.Errorf("parse address %q", line)
		}
		if a := string(plain(nil, word)); a != loopback6 {
			n.local = append(n.local, a)
		} else {
			n.local = append(n.local, "::1")
		}
	}
	return nil
}

// routes reads net/route: a heading, then lines that begin with an interface.
func (n *networkTables) routes(b []byte) error {
	heading := true
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); !heading && (len(f) == 0 || string(f[0]) != Loopback) {
			n.out++
		}
		heading = false
	}
	return nil
}

// localRoute6 is RTF_LOCAL, linux/route.h: the address is this host's.
const localRoute6 = 0x80000000

// routes6 reads net/ipv6_route: lines of ten words, of which the first two are an address and how
// much of it counts, the ninth flags and the last the interface. What such a line makes local of
// IPv6 is an address as those of addresses are; ::1 is in both tables.
func (n *networkTables) routes6(b []byte) error {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 0 || string(f[len(f)-1]) != Loopback {
			n.out++
			continue
		}
		if len(f) != 10 {
			return fmt.Errorf("parse route %q", line)
		}
		flags, ok := number(f[8], 16, 32)
		if !ok {
			return fmt.Errorf("parse route %q", line)
		}
		if flags&localRoute6 == 0 {
			continue
		}
		var a [16]byte
		size, ok := number(f[1], 16, 8)
		if _, err := hex.Decode(a[:], f[0]); err != nil || len(f[0]) != 2*len(a) || !ok || size > 128 {
			return fmt.Errorf("parse route %q", line)
		}
		text := netip.AddrFrom16(a).String()
		if size < 128 {
			text += "/" + strconv.FormatUint(size, 10)
		}
		n.local = append(n.local, text)
	}
	return nil
}

// number parses an unsigned number of so many bits that is all of b.
func number(b []byte, base, bits int) (uint64, bool) {
	// The conversion does not allocate: no such number is longer than 32 bytes,
	// and ParseUint keeps its argument in errors only, as a clone.
	v, err := strconv.ParseUint(string(b), base, bits)
	return v, err == nil
}

// word cuts the next word off *b; words are separated by spaces and tabs. It is
// empty at the end.
func word(b *[]byte) []byte {
	s := *b
	i := 0
	for i < len(s) && (s[i] == ' ' || s[i] == '\t') {
		i++
	}
	j := i
	for j < len(s) && s[j] != ' ' && s[j] != '\t' {
		j++
	}
	*b = s[j:]
	return s[i:j]
}

// The lines of /proc/<pid>/status that Process has, as bits of a set.
var statusLines = [...]string{"Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"}

// parseStatus reads the lines of /proc/<pid>/status that Process has. Every
// one of them must be there: a kernel that does not print one cannot prove it.
// Of two with one name the first counts.
func parseStatus(b []byte) (p Process, err error) {
	seen := 0
	for line := range bytes.Lines(b) {
		key, value, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(":"))
		i := slices.Index(statusLines[:], string(key))
		if !ok || i < 0 || seen&(1<<i) != 0 {
			continue
		}
		seen |= 1 << i
		value = bytes.TrimSpace(value)
		switch statusLines[i] {
		case "Uid":
			p.HostUID, ok = parseID(value)
		case "Gid":
			p.HostGID, ok = parseID(value)
		case "Groups":
			p.Groups, ok = parseGroups(value)
		case "CapInh":
			p.CapInh, ok = parseCaps(value)
		case "CapPrm":
			p.CapPrm, ok = parseCaps(value)
		case "CapEff":
			p.CapEff, ok = parseCaps(value)
		case "CapBnd":
			p.CapBnd, ok = parseCaps(value)
		case "CapAmb":
			p.CapAmb, ok = parseCaps(value)
		case "NoNewPrivs":
			p.NoNewPrivs, ok = parseCount(value)
		case "Seccomp":
			p.Seccomp, ok = parseCount(value)
		case "Seccomp_filters": // kernel 5.9
			p.Filters, ok = parseCount(value)
		}
		if !ok {
			return Process{}, fmt.Errorf("parse process status: %s: %q", statusLines[i], value)
		}
	}
	for i, name := range statusLines {
		if seen&(1<<i) == 0 {
			return Process{}, fmt.Errorf("parse process status: no line %q", name)
		}
	}
	return p, nil
}

func parseCount(b []byte) (int, bool) {
	v, ok := number(b, 10, 31)
	return int(v), ok
}

// parseID reads "real effective saved filesystem" and demands that all four are
// the same: a process with a second identity can become it.
func parseID(b []byte) (uint32, bool) {
	first := word(&b)
	for range 3 {
		if !bytes.Equal(word(&b), first) {
			return 0, false
		}
	}
	id, ok := number(first, 10, 32)
	return uint32(id), ok && len(word(&b)) == 0
}

func parseGroups(b []byte) ([]uint32, bool) {
	groups := []uint32{} // never nil: it becomes a JSON array
	for f := word(&b); len(f) > 0; f = word(&b) {
		id, ok := number(f, 10, 32)
		if !ok {
			return nil, false
		}
		groups = append(groups, uint32(id))
	}
	return groups, true
}

func parseCaps(b []byte) (string, bool) {
	const none = "0000000000000000"
	if string(b) == none {
		return none, true // what they are, without an allocation
	}
	_, ok := number(b, 16, 64)
	return string(b), ok && len(b) == len(none)
}

// parseStat reads session and controlling terminal from /proc/<pid>/stat. The
// name, in parentheses, may hold anything; the fields follow its last ")".
func parseStat(b []byte) (pid, session, tty int, err error) {
	end := bytes.LastIndexByte(b, ')')
	head, _, ok := bytes.Cut(b, []byte(" ("))
	if !ok || end < len(head) {
		return 0, 0, 0, errors.New("parse process stat: no name")
	}
	rest := bytes.TrimSuffix(b[end+1:], []byte("\n"))
	var f [5][]byte // state, ppid, pgrp, session, tty_nr
	for i := range f {
		if f[i] = word(&rest); len(f[i]) == 0 {
			return 0, 0, 0, fmt.Errorf("parse process stat: %d fields", i)
		}
	}
	pid, ok1 := parseCount(head)
	session, ok2 := parseCount(f[3])
	// A device number, printed as an int; that of a terminal is positive.
	tty, ok3 := parseCount(f[4])
	if !ok1 || !ok2 || !ok3 {
		return 0, 0, 0, fmt.Errorf("parse process stat: %q, %q, %q: want numbers", head, f[3], f[4])
	}
	return pid, session, tty, nil
}

// limitNames maps the lines of /proc/<pid>/limits to short names, in the order
// in which the kernel prints them.
var limitNames = [...]struct{ long, short string }{
	{"Max cpu time", "cpu"}, {"Max file size", "fsize"}, {"Max data size", "data"}, {"Max stack size", "stack"},
	{"Max core file size", "core"}, {"Max resident set", "rss"}, {"Max processes", "nproc"}, {"Max open files", "nofile"},
	{"Max locked memory", "memlock"}, {"Max address space", "as"}, {"Max file locks", "locks"},
	{"Max pending signals", "sigpending"}, {"Max msgqueue size", "msgqueue"}, {"Max nice priority", "nice"},
	{"Max realtime priority", "rtprio"}, {"Max realtime timeout", "rttime"},
}

// limitName looks a line's name up, first where the last one was followed.
func limitName(long []byte, next int) int {
	for i := range limitNames {
		if at := (next + i) % len(limitNames); limitNames[at].long == string(long) {
			return at
		}
	}
	return -1
}

// parseLimits reads /proc/<pid>/limits: a heading, then name, soft, hard and
// sometimes a unit in columns. All sixteen must be there.
func parseLimits(b []byte) (l Limits, err error) {
	l = Limits{Soft: make(map[string]int64, len(limitNames)), Hard: make(map[string]int64, len(limitNames))}
	next := 0
	for line := range bytes.Lines(b) {
		if len(line) < 26 {
			continue
		}
		// The name's column is 26 wide and no name is longer (fs/proc/base.c).
		i := limitName(bytes.TrimSpace(line[:25]), next)
		if i < 0 {
			continue
		}
		next = i + 1
		rest := bytes.TrimSuffix(line[25:], []byte("\n"))
		soft, ok1 := parseLimit(word(&rest))
		hard, ok2 := parseLimit(word(&rest))
		if !ok1 || !ok2 {
			return Limits{}, fmt.Errorf("parse limits: %s: %q", limitNames[i].short, bytes.TrimSpace(line[25:]))
		}
		l.Soft[limitNames[i].short], l.Hard[limitNames[i].short] = soft, hard
	}
	if len(l.Soft) != len(limitNames) {
		return Limits{}, fmt.Errorf("parse limits: %d of %d limits", len(l.Soft), len(limitNames))
	}
	return l, nil
}

func parseLimit(b []byte) (int64, bool) {
	if string(b) == "unlimited" {
		return -1, true
	}
	n, ok := number(b, 10, 63)
	return int64(n), ok
}

// superOption reports whether an option of a file system says what it shows or
// how much it holds. The others name things of the host (devices, users,
// sources).
func superOption(name []byte) bool {
	switch string(name) {
	case "ro", "size", "nr_inodes", "hidepid", "subset", "nosymfollow", "userxattr", "max", "ptmxmode":
		return true
	}
	return false
}

// cut cuts b at the first separator; without one it takes all.
func cut(b *[]byte, sep byte) []byte {
	i := bytes.IndexByte(*b, sep)
	if i < 0 {
		head := *b
		*b = nil
		return head
	}
	head := (*b)[:i]
	*b = (*b)[i+1:]
	return head
}

// parseMountinfo reads /proc/<pid>/mountinfo (proc_pid_mountinfo(5)) into lines
// without numbers or paths of the host:
//
//	/usr ro,nosuid,nodev,relatime ext4 private
//	/tmp rw,nosuid,nodev,relatime tmpfs private size=65536k,nr_inodes=1024
func parseMountinfo(b []byte) (m Mounts, err error) {
	text := make([]byte, 0, len(b)) // all lines, so that there is one allocation and one digest
	ends := make([]int, 0, 32)
	for line := range bytes.Lines(b) {
		if len(ends) > 0 {
			text = append(text, '\n')
		}
		if text, err = mountLine(text, bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			return Mounts{}, fmt.Errorf("parse mount table: line %d: %w", len(ends)+1, err)
		}
		ends = append(ends, len(text))
	}
	if len(ends) == 0 {
		return Mounts{}, errors.New("parse mount table: empty")
	}
	all, begin := string(text), 0
	m.Table = make([]string, len(ends))
	for i, end := range ends {
		m.Table[i] = all[begin:end]
		begin = end + 1
	}
	m.Digest = canon.Sum(text)
	return m, nil
}

// mountLine appends what remains of a line.
func mountLine(out, line []byte) ([]byte, error) {
	left, right, ok := bytes.Cut(line, []byte(" - "))
	fields, after := bytes.Count(left, []byte(" "))+1, bytes.Count(right, []byte(" "))+1
	if !ok || fields < 6 || after < 3 {
		return out, fmt.Errorf("%d and %d fields", fields, after)
	}
	for range 4 { // numbers of the mount and its parent, the device, the root within it
		cut(&left, ' ')
	}
	out = append(plain(out, cut(&left, ' ')), ' ')
	out = append(plain(out, cut(&left, ' ')), ' ')
	out = append(plain(out, cut(&right, ' ')), ' ')
	propagation := "private"
	for len(left) > 0 {
		tag := cut(&left, ' ')
		switch name := cut(&tag, ':'); string(name) {
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
	out = append(out, propagation...)
	// A source may hold spaces in file systems that do not escape them.
	options := right[bytes.LastIndexByte(right, ' ')+1:]
	sep := byte(' ')
	for len(options) > 0 {
		opt := cut(&options, ',')
		rest := opt
		if superOption(cut(&rest, '=')) {
			out = plain(append(out, sep), opt)
			sep = ','
		}
	}
	return out, nil
}

// plain appends foreign text so that it is safe to print and to put into JSON
// unchanged: bytes outside printable ASCII become \ooo, as the kernel writes a
// space.
func plain(out, s []byte) []byte {
	for _, c := range s {
		if c > ' ' && c < 0x7f {
			out = append(out, c)
		} else {
			out = append(out, '\\', '0'+c>>6, '0'+c>>3&7, '0'+c&7)
		}
	}
	return out
}

// target appends a short form of what a descriptor refers to: inode numbers of
// pipes and sockets mean nothing, and a memfd's path is only its name.
func target(out, link []byte) []byte {
	switch {
	case bytes.HasPrefix(link, []byte("pipe:[")):
		return append(out, "pipe"...)
	case bytes.HasPrefix(link, []byte("socket:[")):
		return append(out, "socket"...)
	}
	if name, ok := bytes.CutPrefix(link, []byte("/memfd:")); ok {
		return plain(append(out, "memfd:"...), bytes.TrimSuffix(name, []byte(" (deleted)")))
	}
	return plain(out, link)
}

// parseFlags reads the flags line of /proc/<pid>/fdinfo/<n>, octal.
func parseFlags(b []byte) (uint64, error) {
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("flags:")); ok {
			if n, ok := number(bytes.TrimSpace(v), 8, 64); ok {
				return n, nil
			}
			break
		}
	}
	return 0, errors.New("parse descriptor flags: no line flags")
}

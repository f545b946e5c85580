package evidence

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"palyra/isolate/internal/sys"
)

// Reader reads processes through one proc file system. It is for whoever reads
// many: the host is looked at once, paths are short and buffers are kept. It is
// safe for concurrent use.
type Reader struct {
	proc int  // O_PATH
	host Host // of NewReader
	idle sync.Pool
}

// NewReader opens proc, the path of a proc file system, and identifies the host.
// Close it.
func NewReader(proc string) (*Reader, error) {
	fd, err := sys.OpenDirAt(sys.AtCWD, proc)
	if err != nil {
		return nil, fmt.Errorf("open proc: %w", err)
	}
	r := &Reader{proc: fd, idle: sync.Pool{New: func() any { return &scratch{buf: make([]byte, 16<<10)} }}}
	s := r.idle.Get().(*scratch)
	defer r.idle.Put(s)
	if r.host, err = s.host(fd); err != nil {
		sys.Close(fd)
		return nil, err
	}
	return r, nil
}

// Close closes the reader, which nobody may be using.
func (r *Reader) Close() { sys.Close(r.proc) }

// Read fills the groups of e that are read from the process pid: host,
// namespaces of the cell, process, limits and mounts. The host is the one that
// NewReader found, since it cannot change under us. The caller holds the
// process in place; what is read is what was true at some moment between call
// and return. pidfd may refer to the process too, -1 if there is none: with it
// the namespaces cost less. On an error e is unchanged.
func (r *Reader) Read(e *Evidence, pid, pidfd int) error { return r.read(e, pid, pidfd, true) }

// ReadWaiting is Read for a process that was made ahead of its call and has its
// maker's descriptors until then: none are listed.
func (r *Reader) ReadWaiting(e *Evidence, pid, pidfd int) error {
	return r.read(e, pid, pidfd, false)
}

func (r *Reader) read(e *Evidence, pid, pidfd int, descriptors bool) error {
	s := r.idle.Get().(*scratch)
	defer r.idle.Put(s)
	t, err := s.open(r.proc, pid, pidfd)
	if err != nil {
		return err
	}
	defer t.close()
	ns, err := t.namespaces()
	if err != nil {
		return err
	}
	process, err := t.process(descriptors)
	if err != nil {
		return err
	}
	limits, err := t.limits()
	if err != nil {
		return err
	}
	mounts, err := t.mounts()
	if err != nil {
		return err
	}
	e.Host, e.Process, e.Limits, e.Mounts = r.host, process, limits, mounts
	e.Namespaces.Basis, e.Namespaces.Cell = Observed, ns
	return nil
}

// ReadNetwork adds to e what is in the network namespace of the process pid. It reads nothing
// that the program could have changed: a process at the gate has not run it yet.
func (r *Reader) ReadNetwork(e *Evidence, pid int) error {
	s := r.idle.Get().(*scratch)
	defer r.idle.Put(s)
	t, err := s.open(r.proc, pid, -1)
	if err != nil {
		return err
	}
	defer t.close()
	var net networkTables
	for _, f := range []struct {
		name  string
		parse func([]byte) error
	}{{"dev", net.interfaces}, {"fib_trie", net.addresses}, {"if_inet6", net.addresses6}, {"route", net.routes}, {"ipv6_route", net.routes6}} {
		b, err := sys.ReadAt(t.dir, "net/"+f.name, &s.buf)
		if errors.Is(err, fs.ErrNotExist) && strings.Contains(f.name, "6") {
			continue // the host has no IPv6
		}
		if err == nil {
			err = f.parse(b)
		}
		if err != nil {
			return fmt.Errorf("read network: %w", err)
		}
	}
	slices.Sort(net.local)
	e.Network.Interfaces, e.Network.Addresses, e.Network.Routes = net.names, slices.Compact(net.local), &net.out
	return nil
}

// Forget gives up what the kernel keeps of the processes that were read: some ten
// entries of proc each, of a KiB each, that live as long as the process and are
// torn down when it ends, while somebody waits for that. It needs CAP_SYS_ADMIN
// over the proc file system.
func (r *Reader) Forget() error { return sys.DropEntries(r.proc) }

// Group returns the cgroup v2 group of a process, as seen from our own cgroup
// namespace: "/" or "/a/b".
func (r *Reader) Group(pid int) (string, error) {
	s := r.idle.Get().(*scratch)
	defer r.idle.Put(s)
	b, err := sys.ReadAt(r.proc, strconv.Itoa(pid)+"/cgroup", &s.buf)
	if err != nil {
		return "", fmt.Errorf("read cgroup: %w", err)
	}
	return parseGroup(b)
}

// Process opens the folder of a process, as O_PATH.
func (r *Reader) Process(pid int) (int, error) { return sys.OpenDirAt(r.proc, strconv.Itoa(pid)) }

// ReadHost identifies the running kernel.
func ReadHost(proc string) (Host, error) {
	r, err := NewReader(proc)
	if err != nil {
		return Host{}, err
	}
	defer r.Close()
	return r.host, nil
}

// one opens a process, reads something of it and closes it.
func one[T any](proc string, pid int, read func(*process) (T, error)) (v T, err error) {
	fd, err := sys.OpenDirAt(sys.AtCWD, proc)
	if err != nil {
		return v, fmt.Errorf("open proc: %w", err)
	}
	defer sys.Close(fd)
	t, err := (&scratch{buf: make([]byte, 16<<10)}).open(fd, pid, -1)
	if err != nil {
		return v, err
	}
	defer t.close()
	return read(&t)
}

// ReadNamespaces returns the inode numbers of the process's namespaces, by kind.
// A kind that the kernel does not have is left out.
func ReadNamespaces(proc string, pid int) (map[string]uint64, error) {
	return one(proc, pid, (*process).namespaces)
}

// ReadProcess returns identity, privileges, session and descriptors.
func ReadProcess(proc string, pid int) (Process, error) {
	return one(proc, pid, func(t *process) (Process, error) { return t.process(true) })
}

// ReadMounts returns the mount table as the process sees it, beneath its root.
func ReadMounts(proc string, pid int) (Mounts, error) { return one(proc, pid, (*process).mounts) }

// knownLimits is a text of /proc/<pid>/limits with what it says: mostly it is the one
// that was read before.
type knownLimits struct {
	text   string
	limits Limits
}

// scratch is what one reading needs of memory.
type scratch struct {
	last knownLimits
	buf  []byte // a file of /proc
	line []byte // a line that is being made
}

func (s *scratch) host(proc int) (Host, error) {
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		return Host{}, fmt.Errorf("uname: %w", err)
	}
	id, err := sys.ReadAt(proc, "sys/kernel/random/boot_id", &s.buf)
	if err != nil {
		return Host{}, fmt.Errorf("read boot id: %w", err)
	}
	if n := len(id); n > 0 && id[n-1] == '\n' {
		id = id[:n-1]
	}
	return Host{Basis: Observed, Release: text(u.Release[:]), Machine: text(u.Machine[:]), BootID: string(plain(nil, id))}, nil
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
	return string(plain(nil, b))
}

// process is an opened /proc/<pid>.
type process struct {
	*scratch
	dir   int // O_PATH
	pidfd int // or -1
}

func (s *scratch) open(proc, pid, pidfd int) (process, error) {
	dir, err := sys.OpenDirAt(proc, strconv.Itoa(pid))
	if err != nil {
		return process{}, fmt.Errorf("read process: %w", err)
	}
	return process{s, dir, pidfd}, nil
}

func (t *process) close() { sys.Close(t.dir) }

func (t *process) namespaces() (map[string]uint64, error) {
	out := make(map[string]uint64, len(kinds))
	for _, k := range kinds {
		if t.pidfd >= 0 {
			inode, err := sys.NamespaceInode(t.pidfd, k.entry)
			if err == nil {
				out[k.kind] = inode
				continue
			}
			if !sys.NoNamespaceIoctl(err) {
				return nil, fmt.Errorf("read namespaces: %w", err)
			}
		}
		link, err := sys.ReadlinkAt(t.dir, "ns/"+k.entry, t.buf)
		if errors.Is(err, fs.ErrNotExist) && len(out) > 0 { // the process exists
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read namespaces: %w", err)
		}
		if out[k.kind], err = parseNamespace(link); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *process) process(descriptors bool) (Process, error) {
	b, err := sys.ReadRecordAt(t.dir, "status", &t.buf)
	if err != nil {
		return Process{}, fmt.Errorf("read process: %w", err)
	}
	p, err := parseStatus(b)
	if err != nil {
		return Process{}, err
	}
	if b, err = sys.ReadRecordAt(t.dir, "stat", &t.buf); err != nil {
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
	p.Descriptors = []string{} // never nil: it becomes a JSON array
	if !descriptors {
		p.Basis = Observed
		return p, nil
	}
	if p.Descriptors, err = t.descriptors(); err != nil {
		return Process{}, fmt.Errorf("read descriptors: %w", err)
	}
	p.Basis = Observed
	return p, nil
}

// descriptors lists what is open, by number: "0 pipe", "5 /usr/bin/true cloexec".
//
// The size of /proc/<pid>/fd is the number of open descriptors (kernel 6.2; 0
// before), so that low numbers can be asked for until all are found: at the gate
// there are no others. Listing the directory costs as much as asking for each.
func (t *process) descriptors() ([]string, error) {
	const few = 8
	open, err := sys.SizeAt(t.dir, "fd")
	if err != nil {
		return nil, err
	}
	lines := make([]string, 0, 8)
	for n := 0; n < few && int64(len(lines)) < open; n++ {
		if lines, err = t.descriptor(lines, n); err != nil {
			return nil, err
		}
	}
	if open > 0 && int64(len(lines)) == open {
		return lines, nil
	}
	numbers, err := t.numbers()
	if err != nil {
		return nil, err
	}
	lines = lines[:0]
	for _, n := range numbers {
		if lines, err = t.descriptor(lines, n); err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// numbers lists the open descriptors by the directory.
func (t *process) numbers() ([]int, error) {
	names, err := sys.ListAt(t.dir, "fd")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return out, nil
}

// descriptor appends the line of one descriptor, none if it is not open: a
// process that reads itself may close one meanwhile.
func (t *process) descriptor(lines []string, n int) ([]string, error) {
	var name [32]byte
	at := strconv.AppendInt(append(name[:0], "fd/"...), int64(n), 10)
	link, err := sys.ReadlinkAt(t.dir, string(at), t.buf)
	if errors.Is(err, fs.ErrNotExist) {
		return lines, nil
	}
	if err != nil {
		return nil, err
	}
	t.line = append(strconv.AppendInt(t.line[:0], int64(n), 10), ' ')
	t.line = target(t.line, link)
	at = strconv.AppendInt(append(name[:0], "fdinfo/"...), int64(n), 10)
	b, err := sys.ReadRecordAt(t.dir, string(at), &t.buf)
	if errors.Is(err, fs.ErrNotExist) {
		return lines, nil
	}
	if err != nil {
		return nil, err
	}
	flags, err := parseFlags(b)
	if err != nil {
		return nil, err
	}
	if flags&syscall.O_CLOEXEC != 0 {
		t.line = append(t.line, " cloexec"...)
	}
	return append(lines, string(t.line)), nil
}

func (t *process) limits() (Limits, error) {
	b, err := sys.ReadRecordAt(t.dir, "limits", &t.buf)
	if err != nil {
		return Limits{}, fmt.Errorf("read limits: %w", err)
	}
	if len(b) > 0 && string(b) == t.last.text {
		l := t.last.limits
		return Limits{Observed, maps.Clone(l.Soft), maps.Clone(l.Hard)}, nil
	}
	l, err := parseLimits(b)
	if err != nil {
		return Limits{}, err
	}
	l.Basis = Observed
	t.last = knownLimits{string(b), Limits{Observed, maps.Clone(l.Soft), maps.Clone(l.Hard)}}
	return l, nil
}

func (t *process) mounts() (Mounts, error) {
	b, err := sys.ReadAt(t.dir, "mountinfo", &t.buf)
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

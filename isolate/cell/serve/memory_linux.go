package serve

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"palyra/isolate"
	"palyra/isolate/internal/sys"
	"palyra/isolate/internal/tree"
	"palyra/isolate/knob"
	"palyra/isolate/native"
	"palyra/isolate/native/seccomp"
	"palyra/isolate/tier"
)

// Where no cgroup bounds a tree, RLIMIT_DATA bounds the private memory of each
// process, exactly and at once. All else is counted in samples: what processes have
// and share, and what the kernel holds for them. Memory that a sample could not see
// is refused by the filter (seccomp.Options.AllowUncounted) or bounded by the IPC
// namespace (native.Cell.Counted).
//
// The kernel charges some of its memory to no cgroup, though a program chooses how much it is:
// locks, what it keeps of the names of open folders, TCP connections before they are accepted,
// and of a socket of the Internet's families what waits for the rest of a datagram (MSG_MORE)
// and in the queue of errors, where a clone of all that was sent can wait (SO_TIMESTAMPING, as
// a control message). So samples count that with a cgroup, too, and it may be as much again as
// the limit.

// sampleTries is how often a tree is counted in a sample in which one of its processes
// ended meanwhile, and may have left what it held to a child that was not seen. The
// largest sum counts.
const sampleTries = 4

// The sizes of the kernel's objects, rounded up; slabinfo(5) of 6.18. The last two are
// of any kind, with what belongs to them.
const (
	threadSize  = 32 << 10 // stack and task_struct
	mappingSize = 256      // vm_area_struct
	pipeSize    = 64 << 10 // which the filter keeps from growing
	fileSize    = 1 << 10  // an open file and its inode
	itemSize    = 256      // a line of fdinfo: a lock, a descriptor that epoll watches
	inodeSize   = 1 << 10  // a file of a tmpfs, with its name
	familySize  = 64       // anon_vma_chain
	procSize    = 8 << 10  // an open file of /proc: a page for its text, and the inode
	waitSize    = 512      // a TCP connection that has ended
	infoSize    = 1 << 20  // of fdinfo: as much text as the program can have it say between two samples
	mapsSize    = 16 << 20 // of maps: it's as large as the longest path of a mapped file was
	eventPart   = 2        // struct inotify_event_info for an inotify_event, at most
	eventsSize  = 8 << 20  // a full queue, 16384 events
	folderSize  = 32 << 10 // an open folder: ext4 keeps a block of names, at least 12 bytes each, in 64 bytes or more
	nameSize    = 100      // a name in a folder that an overlay merges, without the name (struct ovl_cache_entry)
)

// lockLine begins a line of /proc/pid/fdinfo.
const lockLine = "lock:"

// usualLines is the number of lines of /proc/pid/fdinfo that every file has.
const usualLines = 4

// accounts is what counting depends on. It is made once.
type accounts struct {
	exact  bool   // we are the host's root, who sees how many pages a shared mapping has
	shared string // the file system of memory that has no file, as /proc/pid/maps names it
	socket int64  // what may be queued at a socket: SO_SNDBUF, and a message beyond it
}

// newAccounts looks at the host.
func newAccounts(root bool) (accounts, error) {
	a := accounts{exact: root, socket: 2 * 212992}
	if b, err := os.ReadFile("/proc/sys/net/core/wmem_default"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			a.socket = max(a.socket, 2*n)
		}
	}
	f, err := sys.SealedFile("palyra", strings.NewReader(""))
	if err != nil {
		return a, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return a, err
	}
	dev := uint64(fi.Sys().(*syscall.Stat_t).Dev)
	a.shared = fmt.Sprintf("%02x:%02x", sys.Major(dev), sys.Minor(dev))
	return a, nil
}

// tally is one sample. It ends when the sum is over the limit.
type tally struct {
	accounts
	limit, sum int64
	grouped    bool  // a cgroup bounds what the kernel charges to one: only the rest is counted
	inet       bool  // there may be sockets of the Internet's families
	processes  int64 // the limit of processes, which bounds the walk
	possible   int64 // the most that may be beside sum
	hidden     bool  // a mapping that does not tell how much it holds
	gone       bool  // a process ended while it was looked at, or while others were looked for
	seen       map[string]bool
	families   map[string]family
	info       int64  // the longest text of fdinfo, in this sample or before
	buf        []byte // a file of /proc

	due time.Time // the deadline of the call, at which the sample ends

	private   []string         // where samples bound what is written
	removed   map[string]int64 // bytes of its files that are in no folder any more, by inode number
	shown     map[string]bool  // those that are mapped
	concealed bool             // a process keeps its open files from us
	unread    bool             // messages or system calls that wait hold files that can't be looked at

	merged func(path string) int64 // what the kernel keeps of an open folder of a staged workspace; nil for none
}

// charge adds memory that the kernel charges to a cgroup, if there is one.
func (t *tally) charge(n int64) {
	if !t.grouped {
		t.sum += n
	}
}

// family is processes that were forked from each other since one of them executed a
// program. For each private mapping the kernel notes the processes that it came
// through (anon_vma_chain), whether they live or not; but it takes the note of a dead
// one again, so that there are about as many as processes live.
type family struct{ processes, mappings int64 }

// late reports whether the call's time is over. A tree that keeps all processors busy
// makes a sample of it take seconds.
func (t *tally) late() bool { return !t.due.IsZero() && !time.Now().Before(t.due) }

func (t *tally) over() bool { return t.hit() != "" }

// hit returns the limit that the sample exceeds, "" for none.
func (t *tally) hit() string {
	switch {
	case t.sum > t.limit:
		return "memory"
	case t.hidden:
		return hitUncounted
	}
	return ""
}

// once reports whether an object that processes share is met for the first time.
func (t *tally) once(object string) bool {
	if t.seen[object] {
		return false
	}
	t.seen[object] = true
	return true
}

// tree adds up the program and its descendants. The reaper is left out, whose memory
// is palyra-cell's own.
func (t *tally) tree(reaper int) {
	t.seen, t.families = make(map[string]bool), make(map[string]family)
	t.removed, t.shown, t.concealed, t.unread = make(map[string]int64), make(map[string]bool), false, false
	w := tree.NewWalk(t.processes)
	for _, pid := range w.Descendants(reaper) {
		if t.over() || t.late() {
			return
		}
		if !sys.SameMemory(pid) && !t.process(pid) { // else it has not executed the program yet: that is ours
			t.gone = true
		}
	}
	t.gone = t.gone || w.Cut || w.Missed
	for _, f := range t.families {
		t.charge(f.mappings * (f.processes - 1) * familySize)
	}
}

// process adds a process, and reports whether it was there to the end. It is looked at
// through a thread that lives: the first one may have ended before the others, and then
// has no memory.
func (t *tally) process(pid int) bool {
	tasks, err := sys.ListAt(sys.AtCWD, "/proc/"+strconv.Itoa(pid)+"/task")
	if err != nil {
		return false
	}
	t.charge(int64(len(tasks)) * threadSize)
	for _, task := range tasks {
		dir := "/proc/" + strconv.Itoa(pid) + "/task/" + task
		b, err := sys.ReadRecordAt(sys.AtCWD, dir+"/status", &t.buf)
		if err != nil {
			continue
		}
		if n, alive := memoryOf(string(b)); alive {
			t.charge(n)
			if !t.grouped || len(t.private) > 0 {
				kin := stackOf(dir)
				f := t.families[kin]
				f.processes, f.mappings = f.processes+1, f.mappings+t.mappings(dir)
				t.families[kin] = f
			}
			t.descriptors(task, dir)
			if len(t.private) > 0 {
				t.waits(dir, tasks)
			}
			_, err := os.Lstat(dir)
			return err == nil
		}
	}
	return false
}

// memoryOf adds up the lines of /proc/pid/status, proc_pid_status(5), in bytes, but
// for RssShmem: that is of files, which count where they are, or of shared mappings,
// which t.mappings counts once each. It reports whether the thread has any memory.
func memoryOf(status string) (sum int64, alive bool) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "VmSize":
			alive = true
		case "RssAnon", "VmSwap", "VmPTE":
			n, _, _ := strings.Cut(strings.TrimSpace(value), " ")
			if v, err := strconv.ParseInt(n, 10, 64); err == nil {
				sum += v << 10
			}
		}
	}
	return sum, alive
}

// stackOf returns where the stack of a process began, proc_pid_stat(5): a number that
// is drawn at an exec and that children have, too.
func stackOf(dir string) string {
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return ""
	}
	const after = 28 - 3 // the name, which may hold anything, is the second field
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) <= after {
		return ""
	}
	return f[after]
}

// mappings adds the mappings and what the shared ones without a file hold, mapped or
// not. dir is that of a thread. It returns how many are private.
func (t *tally) mappings(dir string) (private int64) {
	f, err := os.Open(dir + "/maps")
	if err != nil {
		return 0 // it has ended; at tier B of a user, it is not dumpable
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 16<<10)
	for begun := false; !t.over(); { // a line whose rest is the program's to spell
		line, err := lines.ReadSlice('\n')
		whole := !begun
		begun = errors.Is(err, bufio.ErrBufferFull)
		if whole && len(line) > 0 {
			t.charge(mappingSize)
			t.mapping(dir, string(line))
			if _, rest, _ := bytes.Cut(line, []byte(" ")); len(rest) > 3 && rest[3] == 'p' {
				private++
			}
		}
		if err != nil && !begun {
			return private
		}
	}
	return private
}

// mapping adds what a line of maps stands for, if it is a shared one without a file:
// "7f…-7f… rw-s 00000000 00:01 1170 /dev/zero (deleted)".
func (t *tally) mapping(dir, line string) {
	f := strings.Fields(line)
	if len(f) > 6 && strings.HasSuffix(line, gone+"\n") && slices.ContainsFunc(t.private, func(p string) bool { return strings.Contains(line, " "+p+"/") }) {
		t.shown[f[4]] = true
	}
	if t.grouped || len(f) < 6 || f[3] != t.shared || !strings.HasSuffix(f[1], "s") || !t.once("mapped:"+f[4]) {
		return
	}
	switch {
	case t.exact:
		// The process's own folder lists none when its first thread has ended.
		if fi, err := os.Stat("/proc/" + path.Base(dir) + "/map_files/" + f[0]); err == nil {
			t.sum += fi.Sys().(*syscall.Stat_t).Blocks * 512
			return
		}
		t.mapped(f[0])
		t.gone = true // or it was put elsewhere
	case strings.HasPrefix(f[5], "/SYSV"):
		t.mapped(f[0]) // the IPC namespace bounds all of them
	default:
		// The filter refuses anonymous shared memory: it is /dev/zero. What was
		// unmapped of it is held as long as the rest.
		t.hidden = true
	}
}

// mapped adds an address range, "7f…-7f…".
func (t *tally) mapped(addresses string) {
	from, to, _ := strings.Cut(addresses, "-")
	a, err := strconv.ParseUint(from, 16, 64)
	b, err2 := strconv.ParseUint(to, 16, 64)
	if err == nil && err2 == nil && b > a {
		t.sum += int64(b - a)
	}
}

// descriptors adds what the open files of a process hold. Threads have the same: the
// filter refuses others.
func (t *tally) descriptors(task, dir string) {
	fds, err := os.Open(dir + "/fd")
	if err != nil {
		// It made itself not dumpable, and we are not root: any may be a socket. The
		// size is their number from 6.2 on.
		if fi, err := os.Stat(dir + "/fd"); err == nil {
			t.charge(fi.Size() * t.socket)
			// One that is ending has none any more, and looks the same until then.
			b, err := sys.ReadRecordAt(sys.AtCWD, dir+"/status", &t.buf)
			if _, alive := memoryOf(string(b)); err == nil && alive {
				t.concealed = true
			}
		}
		return
	}
	defer fds.Close()
	thread := -1
	defer func() { sys.Close(thread) }()
	for !t.over() {
		names, err := fds.Readdirnames(128)
		for _, name := range names {
			t.sum += fileSize // timers, events and notices by signal are charged in part only
			link, err := os.Readlink(dir + "/fd/" + name)
			long := errors.Is(err, syscall.ENAMETOOLONG)
			if len(t.private) > 0 && (long || t.inPrivate(link) && strings.HasSuffix(link, gone)) {
				t.withdrawn(dir + "/fd/" + name)
			}
			if long || strings.HasPrefix(link, "/") {
				t.folder(dir+"/fd/"+name, link)
			}
			// Names of files aren't kept: they're as long and as many as the program likes.
			if err != nil && !long || strings.HasPrefix(link, "pipe:") && !t.once(link) {
				continue
			}
			if strings.HasPrefix(link, "pipe:") {
				t.charge(pipeSize)
				continue
			}
			t.text(link)
			b, err := sys.ReadRecordAt(sys.AtCWD, dir+"/fdinfo/"+name, &t.buf)
			if err != nil {
				continue
			}
			sent := t.items(string(b))
			if len(t.private) > 0 && sent > 0 && t.once("sent:"+link) {
				if thread < 0 {
					thread = openThread(task)
				}
				t.onTheWay(thread, name, sent)
			}
			if !(link == watching && !t.grouped || strings.HasPrefix(link, "socket:") && (!t.grouped || t.inet) && t.once("queue:"+link)) {
				continue
			}
			if thread < 0 {
				thread = openThread(task)
			}
			n, err := t.waiting(thread, name, link)
			if _, gone := os.Lstat(dir + "/fd/" + name); err != nil && gone != nil {
				t.gone = true // with its thread, or it was closed
				continue
			}
			t.sum += n
		}
		if err != nil || len(names) == 0 {
			return
		}
	}
}

// folder adds what the kernel keeps of the names of an open folder. Descriptors may have it of
// different times, so each counts.
func (t *tally) folder(file, link string) {
	if f, err := sys.FileBehind(file); err != nil || !f.Folder {
		return
	}
	t.sum += folderSize
	if t.merged != nil {
		t.sum += t.merged(link)
	}
}

// overlaid has the names of a staged workspace's folders counted. An open folder that workspace
// and layer both have holds a list of its names, those that the layer hides included
// (ovl_dir_cache).
type overlaid struct {
	lower, upper *os.File
	view         string
	most         int64            // what one holds that can't be looked at
	held         map[string]int64 // the most that a folder of the workspace was seen to hold, in any sample
	seen         map[string]bool  // those that were looked at in this one
}

// names returns what an open folder holds, by its path in the cell.
func (o *overlaid) names(path string) int64 {
	way, removed := strings.CutSuffix(path, gone)
	rel, in := strings.CutPrefix(way+"/", o.view+"/")
	if !in {
		if path == "" { // too long to be told
			return o.most
		}
		return 0
	}
	rel = strings.TrimSuffix("./"+rel, "/")
	if !o.seen[rel] {
		o.seen[rel] = true
		if now := namesIn(o.lower, rel); now > 0 {
			now += namesIn(o.upper, rel)
			if _, known := o.held[rel]; removed && !known {
				now = max(now, o.most)
			}
			o.held[rel] = max(o.held[rel], now)
		}
	}
	return o.held[rel]
}

// namesIn returns what a list of a folder's names takes; 0 if it isn't there.
func namesIn(in *os.File, rel string) (sum int64) {
	dir, err := sys.FolderBeneath(int(in.Fd()), rel)
	if err != nil {
		return 0
	}
	defer dir.Close()
	fd, err := sys.OpenBeneath(int(dir.Fd()), ".")
	if err != nil {
		return 0
	}
	defer sys.Close(fd)
	sum = 2 * nameSize
	for buf := make([]byte, 8<<10); ; {
		names, err := sys.NextNames(fd, buf)
		if err != nil || len(names) == 0 {
			return sum
		}
		for _, n := range names {
			sum += 2 * (nameSize + int64(len(n))) // as the allocator rounds it up
		}
	}
}

// connections adds the TCP connections of a network namespace that no descriptor is of: those
// not accepted yet, those that were closed before all was sent, and the ends of others. dir is
// /proc/pid/net. A table has those of the whole host and takes the kernel milliseconds, so its
// counts come first: unless exact, t.possible gets the most that they can stand for.
func (t *tally) connections(dir string, exact bool) {
	for _, v := range [...]struct{ counts, name, table string }{{"sockstat", "TCP:", "tcp"}, {"sockstat6", "TCP6:", "tcp6"}} {
		b, err := os.ReadFile(dir + "/" + v.counts)
		if err != nil {
			continue // it has ended, or the host has no IPv6
		}
		inUse, ended := countsOf(string(b), v.name)
		t.sum += ended * waitSize
		switch {
		case inUse == 0:
		case exact && t.table(dir+"/"+v.table):
		default:
			t.possible += inUse * (sys.SocketSize + 2*native.MaxQueue)
		}
	}
}

// countsOf reads a line of sockstat, proc_pid_net(5): "TCP: inuse 5 orphan 0 tw 2 alloc 7 mem 3".
// Those in use include the ones that no descriptor is of; the ended ones only remember a port.
func countsOf(text, name string) (inUse, ended int64) {
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) == 0 || w[0] != name {
			continue
		}
		for i := 1; i+1 < len(w); i += 2 {
			n, err := strconv.ParseInt(w[i+1], 10, 64)
			switch {
			case err != nil:
			case w[i] == "inuse":
				inUse = n
			case w[i] == "tw":
				ended = n
			}
		}
	}
	return inUse, ended
}

const (
	timeWait     = "06" // TCP_TIME_WAIT, which countsOf counts
	nothingWaits = "00000000"
)

// table adds what stands in a table of TCP sockets, after its heading: "0: 0100007F:1F90
// 0100007F:C350 01 00000000:00000FA0 00:00000000 00000000 1000 0 0 …". The fourth word is the
// state, the fifth has the bytes that wait to be acknowledged and to be received, the tenth is
// the inode, 0 for a socket without a descriptor. The bytes do not say how much memory holds them.
// It reports whether it could be read.
func (t *tally) table(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() && !t.over() {
		w := strings.Fields(lines.Text())
		if len(w) < 10 || w[9] != "0" || w[3] == timeWait {
			continue
		}
		t.sum += sys.SocketSize
		for queue := range strings.SplitSeq(w[4], ":") {
			if queue != nothingWaits {
				t.sum += native.MaxQueue
			}
		}
	}
	return lines.Err() == nil
}

// watching is what an inotify instance is called in /proc/pid/fd.
const watching = "anon_inode:inotify"

// text adds what an open file of /proc keeps of what was read. That of fdinfo has one
// line for each lock and watch, and keeps all lines while it is open, though the locks
// be gone.
func (t *tally) text(link string) {
	switch {
	case !strings.HasPrefix(link, "/proc/"):
	case strings.Contains(link, "/fdinfo/"):
		t.charge(max(infoSize, 2*t.info))
	case strings.HasSuffix(link, "maps"): // smaps and numa_maps, too
		t.charge(mapsSize)
	default:
		t.charge(procSize)
	}
}

// openThread opens a pidfd for a thread, whose files it may have when the process' first
// thread has none any more; before 6.9 only for a first one. It returns -1 if it can't.
func openThread(task string) int {
	tid, err := strconv.Atoi(task)
	if err != nil {
		return -1
	}
	fd, err := sys.PidfdThread(tid)
	if err != nil {
		return -1
	}
	return fd
}

// waiting returns what waits in a socket or an inotify instance of a thread: what was
// sent through the one and what a peer that is gone left in it, the events of the other.
// With an error it's the most that may. Descriptors of the same instance count once each. With
// a cgroup only sockets of the Internet's families matter; part of what they hold is charged, but
// the kernel doesn't say which.
func (t *tally) waiting(thread int, name, link string) (int64, error) {
	fd, err := strconv.Atoi(name)
	if link == watching {
		n := 0
		if err == nil {
			n, err = sys.Untold(thread, fd)
		}
		if err != nil {
			return eventsSize, err
		}
		return int64(n) * eventPart, nil
	}
	sent, left := 0, 0
	switch {
	case err != nil:
	case t.grouped:
		sent, err = sys.InetQueued(thread, fd)
	default:
		sent, left, err = sys.Queued(thread, fd)
	}
	if err != nil {
		return t.socket, err
	}
	return int64(sent) + min(int64(left), t.socket), nil
}

// items adds what fdinfo lists, and returns how many descriptors are on their way through a socket.
// They may be sockets themselves.
func (t *tally) items(fdinfo string) (sent int64) {
	n, locks := 0, 0
	t.info = max(t.info, int64(len(fdinfo)))
	for line := range strings.Lines(fdinfo) {
		n++
		if strings.HasPrefix(line, lockLine) {
			locks++
		}
		if v, ok := strings.CutPrefix(line, "scm_fds:"); ok {
			var err error
			switch sent, err = strconv.ParseInt(strings.TrimSpace(v), 10, 64); {
			case err != nil:
			case t.inet: // which may hold what no cgroup is charged for
				t.sum += sent * t.socket
			default:
				t.charge(sent * t.socket)
			}
		}
	}
	t.sum += int64(locks) * itemSize
	t.charge(int64(max(n-usualLines-locks, 0)) * itemSize)
	return sent
}

// fileSystem adds what a file system in memory holds.
func (t *tally) fileSystem(path string) {
	var st syscall.Statfs_t
	if syscall.Statfs(path, &st) == nil {
		t.sum += int64(st.Blocks-st.Bfree)*int64(st.Bsize) + int64(st.Files-st.Ffree)*inodeSize
	}
}

// tally takes a sample of the run. What takes long to count is counted if it can matter.
func (p *process) tally() *tally {
	t := p.count(false)
	if t.over() || t.late() || t.sum+t.possible <= t.limit {
		return t
	}
	return p.count(true)
}

func (p *process) count(exact bool) *tally {
	t := &tally{accounts: p.s.accounts, limit: p.spec.Limits.Memory, grouped: p.leaf != nil, processes: p.nproc, info: p.info,
		buf: make([]byte, 4<<10), due: p.call.deadline}
	if isolate.Connects(p.spec.Network) {
		t.inet = true
		t.socket = max(t.socket, 2*native.MaxQueue)
		// First: a connection that is accepted meanwhile counts twice, not never. In the host's network
		// nothing says which are the call's (hostNetworkDegraded).
		if !isolate.AllowsHostNetwork(p.spec.Network) {
			t.connections("/proc/"+strconv.Itoa(p.pid)+"/net", exact)
		}
	}
	if p.terminal != nil {
		t.sum += isolate.MaxTerminals * terminalSize
	}
	if t.grouped {
		// What file systems in memory hold is charged.
	} else if p.s.tier == tier.C && knob.Template() { // else they are the host's
		for _, path := range [...]string{"/tmp", "/dev/shm", native.WorkspaceDir} {
			if (path != native.WorkspaceDir || p.spec.Workspace == nil) && (path != "/tmp" || !p.sharesTmp()) {
				t.fileSystem("/proc/" + strconv.Itoa(p.pid) + "/root" + path)
			}
		}
	} else if p.mounted {
		t.fileSystem(p.private)
	}
	for _, r := range p.rooms {
		t.private = append(t.private, r.path)
	}
	if o := p.overlaid; o != nil {
		o.seen = make(map[string]bool)
		t.merged = o.names
	}
	base := t.sum
	for range sampleTries {
		before := t.sum
		t.sum, t.gone = base, false
		t.tree(p.pid)
		t.sum = max(t.sum, before)
		if !t.gone || t.over() || t.late() {
			break
		}
	}
	p.info = t.info
	return t
}

// ownsIPC reports whether the variables of an IPC namespace that palyra-cell makes are
// its to write: those of the host's root always, others from 6.9 on.
func ownsIPC(root bool) func() bool {
	return sync.OnceValue(func() bool {
		if root {
			return true
		}
		done := make(chan bool)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with its namespace
			done <- sys.UnshareIPC() == nil && writable(native.IPCLimit)
		}()
		return <-done
	})
}

func writable(path string) bool {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// counted completes the options of a filter: what may be had whose memory only a
// cgroup, or root, sees. At tier B no call has a cgroup.
func (s *server) counted(o seccomp.Options) seccomp.Options {
	grouped := s.tier == tier.C && s.groups != nil
	o.AllowUncounted = grouped
	o.AllowShared = grouped || s.root
	o.AllowIPC = s.tier == tier.C && (grouped || s.ownsIPC())
	return o
}

// uncounted names what is refused for want of a cgroup.
func (s *server) uncounted() string {
	o := s.counted(seccomp.Options{})
	text := "memory: refused, for only a cgroup counts it: memfds, larger pipes, sendfile, Landlock rulesets"
	if !o.AllowShared {
		text += ", shared anonymous memory"
	}
	if s.tier == tier.C && !o.AllowIPC {
		text += ", System V objects"
	}
	return text
}

// dumpableTries bounds how long unreadable waits, a millisecond each.
const dumpableTries = 50

// unreadable reports an error unless the memory that a child has before it executes
// the program is closed to others: it is palyra-cell's, or a copy. Another child that
// changes its user right now opens it for a moment (steps.NotDumpable), so it looks
// again. As root the owner of dir/mem, dir being /proc/pid, says it; else no child changes its
// user, and our own flag does. At tier B of a user it is open: Landlock and the filter keep
// the program from looking.
func (p *process) unreadable(dir int) error {
	if !p.s.root && p.s.tier != tier.C {
		return nil
	}
	for range dumpableTries {
		owner, err := sys.OwnerAt(dir, "mem")
		if err != nil {
			return err
		}
		flag, err := sys.Dumpable()
		if err != nil {
			return err
		}
		if owner == 0 && flag == 0 {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("the memory of palyra-cell, which the child shares, is open to others")
}

package planted

import (
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"palyra/crypt/receipt"
	"palyra/internal/toolproto"
	"palyra/kernel/internal/pin"
)

// Look is a look that has begun. End it.
type Look struct {
	dir   *os.File            // the workspace, O_PATH; the caller's
	begun moment              // before the program started
	known map[string]identity // the folders of the rules at the top, by path

	ordered bool // see stampsInOrder

	list    int // how many changes End lists
	changes []Change
	missed  int64

	testOnlyOpened func(path string) // a folder is about to be read
}

// identity tells folders apart, and one that was removed from one that took its
// number.
type identity struct {
	dev   uint64
	ino   uint64
	birth int64 // 0: the file system keeps none
}

// moment is one moment by two clocks, in nanoseconds.
type moment struct{ stamp, boot int64 }

// now reads the clock that files are stamped with and one that nobody sets. What
// is stamped later has no earlier stamp, unless the first one is set back.
func now() moment {
	for try := 0; ; try++ {
		before, stamp, after := read(unix.CLOCK_BOOTTIME), read(unix.CLOCK_REALTIME_COARSE), read(unix.CLOCK_BOOTTIME)
		if after-before < step/10 || try == 10 { // nobody came between
			return moment{stamp, before}
		}
	}
}

func read(clock int32) int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(clock, &t) // the kernel has it: there is no error to be had
	return t.Nano()
}

// resolution is how far a clock may lag behind the time.
func resolution(clock int32) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGetres(clock, &t)
	return time.Duration(t.Nano())
}

const (
	// tick is what file systems that keep 100 ns cut off.
	tick = 1000 // ns
	// second is what those cut off that keep whole seconds, or every other one.
	second = 2e9 // ns
	// step is how far the two clocks may differ at one moment: they are read one
	// after the other, and one of them moves by ticks.
	step = 20e6 // ns
)

// Begin notes what is there before the program starts. dir is the workspace, and
// stays open until End.
func Begin(dir *os.File) *Look {
	l := &Look{dir: dir, known: make(map[string]identity), ordered: stampsInOrder(dir)}
	l.remember(int(dir.Fd()), "", set().tree)
	l.begun = now()
	if l.ordered {
		l.begun = edge(l.begun)
	}
	return l
}

// remember notes the folders that rules name beneath fd. What it can't see it
// does not note, and End takes for moved.
func (l *Look) remember(fd int, path string, n *node) {
	for name, next := range n.kids {
		if !next.folder() {
			continue
		}
		sub, err := openBeneath(fd, name, unix.O_PATH)
		if err != nil {
			continue
		}
		var st unix.Statx_t
		if unix.Statx(sub, "", unix.AT_EMPTY_PATH, wanted, &st) == nil {
			l.known[join(path, name)] = identityOf(&st)
		}
		l.remember(sub, join(path, name), next)
		unix.Close(sub)
	}
}

const wanted = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_CTIME | unix.STATX_BTIME

func identityOf(st *unix.Statx_t) identity {
	id := identity{dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.birth = nano(st.Btime)
	}
	return id
}

func nano(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// openBeneath opens a folder by one name.
func openBeneath(fd int, name string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	for {
		sub, err := unix.Openat2(fd, name, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return sub, err
		}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "/" + name
}

// End looks. dead says that all processes of the program have ended: otherwise
// one may still plant what is not found.
func (l *Look) End(dead bool, lim Limits) *receipt.Planted {
	lim = lim.orDefaults()
	until := time.Now().Add(lim.Time)
	w := l.walk(lim, until)
	defer func() {
		l.changes = w.changes
		for _, n := range w.missed {
			l.missed += n
		}
		l.missed += w.unlisted
	}()
	if w.unsure > 0 && time.Until(until) > step {
		for { // the clock may be set back meanwhile
			rest := time.Duration(w.during + tick - read(unix.CLOCK_REALTIME_COARSE))
			most := time.Until(until) - step/2
			if rest <= 0 || most <= 0 {
				break
			}
			time.Sleep(min(rest+resolution(unix.CLOCK_REALTIME_COARSE), most))
		}
		w = l.walk(lim, until) // when what changed in the tick before is past
	}
	if w.unsure > 0 {
		w.missed[inMotion] += w.unsure
	}
	if !dead {
		w.missed[alive]++
	}
	return w.planted(w.looked, pin.KeepsTimes(l.dir))
}

// walk walks through the workspace, until then at most.
func (l *Look) walk(lim Limits, until time.Time) *walk {
	w := &walk{Limits: lim, report: newReport(lim), since: l.since(now()), known: l.known, opened: l.testOnlyOpened,
		left: lim.Entries, until: until, buf: make([]byte, 32<<10), list: l.list}
	w.before, w.during = l.bounds()
	root, err := openBeneath(int(l.dir.Fd()), ".", unix.O_RDONLY)
	if err != nil {
		w.missed[reasonOf(err)]++
		return w
	}
	defer unix.Close(root)
	top := &folder{fd: root, new: true}
	var st unix.Statx_t
	if unix.Statx(root, "", unix.AT_EMPTY_PATH, wanted, &st) == nil {
		top.new = w.changed(st.Ctime)
	}
	w.read(top)
	if w.stopped != "" {
		// What was not come to may hold a hook behind its many files.
		w.left, w.until, w.stopped = probeEntries, time.Now().Add(lim.Time/4), ""
		w.probe(top, set().tree)
	}
	return w
}

// bounds returns two stamps for a walk that begins now: a change with a stamp that is
// earlier than before came before it, one with a stamp that is not earlier than during did not.
func (l *Look) bounds() (before, during int64) {
	m := now()
	if l.ordered {
		if e := edge(m).stamp; e != m.stamp && e != read(unix.CLOCK_REALTIME_COARSE) { // from 6.13 on it is no tick
			return e, e
		}
	}
	// A file system that we don't know may stamp by the tick or by a finer clock.
	return m.stamp - tick, read(unix.CLOCK_REALTIME) + 1
}

// since is the stamp that no change of the call is before.
func (l *Look) since(ended moment) int64 {
	since := l.begun.stamp
	if back := l.begun.stamp - l.begun.boot - (ended.stamp - ended.boot); back > step {
		since -= back
	}
	return since - tick
}

// walk is one look through a workspace.
type walk struct {
	Limits
	*report
	since  int64
	known  map[string]identity
	opened func(path string)

	before, during int64 // see bounds
	unsure         int64 // folders that changed between these two

	list     int // changes that may still be listed
	changes  []Change
	unlisted int64

	looked  int
	left    int       // entries that may still be looked at
	until   time.Time // when to stop
	stopped string    // the bound that was reached
	buf     []byte    // for names of one folder at a time
}

// folder is one that is being looked into.
type folder struct {
	fd    int
	path  string // relative to the workspace; "" is the workspace
	depth int
	new   bool    // it changed since the call began
	at    []*node // the places of rules that it is, besides that of any folder
	moved bool    // it, or a folder that its rules name, may have been put here
	self  bool    // it may have been put here
}

// inner is a folder that is still to be looked into.
type inner struct {
	name  string
	mode  uint32
	at    []*node
	moved bool
	self  bool
	new   bool
}

// read looks at everything in f, and into its folders.
func (w *walk) read(f *folder) {
	names, cut := w.names(f.fd)
	if toolproto.IsRepository(names) && !slices.Contains(f.at, set().repository) {
		f.at, f.moved = append(f.at, set().repository), f.moved || f.self || w.completed(f, names)
	}
	var subs []inner
	for i, name := range names {
		if i&63 == 63 && w.late() {
			cut = w.stopped
			break
		}
		if in, ok := w.entry(f, name); ok {
			subs = append(subs, in)
		}
	}
	if cut != "" {
		w.stopped = cut
		w.missed[cut]++
	}
	slices.SortFunc(subs, func(a, b inner) int { return strings.Compare(a.name, b.name) })
	for _, in := range subs {
		w.enter(f, in)
	}
	w.settle(f)
}

// settle counts a folder that changed while we looked: what it held may be where we looked
// before, under a name that we did not see. A folder is asked when it has been looked through,
// and what is not in it any more by then moved its stamp: so nothing that was in the workspace
// when the walk began is missed untold, wherever it went.
func (w *walk) settle(f *folder) {
	var st unix.Statx_t
	err := unix.Statx(f.fd, "", unix.AT_EMPTY_PATH, unix.STATX_CTIME, &st)
	switch at := nano(st.Ctime); {
	case err == nil && !notBefore(st.Ctime, w.before):
	case err == nil && at >= w.before && at < w.during:
		w.unsure++
	default:
		w.missed[inMotion]++
	}
}

// completed reports whether a folder that git takes for a repository may have become one
// by this call: a name was made in it, and a part of what makes it one is new or changed.
// Its configuration and hooks, which may have been there before, are what it is run with.
func (w *walk) completed(f *folder, names []string) bool {
	if !f.new {
		return false
	}
	for _, name := range names {
		var st unix.Statx_t
		if toolproto.RepositoryPart(name) != 0 && unix.Statx(f.fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, wanted, &st) == nil && w.changed(st.Ctime) {
			return true
		}
	}
	return false
}

// late reports whether a bound was reached.
func (w *walk) late() bool {
	if w.stopped == "" && !time.Now().Before(w.until) {
		w.stopped = overTime
	}
	return w.stopped != ""
}

// enter looks into a folder of f.
func (w *walk) enter(f *folder, in inner) {
	path := join(f.path, in.name)
	switch {
	case w.late():
		w.missed[w.stopped]++
		return
	case f.depth+1 >= w.Depth || len(path) > maxPath:
		w.missed[overDepth]++
		return
	}
	if w.opened != nil {
		w.opened(path)
	}
	fd, err := openBeneath(f.fd, in.name, unix.O_RDONLY)
	if err != nil {
		w.missed[reasonOf(err)]++
		if err == unix.EACCES && in.new {
			w.found(f, in.name, Unreadable, in.mode, false)
		}
		return
	}
	defer unix.Close(fd)
	w.read(&folder{fd: fd, path: path, depth: f.depth + 1, new: in.new, at: in.at, moved: in.moved, self: in.self})
}

// reasonOf says why a folder could not be opened.
func reasonOf(err error) string {
	switch err {
	case unix.EXDEV:
		return otherMount
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return inMotion // it was a folder a moment ago
	}
	return noRight
}

// names reads the names in a folder, and why not all of them, if so.
func (w *walk) names(fd int) (names []string, cut string) {
	for {
		if w.late() {
			return names, w.stopped
		}
		n, err := unix.ReadDirent(fd, w.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			w.missed[noRight]++
			return names, ""
		}
		if n <= 0 {
			return names, ""
		}
		_, _, names = unix.ParseDirent(w.buf[:n], -1, names)
		if left := max(w.left, 0); len(names) > left {
			return names[:left], overEntries
		}
	}
}

// entry looks at one name in f. If that is a folder, it returns it.
func (w *walk) entry(f *folder, name string) (inner, bool) {
	w.left--
	var st unix.Statx_t
	for {
		err := unix.Statx(f.fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, wanted, &st)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return inner{}, false // it is gone
		}
	}
	w.looked++
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		w.missed[otherMount]++
		return inner{}, false
	}
	changed := w.changed(st.Ctime)
	if changed {
		w.judge(f, name, &st)
		w.change(f, name, &st)
	}
	at, ruled := f.step(name) // only those count where f was moved
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		self := w.maybeMoved(f, name, &st, changed)
		return inner{name: name, mode: uint32(st.Mode), at: at, self: self, moved: len(at) > 0 && (f.moved || self), new: changed}, true
	}
	switch {
	case changed:
	case f.moved:
		at = at[:ruled]
	default:
		at = nil
	}
	for _, n := range at {
		w.found(f, name, n.kind, uint32(st.Mode), !changed)
	}
	return inner{}, false
}

// step returns the places of rules that a name in f is, first the ruled ones:
// those that are one because of what f is.
func (f *folder) step(name string) (at []*node, ruled int) {
	for _, n := range f.at {
		if next := n.step(name); next != nil {
			at = append(at, next)
		}
	}
	ruled = len(at)
	if next := set().tree.step(name); next != nil {
		at = append(at, next)
	}
	return at, ruled
}

// changed reports whether a stamp is this call's.
func (w *walk) changed(t unix.StatxTimestamp) bool { return notBefore(t, w.since) }

// notBefore reports whether a stamp may be of a moment that is not before since.
func notBefore(t unix.StatxTimestamp, since int64) bool {
	at := nano(t)
	return at >= since || t.Nsec == 0 && at > since-second
}

// maybeMoved reports whether a folder of f may have been put there by this call.
func (w *walk) maybeMoved(f *folder, name string, st *unix.Statx_t, changed bool) bool {
	switch {
	case !changed: // a new name moves the stamp
		return false
	case st.Mask&unix.STATX_BTIME != 0 && w.changed(st.Btime): // then it was made by the call, and what was moved into it has changed
		return false
	case !f.new: // no name in it was made
		return false
	}
	known, ok := w.known[join(f.path, name)]
	return !ok || known != identityOf(st)
}

// change lists what the call changed.
func (w *walk) change(f *folder, name string, st *unix.Statx_t) {
	if w.list == 0 {
		w.unlisted++
		return
	}
	w.list--
	c := Change{Path: join(f.path, name), File: st.Mode&unix.S_IFMT == unix.S_IFREG, Size: int64(st.Size)}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		c.Target, _ = readLink(f.fd, name)
	}
	w.changes = append(w.changes, c)
}

// judge looks at what a file that the call changed is, whatever its name.
func (w *walk) judge(f *folder, name string, st *unix.Statx_t) {
	mode := uint32(st.Mode)
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		if mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			w.found(f, name, SetID, mode, false)
		}
		if st.Nlink > 1 {
			w.found(f, name, HardLink, mode, false)
		}
	case unix.S_IFDIR:
		// S_ISGID alone is what every folder gets that is made in one that has it.
		if mode&unix.S_ISUID != 0 || mode&unix.S_ISGID != 0 && !f.setGID() {
			w.found(f, name, SetID, mode, false)
		}
	case unix.S_IFLNK:
		if target, ok := readLink(f.fd, name); !ok || leadsOut(f.depth, target) {
			w.found(f, name, Symlink, mode, false)
		}
	case unix.S_IFIFO:
		w.found(f, name, FIFO, mode, false)
	case unix.S_IFSOCK:
		w.found(f, name, Socket, mode, false)
	default:
		w.found(f, name, Device, mode, false)
	}
}

func (f *folder) setGID() bool {
	var st unix.Stat_t
	return unix.Fstat(f.fd, &st) == nil && st.Mode&unix.S_ISGID != 0
}

// readLink reads where a link leads, all of it.
func readLink(fd int, name string) (string, bool) {
	var b [unix.PathMax]byte
	n, err := unix.Readlinkat(fd, name, b[:])
	return string(b[:max(n, 0)]), err == nil && n < len(b)
}

// found adds a finding.
func (w *walk) found(f *folder, name, kind string, mode uint32, moved bool) {
	x := receipt.Finding{Path: join(f.path, name), Kind: kind, Mode: octal(mode), Moved: moved}
	if mode&unix.S_IFMT == unix.S_IFLNK {
		if target, ok := readLink(f.fd, name); ok && len(target) <= maxTarget {
			x.Target = target
		}
	}
	w.add(x)
}

// octal is a mode in six digits.
func octal(mode uint32) string {
	var b [6]byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = '0' + byte(mode&7)
		mode >>= 3
	}
	return string(b[:])
}

// probe asks for the names of the rules at the top of the workspace one by one,
// when there were too many others to look at all.
func (w *walk) probe(f *folder, n *node) {
	names := make([]string, 0, len(n.kids))
	for name := range n.kids {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if w.late() {
			return
		}
		in, ok := w.entry(f, name)
		if !ok {
			continue
		}
		fd, err := openBeneath(f.fd, name, unix.O_RDONLY)
		if err != nil {
			continue // it was counted, or will be missing either way
		}
		sub := &folder{fd: fd, path: join(f.path, name), depth: f.depth + 1, new: in.new, at: in.at, moved: in.moved, self: in.self}
		next := n.kids[name]
		w.probe(sub, next)
		if next.any != nil || next.deep {
			some, _ := w.names(fd)
			for _, name := range some[:min(len(some), probed)] {
				w.entry(sub, name)
			}
		}
		unix.Close(fd)
	}
}

const (
	probed       = 256  // names of a folder of the rules that are looked at then,
	probeEntries = 8192 // and of all of them together
)

// List has End list the changes of the call, n at most.
func (l *Look) List(n int) { l.list = n }

// Changes returns the changes that End listed, and how many more there are, or folders that may
// have some.
func (l *Look) Changes() (all []Change, more int64) {
	return l.changes, l.missed
}

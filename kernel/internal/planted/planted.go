// Package planted looks at a workspace that a program could write to, after the
// program has ended, for what lies in wait there: files that block, open or
// mislead whoever reads the folder, and files that other programs of the host
// run or believe without being asked to.
//
//	look := planted.Begin(workspace) // just before the program starts
//	…                                // it runs, and all its processes end
//	found := look.End(true, planted.Limits{})
//
// It changes nothing, and follows, opens and reads nothing but folders: every
// name is one component, looked up in the descriptor of its folder with
// openat2(2) and RESOLVE_BENEATH, NO_SYMLINKS, NO_MAGICLINKS and NO_XDEV, or
// with statx(2) and AT_SYMLINK_NOFOLLOW. No FIFO is waited for and no device is
// woken. What it finds goes into the receipt ([receipt.Planted]); the list of
// names is [toolproto.Places], with its reasons. With [Look.List] it also lists
// what the call changed, for a caller that reads it.
//
// # What counts as this call's
//
// A file whose ctime is not before Begin. A program can set a file's other times
// but not this one, and every change moves it: content, mode, owner, links, a
// new name. Begin has the kernel stamp a file of its own: from Linux 6.13 on what
// was changed before has an earlier stamp and what is changed later has not, on ext4,
// XFS, Btrfs and tmpfs. Elsewhere it reads the clock that the kernel stamps files
// with, which ticks (every 4 ms, or 1 to 10), so that what was changed in the tick
// that the call began in is listed, too. Where the host's clock was set back
// meanwhile, End uses the earlier reading. A file system that keeps whole seconds is
// asked for those.
//
// A folder that is moved takes its files along without touching them, so
// nothing of theirs shows. Begin therefore remembers which folders of the rules
// there are at the top of the workspace; where a folder of a rule could have been
// moved to its place (it and the folder above it have changed and it is older
// than the call), the files in it that a rule names are listed as moved. That
// may be said of a folder that only had its entries changed. The same is said of the
// configuration and hooks of a folder that this call may have made a repository, by
// its HEAD, objects, refs or commondir: an earlier call may have left them there.
//
// # Bounds
//
// [Limits]. What was not looked at is counted in Incomplete by reason, in folders;
// so that nobody can hide the names of the rules behind many files, those at
// the top of the workspace are then asked for one by one. Each kind has room of its
// own in the list, and is counted beyond it.
//
// Another call may write to the workspace meanwhile and move what this one planted from
// where the look has not been to where it has. A folder whose ctime is not before the
// look's beginning is therefore incomplete, too. Where stamps tick, and a folder changed in
// the tick that the look began in, there is a second look when that is over. On a file system
// that keeps whole seconds any folder that changed in the last two is incomplete.
//
// # What it does not tell
//
// Who changed a file: whoever else writes to the workspace meanwhile is taken for
// the program. What a file says: a Makefile, a dependency or a source file does
// harm when it is built or run, and is not listed for it. What the host was told
// to trust elsewhere: core.hooksPath in a configuration that was there before, or
// a link that was. A write through a shared mapping on a file system that
// does not move ctime for it, or one that says of its times what it likes:
// TimesKept is false there. Extended attributes: a cell has no capability to
// give a file capabilities. Mounts beneath the workspace: Incomplete has them.
package planted

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"

	"palyra/crypt/receipt"
	"palyra/internal/toolproto"
)

// The kinds of findings. Those of [toolproto.Places] are others' trust; these are types.
const (
	Symlink    = "symlink"    // leads out of the workspace, or may: absolute, or with ".." beyond its top or behind a name
	FIFO       = "fifo"       // whoever opens it to read waits
	Socket     = "socket"     // whoever connects speaks with whoever listens
	Device     = "device"     // opening it does something
	SetID      = "set_id"     // runs as its owner or group, or gives its group to what is made in it
	HardLink   = "hard_link"  // has another name, which may be anywhere on the file system
	Unreadable = "unreadable" // a folder that this call made or changed, into which we cannot look
)

// The reasons for which folders were not looked into, or not to their end.
const (
	overEntries = "entries"    // Limits.Entries
	overTime    = "time"       // Limits.Time
	overDepth   = "depth"      // Limits.Depth, or a path longer than the system takes
	noRight     = "unreadable" // we may not, or the system could not
	otherMount  = "mounts"     // something is mounted there
	inMotion    = "changing"   // it was replaced while we looked, or its names changed
	alive       = "running"    // a process of the program may be left, and plant more
	noPlatform  = "platform"   // this system has no way to look
)

// Limits bound a look. The zero value of each is its default.
type Limits struct {
	Entries int           // of folders, all together; 20,000: some 25 ms from memory
	Time    time.Duration // 250 ms, for folders that are not in memory
	Depth   int           // folders within each other; 100, each of which holds a descriptor
	PerKind int           // findings of a kind that are listed; 32. All are counted.
}

func (l Limits) orDefaults() Limits {
	return Limits{Entries: cmp.Or(l.Entries, 20_000), Time: cmp.Or(l.Time, 250*time.Millisecond),
		Depth: cmp.Or(l.Depth, 100), PerKind: cmp.Or(l.PerKind, 32)}
}

// Change is a name that the call changed, or whose file it did.
type Change struct {
	Path   string // as it is
	Target string // of a link, as far as it can be read
	File   bool   // it's a regular file
	Size   int64
}

const (
	maxPath   = 4095    // bytes of a folder's path; PATH_MAX with its NUL
	maxTarget = 1 << 10 // bytes of a link's target that are listed; a longer one is left out
	kindText  = 8 << 10 // bytes of paths and targets of a kind, but always one finding
)

// report collects findings.
type report struct {
	perKind int
	kinds   map[string]*bucket
	missed  map[string]int64 // folders, by reason
	seed    maphash.Seed
	seen    map[uint64]struct{} // what was counted; by hash, for paths are long
}

type bucket struct {
	count int64
	first []receipt.Finding // the first ones by path, and some more
}

func newReport(l Limits) *report {
	return &report{perKind: l.PerKind, kinds: make(map[string]*bucket), missed: make(map[string]int64),
		seed: maphash.MakeSeed(), seen: make(map[uint64]struct{})}
}

// add takes a finding, once.
func (r *report) add(f receipt.Finding) {
	f.Path, f.Target = toolproto.Escape(f.Path), toolproto.Escape(f.Target)
	id := maphash.String(r.seed, f.Kind+"\x00"+f.Path)
	if _, again := r.seen[id]; again {
		return
	}
	r.seen[id] = struct{}{}
	b := r.kinds[f.Kind]
	if b == nil {
		b = new(bucket)
		r.kinds[f.Kind] = b
	}
	b.count++
	if b.first = append(b.first, f); len(b.first) >= 2*r.perKind {
		b.trim(r.perKind)
	}
}

// trim keeps the first n.
func (b *bucket) trim(n int) {
	slices.SortFunc(b.first, receipt.Finding.Compare)
	b.first = b.first[:min(n, len(b.first))]
}

// planted is the report as a receipt has it.
func (r *report) planted(looked int, timesKept bool) *receipt.Planted {
	p := &receipt.Planted{Looked: int64(looked), TimesKept: timesKept, Incomplete: []receipt.Unlooked{}, Kinds: []receipt.KindCount{}, Found: []receipt.Finding{}}
	for why, n := range r.missed {
		p.Incomplete = append(p.Incomplete, receipt.Unlooked{Why: why, Folders: n})
	}
	slices.SortFunc(p.Incomplete, func(a, b receipt.Unlooked) int { return cmp.Compare(a.Why, b.Why) })
	for kind, b := range r.kinds {
		p.Kinds = append(p.Kinds, receipt.KindCount{Kind: kind, Count: b.count})
		b.trim(r.perKind)
		text := 0
		for i, f := range b.first {
			if text += len(f.Path) + len(f.Target); text > kindText && i > 0 {
				break
			}
			p.Found = append(p.Found, f)
		}
	}
	slices.SortFunc(p.Kinds, func(a, b receipt.KindCount) int { return cmp.Compare(a.Kind, b.Kind) })
	slices.SortFunc(p.Found, receipt.Finding.Compare)
	return p
}

// leadsOut reports whether a link may lead out of the workspace; depth is the
// number of folders between the workspace and the link. ".." is counted where
// it can be: at the beginning, where it is about the folders that we came
// through. Behind a name it is about whatever that name is, which may be a link,
// and to find out would be to follow it. What names lead to that are links
// themselves is said of those.
func leadsOut(depth int, target string) bool {
	if target == "" || target[0] == '/' {
		return true
	}
	named := false
	for rest := target; rest != ""; {
		var e string
		e, rest = cutSlash(rest)
		switch {
		case e == "" || e == ".":
		case e != "..":
			named = true
		case named || depth == 0:
			return true
		default:
			depth--
		}
	}
	return false
}

func cutSlash(s string) (first, rest string) {
	for i := range len(s) {
		if s[i] == '/' {
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// Package stage reads the layer of a staged workspace: what a program changed, as a list, as a
// patch, and as a digest that names exactly these changes.
//
// In a staged workspace a program writes to an overlay (overlayfs, userxattr). What it writes
// goes to the upper folder of a layer, and the workspace on the host stays as it is.
//
//	list, err := stage.Read(ctx, layer, workspace, stage.Limits{})
//	list.Digest()                       // "sha256:…" of the canonical list
//	left, err := list.Patch(ctx, w, layer, workspace, "", false) // git apply reads it
//
// A [Change] has the kind, the type, the mode, the size and the digest of the content before
// and after. A file that was copied into the layer and is as it was is no change. A folder
// that was replaced has its former content as deletions, one by one.
//
// A layer is hostile: its program chose the names, the links, the modes and how many there
// are. Every name is one component, looked up in the descriptor of its folder through no link
// and over no mount; nothing but folders and regular files is opened. [Limits] bound the rest.
//
// What it does not protect against: a program that still runs and writes to the layer, or
// another writer of the workspace; a layer is locked while a call uses it ([Layer]). Owners
// and extended attributes aren't changes: a cell has one user, and no capability to give.
package stage

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/toolproto"
)

// Version is that of the formats of layers, records and lists; a list with a git part has the
// version WithGit.
const (
	Version = 1
	WithGit = 2
)

// Limits bound a reading. The zero value of each is its default.
type Limits struct {
	Entries int   // names that are looked at; 100,000
	Bytes   int64 // of files that are read for their digests, holes included; 4 GiB
	Depth   int   // folders within each other, each of which holds two descriptors; 200
	Names   int64 // bytes of the paths and targets of all changes, escaped; 64 MiB
	Objects int64 // bytes of new git objects, packed, and of one file of git's that is read whole; 32 MiB
}

func (l Limits) orDefaults() Limits {
	return Limits{cmp.Or(l.Entries, 100_000), cmp.Or(l.Bytes, 4<<30), cmp.Or(l.Depth, 200), cmp.Or(l.Names, 64<<20),
		cmp.Or(l.Objects, toolproto.MaxApplied)}
}

// The kinds of changes.
const (
	Create  = "create"
	Modify  = "modify"  // other content, or another target of a link
	Mode    = "mode"    // other rights alone
	Replace = "replace" // by something of another type
	Delete  = "delete"
)

// The types of what has a name.
const (
	File      = toolproto.NodeFile
	Directory = toolproto.NodeDirectory
	Symlink   = toolproto.NodeSymlink
	FIFO      = "fifo"
	Socket    = "socket"
	Device    = "device"
)

// Node is what a name stands for, before or after.
type Node = toolproto.Node

// Mark says why a change deserves a look.
type Mark struct {
	Kind string `json:"kind"`
	Why  string `json:"why"`
}

// The kinds of marks besides those of [toolproto.PlaceKinds].
const (
	MarkSetID      = toolproto.MarkSetID
	MarkOpen       = toolproto.MarkOpen
	MarkSpecial    = "special"
	MarkOut        = toolproto.MarkOut
	MarkCase       = toolproto.MarkCase
	MarkUnreadable = "unreadable"
)

// Change is one name whose state in the layer differs from that on the host. Names and targets
// are escaped (toolproto.Escape), which is reversible.
type Change struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Old  *Node  `json:"old"` // on the host; null: there is none
	New  *Node  `json:"new"` // in the layer; null: it is gone

	// The rest isn't part of the digest.

	// Stale says that the host's file has changed since the layer was made. When the layer took
	// it nobody knows: a program can write its name anew.
	Stale bool   `json:"stale,omitempty"`
	Marks []Mark `json:"marks,omitempty"`

	raw string // Path, not escaped
	in  int    // where the name begins in raw, behind its folder
}

// List is all changes of a layer, sorted by their names' bytes. What Git has isn't in Changes: of
// the repository at the top of the workspace these are its settings and the like.
type List struct {
	Version int       `json:"version"`
	Changes []Change  `json:"changes"`
	Git     *Git      `json:"-"`
	Left    []LeftGit `json:"-"` // parts of that repository that stay in the layer
}

// Digest names exactly these changes: the SHA-256 of the list's canonical JSON without marks.
func (l *List) Digest() (canon.Digest, error) {
	b, err := l.canonical()
	return canon.Sum(b), err
}

// canonical returns the list's canonical JSON, without marks.
func (l *List) canonical() ([]byte, error) {
	plain := l.plain()
	return canon.Marshal(&plain)
}

func (l *List) plain() toolproto.ChangeList {
	plain := toolproto.ChangeList{Version: l.Version, Changes: make([]toolproto.ListedChange, len(l.Changes)), Git: l.Git.changes()}
	if plain.Git != nil {
		plain.Version = WithGit
	}
	for i, c := range l.Changes {
		plain.Changes[i] = toolproto.ListedChange{Path: c.Path, Kind: c.Kind, Old: c.Old, New: c.New}
	}
	return plain
}

func (l *List) sort() {
	slices.SortFunc(l.Changes, func(a, b Change) int { return strings.Compare(a.raw, b.raw) })
}

func kindOf(old, now *Node) string {
	switch {
	case old == nil:
		return Create
	case now == nil:
		return Delete
	case old.Type != now.Type:
		return Replace
	case old.Digest != now.Digest || old.Size != now.Size || old.Target != now.Target || old.Type == File && now.Digest.IsZero():
		return Modify
	case old.Mode != now.Mode:
		return Mode
	}
	return ""
}

// marksOf returns the reasons to look at a change.
func marksOf(name string, old, now *Node) (marks []Mark) {
	if f, ok := toolproto.PlantedNode(name, now == nil || now.Type == Directory); ok {
		marks = append(marks, Mark{f.Kind, f.Why})
	}
	if now == nil {
		return marks
	}
	switch now.Type {
	case FIFO, Socket, Device:
		marks = append(marks, Mark{MarkSpecial, "opening it waits, connects or does something"})
	case Symlink:
		if leadsOut(name, now.Target) {
			marks = append(marks, Mark{MarkOut, toolproto.MarkWhy(MarkOut)})
		}
	case File:
		if now.Digest.IsZero() {
			marks = append(marks, Mark{MarkUnreadable, "its mode keeps us from reading it"})
		}
	}
	if len(now.Mode) > 0 && now.Type != Symlink && strings.ContainsRune("234567", rune(now.Mode[0])) {
		marks = append(marks, Mark{MarkSetID, toolproto.MarkWhy(MarkSetID)})
	}
	if isOpen(now) && !isOpen(old) {
		marks = append(marks, Mark{MarkOpen, toolproto.MarkWhy(MarkOpen)})
	}
	return marks
}

// isOpen reports whether any user may write to a file or folder.
func isOpen(n *Node) bool {
	return n != nil && n.Type != Symlink && len(n.Mode) == 4 && (n.Mode[3]-'0')&2 != 0
}

// leadsOut reports whether a link's target, unescaped or not, lies outside the workspace as
// text. A target that goes up behind a name may lead anywhere, for the name may be a link.
func leadsOut(name, target string) bool {
	if path.IsAbs(target) || target == "" {
		return true
	}
	named := false
	for e := range strings.SplitSeq(target, "/") {
		if e == ".." && named {
			return true
		}
		named = named || e != "" && e != "." && e != ".."
	}
	at := path.Join(path.Dir(name), target)
	return at == ".." || strings.HasPrefix(at, "../")
}

// MaxText bounds the content, in bytes, that a patch shows of either side of a file.
const MaxText = 4 << 20

// maxLines bounds the lines of either side, each of which takes some 100 bytes of memory.
const maxLines = 250_000

// Skipped is a change that a patch doesn't carry.
type Skipped struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// The reasons for which a patch doesn't carry a change.
const (
	SkipGit    = "git's own files are no part of a patch: a call with this layer prints commits, git format-patch --stdout"
	SkipRefs   = "a patch has no commits: palyra changes apply brings them, and git format-patch --stdout in a call with this layer prints them"
	SkipFolder = "a patch has no folders: only files make and remove them"
	SkipMode   = "a patch knows of a file's rights only whether it can be executed"
	SkipBinary = "its content is not text, or too long: --binary puts it in"
	SkipLong   = "its content is longer than a patch may have"
	SkipType   = "a patch has only files and symbolic links"
	SkipRead   = "its mode keeps us from reading it"
)

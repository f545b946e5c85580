// Package pin opens files once and holds what was opened.
//
// A [Handle] is a file found by path and held by descriptor; every later
// question is asked of the descriptor. [Handle.System] tells whether the file
// is one that nobody but root can change, by its bits and those of every folder
// above it. [Seal] copies bytes into a memory file that the kernel lets nobody
// change any more, not even us.
//
//	h, err := pin.At(workspace, "data/in.csv", pin.Plain)
//	f, err := h.Open()            // the same file, whatever the path names now
//	s, err := pin.Seal(ctx, "in.csv", f, limit, 0o444)
//
// Lookups go through openat2(2) and never follow a magic link of /proc. Looking
// does not open: FIFOs are not waited for and devices are not woken.
//
// What it does not protect against: a root user of the host, and a file system
// that lies about owners, such as one that the caller has mounted in a mount
// namespace of the caller's own.
package pin

import (
	"errors"
	"io/fs"
	"os"

	"palyra/internal/canon"
)

// How says what a lookup may cross.
type How int

// The ways to look.
const (
	Plain    How = iota // beneath the directory, no symbolic link in any component
	Beneath             // beneath the directory; links are followed while they stay there
	Anywhere            // as the system would, "/" and all links but magic ones
)

// The refusals that are ours; all others are errors of system calls.
var (
	ErrNotRegular = errors.New("not a regular file")
	ErrTooLarge   = errors.New("larger than the limit")
	ErrChanged    = errors.New("changed since it was opened")
)

// Stat is what identifies a file and shows that it was changed.
type Stat struct {
	Dev, Ino     uint64
	Mode         fs.FileMode
	UID, GID     uint32
	Size         int64
	MtimeNS      int64
	CtimeNS      int64
	BirthNS      int64  // 0 where the file system keeps none
	Mount        uint64 // which mount it was found on
	MountForGood bool   // Mount is not given out again before Linux is started anew: since 6.8
	HasOtherName bool   // more than one link
	Verity       bool   // the file system says that fs-verity protects it; see KeepsContent
}

// Same reports whether both are the same file with the same content, as far as
// the times tell.
func (s Stat) Same(o Stat) bool {
	return s.SameFile(o) && s.Mode == o.Mode && s.UID == o.UID && s.Size == o.Size &&
		s.MtimeNS == o.MtimeNS && s.CtimeNS == o.CtimeNS
}

// Writers says whether anybody has a file open for writing.
type Writers int

// What can be known of them.
const (
	WritersUnknown Writers = iota // only the file's owner and root are told
	WritersNone
	WritersSome
)

// SameFile reports whether both are the same inode.
func (s Stat) SameFile(o Stat) bool { return s.Dev == o.Dev && s.Ino == o.Ino }

// Handle is a file or folder that was found and is held. Close it.
type Handle struct {
	Stat Stat
	Path string // where the kernel says it is, links resolved
	held descriptor
}

// File returns the O_PATH descriptor. It belongs to h.
func (h *Handle) File() *os.File { return h.held.File(h.Path) }

// Close lets go. A nil Handle is closed.
func (h *Handle) Close() error {
	if h == nil {
		return nil
	}
	return h.held.Close()
}

// Sealed is a copy in memory that nobody can change.
type Sealed struct {
	File   *os.File // read-only, at its beginning
	Digest canon.Digest
	Size   int64
}

// sealedFile is the memory that a sealed copy takes besides its pages, in bytes: inode,
// name, descriptor and the nodes of its page tree. 960 were measured on Linux 6.18 for
// a file of a page, and 150 more for one of two.
const sealedFile = 2 << 10

// Memory returns how much memory a sealed copy of size bytes takes: whole pages, and
// what any file takes.
func Memory(size int64) int64 {
	page := int64(os.Getpagesize())
	return (size+page-1)/page*page + sealedFile
}

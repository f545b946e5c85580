// Package git reads and writes the files of git's repositories, without git: objects, packs, refs,
// the index and the few settings that say how all of them are to be read.
//
//	layer, host := git.NewObjects(view, budget), git.NewObjects(folder, budget)
//	walk := git.NewWalk(ctx, layer, host, git.Bounds{})
//	err := walk.Commit(id)        // all that host lacks of it
//	pack := walk.Pack()           // as bytes
//
// A repository is hostile. Nothing of it is obeyed: neither its configuration beyond [Check], nor
// alternates, grafts, replacements or hooks. Each object is hashed when it is read, names are held
// to what git itself lets into a working tree, and a [Budget] bounds what is inflated.
//
// It knows what most repositories are: SHA-1, refs in files, an index in one file. Everything else
// is an error that says so ([ErrUnsupported]).
//
// What it doesn't protect against: SHA-1 itself. Two objects of one name can be made; which of
// them a pack holds is for the digest of the pack to say.
package git

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ID names an object: the SHA-1 of its type, size and content. The zero ID is none.
type ID [20]byte

// String returns the ID in hexadecimal digits, "" for none.
func (id ID) String() string {
	if id.IsZero() {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// IsZero reports whether the ID is none.
func (id ID) IsZero() bool { return id == ID{} }

// ParseID reads 40 lower-case hexadecimal digits, which aren't all zero.
func ParseID(s string) (id ID, err error) {
	if len(s) != 2*len(id) || strings.Trim(s, "0123456789abcdef") != "" {
		return id, bad("%.60q is no object id", s)
	}
	hex.Decode(id[:], []byte(s))
	if id.IsZero() {
		return id, bad("the object id is zero")
	}
	return id, nil
}

// Folder is a .git folder as its reader sees it. Names in it are relative paths without dots.
type Folder interface {
	// Open opens a regular file; fs.ErrNotExist if there is none.
	Open(name string) (*os.File, error)
	// Names returns what a folder holds, sorted by name; fs.ErrNotExist if there is none.
	Names(name string) ([]Name, error)
}

// Name is a name in a Folder.
type Name struct {
	Name   string
	Folder bool // else a file, or something that Open refuses
}

// The errors by which callers tell what happened.
var (
	ErrMalformed   = errors.New("malformed")
	ErrMissing     = errors.New("object missing")
	ErrTooLarge    = errors.New("too large")
	ErrUnsupported = errors.New("unsupported")
)

func bad(format string, args ...any) error { return wrap(ErrMalformed, format, args...) }

func wrap(is error, format string, args ...any) error {
	return fmt.Errorf("%w: %s", is, fmt.Sprintf(format, args...))
}

// Budget bounds the bytes that are inflated and read into memory, by all that share it.
type Budget struct {
	Left int64
	Each int64 // for one object; MaxObject if it's zero or more
}

func (b *Budget) each() int64 {
	if b.Each <= 0 || b.Each > MaxObject {
		return MaxObject
	}
	return b.Each
}

func (b *Budget) spend(n int64) error {
	if b.Left -= n; b.Left < 0 {
		return wrap(ErrTooLarge, "more is in its objects than is read at once")
	}
	return nil
}

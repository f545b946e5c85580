package tree

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// Temporary files have names that a listing recognises and that no two calls share.
const (
	tempPrefix = ".palyra-"
	tempSuffix = ".tmp"
)

// Staged is a temporary file beside its destination.
type Staged struct {
	dir  *Dir
	name string
	stat Stat
}

// Name returns the path of the temporary file below the workspace.
func (s *Staged) Name() string { return s.dir.Path(s.name) }

// Stage writes content to a new temporary file of the folder and flushes it. It first
// removes the leftovers of killed calls.
func (d *Dir) Stage(content []byte, perm fs.FileMode) (_ *Staged, err error) {
	d.sweep(time.Now())
	return d.stage(tempName(""), content, perm)
}

func (d *Dir) stage(name string, content []byte, perm fs.FileMode) (_ *Staged, err error) {
	s := &Staged{dir: d, name: name}
	op := fmt.Sprintf("write beside %q", d.Path("."))
	f, err := d.root.OpenFile(s.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, failure(op, err)
	}
	defer func() {
		if e := f.Close(); err == nil && e != nil {
			err = failure(op, e)
		}
		if err != nil {
			d.root.Remove(s.name) // the error in hand says more
		}
	}()
	if _, err := f.Write(content); err != nil {
		return nil, failure(op, err)
	}
	if err := f.Chmod(perm.Perm()); err != nil {
		return nil, failure(op, err)
	}
	if err := f.Sync(); err != nil {
		return nil, failure(op, err)
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, failure(op, err)
	}
	s.stat = newStat(fi)
	return s, nil
}

func tempName(kind string) string { return tempPrefix + kind + rand.Text() + tempSuffix }

// kept is in the names of former files: no other name may have it.
const kept = "was-"

// sweep takes a staged file for abandoned if it wasn't touched for abandoned, which is many
// times as long as a call may take. It looks at sweepNames names.
const (
	abandoned  = time.Hour
	sweepNames = 1024
)

// sweep removes the files that killed calls have staged in the folder: ours by name, plain
// and old. It leaves files that they kept, each of which may be the only copy of the former
// content. It leaves every error to the next call.
func (d *Dir) sweep(now time.Time) {
	f, err := d.root.Open(".")
	if err != nil {
		return
	}
	defer f.Close()
	names, _ := f.Readdirnames(sweepNames)
	for _, name := range names {
		if !staged(name) {
			continue
		}
		fi, err := d.root.Lstat(name)
		if err != nil || !fi.Mode().IsRegular() || !own(fi) {
			continue
		}
		if _, changed := extra(fi); changed == 0 || now.Sub(time.Unix(0, changed)) < abandoned {
			continue
		}
		_ = d.root.Remove(name)
	}
}

// staged reports whether a name is one that Stage gives; see tempName and
// rand.Text.
func staged(name string) bool {
	text, ok := strings.CutPrefix(name, tempPrefix)
	text, end := strings.CutSuffix(text, tempSuffix)
	return ok && end && len(text) == 26 && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// Keep gives a file a second, temporary name, under which it stays when the first is
// replaced or removed. If the file system or the kernel (fs.protected_hardlinks) doesn't
// allow that, it stages content instead, which the caller has read from the file.
func (d *Dir) Keep(base string, content []byte, perm fs.FileMode) (*Staged, error) {
	s := &Staged{dir: d, name: tempName(kept)}
	if err := d.root.Link(base, s.name); err != nil {
		return d.stage(s.name, content, perm)
	}
	st, err := d.Stat(s.name)
	if err != nil {
		return nil, err
	}
	s.stat = st
	return s, nil
}

// Create puts a staged file in place under a name that must be free. The staged
// name stays; Drop it.
func (s *Staged) Create(base string) error {
	op := fmt.Sprintf("create %q", s.dir.Path(base))
	err := s.dir.root.Link(s.name, base)
	if err == nil {
		s.placed(base)
	}
	if err == nil || errors.Is(err, fs.ErrExist) {
		return wrap(op, err)
	}
	// A file system without links: there is no call for it that os.Root has, so
	// that what somebody creates at this very moment would be replaced.
	if _, e := s.dir.Stat(base); !errors.Is(e, fs.ErrNotExist) {
		return failure(op, fs.ErrExist)
	}
	return s.rename(op, base)
}

func (s *Staged) rename(op, base string) error {
	if err := s.dir.root.Rename(s.name, base); err != nil {
		return failure(op, err)
	}
	s.placed(base)
	return nil
}

// placed looks at the file just put in place. Its inode's number alone wouldn't tell it
// from a file that another process puts there after removing ours: file systems reuse
// numbers at once.
func (s *Staged) placed(base string) {
	if now, err := s.dir.Stat(base); err == nil && now.Same(s.stat) {
		s.stat = now
	}
}

// Replace puts a staged file in the place of the former file, unless that has changed.
func (s *Staged) Replace(base string, was Stat) error {
	op := fmt.Sprintf("replace %q", s.dir.Path(base))
	if err := s.dir.check(op, base, was); err != nil {
		return err
	}
	return s.rename(op, base)
}

// Remove removes the former file, unless it has changed.
func (d *Dir) Remove(base string, was Stat) error {
	op := fmt.Sprintf("remove %q", d.Path(base))
	if err := d.check(op, base, was); err != nil {
		return err
	}
	return wrap(op, d.root.Remove(base))
}

func (d *Dir) check(op, base string, was Stat) error {
	now, err := d.Stat(base)
	if err == nil && !now.Unchanged(was) {
		err = failure(op, errSwapped)
	}
	return err
}

// At reports whether the staged file still has the name at which it was put in place,
// unchanged.
func (s *Staged) At(base string) bool {
	now, err := s.dir.Stat(base)
	return err == nil && now.Unchanged(s.stat)
}

// Drop removes the temporary name. It is no error if it is gone.
func (s *Staged) Drop() error {
	err := s.dir.root.Remove(s.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return wrap("remove temporary file", err)
}

// Mkdir makes a folder.
func (d *Dir) Mkdir(base string) error {
	return wrap(fmt.Sprintf("make folder %q", d.Path(base)), d.root.Mkdir(base, 0o755))
}

// Rmdir removes an empty folder.
func (d *Dir) Rmdir(base string) error {
	return wrap(fmt.Sprintf("remove folder %q", d.Path(base)), d.root.Remove(base))
}

// Sync makes the names in the folder durable.
func (d *Dir) Sync() error {
	op := fmt.Sprintf("flush folder %q", d.path)
	f, err := d.root.Open(".")
	if err != nil {
		return failure(op, err)
	}
	defer f.Close()
	return wrap(op, f.Sync())
}

func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return failure(op, err)
}

// Restore puts a kept file back in the place of its replacement, which must still be there.
func (s *Staged) Restore(base string, over *Staged) error {
	op := fmt.Sprintf("restore %q", s.dir.Path(base))
	if !over.At(base) {
		return failure(op, errSwapped)
	}
	return wrap(op, s.dir.root.Rename(s.name, base))
}

// Undo removes the file that Create put in place, which must still be there.
func (s *Staged) Undo(base string) error {
	op := fmt.Sprintf("remove %q again", s.dir.Path(base))
	if !s.At(base) {
		return failure(op, errSwapped)
	}
	return wrap(op, s.dir.root.Remove(base))
}

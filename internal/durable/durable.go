// Package durable makes changes to files that either survive a crash or don't happen, and
// checks that private files are private.
//
// The pattern is the usual one: write a temporary file in the same folder, fsync it, rename
// it over the target, fsync the folder. [WriteFile] does all of it. [Replace] leaves out
// the two fsyncs, for files that can be made again from something durable. After a crash
// the target holds the old content or the new, never a mixture. (After [Replace] and a
// power failure some file systems may also show it empty or filled with zeros.) A crash may
// leave a temporary file behind; [RemoveTemps] sweeps a folder.
//
//	err := durable.WriteFile(filepath.Join(dir, "log.vkey"), key, 0o644)
//
// [CheckPrivate] and [ReadPrivate] refuse a file that another user owns or can read, and a
// link in its place. [Lock] is a lock that dies with its process, [Gate] one that is taken
// again and again, and [Live] holds any number of locks, one for each piece of work.
//
// The package doesn't protect against a disk that acknowledges a flush it didn't do, nor
// against an attacker who runs as the owner of the files. It assumes that a sector of 512
// bytes is written whole or not at all.
package durable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tempMark is in the name of every temporary file and in no other.
const tempMark = ".palyra-tmp-"

// WriteFile replaces path by a file with this content and mode, durably. On an
// error the old file is untouched and nothing is left behind.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	return WriteFileSteps(path, data, perm, func(string) {})
}

// WriteFileSteps is WriteFile that calls step after each change to the disk:
// "created", "written", "synced", "renamed", "durable". It is for crash tests.
func WriteFileSteps(path string, data []byte, perm fs.FileMode, step func(string)) error {
	if err := replace(path, data, perm, true, step); err != nil {
		return err
	}
	if err := SyncDir(filepath.Dir(path)); err != nil {
		return err
	}
	step("durable")
	return nil
}

// Replace is WriteFile without the fsyncs: atomic for other processes, not
// durable.
func Replace(path string, data []byte, perm fs.FileMode) error {
	return replace(path, data, perm, false, func(string) {})
}

func replace(path string, data []byte, perm fs.FileMode, sync bool, step func(string)) error {
	s, err := stage(path, content(data), perm, sync, step)
	if err != nil {
		return err
	}
	defer s.Discard()
	_, err = s.rename()
	return err
}

// Staged is a file beside its final place. Its owner may write more to File, and then
// flushes it.
type Staged struct {
	File *os.File
	path string
	step func(string)
	over bool // File is closed and has no temporary name any more
}

// Stage is the first half of WriteFileSteps, for content that fill writes: it takes most of the
// time and changes nothing yet. Commit is the other half. Call Discard in any case.
func Stage(path string, fill func(io.Writer) error, perm fs.FileMode, step func(string)) (*Staged, error) {
	return stage(path, fill, perm, true, step)
}

// content is a fill that writes data.
func content(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

func stage(path string, fill func(io.Writer) error, perm fs.FileMode, sync bool, step func(string)) (_ *Staged, err error) {
	dir, base := filepath.Split(path)
	tmp := filepath.Join(dir, "."+base+tempMark+rand.Text())
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm.Perm())
	if err != nil {
		return nil, fmt.Errorf("create file beside %q: %w", path, cause(err))
	}
	s := &Staged{File: f, path: path, step: step}
	step("created")
	if err = fill(f); err == nil {
		step("written")
		err = f.Chmod(perm.Perm()) // the umask may have taken bits away
	}
	if err == nil && sync {
		err = f.Sync()
		step("synced")
	}
	if err != nil {
		s.Discard()
		return nil, fmt.Errorf("write %q: %w", path, cause(err))
	}
	return s, nil
}

// Commit puts the file in its place, durably. placed says that it is there, and
// may come with an error: then a power failure could take it back.
func (s *Staged) Commit() (placed bool, err error) {
	if placed, err = s.rename(); err != nil {
		return placed, err
	}
	if err := SyncDir(filepath.Dir(s.path)); err != nil {
		return true, err
	}
	s.step("durable")
	return true, nil
}

// rename closes the file first: some systems rename none that is open.
func (s *Staged) rename() (placed bool, err error) {
	if err := s.File.Close(); err != nil {
		return false, fmt.Errorf("write %q: %w", s.path, cause(err))
	}
	if err := os.Rename(s.File.Name(), s.path); err != nil {
		return false, fmt.Errorf("rename onto %q: %w", s.path, cause(err))
	}
	s.over = true
	s.step("renamed")
	return true, nil
}

// Discard removes a file that was not committed. It may be called again, and on
// nil.
func (s *Staged) Discard() {
	if s == nil || s.over {
		return
	}
	s.over = true
	s.File.Close()
	_ = os.Remove(s.File.Name()) // best effort: RemoveTemps sweeps leftovers
}

// cause drops the path and operation that package os adds: temporary names tell a reader
// nothing, and callers name the thing themselves.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// RemoveTemps removes the leftovers of interrupted writes from dir. Only the holder of the
// lock that protects dir may call it.
func RemoveTemps(dir string) error { return removeTemps(dir, ".") }

// RemoveTempsOf is RemoveTemps for one file: it removes the leftovers of interrupted writes
// of path. No process may be writing path.
func RemoveTempsOf(path string) error {
	dir, base := filepath.Split(path)
	return removeTemps(dir, "."+base+tempMark)
}

func removeTemps(dir, prefix string) error {
	es, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, cause(err))
	}
	for _, e := range es {
		if !IsTemp(e.Name()) || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove temporary file in %q: %w", dir, cause(err))
		}
	}
	return nil
}

// IsTemp reports whether name is that of a file that an interrupted write left behind.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, ".") && strings.Contains(name, tempMark)
}

// MkdirAll0700 creates dir and the missing folders above it with mode 0700, durably. It
// leaves an existing folder as it is: check that with CheckPrivate.
func MkdirAll0700(dir string) error { return MkdirAll(dir, 0o700) }

// MkdirAll creates dir and the missing folders above it, durably.
func MkdirAll(dir string, perm fs.FileMode) error {
	dir = filepath.Clean(dir)
	if fi, err := os.Stat(dir); err == nil {
		if !fi.IsDir() {
			return fmt.Errorf("make directory %q: %w", dir, errNotDir)
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := MkdirAll(parent, perm); err != nil {
			return err
		}
	}
	err := os.Mkdir(dir, perm)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make directory %q: %w", dir, cause(err))
	}
	if err := os.Chmod(dir, perm); err != nil {
		return fmt.Errorf("set mode of %q: %w", dir, cause(err))
	}
	return SyncDir(parent)
}

var errNotDir = errors.New("exists and is not a directory")

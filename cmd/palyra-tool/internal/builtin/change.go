package builtin

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"palyra/cmd/palyra-tool/internal/tree"
	"palyra/internal/fault"
	"palyra/internal/patch"
	"palyra/internal/toolproto"
)

// How several files are changed so that it looks like one change, as far as a
// file system lets it:
//
//	plan     everything is read and checked; what is to be written stands in memory
//	stage    each new content is a temporary file beside its destination, flushed
//	keep     each file that will go has a second, temporary name (a hard link)
//	commit   link(2) and rename(2), each checked just before; files that go, last
//	sync     the folders are flushed
//	drop     the temporary names go
//
// Until commit only temporary names can be seen. If a step fails, the tool undoes the
// earlier steps from the kept names, in reverse. The result names changes that can't be
// undone, with the place of the former content. If the process is killed, each file is its
// former or its new self in full, and temporary names are left, which a listing marks.
const (
	stepStaged    = "staged"
	stepKept      = "kept"
	stepCommitted = "committed"
	stepSynced    = "synced"
	stepDropped   = "dropped"
)

// change is one file of a changeset.
type change struct {
	op       patch.Op
	from, to string // paths; from "" if created, to "" if deleted
	content  []byte // of to
	perm     fs.FileMode
	was      tree.Stat // of from
	former   []byte    // content of from, if it was read
	result   toolproto.Change

	src, dst     *tree.Dir
	staged, kept *tree.Staged
	placed       bool // to holds the content
	removed      bool // from is gone
}

// changeset has the changes of one call. Close it.
type changeset struct {
	env     *Env
	tree    *tree.Tree
	changes []*change
	dirs    map[string]*tree.Dir // open folders by path
	made    []string             // folders that were made, outermost first
	flush   map[string]bool      // folders whose names have changed

	leftovers []string
}

func newChangeset(e *Env, t *tree.Tree) *changeset {
	return &changeset{env: e, tree: t, dirs: make(map[string]*tree.Dir), flush: make(map[string]bool)}
}

func (s *changeset) close() {
	for _, d := range s.dirs {
		d.Close()
	}
}

// dir opens a folder, once.
func (s *changeset) dir(path string) (*tree.Dir, error) {
	if d := s.dirs[path]; d != nil {
		return d, nil
	}
	d, err := s.tree.Dir(path)
	if err == nil {
		s.dirs[path] = d
	}
	return d, err
}

// load reads the file that a change begins with.
func (s *changeset) load(c *change) error {
	dir, base := tree.Split(c.from)
	var err error
	if c.src, err = s.dir(dir); err != nil {
		return err
	}
	f, st, err := c.src.Open(base)
	if err != nil {
		return err
	}
	defer f.Close()
	op := fmt.Sprintf("read %q", c.from)
	if st.Size > toolproto.MaxDigested {
		return fault.New(fault.Refused, "too_large", op, fmt.Errorf("%d bytes, limit %d", st.Size, toolproto.MaxDigested))
	}
	c.former, err = io.ReadAll(io.LimitReader(f, toolproto.MaxDigested+1))
	if err != nil {
		return fault.New(fault.Unavailable, "io_error", op, err)
	}
	now, err := c.src.Stat(base)
	if err != nil {
		return err
	}
	if !now.Unchanged(st) || int64(len(c.former)) != st.Size {
		return fault.New(fault.Busy, "changed", op, errors.New("changed while it was read"))
	}
	c.was = st
	return nil
}

// free refuses a path that is taken.
func (s *changeset) free(path string) error {
	dir, base := tree.Split(path)
	d, err := s.dir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the folder is not there either
	}
	if err != nil {
		return err
	}
	switch _, err := d.Stat(base); {
	case err == nil:
		return fault.New(fault.Busy, "exists", fmt.Sprintf("create %q", path), errors.New("is there already"))
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// apply makes all planned changes, or none. Its error says so if it managed neither.
func (s *changeset) apply(parents bool) error {
	err := s.stage(parents)
	if err == nil {
		err = s.keep()
	}
	if err == nil {
		err = s.commit()
	}
	if err == nil {
		err = s.sync()
	}
	if err != nil {
		return s.undo(err)
	}
	s.drop(nil)
	return s.env.step(stepDropped)
}

func (s *changeset) stage(parents bool) error {
	for i, c := range s.changes {
		if c.to == "" {
			continue
		}
		dir, _ := tree.Split(c.to)
		var err error
		if c.dst, err = s.dir(dir); parents && errors.Is(err, fs.ErrNotExist) {
			if err = s.mkdirs(dir); err == nil {
				c.dst, err = s.dir(dir)
			}
		}
		if err != nil {
			return err
		}
		if c.staged, err = c.dst.Stage(c.content, c.perm); err != nil {
			return err
		}
		if err := s.env.step(stepStaged + ":" + strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

// mkdirs makes the folders of a path that are missing.
func (s *changeset) mkdirs(path string) error {
	at := "."
	for e := range strings.SplitSeq(path, "/") {
		parent, err := s.dir(at)
		if err != nil {
			return err
		}
		up := at
		if at = e; up != "." {
			at = up + "/" + e
		}
		switch err := parent.Mkdir(e); {
		case err == nil:
			s.made = append(s.made, at)
			s.flush[up] = true
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	return nil
}

// keep gives a second name to each file that will go. A single change needs none: its only
// step is a rename.
func (s *changeset) keep() error {
	if len(s.changes) == 1 && (s.changes[0].op == patch.Modify || s.changes[0].op == patch.Create) {
		return nil
	}
	for i, c := range s.changes {
		if c.from == "" {
			continue
		}
		_, base := tree.Split(c.from)
		now, err := c.src.Stat(base)
		if err != nil {
			return err
		}
		if !now.Unchanged(c.was) {
			return fault.New(fault.Busy, "changed", fmt.Sprintf("keep %q", c.from), errors.New("changed after it was read"))
		}
		if c.kept, err = c.src.Keep(base, c.former, c.was.Perm); err != nil {
			return err
		}
		// The second name has changed the inode's time.
		if now, err = c.src.Stat(base); err != nil {
			return err
		}
		if !now.Same(c.was) || now.Size != c.was.Size || !now.Modified.Equal(c.was.Modified) {
			return fault.New(fault.Busy, "changed", fmt.Sprintf("keep %q", c.from), errors.New("changed after it was read"))
		}
		c.was = now
		if err := s.env.step(stepKept + ":" + strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

func (s *changeset) commit() error {
	for i, c := range s.changes {
		if c.to == "" {
			continue
		}
		dir, base := tree.Split(c.to)
		var err error
		if c.op == patch.Modify {
			err = c.staged.Replace(base, c.was)
		} else {
			err = c.staged.Create(base)
		}
		if err != nil {
			return err
		}
		c.placed, s.flush[dir] = true, true
		if err := s.env.step(stepCommitted + ":" + strconv.Itoa(i)); err != nil {
			return err
		}
	}
	for i, c := range s.changes {
		if c.op != patch.Delete && c.op != patch.Rename {
			continue
		}
		dir, base := tree.Split(c.from)
		if err := c.src.Remove(base, c.was); err != nil {
			return err
		}
		c.removed, s.flush[dir] = true, true
		if err := s.env.step(stepCommitted + ":-" + strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

func (s *changeset) sync() error {
	for path := range s.flush {
		d, err := s.dir(path)
		if err == nil {
			err = d.Sync()
		}
		if err != nil {
			return err
		}
	}
	return s.env.step(stepSynced)
}

// undo takes back commit's changes. It returns its err, as a partial if something couldn't
// be taken back.
func (s *changeset) undo(cause error) error {
	var left []toolproto.Left
	keep := make(map[*tree.Staged]bool)
	lost := func(c *change, path, state string) {
		l := toolproto.Left{Path: tree.Show(path), State: state}
		if c.kept != nil {
			keep[c.kept] = true
			l.Kept = tree.Show(c.kept.Name())
		}
		left = append(left, l)
	}
	for i := len(s.changes) - 1; i >= 0; i-- {
		c := s.changes[i]
		if c.removed {
			_, base := tree.Split(c.from)
			if c.kept == nil || c.kept.Create(base) != nil {
				lost(c, c.from, "unknown")
			}
		}
		if !c.placed {
			continue
		}
		_, base := tree.Split(c.to)
		var err error
		switch {
		case c.op != patch.Modify:
			err = c.staged.Undo(base)
		case c.kept == nil:
			err = errors.New("the former content was replaced")
		default:
			err = c.kept.Restore(base, c.staged)
		}
		if err != nil {
			state := "unknown"
			if c.staged.At(base) {
				state = "new"
			}
			lost(c, c.to, state)
		}
	}
	s.drop(keep)
	for i := len(s.made) - 1; i >= 0; i-- {
		dir, base := tree.Split(s.made[i])
		if d := s.dirs[dir]; d != nil {
			d.Rmdir(base) // or another process has put something in it
		}
	}
	for path := range s.flush {
		if d := s.dirs[path]; d != nil {
			d.Sync() // there is nothing more to say than the cause
		}
	}
	if left != nil {
		return &partial{cause, left}
	}
	return cause
}

// drop removes the temporary names except those to be kept.
func (s *changeset) drop(keep map[*tree.Staged]bool) {
	for _, c := range s.changes {
		for _, t := range []*tree.Staged{c.staged, c.kept} {
			if t == nil || keep[t] {
				continue
			}
			if err := t.Drop(); err != nil {
				s.leftovers = append(s.leftovers, tree.Show(t.Name()))
			}
		}
	}
}

// finish fills in a change of the result.
func (c *change) finish() {
	c.result.Action = c.op.String()
	c.result.Path = tree.Show(c.to)
	if c.to == "" {
		c.result.Path = tree.Show(c.from)
	}
	if c.op == patch.Rename {
		c.result.From = tree.Show(c.from)
	}
	if c.to != "" {
		c.result.After, c.result.Size = sum(c.content), int64(len(c.content))
		c.result.Permissions = fmt.Sprintf("%04o", c.perm)
	}
	if c.from != "" {
		c.result.Before = sum(c.former)
		c.result.LinksBroken = max(c.was.Links-1, 0)
		c.result.SetIDDropped = c.was.SetID
	}
}

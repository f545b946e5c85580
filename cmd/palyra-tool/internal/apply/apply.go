// Package apply brings a change list to a workspace, all of it or nothing.
//
// The list, its new content and the names that stand beside the changed ones come from the
// kernel, which has kept all of them, so that a second process can end what a killed one left:
//
//	verify   each name is as the list says that it was
//	stage    new content is put beside its place, flushed
//	commit   one rename for each topmost name, which changes places with what was there
//	sync     the folders are flushed
//	drop     the former content goes
//
// Names that lie in a folder that comes or goes are part of that folder's rename. A rename
// exchanges two names (renameat2(2)), so what was replaced can be looked at afterwards: if
// another writer was faster, everything is taken back, and its content too.
//
// The files tell how far a killed process came, since old and new differ. [Recover] takes
// back what isn't complete, and drops the rest of what is.
//
// Refs and index of the repository at the top of the workspace are names like others; git's locks
// are held meanwhile, and the objects come first.
//
// The workspace is hostile. Each name is looked up alone, in the descriptor of its folder,
// through no link and over no mount; nothing but folders and regular files is opened.
package apply

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// The named steps. The number of a unit follows.
const (
	StepStaged    = "staged"
	StepCommitted = "committed"
	StepSynced    = "synced"
	StepDropped   = "dropped"
	StepReverted  = "reverted"
)

// Job is a list to be applied or recovered.
type Job struct {
	in    *toolproto.ChangesInput
	units []*unit
	count int64               // changes without those of .git
	step  func(string) error  // nil: none
	left  []toolproto.Left    // names that another writer changed
	state map[*unit]placement // after a look
	git   *gitJob             // nil: the list is of files alone
}

// unit is what one rename changes: a name, with all beneath it if it's a folder on one side
// alone; or the rights of a folder that both sides have.
type unit struct {
	n        int // of all units
	dir      string
	base     string
	temp     string
	old, new *tree
	touched  bool // by this process
	git      bool // of the repository
}

// placement is how far a unit came.
type placement int

const (
	before    placement = iota // its place is as it was; what stands beside can go
	after                      // its place is as asked, and the former content stands beside
	dropped                    // its place is as asked, and nothing stands beside
	displaced                  // its place is as asked, and another writer's content stands beside
	foreign                    // another writer changed its place
)

// tree is what a name stands for on one side.
type tree struct {
	toolproto.Node
	content []byte // of a new file
	names   map[string]*tree
	index   bool // git's, whose digest is that of its entries
}

// rights reports whether a unit changes the rights of a folder alone.
func (u *unit) rights() bool { return u.old != nil && u.new != nil && u.old.folder() && u.new.folder() }

func (t *tree) folder() bool { return t.Type == toolproto.NodeDirectory }

func (u *unit) path() string { return path.Join(u.dir, u.base) }

func bad(format string, args ...any) error {
	return fault.New(fault.Usage, "invalid_input", "read the change list", fmt.Errorf(format, args...))
}

func cannot(name string, why string) error {
	return fault.New(fault.Refused, "cannot_apply", fmt.Sprintf("apply %q", name), errors.New(why))
}

// Read reads the payload behind an input. Content is in it unless recovering.
func Read(in *toolproto.ChangesInput, payload []byte, recovering bool, step func(string) error) (*Job, error) {
	line, content, ok := bytes.Cut(payload, []byte("\n"))
	if !ok {
		return nil, bad("there is none")
	}
	if canon.Sum(line).String() != in.Digest {
		return nil, bad("it has another digest")
	}
	var list toolproto.ChangeList
	if err := canon.Decode(line, &list, canon.Limits{Bytes: toolproto.MaxApplied, Depth: 8}); err != nil {
		return nil, err
	}
	version := 1
	if list.Git != nil {
		version = 2
	}
	if in.ID == "" || list.Version != version || len(list.Changes) > toolproto.MaxChanges {
		return nil, bad("version %d, %d changes", list.Version, len(list.Changes))
	}
	j := &Job{in: in, step: step, state: make(map[*unit]placement)}
	roots := make(map[string]*unit)
	for i := range list.Changes {
		c := &list.Changes[i]
		name, err := toolproto.ParsePath(c.Path)
		if err != nil {
			return nil, err
		}
		if name == "." || c.Old == nil && c.New == nil {
			return nil, bad("%q is no change", c.Path)
		}
		if toolproto.InGit(name) {
			// What is in git's folders stays, and so must the folders that hold it.
			if u, rel := owner(roots, name); u != nil && u.old != nil && c.Old != nil {
				return nil, cannot(u.path(), fmt.Sprintf("it goes, and holds git's own %q", rel))
			}
			continue
		}
		j.count++
		old, err := side(c.Old)
		if err != nil {
			return nil, cannot(name, err.Error())
		}
		now, err := side(c.New)
		if err != nil {
			return nil, cannot(name, err.Error())
		}
		if now != nil && now.Type == toolproto.NodeFile && !recovering {
			if int64(len(content)) < now.Size {
				return nil, bad("the content of %q is missing", c.Path)
			}
			now.content, content = content[:now.Size], content[now.Size:]
			if canon.Sum(now.content) != now.Digest {
				return nil, bad("the content of %q has another digest", c.Path)
			}
		}
		if u, rel := owner(roots, name); u != nil {
			if err := errors.Join(plant(u.old, rel, old), plant(u.new, rel, now)); err != nil {
				return nil, bad("%q: %v", c.Path, err)
			}
			continue
		}
		dir, base := path.Split(name)
		u := &unit{n: len(j.units), dir: path.Clean(dir), base: base, temp: in.Temp(len(j.units)), old: old, new: now}
		j.units = append(j.units, u)
		if !u.rights() {
			roots[name] = u
		}
	}
	if err := j.readGit(list.Git, content, recovering); err != nil {
		return nil, err
	}
	return j, nil
}

// owner returns the unit of a folder above a name, and the name in it.
func owner(roots map[string]*unit, name string) (*unit, string) {
	for i := range len(name) {
		if name[i] == '/' {
			if u := roots[name[:i]]; u != nil {
				return u, name[i+1:]
			}
		}
	}
	return nil, ""
}

func side(n *toolproto.Node) (*tree, error) {
	if n == nil {
		return nil, nil
	}
	switch {
	case n.Type == toolproto.NodeFile && n.Digest.IsZero():
		return nil, errors.New("its mode keeps it from being read")
	case n.Type == toolproto.NodeFile, n.Type == toolproto.NodeDirectory, n.Type == toolproto.NodeSymlink:
		return &tree{Node: *n, names: make(map[string]*tree)}, nil
	}
	return nil, fmt.Errorf("it is a %s", n.Type)
}

// plant puts what a name stands for into the folder of its unit.
func plant(t *tree, rel string, what *tree) error {
	if what == nil {
		return nil
	}
	for {
		if t == nil || !t.folder() {
			return errors.New("it lies in no folder")
		}
		first, rest, more := strings.Cut(rel, "/")
		if !more {
			t.names[first] = what
			return nil
		}
		t, rel = t.names[first], rest
	}
}

func (j *Job) at(name string, n int) error {
	if j.step == nil {
		return nil
	}
	return j.step(fmt.Sprintf("%s:%d", name, n))
}

// Failed is an error of a job that could not take everything back.
type Failed struct {
	Err  error
	Left []toolproto.Left
}

// Error implements error.
func (f *Failed) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *Failed) Unwrap() error { return f.Err }

func (j *Job) result(applied bool) *toolproto.ChangesResult {
	r := &toolproto.ChangesResult{Digest: j.in.Digest, Applied: applied, Changes: j.count, Left: j.left}
	if j.git != nil {
		r.Refs = int64(len(j.git.list.Refs))
	}
	return r
}

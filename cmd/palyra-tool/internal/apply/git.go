package apply

import (
	"errors"
	"path"

	"palyra/internal/canon"
	"palyra/internal/git"
	"palyra/internal/toolproto"
)

// The repository's part of a list. Refs, HEAD, packed-refs and index are units like other names,
// whose commits are compare-and-set; before the first of them git's own locks are taken, as git
// takes them (NAME.lock), so that no git of the host's is in the middle of one. New objects lie in
// a pack that comes first, and stays if the rest is taken back, as with git: another process may
// have come to need them.

const gitDir = ".git"

// StepPacked is the step after the objects are in place.
const StepPacked = "packed"

// gitJob is that part. Its units are the last of the job's.
type gitJob struct {
	list    *toolproto.GitChanges
	packed  []byte // new packed-refs
	index   *git.Index
	pack    []byte
	objects []git.Packed
	idx     []byte // of the pack
	dirs    []string
	locks   []string
}

// gitBudget bounds what a pack inflates to.
const gitBudget = 512 << 20

// readGit reads the payload behind the content, and makes the units.
func (j *Job) readGit(g *toolproto.GitChanges, content []byte, recovering bool) error {
	if g == nil {
		if len(content) > 0 && !recovering {
			return bad("%d bytes follow the content", len(content))
		}
		return nil
	}
	if len(g.Refs) > toolproto.MaxRefs {
		return bad("%d refs", len(g.Refs))
	}
	k := &gitJob{list: g}
	take := func(size int64, d canon.Digest, what string) (b []byte, err error) {
		if size < 0 || size > int64(len(content)) {
			return nil, bad("%s is missing", what)
		}
		b, content = content[:size], content[size:]
		if !d.IsZero() && canon.Sum(b) != d {
			return nil, bad("%s has another digest", what)
		}
		return b, nil
	}
	if !recovering {
		var err error
		if x := g.Packed; x != nil {
			if k.packed, err = take(x.Size, x.New, "packed-refs"); err != nil {
				return err
			}
		}
		if x := g.Index; x != nil && !x.New.IsZero() {
			b, err := take(x.Size, canon.Digest{}, "the index")
			if err != nil {
				return err
			}
			if k.index, err = git.ParseIndex(b); err == nil && k.index.Digest() != x.New {
				err = errors.New("it has another digest")
			}
			if err != nil {
				return bad("the index: %v", err)
			}
		}
		if x := g.Pack; x != nil {
			if k.pack, err = take(x.Size, x.Digest, "the pack"); err != nil {
				return err
			}
			if k.objects, err = git.ParsePack(k.pack, &git.Budget{Left: gitBudget}); err != nil {
				return bad("the pack: %v", err)
			}
			k.idx = git.PackIndex(k.pack, k.objects)
		}
		if len(content) > 0 {
			return bad("%d bytes follow the content", len(content))
		}
	}
	j.git = k
	if x := g.Index; x != nil {
		side := func(d canon.Digest) *tree {
			if d.IsZero() {
				return nil
			}
			return &tree{Node: toolproto.Node{Type: toolproto.NodeFile, Mode: x.Mode, Digest: d}, index: true}
		}
		u := k.unit(j, "index", side(x.Old), side(x.New))
		if k.index != nil {
			u.new.content = k.index.Bytes()
		}
	}
	if x := g.Packed; x != nil {
		u := k.unit(j, "packed-refs", &tree{Node: toolproto.Node{Type: toolproto.NodeFile, Mode: x.Mode, Size: x.OldSize, Digest: x.Old}},
			&tree{Node: toolproto.Node{Type: toolproto.NodeFile, Mode: x.Mode, Size: x.Size, Digest: x.New}})
		u.new.content = k.packed
	}
	last := ""
	for i := range g.Refs {
		if g.Refs[i].Name <= last {
			return bad("refs out of order")
		}
		last = g.Refs[i].Name
		if err := k.ref(j, &g.Refs[i]); err != nil {
			return err
		}
	}
	if h := g.Head; h != nil {
		var text [2]string
		for i, s := range []string{h.Old, h.New} {
			s, err := toolproto.Unescape(s)
			if err != nil {
				return bad("HEAD: %v", err)
			}
			if _, err := git.ParseHead(s); err != nil {
				return bad("HEAD: %v", err)
			}
			text[i] = s
		}
		k.unit(j, "HEAD", line(text[0], h.Mode), line(text[1], h.Mode))
	}
	return nil
}

// line is a file with one line.
func line(text, mode string) *tree {
	b := []byte(text + "\n")
	return &tree{Node: toolproto.Node{Type: toolproto.NodeFile, Mode: mode, Size: int64(len(b)), Digest: canon.Sum(b)}, content: b}
}

func (k *gitJob) unit(j *Job, name string, old, now *tree) *unit {
	name = gitDir + "/" + name
	dir, base := path.Split(name)
	u := &unit{n: len(j.units), dir: path.Clean(dir), base: base, temp: j.in.Temp(len(j.units)), old: old, new: now, git: true}
	j.units = append(j.units, u)
	k.locks = append(k.locks, name+".lock")
	return u
}

// ref makes the unit of a ref. One that only packed-refs has gets a file of its own, or goes from
// there.
func (k *gitJob) ref(j *Job, x *toolproto.RefChange) error {
	name, err := toolproto.Unescape(x.Name)
	if err == nil {
		err = git.CheckRef(name)
	}
	for _, id := range []string{x.Old, x.New} {
		if err == nil && id != "" {
			_, err = git.ParseID(id)
		}
	}
	if err == nil && (x.Old == x.New || x.Old == "" && x.Mode != "") {
		err = errors.New("no change")
	}
	if err != nil {
		return bad("ref %q: %v", x.Name, err)
	}
	var old, now *tree
	mode := "0644"
	if x.Mode != "" {
		mode = x.Mode
		old = line(x.Old, mode)
	}
	if x.New != "" {
		now = line(x.New, mode)
	}
	if old == nil && now == nil {
		k.locks = append(k.locks, gitDir+"/"+name+".lock")
	} else {
		k.unit(j, name, old, now)
	}
	// The folders of its file and lock.
	for i := len("refs/heads/"); i < len(name); i++ {
		if name[i] == '/' {
			k.dirs = append(k.dirs, gitDir+"/"+name[:i])
		}
	}
	return nil
}

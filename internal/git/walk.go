package git

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// Bounds bound a Walk. The zero value of each is its default.
type Bounds struct {
	Objects int   // 50,000
	Commits int   // 5,000
	Pack    int64 // bytes; 32 MiB
}

// Walk gathers the objects of one repository that another lacks.
type Walk struct {
	ctx        context.Context
	from, host *Objects
	b          Bounds
	known      map[ID]Type // gathered
	commits    map[ID]CommitInfo
	tags       map[ID]ID // what they are for
	pack       packer
	looks      int // at commits of the host, and at trees
}

// maxLooks bounds the host's commits that are looked at, and the trees that are compared.
const maxLooks = 50_000

// maxTags bounds the tags for tags that are looked behind.
const maxTags = 8

// NewWalk returns a Walk that gathers nothing yet.
func NewWalk(ctx context.Context, from, host *Objects, b Bounds) *Walk {
	if b.Objects == 0 {
		b.Objects = 50_000
	}
	if b.Commits == 0 {
		b.Commits = 5_000
	}
	if b.Pack == 0 {
		b.Pack = 32 << 20
	}
	return &Walk{ctx: ctx, from: from, host: host, b: b, known: make(map[ID]Type), commits: make(map[ID]CommitInfo), tags: make(map[ID]ID)}
}

// Pack returns the pack of what was gathered; nil if that is nothing.
func (w *Walk) Pack() []byte { return w.pack.bytes() }

// Objects returns how many objects were gathered.
func (w *Walk) Objects() int { return len(w.known) }

// Take gathers an object with all that it needs, where the host lacks it. want is its type, 0 any.
// It returns the type of what was gathered, or the host has.
func (w *Walk) Take(id ID, want Type) (Type, error) {
	type item struct {
		id   ID
		want Type
	}
	got := Type(0)
	todo := []item{{id, want}}
	for len(todo) > 0 {
		if err := context.Cause(w.ctx); err != nil {
			return 0, err
		}
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		t, ok := w.known[at.id]
		if !ok {
			has, err := w.host.Has(at.id)
			if err != nil {
				return 0, err
			}
			if has {
				if at.id == id {
					x, err := w.host.Read(id)
					if err != nil {
						return 0, err
					}
					if got = x.Type; want != 0 && got != want {
						return 0, bad("%s is a %s, not a %s", id, got, want)
					}
				}
				continue
			}
			x, err := w.from.Read(at.id)
			if err != nil {
				return 0, err
			}
			if t = x.Type; at.want == 0 || t == at.want {
				needs, err := w.add(at.id, x)
				if err != nil {
					return 0, err
				}
				for _, n := range slices.Backward(needs) {
					todo = append(todo, item(n))
				}
			}
		}
		if at.want != 0 && t != at.want {
			return 0, bad("%s is a %s, not a %s", at.id, t, at.want)
		}
		if at.id == id {
			got = t
		}
	}
	return got, nil
}

type need struct {
	id   ID
	want Type
}

// add puts an object into the pack.
func (w *Walk) add(id ID, x *Object) (needs []need, err error) {
	switch x.Type {
	case Commit:
		c, err := ParseCommit(x.Data)
		if err != nil {
			return nil, err
		}
		if w.commits[id] = c; len(w.commits) > w.b.Commits {
			return nil, wrap(ErrTooLarge, "more than %d commits", w.b.Commits)
		}
		needs = append(needs, need{c.Tree, Tree})
		for _, p := range c.Parents {
			needs = append(needs, need{p, Commit})
		}
	case Tree:
		entries, err := ParseTree(x.Data)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			switch e.Mode {
			case ModeModule:
			case ModeFolder:
				needs = append(needs, need{e.ID, Tree})
			default:
				needs = append(needs, need{e.ID, Blob})
			}
		}
	case Tag:
		of, t, err := ParseTag(x.Data)
		if err != nil {
			return nil, err
		}
		needs, w.tags[id] = append(needs, need{of, t}), of
	}
	if w.known[id] = x.Type; len(w.known) > w.b.Objects {
		return nil, wrap(ErrTooLarge, "more than %d objects", w.b.Objects)
	}
	if err := w.pack.add(x); err != nil {
		return nil, err
	}
	if int64(w.pack.buf.Len()) > w.b.Pack {
		return nil, wrap(ErrTooLarge, "more than %d bytes of objects", w.b.Pack)
	}
	return needs, nil
}

// New returns the commits that the host lacks of what a commit, or a tag for one, has behind it,
// the newest first.
func (w *Walk) New(id ID) (out []CommitInfo) {
	for range maxTags {
		of, ok := w.tags[id]
		if !ok {
			break
		}
		id = of
	}
	seen := map[ID]bool{id: true}
	todo := []ID{id}
	for len(todo) > 0 {
		c, ok := w.commits[todo[0]]
		todo = todo[1:]
		if !ok {
			continue
		}
		out = append(out, c)
		for _, p := range c.Parents {
			if !seen[p] {
				seen[p] = true
				todo = append(todo, p)
			}
		}
	}
	return out
}

func (w *Walk) look() error {
	if w.looks++; w.looks > maxLooks {
		return wrap(ErrTooLarge, "more than %d commits and trees to look at", maxLooks)
	}
	return context.Cause(w.ctx)
}

// info returns a commit of either repository.
func (w *Walk) info(id ID) (c CommitInfo, err error) {
	if c, ok := w.commits[id]; ok {
		return c, nil
	}
	if err := w.look(); err != nil {
		return c, err
	}
	x, err := w.host.Read(id)
	if err != nil {
		return c, err
	}
	if x.Type != Commit {
		return c, bad("%s is a %s, not a commit", id, x.Type)
	}
	return ParseCommit(x.Data)
}

// Behind reports whether a commit has another one behind it.
func (w *Walk) Behind(id, old ID) (bool, error) {
	seen := map[ID]bool{id: true}
	todo := []ID{id}
	for len(todo) > 0 {
		at := todo[0]
		todo = todo[1:]
		if at == old {
			return true, nil
		}
		c, err := w.info(at)
		if errors.Is(err, ErrMissing) {
			continue // a shallow repository ends here
		}
		if err != nil {
			return false, err
		}
		for _, p := range c.Parents {
			if !seen[p] {
				seen[p] = true
				todo = append(todo, p)
			}
		}
	}
	return false, nil
}

// tree returns the entries of a tree of either repository, by name.
func (w *Walk) tree(id ID) (map[string]TreeEntry, error) {
	out := make(map[string]TreeEntry)
	if id.IsZero() {
		return out, nil
	}
	if err := w.look(); err != nil {
		return nil, err
	}
	x, err := w.host.Read(id)
	if errors.Is(err, ErrMissing) {
		x, err = w.from.Read(id)
	}
	if err != nil {
		return nil, err
	}
	if x.Type != Tree {
		return nil, bad("%s is a %s, not a tree", id, x.Type)
	}
	entries, err := ParseTree(x.Data)
	for _, e := range entries {
		out[e.Name] = e
	}
	return out, err
}

// Differ calls f for each path at which a commit has another file than an older one, or none. The
// older one may be none.
func (w *Walk) Differ(old, now ID, f func(path string) error) error {
	var before, after ID
	for _, side := range []struct {
		commit ID
		tree   *ID
	}{{old, &before}, {now, &after}} {
		if side.commit.IsZero() {
			continue
		}
		c, err := w.info(side.commit)
		if err != nil {
			return err
		}
		*side.tree = c.Tree
	}
	return w.differ(before, after, "", 0, f)
}

func (w *Walk) differ(before, after ID, prefix string, depth int, f func(path string) error) error {
	if before == after {
		return nil
	}
	if depth > 200 {
		return wrap(ErrTooLarge, "more than 200 folders within each other")
	}
	was, err := w.tree(before)
	if err != nil {
		return err
	}
	is, err := w.tree(after)
	if err != nil {
		return err
	}
	names := make(map[string]bool, len(is))
	for _, side := range []map[string]TreeEntry{was, is} {
		for n := range side {
			names[n] = true
		}
	}
	for _, n := range slices.Sorted(maps.Keys(names)) {
		a, b := was[n], is[n]
		if a == b {
			continue
		}
		if err := context.Cause(w.ctx); err != nil {
			return err
		}
		if len(prefix)+len(n) > MaxPath {
			return wrap(ErrTooLarge, "a path of more than %d bytes", MaxPath)
		}
		var from, to ID // of folders: what is none has nothing in it
		file := false
		for _, side := range []struct {
			e    TreeEntry
			tree *ID
		}{{a, &from}, {b, &to}} {
			if side.e.Mode == ModeFolder {
				*side.tree = side.e.ID
			} else if side.e.Mode != 0 {
				file = true
			}
		}
		if file {
			err = f(prefix + n)
		}
		if err == nil && from != to {
			err = w.differ(from, to, prefix+n+"/", depth+1, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Holds reports whether an index has exactly what a commit has; the zero ID has nothing.
func (w *Walk) Holds(x *Index, commit ID) (bool, error) {
	have := make(map[string]IndexEntry, len(x.Entries))
	for _, e := range x.Entries {
		have[e.Path] = e
	}
	if commit.IsZero() {
		return len(have) == 0, nil
	}
	c, err := w.info(commit)
	if err != nil {
		return false, err
	}
	same, err := w.holds(have, c.Tree, "", 0)
	return same && len(have) == 0, err
}

// holds takes what a tree has from an index.
func (w *Walk) holds(have map[string]IndexEntry, id ID, prefix string, depth int) (bool, error) {
	if depth > 200 {
		return false, wrap(ErrTooLarge, "more than 200 folders within each other")
	}
	entries, err := w.tree(id)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if e.Mode == ModeFolder {
			if same, err := w.holds(have, e.ID, prefix+e.Name+"/", depth+1); !same || err != nil {
				return false, err
			}
			continue
		}
		h, ok := have[prefix+e.Name]
		if !ok || h.ID != e.ID || h.Mode != e.Mode {
			return false, nil
		}
		delete(have, prefix+e.Name)
	}
	return true, nil
}

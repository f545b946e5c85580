package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/git"
	"palyra/internal/toolproto"
	"palyra/isolate/internal/sys"
)

// inflated is how many times Limits.Objects may be inflated, of both repositories, for one reading.
const inflated = 16

// git puts commits, refs and index in the place of the files that hold them. What it can't read it
// leaves, and says why.
func (r *reader) git(up, low int) error {
	l := &r.list
	if !slices.ContainsFunc(l.Changes, func(c Change) bool { return strings.HasPrefix(c.raw, topGit+"/") || c.raw == topGit }) {
		return nil
	}
	leave := func(why string, err error) error {
		if e := r.ctx.Err(); e != nil {
			return fault.New(fault.Canceled, "canceled", readOp, context.Cause(r.ctx))
		}
		if err != nil {
			why = toolproto.Escape(err.Error())
		}
		l.Git, l.Left = nil, []LeftGit{{topGit, why, errors.Is(err, git.ErrTooLarge) || errors.Is(err, fault.ErrTooLarge)}}
		return nil
	}
	if e, err := sys.EntryAt(low, topGit); errors.Is(err, fs.ErrNotExist) {
		return leave("the host has no repository there", nil)
	} else if err != nil || !isFolder(e) {
		return leave("the host has no folder of that name: a worktree or submodule, whose repository lies elsewhere", err)
	}
	host, layer, err := r.repos(up, low)
	if errors.Is(err, fs.ErrNotExist) {
		return leave("the layer has no folder of that name", nil)
	}
	if err != nil {
		return leave("", err)
	}
	defer host.close()
	defer layer.close()
	c := &comparison{r: r, host: host, layer: layer}
	if err := c.all(); err != nil {
		return leave("", err)
	}
	l.Git, l.Left = &c.g, c.left
	left := make(map[string]bool)
	for _, x := range c.left {
		left[x.Path] = true
	}
	left["packed-refs"] = c.keepPacked
	l.Changes = slices.DeleteFunc(l.Changes, func(x Change) bool {
		return (x.New == nil || x.New.Type == File || x.New.Type == Directory) && c.g.carried(x.raw, left)
	})
	return nil
}

// comparison compares the layer's repository with the host's.
type comparison struct {
	r           *reader
	host, layer *repo
	g           Git
	left        []LeftGit

	walk         *git.Walk
	hostRefs     *git.Refs
	layerRefs    *git.Refs
	is, was      git.Head // of the layer, of the host
	isAt, wasAt  git.ID   // the commits that they stand for
	headModified bool     // the host's HEAD was written since the layer was made
	seen         map[string]bool
	keepPacked   bool            // the layer's packed-refs has more to keep
	partial      bool            // a branch, a tag or HEAD is left
	folders      map[string]bool // what refs of either repository lie in; nil: not asked for yet
}

// maxLeft bounds what stays of one repository.
const maxLeft = 1000

// goesOn returns why the reading of refs ends in the middle.
func (c *comparison) goesOn() error {
	if len(c.left) > maxLeft {
		return fmt.Errorf("%w: more than %d refs that would stay", git.ErrTooLarge, maxLeft)
	}
	return context.Cause(c.r.ctx)
}

func (c *comparison) leave(what, format string, args ...any) {
	c.left = append(c.left, LeftGit{Path: toolproto.Escape(what), Why: toolproto.Escape(fmt.Sprintf(format, args...))})
}

// late reports whether a file of the host has changed since the layer was made.
func (c *comparison) late(name string) (bool, error) {
	e, err := c.host.entry(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && e.Changed.After(c.r.made), err
}

func (c *comparison) all() error {
	if err := git.Check(c.host); err != nil {
		return err
	}
	for _, f := range []*repo{c.host, c.layer} {
		if what, err := git.Under(f); err != nil {
			return err
		} else if what != "" {
			return fmt.Errorf("a merge, rebase or the like is under way (%s)", what)
		}
	}
	most := c.r.left.Objects
	budget := &git.Budget{Left: inflated * most, Each: most}
	from, host := git.NewObjects(c.layer, budget), git.NewObjects(c.host, budget)
	defer from.Close()
	defer host.Close()
	c.walk = git.NewWalk(c.r.ctx, from, host, git.Bounds{Pack: most})
	c.seen = make(map[string]bool)
	var err error
	if c.was, err = git.ReadHead(c.host); err != nil {
		return err
	}
	if c.is, err = git.ReadHead(c.layer); err != nil {
		return err
	}
	if c.hostRefs, err = git.ReadRefs(c.host, most); err != nil {
		return err
	}
	if c.layerRefs, err = git.ReadRefs(c.layer, most); err != nil {
		return err
	}
	at := func(h git.Head, r *git.Refs) git.ID {
		if h.Branch != "" {
			return r.Names[h.Branch].ID
		}
		return h.ID
	}
	c.isAt, c.wasAt = at(c.is, c.layerRefs), at(c.was, c.hostRefs)
	if c.headModified, err = c.late("HEAD"); err != nil {
		return err
	}
	for _, step := range []func() error{c.refs, c.head, c.index, c.packed} {
		if err := step(); err != nil {
			return err
		}
	}
	if b := c.walk.Pack(); b != nil {
		c.g.pack = b
		c.g.Pack = &toolproto.ObjectsChange{Digest: canon.Sum(b), Size: int64(len(b)), Objects: c.walk.Objects()}
	}
	return nil
}

// elsewhere returns the branches that other working trees of the host have checked out.
func (c *comparison) elsewhere() (map[string]bool, error) {
	out := make(map[string]bool)
	names, err := c.host.Names("worktrees")
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	for _, n := range names {
		b, err := git.ReadFile(c.host, "worktrees/"+n.Name+"/HEAD", 4096)
		if err != nil {
			return nil, err
		}
		if h, err := git.ParseHead(strings.TrimSuffix(string(b), "\n")); err == nil {
			out[h.Branch] = true
		}
	}
	return out, err
}

func (c *comparison) refs() error {
	other, err := c.elsewhere()
	if err != nil {
		return err
	}
	names := make(map[string]bool)
	for name, is := range c.layerRefs.Names {
		if was := c.hostRefs.Names[name]; is.ID != was.ID || is.Odd != "" && is != was {
			names[name] = true
		}
	}
	for name := range c.hostRefs.Names {
		if _, ok := c.layerRefs.Names[name]; !ok {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := c.goesOn(); err != nil {
			return err
		}
		was, is := c.hostRefs.Names[name], c.layerRefs.Names[name]
		why := ""
		switch {
		case was.Odd != "" || is.Odd != "":
			why = was.Odd + is.Odd
		case other[name]:
			why = "another working tree has it checked out"
		case was.ID.IsZero() && c.blocked(name):
			why = "a ref above or below it is there, or goes; apply that first"
		}
		if why != "" {
			c.leave(name, "%s", why)
			c.partial = true
			continue
		}
		if len(c.g.Refs) == toolproto.MaxRefs {
			return fmt.Errorf("%w: more than %d refs", git.ErrTooLarge, toolproto.MaxRefs)
		}
		if err := c.ref(name, was, is); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return c.others()
}

// others names the refs that are packed in the layer, and neither branches nor tags.
func (c *comparison) others() error {
	for _, name := range slices.Sorted(maps.Keys(c.layerRefs.Others)) {
		id := c.layerRefs.Others[name]
		if c.hostRefs.Others[name] == id {
			continue
		}
		if err := c.goesOn(); err != nil {
			return err
		}
		b, err := git.ReadFile(c.host, name, 4096)
		if err == nil && strings.TrimSuffix(string(b), "\n") == id {
			continue // the host has it as a file
		}
		if _, err := git.ReadFile(c.layer, name, 4096); err == nil {
			continue // so has the layer, which is listed
		}
		c.leave(name, "it is neither a branch nor a tag")
		c.keepPacked = true
	}
	return nil
}

// blocked reports whether a new ref would be a file where another one needs a folder, or the
// reverse.
func (c *comparison) blocked(name string) bool {
	if c.folders == nil {
		c.folders = make(map[string]bool)
		for _, r := range []*git.Refs{c.hostRefs, c.layerRefs} {
			for other := range r.Names {
				for at := range above(other) {
					c.folders[at] = true
				}
			}
		}
	}
	if c.folders[name] {
		return true
	}
	for at := range above(name) {
		_, host := c.hostRefs.Names[at]
		_, layer := c.layerRefs.Names[at]
		if host || layer {
			return true
		}
	}
	if e, err := c.host.entry(name); err == nil && isFolder(e) {
		return true // an empty one; git would remove it
	}
	return false
}

// above yields the folders that a ref lies in, as far as a ref could have their names.
func above(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := range min(len(name), git.MaxRefName+1) {
			if name[i] == '/' && !yield(name[:i]) {
				return
			}
		}
	}
}

// ref compares one branch or tag.
func (c *comparison) ref(name string, was, is git.Ref) error {
	branch := strings.HasPrefix(name, "refs/heads/")
	x := toolproto.RefChange{Name: toolproto.Escape(name), Old: was.ID.String(), New: is.ID.String()}
	var i RefInfo
	place := "packed-refs"
	if was.Loose {
		place = name
		e, err := c.host.entry(name)
		if err != nil {
			return err
		}
		x.Mode = modeOf(e)
	}
	late := false
	if !was.ID.IsZero() {
		var err error
		if late, err = c.late(place); err != nil {
			return err
		}
	}
	mark := func(kind string) { i.Marks = append(i.Marks, Mark{kind, toolproto.MarkWhy(kind)}) }
	if !is.ID.IsZero() {
		want := git.Type(0)
		if branch {
			want = git.Commit
		}
		if _, err := c.walk.Take(is.ID, want); err != nil {
			return err
		}
		commits := c.walk.New(is.ID)
		i.Commits = len(commits)
		for _, k := range commits[:min(len(commits), toolproto.MaxSubjects)] {
			i.Subjects = append(i.Subjects, clip(toolproto.Escape(k.Subject)))
		}
	}
	switch {
	case is.ID.IsZero():
		if i.Kind = Delete; branch {
			mark(toolproto.MarkRefGone)
		}
	case was.ID.IsZero():
		if i.Kind = Create; branch && c.shadows(name) {
			mark(toolproto.MarkRefOther)
		}
	case !branch:
		i.Kind = Rewrite
	default:
		forward, err := c.walk.Behind(is.ID, was.ID)
		if err != nil {
			return err
		}
		if i.Kind = Forward; !forward {
			i.Kind = Rewrite
			mark(toolproto.MarkRewritten)
		} else if name != c.was.Branch {
			mark(toolproto.MarkRefOther)
		}
	}
	i.Stale = late && i.Kind != Forward
	if !branch {
		mark(toolproto.MarkTag)
	}
	if branch && !is.ID.IsZero() {
		since := was.ID
		if since.IsZero() {
			since = c.wasAt
		}
		if err := c.walk.Differ(since, is.ID, func(path string) error { return c.file(name, path) }); err != nil {
			return err
		}
	}
	c.g.Refs, c.g.Info = append(c.g.Refs, x), append(c.g.Info, i)
	return nil
}

// shadows reports whether git commands take the short name of a new branch for something else that
// they took it for before, or would after the next fetch: a remote's branch, which comes after
// branches (gitrevisions(7)), a tag, which checkout takes after branches, or the beginning of an
// id.
func (c *comparison) shadows(name string) bool {
	short := strings.TrimPrefix(name, "refs/heads/")
	if len(short) >= minID && strings.Trim(strings.ToLower(short), "0123456789abcdef") == "" {
		return true
	}
	if _, ok := c.hostRefs.Names["refs/tags/"+short]; ok {
		return true
	}
	remote, _, _ := strings.Cut(short, "/")
	of := func(other string) bool {
		return other == "refs/remotes/"+remote || strings.HasPrefix(other, "refs/remotes/"+remote+"/")
	}
	for other := range c.hostRefs.Others {
		if of(other) {
			return true
		}
	}
	_, err := c.host.entry("refs/remotes/" + remote)
	return err == nil
}

// minID is how many digits git abbreviates the id of an object to at least, unless told.
const minID = 7

// file marks a file of a commit, or of the index. The marks count toward the limits as names do.
func (c *comparison) file(in, path string) error {
	if c.seen[path] {
		return nil
	}
	marks := c.r.mark(path, false)
	if f, ok := toolproto.PlantedNode(path, false); ok {
		marks = []Mark{{Kind: f.Kind}}
	}
	for _, m := range marks {
		c.seen[path] = true
		p := Mark{m.Kind, toolproto.Escape(in + ":" + path)}
		if c.r.left.Names -= int64(len(p.Why)); c.r.left.Names < 0 {
			return tooLarge("its commits and its index have more files to look at than are read at once")
		}
		c.g.Paths = append(c.g.Paths, p)
	}
	return nil
}

func clip(s string) string {
	if r := []rune(s); len(r) > 100 {
		return string(r[:100]) + "…"
	}
	return s
}

// head compares what is checked out.
func (c *comparison) head() error {
	if c.is == c.was {
		return nil
	}
	e, err := c.host.entry("HEAD")
	if err != nil {
		return err
	}
	if c.is.Branch != "" {
		there := c.hostRefs.Names[c.is.Branch].ID == c.isAt
		for _, r := range c.g.Refs {
			there = there || r.Name == toolproto.Escape(c.is.Branch) && r.New == c.isAt.String()
		}
		if c.isAt.IsZero() || !there {
			c.leave("HEAD", "its branch isn't there, or stays in the layer")
			c.partial = true
			return nil
		}
	} else if _, err := c.walk.Take(c.is.ID, git.Commit); err != nil {
		return fmt.Errorf("HEAD: %w", err)
	}
	c.g.Head = &toolproto.HeadChange{Old: toolproto.Escape(c.was.String()), New: toolproto.Escape(c.is.String()), Mode: modeOf(e)}
	c.g.HeadLate = c.headModified
	return nil
}

// index compares what is staged, and leaves it where the host's may have more than the layer knows.
func (c *comparison) index() error {
	var raw [2][]byte
	for i, f := range []*repo{c.host, c.layer} {
		b, err := git.ReadFile(f, "index", c.r.left.Objects)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("index: %w", err)
		}
		raw[i] = b
	}
	if slices.Equal(raw[0], raw[1]) {
		return nil
	}
	var host, layer git.Index
	for i, x := range []*git.Index{&host, &layer} {
		if raw[i] == nil {
			continue
		}
		p, err := git.ParseIndex(raw[i])
		if errors.Is(err, git.ErrUnsupported) {
			c.leave("index", "%v", err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("index: %w", err)
		}
		*x = *p
	}
	if host.Digest() == layer.Digest() {
		return nil
	}
	if host.Intended() || layer.Intended() {
		c.leave("index", "it has files that are only intended to be added (git add -N)")
		return nil
	}
	if c.partial {
		c.leave("index", "a branch, a tag or HEAD is left")
		return nil
	}
	why, err := c.indexLate(&host, raw[0] != nil)
	if err != nil {
		return err
	}
	if why != "" {
		c.leave("index", "%s", why)
		return nil
	}
	was := make(map[string]git.IndexEntry, len(host.Entries))
	for _, e := range host.Entries {
		was[e.Path] = e
	}
	for _, e := range layer.Entries {
		if w := was[e.Path]; w.ID == e.ID && w.Mode == e.Mode {
			continue
		}
		if err := c.file("index", e.Path); err != nil {
			return err
		}
		if e.Mode == git.ModeModule {
			continue
		}
		if _, err := c.walk.Take(e.ID, git.Blob); err != nil {
			return fmt.Errorf("index: %w", err)
		}
	}
	stays := make(map[string]bool, len(layer.Entries))
	for _, e := range layer.Entries {
		stays[e.Path] = true
	}
	for _, e := range host.Entries {
		if !stays[e.Path] {
			if err := c.file("index", e.Path); err != nil {
				return err
			}
		}
	}
	x := &toolproto.IndexChange{Mode: "0644"}
	if raw[0] != nil {
		e, err := c.host.entry("index")
		if err != nil {
			return err
		}
		x.Mode, x.Old = modeOf(e), host.Digest()
	}
	if raw[1] == nil {
		c.leave("index", "the layer has none")
		return nil
	}
	c.g.index = layer.Plain().Bytes()
	x.New, x.Size = layer.Digest(), int64(len(c.g.index))
	c.g.Index = x
	return nil
}

// indexLate returns why the host's index may have more than the layer knows of. git writes it
// whenever it has looked at the files, so that its time alone says little: an index that has what
// the commit has that is checked out has nothing to lose.
func (c *comparison) indexLate(host *git.Index, is bool) (string, error) {
	late, err := c.late("index")
	if err != nil || !late && !c.headModified || !is {
		return "", err
	}
	if c.headModified {
		return "the host has checked out something else since the layer was made", nil
	}
	if c.was.Branch != "" && c.isAt == c.wasAt {
		place := "packed-refs"
		if c.hostRefs.Names[c.was.Branch].Loose {
			place = c.was.Branch
		}
		if moved, err := c.late(place); err != nil || moved {
			return "the host has committed since the layer was made", err
		}
	}
	same, err := c.walk.Holds(host, c.wasAt)
	if err != nil || same {
		return "", err
	}
	return "the host's has changed since the layer was made, and has more than its commit", nil
}

// packed makes the packed-refs without the refs that go.
func (c *comparison) packed() error {
	x, b, err := packedChange(c.host, c.hostRefs, c.g.Refs)
	c.g.Packed, c.g.packed = x, b
	return err
}

func packedChange(host *repo, refs *git.Refs, changes []toolproto.RefChange) (*toolproto.PackedChange, []byte, error) {
	gone := make(map[string]bool)
	for _, x := range changes {
		name, err := toolproto.Unescape(x.Name)
		if err != nil {
			return nil, nil, err
		}
		if x.New == "" && refs.Names[name].Packed {
			gone[name] = true
		}
	}
	if len(gone) == 0 {
		return nil, nil, nil
	}
	e, err := host.entry("packed-refs")
	if err != nil {
		return nil, nil, err
	}
	b := refs.PackedWithout(gone)
	return &toolproto.PackedChange{Old: canon.Sum(refs.Packed), OldSize: int64(len(refs.Packed)), New: canon.Sum(b), Size: int64(len(b)), Mode: modeOf(e)}, b, nil
}

// hostIndex returns the host's index without what git saw of the files, nil if there is none.
func hostIndex(workspace *os.File) ([]byte, error) {
	r := &reader{ctx: context.Background(), left: Limits{}.orDefaults(), buf: make([]byte, 16<<10)}
	host, _, err := r.repos(-1, int(workspace.Fd()))
	if err != nil {
		return nil, err
	}
	defer host.close()
	b, err := git.ReadFile(host, "index", git.MaxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	x, err := git.ParseIndex(b)
	if err != nil {
		return nil, err
	}
	return x.Plain().Bytes(), nil
}

// inverseGit returns what takes a list's git part back. The objects stay: others may have come to
// need them, and git removes them if no one does.
func inverseGit(was *toolproto.GitChanges, workspace *os.File, limits Limits, index func() ([]byte, error)) (*Git, error) {
	if was == nil {
		return nil, nil
	}
	r := &reader{ctx: context.Background(), left: limits.orDefaults(), made: time.Now(), buf: make([]byte, 16<<10)}
	host, _, err := r.repos(-1, int(workspace.Fd()))
	if err != nil {
		return nil, err
	}
	defer host.close()
	if err := git.Check(host); err != nil {
		return nil, err
	}
	refs, err := git.ReadRefs(host, toolproto.MaxApplied)
	if err != nil {
		return nil, err
	}
	g := &Git{GitChanges: toolproto.GitChanges{Refs: []toolproto.RefChange{}}}
	moved := func(what string) error {
		return fault.New(fault.Busy, "changed", fmt.Sprintf("undo %q", what), errors.New("it is not what was applied"))
	}
	for _, x := range was.Refs {
		name, err := toolproto.Unescape(x.Name)
		if err != nil {
			return nil, err
		}
		now := refs.Names[name]
		if now.ID.String() != x.New || now.Odd != "" {
			return nil, moved(x.Name)
		}
		y := toolproto.RefChange{Name: x.Name, Old: x.New, New: x.Old}
		if now.Loose {
			e, err := host.entry(name)
			if err != nil {
				return nil, err
			}
			y.Mode = modeOf(e)
		}
		i := RefInfo{Kind: Rewrite}
		switch {
		case y.New == "":
			i.Kind = Delete
		case y.Old == "":
			i.Kind = Create
		}
		g.Refs, g.Info = append(g.Refs, y), append(g.Info, i)
	}
	if was.Head != nil {
		h, err := git.ReadHead(host)
		if err != nil {
			return nil, err
		}
		if toolproto.Escape(h.String()) != was.Head.New {
			return nil, moved("HEAD")
		}
		e, err := host.entry("HEAD")
		if err != nil {
			return nil, err
		}
		g.Head = &toolproto.HeadChange{Old: was.Head.New, New: was.Head.Old, Mode: modeOf(e)}
	}
	if was.Index != nil {
		e, err := host.entry("index")
		if err != nil && !(errors.Is(err, fs.ErrNotExist) && was.Index.New.IsZero()) {
			return nil, err
		}
		x := &toolproto.IndexChange{Old: was.Index.New, New: was.Index.Old, Mode: "0644"}
		if err == nil {
			x.Mode = modeOf(e)
		}
		if !x.New.IsZero() {
			if g.index, err = index(); err != nil {
				return nil, err
			}
			x.Size = int64(len(g.index))
		}
		g.Index = x
	}
	if g.Packed, g.packed, err = packedChange(host, refs, g.Refs); err != nil {
		return nil, err
	}
	return g, nil
}

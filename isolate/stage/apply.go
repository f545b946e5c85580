package stage

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Bringing a layer's changes to its workspace is a call of its own. palyra-tool does it, in a
// cell that sees the workspace alone; what it needs of the layer is sealed into the call. The
// layer's folder holds the record of it:
//
//	pending.json   the list, from before the first change until all are known to be made or
//	               taken back. With it the layer can't be used, but recovered.
//	applied.json   the last list that was applied or undone
//	kept-ID/       the content that it replaced, by the change's number
//
// The workspace's files tell how far a killed call came (palyra-tool's package apply), so the
// record has no steps of it.

// Record is a list that was, or is being, brought to the workspace.
type Record struct {
	Version int                  `json:"version"`
	ID      string               `json:"id"`   // of the names beside those that change
	Tool    string               `json:"tool"` // changes.apply or changes.undo
	Digest  canon.Digest         `json:"digest"`
	Done    bool                 `json:"done"` // the workspace has it; the layer's own part may be left
	List    toolproto.ChangeList `json:"list"`
}

// Effect is a list with its content, ready to be brought to the workspace.
type Effect struct {
	List    *List // nil where it recovers
	Record  Record
	Lines   int64  // that a patch adds and removes; -1: not all of it is text
	Bytes   int64  // of these lines
	Payload []byte // for palyra-tool: toolproto.ChangesInput
	Source  Source
}

// maxRecord bounds a record in bytes.
const maxRecord = 16 << 20

func cannot(name string, format string, v ...any) *fault.Error {
	return fault.New(fault.Refused, "cannot_apply", fmt.Sprintf("apply %q", name), fmt.Errorf(format, v...))
}

// Appliable is an error that names the first change of the list that can't be applied.
func (l *List) Appliable() error {
	const op = "apply the layer"
	if len(l.Changes) > toolproto.MaxChanges {
		return fault.New(fault.Refused, "too_large", op, fmt.Errorf("%d changes, at most %d", len(l.Changes), toolproto.MaxChanges))
	}
	going := make(map[string]bool)
	var size [2]int64
	count, marks := 0, 0
	for i := range l.Changes {
		c := &l.Changes[i]
		if toolproto.InGit(c.raw) {
			for j := range len(c.raw) {
				if c.raw[j] == '/' && going[c.raw[:j]] && c.Old != nil {
					return cannot(toolproto.Escape(c.raw[:j]), "it goes, and holds git's own %q", c.Path)
				}
			}
			continue
		}
		count++
		marks += len(flagsOf(c))
		if c.Stale {
			return fault.New(fault.Busy, "changed", fmt.Sprintf("apply %q", c.Path), errors.New("the host's has changed since the layer was made")).
				WithHint("palyra changes diff | git apply --3way merges; or discard the layer")
		}
		for j, n := range []*Node{c.Old, c.New} {
			switch {
			case n == nil:
			case n.Type == File && n.Digest.IsZero():
				return cannot(c.Path, "its mode keeps it from being read")
			case n.Type != File && n.Type != Directory && n.Type != Symlink:
				return cannot(c.Path, "it is a %s", n.Type)
			default:
				size[j] += n.Size
			}
		}
		if c.Old != nil && c.Old.Type == Directory && (c.New == nil || c.New.Type != Directory) {
			going[c.raw] = true
		}
	}
	for _, x := range l.Left {
		if x.big {
			return fault.New(fault.Refused, "too_large", fmt.Sprintf("apply %q", x.Path), errors.New(x.Why)).
				WithHint("a call with the layer prints commits, git format-patch --stdout, and palyra changes diff the files")
		}
	}
	if g := l.Git; !g.empty() {
		for i, x := range g.Refs {
			if g.Info[i].Stale {
				return movedRef(x.Name)
			}
		}
		if g.HeadLate {
			return movedRef("HEAD")
		}
		marks += g.marks()
		size[1] += g.Size()
		count++
	}
	if n := max(size[0], size[1]); n > toolproto.MaxApplied {
		return fault.New(fault.Refused, "too_large", op, fmt.Errorf("%d bytes, at most %d", n, toolproto.MaxApplied)).
			WithHint("palyra changes diff --binary | git apply has no such bound")
	}
	if marks > toolproto.MaxMarked {
		return fault.New(fault.Refused, "too_large", op, fmt.Errorf("%d of them are marked, and a question shows at most %d", marks, toolproto.MaxMarked))
	}
	if count == 0 {
		return fault.New(fault.NotFound, "not_found", op, errors.New("it has no changes but git's own, if any")).
			WithHint("a call with the layer prints commits: git format-patch --stdout")
	}
	shown := 0
	for _, s := range l.Gist(0, 0) {
		shown += len(strconv.QuoteToASCII(s)) + cardRow
	}
	if shown > toolproto.MaxGist {
		return fault.New(fault.Refused, "too_large", op, fmt.Errorf("its names take %d bytes, at most %d can be shown to who decides", shown, toolproto.MaxGist)).
			WithHint("palyra changes diff --binary | git apply has no such bound")
	}
	return nil
}

// cardRow is what a row of a card has besides its item: an indent and a line end.
const cardRow = 15

func movedRef(name string) error {
	return fault.New(fault.Busy, "changed", fmt.Sprintf("apply %q", name), errors.New("the host's has moved since the layer was made")).
		WithHint("in a call with the layer, git merge or git rebase onto the host's; or discard the layer")
}

// Changes within these bounds have size=small in the gist, for policies. A line may be of any
// length.
const (
	smallLines   = 200
	smallBytes   = 64 << 10
	smallChanges = 50
)

// flagsOf returns the kinds of a change's marks, with that of a new program.
func flagsOf(c *Change) (kinds []string) {
	for _, m := range c.Marks {
		kinds = append(kinds, m.Kind)
	}
	if c.New != nil && c.New.Type == File && runs(c.New) && !(c.Old != nil && c.Old.Type == File && runs(c.Old)) && len(kinds) == 0 {
		kinds = append(kinds, toolproto.KindExecutable)
	}
	return kinds
}

func runs(n *Node) bool { return len(n.Mode) == 4 && (n.Mode[1]-'0')&1 != 0 }

// Gist says what is in the list: how much it is, each mark, and the other changes. It leaves none
// out: where the program that wrote the layer put many names, none hides behind them. lines is how
// many lines a patch of it adds and removes, -1 where a patch can't say, and size what they have in
// bytes.
func (l *List) Gist(lines, size int64) []string {
	var marked, others, made []string // the host's files come before new ones, which may be many
	var count, deletes, git, content int64
	for i := range l.Changes {
		c := &l.Changes[i]
		if toolproto.InGit(c.raw) {
			git++
			continue
		}
		count++
		if c.New == nil {
			deletes++
		} else {
			content += c.New.Size
		}
		if kinds := flagsOf(c); len(kinds) > 0 {
			marked = append(marked, "path="+c.Path, "kind="+c.Kind)
			for _, k := range kinds {
				marked = append(marked, "flag="+k)
			}
			continue
		}
		if c.Kind == Create {
			made = append(made, c.Kind+"="+c.Path)
		} else {
			others = append(others, c.Kind+"="+c.Path)
		}
	}
	out := []string{fmt.Sprintf("changes=%d", count), fmt.Sprintf("bytes=%d", content), fmt.Sprintf("deletes=%d", deletes)}
	if lines >= 0 {
		out = append(out, fmt.Sprintf("lines=%d", lines))
	}
	if lines >= 0 && lines <= smallLines && size <= smallBytes && count <= smallChanges {
		out = append(out, "size=small")
	}
	if git > 0 {
		out = append(out, fmt.Sprintf("left_git=%d", git))
	}
	for _, x := range l.Left {
		out = append(out, "left="+x.Path)
	}
	out = append(out, l.Git.gist()...)
	return append(append(append(out, marked...), others...), made...)
}

// same is an error that names the first change in which another list of the layer differs.
func (l *List) same(now *List) error {
	if len(l.Changes) == len(now.Changes) && slices.EqualFunc(l.Changes, now.Changes, func(a, b Change) bool {
		return a.raw == b.raw && a.Kind == b.Kind && equal(a.Old, b.Old) && equal(a.New, b.New)
	}) {
		return l.sameGit(now)
	}
	by := make(map[string]*Change)
	for i := range now.Changes {
		by[now.Changes[i].raw] = &now.Changes[i]
	}
	path, old := "", true
	for i := range l.Changes {
		c := &l.Changes[i]
		n := by[c.raw]
		delete(by, c.raw)
		if n == nil || !equal(c.Old, n.Old) || !equal(c.New, n.New) {
			path, old = c.Path, n == nil || equal(c.New, n.New)
			break
		}
	}
	for _, n := range by {
		if path == "" {
			path, old = n.Path, false
		}
	}
	op := fmt.Sprintf("apply %q", path)
	if old {
		return fault.New(fault.Busy, "changed", op, errors.New("it has changed on the host since the list was made"))
	}
	return fault.New(fault.Unavailable, "changed", op, errors.New("it has changed in the layer since the list was made")).
		WithHint("look at the changes and apply them again")
}

// sameGit is same for the git part.
func (l *List) sameGit(now *List) error {
	a, b := l.Git.changes(), now.Git.changes()
	if reflect.DeepEqual(a, b) {
		return nil
	}
	op := "apply the refs"
	if a != nil && b != nil {
		for _, x := range a.Refs {
			i := slices.IndexFunc(b.Refs, func(y toolproto.RefChange) bool { return y.Name == x.Name })
			if i < 0 || b.Refs[i].Old != x.Old {
				return fault.New(fault.Busy, "changed", fmt.Sprintf("apply %q", x.Name), errors.New("it has moved on the host since the list was made"))
			}
		}
		if a.Head != nil && (b.Head == nil || a.Head.Old != b.Head.Old) {
			op = "apply \"HEAD\""
		}
	}
	return fault.New(fault.Busy, "changed", op, errors.New("the repository has changed since the list was made")).WithHint("look at the changes and apply them again")
}

func equal(a, b *Node) bool { return a == b || a != nil && b != nil && *a == *b }

// Unfinished is the error for a layer whose changes may be half applied.
func Unfinished(name string) error {
	return fault.New(fault.Busy, "apply_unfinished", fmt.Sprintf("use layer %q", name), errors.New("bringing its changes to the workspace was interrupted")).
		WithHint("palyra changes apply " + name + ", or undo, ends it first: whole, or as if it had never been")
}

// inverse returns the list that takes a list back, with marks.
func inverse(was *toolproto.ChangeList) *List {
	l := &List{Version: was.Version, Changes: []Change{}}
	for _, c := range was.Changes {
		raw, err := toolproto.ParsePath(c.Path)
		if err != nil || toolproto.InGit(raw) {
			continue
		}
		l.Changes = append(l.Changes, Change{Path: c.Path, Kind: kindOf(c.New, c.Old), Old: c.New, New: c.Old, Marks: marksOf(raw, c.New, c.Old), raw: raw})
	}
	l.sort()
	return l
}

// lineCounter counts the lines that a patch adds and removes, and their bytes.
type lineCounter struct {
	lines, bytes int64
	rest         []byte // the beginning of an unfinished line
	length       int64  // of that
	hunk         bool
}

func (c *lineCounter) Write(b []byte) (int, error) {
	n := len(b)
	for {
		line, after, ok := bytes.Cut(b, []byte("\n"))
		c.rest = append(c.rest, line[:min(len(line), max(0, 16-len(c.rest)))]...)
		if c.length += int64(len(line)); !ok {
			return n, nil
		}
		c.line()
		c.rest, c.length, b = c.rest[:0], 0, after
	}
}

func (c *lineCounter) line() {
	switch b := c.rest; {
	case bytes.HasPrefix(b, []byte("diff --git ")):
		c.hunk = false
	case bytes.HasPrefix(b, []byte("@@ ")):
		c.hunk = true
	case c.hunk && len(b) > 0 && (b[0] == '+' || b[0] == '-'):
		c.lines, c.bytes = c.lines+1, c.bytes+c.length
	}
}

// gits returns the topmost names of git's own in the list that stay in the layer, each once. Of
// the repository at the top, whose commits were brought, these are the listed ones, and the objects
// that they may need.
func (l *List) gits(brought bool) []string {
	var out []string
	for i := range l.Changes {
		if raw := l.Changes[i].raw; brought && strings.HasPrefix(raw, topGit+"/") {
			if n := len(out); n == 0 || !strings.HasPrefix(raw, out[n-1]+"/") {
				out = append(out, raw)
			}
			continue
		}
		at := ""
		for e := range strings.SplitSeq(l.Changes[i].raw, "/") {
			if at = strings.TrimPrefix(at+"/"+e, "/"); strings.EqualFold(e, ".git") {
				out = append(out, at)
				break
			}
		}
	}
	if slices.ContainsFunc(out, func(name string) bool { return strings.HasPrefix(name, topGit+"/") }) {
		out = append(out, topGit+"/objects")
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (r *Record) check() error {
	return cmp.Or(errIf(r.Version != Version, "another version"), errIf(len(r.ID) != 26, "no id"),
		errIf(!slices.Contains([]string{toolproto.ChangesApply, toolproto.ChangesUndo}, r.Tool), "another tool"))
}

func errIf(is bool, what string) error {
	if is {
		return errors.New(what)
	}
	return nil
}

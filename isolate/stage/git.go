package stage

import (
	"fmt"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/toolproto"
)

// topGit is the folder of the repository whose commits are brought.
const topGit = ".git"

// Git is what a layer changes in the repository at the top of the workspace. Its GitChanges are
// part of the list's digest, the rest says more of the same objects.
type Git struct {
	toolproto.GitChanges
	Info     []RefInfo // of each ref
	HeadLate bool      // the host's HEAD has changed since the layer was made
	Paths    []Mark    // of files in commits and index: Kind, and the ref with the path as Why

	packed, index, pack []byte // the payload
}

// RefInfo says more of a RefChange.
type RefInfo struct {
	Kind     string   `json:"kind"`               // see the constants
	Commits  int      `json:"commits"`            // that the host lacks
	Subjects []string `json:"subjects,omitempty"` // of these, the newest first
	Stale    bool     `json:"stale,omitempty"`    // the host's has changed since the layer was made
	Marks    []Mark   `json:"marks,omitempty"`
}

// The kinds of changes of refs besides Create and Delete.
const (
	Forward = "forward" // by commits that have the former one behind them
	Rewrite = "rewrite"
)

// LeftGit is a part of a repository that stays in the layer.
type LeftGit struct {
	Path string `json:"path"` // ".git", a ref, "HEAD" or "index"
	Why  string `json:"why"`

	big bool // beyond a bound
}

func (g *Git) empty() bool {
	return g == nil || len(g.Refs) == 0 && g.Head == nil && g.Index == nil
}

// changes returns the digested part, nil if there is none.
func (g *Git) changes() *toolproto.GitChanges {
	if g.empty() {
		return nil
	}
	return &g.GitChanges
}

// payload returns what palyra-tool needs of it.
func (g *Git) payload() []byte {
	if g.empty() {
		return nil
	}
	return append(append(append([]byte{}, g.packed...), g.index...), g.pack...)
}

// carried reports whether a name of the repository is in a list's git part, or nothing but what git
// itself makes anew.
func (g *Git) carried(name string, left map[string]bool) bool {
	rest, ok := strings.CutPrefix(name, topGit+"/")
	if !ok {
		return name == topGit
	}
	switch rest {
	case "HEAD", "index", "packed-refs":
		return !left[rest]
	case "COMMIT_EDITMSG", "ORIG_HEAD", "objects", "objects/info", "logs", "refs", "refs/heads", "refs/tags", "objects/info/commit-graph",
		"objects/info/packs", "info/refs", "gc.log":
		return true
	}
	for _, in := range []string{"objects/info/commit-graphs/", "logs/HEAD", "logs/refs/heads/", "logs/refs/tags/"} {
		if strings.HasPrefix(rest, in) {
			return true
		}
	}
	if strings.HasPrefix(rest, "refs/heads/") || strings.HasPrefix(rest, "refs/tags/") {
		return !left[rest]
	}
	return strings.HasPrefix(rest, "objects/") && !strings.HasPrefix(rest, "objects/info/") || rest == "logs/refs" || rest == "logs/refs/heads" || rest == "logs/refs/tags"
}

// GitView is the git part of a list with all that is known of it, for people.
type GitView struct {
	Refs    []RefView `json:"refs"`
	Head    *MoveView `json:"head,omitempty"`
	Index   *MoveView `json:"index,omitempty"` // digests
	Objects int       `json:"objects"`         // that the host lacks
	Bytes   int64     `json:"bytes"`           // of them, packed
	Pack    string    `json:"pack,omitempty"`  // digest of the pack
	Look    []Mark    `json:"look,omitempty"`  // files of commits and index; why has the ref and the path
	Left    []LeftGit `json:"left,omitempty"`  // what stays in the layer
}

// MoveView is a former and a new value.
type MoveView struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// RefView is one ref.
type RefView struct {
	Name string `json:"name"`
	Old  string `json:"old"`
	New  string `json:"new"`
	RefInfo
}

// GitView returns the list's git part for people, nil if there is none.
func (l *List) GitView() *GitView {
	v := &GitView{Refs: []RefView{}, Left: l.Left}
	g := l.Git
	if g.empty() {
		if len(l.Left) == 0 {
			return nil
		}
		return v
	}
	for i, r := range g.Refs {
		v.Refs = append(v.Refs, RefView{r.Name, r.Old, r.New, g.Info[i]})
	}
	if g.Head != nil {
		v.Head = &MoveView{g.Head.Old, g.Head.New}
	}
	if g.Index != nil {
		text := func(d canon.Digest) string {
			if d.IsZero() {
				return ""
			}
			return d.String()
		}
		v.Index = &MoveView{text(g.Index.Old), text(g.Index.New)}
	}
	if g.Pack != nil {
		v.Objects, v.Bytes, v.Pack = g.Pack.Objects, g.Pack.Size, g.Pack.Digest.String()
	}
	v.Look = g.Paths
	return v
}

// short is an object id as people read it.
func short(id string) string {
	if id == "" {
		return "none"
	}
	return id[:12]
}

// gist says what is in it, for policies and the card.
func (g *Git) gist() (out []string) {
	if g.empty() {
		return nil
	}
	for i, r := range g.Refs {
		out = append(out, "ref="+r.Name, "move="+short(r.Old)+".."+short(r.New), fmt.Sprintf("commits=%d", g.Info[i].Commits))
		for _, m := range g.Info[i].Marks {
			out = append(out, "flag="+m.Kind)
		}
	}
	if g.Head != nil {
		out = append(out, "head="+g.Head.New, "flag="+toolproto.MarkHead)
	}
	for _, p := range g.Paths {
		out = append(out, "path="+p.Why, "flag="+p.Kind)
	}
	if g.Pack != nil {
		out = append(out, fmt.Sprintf("objects=%d", g.Pack.Objects), fmt.Sprintf("pack_bytes=%d", g.Pack.Size))
		if g.Pack.Size > toolproto.SmallPack || len(g.Refs) > 5 {
			out = append(out, "flag="+toolproto.MarkCommits)
		}
	}
	if g.Index != nil {
		out = append(out, "index=replaced")
	}
	return out
}

func (g *Git) marks() (n int) {
	if g.empty() {
		return 0
	}
	for _, i := range g.Info {
		n += len(i.Marks)
	}
	return n + len(g.Paths)
}

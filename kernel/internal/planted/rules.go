package planted

import (
	"path"
	"strings"
	"sync"

	"palyra/internal/toolproto"
)

// The rules are those of [toolproto.Places] that nobody has to ask for. Anything
// but a folder in the place of one of a rule's folders is that rule's, too (a link
// in the place of .git/hooks). git's *.sample are left out, which nothing runs.

// node is a place that rules name.
type node struct {
	kind string           // of the rules that go through here; the first one's
	file bool             // a rule ends here
	deep bool             // everything beneath is a rule's
	kids map[string]*node // by name, in lower case
	any  *node            // "*"
	some []glob           // by a part of the name
	git  bool             // the hooks of a repository: *.sample are none
}

// glob is the end of a rule, whose last name is a pattern of path.Match in lower case.
type glob struct {
	pattern string
	*node
}

// tree is what the rules say of any folder, repository what they say of
// one that git takes for a repository's own, whatever its name is.
type ruleSet struct{ tree, repository *node }

// set is the rules, compiled when somebody first looks. It is never changed.
var set = sync.OnceValue(func() ruleSet { return compile(toolproto.Places()) })

func compile(rules []toolproto.Place) ruleSet {
	top := new(node)
	for _, r := range rules {
		if r.Asked {
			continue
		}
		for p := range strings.FieldsSeq(r.Paths) {
			at := top
			for e := range strings.SplitSeq(p, "/") {
				if e == "**" {
					at.deep = true
					break
				}
				next := at.any
				if e != "*" {
					next = at.kids[e]
				}
				if next == nil {
					next = &node{kind: r.Kind, git: p == ".git/hooks/*"}
					switch {
					case e == "*":
						at.any = next
					case strings.Contains(e, "*"):
						at.some = append(at.some, glob{e, next})
					case at.kids == nil:
						at.kids = map[string]*node{e: next}
					default:
						at.kids[e] = next
					}
				}
				at = next
			}
			at.file = at.file || !at.deep
		}
	}
	repository := top.kids[".git"]
	repository.kind, repository.kids["hooks"].kind = toolproto.PlaceGit, toolproto.PlaceHook
	return ruleSet{top, repository}
}

// step returns where a name leads from a place, nil for nowhere that a rule names.
func (n *node) step(name string) *node {
	if n.deep {
		return n
	}
	if next := n.kids[lower(name)]; next != nil {
		return next
	}
	for _, g := range n.some {
		if ok, err := path.Match(g.pattern, lower(name)); ok && err == nil {
			return g.node
		}
	}
	if n.any != nil && !(n.any.git && strings.HasSuffix(lower(name), ".sample")) {
		return n.any
	}
	return nil
}

// folder reports whether the rules go on beneath a place.
func (n *node) folder() bool { return n.deep || n.any != nil || len(n.some) > 0 || len(n.kids) > 0 }

// lower is strings.ToLower for ASCII, and leaves every other byte alone.
func lower(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			b := []byte(s)
			for ; i < len(b); i++ {
				if 'A' <= b[i] && b[i] <= 'Z' {
					b[i] += 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}

package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"palyra/kernel/capsule"
)

// How an argument leads to the workspace.
//
// The program looks a name up when it uses it, element by element, from its working directory.
// By then an element may lead elsewhere, and ".." with it, so no name is shortened by its text.
// reach goes the same way and gives each name one of three results:
//
//   - It leads nowhere in the workspace.
//   - It leads to exactly this place in it, whatever happens on the way: elements in the
//     workspace are looked up without following links and are watched while the program runs.
//   - It's uncertain. Then the capsule lists the name as it's spelled, and a call that a person
//     is asked about is refused.
//
// Outside of the workspace reach follows root's links as this host has them. The program's
// /tmp, /dev and /proc are its own.

const maxLinks = 40 // MAXSYMLINKS of Linux

// reach returns the place in the workspace that a name leads to. A kind says that the place is
// uncertain; !ok says that it's outside.
func (p *place) reach(name string) (rel, kind string, ok bool) {
	w := way{place: p, todo: elements(name)}
	if path.IsAbs(name) {
		w.out = "/"
	} else if inside, ok := below(p.view, p.cwd); ok && inside != "." {
		w.rel = elements(inside)
	}
	kind, ok = w.walk()
	switch {
	case kind != "" || !ok:
		return "", kind, ok
	case len(w.rel) == 0:
		return ".", "", true
	}
	if rel = strings.Join(w.rel, "/"); strings.HasSuffix(name, "/") || strings.HasSuffix(name, "/.") {
		rel += "/" // only a folder is found by such a name
	}
	return rel, "", true
}

// elements returns the elements of a path, without "" and ".".
func elements(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(s string) bool { return s == "" || s == "." })
}

type way struct {
	*place
	todo  []string
	out   string   // the current folder outside; "" in the workspace
	rel   []string // in the workspace: the way from its root
	own   int      // the elements of rel that are the name's and not the working directory's
	loose bool     // an element on the way may be different for the program
	links int
}

func (w *way) walk() (kind string, ok bool) {
	for len(w.todo) > 0 {
		e := w.todo[0]
		w.todo = w.todo[1:]
		switch {
		case w.out == "" && e != "..":
			w.rel, w.own = append(w.rel, e), w.own+1
		case w.out == "" && w.own > 0:
			return w.behind(), true
		case w.out == "" && len(w.rel) > 0:
			w.rel = w.rel[:len(w.rel)-1]
		case w.out == "":
			w.out = path.Dir(w.view)
		case e == "..":
			w.up()
		case w.out == "/" && (e == "proc" || e == "dev"):
			if magic(e, w.todo) {
				return capsule.KindSpecial, true
			}
			if e == "proc" || !w.inPlace || len(w.todo) > 0 && slices.Contains(openLinks, w.todo[0]) {
				return "", false
			}
			if kind, ok := w.down(e); !ok { // at tier B it is the host's, with /dev/shm
				return kind, kind != ""
			}
		default:
			if kind, ok := w.down(e); !ok {
				return kind, kind != ""
			}
		}
	}
	switch {
	case w.loose && w.out == "":
		return capsule.KindSymlink, true
	case w.out != "" && w.inPlace && (w.loose || !w.fixed(path.Dir(w.out))):
		return capsule.KindAbsent, true // at tier B another user can make it a link to the workspace
	}
	return "", w.out == ""
}

// behind returns the kind of a name with ".." after an element of the workspace, which is, or
// can become, a link. If the element doesn't exist the name leads nowhere yet and is absent:
// most often it isn't a name at all (sed "s/a/../").
func (w *way) behind() string {
	h, err := w.at(strings.Join(w.rel, "/"))
	if err == nil {
		h.Close()
	} else if errors.Is(err, fs.ErrNotExist) {
		return capsule.KindAbsent
	}
	return capsule.KindSymlink
}

// up leaves a folder outside of the workspace.
func (w *way) up() {
	_, above := below(w.out, w.view) // folders above the workspace stay folders while it exists
	if root := w.out == "/" || slices.Contains(writable, w.out); !root && !above && !w.settled(w.out) {
		w.loose = true
	}
	w.out = path.Dir(w.out)
}

// down enters e outside of the workspace, or comes into it. !ok says that the way ends, with a
// kind if it may still lead to the workspace.
func (w *way) down(e string) (kind string, ok bool) {
	next := path.Join(w.out, e)
	if next == w.view {
		w.out, w.rel, w.own = "", nil, 0
		return "", true
	}
	if w.changeable(next) && !w.inPlace {
		// The program may put a link in a folder of its own, and ".." leads on from that.
		if slices.Contains(w.todo, "..") && !slices.Contains(writable, next) {
			return capsule.KindSymlink, false
		}
		w.out = next
		return "", true
	}
	to, err := os.Readlink(next)
	switch {
	case err == nil:
		if w.links++; w.links > maxLinks {
			return "", false
		}
		if !w.settled(w.out) {
			w.loose = true
		}
		more := elements(to)
		if !w.step(len(more)) {
			return capsule.KindSymlink, false
		}
		if w.todo = append(more, w.todo...); path.IsAbs(to) {
			w.out = "/"
		}
	case errors.Is(err, syscall.ENAMETOOLONG):
		return "", false
	default:
		w.out = next
	}
	return "", true
}

var openLinks = []string{"stdin", "stdout", "stderr", "fd"}

// magic reports whether a name below /proc or /dev may lead anywhere: through the links to a
// process's folders, root and open files. Many calls name devices, the standard streams and the
// system's files in /proc, which lead nowhere.
func magic(root string, rest []string) bool {
	process := func(s string) bool { return s == "self" || s == "thread-self" }
	number := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	switch {
	case slices.Contains(rest, ".."):
		return true
	case root == "dev" && len(rest) > 0 && rest[0] == "fd":
		return len(rest) > 2
	case root == "dev":
		return len(rest) > 1 && slices.Contains(openLinks, rest[0])
	case len(rest) == 3 && process(rest[0]) && rest[1] == "fd" && number(rest[2]):
		return false
	}
	return slices.ContainsFunc(rest, func(s string) bool {
		return slices.Contains([]string{"cwd", "root", "exe", "fd", "map_files"}, s)
	})
}

// The bounds of Linux on names, in bytes, without the NUL.
const (
	maxPath = 4095 // PATH_MAX
	maxName = 255  // NAME_MAX: no file system takes more
)

// nameless reports whether no file can ever have a name.
func nameless(rel string) bool {
	return slices.ContainsFunc(elements(rel), func(s string) bool { return len(s) > maxName })
}

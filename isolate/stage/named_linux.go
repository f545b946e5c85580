package stage

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"palyra/internal/git"
	"palyra/internal/toolproto"
	"palyra/isolate/internal/sys"
)

// namedPath is a file or folder that has another name than those of toolproto.Places, and that
// programs of the host run or obey all the same: the repository's settings name it, or the host has
// a link to it where one of those names is.
type namedPath struct {
	path string
	Mark
}

// maxNamed bounds them: each change is compared with all.
const maxNamed = 256

// maxLooks bounds the names that are looked at for links.
const maxLooks = 20_000

// namedBy finds what the host's repository and links name. What can't be read names nothing: the
// host's files are their owner's, and no program of a cell wrote them unasked.
func (r *reader) namedBy(low int, workspace string) {
	add := func(from, to string, m Mark) {
		if path.IsAbs(to) {
			rel, err := filepath.Rel(workspace, to)
			if err != nil || !path.IsAbs(workspace) {
				return
			}
			to = rel
		} else {
			to = path.Join(path.Dir(from), to)
		}
		if to = path.Clean(to); to != "." && filepath.IsLocal(to) && len(r.named) < maxNamed {
			r.named = append(r.named, namedPath{to, m})
		}
	}
	link := func(name string, m Mark) {
		if to, err := sys.LinkBeneath(low, name); err == nil {
			add(name, to, m)
		}
	}
	looks := maxLooks
	if top, err := sys.OpenBeneath(low, "."); err == nil { // low is read from its beginning later
		r.placeLinks(top, "", &looks, func(name string, f toolproto.Flag) {
			link(name, Mark{f.Kind, "the workspace's " + f.Path + " leads there: " + f.Why})
		})
		sys.Close(top)
	}
	host, _, err := r.repos(-1, low)
	if err != nil {
		return
	}
	defer host.close()
	words, hooks, err := git.Programs(host)
	if err != nil {
		return
	}
	for _, w := range words {
		add("", w, Mark{toolproto.PlaceGit, "the repository's settings name it: git may run it"})
	}
	hook := Mark{toolproto.PlaceHook, "git runs it as a hook: the repository's settings or hooks lead there"}
	if hooks != "" {
		add("", hooks, hook)
	}
	link(topGit+"/hooks", hook)
	names, err := host.Names("hooks")
	if err != nil {
		return
	}
	for _, n := range names {
		if !n.Folder {
			link(topGit+"/hooks/"+n.Name, hook)
		}
	}
}

// placeLinks calls f for the links of the workspace that stand where programs look, at the top or
// in a folder there: .envrc, or .claude/settings.json.
func (r *reader) placeLinks(dir int, prefix string, looks *int, f func(name string, is toolproto.Flag)) {
	var folders []string
	_ = r.each(dir, func(name string) error {
		if *looks--; *looks < 0 || prefix == "" && toolproto.InGit(name) {
			return nil
		}
		e, err := sys.EntryAt(dir, name)
		if err != nil || e.Mode&sys.TypeMask != sys.TypeLink && !isFolder(e) {
			return nil
		}
		is, ok := toolproto.PlantedNode(prefix+name, false)
		switch {
		case !ok:
		case !isFolder(e):
			f(prefix+name, is)
		case prefix == "":
			folders = append(folders, name)
		}
		return nil
	})
	for _, name := range folders {
		if fd, err := sys.OpenBeneath(dir, name); err == nil {
			r.placeLinks(fd, name+"/", looks, f)
			sys.Close(fd)
		}
	}
}

// mark marks a change by what the host has named. What stands in the place of a folder above it
// counts, too.
func (r *reader) mark(name string, folder bool) (marks []Mark) {
	for _, n := range r.named {
		within := name == n.path || strings.HasPrefix(name, n.path+"/")
		above := !folder && strings.HasPrefix(n.path, name+"/")
		if (within || above) && !slices.ContainsFunc(marks, func(m Mark) bool { return m.Kind == n.Kind }) {
			marks = append(marks, n.Mark)
		}
	}
	return marks
}

package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"palyra/internal/git"
	"palyra/internal/toolproto"
	"palyra/isolate/internal/sys"
)

// repo is a .git folder as a program in the cell sees it, the upper folder's names over the lower
// one's, or the lower one alone. Close it.
type repo struct {
	r       *reader
	up, low int // -1: none
}

var _ git.Folder = (*repo)(nil)

func (p *repo) close() {
	for _, fd := range []int{p.up, p.low} {
		if fd >= 0 {
			sys.Close(fd)
		}
	}
}

// sub opens a folder in both; the caller closes it.
func (p *repo) sub(name string) (*repo, error) {
	s := &repo{p.r, -1, -1}
	low := p.low
	if p.up >= 0 {
		e, err := sys.EntryAt(p.up, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case e.Whiteout, !isFolder(e):
			return nil, fs.ErrNotExist
		default:
			if s.up, err = sys.OpenBeneath(p.up, name); err != nil {
				return nil, err
			}
			hides, err := sys.Attribute(s.up, opaque)
			if err != nil {
				s.close()
				return nil, err
			}
			if hides != "" {
				low = -1
			}
		}
	}
	if low >= 0 {
		e, err := sys.EntryAt(low, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err == nil && isFolder(e):
			s.low, err = sys.OpenBeneath(low, name)
			fallthrough
		case err != nil:
			if err != nil {
				s.close()
				return nil, err
			}
		}
	}
	if s.up < 0 && s.low < 0 {
		return nil, fs.ErrNotExist
	}
	return s, nil
}

// walk opens a folder at a path.
func (p *repo) walk(path string) (*repo, error) {
	at := p
	if path == "" {
		path = "."
	}
	for name := range strings.SplitSeq(path, "/") {
		next, err := at.sub(name)
		if at != p {
			at.close()
		}
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// Open implements git.Folder.
func (p *repo) Open(path string) (*os.File, error) {
	dir, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, name = path[:i], path[i+1:]
	}
	at := p
	if dir != "" {
		var err error
		if at, err = p.walk(dir); err != nil {
			return nil, err
		}
		defer at.close()
	}
	if at.up >= 0 {
		e, err := sys.EntryAt(at.up, name)
		if err == nil && e.Whiteout {
			return nil, fs.ErrNotExist
		}
		if err == nil {
			return sys.FileBeneath(at.up, name)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if at.low < 0 {
		return nil, fs.ErrNotExist
	}
	return sys.FileBeneath(at.low, name)
}

// maxHostNames bounds the names of a folder of the workspace's repository, which are kept.
const maxHostNames = 100_000

// Names implements git.Folder.
func (p *repo) Names(path string) ([]git.Name, error) {
	at, err := p.walk(path)
	if err != nil {
		return nil, err
	}
	defer at.close()
	all := make(map[string]bool)
	if at.low >= 0 {
		err := p.r.each(at.low, func(n string) error {
			e, err := sys.EntryAt(at.low, n)
			if err == nil && !e.Whiteout {
				all[n] = isFolder(e)
			}
			if len(all) > maxHostNames {
				return tooLarge("%q: a folder of the repository has too many names", toolproto.Escape(path))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if at.up >= 0 {
		names, err := p.r.names(at.up)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			e, err := sys.EntryAt(at.up, n)
			switch {
			case err == nil && e.Whiteout:
				delete(all, n)
			case err == nil:
				all[n] = isFolder(e)
			}
		}
	}
	var out []git.Name
	for _, n := range slices.Sorted(maps.Keys(all)) {
		out = append(out, git.Name{Name: n, Folder: all[n]})
	}
	return out, nil
}

// entry describes a name of the host's.
func (p *repo) entry(path string) (e sys.Entry, err error) {
	at, name := p, path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		if at, err = p.walk(path[:i]); err != nil {
			return e, err
		}
		defer at.close()
		name = path[i+1:]
	}
	if at.low < 0 {
		return e, fs.ErrNotExist
	}
	return sys.EntryAt(at.low, name)
}

func modeOf(e sys.Entry) string { return fmt.Sprintf("%04o", e.Mode&0o7777) }

// repos opens the repository at the top of the workspace, as the host and as the layer has it.
func (r *reader) repos(up, low int) (host, layer *repo, err error) {
	top := &repo{r, -1, low}
	if host, err = top.sub(topGit); err != nil {
		return nil, nil, err
	}
	if up < 0 {
		return host, nil, nil
	}
	both := &repo{r, up, low}
	if layer, err = both.sub(topGit); err != nil {
		host.close()
		return nil, nil, err
	}
	return host, layer, nil
}

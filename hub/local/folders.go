package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// findFolders says which workspaces hold folders of the host. A path comes from an agent's client:
// it can only choose among what the operator declared, and nothing outside that is looked at.
func (h *Hub) findFolders(_ context.Context, _ hub.Caller, q hub.FolderQuery) (hub.Page[hub.Folder], error) {
	if len(q.Paths) > hub.MaxFolders {
		return hub.Page[hub.Folder]{}, fault.New(fault.Usage, "invalid_input", "find folders", fmt.Errorf("%d paths, at most %d", len(q.Paths), hub.MaxFolders))
	}
	p := hub.Page[hub.Folder]{Items: []hub.Folder{}}
	for _, path := range q.Paths {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return hub.Page[hub.Folder]{}, fault.New(fault.Usage, "invalid_input", "find folders", errors.New("want absolute paths, as short as they can be"))
		}
		p.Items = append(p.Items, h.folder(path))
	}
	return p, nil
}

// folder finds one in the innermost workspace.
func (h *Hub) folder(path string) hub.Folder {
	found, depth := hub.Folder{Workspaces: []string{}}, -1
	for _, name := range slices.Sorted(maps.Keys(h.cfg.Workspaces)) {
		rel, at := inWorkspace(h.cfg.Workspaces[name], path)
		switch {
		case rel == "" || at < depth:
		case at > depth:
			found, depth = hub.Folder{Workspaces: []string{name}, Folder: rel}, at
		default:
			found.Workspaces = append(found.Workspaces, name)
		}
	}
	return found
}

// inWorkspace returns the folder path of the host as one of the workspace at root, "" if it isn't,
// and how deep that lies. A workspace may be declared by a path with links, and the path be one
// without.
func inWorkspace(root, path string) (rel string, depth int) {
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", 0
	}
	for _, at := range []string{root, real} {
		rel, err := filepath.Rel(at, path)
		if err != nil || !filepath.IsLocal(rel) || rel != "." && !named(rel) {
			continue
		}
		if isFolderBeneath(real, rel) {
			return rel, strings.Count(filepath.Clean(real), "/")
		}
	}
	return "", 0
}

// named says that a call can name this folder of its workspace.
func named(rel string) bool {
	p, err := toolproto.ParsePath(rel)
	return err == nil && string(p) == rel
}

// isFolderBeneath follows links only as far as they lead to places beneath root. The program is in
// a cell by then, where one that was exchanged since leads nowhere else either.
func isFolderBeneath(root, rel string) bool {
	r, err := os.OpenRoot(root)
	if err != nil {
		return false
	}
	defer r.Close()
	fi, err := r.Stat(rel)
	return err == nil && fi.IsDir()
}

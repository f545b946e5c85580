package serve

import (
	"os"
	"slices"
	"strconv"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/native/landlock"
)

// identify chooses the cell's user: as root one that no other cell has, but for those of its
// layer.
func (r *run) identify() error {
	if r.staged() {
		return r.joinLayer()
	}
	r.newIDs()
	return nil
}

func (r *run) newIDs() {
	if r.s.root {
		r.uid = r.s.uids.take()
		r.gid = r.uid
	}
}

// sharesTmp reports whether /tmp is a cache of the call's session.
func (r *run) sharesTmp() bool { return slices.Contains(r.spec.Caches, isolate.CacheTmp) }

// fileSystems makes the cell's own file systems: /dev/shm and, unless the call has a directory of
// the host for it, /tmp and the workspace. It returns their landlock rules.
func (r *run) fileSystems(c *native.Cell) (grants []landRule, err error) {
	l := r.spec.Limits
	size, inodes := strconv.FormatInt(l.Disk, 10), strconv.FormatInt(l.Inodes, 10)
	for _, t := range [...]struct{ label, path, mode string }{{"tmp", "/tmp", "1777"}, {"shm", "/dev/shm", "1777"}, {"workspace", native.WorkspaceDir, "0700"}} {
		if t.label == "workspace" && r.spec.Workspace != nil || t.label == "tmp" && r.sharesTmp() {
			continue
		}
		m, err := sys.NewFS("tmpfs", sys.AttrNoSUID|sys.AttrNoDev, "mode", t.mode, "uid", utoa(r.uid), "gid", utoa(r.gid),
			"size", size, "nr_inodes", inodes)
		if err != nil {
			return nil, refuse("cell_start", "make "+t.path, err)
		}
		g, err := r.place(c, t.label, t.path, m, "rwx")
		if err != nil {
			return nil, err
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// place has the tape attach a detached mount, and takes the mount over.
func (r *run) place(c *native.Cell, label, path string, m *os.File, access string) (landRule, error) {
	r.hold(m)
	fd, err := r.raiseFile(m)
	if err != nil {
		return landRule{}, fault.New(fault.Unavailable, "resource_exhausted", "prepare cell", err)
	}
	c.Mounts = append(c.Mounts, native.Attach{Label: label, FD: fd, Path: path})
	return landRule{file: m, access: access, kind: landlock.Directory}, nil
}

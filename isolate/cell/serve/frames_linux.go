package serve

import (
	"os"
	"slices"
	"strings"

	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
)

// A place that the template doesn't have, such as the workspace's own path, is made of folders
// without content. The first one lies in the template, whose files all cells share: it's made
// with the first call that needs it, belongs to root, and stays empty. The others lie in a small
// read-only tmpfs of the call's own, the frame, which is mounted on the first one.

// frames has the tape attach the frames of places, which are clean, distinct, and none beneath
// another.
func (r *run) frames(c *native.Cell, places ...string) error {
	const op = "make the folders above a mount"
	tops := make(map[string]*os.File)
	for _, at := range slices.Sorted(slices.Values(places)) {
		way := strings.Split(at[1:], "/")
		if err := sys.EnsureFolder(r.s.top, way[0]); err != nil {
			return refuse("cell_start", op, err)
		}
		if len(way) == 1 {
			continue // the folder itself is covered
		}
		top := "/" + way[0]
		if tops[top] == nil {
			m, err := sys.NewFS("tmpfs", sys.AttrNoSUID|sys.AttrNoDev|sys.AttrNoExec, "mode", "0755", "size", "1m", "nr_inodes", "65536")
			if err != nil {
				return refuse("cell_start", op, err)
			}
			tops[top] = r.hold(m)
			r.framed = append(r.framed, top)
		}
		dir := tops[top]
		for _, name := range way[1:] {
			if err := sys.EnsureFolder(dir, name); err != nil {
				return refuse("cell_start", op, err)
			}
			next, err := sys.FolderBeneath(int(dir.Fd()), name)
			if err != nil {
				return refuse("cell_start", op, err)
			}
			if dir != tops[top] {
				dir.Close()
			}
			dir = next
		}
		dir.Close()
	}
	for _, top := range r.framed {
		if err := sys.SetAttr(tops[top], sys.AttrReadOnly); err != nil {
			return refuse("cell_start", op, err)
		}
		fd, err := r.raiseFile(tops[top])
		if err != nil {
			return fault.New(fault.Unavailable, "resource_exhausted", "prepare cell", err)
		}
		c.Mounts = append(c.Mounts, native.Attach{Label: "frame", FD: fd, Path: top})
	}
	return nil
}

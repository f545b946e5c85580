package stage

import (
	"palyra/isolate/internal/sys"
)

// maxNested bounds the folders within each other that Size looks into: each holds a descriptor.
const maxNested = 200

// Size returns the space that the layer takes, in bytes, as far as it could be seen. A program
// can keep us from looking into a folder, or nest too many; then whole is false.
func (l *Layer) Size() (bytes int64, whole bool) {
	whole = true
	buf := make([]byte, 8<<10)
	var look func(dir int, name string, nested int)
	look = func(dir int, name string, nested int) {
		fd, err := sys.OpenBeneath(dir, name)
		if err != nil || nested == 0 {
			if err == nil {
				sys.Close(fd)
			}
			whole = false
			return
		}
		defer sys.Close(fd)
		for {
			names, err := sys.NextNames(fd, buf)
			whole = whole && err == nil
			if err != nil || len(names) == 0 {
				return
			}
			for _, name := range names {
				n, folder, err := sys.Allocated(fd, name)
				if err != nil {
					whole = false
					continue
				}
				if bytes += n; folder {
					look(fd, name, nested-1)
				}
			}
		}
	}
	look(int(l.dir.Fd()), upperName, maxNested) // overlayfs keeps us out of its work folder
	return bytes, whole
}

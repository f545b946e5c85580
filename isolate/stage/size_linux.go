package stage

import (
	"palyra/isolate/internal/sys"
)

// Size returns the space that the layer takes, in bytes, as far as it could be seen. A program
// can keep us from looking into a folder, or nest too many; then whole is false.
func (l *Layer) Size() (bytes int64, whole bool) {
	return sys.TreeSize(int(l.dir.Fd()), upperName) // overlayfs keeps us out of its work folder
}

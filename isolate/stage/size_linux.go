package stage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
)

// Size returns the space that a layer takes, in bytes, as [Layer.Size] does, without locking it.
func Size(state, name string) (bytes int64, whole bool, err error) {
	if err := CheckName(name); err != nil {
		return 0, false, err
	}
	dir, err := os.OpenFile(filepath.Join(state, Folder, name), os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return 0, false, fault.New(fault.BadState, "state_io", fmt.Sprintf("measure layer %q", name), err)
	}
	l := &Layer{dir: dir, path: dir.Name()}
	defer l.Close()
	bytes, whole = l.Size()
	return bytes, whole, nil
}

// Size returns the space that the layer takes, in bytes, as far as it could be seen. A program
// can keep us from looking into a folder, or nest too many; then whole is false. What an apply kept
// counts, too.
func (l *Layer) Size() (bytes int64, whole bool) {
	bytes, whole = sys.TreeSize(int(l.dir.Fd()), upperName) // overlayfs keeps us out of its work folder
	entries, err := os.ReadDir(l.path)
	if err != nil {
		return bytes, false
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), keptPrefix) {
			n, all := sys.TreeSize(int(l.dir.Fd()), e.Name())
			bytes, whole = bytes+n, whole && all
		}
	}
	return bytes, whole
}

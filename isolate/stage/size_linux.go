package stage

import (
	"fmt"
	"os"
	"path/filepath"
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
	l := &Layer{dir: dir}
	defer l.Close()
	bytes, whole = l.Size()
	return bytes, whole, nil
}

// Size returns the space that the layer takes, in bytes, as far as it could be seen. A program
// can keep us from looking into a folder, or nest too many; then whole is false.
func (l *Layer) Size() (bytes int64, whole bool) {
	return sys.TreeSize(int(l.dir.Fd()), upperName) // overlayfs keeps us out of its work folder
}

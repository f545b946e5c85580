package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"

	"palyra/internal/fault"
)

// Fill makes files that the cache hasn't, with their folders. What an earlier call left under a
// name stays, and no link leads out of the cache.
func (c *Cache) Fill(files []File) error {
	const op = "fill cache"
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(c.Dir.Fd())))
	if err != nil {
		return fault.New(fault.BadState, "state_io", op, err)
	}
	defer root.Close()
	for _, f := range files {
		if err := c.make(root, f); err != nil && !errors.Is(err, fs.ErrExist) {
			return fault.New(fault.BadState, "state_io", op, fmt.Errorf("%q: %w", f.Path, err)).WithHint("palyra caches rm removes it")
		}
	}
	return nil
}

func (c *Cache) make(root *os.Root, f File) error {
	// A folder at a time: each that is new becomes the owner's.
	var folders []string
	for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
		folders = append(folders, dir)
	}
	for i := range folders {
		dir := folders[len(folders)-1-i]
		err := root.Mkdir(dir, 0o700)
		if err == nil {
			err = c.give(root, dir)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	out, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = out.WriteString(f.Text)
	if err = errors.Join(err, out.Close(), c.give(root, f.Path)); err != nil {
		err = errors.Join(err, root.Remove(f.Path)) // a part of it would count as another's
	}
	return err
}

// give makes a new file the workspace's owner's, as the cache is.
func (c *Cache) give(root *os.Root, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return root.Lchown(name, int(c.Owner.UID), int(c.Owner.GID))
}

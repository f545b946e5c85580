package durable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// WriteIn is WriteFile for a name in a folder that is held open. It replaces whatever has
// the name and never opens or follows it, be it a link or a FIFO. The folder's own name
// doesn't matter by now. WriteIn is for folders that other users write to, too.
func WriteIn(dir *os.Root, name string, data []byte, perm fs.FileMode) (err error) {
	tmp := "." + name + tempMark + rand.Text()
	f, err := dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm.Perm())
	if err != nil {
		return fmt.Errorf("create file beside %q: %w", name, cause(err))
	}
	defer func() {
		if err != nil {
			_ = dir.Remove(tmp) // best effort: only its name tells of it
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(perm.Perm()) // the umask may have taken bits away
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %q: %w", name, cause(err))
	}
	if err = dir.Rename(tmp, name); err != nil {
		return fmt.Errorf("replace %q: %w", name, cause(err))
	}
	d, err := dir.Open(".")
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return fmt.Errorf("flush the folder of %q: %w", name, cause(err))
	}
	return nil
}

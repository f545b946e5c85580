package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"palyra/internal/fault"
	"palyra/kernel"
)

// receiptFile is where a receipt goes. Its folder is opened before the program
// runs and used afterwards: if it lies in the workspace, the program may by then
// have put a link to a folder of the host in its place, and a receipt written
// through that would replace a file there.
type receiptFile struct {
	path string // "" for nowhere
	dir  *os.Root
}

// open checks that a receipt can be put there, and holds the folder.
func (r *receiptFile) open() error {
	if r.path == "" {
		return nil
	}
	err := receiptTarget(r.path)
	if err != nil {
		return err
	}
	if r.dir, err = os.OpenRoot(filepath.Dir(r.path)); err != nil {
		return fault.New(fault.Usage, "bad_receipt_file", fmt.Sprintf("receipt file %q", r.path), err)
	}
	return nil
}

func (r *receiptFile) close() {
	if r.dir != nil {
		r.dir.Close()
	}
}

// keep writes the receipt to where it was asked for.
func (r *receiptFile) keep(out *kernel.Outcome) error {
	if r.dir == nil || out.Receipt == nil {
		return nil
	}
	if err := r.write(out.Receipt); err != nil {
		return fault.New(fault.Unavailable, "receipt_not_written", fmt.Sprintf("write receipt %q", r.path), err).
			WithHint(fmt.Sprintf("the call is entry %d of the journal: palyra journal show %d", out.LogIndex, out.LogIndex))
	}
	return nil
}

// write is durable.WriteFile in the folder that is held: whatever has the name is
// replaced and never opened, be it a link or a FIFO.
func (r *receiptFile) write(b []byte) (err error) {
	name := filepath.Base(r.path)
	tmp := ".palyra-receipt-" + rand.Text()
	f, err := r.dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return cause(err)
	}
	defer func() {
		if err != nil {
			_ = r.dir.Remove(tmp) // best effort: nothing but its name tells of it
		}
	}()
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(0o644) // the umask may have taken bits away
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return cause(err)
	}
	if err = r.dir.Rename(tmp, name); err != nil {
		return cause(err)
	}
	return syncDir(r.dir)
}

// cause drops the temporary name, which says nothing to a reader.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

func syncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return cause(err)
	}
	return cause(errors.Join(d.Sync(), d.Close()))
}

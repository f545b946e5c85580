// Package receiptfile is where a command leaves the receipt of a call:
//
//	f, err := receiptfile.Open("out.json") // before the program runs
//	defer f.Close()
//	err = f.Keep(receipt, index, 0o644)    // after it
//
// # Contract
//
// A receipt that can't be put there is refused before anything runs, so that no effect is
// followed by "cannot write the receipt". The folder is opened then and used afterwards. If it
// lies in the workspace, the program may by then have put a link to a folder of the host in its
// place, and a receipt written through that would replace a file there.
//
// # What it does not protect against
//
// A program that writes to the folder itself: it can replace the receipt later.
package receiptfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// File is the destination of a receipt. A nil File is nowhere.
type File struct {
	path string
	dir  *os.Root
}

// Open checks that a receipt can be put at path, and holds its folder. It returns nil for "".
func Open(path string) (*File, error) {
	if path == "" {
		return nil, nil
	}
	if err := Check(path); err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, fault.New(fault.Usage, "bad_file", fmt.Sprintf("receipt file %q", path), err)
	}
	return &File{path, dir}, nil
}

// Close lets the folder go.
func (f *File) Close() {
	if f != nil {
		f.dir.Close()
	}
}

// Keep writes the receipt, which is the entry index of the journal.
func (f *File) Keep(receipt []byte, index uint64, perm fs.FileMode) error {
	if f == nil || receipt == nil {
		return nil
	}
	if err := durable.WriteIn(f.dir, filepath.Base(f.path), receipt, perm); err != nil {
		return fault.New(fault.Unavailable, "io_error", fmt.Sprintf("write receipt %q", f.path), err).
			WithHint(fmt.Sprintf("the call is entry %d of the journal: palyra journal show %d", index, index))
	}
	return nil
}

// Check checks that a receipt can be put at path.
func Check(path string) error {
	if path == "" {
		return nil
	}
	op := fmt.Sprintf("receipt file %q", path)
	if fi, err := os.Lstat(path); err == nil && !fi.Mode().IsRegular() {
		return fault.New(fault.Usage, "bad_file", op, errors.New("exists and is not a regular file"))
	}
	fi, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return fault.New(fault.Usage, "bad_file", op, err)
	}
	if !fi.IsDir() {
		return fault.New(fault.Usage, "bad_file", op, errors.New("its parent is not a directory"))
	}
	// Only creating a file tells whether one can be created (read-only mounts,
	// quotas, ACLs). The name is random and goes at once.
	f, err := os.CreateTemp(filepath.Dir(path), ".palyra-receipt-*")
	if err != nil {
		return fault.New(fault.Usage, "bad_file", op, err)
	}
	defer os.Remove(f.Name())
	return f.Close()
}

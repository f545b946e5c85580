package main

import (
	"fmt"
	"os"
	"path/filepath"

	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/kernel"
)

// receiptFile is the destination of a receipt. palyra opens its folder before the program
// runs and uses it afterwards. If the folder lies in the workspace, the program may by then
// have put a link to a folder of the host in its place, and a receipt written through that
// would replace a file there.
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
		return fault.New(fault.Usage, "bad_file", fmt.Sprintf("receipt file %q", r.path), err)
	}
	return nil
}

func (r *receiptFile) close() {
	if r.dir != nil {
		r.dir.Close()
	}
}

// keep writes the receipt to its destination.
func (r *receiptFile) keep(out *kernel.Outcome) error {
	if r.dir == nil || out.Receipt == nil {
		return nil
	}
	if err := durable.WriteIn(r.dir, filepath.Base(r.path), out.Receipt, 0o644); err != nil {
		return fault.New(fault.Unavailable, "write_failed", fmt.Sprintf("write receipt %q", r.path), err).
			WithHint(fmt.Sprintf("the call is entry %d of the journal: palyra journal show %d", out.LogIndex, out.LogIndex))
	}
	return nil
}

package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// SlotSize is the most that a Slot holds, in bytes. A disk writes so many whole or not at
// all.
const SlotSize = 512

// slotBlock is the size of its file: a block of any file system.
const slotBlock = 4096

// Slot is a file of one sector that can be overwritten when the disk is full, because it
// has its block already. File systems that write in place need no other block for that
// (ext4, XFS, tmpfs, and an overlay of those); those that copy on write (btrfs, ZFS) may. A
// Slot isn't safe for concurrent use.
type Slot struct {
	f *os.File
}

// OpenSlot opens the Slot at path, or makes it with content if there is none, and returns
// what it holds.
func OpenSlot(path string, first []byte) (_ *Slot, content []byte, err error) {
	if len(first) > SlotSize {
		return nil, nil, fmt.Errorf("slot %q: %d bytes, at most %d", path, len(first), SlotSize)
	}
	f, err := os.OpenFile(path, os.O_RDWR|noFollow, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err = WriteFile(path, padded(first, slotBlock), 0o600); err == nil {
			f, err = os.OpenFile(path, os.O_RDWR|noFollow, 0)
		}
	}
	if err != nil {
		return nil, nil, Fault(fmt.Sprintf("open %q", path), cause(err))
	}
	b := make([]byte, SlotSize)
	n, err := f.ReadAt(b, 0)
	if n < SlotSize { // not made here: its reader decides
		b, err = b[:n], nil
	}
	if err != nil {
		return nil, nil, Fault(fmt.Sprintf("read %q", path), errors.Join(cause(err), f.Close()))
	}
	return &Slot{f}, bytes.TrimRight(b, " "), nil
}

// Write replaces the content, durably.
func (s *Slot) Write(b []byte) error {
	if len(b) > SlotSize {
		return fmt.Errorf("write slot: %d bytes, at most %d", len(b), SlotSize)
	}
	if _, err := s.f.WriteAt(padded(b, SlotSize), 0); err != nil {
		return Fault("write slot", cause(err))
	}
	if err := Datasync(s.f); err != nil {
		return Fault("flush slot", cause(err))
	}
	return nil
}

// Close closes the file.
func (s *Slot) Close() error { return s.f.Close() }

func padded(b []byte, n int) []byte {
	out := bytes.Repeat([]byte{' '}, n)
	copy(out, b)
	return out
}

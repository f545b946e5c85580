package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// files keeps a value in a private file: 0600, in a folder that is made 0700.
type files struct{ step func(string) }

func (s files) write(_ context.Context, name string, value []byte) error {
	op := fmt.Sprintf("write identity %q", name)
	if err := durable.MkdirAll0700(filepath.Dir(name)); err != nil {
		return durable.Fault(op, err)
	}
	// The name is taken first, by an empty file, so that no other file is replaced; the value comes
	// with a rename, so that there is never a part of it.
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fault.New(fault.BadState, "exists", op, errors.New("the file is there already")).WithHint("move it away, or name another")
	}
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		s.step("claimed")
		line := append(value[:len(value):len(value)], '\n')
		defer clear(line)
		if err = durable.WriteFileSteps(name, line, 0o600, s.step); err != nil {
			_ = os.Remove(name) // empty
		}
	}
	return durable.Fault(op, err)
}

func (files) read(_ context.Context, name string) ([]byte, error) {
	b, err := durable.ReadPrivate(name, maxValue)
	if err == nil && len(b) == 0 {
		err = durable.Fault(fmt.Sprintf("read %q", name), fs.ErrNotExist) // an interrupted write
	}
	if err != nil {
		return nil, err
	}
	return trimLine(b), nil
}

func (s files) remove(_ context.Context, name string) error {
	op := fmt.Sprintf("remove identity %q", name)
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	s.step("unlinked")
	if e := durable.RemoveTempsOf(name); !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
		if err == nil {
			err = durable.SyncDir(filepath.Dir(name))
		}
	}
	return durable.Fault(op, err)
}

func trimLine(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		return b[:n-1]
	}
	return b
}

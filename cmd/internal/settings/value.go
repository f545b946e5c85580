package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// MinScrubbed is the length from which on the vault takes a value out of output, in bytes.
const MinScrubbed = 8

// ReadValue reads one value from a file, "" for stdin. Unless exact, one newline at its end isn't
// part of it. The caller clears it.
func ReadValue(path string, stdin io.Reader, exact bool) (_ []byte, err error) {
	in, op := stdin, "read the value from standard input"
	if path != "" {
		op = fmt.Sprintf("read the value from %q", path)
		f, err := os.Open(path)
		if err != nil {
			return nil, durable.Fault(op, err)
		}
		defer f.Close()
		in = f
	}
	b := make([]byte, MaxValue+2) // one for the newline, one to see that there is more
	defer func() {
		if err != nil {
			clear(b)
		}
	}()
	n, err := io.ReadFull(in, b)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, fault.New(fault.Unavailable, "io_error", op, err)
	}
	v := b[:n]
	if !exact {
		v = bytes.TrimSuffix(v, []byte("\n"))
	}
	switch {
	case len(v) == 0:
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("it is empty"))
	case len(v) > MaxValue:
		return nil, fault.New(fault.Usage, "too_large", op, fmt.Errorf("more than %d bytes", MaxValue))
	}
	return v, nil
}

// OpenRegular opens a file to be read, whoever owns it.
func OpenRegular(op, path string) (*os.File, error) {
	fi, err := os.Stat(path)
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("no regular file") // a pipe would have us wait
	}
	if err != nil {
		return nil, durable.Fault(op, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, durable.Fault(op, err)
	}
	return f, nil
}

// An Output is a new file for an export. It's made before anyone is asked: an export that can't be
// written reveals nothing.
type Output struct {
	op   string
	file *os.File
	kept bool
}

// Create makes the file at path, which must not exist, with mode 0600.
func Create(path string) (*Output, error) {
	op := fmt.Sprintf("write export %q", path)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fault.New(fault.BadState, "unsafe_file", op, errors.New("the file is there already")).WithHint("name a new one")
	}
	if err != nil {
		return nil, durable.Fault(op, err)
	}
	return &Output{op: op, file: f}, nil
}

// Keep makes b the file's durable content.
func (o *Output) Keep(b []byte) error {
	_, err := o.file.Write(b)
	if err == nil {
		err = o.file.Sync()
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(o.file.Name()))
	}
	if err != nil {
		return durable.Fault(o.op, err)
	}
	o.kept = true
	return nil
}

// Close removes the file unless it was kept: what is in it is no whole export.
func (o *Output) Close() {
	_ = o.file.Close() // synced, or to be removed
	if !o.kept {
		_ = os.Remove(o.file.Name())
	}
}

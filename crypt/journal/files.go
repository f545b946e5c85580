package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"palyra/internal/durable"
)

// writeFile writes a file below the journal durably, with its folders.
func (j *Journal) writeFile(step, name string, data []byte) error {
	path := filepath.Join(j.dir, filepath.FromSlash(name))
	if err := durable.MkdirAll0700(filepath.Dir(path)); err != nil {
		return err
	}
	j.step(step + ":begin")
	return durable.WriteFileSteps(path, data, 0o600, func(s string) { j.step(step + ":" + s) })
}

// replaceFile is writeFile without the flushes.
func (j *Journal) replaceFile(step, name string, data []byte) error {
	path := filepath.Join(j.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	j.step(step + ":begin")
	if err := durable.Replace(path, data, 0o600); err != nil {
		return err
	}
	j.step(step + ":renamed")
	return nil
}

// writeOnce writes a file that never changes again. A file that is there already comes from
// a seal that a crash interrupted, and must be the same.
func (j *Journal) writeOnce(step, name string, fill func(io.Writer) error) error {
	path := filepath.Join(j.dir, filepath.FromSlash(name))
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return j.writeFrom(step, name, fill)
	case err != nil:
		return err
	}
	defer f.Close()
	same := &compared{with: bufio.NewReaderSize(f, 1<<16)}
	if err := fill(same); err != nil && !errors.Is(err, errDiffers) {
		return err
	}
	if !same.ended() {
		return corrupt("tile_corrupt", fmt.Errorf("%q is there already and different", path))
	}
	return durable.SyncDir(filepath.Dir(path))
}

// writeFrom is writeFile for content that fill writes.
func (j *Journal) writeFrom(step, name string, fill func(io.Writer) error) error {
	path := filepath.Join(j.dir, filepath.FromSlash(name))
	if err := durable.MkdirAll0700(filepath.Dir(path)); err != nil {
		return err
	}
	j.step(step + ":begin")
	s, err := durable.Stage(path, fill, 0o600, func(s string) { j.step(step + ":" + s) })
	if err != nil {
		return err
	}
	defer s.Discard()
	_, err = s.Commit()
	return err
}

var errDiffers = errors.New("the file is another one")

// compared is a writer that compares what is written with a file.
type compared struct {
	with io.Reader
	bad  bool
}

func (c *compared) Write(b []byte) (int, error) {
	was := make([]byte, len(b))
	if _, err := io.ReadFull(c.with, was); err != nil || !slices.Equal(was, b) {
		c.bad = true
		return 0, errDiffers
	}
	return len(b), nil
}

// ended reports whether all of the file was written, and nothing else.
func (c *compared) ended() bool {
	n, err := c.with.Read(make([]byte, 1))
	return !c.bad && n == 0 && err == io.EOF
}

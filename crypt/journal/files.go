package journal

import (
	"errors"
	"fmt"
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
func (j *Journal) writeOnce(step, name string, data []byte) error {
	path := filepath.Join(j.dir, filepath.FromSlash(name))
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return j.writeFile(step, name, data)
	case err != nil:
		return err
	case !slices.Equal(old, data):
		return corrupt("tile_corrupt", fmt.Errorf("%q is there already and different", path))
	}
	return durable.SyncDir(filepath.Dir(path))
}

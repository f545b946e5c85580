package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"

	"palyra/crypt/keyring"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// A backup has the keys, public and private, of the time when the journal was copied: a journal
// signed by a key that isn't beside it can't be continued, nor can one that knows fewer keys than
// keys/ does.

const (
	maxKeyFile  = 4 << 20  // bytes of a file of keys/ or trust/
	maxKeyFiles = 64 << 20 // bytes of all
)

// keyFiles are the files of keys/ and trust/, by their names in the archive. They stay in memory,
// so that no second copy of a private key gets onto the disk.
type keyFiles map[string][]byte

// readKeys reads trust/ and keys/ of a state directory while no process replaces a key.
func readKeys(ctx context.Context, state string) (_ keyFiles, err error) {
	const op = "back up keys"
	release, err := keyring.HoldRotations(ctx, state)
	if err != nil {
		return nil, err
	}
	defer release()
	files := make(keyFiles)
	defer func() {
		if err != nil {
			files.wipe()
		}
	}()
	left := int64(maxKeyFiles)
	for _, name := range []string{"trust", "keys"} {
		dir := filepath.Join(state, name)
		err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && file == dir && name == "keys" {
				return nil // a copy that can't sign
			}
			if err != nil || d.IsDir() || durable.IsTemp(d.Name()) {
				return err
			}
			rel, err := filepath.Rel(dir, file)
			if err != nil {
				return err
			}
			b, err := durable.ReadRegular(file, min(maxKeyFile, left))
			if err != nil {
				return err
			}
			left -= int64(len(b))
			files[path.Join(name, filepath.ToSlash(rel))] = b
			return nil
		})
		if err != nil {
			return nil, durable.Fault(op, err)
		}
	}
	return files, nil
}

func (f keyFiles) wipe() {
	for _, b := range f {
		clear(b)
	}
}

// stageState copies journal and vault of a state directory, and returns the keys that belong to
// them, which the caller wipes. Keys may be replaced meanwhile; then all is copied again, so that a
// long copy holds up no rotation.
func stageState(ctx context.Context, state, dir string, step func(string)) (keys keyFiles, size int64, err error) {
	for range 5 {
		if keys, err = readKeys(ctx, state); err != nil {
			return nil, 0, err
		}
		step("backup_keys")
		var copied error // also that the keys of before don't verify the copy
		size, copied = stageBoth(ctx, state, dir, step)
		now, err := readKeys(ctx, state)
		same := err == nil && maps.EqualFunc(keys, now, bytes.Equal)
		now.wipe()
		if same && copied == nil {
			return keys, size, nil
		}
		keys.wipe()
		if err != nil {
			return nil, 0, err
		}
		if same || ctx.Err() != nil {
			return nil, 0, copied
		}
	}
	return nil, 0, fault.New(fault.Busy, "changed", "back up keys", fmt.Errorf("keys of %q were replaced while the journal was copied", state))
}

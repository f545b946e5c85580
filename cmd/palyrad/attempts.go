package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// safeAfter is how many failed starts in a row lead to safe mode.
const safeAfter = 3

// attempts counts the starts that did not come to a good end, in the file
// "starts" of the state directory. Each start counts itself before it does
// anything that can fail and takes itself off when palyrad was ready for long
// enough, or was asked to stop after it had been ready. What crashes, hangs
// until the watchdog kills it, or cannot open its state stays counted.
//
// The third such start in a row is followed by safe mode. Restarting palyrad by
// hand ends safe mode: that is a stop after ready.
type attempts struct {
	path string
	file attemptsFile
}

type attemptsFile struct {
	Version int       `json:"version"`
	Failed  int       `json:"failed"` // in a row
	Last    time.Time `json:"last"`
}

// begin counts this start. It reports whether the starts before it failed so
// often that this one must be in safe mode. A file that cannot be understood
// counts as that: something is wrong with the state directory.
func begin(stateDir string, now time.Time) (*attempts, bool, error) {
	a := &attempts{path: filepath.Join(stateDir, "starts")}
	b, err := durable.ReadPrivate(a.path, 4096)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, false, err
	default:
		if json.Unmarshal(b, &a.file) != nil || a.file.Version != 1 || a.file.Failed < 0 {
			a.file.Failed = safeAfter
		}
	}
	safe := a.file.Failed >= safeAfter
	a.file.Version, a.file.Last = 1, now.UTC()
	a.file.Failed = min(a.file.Failed+1, 1<<20)
	return a, safe, a.write()
}

func (a *attempts) write() error {
	b, err := json.Marshal(a.file)
	if err != nil {
		return fault.New(fault.Internal, "starts_encode", "write start counter", err)
	}
	return durable.WriteFile(a.path, append(b, '\n'), 0o600)
}

// good takes this start, and those before it, off the count.
func (a *attempts) good() error {
	if err := os.Remove(a.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Unavailable, "starts_clear", "clear start counter", err)
	}
	return nil
}

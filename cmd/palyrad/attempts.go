package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// safeAfter is the number of failed starts in a row that lead to safe mode.
const safeAfter = 3

// attempts counts the starts that didn't come to a good end, in the file "starts" of the
// state directory. Each start counts itself before it does anything that can fail and takes
// itself off when palyrad has been ready for long enough, or was asked to stop after it had
// been ready. A start that crashes, hangs until the watchdog kills it, or can't open its
// state stays counted.
//
// The third such start in a row is followed by safe mode. Restarting palyrad by
// hand ends safe mode: that is a stop after ready.
//
// Something else may kill palyrad after it was ready: the kernel, for want of memory, or a
// person. That says nothing about the start, so the next one takes it off. The Go runtime
// tells the two apart: it writes why it crashes, also to a watchdog's SIGABRT, to the file
// "crash", which exists since ready and is empty after a kill.
//
// A start on a full disk isn't a failed one. It takes itself off, and uses the space of the
// file "room", which an earlier start set aside, to open the state for reading.
type attempts struct {
	path   string
	crash  string
	room   string
	before int // Failed without this start
	file   attemptsFile
}

// roomBytes is the space that a start sets aside. A first start writes 0.3 MiB, a later one
// less; a run that it finds at work takes some KiB.
const roomBytes = 2 << 20

type attemptsFile struct {
	Version int       `json:"version"`
	Failed  int       `json:"failed"` // in a row
	Last    time.Time `json:"last"`
}

// begin counts this start. It reports whether the starts before it failed so often that
// this one must be in safe mode. An unreadable file counts as that too: something is wrong
// with the state directory. After fault.Unavailable "disk_full" the start goes on with
// freeze.
func begin(stateDir string, now time.Time) (*attempts, bool, error) {
	a := &attempts{path: filepath.Join(stateDir, "starts"), crash: filepath.Join(stateDir, "crash"), room: filepath.Join(stateDir, "room")}
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
	if fi, err := os.Lstat(a.crash); err == nil && fi.Size() == 0 && a.file.Failed > 0 {
		a.file.Failed--
	}
	safe := a.file.Failed >= safeAfter
	a.before = a.file.Failed
	a.file.Version, a.file.Last = 1, now.UTC()
	a.file.Failed = min(a.file.Failed+1, 1<<20)
	if err := a.write(); err != nil {
		return a, safe, err
	}
	if err := a.setAside(); err != nil {
		return a, safe, durable.Fault("set room aside for a start on a full disk", err)
	}
	return a, safe, remove(a.crash)
}

// setAside makes the file "room". The start that makes it needs as much again, so it doesn't
// take what the one before, on a full disk, gave away.
func (a *attempts) setAside() error {
	if fi, err := os.Lstat(a.room); err == nil && fi.Size() == roomBytes {
		return nil
	}
	if err := durable.WriteFile(a.room, make([]byte, 2*roomBytes), 0o600); err != nil {
		return err
	}
	return os.Truncate(a.room, roomBytes)
}

// freeze takes this start off the count and gives it the room that was set aside.
func (a *attempts) freeze() error {
	if err := remove(a.room); err != nil {
		return err
	}
	if a.file.Failed = a.before; a.before > 0 {
		if err := a.write(); err != nil {
			return err
		}
		return remove(a.crash)
	}
	return a.good()
}

// ready has a crash leave its report from now on.
func (a *attempts) ready() error {
	f, err := os.OpenFile(a.crash, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		defer f.Close() // the runtime has a descriptor of its own
		err = debug.SetCrashOutput(f, debug.CrashOptions{})
	}
	if err != nil {
		return fault.New(fault.Unavailable, "io_error", "make file for crash report", err)
	}
	return nil
}

func (a *attempts) write() error {
	b, err := json.Marshal(a.file)
	if err != nil {
		return fault.New(fault.Internal, "internal", "write start counter", err)
	}
	return durable.Fault("count start", durable.WriteFile(a.path, append(b, '\n'), 0o600))
}

// good takes this start, and those before it, off the count.
func (a *attempts) good() error {
	return errors.Join(remove(a.path), remove(a.crash))
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Unavailable, "io_error", "clear start counter", err)
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"palyra/cmd/internal/installed"
	"palyra/internal/fault"
)

// stateDir returns the state directory: the --state flag, else
// $XDG_STATE_HOME/palyra, else $HOME/.local/state/palyra. A relative
// XDG_STATE_HOME is ignored, as the XDG specification asks.
func stateDir(flag string, getenv func(string) string) (string, error) {
	switch {
	case flag != "":
		return filepath.Abs(flag)
	case filepath.IsAbs(getenv("XDG_STATE_HOME")):
		return filepath.Join(getenv("XDG_STATE_HOME"), "palyra"), nil
	case filepath.IsAbs(getenv("HOME")):
		return filepath.Join(getenv("HOME"), ".local", "state", "palyra"), nil
	}
	return "", fault.New(fault.BadState, "state_missing", "find state directory",
		errors.New("neither XDG_STATE_HOME nor HOME is an absolute path")).
		WithHint("give one: --state DIR")
}

// cellPath finds palyra-cell for the palyra at exe.
func cellPath(exe string) (string, error) { return installed.Find(exe, "palyra-cell") }

// receiptTarget checks before anything runs that the receipt can be put there,
// so that an effect is not followed by "cannot write the receipt".
func receiptTarget(path string) error {
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

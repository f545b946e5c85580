package main

import (
	"errors"
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

package main

import (
	"io"
	"log/slog"
	"os"

	"palyra/crypt/scrub"
)

// newLog returns the daemon's log: text for a terminal, JSON for everything else. A log
// line must not hold arguments, output or credentials; ids and reason codes name the call.
// Values of secrets that were given out are removed all the same.
func newLog(w io.Writer, level *slog.LevelVar, values *scrub.Registry) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		return slog.New(slog.NewTextHandler(values.Writer(w), o))
	}
	return slog.New(slog.NewJSONHandler(values.Writer(w), o))
}

// isTerminal takes any character device but /dev/null for a terminal.
func isTerminal(f *os.File) bool {
	fi, err := f.Stat()
	if err != nil || fi.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && !os.SameFile(fi, null)
}

// logLevel returns the slog level for daemon.log_level, which config has checked.
func logLevel(name string) slog.Level {
	switch name {
	case "debug":
		return slog.LevelDebug
	case "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	}
	return slog.LevelInfo
}

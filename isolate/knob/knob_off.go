//go:build !palyra_knobs || !linux

package knob

import (
	"time"

	"palyra/isolate/internal/sys"
	"palyra/isolate/native/landlock"
)

// Build says what kind of build this is: "" is one that may be shipped.
const Build = ""

// LogOrigin is the name that a new log gets; "" is one of its own.
const LogOrigin = ""

// Tape returns t.
func Tape(t sys.Tape) sys.Tape { return t }

// Clone returns the CLONE_NEW* flags of a cell.
func Clone(flags uint64) uint64 { return flags }

// Outer returns the CLONE_NEW* flags of palyra-cell.
func Outer(flags uintptr) uintptr { return flags }

// Template reports that threads that clone enter the template.
func Template() bool { return true }

// Ruleset returns rs.
func Ruleset(rs landlock.Ruleset) landlock.Ruleset { return rs }

// Wall returns the wall clock limit that is held.
func Wall(d time.Duration) time.Duration { return d }

// Gate returns what the look at the process at the gate said.
func Gate(err error) error { return err }

// Note returns what evidence says of the build, nothing.
func Note(degraded []string) []string { return degraded }

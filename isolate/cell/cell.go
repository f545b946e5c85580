// Package cell runs programs through palyra-cell, the one process that forks.
//
// [Start] starts a palyra-cell for one tier and returns a [Client], which is an isolate.Runner.
// The other side is isolate/cell/serve; isolate/cell/wire is the protocol between them. Both
// sides share a grant key as long as they live: palyra-cell verifies every grant itself and
// runs nothing without one.
//
// [Starter] starts palyra-cells for a process that has given up the right to.
//
// It doesn't protect against a user who can write palyra-cell's binary, which decides how it
// confines. The binary must be as hard to write as palyra itself.
package cell

import (
	"errors"

	"palyra/authz/grant"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell/wire"
	"palyra/isolate/tier"
)

// Config says which palyra-cell to start and how.
type Config struct {
	// Path of the palyra-cell binary. Not used with a Starter.
	Path string
	// Starter starts it, for a process that may start none. Default: this process does.
	Starter *Starter
	// Tier that it serves: tier.B or tier.C.
	Tier tier.Tier
	// Key mints its grants, made for this palyra-cell alone. It stays in the two processes'
	// memory.
	Key grant.Key
	// Pool bounds the cells made ahead of calls. The zero value makes none.
	Pool wire.Pool
	// TestOnlyStep, if not nil, is called at named points of the client's side of a run:
	// "cell_started", "run_sent", "run_answered".
	TestOnlyStep func(name string)
}

// The types that both sides share; see package wire.
type (
	// Pool bounds what palyra-cell keeps ready.
	Pool = wire.Pool
	// Stats says what a palyra-cell has ready, and how it served calls.
	Stats = wire.Stats
	// Plan is what a palyra-cell would do to confine one call and run it.
	Plan = wire.Plan
	// PlanTape is the list of system calls between the clone and the program.
	PlanTape = wire.PlanTape
	// PlanStep is one step of the tape.
	PlanStep = wire.PlanStep
)

var _ isolate.Runner = (*Client)(nil)

// ErrDied marks every error that says that palyra-cell is gone.
var ErrDied = errors.New("palyra-cell is gone")

func errDied(k fault.Kind, op string, err error) *fault.Error {
	return fault.New(k, "cell_died", op, fault.Mark(err, ErrDied))
}

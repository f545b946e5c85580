// Package cell runs programs through palyra-cell, the one process that forks.
//
// [Start] starts a palyra-cell for one tier and returns a [Client], which is an
// isolate.Runner. [Main] is the other side. The two share a grant key for as
// long as they live: palyra-cell verifies every grant itself and runs nothing
// without one.
//
// At tier C palyra-cell is the first process of a PID namespace of its own, so
// when it dies, for whatever reason, the kernel kills every cell. It keeps the
// host's mounts only in a private copy, from which workspaces are cloned; its
// threads that clone, and so every cell, live in a mount namespace that holds
// nothing but the template (see template_linux.go). As root it keeps the host's
// capabilities; otherwise it lives in a user namespace in which it is root and
// which the kernel lets do no more than the user could.
//
// At tier B there are no namespaces; palyra-cell runs one program at a time and
// kills what is left of its tree when the program ends.
//
// What it does not protect against: whoever can write palyra-cell's binary
// decides what confinement is. It must be as hard to write as palyra itself.
package cell

import (
	"time"

	"palyra/authz/grant"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// Config says which palyra-cell to start and how.
type Config struct {
	// Path of the palyra-cell binary. Not used with a Starter.
	Path string
	// Starter starts it, for a process that may not start any. Default: this
	// process does.
	Starter *Starter
	// Tier that it will serve: tier.B or tier.C.
	Tier tier.Tier
	// Key is what grants for it are minted under, made for it alone. It lives in
	// the two processes' memory and nowhere else.
	Key grant.Key
	// Pool is what palyra-cell makes ahead of calls. Its zero value is nothing.
	Pool Pool
	// TestOnlyStep, if not nil, is called at named points of the client's side
	// of a run: "cell_started", "run_sent", "run_answered".
	TestOnlyStep func(name string)
}

// Pool bounds what palyra-cell keeps ready. What is not ready when a call comes,
// or does not fit it, is made for the call at once: no call waits for the pool.
// Everything in it is used for one call and then gone. It is bounded by numbers, and
// with them in memory: at most Cells times 440 KiB and Networks times 210. Cells wait
// for the kinds of calls that came last, and for none of which none has come for
// ten times MaxAge.
type Pool struct {
	Cells    int           `json:"cells,omitempty"`    // waiting cells; some 110 KiB each, 200 more with a network of their own and 130 more in a cgroup
	Networks int           `json:"networks,omitempty"` // network namespaces for cells that are not made ahead; some 210 KiB each
	MaxAge   time.Duration `json:"max_age,omitempty"`  // ns; what waited longer serves no call and is thrown away. Zero: a minute
}

// Stats says what a palyra-cell has ready and how it served calls of kinds that
// cells are made ahead for.
type Stats struct {
	Waiting  int    `json:"waiting"`  // cells now
	Networks int    `json:"networks"` // network namespaces now, those of cells not counted
	Armed    uint64 `json:"armed"`    // cells made ahead
	Expired  uint64 `json:"expired"`  // cells thrown away for their age
	Warm     uint64 `json:"warm"`     // calls that found a cell
	Cold     uint64 `json:"cold"`     // calls that found none
}

var _ isolate.Runner = (*Client)(nil)

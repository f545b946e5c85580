// Package hub is transport's way to the daemon: the operations, the types that they take
// and give, and the one interface, [Hub], that does them.
//
//	run, err := hub.Call.Do(ctx, h, caller, hub.NewCall{Tool: "palyra.echo", Input: input})
//
// palyra/hub/local is the hub of this process, over a kernel, a store and runs.
// palyra/transport/client is the same interface over a socket. This package holds
// data and names, links neither of the two, and so costs a client nothing.
//
// # Contract
//
// [Operations] is the one table of what a caller can ask for. Permission check, routes, the
// OpenAPI document, client and server range over it.
//
// Every operation takes the [Caller] as its surface authenticated it; nothing in its input
// says who asks. A hub first checks the permission that the operation names. A thing that a
// caller may not see doesn't exist for it: fault.NotFound, not fault.Denied.
//
// Errors are *fault.Error. A no from a policy, a person or the host is fault.Denied,
// fault.NotApproved or fault.Refused, and carries a [Denial] ([DenialOf]). A call that was
// decided is a result and no error, however it ended: its step holds outcome and denial.
//
// Things that can change have a Version, which counts from 1 and is the ETag. A change
// names the version it was made for; 0 means any. An outdated one is fault.Busy
// "version_conflict".
//
// # What it does not protect against
//
// A transport that lies about who is calling. The hub of the process makes Callers from
// things that a transport can't invent, a token or the peer of a unix socket, but a
// transport in the same process could make one up.
package hub

import (
	"context"
	"errors"
	"io"
)

// Hub does operations. [Op.Do] calls it.
type Hub interface {
	// Do does op for c. in is a value of the operation's input type, and so is out
	// of its output type.
	Do(ctx context.Context, c Caller, op *Operation, in any) (out any, err error)
}

// Tape reads events in order. Next blocks until there is one. It returns io.EOF after the
// last event of a run that has ended, and the error of its ctx. The events that it returns
// are durable. A reader holds no queue: a slow one reads later from the store and delays no
// other. Next must not be called concurrently.
type Tape interface {
	Next(ctx context.Context) (Event, error)
	Close() error
}

// Outputs reads the output of a run's steps, one after the other, each stream from its
// beginning. Next blocks until there is more. It returns io.EOF when there will be none, and
// the error of its ctx. A reader holds no queue. Next must not be called concurrently.
type Outputs interface {
	Next(ctx context.Context) (OutputPart, error)
	Close() error
}

// Artifact is an open artifact. Its content was checked against its digest.
type Artifact interface {
	io.ReadSeekCloser
	Info() ArtifactInfo
}

// DenialError is in the chain of a *fault.Error that is a no.
type DenialError struct{ Denial Denial }

// Error names layer and decision.
func (e *DenialError) Error() string {
	if e.Denial.DecisionID == "" {
		return "denied by " + e.Denial.Layer
	}
	return "denied by " + e.Denial.Layer + ", decision " + e.Denial.DecisionID
}

// DenialOf returns the denial in err's chain, nil if there is none.
func DenialOf(err error) *Denial {
	if e, ok := errors.AsType[*DenialError](err); ok {
		return &e.Denial
	}
	return nil
}

// Package client opens calls' sessions in palyra-egress, the process that resolves and connects
// for them.
//
//	broker, err := client.Start(ctx, "/usr/libexec/palyra/palyra-egress")
//	session, err := broker.Open(ctx, &client.Order{Rules: []string{"example.org:443"}})
//	err = session.Give(ctx, sealed)  // for an order with uses: values, sealed for session.Key()
//	spec files: session.Cell() goes to palyra-cell, which sends sockets of the cell over it
//	egress, err := session.Close() // the call has ended: what it asked for and got
//
// Four things end a session: Close, the end of the order's time, palyra-egress's death, and this
// process's. Whichever it is, all that the call has open ends with it.
//
// The broker decides nothing: the rules of an order are those that the call's grant allows.
//
// It doesn't protect against a user who can write palyra-egress's binary. A palyra-egress that was
// taken over by what it reads can connect anywhere and miscount; it has no keys of
// ours, files or programs, and of secrets those that its calls use at the time.
package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"palyra/internal/fault"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// The types that both sides share; see package wire.
type (
	// Order is what palyra-egress has to know of a call.
	Order = wire.Order
	// Limits bound one call.
	Limits = wire.Limits
	// Use is one use of a secret.
	Use = wire.Use
)

// Broker opens sessions. It is safe for concurrent use.
type Broker interface {
	// Open returns a session for a call. The context bounds the opening alone.
	Open(ctx context.Context, o *Order) (*Session, error)
}

// ErrLost marks every error that says that palyra-egress isn't there, or has ended.
var ErrLost = errors.New("palyra-egress is gone")

func lost(op string, err error) *fault.Error {
	return fault.New(fault.Unavailable, "egress_lost", op, fault.Mark(err, ErrLost))
}

// closing is how long Close waits for palyra-egress to end a call's connections and count, stopping
// how long it does for a call that was ended: its caller is waiting.
const (
	closing  = 5 * time.Second
	stopping = 500 * time.Millisecond
)

// Session is what palyra-egress holds for one call. Its methods are safe for concurrent use.
type Session struct {
	cell *os.File
	conn stream
	done chan struct{} // closed by receive, when the session's last byte was read

	key       []byte     // of the first answer
	authority string     // of the first answer
	given     chan error // the answer to Give, from receive; nil if nothing is to be given

	// Set before done is closed.
	last   *evidence.Egress
	failed error
}

// stream is a *net.UnixConn, of which the methods are those that are used.
type stream interface {
	Read([]byte) (int, error)
	Write([]byte) (int, error)
	CloseWrite() error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	Close() error
}

// Cell returns the socket for palyra-cell. It is the session's: Close closes it, and nothing does
// before, so that its descriptor is that socket's for as long as a caller passes it on.
func (s *Session) Cell() *os.File { return s.cell }

// Authority returns the certificate, in PEM, that the program must trust for inspected hosts; "" if
// there are none.
func (s *Session) Authority() string { return s.authority }

// Key returns the public key that values of secrets are sealed for (isolate/egress/sealed); nil if
// the order has no uses.
func (s *Session) Key() []byte { return s.key }

// Give hands over the sealed values of an order with uses, in their order. It's called once, and
// before palyra-cell uses the session: palyra-egress waits for the values first. It waits for a
// palyra-egress that hangs no longer than ctx.
func (s *Session) Give(ctx context.Context, sealed [][]byte) error {
	const op = "give palyra-egress its secrets"
	if s.given == nil {
		return fault.New(fault.Internal, "internal", op, errors.New("the order has no uses"))
	}
	line, err := wire.Encode(wire.Secrets{Sealed: sealed})
	if err == nil && len(line) > wire.MaxSecrets {
		err = fmt.Errorf("they have %d bytes, at most %d pass", len(line), wire.MaxSecrets)
	}
	if err != nil {
		return fault.New(fault.Usage, "too_large", op, err)
	}
	s.conn.SetWriteDeadline(time.Now().Add(closing))
	stop := context.AfterFunc(ctx, func() { s.conn.SetWriteDeadline(time.Now()) })
	_, err = s.conn.Write(line)
	if stop(); ctx.Err() != nil {
		return fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	}
	if err != nil {
		return lost(op, err)
	}
	select {
	case err := <-s.given:
		return err
	case <-ctx.Done():
		return fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	case <-time.After(closing):
		return lost(op, errors.New("it doesn't answer"))
	}
}

// Done is closed when the session has ended: after Close, or before it if the order's time is over,
// a placeholder leaked or palyra-egress is lost. In each case the program has no connection any
// more.
func (s *Session) Done() <-chan struct{} { return s.done }

// Close ends the session with all connections of the call, and returns what palyra-egress counted.
// An error marked ErrLost says that it can't be known. Further calls return the same.
func (s *Session) Close() (*evidence.Egress, error) { return s.closeWithin(closing) }

// CloseNow is Close for a call that was ended early. It waits for a palyra-egress that is there,
// and not for one that hangs.
func (s *Session) CloseNow() (*evidence.Egress, error) { return s.closeWithin(stopping) }

func (s *Session) closeWithin(most time.Duration) (*evidence.Egress, error) {
	s.conn.CloseWrite() // it may have ended already: receive says so
	s.conn.SetReadDeadline(time.Now().Add(most))
	<-s.done
	s.cell.Close()
	return s.last, s.failed
}

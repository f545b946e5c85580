package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string { return "interrupted by " + e.sig.String() }

// exit returns the status that shells give a command that died of the signal.
func (e signalError) exit() int { return execSignal + int(e.sig) }

// interruptible returns a context that the first SIGINT, SIGQUIT, SIGTERM or SIGHUP
// ends: the call is then killed as a tree and still gets its receipt. A second
// one ends palyra at once with the status of the signal; palyra-cell then sees
// its connection close and kills the tree.
//
// It also takes SIGPIPE over, so that a reader who leaves ends the call in the same orderly
// way (see pipeWriter) instead of ending palyra in the middle of it.
//
// Taking the signals over costs a thread and several switches between threads, a third of a
// millisecond, and so goes on while the caller does something else. Until armed has
// returned a signal may still end palyra, as it ends any program, so by then nothing must
// have begun that needs an orderly end. The signals stay taken until the process ends.
func interruptible(parent context.Context, exit func(int)) (ctx context.Context, armed func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ready := make(chan struct{})
	go func() {
		ch := make(chan os.Signal, 4)
		for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE} {
			// A parent that started us with a signal ignored (nohup, a shell's background
			// job) means it.
			if sig == syscall.SIGPIPE || !signal.Ignored(sig) {
				signal.Notify(ch, sig)
			}
		}
		close(ready)
		n := 0
		for s := range ch {
			sig, ok := s.(syscall.Signal)
			if !ok || sig == syscall.SIGPIPE {
				continue
			}
			if n++; n > 1 {
				exit(signalError{sig}.exit())
			}
			cancel(signalError{sig})
		}
	}()
	return ctx, func() { <-ready }
}

// interruption returns the status for a call that ctx ended, and whether it did.
func interruption(ctx context.Context) (int, bool) {
	if e, ok := errors.AsType[signalError](context.Cause(ctx)); ok {
		return e.exit(), true
	}
	return 0, false
}

// pipeWriter passes writes on until the reader has left (EPIPE), then calls
// broken once and fails.
type pipeWriter struct {
	w      io.Writer
	broken func()

	once sync.Once
}

func (p *pipeWriter) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	if err != nil && errors.Is(err, syscall.EPIPE) {
		p.once.Do(p.broken)
	}
	return n, err
}

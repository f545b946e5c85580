package serve

import (
	"runtime"

	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
)

// thread is a cloning thread's state, used on that thread only. The thread lives as long as
// palyra-cell, because its children's death signal is tied to it.
type thread struct {
	s    *server
	home bool  // in the template's mount namespace, which its clones inherit
	void bool  // in the void network namespace
	lost error // why it must not clone any more: it's in the wrong place
}

// enter makes sure that the thread may clone. At tier C the thread then lives in the template,
// where no path names a file of the host.
func (t *thread) enter() error {
	<-t.s.settled
	if t.s.unsettled != nil {
		return t.s.unsettled
	}
	if t.lost == nil && !t.home && t.s.template != nil && knob.Template() {
		if err := sys.EnterMounts(t.s.template); err != nil {
			t.lost = refuse("cell_start", "enter the template", err)
		}
		t.home = true
	}
	return t.lost
}

type cloner interface {
	// run runs f on the thread and waits for it.
	run(f func(*thread))
}

type launcher struct {
	thread
	do chan func(*thread)
}

// newLauncher starts the thread and runs setup on it first.
func (s *server) newLauncher(setup func() error) (*launcher, error) {
	l := &launcher{thread: thread{s: s}, do: make(chan func(*thread), 1)} // one place, for later
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		ready <- setup()
		for f := range l.do {
			f(&l.thread)
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	l.home = true // it made the template, or doesn't clone
	return l, nil
}

// later runs f on the thread before the next run, without waiting. Call it once, right after
// newLauncher.
func (l *launcher) later(f func(*thread)) { l.do <- f }

func (l *launcher) run(f func(*thread)) {
	done := make(chan struct{})
	l.do <- func(t *thread) { f(t); close(done) }
	<-done
}

// run is for callers that are on the thread already.
func (t *thread) run(f func(*thread)) { f(t) }

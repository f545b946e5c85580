package cell

import (
	"runtime"

	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
)

// thread is what a thread that clones knows of itself. It is used on that thread
// only; the thread lives as long as palyra-cell, because the death signal of what
// it clones is tied to it.
type thread struct {
	s    *server
	home bool  // in the template's mount namespace, which what it clones inherits
	void bool  // in the void network namespace
	lost error // why it must clone nothing more: it is not where it belongs
}

// enter makes sure that the thread may clone: at tier C it lives in the template
// from now on, where no path of the host can be named.
func (t *thread) enter() error {
	<-t.s.settled
	if t.s.unsettled != nil {
		return t.s.unsettled
	}
	if t.lost == nil && !t.home && t.s.template != nil && knob.Template() {
		if err := sys.EnterMounts(t.s.template); err != nil {
			t.lost = refuse("template", "enter the template", err)
		}
		t.home = true
	}
	return t.lost
}

// cloner has a thread that clones.
type cloner interface {
	// run runs f on the thread and waits for it.
	run(f func(*thread))
}

// launcher is a thread that does what others ask it to.
type launcher struct {
	thread
	do chan func(*thread)
}

// newLauncher starts the thread and runs setup on it before anything else.
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
	l.home = true // it made the template, or does not clone
	return l, nil
}

// later runs f on the thread before whatever is run next, and does not wait. It
// is called once, right after newLauncher.
func (l *launcher) later(f func(*thread)) { l.do <- f }

func (l *launcher) run(f func(*thread)) {
	done := make(chan struct{})
	l.do <- func(t *thread) { f(t); close(done) }
	<-done
}

// run of a thread is for who is on it already.
func (t *thread) run(f func(*thread)) { f(t) }

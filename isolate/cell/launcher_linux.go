package cell

import (
	"runtime"
)

// launcher is the thread that clones. It lives as long as palyra-cell, because
// the death signal of what it clones is tied to it, and at tier C it lives in
// the template's mount namespace, which its children inherit.
type launcher struct {
	do chan func()
}

// newLauncher starts the thread and runs setup on it before anything else.
func newLauncher(setup func() error) (*launcher, error) {
	l := &launcher{do: make(chan func(), 1)} // one place, for later
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		ready <- setup()
		for f := range l.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return l, nil
}

// later runs f on the thread before whatever is run next, and does not wait. It
// is called once, right after newLauncher.
func (l *launcher) later(f func()) { l.do <- f }

// run runs f on the thread and waits for it.
func (l *launcher) run(f func()) {
	done := make(chan struct{})
	l.do <- func() { f(); close(done) }
	<-done
}

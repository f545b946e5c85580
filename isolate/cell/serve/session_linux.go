package serve

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
)

// sessions has the network namespaces that calls of a session share (isolate.NetworkSession). The
// first call makes its session's and the last one drops it, so there are never more than running
// calls, none outlives its session, and no socket is carried from one call to a later one that
// didn't overlap with it, or with one that both overlapped with.
//
// palyra-cell's user namespace owns them, so no program in a cell has a capability over them. Their
// one interface is lo.
type sessions struct {
	mu   sync.Mutex
	used map[string]*sessionNetwork // by isolate.Spec.Session; guarded by mu
}

// sessionNetwork is the namespace of one session.
type sessionNetwork struct {
	session string

	made chan struct{} // closed when there is net or err
	net  network       // immutable once made is closed
	err  error         // why there is none; immutable then, too

	users int            // calls in it, and those that wait for it; guarded by sessions.mu
	calls map[*run]int64 // those in it, each with the most that were so at once; guarded by sessions.mu
}

const sessionOp = "make the network namespace of a session"

// joinSession moves the thread into the namespace of the call's session, which it makes if no other
// call is in it. network says how to call back.
func (r *run) joinSession(t *thread) (back func() error, err error) {
	if err := t.enterVoid(); err != nil { // without the void one there is no way back
		return nil, err
	}
	s := &r.s.sessions
	n, err := s.enter(r.spec.Session, t.makeSession, func(f *os.File) error {
		if err := sys.EnterNetwork(f); err != nil {
			return refuse("network_namespace", "enter the network namespace of a session", err)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, t.leaveNetwork())
	}
	s.count(n, r)
	r.session, r.net.id = n, n.net.id
	r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: evidence.NetworkSession}
	return t.leaveNetwork, nil
}

// enter finds a session's network or has it made, which takes long on a host that is busy: the
// calls of that session wait for it, and no others do. The caller owes a leave unless there is an
// error.
func (s *sessions) enter(session string, make func() (network, error), enter func(*os.File) error) (*sessionNetwork, error) {
	s.mu.Lock()
	n, known := s.used[session]
	if !known {
		n = newSessionNetwork(session)
		s.used[session] = n
	}
	n.users++
	s.mu.Unlock()
	var err error
	if known {
		<-n.made
		if err = n.err; err == nil {
			err = enter(n.net.file)
		}
	} else {
		n.net, n.err = make()
		err = n.err
		close(n.made)
	}
	if err != nil {
		s.leave(n, nil)
		return nil, err
	}
	return n, nil
}

func newSessionNetwork(session string) *sessionNetwork {
	return &sessionNetwork{session: session, made: make(chan struct{}), calls: make(map[*run]int64)}
}

// count puts a call among those in a network.
func (s *sessions) count(n *sessionNetwork, r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.calls[r] = 0
	for other, most := range n.calls {
		n.calls[other] = max(most, int64(len(n.calls)))
	}
}

// leave takes back an enter, and a count if there was one.
func (s *sessions) leave(n *sessionNetwork, r *run) (most int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most = n.calls[r]
	delete(n.calls, r)
	n.users--
	if s.used[n.session] == n && (n.users == 0 || n.err != nil) { // the next call tries anew
		delete(s.used, n.session)
	}
	if n.users == 0 {
		n.net.close()
	}
	return most
}

// makeSession makes a namespace whose loopback interface is up, as native's tape does in a cell
// that has one for itself, and leaves the thread in it.
func (t *thread) makeSession() (n network, err error) {
	if err = t.makeLoopback(native.Buffers[:]); err == nil {
		n.file, n.id, err = sys.Network()
	}
	if err != nil {
		return n, refuse("network_namespace", sessionOp, err)
	}
	return n, nil
}

// makeLoopback moves the thread into a new network namespace, sets variables there and then its
// loopback interface up.
func (t *thread) makeLoopback(variables []native.Variable) error {
	if err := sys.UnshareNetwork(); err != nil {
		return err
	}
	t.void = false
	for _, v := range variables {
		name, _ := strings.CutPrefix(v.Path, "/proc/")
		text, err := sys.SetVariable(t.s.outside, name, v.Value)
		if err == nil && !slices.Equal(strings.Fields(text), strings.Fields(v.Value)) {
			err = fmt.Errorf("%s is %q, want %q", v.Path, text, v.Value)
		}
		if err != nil {
			return err
		}
	}
	return sys.LoopbackUp()
}

// leaveSession is called when no process of the run is left, and again when none will be. It
// returns the most calls that were in the namespace at once while this one was, itself included.
func (r *run) leaveSession() (most int64) {
	n := r.session
	if n == nil {
		return 0
	}
	r.session = nil
	return r.s.sessions.leave(n, r)
}

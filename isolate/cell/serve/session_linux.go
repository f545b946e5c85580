package serve

import (
	"errors"
	"fmt"
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
	net     network // immutable

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
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.used[r.spec.Session]
	if n == nil {
		made, err := t.makeSession()
		if err != nil {
			return nil, errors.Join(err, t.leaveNetwork())
		}
		n = &sessionNetwork{session: r.spec.Session, net: made, calls: make(map[*run]int64)}
		s.used[n.session] = n
	} else if err := sys.EnterNetwork(n.net.file); err != nil {
		return nil, refuse("network_namespace", "enter the network namespace of a session", err)
	}
	n.calls[r] = 0
	for other, most := range n.calls {
		n.calls[other] = max(most, int64(len(n.calls)))
	}
	r.session, r.net.id = n, n.net.id
	r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: evidence.NetworkSession}
	return t.leaveNetwork, nil
}

// makeSession makes a namespace whose loopback interface is up, as native's tape does in a cell that
// has one for itself, and leaves the thread in it.
func (t *thread) makeSession() (n network, err error) {
	if err = sys.UnshareNetwork(); err != nil {
		return n, refuse("network_namespace", sessionOp, err)
	}
	t.void = false
	for _, v := range native.Buffers {
		name, _ := strings.CutPrefix(v.Path, "/proc/")
		text, err := sys.SetVariable(t.s.outside, name, v.Value)
		if err == nil && !slices.Equal(strings.Fields(text), strings.Fields(v.Value)) {
			err = fmt.Errorf("%s is %q, want %q", v.Path, text, v.Value)
		}
		if err != nil {
			return n, refuse("network_namespace", sessionOp, err)
		}
	}
	if err = sys.LoopbackUp(); err != nil {
		return n, refuse("network_namespace", sessionOp, err)
	}
	if n.file, n.id, err = sys.Network(); err != nil {
		return n, refuse("network_namespace", sessionOp, err)
	}
	return n, nil
}

// leaveSession is called when no process of the run is left, and again when none will be. It returns
// the most calls that were in the namespace at once while this one was, itself included.
func (r *run) leaveSession() (most int64) {
	n := r.session
	if n == nil {
		return 0
	}
	r.session = nil
	s := &r.s.sessions
	s.mu.Lock()
	defer s.mu.Unlock()
	most = n.calls[r]
	delete(n.calls, r)
	if len(n.calls) == 0 {
		delete(s.used, n.session)
		n.net.close()
	}
	return most
}

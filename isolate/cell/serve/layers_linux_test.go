package serve

import (
	"errors"
	"os"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
)

// TestAwaitLayer: a call waits for another one that mounts its layer no longer than it has time or
// a caller, and what ends that other call says nothing about this one.
func TestAwaitLayer(t *testing.T) {
	state, ws := t.TempDir(), t.TempDir()
	for _, part := range []string{"/upper", "/work"} {
		if err := os.Mkdir(state+part, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(s *server, id uint64, in time.Duration) *run {
		r := &run{s: s, id: id, stop: make(chan struct{}), deadline: time.Now().Add(in), files: noFiles(), status: -1, gate: -1, mounts: -1,
			spec: &isolate.Spec{Workspace: &isolate.Mount{Source: t.TempDir(), Staged: true}}} // another folder: it can't be mounted
		r.files.workspace, r.files.layer = openDir(t, ws), openDir(t, state)
		if !s.begin(id, r) {
			t.Fatal("it can't begin")
		}
		return r
	}
	newServer := func() *server {
		s := &server{runs: make(map[uint64]*run), early: make(map[uint64]struct{}), layers: layers{used: make(map[layerKey]*layer)}}
		s.ended.L = &s.mu
		s.uids.init()
		return s
	}
	mounting := func(s *server) *layer { // by a call that is still at it
		r := begin(s, 1, time.Hour)
		key, err := r.layerKey()
		if err != nil {
			t.Fatal(err)
		}
		l := &layer{key: key, ready: make(chan struct{}), calls: map[*run]removed{r: {}}, users: 1}
		r.layer, s.layers.used[key] = l, l
		return l
	}
	t.Run("canceled", func(t *testing.T) {
		s := newServer()
		l := mounting(s)
		r := begin(s, 2, time.Hour)
		done := make(chan error)
		go func() { done <- r.joinLayer() }()
		s.cancel(2)
		if err := <-done; fault.ReasonOf(err) != "canceled" {
			t.Errorf("%v, want canceled", err)
		}
		if r.clean(); l.users != 1 || len(l.calls) != 1 {
			t.Errorf("it has %d users, %d calls, want the one that mounts it", l.users, len(l.calls))
		}
	})
	t.Run("late", func(t *testing.T) {
		s := newServer()
		mounting(s)
		if err := begin(s, 2, 0).joinLayer(); fault.ReasonOf(err) != "locked" {
			t.Errorf("%v, want locked", err)
		}
	})
	for _, abandoned := range []bool{true, false} {
		s := newServer()
		l := mounting(s)
		theirs := errors.New("of the other call")
		r := begin(s, 2, time.Hour)
		done := make(chan error)
		go func() { done <- r.joinLayer() }()
		for joined := false; !joined; { // it's counted before it waits
			s.layers.mu.Lock()
			joined = l.users == 2
			s.layers.mu.Unlock()
		}
		s.layers.mu.Lock()
		l.err, l.abandoned = theirs, abandoned
		delete(s.layers.used, l.key)
		s.layers.mu.Unlock()
		close(l.ready)
		if err := <-done; errors.Is(err, theirs) == abandoned || abandoned && fault.ReasonOf(err) != "changed" {
			t.Errorf("abandoned %t: %v", abandoned, err)
		}
		if l.users != map[bool]int{true: 1, false: 2}[abandoned] {
			t.Errorf("abandoned %t: %d users", abandoned, l.users)
		}
	}
}

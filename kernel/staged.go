package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/stage"
)

// A staged workspace is shown through an overlay whose upper folder belongs to a layer of the
// state directory. The call holds the layer from its decision to its end. Other processes can't
// use it meanwhile, since two overlays over one upper folder are undefined; calls of the same
// session can, and palyra-cell shows them one overlay. A layer that the call made for itself, and
// wrote nothing to, goes with the call.
//
// The gate opens the program on the host, so a program that the layer has another version of is
// refused. Arguments aren't held: what they name may be the layer's (capsule.KindStaged).

// layers are those that calls of this process use.
type layers struct {
	mu   sync.Mutex
	used map[string]*sharedLayer // guarded by mu; by name
}

// layerUser is whose calls may use a layer at the same time: those of one principal in one
// session. The zero layerUser shares none.
type layerUser struct{ session, principal string }

type sharedLayer struct {
	*stage.Layer
	user  layerUser
	ready chan struct{} // closed when Layer or err is set
	err   error
	calls int // guarded by layers.mu
}

// take returns a layer that open takes, or that another call of the same user has taken.
func (t *layers) take(name string, u layerUser, source stage.Source, open func() (*stage.Layer, error)) (*sharedLayer, error) {
	t.mu.Lock()
	l := t.used[name]
	if l != nil && (l.user != u || u == layerUser{}) {
		t.mu.Unlock()
		return nil, stage.Busy(name)
	}
	if l != nil {
		l.calls++
		t.mu.Unlock()
		<-l.ready
		err := l.err
		if err == nil {
			err = l.Shared(source)
		}
		if err != nil {
			t.leave(name, l)
			return nil, err
		}
		return l, nil
	}
	l = &sharedLayer{user: u, ready: make(chan struct{}), calls: 1}
	if t.used == nil {
		t.used = make(map[string]*sharedLayer)
	}
	t.used[name] = l
	t.mu.Unlock()
	l.Layer, l.err = open()
	close(l.ready)
	if l.err != nil {
		t.leave(name, l)
		return nil, l.err
	}
	return l, nil
}

// leave ends a call's use of a layer, and unlocks it after the last one's.
func (t *layers) leave(name string, l *sharedLayer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.calls--; l.calls > 0 {
		return
	}
	delete(t.used, name)
	if l.Layer != nil {
		l.Close()
	}
}

// takeLayer takes the layer of a call with a staged workspace.
func (c *call) takeLayer() error {
	if w := c.s.capsule.Workspace; w == nil || !w.Staged || c.s.mcp != nil {
		return nil
	}
	var u layerUser
	if c.session != "" {
		u = layerUser{c.session, principal(c.who.Principal)}
	}
	return c.s.takeLayer(&c.k.layers, u, c.k.cfg.StateDir, "call-"+strings.TrimPrefix(c.out.CallID, "call_")[:12])
}

// takeLayer takes the layer that the capsule names, or makes one with another name.
func (s *sealed) takeLayer(all *layers, u layerUser, state, other string) error {
	w := s.capsule.Workspace
	name := w.Layer
	if name == "" {
		name, s.ownLayer = other, true
	}
	var err error
	source := stage.Source{Path: w.Source, UID: w.UID, GID: w.GID}
	s.layer, err = all.take(name, u, source, func() (*stage.Layer, error) {
		return stage.Take(state, name, source, s.place.workspace.Stat.Mode&fs.ModePerm)
	})
	if err != nil {
		return err
	}
	s.layers = all
	ways := []string{s.program.exec.record.Path}
	if name := s.capsule.Argv[0]; strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = s.capsule.Cwd + "/" + name
		}
		ways = append(ways, name) // which may be a link
	}
	for _, f := range s.capsule.Scripts {
		ways = append(ways, f.Path)
	}
	for _, way := range ways {
		rel, ok := below(s.place.view, path.Clean(way))
		if !ok {
			continue
		}
		op := fmt.Sprintf("find program %q in layer %q", clip(way), name)
		touched, err := s.layer.Touches(rel)
		if err != nil {
			return fault.New(fault.Unavailable, "io_error", op, err)
		}
		if touched {
			return fault.New(fault.NotExec, "program_not_executable", op, errors.New("the layer has its own version, and the gate can only hold the host's")).
				WithHint("run it by its interpreter (sh ./script), or discard the layer first: palyra changes discard")
		}
	}
	return nil
}

// closeLayer ends the call's use of the layer, and removes it if nobody would look for it.
func (s *sealed) closeLayer() {
	if s.layer == nil {
		return
	}
	if s.ownLayer && s.layer.Empty() {
		_ = s.layer.Remove() // palyra changes ls lists what stays
	}
	s.layers.leave(s.layer.Name, s.layer)
	s.layer = nil
}

// awaitCells waits, after the death of palyra-cell in the middle of a call, until its cells are
// dead, too: its process can't be reaped before. As long as one lives the layer must stay locked.
func (c *call) awaitCells(l *lane, res *isolate.Result) {
	if c.s.layer == nil || res == nil {
		return // it has none
	}
	t := time.NewTimer(startTimeout)
	defer t.Stop()
	select {
	case <-l.runner.Died():
	case <-t.C: // it hangs in the kernel
	}
}

// nameLayer tells the caller where the changes are.
func (c *call) nameLayer() {
	if l := c.s.layer; l != nil && !l.Empty() {
		c.out.Layer = l.Name
	}
}

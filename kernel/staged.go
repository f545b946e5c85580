package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"palyra/internal/fault"
	"palyra/isolate/stage"
)

// A staged workspace is shown through an overlay whose upper folder belongs to a layer of the
// state directory. The call locks the layer from its decision to its end, since two overlays
// over one upper folder are undefined. A layer that the call made for itself, and wrote
// nothing to, goes with the call.
//
// The gate opens the program on the host, so a program that the layer has another version of is
// refused. Arguments aren't held: what they name may be the layer's (capsule.KindStaged).

// takeLayer locks the layer of a call with a staged workspace.
func (c *call) takeLayer() error {
	if w := c.s.capsule.Workspace; w == nil || !w.Staged {
		return nil
	}
	return c.s.takeLayer(c.k.cfg.StateDir, "call-"+strings.TrimPrefix(c.out.CallID, "call_")[:12])
}

// takeLayer locks the layer that the capsule names, or makes one with another name.
func (s *sealed) takeLayer(state, other string) error {
	w := s.capsule.Workspace
	name := w.Layer
	if name == "" {
		name, s.ownLayer = other, true
	}
	var err error
	source := stage.Source{Path: w.Source, UID: w.UID, GID: w.GID}
	if s.layer, err = stage.Take(state, name, source, s.place.workspace.Stat.Mode&fs.ModePerm); err != nil {
		return err
	}
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
			return fault.New(fault.Unavailable, "layer_unreadable", op, err)
		}
		if touched {
			return fault.New(fault.NotExec, "program_staged", op, errors.New("the layer has its own version, and the gate can only hold the host's")).
				WithHint("run it by its interpreter (sh ./script), or discard the layer first: palyra changes discard")
		}
	}
	return nil
}

// closeLayer unlocks the layer, and removes it if nobody would look for it.
func (s *sealed) closeLayer() {
	if s.layer == nil {
		return
	}
	if s.ownLayer && s.layer.Empty() {
		_ = s.layer.Remove() // palyra changes ls lists what stays
	}
	s.layer.Close()
	s.layer = nil
}

// nameLayer tells the caller where the changes are.
func (c *call) nameLayer() {
	if l := c.s.layer; l != nil && !l.Empty() {
		c.out.Layer = l.Name
	}
}

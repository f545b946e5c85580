package cell

import (
	"sync"

	"palyra/isolate"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
)

// images are the tapes of cells that have a private workspace, encoded once: most
// calls differ from the one before in their descriptors and arguments only, and
// to list, encode and digest some hundred steps takes as long as to walk half of
// them. Nothing of a call is in an image.
type images struct {
	mu    sync.Mutex
	byKey map[imageKey]*sys.Image // guarded by mu
}

// imageKey is all that an image depends on. The rest is palyra-cell's own and does
// not change.
type imageKey struct {
	ahead     bool
	sockets   sockets
	limits    isolate.Limits // those that are in force before the program runs
	cwd       string
	argv, env int // how many
}

// maxImages is how many are kept, of some 20 KiB each.
const maxImages = 32

// imageOf returns the image of the tape of c, a cell of r, or nil if there can be
// none: operands and scripts add steps.
func (r *run) imageOf(c *native.Cell) (*sys.Image, error) {
	if r.spec.Workspace != nil || len(c.Operands) > 0 || c.FDs.Script >= 0 {
		return nil, nil
	}
	k := imageKey{r.ahead, r.s.socketsFor(r.spec), r.spec.Limits, r.spec.Cwd, len(r.spec.Argv), len(r.spec.Env)}
	k.limits.Wall, k.limits.Output = 0, 0
	m := &r.s.images
	m.mu.Lock()
	im := m.byKey[k]
	m.mu.Unlock()
	if im != nil {
		return im, nil
	}
	blank, spec := *c, *c.Spec
	spec.Argv, spec.Env = make([]string, k.argv), make([]string, k.env)
	blank.Spec = &spec
	im, err := sys.NewImage(tapeOf(&blank, r.ahead), false)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKey == nil || len(m.byKey) >= maxImages {
		m.byKey = make(map[imageKey]*sys.Image)
	}
	m.byKey[k] = im
	return im, nil
}

func tapeOf(c *native.Cell, ahead bool) sys.Tape {
	if ahead {
		return native.Armed(c)
	}
	return native.Tape(c)
}

// plan decides on the tape of c, which is the run's from here on.
func (r *run) plan(c *native.Cell) (err error) {
	if r.image, err = r.imageOf(c); err != nil {
		return err
	}
	if r.image == nil {
		r.tape = tapeOf(c, r.ahead)
		return nil
	}
	r.tape = r.image.Tape
	r.labels = []sys.FDValue{{Label: "status", FD: c.FDs.Status}, {Label: "gate", FD: c.FDs.Gate}, {Label: "ruleset", FD: c.Ruleset},
		{Label: "outside", FD: c.Outside}, {Label: "fence", FD: c.Fence}, {Label: "user", FD: c.UID}, {Label: "group", FD: c.GID}}
	for _, m := range c.Mounts {
		r.labels = append(r.labels, sys.FDValue{Label: m.Label, FD: m.FD})
	}
	if !r.ahead {
		r.labels = append(r.labels, sys.FDValue{Label: "stdin", FD: c.FDs.Stdin}, sys.FDValue{Label: "stdout", FD: c.FDs.Stdout},
			sys.FDValue{Label: "stderr", FD: c.FDs.Stderr}, sys.FDValue{Label: "exec", FD: c.FDs.Exec})
	}
	return nil
}

// laterRoom is how much of its call a cell that waits with a memory of its own can
// be told, in bytes: steps, arguments and environment.
const laterRoom = 32 << 10

// encode makes the memory of the child that walks the tape.
func (r *run) encode() (*sys.Arena, error) {
	room := 0
	if r.ahead && r.s.groups != nil {
		room = laterRoom
	}
	if r.image == nil {
		return r.s.memory.NewArena(r.tape, r.reap, room)
	}
	var lists []sys.StringsValue
	if !r.ahead {
		lists = []sys.StringsValue{{Label: "argv", Value: r.spec.Argv}, {Label: "env", Value: r.spec.Env}}
	}
	return r.s.memory.Copy(r.image, r.labels, lists, room)
}

package kernel

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	vocabulary "palyra/call"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/internal/pin"
)

// Mounts are folders of the host that a call reads beside its workspace: toolchains, module
// caches. The program sees each at its own path. They are opened once, when the call is sealed,
// and mounted by descriptor. What is in them isn't held, as nothing is that no argument names:
// policy and approver see the folders.

// openMounts opens the mounts, sorted by path.
func (p *place) openMounts(names []string, state string) error {
	for _, name := range names {
		op := fmt.Sprintf("open mount %q", clip(name))
		h, err := openFolder(op, name, true, state)
		if err != nil {
			return err
		}
		p.mounts = append(p.mounts, h)
		if err := p.checkMount(op, h); err != nil {
			return err
		}
	}
	slices.SortFunc(p.mounts, func(a, b *pin.Handle) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

func (p *place) checkMount(op string, h *pin.Handle) error {
	refuse := func(err error, hint string) error { return usage("workspace_unusable", op, err).WithHint(hint) }
	if err := isolate.CheckPlace(h.Path); err != nil {
		return refuse(err, "a mount is shown at its own path, and what every cell shows needs none")
	}
	if me := os.Geteuid(); me != 0 && h.Stat.UID != uint32(me) && !rootOwns(h) {
		return refuse(fmt.Errorf("belongs to user %d, this is user %d, and root's folders are no one else's to write", h.Stat.UID, me), "mount a folder of your own, or one of root's")
	}
	if p.workspace == nil {
		return nil
	}
	for _, pair := range [][2]*pin.Handle{{h, p.workspace}, {p.workspace, h}} {
		inside, err := within(pair[0], pair[1])
		if err != nil {
			return usage("workspace_unusable", op, err)
		}
		if inside {
			return refuse(errors.New("the workspace lies in it, or it lies in the workspace"), "the program would see files twice, and those that were approved uncovered")
		}
	}
	return nil
}

// inMount reports whether an absolute path, spelled plainly, leads to a place in a mount.
func (p *place) inMount(name string) bool {
	if len(p.mounts) == 0 || len(name) > maxPath || !path.IsAbs(name) || path.Clean(name) != name || !p.step(strings.Count(name, "/")) {
		return false
	}
	h, err := pin.At(nil, name, pin.Anywhere)
	if err != nil {
		return false
	}
	defer h.Close()
	return slices.ContainsFunc(p.mounts, func(m *pin.Handle) bool { _, ok := below(m.Path, h.Path); return ok })
}

// aboveMounts reports whether the program finds nothing at a path but folders on the way to
// mounts, which no one fills: CARGO_HOME, of which only parts are shown.
func (p *place) aboveMounts(name string) bool {
	if !path.IsAbs(name) || isolate.CheckPlace(name) != nil {
		return false
	}
	if _, ok := below(name, p.view); ok {
		return false
	}
	return slices.ContainsFunc(p.mounts, func(m *pin.Handle) bool { _, ok := below(name, m.Path); return ok })
}

// listMounts returns the mounts as the capsule has them.
func (p *place) listMounts() (list []vocabulary.Mount) {
	for _, h := range p.mounts {
		list = append(list, vocabulary.Mount{Source: h.Path, UID: h.Stat.UID, GID: h.Stat.GID})
	}
	return list
}

// checkMounts makes the checks of a proposal's mounts that need no file.
func (p *Proposal) checkMounts() error {
	const op = "check mounts"
	switch {
	case len(p.Mounts) == 0:
		return nil
	case len(p.Mounts) > isolate.MaxMounts:
		return usage("too_large", op, fmt.Errorf("%d, at most %d", len(p.Mounts), isolate.MaxMounts))
	case p.TierFloor != tier.None && p.TierFloor != tier.C:
		return usage("invalid_input", op, errors.New("mounts need the mount namespace of tier c"))
	}
	return checkText("paths of mounts", p.Mounts...)
}

// placesFault is the error of places that a cell can't show together.
func placesFault(err error) error {
	return fault.New(fault.Usage, "workspace_unusable", "place the workspace and the mounts", err).
		WithHint("give one folder that holds the others, each once")
}

package serve

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
	"palyra/isolate/native/landlock"
	"palyra/isolate/tier"
)

type landRule struct {
	file   *os.File
	path   string
	access string // "r", "rx", "rw", "rwx"
	kind   landlock.Kind
}

// grantStatic opens the files that every program may reach. At tier C that is the template, by
// its root: landlock walks from a file up through mount points, so a rule on the root covers
// the mounts in it, the cell's own proc included. At tier B it's the same list of the host's
// own files.
func (s *server) grantStatic(root *os.File) error {
	add := func(path, access string) error {
		f, err := sys.OpenPath(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return refuse("landlock_unavailable", "open what programs may read", err)
		}
		s.static = append(s.static, landRule{file: f, path: path, access: access})
		return nil
	}
	list := []struct{ path, access string }{{"/usr", "rx"}}
	for _, name := range topLevel {
		list = append(list, struct{ path, access string }{"/" + name, "rx"})
	}
	for _, name := range devices {
		list = append(list, struct{ path, access string }{"/dev/" + name, "rw"})
	}
	if s.tier == tier.C {
		s.static = append(s.static, landRule{file: root, path: "/", access: "r"})
	} else {
		for _, name := range append(etcFiles, "passwd", "group", "hosts", "alternatives", "ssl/certs") {
			list = append(list, struct{ path, access string }{"/etc/" + name, "r"})
		}
	}
	var err error
	for _, l := range list {
		if err = add(l.path, l.access); err != nil {
			return err
		}
	}
	if s.fence, err = s.newFence(root); err != nil {
		return refuse("landlock_unavailable", "fence the program off its reaper", err)
	}
	for i := range s.static {
		g := &s.static[i]
		if g.kind, err = landlock.KindOf(g.file); err != nil {
			return refuse("landlock_unavailable", "look at what programs may read", err)
		}
	}
	return nil
}

// newFence makes the ruleset of steps.Fence. It forbids making block devices, for which no
// program has the capability, and signalling the reaper, by which the program sees that it's in
// the domain. Beyond that it only changes which processes may inspect each other. Any ruleset
// forbids moving files between folders unless a rule allows it, which takes ABI 2.
func (s *server) newFence(root *os.File) (int, error) {
	rs := landlock.Ruleset{ABI: s.abi, HandledFS: landlock.FSMakeBlock}
	if s.abi >= 2 {
		if root == nil {
			f, err := sys.OpenPath("/")
			if err != nil {
				return -1, err
			}
			defer f.Close()
			root = f
		}
		rs.HandledFS |= landlock.FSRefer
		rs.Rules = []landlock.Rule{{Grant: landlock.Grant{Access: "rw", Path: "/", File: root}, Rights: landlock.FSRefer}}
	}
	if s.abi >= scopeABI {
		rs.Scoped = landlock.ScopeSignal
	}
	f, err := landlock.Build(knob.Ruleset(rs))
	if err != nil {
		return -1, err
	}
	defer f.Close()
	return sys.DupHigh(int(f.Fd()))
}

func (r *run) restrict(extra []landRule, fd *int) error {
	grants := make([]landlock.Grant, 0, len(r.s.static)+len(extra)+1)
	if !r.ahead && !r.executable() {
		f, err := r.borrow(r.files.exec, "exec")
		if err != nil {
			return fault.New(fault.Unavailable, "resource_exhausted", "prepare cell", err)
		}
		extra = append(extra, landRule{file: f, path: r.spec.Exec.Path, access: "rx"})
	}
	for _, list := range [...][]landRule{r.s.static, extra} {
		for _, g := range list {
			path := g.path
			if path == "" {
				path = g.file.Name()
			}
			grants = append(grants, landlock.Grant{Access: g.access, Path: path, File: g.file, Kind: g.kind})
		}
	}
	rs, degraded := landlock.Plan(r.s.abi, grants)
	switch {
	case r.spec.Network == isolate.NetworkPreflight:
		rs.HandledNet &= landlock.NetBindTCP | landlock.NetConnectTCP // names are looked up over UDP
	case isolate.Connects(r.spec.Network):
		rs.HandledNet = 0 // a rule is for one port, and the program may have any of its network
	}
	if rs = knob.Ruleset(rs); rs.HandledNet&landlock.NetConnectTCP != 0 && r.spec.Network == isolate.NetworkPreflight {
		rs.Connect = connectPorts(r.spec.Ports)
	}
	r.ev.Degraded = append(r.ev.Degraded, hostNetworkDegraded(r.spec.Network, rs.HandledNet)...)
	f, err := landlock.Build(rs)
	if err != nil {
		return refuse("landlock_unavailable", "build landlock ruleset", err)
	}
	r.hold(f)
	runtime.KeepAlive(grants)
	if *fd, err = r.raiseFile(f); err != nil {
		return err
	}
	r.ev.Degraded = append(r.ev.Degraded, degraded...)
	r.ev.Landlock = evidence.Landlock{Basis: evidence.Reported, ABI: rs.ABI, HandledFS: rs.HandledFS, HandledNet: rs.HandledNet,
		Scoped: rs.Scoped, Rules: rs.Lines()}
	return nil
}

// executable reports whether the call's executable needs no rule of its own. A memfd needs
// none, and can have none; a file below /usr has one. It goes by the open file, because the
// Spec's path is only a name: a file from elsewhere under such a name gets no rule and isn't
// executed.
func (r *run) executable() bool {
	if r.spec.Exec.Pinned == "sealed" {
		return true
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(r.files.exec))
	return err == nil && strings.HasPrefix(path, "/usr/")
}

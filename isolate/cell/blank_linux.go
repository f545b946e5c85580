package cell

import (
	"os"
	"slices"
	"strconv"
	"sync"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/native/landlock"
	"palyra/isolate/tier"
)

// blanks are what calls at tier C need and what is the same for all of them but for
// the shape: empty file systems, the Landlock ruleset that knows them where nothing
// of the call has to be in it, the user namespace with the ids that a directory of
// the host is mapped by, the two pipes. One is made after an answer, while nobody waits
// for it, for the next call of its shape, which may have it alone and once. A call
// that finds none makes its own.
type blanks struct {
	mu   sync.Mutex
	list []*blank // guarded by mu; oldest first
}

// maxBlanks is how many are kept, of some 20 KiB of the kernel's memory each.
const maxBlanks = 4

// shape is all that a blank depends on. The rest is palyra-cell's own and does not
// change.
type shape struct {
	disk, inodes int64
	host         bool   // with a directory of the host, and so without a ruleset
	uid, gid     uint32 // as root, whose it is
}

// shapeOf returns the shape of the blank that a run can use, if it can: the private
// workspace comes with the ruleset, which knows no other executable than the usual.
func (r *run) shapeOf() (shape, bool) {
	k := shape{disk: r.spec.Limits.Disk, inodes: r.spec.Limits.Inodes}
	if w := r.spec.Workspace; w != nil {
		k.host = true
		if r.s.root {
			k.uid, k.gid = w.UID, w.GID
		}
	}
	return k, r.s.tier == tier.C && !r.ahead && (k.host || r.executable())
}

// blank is one of them: a run that has not become a call's.
type blank struct {
	shape  shape
	run    *run
	cell   native.Cell // with mounts, and ruleset unless it is for the host's directory
	grants []landGrant // what the ruleset is to say of the mounts
}

// newBlank makes one on a thread that clones.
func (s *server) newBlank(k shape, at cloner) (*blank, error) {
	r := &run{s: s, at: at, files: noFiles(), status: -1, gate: -1, mounts: -1, ahead: true, fds: noFDs(),
		spec: &isolate.Spec{Version: 1, Tier: tier.C, Cwd: native.WorkspaceDir, Limits: isolate.Limits{Disk: k.disk, Inodes: k.inodes}}}
	if k.host {
		r.spec.Workspace = &isolate.Mount{UID: k.uid, GID: k.gid}
	}
	b := &blank{shape: k, run: r}
	err := r.pipes()
	if err == nil {
		b.grants, err = r.fileSystems(&b.cell)
	}
	switch {
	case err != nil:
	case !k.host:
		err = r.restrict(b.grants, &b.cell.Ruleset)
	case s.root:
		err = r.mapOwner()
	}
	if err != nil {
		r.release()
		return nil, err
	}
	return b, nil
}

// take takes a blank, or returns nil if there is none.
func (m *blanks) take(k shape) *blank {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.list, func(b *blank) bool { return b.shape == k })
	if i < 0 {
		return nil
	}
	b := m.list[i]
	m.list = slices.Delete(m.list, i, i+1)
	return b
}

// put adds one and returns what has to go for it, or nil.
func (m *blanks) put(b *blank) (surplus *blank) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.list) == maxBlanks {
		surplus = m.list[0]
		m.list = slices.Delete(m.list, 0, 1)
	}
	m.list = append(m.list, b)
	return surplus
}

// replace makes the blank that a call like r will need. It is called when r has
// been answered.
func (r *run) replace() {
	if r.wants == (shape{}) {
		return
	}
	b, err := r.s.newBlank(r.wants, r.at)
	if err != nil {
		return // the next call makes its own, and says what is missing
	}
	if b = r.s.blanks.put(b); b != nil {
		b.run.release()
	}
}

// base makes the run's own file systems, or takes over those of its blank. It
// reports whether there is a ruleset, too; grants are what it has to say.
func (r *run) base(c *native.Cell) (grants []landGrant, ruled bool, err error) {
	b := r.blank
	if b == nil {
		grants, err = r.fileSystems(c)
		return grants, false, err
	}
	r.blank = nil
	r.uid, r.gid, r.owner = b.run.uid, b.run.gid, b.run.owner
	c.Mounts, c.Ruleset = b.cell.Mounts, b.cell.Ruleset
	r.ev.Landlock = b.run.ev.Landlock
	r.ev.Degraded = append(r.ev.Degraded, b.run.ev.Degraded...)
	return b.grants, !b.shape.host, nil
}

// reach makes the pipes through which child and palyra-cell tell each other
// things, or takes over those of a blank with all that it holds open.
func (r *run) reach() error {
	k, ok := r.shapeOf()
	if !ok {
		return r.pipes()
	}
	r.wants = k
	if r.blank = r.s.blanks.take(k); r.blank == nil {
		return r.pipes()
	}
	b := r.blank.run
	r.held, r.high = append(r.held, b.held...), append(r.high, b.high...)
	r.status, r.gate, r.fds.Status, r.fds.Gate = b.status, b.gate, b.fds.Status, b.fds.Gate
	return nil
}

// fileSystems makes the cell's own: /tmp, /dev/shm and, unless the call has a
// directory of the host for it, the workspace. It returns what the ruleset has to
// say of them.
func (r *run) fileSystems(c *native.Cell) (grants []landGrant, err error) {
	if r.s.root {
		r.uid = r.s.uids.take()
		r.gid = r.uid
	}
	l := r.spec.Limits
	size, inodes := strconv.FormatInt(l.Disk, 10), strconv.FormatInt(l.Inodes, 10)
	for _, t := range [...]struct{ label, path, mode string }{{"tmp", "/tmp", "1777"}, {"shm", "/dev/shm", "1777"}, {"workspace", native.WorkspaceDir, "0700"}} {
		if t.label == "workspace" && r.spec.Workspace != nil {
			continue
		}
		m, err := sys.NewFS("tmpfs", sys.AttrNoSUID|sys.AttrNoDev, "mode", t.mode, "uid", utoa(r.uid), "gid", utoa(r.gid),
			"size", size, "nr_inodes", inodes)
		if err != nil {
			return nil, refuse("tmpfs", "make "+t.path, err)
		}
		g, err := r.place(c, t.label, t.path, m, "rwx")
		if err != nil {
			return nil, err
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// place has the tape attach a detached mount, which is the run's from here on.
func (r *run) place(c *native.Cell, label, path string, m *os.File, access string) (landGrant, error) {
	r.hold(m)
	fd, err := r.raiseFile(m)
	if err != nil {
		return landGrant{}, fault.New(fault.Unavailable, "cell_descriptors", "prepare cell", err)
	}
	c.Mounts = append(c.Mounts, native.Attach{Label: label, FD: fd, Path: path})
	return landGrant{file: m, access: access, kind: landlock.Directory}, nil
}

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

// blanks are what calls at tier C with a private workspace need and what is the
// same for all of them but for the shape: empty file systems, the Landlock ruleset
// that knows them, the two pipes. One is made after an answer, while nobody waits
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
type shape struct{ disk, inodes int64 }

// shapeOf returns the shape of the blank that a run can use, if it can: one with a
// directory of the host has another file system and rules of its own, and so has
// one whose executable needs a rule.
func (r *run) shapeOf() (shape, bool) {
	l := &r.spec.Limits
	return shape{l.Disk, l.Inodes}, r.s.tier == tier.C && !r.ahead && r.spec.Workspace == nil && r.executable()
}

// blank is one of them: a run that has not become a call's.
type blank struct {
	shape shape
	run   *run
	cell  native.Cell // with mounts and ruleset
}

func (s *server) newBlank(k shape) (*blank, error) {
	r := &run{s: s, files: noFiles(), status: -1, gate: -1, mounts: -1, ahead: true, fds: noFDs(),
		spec: &isolate.Spec{Version: 1, Tier: tier.C, Cwd: native.WorkspaceDir, Limits: isolate.Limits{Disk: k.disk, Inodes: k.inodes}}}
	b := &blank{shape: k, run: r}
	err := r.pipes()
	var grants []landGrant
	if err == nil {
		grants, err = r.fileSystems(&b.cell)
	}
	if err == nil {
		err = r.restrict(grants, &b.cell.Ruleset)
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
	b, err := r.s.newBlank(r.wants)
	if err != nil {
		return // the next call makes its own, and says what is missing
	}
	if b = r.s.blanks.put(b); b != nil {
		b.run.release()
	}
}

// adopt makes what a blank has the run's. It reports whether there was one.
func (r *run) adopt(c *native.Cell) bool {
	b := r.blank
	if b == nil {
		return false
	}
	r.blank = nil
	r.uid, r.gid = b.run.uid, b.run.gid
	c.Mounts, c.Ruleset = b.cell.Mounts, b.cell.Ruleset
	r.ev.Landlock = b.run.ev.Landlock
	r.ev.Degraded = append(r.ev.Degraded, b.run.ev.Degraded...)
	return true
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

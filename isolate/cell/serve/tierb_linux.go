package serve

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"palyra/internal/fault"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
	"palyra/isolate/rlimit"
)

func (r *run) prepareB() error {
	p := &rlimit.Process{Spec: r.spec, FDs: r.fds, Filter: r.filter.bytes, Cookie: r.s.cookie,
		Privileged: sys.HasSysAdmin(), Root: r.s.root, LastCap: r.s.lastCap, Ignored: r.s.ignored, Fence: r.s.fence, NProc: r.spec.Limits.PIDs + 1, Core: r.s.core}
	p.Outside, p.Quiet = int(r.s.outside.Fd()), r.s.abi >= steps.QuietABI
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	switch w := r.spec.Workspace; {
	case r.s.root && w != nil && !w.ReadOnly:
		if w.UID == 0 {
			return refuse("workspace_unusable", fmt.Sprintf("use workspace %q", w.Source), errors.New("it belongs to root, which tier B must not become")).
				WithHint("use tier C, which maps the owner, or give the directory to another user")
		}
		uid, gid = w.UID, w.GID
	case r.s.root:
		uid = r.s.uids.take()
		gid = uid
	}
	if !r.s.root || uid < idFirst {
		n, err := processesOf(uid)
		if err != nil {
			return fault.New(fault.Unavailable, "proc_unavailable", "count processes", err)
		}
		p.NProc += n
		r.ev.Degraded = append(r.ev.Degraded, "pids: counted together with the user's other processes")
	}
	r.uid, r.gid = uid, gid
	p.UID, p.GID = int(uid), int(gid)
	var dir *os.File
	var err error
	access := "rwx"
	if r.files.workspace >= 0 {
		if dir, err = r.borrow(r.files.workspace, r.spec.Workspace.Source); err != nil {
			return fault.New(fault.Unavailable, "resource_exhausted", "prepare process", err)
		}
	} else {
		if dir, err = r.privateDir(uid, gid); err != nil {
			return fault.New(fault.Unavailable, "resource_exhausted", "make private workspace", err)
		}
	}
	if w := r.spec.Workspace; w != nil && w.ReadOnly {
		access = "rx"
	}
	if p.Cwd, err = r.raiseFile(dir); err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", "prepare process", err)
	}
	if p.Cwd, err = r.enter(p.Cwd); err != nil {
		return err
	}
	if err := r.restrict([]landRule{{file: dir, access: access}}, &p.Ruleset); err != nil {
		return err
	}
	if len(r.spec.Operands) > 0 {
		return refuse("operand_unpinnable", "seal operands", errors.New("tier B has no mounts to cover the originals with")).
			WithHint("use tier C")
	}
	r.ev.Degraded = append(r.ev.Degraded, "namespaces: none at tier B", "memory: the tree is sampled, each process is bounded", r.s.uncounted())
	r.nproc = p.NProc
	r.tape, r.reap = rlimit.Tape(p), true
	r.ev.Executor = rlimit.Executor
	return nil
}

// privateDir makes the empty workspace of a call at tier B. If palyra-cell has a mount
// namespace it's a tmpfs with the call's quota, else a directory whose size is sampled.
func (r *run) privateDir(uid, gid uint32) (*os.File, error) {
	var err error
	if r.private, r.lock, err = makePrivate(os.TempDir()); err != nil {
		return nil, err
	}
	r.hold(r.lock)
	if os.Getpid() == 1 {
		l := r.spec.Limits
		m, err := sys.NewFS("tmpfs", sys.AttrNoSUID|sys.AttrNoDev, "mode", "0700", "uid", utoa(uid), "gid", utoa(gid),
			"size", strconv.FormatInt(l.Disk, 10), "nr_inodes", strconv.FormatInt(l.Inodes, 10))
		if err != nil {
			return nil, err
		}
		defer m.Close()
		if err := sys.MoveMount(m, r.private); err != nil {
			return nil, err
		}
		r.mounted = true
	} else {
		if err := os.Chown(r.private, int(uid), int(gid)); err != nil {
			return nil, err
		}
		path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(r.lock.Fd())))
		if err != nil {
			return nil, err
		}
		r.rooms = append(r.rooms, room{dir: r.lock, path: path, bytes: r.spec.Limits.Disk, inodes: r.spec.Limits.Inodes})
		r.ev.Degraded = append(r.ev.Degraded, "disk: the size of the private workspace is sampled")
	}
	dir, err := sys.OpenPath(r.private)
	if err == nil {
		r.hold(dir)
	}
	return dir, err
}

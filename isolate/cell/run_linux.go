package cell

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
	"palyra/isolate/native"
	"palyra/isolate/native/cgroup"
	"palyra/isolate/tier"
)

// run is one call inside palyra-cell. It is owned by one goroutine; others may
// cancel it.
type run struct {
	s     *server
	id    uint64 // of the request
	told  bool   // its cell is known to the client
	at    cloner
	spec  *isolate.Spec
	files *files

	held   []*os.File // closed when the run ends
	high   []int      // descriptors for the child, closed once it has its copies
	status int        // where the child's marks come out
	gate   int        // where the answers go in; both are -1 if there is none

	filter   *program
	tape     sys.Tape
	image    *sys.Image    // of the tape; may be nil
	labels   []sys.FDValue // the tape's descriptors, with an image
	ns       uint64        // CLONE_NEW* flags
	uid      uint32        // id on palyra-cell's side that the program becomes
	gid      uint32
	reap     bool         // tier B: stay until the whole tree is gone
	private  string       // directory to remove in the end; "" if none
	mounted  bool         // private is a tmpfs
	room     *os.File     // private, where nothing but samples bounds it; else nil
	leaf     *cgroup.Leaf // nil where no cgroup can be made
	leafName string
	nproc    int64 // the limit of processes
	covers   covers
	fds      steps.FDs
	ev       evidence.Evidence

	wants  shape     // of the blank that calls like this one need; zero if none does
	blank  *blank    // taken, and not part of the run yet
	owner  *os.File  // user namespace that maps the ids of a directory of the host; or nil
	ahead  bool      // made before its call: spec has limits, directory and network only
	form   *cellForm // of the cell that waited and served this call; nil if it was made for it
	mounts int       // the cell's mount namespace, held until the answer is out; or -1
	after  []func()
	net    network // the namespace that it was cloned into, if it was made before

	deadline time.Time
	late     bool          // killed for its deadline
	stop     chan struct{} // tier B: closed with gone
	mu       sync.Mutex
	gone     bool     // guarded by mu: the caller has given up
	proc     *process // guarded by mu: what runs, once it does
}

// cause says why a run was ended from outside, if it was.
func (r *run) cause() error {
	if r.late {
		return context.DeadlineExceeded
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return context.Canceled
	}
	return nil
}

// do prepares, launches, observes and waits. A non-nil Result comes back
// whenever a process existed.
func (r *run) do() (*isolate.Result, error) {
	start := time.Now()
	r.deadline = start.Add(knob.Wall(r.spec.Limits.Wall))
	if w := r.s.pool.take(r.spec, r.files); w != nil {
		r.form = w.form
		r.after = append(r.after, w.clean)
		if w.leaf != nil {
			defer w.release()
		}
		return w.serve(r, start)
	}
	if r.s.tier != tier.C || r.s.groups != nil {
		defer r.release() // what others can see goes before the answer
	}
	if err := r.prepare(); err != nil {
		return nil, err
	}
	p, err := r.launch()
	if err != nil {
		return nil, err
	}
	r.after = append(r.after, p.free)
	p.start = start
	return p.supervise()
}

// clean gives up what the run still has, when its answer is out.
func (r *run) clean() {
	for _, f := range r.after {
		f()
	}
	r.after = nil
	r.release()
	sys.Close(r.mounts)
	r.mounts = -1
}

// launch clones a child that walks the run's tape.
func (r *run) launch() (*process, error) {
	arena, err := r.encode()
	if err != nil {
		return nil, fault.New(fault.Unavailable, "cell_memory", "encode tape", err)
	}
	group := -1
	if r.leaf != nil {
		group = int(r.leaf.Dir().Fd())
	}
	p := &process{run: r, call: r, arena: arena, pidfd: -1}
	r.at.run(func(t *thread) {
		if err = t.enter(); err != nil {
			return
		}
		r.s.cloning.RLock()
		defer r.s.cloning.RUnlock()
		var back func() error
		if back, err = r.network(t); err != nil {
			return
		}
		flags := knob.Clone(r.ns)
		if r.ahead {
			flags |= native.ShareFiles
		}
		if p.pid, p.pidfd, err = arena.Start(flags, group); err != nil {
			err = refuse("clone", "start cell", err)
		}
		// A thread that is not where it belongs clones nothing more.
		t.lost = back()
	})
	r.closeChildEnds()
	if err != nil {
		arena.Free()
		return nil, err
	}
	return p, nil
}

// release closes what the run still holds. It may be called again.
func (r *run) release() {
	r.closeChildEnds()
	closeAll(r.held)
	r.held = nil
	r.covers.close()
	r.net.close()
	sys.Close(r.gate)
	r.gate = -1
	sys.Close(r.status)
	r.status = -1
	if r.mounted {
		sys.Detach(r.private)
	}
	if r.private != "" {
		os.RemoveAll(r.private)
	}
	if r.leaf != nil {
		r.leaf.Remove()
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

func (r *run) closeChildEnds() {
	for _, fd := range r.high {
		sys.Close(fd)
	}
	r.high = nil
}

// raise makes sure that a descriptor, which stays open until the child has its
// copy, has a number that is no number of the child's own.
func (r *run) raise(fd int) (int, error) {
	if fd >= sys.LowFD {
		return fd, nil
	}
	fd, err := sys.DupHigh(fd)
	if err == nil {
		r.high = append(r.high, fd)
	}
	return fd, err
}

// raiseFile is raise for a file.
func (r *run) raiseFile(f *os.File) (int, error) {
	fd, err := r.raise(int(f.Fd()))
	runtime.KeepAlive(f)
	return fd, err
}

// borrow makes a file of one of the call's descriptors, until the run ends.
func (r *run) borrow(fd int, name string) (*os.File, error) {
	f, err := sys.Borrow(fd, name)
	if err != nil {
		return nil, err
	}
	return r.hold(f), nil
}

func (r *run) hold(f *os.File) *os.File {
	r.held = append(r.held, f)
	return f
}

// prepare opens everything that the tape refers to and builds the tape.
func (r *run) prepare() error {
	var err error
	if r.filter, err = r.s.filterFor(r.spec); err != nil {
		return err
	}
	r.ev.Degraded = knob.Note(append(r.ev.Degraded, r.s.coreDegraded()...))
	r.fds = noFDs()
	if err = r.reach(); err == nil && !r.ahead {
		err = r.standard()
	}
	if err != nil {
		return fault.New(fault.Unavailable, "cell_descriptors", "prepare cell", err)
	}
	if r.s.tier == tier.B {
		return r.prepareB()
	}
	return r.prepareC()
}

func noFDs() steps.FDs {
	return steps.FDs{Stdin: -1, Stdout: -1, Stderr: -1, Script: -1, Exec: -1, Status: -1, Gate: -1}
}

// pipes makes what the child and palyra-cell tell each other through.
func (r *run) pipes() error {
	statusR, statusW, err := sys.Pipe()
	if err != nil {
		return err
	}
	r.status = statusR
	gateR, gateW, err := sys.Pipe()
	if err != nil {
		sys.Close(statusW)
		return err
	}
	r.gate = gateW
	r.high = append(r.high, statusW, gateR)
	if r.fds.Status, err = r.raise(statusW); err == nil {
		r.fds.Gate, err = r.raise(gateR)
	}
	return err
}

// standard raises what the program gets.
func (r *run) standard() error {
	var err error
	stdin := r.files.stdin
	if stdin < 0 {
		stdin = r.s.empty
	}
	for _, d := range [...]struct {
		fd int
		to *int
	}{{stdin, &r.fds.Stdin}, {r.files.stdout, &r.fds.Stdout}, {r.files.stderr, &r.fds.Stderr},
		{r.files.exec, &r.fds.Exec}, {r.files.script, &r.fds.Script}} {
		if d.fd < 0 {
			continue // no script
		}
		if *d.to, err = r.raise(d.fd); err != nil {
			return err
		}
	}
	return nil
}

// prepareC attaches nothing yet: it makes the detached mounts that the tape
// attaches, the landlock ruleset that knows them, and the tape.
func (r *run) prepareC() error {
	c := &native.Cell{Spec: r.spec, FDs: r.fds, Filter: r.filter.bytes, Cookie: r.s.cookie,
		Root: r.s.root, Fixed: r.s.fixed, Fence: r.s.fence, Counted: r.s.groups == nil, NoIPC: !r.s.ownsIPC(), Core: r.s.core}
	c.Outside = int(r.s.outside.Fd())
	grants, ruled, err := r.base(c)
	c.UID, c.GID = int(r.uid), int(r.gid)
	if err == nil && r.spec.Workspace != nil {
		grants, err = r.hostDirectory(c, grants)
	}
	if err == nil && !ruled {
		err = r.restrict(grants, &c.Ruleset)
	}
	if err != nil {
		return err
	}
	if err := r.group(); err != nil {
		return err
	}
	r.nproc = r.spec.Limits.PIDs + 1 // the reaper
	r.ev.Executor = native.Executor
	if err := r.plan(c); err != nil {
		return fault.New(fault.Internal, "cell_tape", "plan cell", err)
	}
	return nil
}

// hostDirectory makes the workspace of a directory of the host, with what covers
// files in it.
func (r *run) hostDirectory(c *native.Cell, grants []landGrant) ([]landGrant, error) {
	m, err := r.workspace()
	if err != nil {
		return nil, err
	}
	access := "rwx"
	if r.spec.Workspace.ReadOnly {
		access = "rx"
	}
	g, err := r.place(c, "workspace", native.WorkspaceDir, m, access)
	if err != nil {
		return nil, err
	}
	grants = append(grants, g)
	err = r.operands(c, m, &grants)
	return grants, err
}

// group makes the call's cgroup where one can be had, and names what is missing
// where not.
func (r *run) group() error {
	if r.s.groups == nil {
		r.ev.Cgroup = evidence.Cgroup{Basis: evidence.Observed, State: r.s.groupState}
		r.ev.Degraded = append(r.ev.Degraded, "cgroup: "+r.s.groupState, "memory: the tree is sampled, each process is bounded", r.s.uncounted())
		return nil
	}
	var err error
	// The reaper is one process more than the program may have.
	r.leafName = strconv.FormatUint(r.s.nextLeaf.Add(1), 10)
	r.leaf, err = r.s.groups.New(r.leafName, cgroup.Limits{
		Memory: r.spec.Limits.Memory, PIDs: r.spec.Limits.PIDs + 1, MilliCPU: int64(runtime.NumCPU()) * 1000})
	if err != nil {
		return fault.New(fault.Unavailable, "cgroup", "limit cell", err)
	}
	values, err := r.leaf.Values()
	if err != nil {
		return fault.New(fault.Unavailable, "cgroup", "limit cell", err)
	}
	r.ev.Cgroup = evidence.Cgroup{Basis: evidence.Observed, State: cgroup.State(nil), Values: values}
	return nil
}

func utoa(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

package serve

import (
	"context"
	"os"
	"runtime"
	"slices"
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

// run is one call inside palyra-cell. One goroutine owns it; others may cancel it.
type run struct {
	s     *server
	id    uint64 // of the request
	at    cloner
	spec  *isolate.Spec
	files *files

	held   []*os.File // closed when the run ends
	high   []int      // descriptors for the child, closed when it has its copies
	status int        // the child's marks
	gate   int        // our answers; both are -1 for none

	filter   *program
	tape     sys.Tape
	ns       uint64 // CLONE_NEW* flags
	uid      uint32 // the program's id on palyra-cell's side
	gid      uint32
	reap     bool            // tier B: stay until the whole tree is gone
	private  string          // directory to remove at the end; "" for none
	lock     *os.File        // private, locked
	mounted  bool            // private is a tmpfs
	rooms    []room          // private, the layer and caches, where only samples bound them
	framed   []string        // where the cell has frames
	given    *os.File        // the file system of secrets; nil for none
	roots    *roots          // of a call with an authority of its own; nil for none
	session  *sessionNetwork // the network that it shares; nil for none
	resolver bool            // the program sees the host's resolver configuration
	local    []string        // the addresses of its network that lead to palyra-egress, sorted
	layer    *layer          // what a staged workspace is written to; nil for none
	together int             // the most calls that used it at once; guarded by layers.mu
	lower    *os.File        // the layer's: the workspace's own mount; nil for none
	overlaid *overlaid       // counts the names of its folders
	leaf     *cgroup.Leaf    // nil without a cgroup
	leafName string
	nproc    int64 // the limit of processes
	covers   covers
	cwd      sys.Place // where the program starts
	fds      steps.FDs
	terminal *sys.Terminal // the call's own; nil for none
	ev       evidence.Evidence

	ahead  bool // made before its call: spec has only limits, directory and network
	mounts int  // the cell's mount namespace, held until the answer is out; -1 for none
	after  []func()
	net    network // the namespace that it was cloned into, if that was made ahead

	deadline time.Time
	late     bool          // killed for its deadline
	stop     chan struct{} // closed with gone
	mu       sync.Mutex
	gone     bool     // guarded by mu: the caller has given up
	proc     *process // guarded by mu: the running process, once there is one
}

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

// do prepares, launches, observes and waits. It returns a Result whenever a process existed.
func (r *run) do() (*isolate.Result, error) {
	start := time.Now()
	if w := r.s.pool.take(r.spec, r.files); w != nil {
		r.after = append(r.after, w.clean)
		if w.leaf != nil {
			defer w.release()
		}
		return w.serve(r, start)
	}
	if r.s.tier != tier.C || r.s.groups != nil {
		defer r.release() // others can see its directory or cgroup, so they go before the answer
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

// clean releases the rest of the run after the answer is out.
func (r *run) clean() {
	for _, f := range r.after {
		f()
	}
	r.after = nil
	r.release()
	sys.Close(r.mounts)
	r.mounts = -1
	r.dropLayer()
}

// laterRoom bounds the part of its call that a waiting cell with a memory of its own can be
// told, in bytes: steps, arguments and environment.
const laterRoom = 32 << 10

func (r *run) launch() (*process, error) {
	room := 0
	if r.ahead && r.s.groups != nil {
		room = laterRoom
	}
	arena, err := r.s.memory.NewArena(r.tape, r.reap, room)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "resource_exhausted", "encode tape", err)
	}
	group := -1
	if r.leaf != nil {
		group = int(r.leaf.Dir().Fd())
	}
	p := &process{run: r, call: r, arena: arena, pidfd: -1}
	at := r.at
	if isolate.AllowsHostNetwork(r.spec.Network) {
		if at, err = r.s.host(); err != nil {
			arena.Free()
			return nil, err
		}
	}
	at.run(func(t *thread) {
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
			err = refuse("cell_start", "start cell", err)
		}
		// A thread that failed to return to its namespace clones no more.
		t.lost = back()
	})
	r.closeChildEnds()
	if err != nil {
		arena.Free()
		return nil, err
	}
	return p, nil
}

// release closes everything that the run still holds. It may be called again.
func (r *run) release() {
	r.closeChildEnds()
	r.removePrivate() // while it is locked
	closeAll(r.held)
	r.held = nil
	r.covers.close()
	if r.terminal != nil {
		r.terminal.Close()
	}
	r.net.close()
	r.leaveSession()
	sys.Close(r.gate)
	r.gate = -1
	sys.Close(r.status)
	r.status = -1
	if r.leaf != nil {
		r.leaf.Remove()
	}
}

func (r *run) removePrivate() {
	if r.private == "" {
		return
	}
	if r.mounted {
		sys.Detach(r.private)
	}
	if err := sys.RemoveTree(r.private, r.lock); err != nil {
		r.ev.Degraded = append(r.ev.Degraded, "disk: the private workspace could not be removed, and stays on the host")
	}
	r.private = ""
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

// raise makes sure that a descriptor's number isn't one of the child's own. The descriptor
// stays open until the child has its copy.
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

func (r *run) prepare() error {
	var err error
	if r.filter, err = r.s.filterFor(r.spec); err != nil {
		return err
	}
	r.ev.Degraded = knob.Note(append(r.ev.Degraded, r.s.coreDegraded()...))
	r.fds = noFDs()
	if err = r.pipes(); err == nil && !r.ahead {
		err = r.standard()
	}
	if err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", "prepare cell", err)
	}
	if r.s.tier == tier.B {
		return r.prepareB()
	}
	return r.prepareC()
}

func noFDs() steps.FDs {
	return steps.FDs{Stdin: -1, Stdout: -1, Stderr: -1, Script: -1, Exec: -1, Status: -1, Gate: -1}
}

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

func (r *run) standard() error {
	var err error
	stdin := r.files.stdin
	if stdin < 0 && r.spec.TTY == nil {
		// Opened anew: a program can leave flags and a lock on its descriptors, and a shared
		// one would hand them to later calls.
		if stdin, err = sys.OpenNull(); err != nil {
			return err
		}
		r.high = append(r.high, stdin)
	}
	for _, d := range [...]struct {
		fd int
		to *int
	}{{stdin, &r.fds.Stdin}, {r.files.stdout, &r.fds.Stdout}, {r.files.stderr, &r.fds.Stderr},
		{r.files.exec, &r.fds.Exec}, {r.files.script, &r.fds.Script}} {
		if d.fd < 0 {
			continue // no script, or the terminal instead
		}
		if *d.to, err = r.raise(d.fd); err != nil {
			return err
		}
	}
	return nil
}

// prepareC makes the detached mounts that the tape attaches, the landlock ruleset for them, and
// the tape.
func (r *run) prepareC() error {
	c := &native.Cell{Spec: r.spec, FDs: r.fds, Filter: r.filter.bytes, Cookie: r.s.cookie,
		Root: r.s.root, Fixed: r.s.fixed, Fence: r.s.fence, Counted: r.s.groups == nil, NoIPC: !r.s.ownsIPC(), Core: r.s.core}
	c.Outside, c.Quiet = int(r.s.outside.Fd()), r.s.abi >= steps.QuietABI
	err := r.identify()
	var grants []landRule
	if err == nil {
		grants, err = r.fileSystems(c)
	}
	if err == nil && r.spec.TTY != nil {
		grants, err = r.ownTerminal(c, grants)
	}
	if err == nil {
		grants, err = r.hostMounts(c, grants)
	}
	if err == nil {
		grants, err = r.hostCaches(c, grants)
	}
	if err == nil {
		grants, err = r.secrets(c, grants)
	}
	if err == nil {
		err = r.ownRoots(c)
	}
	if err == nil {
		err = r.hostResolver(c)
	}
	c.UID, c.GID = int(r.uid), int(r.gid)
	if err == nil && r.spec.Workspace != nil {
		grants, err = r.hostDirectory(c, grants)
	}
	if err == nil {
		err = r.restrict(grants, &c.Ruleset)
	}
	if err == nil {
		at := slices.IndexFunc(c.Mounts, func(m native.Attach) bool { return m.Path == r.spec.Workspace.View() })
		c.Cwd, err = r.enter(c.Mounts[at].FD)
	}
	if err != nil {
		return err
	}
	if err := r.group(); err != nil {
		return err
	}
	r.nproc = r.spec.Limits.PIDs + 1 // the reaper
	r.ev.Executor = native.Executor
	if isolate.AllowsHostNetwork(r.spec.Network) {
		r.ev.Executor = native.ExecutorHostNetwork
	}
	if r.ahead {
		r.tape = native.Armed(c)
	} else {
		r.tape = native.Tape(c)
	}
	return nil
}

// hostDirectory makes the workspace from a directory of the host, and the mounts that cover
// operands in it.
func (r *run) hostDirectory(c *native.Cell, grants []landRule) ([]landRule, error) {
	mount := r.workspace
	if r.layer != nil {
		mount = r.cloneLayer
	}
	m, err := mount()
	if err != nil {
		return nil, err
	}
	if r.layer != nil {
		if err := r.addRoom(r.files.layer, room{path: r.spec.Workspace.View(), bytes: r.spec.Limits.Disk, inodes: r.spec.Limits.Inodes, layer: true}); err != nil {
			m.Close()
			return nil, err
		}
		upper, err := sys.FolderBeneath(r.files.layer, "upper")
		if err != nil {
			m.Close()
			return nil, fault.New(fault.Unavailable, "resource_exhausted", "prepare cell", err)
		}
		r.overlaid = &overlaid{lower: r.lower, upper: r.hold(upper), view: r.spec.Workspace.View(), most: r.spec.Limits.Inodes * 2 * nameSize,
			held: make(map[string]int64)}
		r.ev.Degraded = append(r.ev.Degraded, "disk: the size of the layer is sampled")
	}
	access := "rwx"
	if r.spec.Workspace.ReadOnly {
		access = "rx"
	}
	g, err := r.place(c, "workspace", r.spec.Workspace.View(), m, access)
	if err != nil {
		return nil, err
	}
	grants = append(grants, g)
	err = r.operands(c, m, &grants)
	return grants, err
}

// room is a directory of the host whose size samples bound.
type room struct {
	dir           *os.File
	path          string // how the program's files there are named in /proc
	bytes, inodes int64
	layer         bool // what the other calls with the layer have open counts, too
}

// addRoom has the directory behind a call's descriptor sampled. It's opened anew: a copy of the
// descriptor would hold palyra's lock beyond the answer.
func (r *run) addRoom(fd int, m room) error {
	var err error
	if m.dir, err = sys.FolderBeneath(fd, "."); err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", "prepare cell", err)
	}
	r.hold(m.dir)
	r.rooms = append(r.rooms, m)
	return nil
}

// group makes the call's cgroup, or notes in the evidence why there is none.
func (r *run) group() error {
	if r.s.groups == nil {
		r.ev.Cgroup = evidence.Cgroup{Basis: evidence.Observed, State: r.s.groupState}
		r.ev.Degraded = append(r.ev.Degraded, "cgroup: "+r.s.groupState, "memory: the tree is sampled, each process is bounded", r.s.uncounted())
		return nil
	}
	var err error
	r.leafName = strconv.FormatUint(r.s.nextLeaf.Add(1), 10)
	r.leaf, err = r.s.groups.New(r.leafName, cgroup.Limits{
		Memory: r.spec.Limits.Memory, PIDs: r.spec.Limits.PIDs + 1, MilliCPU: int64(runtime.NumCPU()) * 1000})
	if err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", "limit cell", err)
	}
	values, err := r.leaf.Values()
	if err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", "limit cell", err)
	}
	r.ev.Cgroup = evidence.Cgroup{Basis: evidence.Observed, State: cgroup.State(nil), Values: values}
	return nil
}

func utoa(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

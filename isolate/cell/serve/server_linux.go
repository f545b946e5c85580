package serve

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"palyra/authz/grant"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell/spawn"
	"palyra/isolate/cell/wire"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
	"palyra/isolate/native"
	"palyra/isolate/native/cgroup"
	"palyra/isolate/native/landlock"
	"palyra/isolate/native/seccomp"
	"palyra/isolate/tier"
)

type server struct {
	conn     int // the socket
	tier     tier.Tier
	root     bool // we have the host's capabilities
	reader   *evidence.Reader
	userIDs  idMap // of our user namespace; nil at tier B, which has palyra's
	groupIDs idMap
	outside  *os.File // our /proc, which Landlock grants to no program
	verifier *grant.Verifier
	launch   *launcher
	static   []landRule // files that every cell may reach
	abi      int        // landlock
	filters  map[filterKind]func() (*program, error)
	nets     networks
	pool     *pool             // nil if there is none
	own      map[string]uint64 // our namespaces, before the launcher thread left them
	cookie   uint64
	lastCap  int
	ignored  []int
	core     uint64 // RLIMIT_CORE of every program
	handler  int    // corePattern, or -1 if it can't be read
	fixed    *native.Fixed
	rest     sys.Tape // native.Rest without the call's own parts

	shown      []shown       // of the host, in the template
	masked     []string      // the files of proc that no cell shows
	ownGroup   string        // our cgroup, as /proc/self/cgroup has it
	groups     *cgroup.Tree  // nil if no cgroup v2 is delegated to us
	kept       atomic.Uint64 // bytes that Go had mapped at the last keepMemory
	groupState string        // why groups is nil
	nextLeaf   atomic.Uint64

	memory sys.Memory
	accounts
	ownsIPC  func() bool
	fence    int // landlock ruleset of steps.Fence, or -1
	uids     idPool
	layers   layers
	sessions sessions
	handing  sync.Mutex // held while sockets for palyra-egress are open
	watches  *budget.Pool
	serial   chan struct{} // tier B: one run at a time

	// host starts a thread that stays in palyra-cell's own network, for cells that share it.
	host func() (*launcher, error)

	// The template: where cloning threads go. template and unsettled are set once, before
	// settled is closed.
	settled   chan struct{}
	top       *os.File // the template's root, writable and in no mount namespace; see frames
	template  *os.File // its mount namespace; nil at tier B
	unsettled error    // why no thread can clone
	// Threads that clone into a new mount namespace hold cloning for reading. A thread holds it
	// for writing while something of a call is mounted in the template.
	cloning sync.RWMutex

	reading atomic.Int32 // workers that wait for a message
	mu      sync.Mutex
	ended   sync.Cond           // mu; a run has ended, or the connection
	runs    map[uint64]*run     // guarded by mu
	early   map[uint64]struct{} // guarded by mu: cancelled before they were known
	latest  uint64              // guarded by mu: the largest id of a run
	closed  bool                // guarded by mu: the connection has ended
	failed  error               // guarded by mu: why the connection failed, if it did
}

// Cell is palyra-cell's main function. It serves the connection on descriptor fd until that
// ends, and returns when everything it ran is dead.
func Cell(fd int) error {
	syscall.Umask(0o022)
	sys.Close(spawn.Room)
	if err := sys.ReserveLow(); err != nil {
		return fmt.Errorf("reserve descriptors: %w", err)
	}
	if err := sys.SetBlocking(fd); err != nil {
		return fmt.Errorf("palyra-cell is started by palyra, which hands it a socket: %w", err)
	}
	buf := make([]byte, wire.MaxRequest)
	n, _, err := sys.ReceivePacket(fd, buf, nil)
	if err != nil {
		return fmt.Errorf("palyra-cell is started by palyra, which hands it a socket: read hello: %w", err)
	}
	if n == 0 {
		return nil // palyra has ended before it said anything
	}
	var h wire.Hello
	if err := wire.Decode(buf[:n], &h); err != nil {
		return err
	}
	s, err := newServer(fd, h)
	answer := wire.Hello{Version: wire.Version(), Tier: h.Tier, Build: knob.Build, Error: fault.MessageOf(err)}
	b, merr := json.Marshal(answer)
	if merr != nil {
		return merr
	}
	if werr := sys.SendPacket(fd, b, nil); werr != nil || err != nil {
		return err
	}
	// palyra is still busy: it records what it is about to do.
	go s.filterFor(new(isolate.Spec)) // which takes a millisecond; a call that needs it waits
	s.keepMemory()
	s.startPool(h.Pool)
	if h.Tier == tier.B {
		var sweep sync.WaitGroup
		sweep.Go(func() { sweepPrivate(os.TempDir()) })
		defer sweep.Wait()
	}
	return s.serve()
}

func newServer(conn int, h wire.Hello) (*server, error) {
	if h.Version != wire.Version() || len(h.Key) != 32 {
		return nil, fault.New(fault.Refused, "helper_unusable", "greet palyra", fmt.Errorf("it speaks version %d", h.Version))
	}
	s := &server{conn: conn, tier: h.Tier, root: sys.HasSysAdmin() && hostRoot(),
		verifier: grant.NewVerifier(grant.KeyFromBytes([32]byte(h.Key))),
		watches:  budget.New(budget.Limits{Name: "operand_watches", Total: watchInstances}),
		lastCap:  sys.LastCap(), serial: make(chan struct{}, 1), settled: make(chan struct{}),
		runs: make(map[uint64]*run), early: make(map[uint64]struct{})}
	s.ended.L = &s.mu
	var err error
	// A child shares our memory until it executes the program, and with it the dumpable
	// attribute that lets others inspect it. A palyra-cell without capabilities (tier B of a
	// user) couldn't then read the child's namespaces either; there landlock and the filter
	// keep the program from looking.
	if s.root || h.Tier == tier.C {
		if err := sys.SetDumpable(0); err != nil {
			return nil, refuse("cell_start", "protect own memory", err)
		}
	}
	if err := sys.NoMerging(); err != nil {
		return nil, refuse("cell_start", "keep memory from being merged", err)
	}
	if err := sys.OrdinaryAllThreads(); err != nil {
		return nil, refuse("cell_start", "give up inherited priorities", err)
	}
	if s.ignored, err = ignoredSignals(); err != nil {
		return nil, refuse("proc_unavailable", "read ignored signals", err)
	}
	s.core, s.handler = coreLimit(), openCorePattern()
	if s.abi, err = landlock.ABI(); err != nil || s.abi < 1 {
		return nil, refuse("landlock_unavailable", "query landlock", err).WithHint("boot a kernel with CONFIG_SECURITY_LANDLOCK and landlock in the lsm= list")
	}
	var b [8]byte
	rand.Read(b[:])
	s.cookie = binary.NativeEndian.Uint64(b[:])
	s.rest = native.Rest(&native.Cell{Spec: new(isolate.Spec), FDs: noFDs(), Cookie: s.cookie})
	s.filters = make(map[filterKind]func() (*program, error))
	for _, sockets := range []sockets{noSockets, innerSockets, allSockets, netSockets, hostSockets} {
		for _, kind := range []filterKind{{sockets, false}, {sockets, true}} {
			s.filters[kind] = sync.OnceValues(func() (*program, error) { return s.compile(kind) })
		}
	}
	s.uids.init()
	s.layers.used, s.sessions.used = make(map[layerKey]*layer), make(map[string]*sessionNetwork)
	s.ownsIPC = ownsIPC(s.root)
	s.host = sync.OnceValues(s.newHostLauncher)
	if s.accounts, err = newAccounts(s.root); err != nil {
		return nil, refuse("cell_start", "learn how memory is counted", err)
	}
	switch h.Tier {
	case tier.B:
		err = s.setupB()
	case tier.C:
		err = s.setupC()
	default:
		err = fault.New(fault.Refused, "tier_unavailable", "serve tier "+h.Tier.String(), nil)
	}
	return s, err
}

type program struct {
	filter seccomp.Filter
	bytes  []byte
	digest canon.Digest
	policy canon.Digest // of the same filter without its cookie
}

type sockets int

const (
	noSockets    sockets = iota // none, for the void network
	innerSockets                // connected pairs
	allSockets                  // at tier C unix sockets too
	netSockets                  // and those of the Internet's families, for networks with a loopback interface
	hostSockets                 // the same in the host's network
)

type filterKind struct {
	sockets  sockets
	readOnly bool // a read-only workspace that no mount of ours protects
}

// filterOptions are compile's options, without a cookie. Only a cell whose loopback interface is up
// gets sockets of the Internet's families. In others such sockets could only serve to use a hole
// in the network namespace, and Landlock confines UDP only from ABI 10 on.
func (s *server) filterOptions(kind filterKind) seccomp.Options {
	inet := kind.sockets == netSockets || kind.sockets == hostSockets
	return s.counted(seccomp.Options{Tier: s.tier, AllowInet: inet, NoFastOpen: kind.sockets == hostSockets,
		AllowUnix: kind.sockets == allSockets || inet && s.abi >= unixABI,
		NoPair:    kind.sockets == noSockets, ReadOnly: kind.readOnly})
}

// compile makes a filter. It runs after setup, which finds out how memory is counted.
func (s *server) compile(kind filterKind) (*program, error) {
	arch, err := seccomp.ParseArch(runtime.GOARCH)
	if err != nil {
		return nil, refuse("seccomp_unavailable", "choose seccomp architecture", err)
	}
	o := s.filterOptions(kind)
	o.ExecCookie = s.cookie
	f, policy, err := seccomp.ForCell(o, arch)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "compile filter", err)
	}
	return &program{filter: f, bytes: f.Bytes(), digest: f.Digest(), policy: policy}, nil
}

// unixABI is the first landlock ABI that confines sockets in the file system
// (LANDLOCK_ACCESS_FS_RESOLVE_UNIX).
const unixABI = 9

// scopeABI is the first landlock ABI that confines signals.
const scopeABI = 6

func (s *server) filterFor(spec *isolate.Spec) (*program, error) {
	return s.filters[s.filterKind(spec)]()
}

// filterKind chooses a filter. Below tier C only the filter protects the metadata of a
// read-only workspace.
func (s *server) filterKind(spec *isolate.Spec) filterKind {
	w := spec.Workspace
	return filterKind{s.socketsFor(spec), s.tier != tier.C && w != nil && w.ReadOnly}
}

// socketsFor chooses the sockets. The void network has none. Elsewhere unix sockets are allowed
// if landlock keeps the program from the host's: every cell shows the host's /usr, where a
// daemon may listen, and a read-only mount doesn't prevent connecting.
func (s *server) socketsFor(spec *isolate.Spec) sockets {
	switch {
	case spec.Network == isolate.NetworkVoid:
		return noSockets
	case isolate.AllowsHostNetwork(spec.Network):
		return hostSockets
	case isolate.Connects(spec.Network):
		return netSockets
	case s.tier == tier.C && s.abi >= unixABI:
		return allSockets
	}
	return innerSockets
}

func refuse(reason, op string, err error) *fault.Error {
	return fault.New(fault.Refused, reason, op, err)
}

// hostRoot reports whether our uid 0 is the host's: an identity map of the whole range means
// the initial user namespace (user_namespaces(7)).
func hostRoot() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295"
}

func ignoredSignals() ([]int, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			return sys.IgnoredSignals(strings.TrimSpace(v))
		}
	}
	return nil, errors.New("no SigIgn line in /proc/self/status")
}

func (s *server) setupC() error {
	if err := sys.MakePrivate(); err != nil {
		return refuse("mount_namespace", "make mounts private", err)
	}
	var err error
	if s.userIDs, err = readIDMap("/proc/self/uid_map"); err == nil {
		s.groupIDs, err = readIDMap("/proc/self/gid_map")
	}
	if err != nil {
		return refuse("proc_unavailable", "read own ids", err)
	}
	parts, err := collect()
	if err != nil {
		return refuse("cell_start", "clone host directories for the template", err)
	}
	defer closeParts(parts)
	for _, p := range parts {
		if p.tree != nil {
			s.shown = append(s.shown, shown{"/" + p.path, p.exec, strings.HasPrefix(p.path, "dev/")})
		}
	}
	proc, err := s.ownProc()
	if err != nil {
		return err
	}
	defer proc.Close()
	if err = s.readProc(); err != nil {
		return err
	}
	if s.own, err = evidence.ReadNamespaces("/proc", os.Getpid()); err != nil {
		return refuse("proc_unavailable", "read own namespaces", err)
	}
	s.masked = slices.DeleteFunc(native.Masked(), func(path string) bool {
		_, err := os.Lstat(path)
		return errors.Is(err, fs.ErrNotExist)
	})
	s.fixed = native.NewFixed(s.lastCap, s.ignored, s.masked)
	// This comes before the launcher: if that gets our first thread, /proc/self shows the
	// template's mounts.
	s.findCgroup()
	var root *os.File
	s.launch, err = s.newLauncher(func() error {
		if err := sys.UnshareMounts(); err != nil {
			return err
		}
		root, s.top, err = build(parts, proc)
		return err
	})
	if err != nil {
		return refuse("cell_start", "build the template", err)
	}
	// Detaching the host's mounts waits for an RCU grace period. The thread does it during our
	// greeting, and before it clones.
	s.launch.later(func(*thread) {
		defer close(s.settled)
		err := settle()
		if err == nil {
			s.template, err = os.Open("/proc/thread-self/ns/mnt")
		}
		if err != nil {
			s.unsettled = refuse("cell_start", "settle the template", err)
		}
	})
	return s.grantStatic(root)
}

// ownProc mounts a proc of our PID namespace over the host's, so that we can read evidence by
// the PIDs that we see. It returns another one, detached.
func (s *server) ownProc() (*os.File, error) {
	var procs [2]*os.File
	for i := range procs {
		var err error
		if procs[i], err = sys.NewFS("proc", sys.AttrNoSUID|sys.AttrNoDev|sys.AttrNoExec); err != nil {
			return nil, refuse("proc_unavailable", "mount proc", err).WithHint("inside a container /proc is often masked; give it an unmasked /proc")
		}
	}
	defer procs[0].Close()
	if err := sys.MoveMount(procs[0], "/proc"); err != nil {
		return nil, refuse("proc_unavailable", "mount proc", err)
	}
	return procs[1], nil
}

func (s *server) readProc() (err error) {
	if s.reader, err = evidence.NewReader("/proc"); err != nil {
		return refuse("proc_unavailable", "open proc", err)
	}
	proc, err := sys.OpenPath("/proc")
	if err != nil {
		return refuse("proc_unavailable", "open proc", err)
	}
	defer proc.Close()
	fd, err := sys.DupHigh(int(proc.Fd()))
	if err != nil {
		return refuse("proc_unavailable", "open proc", err)
	}
	s.outside = os.NewFile(uintptr(fd), "/proc")
	return nil
}

// findCgroup finds the cgroup subtree that palyra made for us, if any.
func (s *server) findCgroup() {
	tree, err := cgroup.Inherit("/proc")
	if err == nil {
		s.ownGroup, err = s.reader.Group(os.Getpid())
	}
	if err != nil {
		tree = nil
	}
	s.groups = tree
	s.groupState = cgroup.State(err)
}

// keepMemory is sys.KeepMemory for the memory that Go has mapped by now. Only cells with a memory
// of their own profit from it.
func (s *server) keepMemory() {
	if s.groups == nil {
		return
	}
	mapped := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	if metrics.Read(mapped); mapped[0].Value.Kind() != metrics.KindUint64 {
		return
	}
	if n := mapped[0].Value.Uint64(); s.kept.Swap(n) != n {
		_ = sys.KeepMemory()
	}
}

// setupB prepares a host without namespaces. As root palyra-cell itself still has a PID
// namespace, for its own death.
func (s *server) setupB() error {
	if err := sys.SetSubreaper(); err != nil {
		return refuse("cell_start", "become a subreaper", err)
	}
	if os.Getpid() == 1 {
		if err := sys.MakePrivate(); err != nil {
			return refuse("mount_namespace", "make mounts private", err)
		}
		proc, err := s.ownProc()
		if err != nil {
			return err
		}
		proc.Close()
	}
	var err error
	if err = s.readProc(); err != nil {
		return err
	}
	if s.launch, err = s.newLauncher(func() error { return nil }); err != nil {
		return err
	}
	close(s.settled)
	return s.grantStatic(nil)
}

package serve

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
)

// mounterMap is the further line for a layer. As root overlayfs makes folders and whiteouts of
// its own as our user, who must have an id in the layer, or the kernel mounts it read-only
// (EOVERFLOW on its work folder). The number on disk is one that no user of a host has.
var mounterMap = "\n" + utoa(idFirst-1) + " 0 1"

// layers has the layers that calls of this palyra-cell use, each with one overlay. Two overlays
// over one upper folder are undefined, but any number of mounts may show one overlay: each cell
// has a clone of the first.
type layers struct {
	mu   sync.Mutex
	used map[layerKey]*layer // guarded by mu; without those that couldn't be made
	idle int                 // guarded by mu: those without a user
}

// An overlay stays for a moment after its last call: the next call of an agent finds it, and
// needn't wait until it's gone. It holds no more than the layer itself, and palyra may meanwhile
// replace or remove that: another upper folder is another layerKey.
const (
	layerIdle = time.Second
	maxIdle   = 16
)

// layerKey names what an overlay was made of. While it exists the kernel keeps these inodes, so
// that no other folder gets their numbers.
type layerKey struct {
	workspace, upper, work sys.Inode
	uid, gid               uint32 // the workspace's owner
}

// layer is a layer with its overlay. All its cells are one user of the host, as at tier C of a user
// all cells are: overlayfs maps ids only below itself.
type layer struct {
	key layerKey

	ready chan struct{} // closed when the fields below are set
	// Immutable once ready is closed.
	err            error
	abandoned      bool     // the call that made it has ended meanwhile, which says nothing of the layer
	uid, gid       uint32   // of its cells
	lower, overlay *os.File // detached mounts
	lock           *os.File // its work folder, locked as long as the overlay may exist

	// Guarded by layers.mu.
	users int              // calls, and those that were answered and whose mounts may still be there
	calls map[*run]removed // calls
	over  *time.Timer      // since it has no user; else nil
}

// removed is what a call's processes hold of files that are in no folder any more.
type removed struct{ bytes, inodes int64 }

// layerPatience bounds a call's wait for another palyra-cell that has the layer mounted. One that
// has answered its last call with it unmounts after layerIdle and what writing to disk takes.
const (
	layerPatience = 20 * time.Second
	layerAgain    = 5 * time.Millisecond
)

const layerOp = "mount the layer"

// joinLayer gives the run its layer's overlay, which it makes if no other call uses it, and the
// overlay's user.
func (r *run) joinLayer() error {
	key, err := r.layerKey()
	if err != nil {
		return err
	}
	l, first, err := r.shareLayer(key)
	for err == nil && !first && l.abandoned {
		r.dropLayer()
		l, first, err = r.shareLayer(key)
	}
	if err != nil {
		return err
	}
	if !first {
		// What the host has changed since is seen by this call, as by the first one.
		if err := sys.Refresh(l.overlay); err != nil {
			return refuse("overlay_unavailable", layerOp, err)
		}
	}
	r.uid, r.gid, r.lower = l.uid, l.gid, l.lower
	return nil
}

// shareLayer makes the run one of a layer's, and returns when it's made: by this run, the first, or
// by another one. The error of making it is the first run's own, and the others' too unless it's
// abandoned.
func (r *run) shareLayer(key layerKey) (l *layer, first bool, err error) {
	t := &r.s.layers
	t.mu.Lock()
	l = t.used[key]
	first = l == nil
	if first {
		l = &layer{key: key, ready: make(chan struct{}), calls: make(map[*run]removed)}
		t.used[key] = l
	}
	if l.over != nil {
		l.over.Stop()
		l.over, t.idle = nil, t.idle-1
	}
	l.users++
	l.calls[r] = removed{}
	for other := range l.calls {
		other.together = max(other.together, len(l.calls))
	}
	t.mu.Unlock()
	r.layer = l
	if !first {
		return l, false, r.awaitLayer(l)
	}
	if l.err = r.stage(l); l.err != nil {
		l.abandoned = r.cause() != nil || r.left(time.Hour) == 0
		l.close()
		t.mu.Lock()
		delete(t.used, key) // the next call tries again
		t.mu.Unlock()
	}
	close(l.ready)
	return l, true, l.err
}

// awaitLayer waits until another run has made the layer, as long as this one has time.
func (r *run) awaitLayer(l *layer) error {
	late := time.NewTimer(time.Until(r.deadline))
	defer late.Stop()
	select {
	case <-l.ready:
		if l.abandoned {
			return nil
		}
		return l.err
	case <-r.stop:
		return fault.New(fault.Canceled, "canceled", layerOp, nil)
	case <-late.C:
		return fault.New(fault.Busy, "locked", layerOp, errors.New("another call is still mounting it"))
	}
}

func (r *run) layerKey() (k layerKey, err error) {
	w := r.spec.Workspace
	k = layerKey{uid: w.UID, gid: w.GID}
	if k.workspace, err = sys.InodeOf(r.files.workspace); err != nil {
		return k, fault.New(fault.Internal, "internal", layerOp, err)
	}
	for _, part := range [...]struct {
		name string
		to   *sys.Inode
	}{{"upper", &k.upper}, {"work", &k.work}} {
		f, err := sys.FolderBeneath(r.files.layer, part.name)
		if err != nil {
			return k, fault.New(fault.Usage, "changed", layerOp, err)
		}
		*part.to, err = sys.InodeOf(int(f.Fd()))
		f.Close()
		if err != nil {
			return k, fault.New(fault.Internal, "internal", layerOp, err)
		}
	}
	return k, nil
}

// stage makes the overlay of a layer: detached, over a clone of the workspace. The layer's folder
// was opened by palyra, whose mounts aren't ours, so it's looked up again and compared, as the
// workspace is.
func (r *run) stage(l *layer) (err error) {
	r.newIDs()
	l.uid, l.gid = r.uid, r.gid
	if l.lower, err = r.workspace(); err != nil {
		return err
	}
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(r.files.layer))
	if err != nil {
		return refuse("proc_unavailable", layerOp, err)
	}
	var folder *os.File
	elsewhere(func() { folder, err = cloneDirectory(name, r.files.layer, layerOp) })
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := r.own(folder, sys.AttrNoSUID|sys.AttrNoDev, mounterMap, layerOp); err != nil {
		return err
	}
	var parts [2]*os.File
	for i, name := range [...]string{"upper", "work"} {
		if parts[i], err = sys.FolderBeneath(int(folder.Fd()), name); err != nil {
			return fault.New(fault.Usage, "changed", layerOp, err)
		}
		defer parts[i].Close()
	}
	if l.lock, err = r.lockWork(int(folder.Fd())); err != nil {
		return err
	}
	if l.overlay, err = sys.NewOverlay(l.lower, parts[0], parts[1]); err != nil {
		return refuse("overlay_unavailable", layerOp, err).
			WithHint("a staged workspace needs overlayfs of Linux 6.15 or later, for the file systems of the workspace and of the state directory (dmesg says why not); without it a workspace is DIR or DIR:ro")
	}
	return nil
}

// lockWork locks a layer's work folder against other palyra-cells. palyra's lock on the layer's
// folder, which every call of its brings along, says nothing about those that it has replaced.
func (r *run) lockWork(folder int) (*os.File, error) {
	fd, err := sys.OpenBeneath(folder, "work")
	if err != nil {
		return nil, fault.New(fault.Usage, "changed", layerOp, err)
	}
	f := os.NewFile(uintptr(fd), "work")
	for over := time.Now().Add(layerPatience); ; time.Sleep(layerAgain) {
		err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, refuse("overlay_unavailable", layerOp, err)
		}
		if r.cause() != nil || r.left(time.Hour) == 0 || time.Now().After(over) {
			f.Close()
			return nil, fault.New(fault.Busy, "locked", layerOp, errors.New("another palyra-cell has it mounted")).
				WithHint("wait for the call's end, or use a layer of another name")
		}
	}
}

// cloneLayer returns a mount of the overlay for one cell.
func (r *run) cloneLayer() (*os.File, error) {
	m, err := sys.OpenTree(int(r.layer.overlay.Fd()), "", false)
	runtime.KeepAlive(r.layer.overlay)
	if err != nil {
		return nil, refuse("overlay_unavailable", layerOp, err)
	}
	return m, nil
}

// withhold notes what the run's processes hold of removed files, and returns what those of all
// calls with the layer do.
func (r *run) withhold(mine removed) (all removed) {
	t := &r.s.layers
	t.mu.Lock()
	defer t.mu.Unlock()
	r.layer.calls[r] = mine
	for _, x := range r.layer.calls {
		all.bytes, all.inodes = all.bytes+x.bytes, all.inodes+x.inodes
	}
	return all
}

// leaveLayer is called when no process of the run is left. It returns how many calls used the
// layer at once while the run did, itself included.
func (r *run) leaveLayer() int {
	t := &r.s.layers
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(r.layer.calls, r)
	return r.together
}

// dropLayer is called when the run's mounts are gone.
func (r *run) dropLayer() {
	l := r.layer
	if l == nil {
		return
	}
	r.layer = nil
	t := &r.s.layers
	t.mu.Lock()
	delete(l.calls, r)
	l.users--
	switch {
	case l.users > 0 || l.err != nil:
	case t.idle < maxIdle:
		t.idle++
		var timer *time.Timer
		timer = time.AfterFunc(layerIdle, func() { t.expire(l, func() bool { return l.over == timer }) })
		l.over = timer
	default:
		delete(t.used, l.key)
		defer l.close()
	}
	t.mu.Unlock()
}

// expire unmounts a layer that has had no user since it became idle.
func (t *layers) expire(l *layer, still func() bool) {
	t.mu.Lock()
	if !still() {
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	// Unmounting writes all to disk (ovl_sync_fs), and the next call would wait for that. So it's
	// done before, and a call that comes meanwhile finds the overlay.
	sys.SyncFS(l.lock)
	t.mu.Lock()
	idle := still()
	if idle {
		l.over, t.idle = nil, t.idle-1
		delete(t.used, l.key)
	}
	t.mu.Unlock()
	if idle {
		l.close()
	}
}

// close unmounts, and then unlocks.
func (l *layer) close() { closeAll([]*os.File{l.overlay, l.lower, l.lock}) }

package serve

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
)

// workspace clones the declared directory as a detached mount. It looks the path up again, in
// our copy of the host's mounts and through no link, and requires the directory that was
// sealed.
func (r *run) workspace() (*os.File, error) {
	w := r.spec.Workspace
	op := fmt.Sprintf("mount workspace %q", w.Source)
	var m *os.File
	var err error
	elsewhere(func() { m, err = cloneDirectory(w.Source, r.files.workspace, op) })
	if err != nil {
		return nil, err
	}
	attrs := uint64(sys.AttrNoSUID | sys.AttrNoDev)
	if w.ReadOnly || w.Staged {
		attrs |= sys.AttrReadOnly
	}
	if err := r.own(m, attrs, "", op); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// hostMounts makes the call's mounts from directories of the host, and the folders above them and
// above a workspace at its own path. Unlike a workspace, a mount is not id-mapped: as root the
// program reads there what every user of the host may.
func (r *run) hostMounts(c *native.Cell, grants []landRule) ([]landRule, error) {
	var places []string
	if w := r.spec.Workspace; w != nil && w.OwnPath {
		places = append(places, w.Source)
	}
	for _, m := range r.spec.Mounts {
		places = append(places, m.Source)
	}
	for _, name := range r.spec.Caches {
		places = append(places, isolate.CachePath(name))
	}
	if len(r.spec.Secrets) > 0 {
		places = append(places, isolate.SecretsDir)
	}
	if err := r.frames(c, places...); err != nil {
		return nil, err
	}
	for i, m := range r.spec.Mounts {
		op := fmt.Sprintf("mount %q", m.Source)
		var tree *os.File
		var err error
		elsewhere(func() { tree, err = cloneDirectory(m.Source, r.files.mounts[i], op) })
		if err != nil {
			return nil, err
		}
		g, err := r.place(c, "mount", m.Source, tree, "rx")
		if err != nil {
			return nil, err
		}
		if err := sys.SetAttr(tree, sys.AttrReadOnly|sys.AttrNoSUID|sys.AttrNoDev); err != nil {
			return nil, refuse("workspace_unusable", op, err)
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// hostCaches makes the mounts of the call's caches. They lie in the state directory, and are
// looked up again as the layer is.
func (r *run) hostCaches(c *native.Cell, grants []landRule) ([]landRule, error) {
	for i, name := range r.spec.Caches {
		op := fmt.Sprintf("mount cache %q", name)
		at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(r.files.caches[i]))
		if err != nil {
			return nil, refuse("proc_unavailable", op, err)
		}
		var m *os.File
		elsewhere(func() { m, err = cloneDirectory(at, r.files.caches[i], op) })
		if err != nil {
			return nil, err
		}
		g, err := r.place(c, "cache", isolate.CachePath(name), m, "rwx")
		if err != nil {
			return nil, err
		}
		if err := r.own(m, sys.AttrNoSUID|sys.AttrNoDev, "", op); err != nil {
			return nil, err
		}
		if err := r.addRoom(r.files.caches[i], room{path: isolate.CachePath(name), bytes: isolate.CacheBytes, inodes: isolate.CacheFiles}); err != nil {
			return nil, err
		}
		grants = append(grants, g)
	}
	if len(r.spec.Caches) > 0 {
		r.ev.Degraded = append(r.ev.Degraded, "disk: the size of caches is sampled")
	}
	return grants, nil
}

// checkTmp requires the /tmp of a call that shares its session's to be the folder that palyra gave.
func (p *process) checkTmp() error {
	if !p.sharesTmp() {
		return nil
	}
	var want, got syscall.Stat_t
	if err := syscall.Fstat(p.files.caches[slices.Index(p.spec.Caches, isolate.CacheTmp)], &want); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if err := syscall.Stat("/proc/"+strconv.Itoa(p.pid)+"/root"+isolate.CachePath(isolate.CacheTmp), &got); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if got.Dev != want.Dev || got.Ino != want.Ino {
		return errors.New("/tmp is not the folder of the call's session")
	}
	p.ev.Mounts.Tmp = evidence.TmpSession
	return nil
}

// own gives a detached mount attributes and, as root, an id map from the workspace's owner to
// the cell's own id, with a further line.
func (r *run) own(m *os.File, attrs uint64, more, op string) error {
	if err := sys.SetAttr(m, attrs); err != nil {
		return refuse("workspace_unusable", op, err)
	}
	if !r.s.root {
		return nil
	}
	owner, err := r.mapNamespace(r.spec.Workspace.UID, r.spec.Workspace.GID, more)
	if err != nil {
		return refuse("userns_unavailable", op, err)
	}
	defer owner.Close()
	if err := sys.IDMap(m, owner); err != nil {
		return refuse("idmapped_mount", op, err).
			WithHint("as root the workspace, with what is mounted in it, and the state directory must lie on file systems with id-mapped mounts (ext4, xfs, btrfs; tmpfs from kernel 6.3)")
	}
	return nil
}

// elsewhere runs f on a thread that doesn't clone, and so has palyra-cell's own copy of the
// host's mounts. Go never starts a thread from one that a goroutine is locked to, so a new
// thread hasn't left those mounts.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	<-done
}

func cloneDirectory(path string, sealed int, op string) (*os.File, error) {
	dir, err := sys.OpenDirNoLinks(path)
	if err != nil {
		return nil, fault.New(fault.Usage, "changed", op, err)
	}
	defer dir.Close()
	same, err := sys.SameFile(int(dir.Fd()), sealed)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	if !same {
		return nil, fault.New(fault.Usage, "changed", op, errors.New("it is not the directory that was sealed"))
	}
	m, err := sys.OpenTree(int(dir.Fd()), "", true)
	if err != nil {
		return nil, refuse("workspace_unusable", op, err)
	}
	return m, nil
}

// operands copies the sealed bytes into files of a tmpfs of our own and clones each file as a
// read-only mount, with which the tape covers the original. The mounts are watched from here
// on.
func (r *run) operands(c *native.Cell, workspace *os.File, grants *[]landRule) error {
	if len(r.spec.Operands) == 0 {
		return nil
	}
	copies, err := r.copyOperands()
	if err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", "seal operands", err)
	}
	var paths []string
	for i, o := range r.spec.Operands {
		rel, ok := strings.CutPrefix(o.Path, r.spec.Workspace.View()+"/")
		if !ok {
			return fault.New(fault.Internal, "internal", fmt.Sprintf("cover operand %q", o.Path), errors.New("not beneath the workspace"))
		}
		fd, err := r.raiseFile(copies[i])
		if err != nil {
			return fault.New(fault.Unavailable, "resource_exhausted", "prepare cell", err)
		}
		if err := r.covers.covered(copies[i], o.Path); err != nil {
			return refuse("operand_unpinnable", watchOp, err)
		}
		paths = append(paths, rel)
		c.Operands = append(c.Operands, native.Operand{FD: fd, Path: rel})
		*grants = append(*grants, landRule{file: copies[i], access: "rx"})
	}
	err = r.covers.arm(r.s.watches, r.files.workspace, int(workspace.Fd()), append(paths, leadingTo(r.spec, paths)...))
	runtime.KeepAlive(workspace)
	return err
}

func (r *run) copyOperands() ([]*os.File, error) {
	var copies []*os.File
	var total int64
	for _, o := range r.spec.Operands {
		total += o.Size + 4096
	}
	opts := []string{"mode", "0755", "uid", utoa(r.uid), "gid", utoa(r.gid), "size", strconv.FormatInt(total+1<<20, 10)}
	fs, err := sys.NewFS("tmpfs", sys.AttrNoSUID|sys.AttrNoDev, opts...)
	if err != nil {
		return nil, err
	}
	r.hold(fs)
	for i, o := range r.spec.Operands {
		f, err := sys.CreateAt(fs, strconv.Itoa(i))
		if err != nil {
			return copies, err
		}
		sealed, err := r.borrow(r.files.operands[i], "operand")
		if err != nil {
			f.Close()
			return copies, err
		}
		n, err := io.Copy(f, io.NewSectionReader(sealed, 0, o.Size+1))
		if err == nil && n != o.Size {
			err = fmt.Errorf("operand has %d bytes, not %d", n, o.Size)
		}
		if err == nil {
			// As executable as the sealed copy, which carries the original's mode.
			if fi, serr := sealed.Stat(); serr == nil {
				err = f.Chmod(fi.Mode().Perm() &^ 0o222)
			}
		}
		f.Close()
		if err != nil {
			return copies, err
		}
	}
	// From kernel 6.15 on a file of a detached mount can be cloned; before, the mount must be
	// in the namespace. The template's /tmp is empty, and ours while no thread clones.
	r.s.launch.run(func(t *thread) {
		if err = t.enter(); err != nil {
			return
		}
		r.s.cloning.Lock()
		defer r.s.cloning.Unlock()
		if err = sys.MoveMount(fs, "/tmp"); err != nil {
			return
		}
		for i := range r.spec.Operands {
			var m *os.File
			if m, err = sys.OpenTree(-100, "/tmp/"+strconv.Itoa(i), false); err != nil {
				break
			}
			copies = append(copies, m)
		}
		err = errors.Join(err, sys.Detach("/tmp"))
	})
	for _, m := range copies {
		r.hold(m)
		if err == nil {
			err = sys.SetAttr(m, sys.AttrReadOnly|sys.AttrNoSUID|sys.AttrNoDev)
		}
	}
	return copies, err
}

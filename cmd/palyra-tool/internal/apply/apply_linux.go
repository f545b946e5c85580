package apply

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// room is the open folder of a workspace, locked.
type room struct {
	fd    int
	mount uint64
}

// enter opens a workspace and locks its folder (flock(2)): one list at a time is brought to
// it, also where two layers lie over it, and while a process that is being killed ends.
func enter(dir string) (*room, error) {
	const op = "open workspace"
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, failure(op, err)
	}
	r := &room{fd: fd}
	if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		err = fault.New(fault.Busy, "locked", op, errors.New("another call is applying changes to it"))
	}
	if err == nil {
		r.mount, err = mountOf(fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, failure(op, err)
	}
	return r, nil
}

func (r *room) close() { unix.Close(r.fd) }

func mountOf(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, unix.ENOTSUP
	}
	return st.Mnt_id, nil
}

// sub opens a folder of a folder, through no link and over no mount.
func (r *room) sub(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	m, err := mountOf(fd)
	if err == nil && m != r.mount {
		err = unix.EXDEV
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// folder opens a folder of the workspace.
func (r *room) folder(dir string) (int, error) {
	at, err := r.sub(r.fd, ".")
	if err != nil || dir == "." {
		return at, err
	}
	for name := range strings.SplitSeq(dir, "/") {
		next, err := r.sub(at, name)
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// in does something in the folder of a unit.
func (r *room) in(u *unit, do func(dir int) error) error {
	dir, err := r.folder(u.dir)
	if err != nil {
		return failure(fmt.Sprintf("open folder %q", u.dir), err)
	}
	defer unix.Close(dir)
	return do(dir)
}

// failure gives an error of the file system a kind and a reason.
func failure(op string, err error) error {
	if fault.ReasonOf(err) != "" {
		return err
	}
	kind, reason := fault.Unavailable, "io_error"
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		kind, reason, err = fault.Busy, "changed", errors.New("is a folder no more: a link or a file")
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EBUSY):
		kind, reason, err = fault.Busy, "changed", errors.New("something is mounted there")
	case errors.Is(err, fs.ErrNotExist):
		kind, reason = fault.Busy, "changed"
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.ENOTEMPTY):
		kind, reason = fault.Busy, "exists"
	case errors.Is(err, unix.EROFS):
		kind, reason = fault.Refused, "read_only"
	case errors.Is(err, fs.ErrPermission):
		kind, reason = fault.Refused, "permission_denied"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		reason = "disk_full"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP):
		kind, reason, err = fault.Refused, "cannot_apply", fmt.Errorf("the file system can't exchange names: %w", err)
	}
	return fault.New(kind, reason, op, err)
}

func changed(name string) error {
	return fault.New(fault.Busy, "changed", fmt.Sprintf("apply %q", name), errors.New("it is not what the list says that it was"))
}

// is reports whether a name stands for exactly a tree; nil is nothing.
func (r *room) is(dir int, name string, t *tree) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return t == nil, nil
	}
	if err != nil || t == nil {
		return false, err
	}
	mode := fmt.Sprintf("%04o", st.Mode&0o7777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		if t.Type != toolproto.NodeSymlink {
			return false, nil
		}
		target, err := readlink(dir, name)
		return toolproto.Escape(target) == t.Target, err
	case unix.S_IFREG:
		if t.Type != toolproto.NodeFile || mode != t.Mode {
			return false, nil
		}
		if t.index {
			return isIndex(dir, name, t)
		}
		if st.Size != t.Size {
			return false, nil
		}
		d, err := digest(dir, name, t.Size)
		return d == t.Digest, err
	case unix.S_IFDIR:
		if !t.folder() || mode != t.Mode {
			return false, nil
		}
		return r.holds(dir, name, t)
	}
	return false, nil
}

// holds reports whether a folder holds exactly the names of a tree.
func (r *room) holds(dir int, name string, t *tree) (bool, error) {
	fd, err := r.sub(dir, name)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	names, err := list(fd)
	if err != nil || len(names) != len(t.names) {
		return false, err
	}
	for _, n := range names {
		if t.names[n] == nil {
			return false, nil
		}
		if same, err := r.is(fd, n, t.names[n]); err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// list returns the names in a folder, sorted, at most one more than a list can have.
func list(fd int) ([]string, error) { return listUpTo(fd, toolproto.MaxChanges) }

func listUpTo(fd, most int) ([]string, error) {
	var all []string
	buf := make([]byte, 32<<10)
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return nil, err
	}
	for len(all) <= most {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			break
		}
		_, _, all = unix.ParseDirent(buf[:n], -1, all)
	}
	slices.Sort(all)
	return all, nil
}

func readlink(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// digest hashes a regular file. A FIFO isn't waited for.
func digest(dir int, name string, size int64) (d canon.Digest, err error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return d, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return d, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, size+1)); err != nil {
		return d, err
	}
	h.Sum(d[:0])
	return d, nil
}

// make makes a tree under a new name and flushes it.
func (r *room) make(dir int, name string, t *tree) error {
	switch t.Type {
	case toolproto.NodeSymlink:
		target, err := toolproto.Unescape(t.Target)
		if err != nil {
			return err
		}
		return unix.Symlinkat(target, dir, name)
	case toolproto.NodeFile:
		fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		if _, err := f.Write(t.content); err != nil {
			return err
		}
		if err := unix.Fchmod(fd, t.mode()); err != nil {
			return err
		}
		return f.Sync()
	}
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return err
	}
	fd, err := r.sub(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for n, sub := range t.names {
		if err := r.make(fd, n, sub); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, t.mode()); err != nil {
		return err
	}
	return unix.Fsync(fd)
}

func (t *tree) mode() uint32 {
	m, err := strconv.ParseUint(t.Mode, 8, 32)
	if err != nil {
		return 0 // no rights
	}
	return uint32(m) & 0o7777
}

// remove removes a name with all beneath it. It's no error if there is none.
func (r *room) remove(dir int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, fs.ErrNotExist) {
		return nil // unlinkat(2) would say EROFS on a read-only file system
	}
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	fd, e := r.sub(dir, name)
	if errors.Is(e, fs.ErrPermission) { // its mode kept us out
		if e = unix.Fchmodat(dir, name, 0o700, unix.AT_SYMLINK_NOFOLLOW); e == nil {
			fd, e = r.sub(dir, name)
		}
	}
	if e != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return err
	}
	names, err := list(fd)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := r.remove(fd, n); err != nil {
			return err
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// Apply does the job in a workspace, whole or not at all.
func (j *Job) Apply(dir string) (*toolproto.ChangesResult, error) {
	r, err := enter(dir)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := j.enterGit(r, false); err != nil {
		return nil, err
	}
	defer j.leaveGit(r)
	if j.git != nil {
		if err := j.git.check(repository{r}); err != nil {
			return nil, err
		}
	}
	for _, u := range j.units {
		if err := r.in(u, func(dir int) error { return r.expect(dir, u.base, u, u.old) }); err != nil {
			return nil, err // nothing was touched
		}
	}
	if err := j.recall(r); err != nil {
		return nil, err
	}
	if err := j.store(r); err != nil {
		return nil, err // objects alone, which no ref needs
	}
	if err = j.stage(r); err == nil {
		if err = j.commit(r); err == nil {
			err = j.sync(r)
		}
	}
	if err != nil {
		return nil, j.back(r, err)
	}
	if err := j.drop(r); err != nil {
		return nil, &Failed{err, nil} // all is in place; to be recovered
	}
	return j.result(true), nil
}

// expect is an error if a name isn't a side of a unit.
func (r *room) expect(dir int, name string, u *unit, t *tree) error {
	var same bool
	var err error
	if u.rights() {
		same, err = r.hasMode(dir, name, t)
	} else {
		same, err = r.is(dir, name, t)
	}
	if err != nil {
		return failure(fmt.Sprintf("look at %q", u.path()), err)
	}
	if !same {
		return changed(u.path())
	}
	return nil
}

// hasMode reports whether a name is a folder with the rights of a tree.
func (r *room) hasMode(dir int, name string, t *tree) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	return st.Mode&unix.S_IFMT == unix.S_IFDIR && fmt.Sprintf("%04o", st.Mode&0o7777) == t.Mode, nil
}

func (j *Job) stage(r *room) error {
	for _, u := range j.units {
		if u.new == nil || u.rights() {
			continue
		}
		if err := r.in(u, func(dir int) error {
			u.touched = true
			if err := r.make(dir, u.temp, u.new); err != nil {
				return failure(fmt.Sprintf("write beside %q", u.path()), err)
			}
			return failed(u, "flush the folder of", unix.Fsync(dir))
		}); err != nil {
			return err
		}
		if err := j.at(StepStaged, u.n); err != nil {
			return err
		}
	}
	return nil
}

func failed(u *unit, what string, err error) error {
	if err == nil {
		return nil
	}
	return failure(fmt.Sprintf("%s %q", what, u.path()), err)
}

// order puts the rights of folders last, the innermost first: one that is taken away could keep
// us from what lies beneath.
func (j *Job) order() []*unit {
	var out, rights []*unit
	for _, u := range j.units {
		if u.rights() {
			rights = append(rights, u)
		} else {
			out = append(out, u)
		}
	}
	slices.Reverse(rights)
	return append(out, rights...)
}

func (j *Job) commit(r *room) error {
	for _, u := range j.order() {
		if err := r.in(u, func(dir int) error {
			u.touched = true
			return r.exchange(dir, u)
		}); err != nil {
			return err
		}
		if err := j.at(StepCommitted, u.n); err != nil {
			return err
		}
	}
	return nil
}

// exchange puts a unit in place, and looks at what was there.
func (r *room) exchange(dir int, u *unit) error {
	switch {
	case u.rights():
		if err := r.expect(dir, u.base, u, u.old); err != nil {
			return err
		}
		return r.chmod(dir, u, u.new)
	case u.old == nil:
		return failed(u, "create", unix.Renameat2(dir, u.temp, dir, u.base, unix.RENAME_NOREPLACE))
	case u.new == nil:
		if err := unix.Renameat2(dir, u.base, dir, u.temp, unix.RENAME_NOREPLACE); err != nil {
			return failed(u, "remove", err)
		}
	default:
		if err := unix.Renameat2(dir, u.temp, dir, u.base, unix.RENAME_EXCHANGE); err != nil {
			return failed(u, "replace", err)
		}
	}
	err := r.expect(dir, u.temp, u, u.old)
	if err == nil {
		return nil
	}
	// Another writer was faster: its content goes back, whatever it is.
	back := unix.Renameat2(dir, u.temp, dir, u.base, unix.RENAME_NOREPLACE)
	if u.new != nil {
		back = unix.Renameat2(dir, u.temp, dir, u.base, unix.RENAME_EXCHANGE)
	}
	return errors.Join(err, back)
}

func (r *room) chmod(dir int, u *unit, t *tree) error {
	fd, err := r.sub(dir, u.base)
	if err != nil {
		return failed(u, "open folder", err)
	}
	defer unix.Close(fd)
	if err := unix.Fchmod(fd, t.mode()); err != nil {
		return failed(u, "change the mode of", err)
	}
	return failed(u, "flush", unix.Fsync(fd))
}

// sync flushes the folders whose names changed, and says so by a file: from here on a second
// process goes forward.
func (j *Job) sync(r *room) error {
	done := make(map[string]bool)
	for _, u := range j.units {
		if done[u.dir] {
			continue
		}
		done[u.dir] = true
		if err := r.in(u, func(dir int) error { return failed(u, "flush the folder of", unix.Fsync(dir)) }); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(r.fd, j.in.Done(), unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = errors.Join(unix.Fsync(fd), unix.Close(fd), unix.Fsync(r.fd))
	}
	if err != nil {
		return failure("mark the end", err)
	}
	return j.at(StepSynced, 0)
}

// drop removes what was replaced. The kernel has kept it.
func (j *Job) drop(r *room) error {
	for _, u := range j.units {
		if err := r.in(u, func(dir int) error { return failed(u, "remove the former", r.remove(dir, u.temp)) }); err != nil {
			return err
		}
		if err := j.at(StepDropped, u.n); err != nil {
			return err
		}
	}
	if err := r.remove(r.fd, j.in.Done()); err != nil {
		return failure("remove the mark of the end", err)
	}
	return nil
}

// look finds out how far a unit came.
func (r *room) look(dir int, u *unit) (placement, error) {
	if u.rights() {
		if was, err := r.hasMode(dir, u.base, u.old); err != nil || was {
			return before, err
		}
		if is, err := r.hasMode(dir, u.base, u.new); err != nil || is {
			return after, err
		}
		return foreign, nil
	}
	if was, err := r.is(dir, u.base, u.old); err != nil || was {
		return before, err
	}
	is, err := r.is(dir, u.base, u.new)
	if err != nil || !is {
		return foreign, err
	}
	if u.old == nil {
		return after, nil
	}
	for _, c := range []struct {
		t  *tree
		is placement
	}{{u.old, after}, {nil, dropped}, {u.new, before}} { // the last: another writer wrote the same
		if same, err := r.is(dir, u.temp, c.t); err != nil || same {
			return c.is, err
		}
	}
	return displaced, nil
}

// Recover ends what a killed process left: it drops the rest of a complete list, and takes an
// incomplete one back.
func (j *Job) Recover(dir string) (*toolproto.ChangesResult, error) {
	r, err := enter(dir)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := j.enterGit(r, true); err != nil {
		return nil, err
	}
	defer j.leaveGit(r)
	var st unix.Stat_t
	forward := unix.Fstatat(r.fd, j.in.Done(), &st, unix.AT_SYMLINK_NOFOLLOW) == nil
	complete := true
	for _, u := range j.units {
		if err := r.in(u, func(dir int) (err error) {
			j.state[u], err = r.look(dir, u)
			return failed(u, "look at", err)
		}); err != nil {
			j.state[u] = foreign // its folder is another's, or gone
		}
		at := j.state[u]
		complete = complete && (at == after || at == dropped)
		// Only a complete list was dropped: what differs now was changed since.
		forward = forward || at == dropped && u.new != nil
	}
	if !complete && !forward {
		err := j.back(r, nil)
		return j.result(false), err
	}
	for _, u := range j.units {
		if j.state[u] != after && j.state[u] != dropped {
			j.left = append(j.left, toolproto.Left{Path: toolproto.Escape(u.path()), State: "unknown"})
		}
	}
	if err := j.sync(r); err != nil {
		return nil, err
	}
	if err := j.drop(r); err != nil {
		return nil, err
	}
	return j.result(true), nil
}

// back takes back what was done, and returns cause, as a *Failed if names are left that
// another writer has changed meanwhile.
func (j *Job) back(r *room, cause error) error {
	var left []toolproto.Left
	if err := errors.Join(r.remove(r.fd, j.in.Done()), unix.Fsync(r.fd)); err != nil {
		return &Failed{errors.Join(cause, failure("remove the mark of the end", err)), nil}
	}
	order := j.order()
	slices.Reverse(order)
	for _, u := range order {
		if cause != nil && !u.touched {
			continue
		}
		l := toolproto.Left{Path: toolproto.Escape(u.path()), State: "unknown"}
		err := r.in(u, func(dir int) error {
			kept, err := r.revert(dir, u)
			if kept {
				l.Kept = toolproto.Escape(strings.TrimPrefix(u.dir+"/"+u.temp, "./"))
			}
			if err == nil {
				err = unix.Fsync(dir)
			}
			return err
		})
		if err != nil {
			left = append(left, l)
		}
		if err := j.at(StepReverted, u.n); err != nil && cause == nil {
			cause = err
		}
	}
	j.left = left
	if left != nil && cause != nil {
		return &Failed{cause, left}
	}
	return cause
}

// revert takes a unit back; kept says that its former content stands beside.
func (r *room) revert(dir int, u *unit) (kept bool, err error) {
	at, err := r.look(dir, u)
	switch {
	case err != nil:
		return false, err
	case at == before && u.rights():
		return false, nil
	case at == before:
		return false, r.remove(dir, u.temp)
	case at == after && u.rights():
		return false, r.chmod(dir, u, u.old)
	case at == after && u.old == nil:
		if err := unix.Renameat2(dir, u.base, dir, u.temp, unix.RENAME_NOREPLACE); err != nil {
			return false, err
		}
		return false, r.remove(dir, u.temp)
	case (at == after || at == displaced) && u.new == nil:
		return true, unix.Renameat2(dir, u.temp, dir, u.base, unix.RENAME_NOREPLACE)
	case at == after || at == displaced:
		if err := unix.Renameat2(dir, u.temp, dir, u.base, unix.RENAME_EXCHANGE); err != nil {
			return true, err
		}
		return false, r.remove(dir, u.temp)
	case u.rights():
		return false, nil
	}
	gone, err := r.is(dir, u.temp, nil)
	switch {
	case err != nil:
		return false, err
	case gone && u.old != nil: // it never came in place
		return false, nil
	case gone: // it may have been in place when another writer changed it
		return false, errForeign
	}
	staged, err := r.is(dir, u.temp, u.new)
	if err == nil && staged {
		return false, r.remove(dir, u.temp)
	}
	return true, errors.Join(err, errForeign)
}

// errForeign marks a name that another writer changed.
var errForeign = errors.New("another writer changed it")

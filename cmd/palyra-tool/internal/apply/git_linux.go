package apply

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"palyra/internal/fault"
	"palyra/internal/git"
	"palyra/internal/toolproto"
)

// repository is the .git folder of a room.
type repository struct{ r *room }

var _ git.Folder = repository{}

// Open implements git.Folder.
func (p repository) Open(name string) (*os.File, error) {
	dir, base := path.Split(gitDir + "/" + name)
	at, err := p.r.folder(path.Clean(dir))
	if err != nil {
		return nil, err
	}
	defer unix.Close(at)
	return openFile(at, base)
}

// openFile opens a regular file for reading, through no link.
func openFile(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("it is no plain file")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// maxNames bounds a folder of the repository.
const maxNames = 1 << 20

// Names implements git.Folder.
func (p repository) Names(name string) ([]git.Name, error) {
	fd, err := p.r.folder(path.Join(gitDir, name))
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	all, err := listUpTo(fd, maxNames)
	if err != nil {
		return nil, err
	}
	var out []git.Name
	for _, n := range all {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			out = append(out, git.Name{Name: n, Folder: st.Mode&unix.S_IFMT == unix.S_IFDIR})
		}
	}
	return out, nil
}

// isIndex reports whether a file is an index with a digest.
func isIndex(dir int, name string, t *tree) (bool, error) {
	b, err := readIndex(dir, name)
	if err != nil {
		return false, err
	}
	x, err := git.ParseIndex(b)
	return err == nil && x.Digest() == t.Digest, nil
}

func readIndex(dir int, name string) ([]byte, error) {
	f, err := openFile(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, git.MaxIndex+1))
}

// enterGit takes the locks, and makes the folders of refs. With held, locks that a killed process
// of this job left are this one's.
func (j *Job) enterGit(r *room, held bool) error {
	k := j.git
	if k == nil {
		return nil
	}
	for _, dir := range k.dirs {
		if err := r.within(dir, func(at int, base string) error {
			if err := unix.Mkdirat(at, base, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			return nil
		}); err != nil {
			return failure(fmt.Sprintf("make folder %q", dir), err)
		}
	}
	mine := []byte("palyra " + j.in.ID + "\n")
	for i, name := range k.locks {
		err := r.within(name, func(at int, base string) error {
			if held {
				if f, err := openFile(at, base); err == nil {
					b, err := io.ReadAll(io.LimitReader(f, 64))
					f.Close()
					if err == nil && slices.Equal(b, mine) {
						return nil
					}
				}
			}
			// Whole under its own name, so that whoever finds it knows whose it is.
			temp := fmt.Sprintf(".palyra-was-%s-lock%d.tmp", j.in.ID, i)
			unix.Unlinkat(at, temp, 0)
			fd, err := unix.Openat(at, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
			if err != nil {
				return err
			}
			_, err = unix.Write(fd, mine)
			unix.Close(fd)
			if err == nil {
				err = unix.Renameat2(at, temp, at, base, unix.RENAME_NOREPLACE)
			}
			if err != nil {
				unix.Unlinkat(at, temp, 0)
			}
			return err
		})
		if err != nil {
			j.leaveGit(r)
			if errors.Is(err, fs.ErrExist) {
				return fault.New(fault.Busy, "locked", fmt.Sprintf("lock %q", toolproto.Escape(name)), errors.New("a git of the host's is at work, or was killed"))
			}
			return failure(fmt.Sprintf("lock %q", toolproto.Escape(name)), err)
		}
		if err := j.at(StepLocked, i); err != nil {
			j.leaveGit(r)
			return err
		}
	}
	return nil
}

// StepLocked is the step after a lock is taken.
const StepLocked = "locked"

// leaveGit removes the locks, half written objects, and folders of refs that hold nothing.
func (j *Job) leaveGit(r *room) {
	k := j.git
	if k == nil {
		return
	}
	mine := []byte("palyra " + j.in.ID + "\n")
	for i, name := range k.locks {
		_ = r.within(name, func(at int, base string) error {
			unix.Unlinkat(at, fmt.Sprintf(".palyra-was-%s-lock%d.tmp", j.in.ID, i), 0)
			f, err := openFile(at, base)
			if err != nil {
				return err
			}
			b, err := io.ReadAll(io.LimitReader(f, 64))
			f.Close()
			if err == nil && slices.Equal(b, mine) {
				return unix.Unlinkat(at, base, 0)
			}
			return err
		})
	}
	for _, name := range []string{".pack", ".idx"} {
		_ = r.within(k.temp(j, name), func(at int, base string) error { return unix.Unlinkat(at, base, 0) })
	}
	for _, dir := range slices.Backward(k.dirs) {
		_ = r.within(dir, func(at int, base string) error { return unix.Unlinkat(at, base, unix.AT_REMOVEDIR) })
	}
}

// temp is a file of objects that isn't whole; git prunes such names when they are old.
func (k *gitJob) temp(j *Job, end string) string {
	return gitDir + "/objects/pack/tmp_pack_palyra" + j.in.ID + end
}

// within does something in the folder of a name.
func (r *room) within(name string, do func(dir int, base string) error) error {
	dir, base := path.Split(name)
	at, err := r.folder(path.Clean(dir))
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return do(at, base)
}

// store puts the objects in place, flushed, pack before index, as git does.
func (j *Job) store(r *room) error {
	k := j.git
	if k == nil || k.pack == nil {
		return nil
	}
	name := git.PackName(k.pack)
	err := r.within(gitDir+"/objects/pack/.", func(at int, _ string) error { return nil })
	if errors.Is(err, fs.ErrNotExist) {
		err = r.within(gitDir+"/objects/pack", func(at int, base string) error { return unix.Mkdirat(at, base, 0o777) })
	}
	if err != nil {
		return failure("write objects", err)
	}
	for _, x := range []struct {
		end  string
		data []byte
	}{{".pack", k.pack}, {".idx", k.idx}} {
		if err := r.within(k.temp(j, x.end), func(at int, base string) error {
			fd, err := unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
			if err != nil {
				return err
			}
			f := os.NewFile(uintptr(fd), base)
			defer f.Close()
			if _, err := f.Write(x.data); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
			err = unix.Renameat2(at, base, at, name+x.end, unix.RENAME_NOREPLACE)
			if errors.Is(err, fs.ErrExist) { // the same objects came before
				err = unix.Unlinkat(at, base, 0)
			}
			return errors.Join(err, unix.Fsync(at))
		}); err != nil {
			return failure("write objects", err)
		}
		if err := j.at(StepPacked, len(x.end)); err != nil {
			return err
		}
	}
	return nil
}

// recall gives the new index what the host's git saw of files that stay as they are.
func (j *Job) recall(r *room) error {
	k := j.git
	if k == nil || k.index == nil {
		return nil
	}
	for _, u := range j.units {
		if u.git && u.new != nil && u.new.index && u.old != nil {
			return r.in(u, func(dir int) error {
				b, err := readIndex(dir, u.base)
				if err != nil {
					return failure("read the index", err)
				}
				was, err := git.ParseIndex(b)
				if err != nil {
					return changed(u.path())
				}
				k.index.Recall(was)
				u.new.content = k.index.Bytes()
				return nil
			})
		}
	}
	return nil
}

func gitFailure(op string, err error) error {
	switch {
	case fault.ReasonOf(err) != "":
		return err
	case errors.Is(err, git.ErrTooLarge):
		return fault.New(fault.Refused, "too_large", op, err)
	case errors.Is(err, git.ErrMalformed), errors.Is(err, git.ErrMissing), errors.Is(err, git.ErrUnsupported):
		return fault.New(fault.Refused, "cannot_apply", op, err)
	}
	return failure(op, err)
}

func refMoved(name string) error {
	return fault.New(fault.Busy, "changed", fmt.Sprintf("apply %q", name), errors.New("it is not where the list says that it was"))
}

// check holds the repository to what the list says of it, and the pack to what the refs need.
func (k *gitJob) check(f git.Folder) error {
	const op = "look at the repository"
	if err := git.Check(f); err != nil {
		return gitFailure(op, err)
	}
	refs, err := git.ReadRefs(f, toolproto.MaxApplied)
	if err != nil {
		return gitFailure(op, err)
	}
	host := git.NewObjects(f, &git.Budget{Left: gitBudget})
	defer host.Close()
	types := make(map[git.ID]git.Type)
	for _, p := range k.objects {
		types[p.ID] = p.Type
	}
	for _, p := range k.objects {
		for _, id := range p.Needs {
			if _, ok := types[id]; ok {
				continue
			}
			if has, err := host.Has(id); err != nil {
				return gitFailure(op, err)
			} else if !has {
				return fault.New(fault.Refused, "cannot_apply", fmt.Sprintf("apply object %s", p.ID), fmt.Errorf("it needs %s, which is nowhere", id))
			}
		}
	}
	there := func(name, hex string) error {
		id, err := git.ParseID(hex)
		if err != nil {
			return gitFailure(op, err)
		}
		t := types[id]
		if t == 0 {
			x, err := host.Read(id)
			if err != nil {
				return gitFailure(fmt.Sprintf("apply %q", name), err)
			}
			t = x.Type
		}
		if t != git.Commit && !strings.HasPrefix(name, "refs/tags/") {
			return fault.New(fault.Refused, "cannot_apply", fmt.Sprintf("apply %q", name), fmt.Errorf("%s is a %s", id, t))
		}
		return nil
	}
	for _, x := range k.list.Refs {
		name, err := toolproto.Unescape(x.Name)
		if err != nil {
			return gitFailure(op, err)
		}
		now := refs.Names[name]
		if now.ID.String() != x.Old || now.Odd != "" || now.Loose != (x.Mode != "") || x.New == "" && now.Packed != (k.list.Packed != nil && now.Packed) {
			return refMoved(x.Name)
		}
		if x.New == "" {
			continue
		}
		if err := there(name, x.New); err != nil {
			return err
		}
		if x.Old == "" {
			for other := range refs.Names {
				if strings.HasPrefix(other, name+"/") || strings.HasPrefix(name, other+"/") {
					return fault.New(fault.Busy, "exists", fmt.Sprintf("apply %q", x.Name), errors.New("a ref above or below it is there"))
				}
			}
		}
	}
	if h := k.list.Head; h != nil {
		if id, err := git.ParseID(h.New); err == nil {
			if err := there("HEAD", id.String()); err != nil {
				return err
			}
		}
	}
	if k.index == nil {
		return nil
	}
	for _, e := range k.index.Entries {
		if e.Mode == git.ModeModule || types[e.ID] == git.Blob {
			continue
		}
		if has, err := host.Has(e.ID); err != nil {
			return gitFailure(op, err)
		} else if !has {
			return fault.New(fault.Refused, "cannot_apply", "apply the index", fmt.Errorf("it needs %s, which is nowhere", e.ID))
		}
	}
	return nil
}

package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/internal/sys"
)

// The parts of a cache's folder.
const (
	infoFile = "cache.json"
	dataName = "data"
	useFile  = "use.json"
)

// unfinished begins the name of a folder that is being made or removed. One that a crash left is
// removed by the next maker, once it's older than unfinishedFor.
const (
	unfinished    = ".new-"
	unfinishedFor = time.Hour
)

// Cache is one that this process uses: it isn't removed meanwhile. Close it.
type Cache struct {
	Info
	ID   string   // the name of its folder
	Dir  *os.File // what the program fills, O_PATH
	lock *os.File // of the folder above it; flock(2)
	path string
}

// id is the name of a cache's folder: the owner's digest and the name.
func id(o Owner, name string) (string, error) {
	b, err := canon.Marshal(&o)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	id := hex.EncodeToString(sum[:16]) + "-" + name
	if o.Session != "" {
		id += ofSession(o.Session)
	}
	return id, nil
}

// ofSession ends the names of a session's caches.
func ofSession(session string) string {
	sum := sha256.Sum256([]byte(session))
	return "-" + hex.EncodeToString(sum[:8])
}

// Take opens a cache, which it makes if there is none.
func Take(state string, o Owner, name string) (*Cache, error) {
	op := fmt.Sprintf("use cache %q", name)
	if err := isolate.CheckCache(name); err != nil {
		return nil, err
	}
	folder, err := id(o, name)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	for range 3 { // another process may make or remove it meanwhile
		c, err := open(state, folder, syscall.LOCK_SH)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err = create(state, folder, Info{Version, name, o, time.Now().UTC()}); err == nil || errors.Is(err, fs.ErrExist) {
				continue
			}
			if errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0 {
				return nil, fault.New(fault.Refused, "permission_denied", op, err).
					WithHint("palyrad gives up the right to make files of other users: run it as the workspace's owner, or use caches in a workspace of root's")
			}
		case err == nil && (c.Name != name || c.Owner != o):
			c.Close()
			err = errors.New("it describes another cache")
		case errors.Is(err, syscall.EWOULDBLOCK):
			return nil, fault.New(fault.Busy, "locked", op, errors.New("it is being removed")).WithHint("try again")
		}
		if err != nil {
			return nil, fault.New(fault.BadState, "state_io", op, err).WithHint("palyra caches rm removes it")
		}
		return c, nil
	}
	return nil, fault.New(fault.Busy, "locked", op, errors.New("it is being made and removed")).WithHint("try again")
}

func open(state, folder string, how int) (_ *Cache, err error) {
	c := &Cache{ID: folder, path: filepath.Join(state, Folder, folder)}
	if c.lock, err = os.OpenFile(c.path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if err := syscall.Flock(int(c.lock.Fd()), how|syscall.LOCK_NB); err != nil {
		return nil, err
	}
	opened, err := c.lock.Stat()
	if err != nil {
		return nil, err
	}
	if now, err := os.Lstat(c.path); err != nil || !os.SameFile(now, opened) {
		return nil, errors.Join(fs.ErrNotExist, err)
	}
	if how == syscall.LOCK_EX {
		return c, nil // to remove it, damaged or not
	}
	if c.Info, err = describe(c.path); err != nil {
		return nil, err
	}
	c.Dir, err = sys.FolderBeneath(int(c.lock.Fd()), dataName)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("it has no folder for data")
	}
	return c, err
}

func describe(at string) (i Info, err error) {
	b, err := durable.ReadPrivate(filepath.Join(at, infoFile), 1<<16)
	if errors.Is(err, fs.ErrNotExist) {
		return i, errors.New("it has no " + infoFile)
	}
	if err == nil {
		err = canon.Decode(b, &i, canon.Limits{Bytes: 1 << 16})
	}
	if err == nil && i.Version != Version {
		err = fmt.Errorf("version %d, want %d", i.Version, Version)
	}
	return i, err
}

func create(state, folder string, i Info) error {
	all := filepath.Join(state, Folder)
	if err := os.Mkdir(all, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	sweep(all)
	at, err := os.MkdirTemp(all, unfinished)
	if err != nil {
		return err
	}
	made := func() error {
		data := filepath.Join(at, dataName)
		if err := os.Mkdir(data, 0o700); err != nil {
			return err
		}
		if i.Name == isolate.CacheTmp { // as programs expect it; the folder above is ours alone
			if err := os.Chmod(data, 0o777|fs.ModeSticky); err != nil {
				return err
			}
		}
		if os.Geteuid() == 0 && (i.Owner.UID != 0 || i.Owner.GID != uint32(os.Getegid())) {
			if err := os.Chown(data, int(i.Owner.UID), int(i.Owner.GID)); err != nil {
				return err
			}
		}
		b, err := canon.Marshal(&i)
		if err != nil {
			return err
		}
		if err := durable.WriteFile(filepath.Join(at, infoFile), b, 0o600); err != nil {
			return err
		}
		return os.Rename(at, filepath.Join(all, folder)) // a folder with content is never replaced
	}
	if err := made(); err != nil {
		os.RemoveAll(at)
		if errors.Is(err, syscall.ENOTEMPTY) {
			err = fs.ErrExist
		}
		return err
	}
	return nil
}

// sweep removes what a crash left half made or half removed.
func sweep(all string) {
	entries, err := os.ReadDir(all)
	if err != nil {
		return
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), unfinished) || time.Since(fi.ModTime()) < unfinishedFor {
			continue
		}
		at := filepath.Join(all, e.Name())
		if f, err := os.OpenFile(at, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0); err == nil {
			_ = sys.RemoveTree(at, f) // the next one tries again
			f.Close()
		}
	}
}

// Close gives the cache up.
func (c *Cache) Close() {
	if c.Dir != nil {
		c.note()
		c.Dir.Close()
	}
	c.lock.Close()
}

// note writes size and time down. What can't be written is measured by whoever wants to know.
func (c *Cache) note() {
	b, err := canon.Marshal(&Use{Bytes: size(c.lock), At: time.Now().UTC()})
	if err == nil {
		err = durable.Replace(filepath.Join(c.path, useFile), b, 0o600)
	}
	if err != nil {
		_ = os.Remove(filepath.Join(c.path, useFile))
	}
}

// size measures a cache by its folder. One that can't be seen whole counts as full.
func size(folder *os.File) int64 {
	n, whole := sys.TreeSize(int(folder.Fd()), dataName)
	if !whole {
		n = max(n, isolate.CacheBytes)
	}
	return n
}

// lastUse returns a cache's size and when it was given up last.
func lastUse(at string, made time.Time) (u Use) {
	b, err := durable.ReadPrivate(filepath.Join(at, useFile), 1<<16)
	if err == nil && canon.Decode(b, &u, canon.Limits{Bytes: 1 << 16}) == nil {
		return u
	}
	u = Use{At: made} // its first call goes on, or died
	if f, err := os.OpenFile(at, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0); err == nil {
		u.Bytes = size(f)
		f.Close()
	}
	return u
}

// Held returns the bytes that a principal's caches took when they were given up last.
func Held(state, principal string) (bytes int64, err error) {
	list, err := List(state)
	for _, c := range list {
		if c.Damaged == nil && c.Owner.Principal == principal {
			bytes += c.Use.Bytes
		}
	}
	return bytes, err
}

// EndSession removes the caches of a session that is over. One that a call uses stays.
func EndSession(state, session string) error {
	entries, err := os.ReadDir(filepath.Join(state, Folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.New(fault.BadState, "state_io", "list caches", err)
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ofSession(session)) {
			continue
		}
		i, err := describe(filepath.Join(state, Folder, e.Name()))
		if err == nil && i.Owner.Session == session {
			err = Remove(state, e.Name())
			if k := fault.KindOf(err); k == fault.Busy || k == fault.NotFound {
				err = nil
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Listed is a cache as List finds it.
type Listed struct {
	Info
	ID      string
	Use     Use
	Damaged error // why there is no Info; nil if there is one
}

// List returns the caches of a state directory, sorted by ID.
func List(state string) ([]Listed, error) {
	all := filepath.Join(state, Folder)
	entries, err := os.ReadDir(all)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.New(fault.BadState, "state_io", "list caches", err)
	}
	var list []Listed
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		l := Listed{ID: e.Name()}
		if l.Info, l.Damaged = describe(filepath.Join(all, e.Name())); l.Damaged == nil {
			l.Use = lastUse(filepath.Join(all, e.Name()), l.Made)
		}
		list = append(list, l)
	}
	return list, nil
}

// Remove removes a cache with all that is in it, damaged or not, unless a call uses it.
func Remove(state, folder string) error {
	op := fmt.Sprintf("remove cache %q", folder)
	if folder != filepath.Base(folder) || strings.HasPrefix(folder, ".") {
		return fault.New(fault.NotFound, "not_found", op, nil).WithHint("palyra caches ls lists them")
	}
	c, err := open(state, folder, syscall.LOCK_EX)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.NotFound, "not_found", op, nil).WithHint("palyra caches ls lists them")
	case errors.Is(err, syscall.EWOULDBLOCK):
		return fault.New(fault.Busy, "locked", op, errors.New("a call uses it")).WithHint("wait for the call's end")
	case err != nil:
		return fault.New(fault.BadState, "state_io", op, err)
	}
	defer c.Close()
	// Under a name that is no cache's first, so that a crash leaves no half of one.
	in, err := os.MkdirTemp(filepath.Dir(c.path), unfinished)
	gone := filepath.Join(in, folder)
	if err == nil {
		err = os.Rename(c.path, gone)
	}
	if err == nil {
		err = sys.RemoveTree(gone, c.lock)
	}
	if err == nil {
		err = os.Remove(in)
	}
	if err != nil {
		return fault.New(fault.BadState, "state_io", op, err)
	}
	return nil
}

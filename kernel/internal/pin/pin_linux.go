package pin

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"palyra/internal/canon"
)

// At looks up name from dir. dir is nil only with Anywhere and an absolute name.
func At(dir *Handle, name string, how How) (*Handle, error) {
	oh := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	switch how {
	case Plain:
		oh.Resolve |= unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS
	case Beneath:
		oh.Resolve |= unix.RESOLVE_BENEATH
	}
	at := unix.AT_FDCWD
	switch {
	case dir != nil:
		at = dir.held.fd()
	case how != Anywhere || !path.IsAbs(name):
		panic("pin: internal error: relative lookup without a directory")
	}
	return open(at, name, &oh)
}

// Dir opens the folder itself; that name must not be a symbolic link, though
// one above it may.
func Dir(name string) (*Handle, error) {
	return open(unix.AT_FDCWD, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_MAGICLINKS})
}

func open(at int, name string, oh *unix.OpenHow) (*Handle, error) {
	fd, err := openat2(at, name, oh)
	if err != nil {
		return nil, err
	}
	h := &Handle{held: descriptor{n: fd}}
	if h.Stat, err = statx(fd, "", unix.AT_EMPTY_PATH); err == nil {
		h.Path, err = pathOf(fd)
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

func openat2(at int, name string, oh *unix.OpenHow) (int, error) {
	for {
		fd, err := unix.Openat2(at, name, oh)
		// EAGAIN: a rename elsewhere made "..", and with it "beneath", uncertain.
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, os.NewSyscallError("openat2", err)
		}
	}
}

// pathOf says where the kernel has an open file.
func pathOf(fd int) (string, error) {
	var short [256]byte // enough for most
	if n, err := unix.Readlink(procFD(fd), short[:]); err == nil && n < len(short) {
		return string(short[:n]), nil
	}
	return os.Readlink(procFD(fd))
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// descriptor is an open one, without an *os.File until somebody wants that: to
// make one costs more than to open most files.
type descriptor struct {
	n    int // -1: closed
	file *os.File
}

func (d *descriptor) fd() int { return d.n }

// File is not safe for concurrent use.
func (d *descriptor) File(name string) *os.File {
	if d.file == nil && d.n >= 0 {
		d.file = os.NewFile(uintptr(d.n), name)
	}
	return d.file
}

// Close may be called again.
func (d *descriptor) Close() error {
	if d.n < 0 {
		return os.ErrClosed
	}
	n := d.n
	d.n = -1
	if d.file != nil {
		return d.file.Close()
	}
	return os.NewSyscallError("close", unix.Close(n))
}

// statx asks for the birth time and the mount besides what fstat tells.
const wanted = unix.STATX_BASIC_STATS | unix.STATX_BTIME | unix.STATX_MNT_ID | unix.STATX_MNT_ID_UNIQUE

func stat(f *os.File) (Stat, error) { return statx(int(f.Fd()), "", unix.AT_EMPTY_PATH) }

func statx(at int, name string, flags int) (Stat, error) {
	var st unix.Statx_t
	if err := unix.Statx(at, name, flags, wanted, &st); err != nil {
		return Stat{}, os.NewSyscallError("statx", err)
	}
	s := Stat{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino, UID: st.Uid, GID: st.Gid, Size: int64(st.Size),
		MtimeNS: nano(st.Mtime), CtimeNS: nano(st.Ctime), HasOtherName: st.Nlink > 1, Mode: fs.FileMode(st.Mode & 0o777)}
	s.Verity = st.Attributes&unix.STATX_ATTR_VERITY != 0
	if st.Mask&unix.STATX_BTIME != 0 {
		s.BirthNS = nano(st.Btime)
	}
	if st.Mask&(unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE) != 0 {
		s.Mount, s.MountForGood = st.Mnt_id, st.Mask&unix.STATX_MNT_ID_UNIQUE != 0
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		s.Mode |= fs.ModeDir
	case unix.S_IFLNK:
		s.Mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		s.Mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		s.Mode |= fs.ModeSocket
	default:
		s.Mode |= fs.ModeDevice
	}
	return s, nil
}

func nano(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// Open opens the held file for reading. It must be a regular file; the link in
// /proc names the inode, so nothing is looked up again.
func (h *Handle) Open() (*os.File, error) {
	if !h.Stat.Mode.IsRegular() {
		return nil, ErrNotRegular
	}
	fd, err := unix.Open(procFD(h.held.fd()), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	f := os.NewFile(uintptr(fd), h.Path)
	if now, err := stat(f); err != nil || !now.SameFile(h.Stat) {
		f.Close()
		return nil, errors.Join(ErrChanged, err)
	}
	return f, nil
}

// Executable reports whether the caller may execute the held file, by effective
// ids and the mount's flags.
func (h *Handle) Executable() error {
	err := unix.Faccessat2(h.held.fd(), "", unix.X_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH)
	return os.NewSyscallError("faccessat2", err)
}

// Changed returns ErrChanged if the opened file f is no longer as was says.
func Changed(f *os.File, was Stat) error {
	now, err := stat(f)
	if err != nil {
		return err
	}
	if !now.Same(was) {
		return ErrChanged
	}
	return nil
}

// System reports whether the held file is root's and no one else can change it
// or put another in its place: owned by root and not writable by group or
// others (an ACL that lets others write shows in the group's bits), and so is
// every folder from "/" to it. A sticky folder does not count: others can
// create in it.
func (h *Handle) System() bool { return h.Stat.Mode.IsRegular() && h.Settled() }

// Settled is System of a file of any type, a folder for one.
func (h *Handle) Settled() bool { return h.settledBy(0) }

// Unmapped is Settled in a user namespace that does not map the host's root: there
// root's files and those of any other user that is not mapped belong to one owner,
// who owns "/" too. It is false where root is mapped.
func (h *Handle) Unmapped() bool {
	root, err := statAt("/")
	return err == nil && root.UID != 0 && h.settledBy(root.UID)
}

func (h *Handle) settledBy(owner uint32) bool {
	const others = 0o022
	ours := func(s Stat) bool { return s.UID == owner && s.Mode.Perm()&others == 0 }
	if !ours(h.Stat) || !path.IsAbs(h.Path) {
		return false
	}
	// Each folder is looked at by its name, before what is in it: what the one
	// before holds under that name only root can change, so the names that lead
	// there still lead to what was looked at. No link is followed.
	for i := range len(h.Path) {
		if h.Path[i] != '/' {
			continue
		}
		if dir, err := statAt(h.Path[:max(i, 1)]); err != nil || !dir.Mode.IsDir() || !ours(dir) {
			return false
		}
	}
	here, err := statAt(h.Path)
	return err == nil && here.SameFile(h.Stat)
}

// statAt looks at what an absolute name leads to, itself if it is a link.
func statAt(name string) (Stat, error) {
	return statx(unix.AT_FDCWD, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
}

// KeepsTimes reports whether the file system of f moves a file's ctime with
// every change of its content: the times of its inodes come from this kernel's
// clock and writes through a shared mapping count. Not so tmpfs, which misses
// those; images (squashfs, erofs, iso9660), whose times are those of whoever
// made them; and network file systems and FUSE, which say what they please. An
// overlay is as good as what it lies over, which it does not tell.
func KeepsTimes(f *os.File) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		return true
	}
	return false
}

// KeepsContent reports whether the kernel keeps f, which is as st says, from
// ever having another content: fs-verity. Nobody can write to such a file nor
// take that away from it, and what is read is checked against a hash tree, so
// that a change of the disk itself is an error. It asks only file systems that
// do that themselves; others may say so and hand on what they please.
// (Documentation/filesystems/fsverity.rst; ext4 and f2fs since 5.4, Btrfs 5.15.)
func KeepsContent(f *os.File, st Stat) bool {
	var fs unix.Statfs_t
	if !st.Verity || unix.Fstatfs(int(f.Fd()), &fs) != nil {
		return false
	}
	switch int64(fs.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC:
		return true
	}
	return false
}

// WritersOf asks who has f open for writing, or mapped so. The kernel grants a
// read lease only where nobody has (fcntl(2)); ours is given back at once. f
// must be open for reading only.
func WritersOf(f *os.File) Writers {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	switch err {
	case nil:
		// Whoever opened it for writing meanwhile waits for this. If it fails the
		// lease goes with the descriptor.
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		return WritersNone
	case unix.EAGAIN:
		return WritersSome
	}
	return WritersUnknown // EACCES: not our file; EINVAL: no leases here
}

// buffer is as large as it helps to read f at once.
func buffer(f *os.File) []byte {
	const least, most = 4 << 10, 256 << 10
	s, err := stat(f)
	if err != nil {
		return make([]byte, least)
	}
	return make([]byte, min(max(s.Size+1, least), most))
}

// until is a Reader that ends with the error of ctx. Each read is one chunk, so
// that a done ctx ends a copy within the time of one chunk; a read that hangs in
// the file system ends when that does. Between chunks it lets other goroutines go
// first: a dozen large files must not keep an emergency stop off the processors.
type until struct {
	ctx context.Context
	r   io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	runtime.Gosched()
	return u.r.Read(p)
}

// Digest hashes an open file of at most limit bytes from its beginning, without
// moving its offset. A done ctx ends it, with the error of ctx.
func Digest(ctx context.Context, f *os.File, limit int64) (canon.Digest, int64, error) {
	hash := sha256.New()
	n, err := io.CopyBuffer(hash, until{ctx, io.LimitReader(io.NewSectionReader(f, 0, 1<<62), limit+1)}, buffer(f))
	if err == nil && n > limit {
		err = ErrTooLarge
	}
	return canon.Digest(hash.Sum(nil)), n, err
}

const allSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// Seal copies r, at most limit bytes of it, into a sealed memory file with the
// given permissions, and hashes what it wrote. Without an execute bit in perm
// the file can never be executed, where the kernel knows how (6.3). With one
// the error is EACCES where vm.memfd_noexec forbids it. A done ctx ends it, with
// the error of ctx.
//
// Holes of a sparse file become memory. The caller has reserved Memory(limit) bytes.
func Seal(ctx context.Context, name string, r io.Reader, limit int64, perm fs.FileMode) (*Sealed, error) {
	s := &Sealed{}
	hash := sha256.New()
	var err error
	s.File, err = memory(name, perm, func(w *os.File) (err error) {
		s.Size, err = pour(io.MultiWriter(w, hash), until{ctx, io.LimitReader(r, limit+1)})
		if err == nil && s.Size > limit {
			err = ErrTooLarge
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.Digest = canon.Digest(hash.Sum(nil))
	return s, nil
}

// Bytes is a sealed file with b, of which no other copy is made; only its owner may read it.
func Bytes(name string, b []byte) (*os.File, error) {
	return memory(name, 0o400, func(w *os.File) error {
		_, err := w.Write(b)
		return err
	})
}

// Copy is a sealed file of its own with the content of s. It takes a tenth of the time of
// Seal: what no one can change need not be hashed again.
func (s *Sealed) Copy(name string, perm fs.FileMode) (*Sealed, error) {
	file, err := memory(name, perm, func(w *os.File) error {
		for at := int64(0); at < s.Size; {
			n, err := unix.Sendfile(int(w.Fd()), int(s.File.Fd()), &at, int(s.Size-at))
			switch {
			case err == unix.EINTR:
			case err != nil:
				return os.NewSyscallError("sendfile", err)
			case n == 0:
				return io.ErrUnexpectedEOF
			}
		}
		return nil
	})
	runtime.KeepAlive(s)
	if err != nil {
		return nil, err
	}
	return &Sealed{File: file, Digest: s.Digest, Size: s.Size}, nil
}

// memory makes a memory file, has fill write it and seals it.
func memory(name string, perm fs.FileMode, fill func(w *os.File) error) (*os.File, error) {
	kind, seals := unix.MFD_NOEXEC_SEAL, allSeals|unix.F_SEAL_EXEC
	if perm&0o111 != 0 {
		kind, seals = unix.MFD_EXEC, allSeals
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|kind)
	if errors.Is(err, unix.EINVAL) { // a kernel before 6.3 knows neither flag
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		seals = allSeals
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	w := os.NewFile(uintptr(fd), name)
	defer w.Close()
	if err := fill(w); err != nil {
		return nil, err
	}
	if err := unix.Fchmod(fd, uint32(perm.Perm())); err != nil {
		return nil, os.NewSyscallError("fchmod", err)
	}
	if err := addSeals(fd, seals); err != nil {
		return nil, err
	}
	// A description of its own: read-only, and with an offset at the beginning.
	ro, err := unix.Open(procFD(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	return os.NewFile(uintptr(ro), name), nil
}

// pour is io.Copy with a buffer that is small for what is small: to clear a large
// one takes longer than to copy most scripts and inputs.
func pour(w io.Writer, r io.Reader) (n int64, err error) {
	const first, rest = 4 << 10, 64 << 10
	buf := make([]byte, first)
	for {
		m, err := r.Read(buf)
		if m > 0 {
			k, werr := w.Write(buf[:m])
			if n += int64(k); werr != nil {
				return n, werr
			}
		}
		switch {
		case err == io.EOF:
			return n, nil
		case err != nil:
			return n, err
		case m == first && len(buf) == first:
			buf = make([]byte, rest)
		}
	}
}

// sealTries bounds addSeals. A try that finds a page busy has itself waited for
// up to 150 ms (memfd_wait_for_pins in mm/memfd.c).
const sealTries = 20

// addSeals adds seals to a memory file that nobody maps. The kernel answers
// EBUSY while anything, reclaim and compaction included, holds a reference to
// one of its pages: that passes.
func addSeals(fd, seals int) error {
	var err error
	for range sealTries {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	return os.NewSyscallError("fcntl F_ADD_SEALS", err)
}

// Verify returns an error unless f is a memory file with every seal that Seal
// sets and the content that s names.
func (s *Sealed) Verify() error {
	got, err := unix.FcntlInt(s.File.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return os.NewSyscallError("fcntl F_GET_SEALS", err)
	}
	if got&allSeals != allSeals {
		return fmt.Errorf("seals %#x, want %#x", got, allSeals)
	}
	d, n, err := Digest(context.Background(), s.File, s.Size)
	if err != nil {
		return err
	}
	if d != s.Digest || n != s.Size {
		return ErrChanged
	}
	return nil
}

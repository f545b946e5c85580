package seccomp

import (
	"testing"

	"palyra/isolate/tier"
)

// verdict is what the filter of some options says of a call.
func verdict(t *testing.T, m *machine, call string, args [6]uint64) (Action, bool) {
	t.Helper()
	nr, ok := m.arch.Number(call)
	if !ok {
		return 0, false
	}
	return m.check(t, Data{Arch: m.arch.Audit(), Nr: nr, Args: args}), true
}

// TestReadOnly: with a workspace that is shown to be read there is no call, with
// whatever arguments, that changes what an inode says of its file. Elsewhere it is
// as it was.
func TestReadOnly(t *testing.T) {
	changes := []string{"chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes",
		"futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr",
		"fremovexattr", "removexattrat", "file_setattr"}
	byDescriptor := map[string]bool{"fchmod": true, "fchown": true, "fsetxattr": true, "fremovexattr": true, "utimensat": true}
	for _, a := range arches {
		locked := newMachine(t, Cell(Options{Tier: tier.B, ReadOnly: true, ExecCookie: 7}), a)
		writable := newMachine(t, Cell(Options{Tier: tier.B, ExecCookie: 7}), a)
		for _, call := range changes {
			for _, arg := range []uint64{0, 1, 0o644, 0o4755, 1 << 32, 1 << 63, 0xffffffff, ^uint64(0)} {
				for _, path := range []uint64{0, 1, arg} { // utimensat's is its second argument, fchmod's mode, too
					args := [6]uint64{3, path, arg, arg, arg, arg}
					got, ok := verdict(t, locked, call, args)
					if ok && got == Allow {
						t.Fatalf("%s %s%x: %s", a, call, args, got)
					}
				}
			}
			args := [6]uint64{0: 3} // fchmod(3, 0), utimensat(3, NULL, NULL, 0), ...
			want, open := Errno(EROFS), Allow
			if !byDescriptor[call] {
				want, open = Errno(EPERM), Errno(EPERM)
			}
			switch call {
			case "file_setattr":
				want, open = Errno(ENOSYS), Errno(ENOSYS)
			case "fsetxattr":
				open = Errno(ENOTSUP)
			}
			if got, ok := verdict(t, locked, call, args); ok && got != want {
				t.Errorf("%s %s, read-only: %s, want %s", a, call, got, want)
			}
			if got, ok := verdict(t, writable, call, args); ok && got != open {
				t.Errorf("%s %s: %s, want %s", a, call, got, open)
			}
		}
	}
}

// TestHost states by name what a cell without namespaces may not do to the host
// that it shares, and what one with them may.
func TestHost(t *testing.T) {
	const high = 0xdeadbeef << 32
	for _, tt := range []struct {
		call string
		args [6]uint64
		b, c Action
	}{
		// The fourth access mode: landlock asks for no right.
		{"open", [6]uint64{1: 3}, Errno(EACCES), Allow},
		{"openat", [6]uint64{2: 3}, Errno(EACCES), Allow},
		{"openat", [6]uint64{2: high | 0o2000003}, Errno(EACCES), Allow},
		{"openat", [6]uint64{2: 0o103, 3: 0o644}, Errno(EACCES), Allow},
		{"openat", [6]uint64{2: 0o103, 3: 0o4755}, Errno(EPERM), Errno(EPERM)},
		{"openat", [6]uint64{2: 0}, Allow, Allow},
		{"openat", [6]uint64{2: 1}, Allow, Allow},
		{"openat", [6]uint64{2: 2 | 0o102, 3: 0o666}, Allow, Allow},
		// Other processes of the user.
		{"sched_setaffinity", [6]uint64{0, 8, 1}, Allow, Allow},
		{"sched_setaffinity", [6]uint64{high}, Allow, Allow}, // the kernel takes an int
		{"sched_setaffinity", [6]uint64{high | 1}, Errno(EPERM), Allow},
		{"sched_setaffinity", [6]uint64{4711}, Errno(EPERM), Allow},
		{"sched_setscheduler", [6]uint64{0, 5}, Allow, Allow}, // SCHED_IDLE
		{"sched_setscheduler", [6]uint64{4711, 5}, Errno(EPERM), Allow},
		{"sched_setscheduler", [6]uint64{high | 1, 0}, Errno(EPERM), Allow},
		{"sched_setscheduler", [6]uint64{0, 1}, Errno(EPERM), Errno(EPERM)}, // SCHED_FIFO
		{"sched_setattr", [6]uint64{}, Errno(EPERM), Errno(EPERM)},
		{"sched_setparam", [6]uint64{4711}, Errno(EPERM), Allow},
		{"sched_getaffinity", [6]uint64{4711}, Allow, Allow},
		// What paths tell.
		{"inotify_init", [6]uint64{}, Errno(ENOSYS), Allow},
		{"inotify_init1", [6]uint64{0o2004000}, Errno(ENOSYS), Allow},
		{"inotify_add_watch", [6]uint64{3, 1, 0xfff}, Errno(ENOSYS), Allow},
		{"inotify_rm_watch", [6]uint64{3, 1}, Errno(ENOSYS), Allow},
		{"fanotify_init", [6]uint64{}, Errno(EPERM), Errno(EPERM)},
		{"fanotify_mark", [6]uint64{}, Errno(EPERM), Errno(EPERM)},
		{"getxattr", [6]uint64{}, Errno(ENOTSUP), Allow},
		{"lgetxattr", [6]uint64{}, Errno(ENOTSUP), Allow},
		{"getxattrat", [6]uint64{}, Errno(ENOTSUP), Allow},
		{"listxattr", [6]uint64{}, Errno(ENOTSUP), Allow},
		{"llistxattr", [6]uint64{}, Errno(ENOTSUP), Allow},
		{"listxattrat", [6]uint64{}, Errno(ENOTSUP), Allow},
		{"fgetxattr", [6]uint64{}, Allow, Allow},
		{"flistxattr", [6]uint64{}, Allow, Allow},
	} {
		for _, a := range arches {
			for _, x := range []struct {
				o    Options
				want Action
			}{{Options{Tier: tier.B}, tt.b}, {Options{Tier: tier.B, ReadOnly: true}, tt.b}, {Options{Tier: tier.C}, tt.c}} {
				if got, ok := verdict(t, newMachine(t, Cell(x.o), a), tt.call, tt.args); ok && got != x.want {
					t.Errorf("%s %+v %s%x: got %s, want %s", a, x.o, tt.call, tt.args, got, x.want)
				}
			}
		}
	}
}

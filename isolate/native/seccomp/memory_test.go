package seccomp

import (
	"testing"

	"palyra/isolate/tier"
)

// TestMemory: what holds memory that samples of processes do not see is refused
// where nothing else counts it, and only there.
func TestMemory(t *testing.T) {
	group := Options{Tier: tier.C, ExecCookie: 7, AllowUncounted: true, AllowShared: true, AllowIPC: true}
	root := Options{Tier: tier.C, ExecCookie: 7, AllowShared: true, AllowIPC: true}
	user := Options{Tier: tier.C, ExecCookie: 7}
	const high = 0xdeadbeef << 32
	for _, tt := range []struct {
		call              string
		args              [6]uint64
		group, root, user Action
	}{
		{"mmap", [6]uint64{3: 0x22}, Allow, Allow, Allow},                 // private, anonymous
		{"mmap", [6]uint64{3: 0x4022}, Allow, Allow, Allow},               // and not reserved
		{"mmap", [6]uint64{3: 0x01}, Allow, Allow, Allow},                 // of a file
		{"mmap", [6]uint64{3: 0x02}, Allow, Allow, Allow},                 // a copy of a file
		{"mmap", [6]uint64{3: 0x28}, Allow, Allow, Allow},                 // droppable: private
		{"mmap", [6]uint64{3: 0x21}, Allow, Allow, Errno(EPERM)},          // shared, anonymous
		{"mmap", [6]uint64{3: 0x8021 | high}, Allow, Allow, Errno(EPERM)}, // with MAP_POPULATE
		{"mmap", [6]uint64{3: 0x23}, Allow, Allow, Errno(EPERM)},          // MAP_SHARED_VALIDATE
		{"mmap", [6]uint64{3: 0x40022}, Errno(ENOMEM), Errno(ENOMEM), Errno(ENOMEM)},
		{"mmap", [6]uint64{3: 0x122 | high}, Allow, Errno(ENOMEM), Errno(ENOMEM)}, // MAP_GROWSDOWN
		{"close_range", [6]uint64{3, 1<<32 - 1}, Allow, Allow, Allow},
		{"close_range", [6]uint64{3, 1<<32 - 1, 4}, Allow, Allow, Allow},                        // CLOSE_RANGE_CLOEXEC
		{"close_range", [6]uint64{3, 3, 2 | high}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)}, // CLOSE_RANGE_UNSHARE
		{"close_range", [6]uint64{3, 3, 6, 0, 0, 8}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)},
		{"close_range", [6]uint64{3, 3, 2, 0, 0, 7}, Allow, Allow, Allow}, // a step of a waiting cell
		{"setsockopt", [6]uint64{3, 1, 7}, Allow, Errno(0), Errno(0)},     // SO_SNDBUF
		{"setsockopt", [6]uint64{3, 1, 8}, Allow, Allow, Allow},           // SO_RCVBUF
		{"madvise", [6]uint64{2: 4}, Allow, Allow, Allow},                 // MADV_DONTNEED
		{"madvise", [6]uint64{2: 13}, Allow, Allow, Allow},
		{"madvise", [6]uint64{2: 12}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)}, // MADV_MERGEABLE
		{"madvise", [6]uint64{2: 12 | high}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)},
		{"memfd_create", [6]uint64{1: 8}, Allow, Errno(ENOSYS), Errno(ENOSYS)},
		{"memfd_create", [6]uint64{1: 8 | 1 | 2}, Allow, Errno(ENOSYS), Errno(ENOSYS)},
		{"memfd_create", [6]uint64{1: 8 | 4}, Errno(ENOSYS), Errno(ENOSYS), Errno(ENOSYS)},
		{"memfd_create", [6]uint64{}, Errno(ENOSYS), Errno(ENOSYS), Errno(ENOSYS)},
		{"fcntl", [6]uint64{1: 3}, Allow, Allow, Allow},
		{"fcntl", [6]uint64{1: 1031}, Allow, Errno(EPERM), Errno(EPERM)},
		{"fcntl", [6]uint64{1: 6}, Allow, Allow, Allow},                                   // F_SETLK
		{"fcntl", [6]uint64{1: 36}, Allow, Allow, Allow},                                  // F_OFD_GETLK
		{"fcntl", [6]uint64{1: 37 | high}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)},   // F_OFD_SETLK
		{"fcntl", [6]uint64{1: 38}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)},          // F_OFD_SETLKW
		{"fcntl", [6]uint64{1: 1024 | high}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)}, // F_SETLEASE
		{"fcntl", [6]uint64{1: 1026}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)},        // F_NOTIFY
		{"fcntl", [6]uint64{1: 1035}, Allow, Allow, Allow},                                // F_GET_RW_HINT
		{"fcntl", [6]uint64{1: 1036 | high}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)}, // F_SET_RW_HINT
		{"fcntl", [6]uint64{1: 1038}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)},        // F_SET_FILE_RW_HINT
		{"fcntl", [6]uint64{1: 1040}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)},        // F_SETDELEG
		{"sendfile", [6]uint64{}, Allow, Errno(EINVAL), Errno(EINVAL)},
		{"landlock_create_ruleset", [6]uint64{}, Allow, Errno(ENOSYS), Errno(ENOSYS)},
		{"landlock_restrict_self", [6]uint64{}, Allow, Allow, Allow}, // the tape's own last one
		{"clone", [6]uint64{0x01200011}, Allow, Allow, Allow},        // fork
		{"clone", [6]uint64{0x003d0f00}, Allow, Allow, Allow},        // pthread_create
		{"clone", [6]uint64{0x4111}, Allow, Allow, Allow},            // vfork
		{"clone", [6]uint64{0x003d0b00}, Errno(EPERM), Errno(EPERM), Errno(EPERM)},
		{"mbind", [6]uint64{2: 1}, Errno(ENOSYS), Errno(ENOSYS), Errno(ENOSYS)},
		{"get_mempolicy", [6]uint64{}, Errno(ENOSYS), Errno(ENOSYS), Errno(ENOSYS)},
		{"shmget", [6]uint64{}, Allow, Allow, Errno(ENOSYS)},
		{"semget", [6]uint64{}, Allow, Allow, Errno(ENOSYS)},
		{"msgget", [6]uint64{}, Allow, Allow, Errno(ENOSYS)},
		{"prctl", [6]uint64{67, 1}, Errno(EPERM), Errno(EPERM), Errno(EPERM)},                     // PR_SET_MEMORY_MERGE
		{"prctl", [6]uint64{0x53564d41, 0, 0, 0, 0}, Errno(EINVAL), Errno(EINVAL), Errno(EINVAL)}, // PR_SET_VMA
		{"prctl", [6]uint64{78, 1, 1 << 24}, Errno(EPERM), Errno(EPERM), Errno(EPERM)},            // PR_FUTEX_HASH_SET_SLOTS
	} {
		for _, a := range arches {
			for _, x := range []struct {
				o    Options
				want Action
			}{{group, tt.group}, {root, tt.root}, {user, tt.user}} {
				if got, ok := verdict(t, newMachine(t, Cell(x.o), a), tt.call, tt.args); !ok || got != x.want {
					t.Errorf("%s %+v %s%x: got %s (%t), want %s", a, x.o, tt.call, tt.args, got, ok, x.want)
				}
			}
		}
	}
}

package seccomp

import (
	"testing"

	"palyra/isolate/tier"
)

// TestNoSocket holds the filter of the void network to its word: there is no
// system call, with whatever arguments, by which a program gets a socket that it
// was not given, or makes one that it was given reach further.
func TestNoSocket(t *testing.T) {
	p := Cell(Options{Tier: tier.C, ExecCookie: 7, NoPair: true})
	for _, a := range arches {
		m := newMachine(t, p, a)
		for _, call := range []string{"socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "io_uring_setup", "pidfd_getfd"} {
			nr, ok := a.Number(call)
			if !ok {
				continue // arm64 has them all; amd64 has no socketcall(2)
			}
			for family := range uint64(64) {
				for kind := range uint64(16) {
					d := Data{Arch: a.Audit(), Nr: nr, Args: [6]uint64{family, kind | 0o2000000}}
					if got := m.check(t, d); got == Allow {
						t.Fatalf("%s %s(%d, %d): %s", a, call, family, kind, got)
					}
				}
			}
		}
	}
}

// TestOptions: with sockets of the Internet's families a program sets the options that programs
// use, and no other, whatever the level.
func TestOptions(t *testing.T) {
	sampled := Options{Tier: tier.C, ExecCookie: 7, AllowInet: true}
	grouped := sampled
	grouped.AllowUncounted = true
	const high = 0xdeadbeef << 32
	for _, tt := range []struct {
		call             string
		level, option    uint64
		grouped, sampled Action
	}{
		{"setsockopt", 1, 2, Allow, Allow},                                   // SO_REUSEADDR
		{"setsockopt", 1, 15, Allow, Allow},                                  // SO_REUSEPORT
		{"setsockopt", 6, 1, Allow, Allow},                                   // TCP_NODELAY
		{"setsockopt", 0, 10, Allow, Allow},                                  // IP_MTU_DISCOVER
		{"setsockopt", 41, 26, Allow, Allow},                                 // IPV6_V6ONLY
		{"setsockopt", 1, 7, Allow, Errno(0)},                                // SO_SNDBUF
		{"setsockopt", 1 | high, 8 | high, Allow, Errno(0)},                  // SO_RCVBUF
		{"setsockopt", 1, 32, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // SO_SNDBUFFORCE
		{"setsockopt", 1, 33, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // SO_RCVBUFFORCE
		{"setsockopt", 1, 25, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // SO_BINDTODEVICE
		{"setsockopt", 1, 60, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // SO_ZEROCOPY
		{"setsockopt", 1, 26 | high, Errno(EPERM), Errno(EPERM)},             // SO_ATTACH_FILTER
		{"setsockopt", 1, 50, Errno(EPERM), Errno(EPERM)},                    // SO_ATTACH_BPF
		{"setsockopt", 1, 51, Errno(EPERM), Errno(EPERM)},                    // SO_ATTACH_REUSEPORT_CBPF
		{"setsockopt", 6 | high, 31, Errno(EPERM), Errno(EPERM)},             // TCP_ULP
		{"setsockopt", 6, 13, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // TCP_CONGESTION
		{"setsockopt", 6, 14, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // TCP_MD5SIG
		{"setsockopt", 6, 19, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // TCP_REPAIR
		{"setsockopt", 6, 38, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // TCP_AO_ADD_KEY
		{"setsockopt", 0, 4, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},         // IP_OPTIONS
		{"setsockopt", 0, 35, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // IP_ADD_MEMBERSHIP
		{"setsockopt", 0, 64, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // IPT_SO_SET_REPLACE
		{"setsockopt", 41, 1, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},        // IPV6_ADDRFORM
		{"setsockopt", 17, 100, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},      // UDP_ENCAP
		{"setsockopt", 284, 1, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)},       // SOL_MPTCP
		{"getsockopt", 1, 4, Allow, Allow},                                   // SO_ERROR
		{"getsockopt", 6, 11, Allow, Allow},                                  // TCP_INFO
		{"getsockopt", 6 | high, 35, Errno(ENOPROTOOPT), Errno(ENOPROTOOPT)}, // TCP_ZEROCOPY_RECEIVE
	} {
		for _, a := range arches {
			for _, x := range []struct {
				o    Options
				want Action
			}{{grouped, tt.grouped}, {sampled, tt.sampled}} {
				if got, ok := verdict(t, newMachine(t, Cell(x.o), a), tt.call, [6]uint64{3, tt.level, tt.option}); !ok || got != x.want {
					t.Errorf("%s %s(level %d, option %d), sampled %t: got %s (%t), want %s", a, tt.call, tt.level, tt.option, !x.o.AllowUncounted, got, ok, x.want)
				}
			}
		}
	}
}

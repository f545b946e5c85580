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

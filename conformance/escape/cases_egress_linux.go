package main

import (
	"fmt"
	"os"
	"syscall"
)

// egressCases are 120: a call's network is palyra-cell's to make, so that no program adds a way
// out. In a cell with egress a route or an address more would be one to what palyra-egress has not
// looked at, or to a palyra-egress of its own.
func egressCases() []attackCase {
	var out []attackCase
	// ENOTTY: the filter's answer to ioctls that it doesn't list.
	stopped := join(noFamily, []string{"ENOTTY"})
	host := "host=" + hostNetwork()
	for _, c := range []struct{ how, attack string }{
		{"address", "give the loopback interface another address"},
		{"down", "set the loopback interface down"},
		{"route", "add a route"},
		{"variable", "set a variable of the network"},
	} {
		words := stopped
		if c.how == "variable" {
			words = unowned
		}
		out = append(out, call(120, c.how, "network-change", c.attack+", as root of namespaces of its own if possible", both(words...), "network", "how="+c.how, host))
	}
	return out
}

// hostNetwork is the inode of this network namespace, which the attack leaves as it is: as root its
// control could change it.
func hostNetwork() string {
	if info, err := os.Stat("/proc/self/ns/net"); err == nil {
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			return fmt.Sprint(s.Ino)
		}
	}
	return "0"
}

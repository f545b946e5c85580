// What palyra-cell does waits for the kernel: asking the cgroup how many processors
// to use would only delay the first call.

//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command palyra-cell is the only process of Palyra that forks. It is started by
// palyra or palyrad with a socket on descriptor 3, holds no key but the one that
// grants are checked with, and has no network.
//
// palyrad, which confines itself and then cannot start anything, has a
// "palyra-cell starter" beside it: that one starts this binary again, on
// request, and does nothing else.
//
// It is not meant to be started by hand: without the socket it says so and
// exits with status 2.
package main

import (
	"fmt"
	"os"

	"palyra/isolate/cell"
	"palyra/isolate/certify"
	"palyra/isolate/probe"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "probe-child" {
		os.Exit(probe.Main(os.Args[1:]))
	}
	if len(os.Args) > 2 && os.Args[1] == certify.Word {
		os.Exit(certify.Main(os.Args[1:]))
	}
	serve := cell.Main
	if len(os.Args) == 2 && os.Args[1] == "starter" {
		serve = cell.ServeStarter
	}
	if err := serve(3); err != nil {
		fmt.Fprintln(os.Stderr, "palyra-cell:", err)
		os.Exit(2)
	}
}

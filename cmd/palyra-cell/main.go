// palyra-cell mostly waits for the kernel: asking the cgroup how many processors to use
// would only delay the first call.

//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command palyra-cell is the only process of Palyra that forks. palyra or palyrad starts it
// with a socket on descriptor 3. It holds no key but the one that checks grants, and has no
// network.
//
// palyrad confines itself and then can't start anything, so it has a "palyra-cell starter"
// beside it, which starts this binary again, on request, and does nothing else.
//
// It is not meant to be started by hand: without the socket it says so and
// exits with status 2.
package main

import (
	"fmt"
	"os"

	"palyra/isolate/cell/serve"
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
	run := serve.Cell
	if len(os.Args) == 2 && os.Args[1] == "starter" {
		run = serve.Starter
	}
	if err := run(3); err != nil {
		fmt.Fprintln(os.Stderr, "palyra-cell:", err)
		os.Exit(2)
	}
}

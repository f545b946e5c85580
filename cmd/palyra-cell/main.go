// Command palyra-cell is the only process of Palyra that forks. It is started by
// palyra or palyrad with a socket on descriptor 3, holds no key but the one that
// grants are checked with, and has no network.
//
// It is not meant to be started by hand: without the socket it says so and
// exits with status 2.
package main

import (
	"fmt"
	"os"

	"palyra/isolate/cell"
	"palyra/isolate/probe"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "probe-child" {
		os.Exit(probe.Main(os.Args[1:]))
	}
	if err := cell.Main(3); err != nil {
		fmt.Fprintln(os.Stderr, "palyra-cell:", err)
		os.Exit(2)
	}
}

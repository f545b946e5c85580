// Command palyra-fetch runs http.fetch, the built-in tool that reaches hosts, inside a cell whose
// network leads to the hosts of its call alone. The kernel starts it, by the descriptor that it has
// hashed; see palyra/internal/toolproto for what it reads and writes, and docs/formats/tools.md for
// the tool.
//
// Started by hand it reaches what any other program does.
package main

import (
	"os"

	"palyra/cmd/palyra-fetch/internal/fetch"
)

func main() { os.Exit(int(fetch.Main(os.Args[1:], os.Stdin, os.Stdout))) }

// Command palyra-fetch is the program of ours that reaches hosts, inside a cell whose network leads
// to those of its call alone. It runs http.fetch, the built-in tool (see palyra/internal/toolproto
// for what it reads and writes, and docs/formats/tools.md), and is the program of an MCP server
// that is reached over HTTP (docs/formats/servers.md). The kernel starts it, by the descriptor that
// it has hashed.
//
// Started by hand it reaches what any other program does.
package main

import (
	"os"

	"palyra/cmd/palyra-fetch/internal/fetch"
	"palyra/cmd/palyra-fetch/internal/remote"
)

func main() {
	if args := os.Args[1:]; len(args) > 0 && args[0] == remote.Name {
		os.Exit(remote.Main(args, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(int(fetch.Main(os.Args[1:], os.Stdin, os.Stdout)))
}

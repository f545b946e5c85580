// Command palyra-fetch is the program of ours that reaches hosts, inside a cell whose network leads
// to those of its call alone. It runs http.fetch, the built-in tool (see palyra/internal/toolproto
// for what it reads and writes, and docs/formats/tools.md), and is the program of an MCP server
// that is reached over HTTP (docs/formats/servers.md) and of model.turn, which asks a language
// model (docs/formats/turn.md). The kernel starts it, by the descriptor that it has hashed.
//
// Started by hand it reaches what any other program does.
package main

import (
	"os"

	"palyra/agentloop/turn"
	"palyra/cmd/palyra-fetch/internal/fetch"
	"palyra/cmd/palyra-fetch/internal/model"
	"palyra/cmd/palyra-fetch/internal/remote"
)

func main() {
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	switch name {
	case remote.Name:
		os.Exit(remote.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	case turn.Tool:
		os.Exit(model.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(int(fetch.Main(os.Args[1:], os.Stdin, os.Stdout)))
}

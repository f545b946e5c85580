// Command palyra-tool runs one built-in tool, inside a cell. The kernel starts
// it, by the descriptor that it has hashed, with the workspace as its directory;
// see palyra/internal/toolproto for what it reads and writes, and
// docs/formats/tools.md for each tool.
//
// Started by hand it does the same to the current directory, and is no more
// confined than any other program.
package main

import (
	"os"

	"palyra/cmd/palyra-tool/internal/builtin"
)

func main() {
	e := &builtin.Env{Dir: ".", Stdin: os.Stdin, Stdout: os.Stdout}
	os.Exit(int(e.Main(os.Args[1:])))
}

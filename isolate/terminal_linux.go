package isolate

import (
	"os"

	"palyra/isolate/internal/sys"
)

// TerminalLine returns a connection on which a Runner hands a call's terminal over: theirs is
// Files.Terminal, and the caller closes it when Run has returned.
func TerminalLine() (ours, theirs *os.File, err error) { return sys.Pair("terminal") }

// TakeTerminal waits for the terminal's master on ours, which it doesn't close. io.EOF says that
// the Runner has none to give: the call was refused. The file has deadlines, and reading it is EIO
// when no process has the program's side.
func TakeTerminal(ours *os.File) (*os.File, error) { return sys.ReceiveFile(ours, "terminal") }

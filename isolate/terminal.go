package isolate

import (
	"fmt"

	"palyra/call"
	"palyra/isolate/tier"
)

// MaxTerminals bounds the terminals in a cell that has one, its own included.
const MaxTerminals = 8

// maxScreen bounds the rows and columns of a terminal.
const maxScreen = 4096

// maxTerm bounds the name of a kind of terminal, in bytes.
const maxTerm = 64

// CheckTTY refuses a terminal that a tier doesn't have, or that isn't one. nil is no terminal.
func CheckTTY(t tier.Tier, tty *call.TTY) error {
	switch {
	case tty == nil:
		return nil
	case t != tier.C:
		return fmt.Errorf("tier %s has no terminal of its own to give", t)
	case tty.Rows < 1 || tty.Rows > maxScreen || tty.Columns < 1 || tty.Columns > maxScreen:
		return fmt.Errorf("a terminal of %d rows and %d columns: want 1 to %d", tty.Rows, tty.Columns, maxScreen)
	case len(tty.Term) == 0 || len(tty.Term) > maxTerm:
		return fmt.Errorf("a kind of terminal is named in 1 to %d bytes", maxTerm)
	}
	for i, c := range []byte(tty.Term) {
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !plain && (i == 0 || c != '-' && c != '+' && c != '.' && c != '_') { // programs look for a file of that name
			return fmt.Errorf("%q names no kind of terminal", tty.Term)
		}
	}
	return nil
}

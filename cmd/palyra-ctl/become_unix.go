//go:build unix

package main

import (
	"os"
	"syscall"
)

// become makes this process another program, which is given an operand.
func become(program, operand string) error {
	return syscall.Exec(program, []string{program, operand}, os.Environ())
}

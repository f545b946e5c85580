//go:build !linux

package pty

import (
	"os"
	"syscall"

	"palyra/internal/fault"
)

func open() (master, slave *os.File, err error) {
	return nil, nil, fault.New(fault.Unsupported, "pty_unsupported", "open pseudo-terminal", nil)
}

func attr(int) *syscall.SysProcAttr { return nil }

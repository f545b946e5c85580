//go:build !linux

package pty

import (
	"errors"
	"os"
	"syscall"

	"palyra/internal/fault"
)

func open() (master, slave *os.File, err error) {
	return nil, nil, fault.New(fault.Unsupported, "platform_unsupported", "open pseudo-terminal", errors.New("only Linux"))
}

func attr(int) *syscall.SysProcAttr { return nil }

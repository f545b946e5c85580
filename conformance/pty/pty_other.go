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

func resize(*os.File, int, int) error { return errors.ErrUnsupported }

func modes(*os.File) (string, error) { return "", errors.ErrUnsupported }

func attr(int) *syscall.SysProcAttr { return nil }

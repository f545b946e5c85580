package main

import (
	"os/exec"
	"syscall"
)

// endWithUs has the kernel end a child as its parent's thread ends, also if that is killed:
// PR_SET_PDEATHSIG(2const).
func endWithUs(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }

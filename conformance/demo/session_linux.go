package main

import (
	"os"
	"syscall"
)

func session() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// killSession kills the processes that a program of session started and that made no group of their
// own.
func killSession(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }

// agent is the second principal of the demo: an unused user id.
const agent = 42420

// secondUser says whether the demo can be two users.
func secondUser() bool { return os.Geteuid() == 0 }

// asAgent is session for the second principal.
func asAgent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: agent, Gid: agent}}
}

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// asRoot makes a command root of a user namespace if this user is not root.
func asRoot(cmd *exec.Cmd) {
	if uid := os.Geteuid(); uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}}
	}
}

// dieWithUs kills a command when the thread that starts it ends.
func dieWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// yield leaves processors to whoever else wants them: to the machine that is
// played, which has deadlines. It is this thread's, and what it starts inherits it.
func yield() { _ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19) }

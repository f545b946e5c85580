// Package spawn starts palyra-cell: for isolate/cell's client, and for palyra-cell's own role
// of a starter (isolate/cell/serve), which serves a palyrad that may start nothing.
//
//	child, gone, err := spawn.Start("/usr/libexec/palyra-cell", tier.C, socket)
//
// A child, and all that it runs, dies with the thread that started it.
//
// It doesn't protect against a user who can write the binary: it decides the confinement.
package spawn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
	"palyra/isolate/native/cgroup"
	"palyra/isolate/tier"
)

// Start starts the palyra-cell at path, to serve theirs at a tier. It starts it from a thread
// that lives as long as the child, because the parent-death signal is tied to the thread, not
// to the process. The channel is closed when the child has been reaped.
func Start(path string, t tier.Tier, theirs *os.File) (*Child, <-chan struct{}, error) {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	root := sys.HasSysAdmin()
	if t == tier.C || root {
		// A PID namespace of its own: however palyra-cell dies, the kernel kills all that it
		// ran. At tier B that takes root, since the host may give no user namespaces.
		a.Cloneflags = knob.Outer(syscall.CLONE_NEWNS | syscall.CLONE_NEWPID)
		if !root {
			a.Cloneflags |= syscall.CLONE_NEWUSER
			a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
			a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		}
	}
	if a.Cloneflags == 0 {
		// The next best: orphans of a palyra-cell that died become our children.
		if err := sys.SetSubreaper(); err != nil {
			return nil, nil, fault.New(fault.Refused, "cell_start", "start palyra-cell", err)
		}
	}
	nest := newNest()
	if nest != nil {
		a.UseCgroupFD, a.CgroupFD = true, int(nest.Dir().Fd())
	}
	var c *Child
	started, gone := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, after the process
		remove := func() {
			if nest != nil {
				nest.Remove() // an empty group may remain
			}
		}
		var err error
		if c, err = startChild(path, theirs, a); err != nil {
			remove() // before the caller learns of it, and may end
			started <- err
			return
		}
		started <- nil
		c.wait()
		if a.Cloneflags == 0 {
			killStrays()
		}
		remove()
		close(gone)
	}()
	if err := <-started; err != nil {
		return nil, nil, StartError(path, err, a.Cloneflags&syscall.CLONE_NEWUSER != 0)
	}
	return c, gone, nil
}

// newNest makes a place in the cgroup tree for palyra-cell, or returns nil if it can't:
// palyra-cell finds out why, and its evidence says so.
func newNest() *cgroup.Nest {
	tree, err := cgroup.Find("/proc")
	if err != nil || tree.Prepare() != nil {
		return nil
	}
	nest, err := tree.Nest()
	if err != nil {
		return nil
	}
	return nest
}

// StartError names the control that is missing if palyra-cell can't be started. userns says
// that it was to get a user namespace of its own.
func StartError(path string, err error, userns bool) error {
	op := fmt.Sprintf("start palyra-cell %q", path)
	_, statErr := os.Stat(path)
	switch {
	case errors.Is(statErr, fs.ErrNotExist):
		return fault.New(fault.Refused, "helper_unusable", op, err).WithHint("install palyra-cell beside palyra")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EPERM) && !sys.HasSysAdmin():
		return UsernsFault(op, err)
	case errors.Is(err, syscall.EACCES) && userns && syscall.Access(path, accessExecute) == nil:
		return UsernsFault(op, err) // by AppArmor (userns_create): the program itself may be executed
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return fault.New(fault.Unavailable, "cell_start", op, err)
	}
	return fault.New(fault.Refused, "cell_start", op, err)
}

// accessExecute is X_OK of access(2).
const accessExecute = 1

// UsernsFault is the error on a host that gives no user namespaces, with a hint.
func UsernsFault(op string, err error) *fault.Error {
	hint := "this host forbids unprivileged user namespaces (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): allow them, or run as root"
	if errors.Is(err, syscall.ENOSPC) {
		hint = "raise user.max_user_namespaces (and max_mnt_namespaces, max_pid_namespaces) with sysctl; tier b needs none"
	}
	return fault.New(fault.Refused, "userns_unavailable", op, fmt.Errorf("this host gives no user namespace: %w", err)).WithHint(hint)
}

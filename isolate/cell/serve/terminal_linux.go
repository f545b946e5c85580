package serve

import (
	"errors"
	"fmt"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/native/landlock"
)

// A call with a terminal has a devpts of its own, in which the first terminal is the program's.
// palyra-cell closes the slave when the cell is cloned. It hands the other side, the master, to
// palyra when the gate is open, and closes it, too: keys that are typed earlier would find no
// session, or end a process that isn't the program yet. From then on only palyra holds the master,
// and only the cell's processes the slave. So the end of the cell ends the output, and the end of
// palyra hangs the terminal up.

// Where a cell with a terminal has it.
const (
	ptsDir  = "/dev/pts"
	ttyFile = "/dev/tty"
)

// ttyMajor and minor 0 are the device that is each process's own controlling terminal (tty(4)).
const ttyMajor = 5

// terminalSize bounds what the kernel holds of a terminal and charges to no cgroup: 64 KiB that
// wait in each direction (tty_buffer.c), and two line disciplines of 16 KiB.
const terminalSize = 160 << 10

// ownTerminal makes the call's terminal and the mounts for it. /dev/tty is the host's device, by
// which each process opens its own controlling terminal.
func (r *run) ownTerminal(c *native.Cell, grants []landRule) ([]landRule, error) {
	const op = "make a terminal"
	var err error
	if r.terminal, err = sys.NewTerminal(r.uid, r.gid, isolate.MaxTerminals, r.spec.TTY.Rows, r.spec.TTY.Columns); err != nil {
		return nil, refuse("cell_start", op, err).WithHint("the kernel needs CONFIG_UNIX98_PTYS, and a free one of kernel.pty.max")
	}
	g, err := r.place(c, "pts", ptsDir, r.terminal.Mount, "rw")
	if err != nil {
		return nil, err
	}
	grants = append(grants, g)
	elsewhere(func() { g.file, err = sys.OpenTree(sys.AtCWD, ttyFile, false) })
	if err != nil {
		return nil, refuse("cell_start", op, err)
	}
	if g, err = r.place(c, "tty", ttyFile, g.file, "rw"); err != nil {
		return nil, err
	}
	g.kind = landlock.Other
	if err := sys.SetAttr(g.file, sys.AttrReadOnly|sys.AttrNoSUID|sys.AttrNoExec); err != nil {
		return nil, refuse("cell_start", op, err)
	}
	slave, err := r.raise(r.terminal.Slave)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "resource_exhausted", "prepare cell", err)
	}
	r.high = append(r.high, r.terminal.Slave)
	r.terminal.Slave = -1
	r.fds.Stdin, r.fds.Stdout, r.fds.Stderr = slave, slave, slave
	c.FDs = r.fds
	return append(grants, g), nil
}

// handOver gives palyra the master.
func (r *run) handOver() error {
	if r.terminal == nil {
		return nil
	}
	defer r.terminal.CloseMaster()
	if err := sys.SendPacket(r.files.terminal, []byte{0}, []int{r.terminal.Master}); err != nil {
		return fault.New(fault.Internal, "cell_protocol", "hand the terminal over", err)
	}
	return nil
}

// checkTerminal requires a call's program to have its own terminal and no other, or none at all.
// dir is its /proc/pid. Its terminal has the number of one of the host, so the file systems of
// descriptors are compared; that the first is the controlling one follows from the number and from
// the step that made it so, which a terminal of another session would have failed. /dev/tty comes
// from the host, and must be the device that leads each process to its own terminal.
func (p *process) checkTerminal(dir int) error {
	controlling := p.ev.Process.TTY != 0
	if p.terminal == nil {
		if controlling {
			return errors.New("there is a controlling terminal")
		}
		return nil
	}
	var number uint64
	for fd := range 3 {
		dev, rdev, err := sys.DeviceAt(dir, fmt.Sprintf("fd/%d", fd))
		if err != nil {
			return err
		}
		if fd == 0 {
			number = rdev
		}
		if dev != p.terminal.Device || rdev != number {
			return fmt.Errorf("descriptor %d is not the terminal of the call", fd)
		}
	}
	// proc_pid_stat(5): the minor number's low byte, the major number in one, and the rest.
	if want := sys.Minor(number)&0xff | sys.Major(number)<<8 | sys.Minor(number)&^0xff<<12; uint32(p.ev.Process.TTY) != uint32(want) {
		return errors.New("its terminal doesn't control its session")
	}
	switch _, rdev, err := sys.DeviceAt(dir, "root"+ttyFile); {
	case err != nil:
		return err
	case sys.Major(rdev) != ttyMajor || sys.Minor(rdev) != 0:
		return fmt.Errorf("%s is another device", ttyFile)
	}
	p.ev.Terminal = evidence.Terminal{Basis: evidence.Observed, Mode: evidence.TerminalOwn}
	return nil
}

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// screenProbes are case 98: drawing on the terminal of whoever reads the output.
var screenProbes = map[string]probe{
	"repaint":   repaint,
	"on-screen": onScreen,
}

// drawings are ways to do more to a terminal than add lines to it.
var drawings = map[string]string{
	"csi":        "\x1b[2J\x1b[H  Approval needed",
	"osc":        "\x1b]0;Approval needed\a",
	"c1":         "\xc2\x9b2JApproval needed",
	"eight-bit":  "\x9b2JApproval needed",
	"carriage":   "denied\rapproved",
	"backspace":  "denied\b\b\b\b\b\bapproved",
	"bidi":       "\u202edeeben lavorppA",
	"zero-width": "de\u200bnied",
}

// repaint writes one of them to standard output.
func repaint(a args) (string, error) {
	text := drawings[a.str("how")]
	if n, err := unix.Write(1, []byte(text+"\n")); err != nil || n < len(text) {
		return "", failed("write", errors.Join(err))
	}
	return "painted", nil
}

// onScreen runs a command whose output is a new terminal, and gives what was
// shown there, byte for byte but for the line ends.
func onScreen(a args) (string, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return "", failed("TIOCSPTLCK", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return "", failed("TIOCGPTN", err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(a.command[0], a.command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	slave.Close()
	shown, err := io.ReadAll(master)
	if err != nil && !errors.Is(err, syscall.EIO) { // which is how the other side leaves
		return "", err
	}
	_ = cmd.Wait() // its status is passed on
	if _, err := os.Stdout.WriteString(strings.ReplaceAll(string(shown), "\r\n", "\n")); err != nil {
		return "", err
	}
	status := cmd.ProcessState.ExitCode()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		status = 128 + int(ws.Signal())
	}
	os.Exit(status)
	return "", nil
}

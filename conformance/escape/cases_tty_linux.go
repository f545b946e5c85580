package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// terminalCases are 115: what a program could do with a terminal of its own, to the host's, to the
// one that its launcher was started on, and to how many there are.
func terminalCases() []attackCase {
	var out []attackCase
	add := func(variant, attack string, stopped []string, note string, set func(s *stage) (scene, error)) {
		out = append(out, attackCase{number: 115, variant: variant, name: "terminal", attack: attack, stopped: onlyC(stopped...),
			absent: map[string]string{"b": "tier B has no terminals"}, note: note,
			stage: func(s *stage) (scene, error) {
				sc, err := set(s)
				sc.opt.tty = true
				return sc, err
			}})
	}
	add("push", "type on its own terminal, TIOCSTI", filtered, "the filter refuses it on any terminal", func(s *stage) (scene, error) {
		return scene{probe: "tiocsti", args: []string{"token=" + s.nonce, "low=1"}, opt: options{wrap: []string{s.b.attack, "on-tty", "--"}}}, nil
	})
	add("steal", "take its own terminal for another session, TIOCSCTTY", filtered, "the filter refuses it", func(s *stage) (scene, error) {
		return scene{probe: "steal", opt: options{wrap: []string{s.b.attack, "on-tty", "--"}}}, nil
	})
	for _, r := range []struct{ name, number string }{{"push-highbits", "0x100005412"}, {"linux", "0x541c"}, {"console", "0x541d"}, {"discipline", "0x5423"}, {"exclusive", "0x540c"}, {"hangup", "0x5437"}} {
		add("reach-"+r.name, "reach the request "+r.number, filtered, "as without a terminal", func(*stage) (scene, error) {
			return scene{probe: "ioctl", args: []string{"request=" + r.number}}, nil
		})
	}
	add("write", "draw on a terminal of the host", notThere, "the devpts is the cell's own, and has other terminals", func(s *stage) (scene, error) {
		master, path, err := s.hostTerminal()
		if err != nil {
			return scene{}, err
		}
		return scene{probe: "tty-write", args: []string{"path=" + path, "token=" + s.nonce}, canary: func(*outcome) (bool, string) {
			b := make([]byte, 4096)
			n, _ := unix.Read(master, b) // it doesn't block
			return n > 0 && strings.Contains(string(b[:n]), s.nonce), "the terminal of the host shows the text"
		}}, nil
	})
	add("many", "open more terminals than the cell may have", []string{"ENOSPC"}, "the devpts has a maximum", func(*stage) (scene, error) {
		return scene{probe: "tty-flood", args: []string{"enough=32"}}, nil
	})
	add("master", "find the other side of its terminal among its descriptors", []string{"EBADF"}, "palyra-cell's descriptors are closed before the gate, and the gate looks",
		func(*stage) (scene, error) {
			return scene{probe: "tty-master", opt: options{fds: map[int]string{9: "/dev/ptmx"}}}, nil
		})
	return out
}

// hostTerminal makes a terminal of the user's on the host, and returns its other side. Its number
// isn't that of the first one in a devpts.
func (s *stage) hostTerminal() (master int, path string, err error) {
	for range 2 {
		fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return -1, "", err
		}
		s.later(func() { unix.Close(fd) })
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return -1, "", err
		}
		n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err != nil {
			return -1, "", err
		}
		if n == 0 {
			continue
		}
		path := fmt.Sprintf("/dev/pts/%d", n)
		// Held open: what is written to a terminal goes with its last descriptor.
		held, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, "", err
		}
		s.later(func() { unix.Close(held) })
		return fd, path, os.Chmod(path, 0o666)
	}
	return -1, "", fmt.Errorf("no terminal but the first")
}

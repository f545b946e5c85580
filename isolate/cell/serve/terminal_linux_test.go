package serve

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
)

// TestCheckTerminal: the gate takes no terminal but the call's own, in a folder that looks like a
// process's in proc.
func TestCheckTerminal(t *testing.T) {
	slave := func() (string, *unix.Stat_t) {
		master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { master.Close() })
		n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		path := fmt.Sprintf("/dev/pts/%d", n)
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return path, &st
	}
	own, st := slave()
	other, _ := slave()
	number := func(rdev uint64) int { // as in proc_pid_stat(5)
		return int(unix.Minor(rdev)&0xff | unix.Major(rdev)<<8 | unix.Minor(rdev)&^0xff<<12)
	}
	for name, c := range map[string]struct {
		fds      [3]string
		tty      string
		device   uint64
		controls int
		none     bool // the call has no terminal
		good     bool
	}{
		"its own":              {fds: [3]string{own, own, own}, tty: ttyFile, device: st.Dev, controls: number(st.Rdev), good: true},
		"of another devpts":    {fds: [3]string{own, own, own}, tty: ttyFile, device: st.Dev + 1, controls: number(st.Rdev)},
		"another for output":   {fds: [3]string{own, other, own}, tty: ttyFile, device: st.Dev, controls: number(st.Rdev)},
		"a file for errors":    {fds: [3]string{own, own, os.DevNull}, tty: ttyFile, device: st.Dev, controls: number(st.Rdev)},
		"no errors":            {fds: [3]string{own, own}, tty: ttyFile, device: st.Dev, controls: number(st.Rdev)},
		"another that rules":   {fds: [3]string{own, own, own}, tty: ttyFile, device: st.Dev, controls: number(st.Rdev) + 1},
		"none that rules":      {fds: [3]string{own, own, own}, tty: ttyFile, device: st.Dev},
		"another for /dev/tty": {fds: [3]string{own, own, own}, tty: other, device: st.Dev, controls: number(st.Rdev)},
		"a file for /dev/tty":  {fds: [3]string{own, own, own}, tty: os.DevNull, device: st.Dev, controls: number(st.Rdev)},
		"none":                 {none: true, good: true},
		"one that rules":       {none: true, controls: number(st.Rdev)},
	} {
		dir := t.TempDir()
		for _, d := range []string{"fd", "root/dev"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		links := map[string]string{"root/dev/tty": c.tty}
		for i, to := range c.fds {
			links[fmt.Sprintf("fd/%d", i)] = to
		}
		for link, to := range links {
			if to == "" {
				continue
			}
			if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
				t.Fatal(err)
			}
		}
		p := &process{run: new(run)}
		if !c.none {
			p.terminal = &sys.Terminal{Device: c.device}
		}
		p.ev.Process.TTY = c.controls
		err := p.checkTerminal(openDir(t, dir))
		if (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
		if said := p.ev.Terminal.Basis == evidence.Observed; said != (c.good && !c.none) {
			t.Errorf("%s: evidence %+v", name, p.ev.Terminal)
		}
	}
}

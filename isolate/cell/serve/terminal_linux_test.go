package serve

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
)

// TestCheckTerminal: the gate takes no terminal but the call's own, in a folder that looks like a
// process's in proc.
func TestCheckTerminal(t *testing.T) {
	slave := func() (path string, device, rdev uint64) {
		master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { master.Close() })
		info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", master.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		_, index, _ := strings.Cut(string(info), "tty-index:")
		path = "/dev/pts/" + strings.Fields(index)[0]
		if device, rdev, err = sys.DeviceAt(sys.AtCWD, path); err != nil {
			t.Fatal(err)
		}
		return path, device, rdev
	}
	own, device, rdev := slave()
	other, _, _ := slave()
	number := func(rdev uint64) int { // as in proc_pid_stat(5)
		return int(sys.Minor(rdev)&0xff | sys.Major(rdev)<<8 | sys.Minor(rdev)&^0xff<<12)
	}
	for name, c := range map[string]struct {
		fds      [3]string
		tty      string
		device   uint64
		controls int
		none     bool // the call has no terminal
		good     bool
	}{
		"its own":              {fds: [3]string{own, own, own}, tty: ttyFile, device: device, controls: number(rdev), good: true},
		"of another devpts":    {fds: [3]string{own, own, own}, tty: ttyFile, device: device + 1, controls: number(rdev)},
		"another for output":   {fds: [3]string{own, other, own}, tty: ttyFile, device: device, controls: number(rdev)},
		"a file for errors":    {fds: [3]string{own, own, os.DevNull}, tty: ttyFile, device: device, controls: number(rdev)},
		"no errors":            {fds: [3]string{own, own}, tty: ttyFile, device: device, controls: number(rdev)},
		"another that rules":   {fds: [3]string{own, own, own}, tty: ttyFile, device: device, controls: number(rdev) + 1},
		"none that rules":      {fds: [3]string{own, own, own}, tty: ttyFile, device: device},
		"another for /dev/tty": {fds: [3]string{own, own, own}, tty: other, device: device, controls: number(rdev)},
		"a file for /dev/tty":  {fds: [3]string{own, own, own}, tty: os.DevNull, device: device, controls: number(rdev)},
		"none":                 {none: true, good: true},
		"one that rules":       {none: true, controls: number(rdev)},
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

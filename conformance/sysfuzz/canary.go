package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// canaries are the things on the host that programs inside must not touch.
type canaries struct {
	dir    string
	secret string
	before string
	marker *exec.Cmd
	ended  chan struct{}
	close_ []func()

	mu    sync.Mutex
	heard []string
}

// setCanaries puts them up. dir is readable and files in it are writable for
// everybody, so that nothing but confinement protects them.
func setCanaries(dir string) (*canaries, error) {
	c := &canaries{dir: filepath.Join(dir, "canaries"), secret: rand.Text(), ended: make(chan struct{})}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, err
	}
	for _, name := range []string{"a", "b", "etc/shadow", "tmp/x"} {
		p := filepath.Join(c.dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			return nil, err
		}
		if err := os.WriteFile(p, []byte(c.secret+name), 0o666); err != nil {
			return nil, err
		}
		if err := os.Chmod(p, 0o666); err != nil {
			return nil, err
		}
	}
	c.before = c.look()
	c.marker = exec.Command("sleep", "86400")
	if err := c.marker.Start(); err != nil {
		return nil, err
	}
	go func() { _ = c.marker.Wait(); close(c.ended) }()
	c.later(func() { _ = c.marker.Process.Kill(); <-c.ended })
	for _, l := range [][2]string{{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}, {"unix", filepath.Join(dir, "s")}, {"unix", "@abstract"}, {"unix", "@palyra-" + c.secret}} {
		ln, err := net.Listen(l[0], l[1])
		if err != nil {
			continue // no IPv6, or another run has the name
		}
		c.later(func() { ln.Close() })
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				conn.Close()
				c.hear(fmt.Sprintf("somebody connected to %s %s", l[0], ln.Addr()))
			}
		}()
	}
	if p, err := net.ListenPacket("udp", "127.0.0.1:0"); err == nil {
		c.later(func() { p.Close() })
		go func() {
			for b := make([]byte, 64); ; {
				if _, _, err := p.ReadFrom(b); err != nil {
					return
				}
				c.hear("somebody sent a datagram to " + p.LocalAddr().String())
			}
		}()
	}
	return c, nil
}

func (c *canaries) later(f func()) { c.close_ = append(c.close_, f) }

func (c *canaries) hear(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = append(c.heard, what)
}

// look describes the canary files: names, modes, times, contents.
func (c *canaries) look() string {
	var out strings.Builder
	_ = filepath.WalkDir(c.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			fmt.Fprintf(&out, "%s: %v\n", path, err)
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			fmt.Fprintf(&out, "%s: %v\n", path, err)
			return nil
		}
		fmt.Fprintf(&out, "%s %s %d %s", path, fi.Mode(), fi.Size(), fi.ModTime())
		if fi.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			fmt.Fprintf(&out, " %q %v", b, err)
		}
		out.WriteString("\n")
		return nil
	})
	host, err := os.Hostname()
	fmt.Fprintf(&out, "host %s %v\n", host, err)
	return out.String()
}

// tripped says which canaries show an escape.
func (c *canaries) tripped() (what []string) {
	if now := c.look(); now != c.before {
		what = append(what, fmt.Sprintf("files of the host changed:\nwas %snow %s", c.before, now))
		c.before = now
	}
	select {
	case <-c.ended:
		what = append(what, "the marker process of the host is dead")
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	what = append(what, c.heard...)
	c.heard = nil
	return what
}

func (c *canaries) close() {
	for i := len(c.close_) - 1; i >= 0; i-- {
		c.close_[i]()
	}
}

// kernelLog is the kernel's log while we watch, as dmesg reads it.
type kernelLog struct {
	last     string // line that we have seen
	readable bool
}

func newKernelLog() *kernelLog {
	l := new(kernelLog)
	if lines, ok := readKernelLog(); ok {
		l.last, l.readable = lines[len(lines)-1], true
	}
	return l
}

func readKernelLog() ([]string, bool) {
	out, err := exec.Command("dmesg").Output()
	if err != nil {
		return nil, false
	}
	return strings.Split(string(bytes.TrimSpace(out)), "\n"), true
}

// bugs returns new lines that speak of a bug of the kernel. A program that
// crashes is no such thing.
func (l *kernelLog) bugs() (out []string) {
	lines, ok := readKernelLog()
	if !l.readable || !ok {
		return nil
	}
	// If our line has left the ring all that is in it is new.
	for _, line := range lines[slices.Index(lines, l.last)+1:] {
		for _, word := range []string{"BUG:", "WARNING:", "Oops", "kernel panic", "Kernel panic", "general protection fault, ", "KASAN", "UBSAN", "KCSAN",
			"refcount_t", "use-after-free", "soft lockup", "hard LOCKUP", "hung_task", "blocked for more than", "scheduling while atomic", "rcu_sched self-detected"} {
			if strings.Contains(line, word) {
				out = append(out, "the kernel says: "+line)
				break
			}
		}
	}
	l.last = lines[len(lines)-1]
	return out
}

func (l *kernelLog) state() string {
	if !l.readable {
		return "not readable here"
	}
	return "watched"
}

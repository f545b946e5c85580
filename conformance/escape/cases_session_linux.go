package main

import (
	"crypto/rand"
	"os"
	"slices"
	"strconv"
	"strings"
)

// sessionCell is the name of case 116, and sitting that of the probe beside it, whose lines are not
// the attempt's.
const (
	sessionCell = "session-cell"
	sitting     = "sit"
)

// sitter is another call of the session: in a cell beside the attempt's, or on the host.
type sitter struct {
	s      *stage
	words  []string // of its probe
	secret string   // in its memory, its command line, and its files in /tmp and /dev/shm
	name   string   // of these files, and of its abstract sockets

	// What an attempt names it by. In a cell the launcher puts in what it knows (warm/beside.go).
	port, addr, pid string

	dead  func(*outcome) (bool, string)
	heard func(*outcome) (bool, string)
}

func (s *stage) sitter() *sitter {
	c := &sitter{s: s, secret: "secret-" + rand.Text(), name: nonce(), port: "@PORT@", addr: "@ADDR@", pid: "@PID@"}
	c.words = []string{sitting, "secret=" + c.secret, "file=" + c.name, "name=" + c.name}
	said := func(word, text string) func(*outcome) bool {
		return func(o *outcome) bool {
			return slices.ContainsFunc(o.lines, func(r result) bool {
				return r.Case == sitting && r.Outcome == word && strings.Contains(r.Detail, text)
			})
		}
	}
	gone, told := said("GONE", ""), said("HEARD", s.nonce)
	c.dead = func(o *outcome) (bool, string) { return gone(o), "the other call died" }
	c.heard = func(o *outcome) (bool, string) { return told(o), "the other call was reached" }
	return c
}

// onHost starts it on the host, or in the world.
func (c *sitter) onHost(world bool) error {
	start := func() (*hand, string, error) { return c.s.hand(nil, "", c.words[0], c.words[1:]...) }
	if world {
		start = func() (*hand, string, error) { return c.s.handInWorld(c.words[0], c.words[1:]...) }
	}
	h, detail, err := start()
	if err != nil {
		return err
	}
	c.s.later(func() {
		os.Remove("/tmp/" + c.name)
		os.Remove("/dev/shm/" + c.name)
		for _, kind := range []string{"-1", "-2"} {
			os.Remove("/tmp/socket-" + c.name + kind)
		}
	})
	c.port, c.addr, _ = strings.Cut(detail, " ")
	c.pid = strconv.Itoa(h.cmd.Process.Pid)
	c.dead = (&victim{hand: h, s: c.s, pid: h.cmd.Process.Pid}).dead
	l := &listenerOf{s: c.s}
	go func() {
		for h.lines.Scan() {
			l.mu.Lock()
			l.told.WriteString(h.lines.Text())
			l.mu.Unlock()
		}
	}()
	c.heard = l.heard(c.s.nonce)
	return nil
}

// sessionCases are 116: what a call could do to another one that runs beside it in the same
// session, with which it shares a network. That it reaches its TCP ports is what they share it for.
func sessionCases() []attackCase {
	var out []attackCase
	add := func(variant, attack string, stopped []string, note string, apart bool, set func(c *sitter) scene) {
		out = append(out, attackCase{number: 116, variant: variant, name: sessionCell, attack: attack, stopped: onlyC(stopped...),
			absent: map[string]string{"b": "tier B has no network namespaces"}, note: note,
			stage: func(s *stage) (scene, error) {
				c := s.sitter()
				if !s.inside {
					if err := c.onHost(false); err != nil {
						return scene{}, err
					}
				}
				sc := set(c)
				sc.opt.beside, sc.opt.apart = c.words, apart
				return sc, nil
			}})
	}
	for _, how := range []string{"kill", "sigqueue"} {
		add(how, "kill the other call of the session", noProcess, "PID namespaces are apart", false, func(c *sitter) scene {
			return scene{probe: "signal", args: []string{"how=" + how, "pid=" + c.pid}, canary: c.dead}
		})
	}
	add("find", "find it in /proc by its command line", []string{"OPEN", "ENOENT", "EACCES"}, "OPEN: no process of another call", false, func(c *sitter) scene {
		return scene{probe: "ps", canary: leaked(c.secret)}
	})
	add("cmdline", "read its /proc/PID/cmdline", notThere, "", false, func(c *sitter) scene {
		return scene{probe: "proc", args: []string{"pid=" + c.pid, "file=cmdline"}, canary: leaked(c.secret)}
	})
	for _, how := range []string{"attach", "readv", "mem"} {
		add(how, "trace it or reach its memory", join(noProcess, []string{"EACCES", "ENOENT"}), "", false, func(c *sitter) scene {
			sc := scene{probe: "ptrace", args: []string{"how=" + how, "pid=" + c.pid, "addr=" + c.addr}}
			if how != "attach" {
				sc.canary = leaked(c.secret)
			}
			return sc
		})
	}
	for kind, number := range map[string]string{"stream": "1", "dgram": "2"} {
		add("abstract-"+kind, "reach its abstract unix socket", []string{"ECONNREFUSED", "EPERM", "EACCES", "EAFNOSUPPORT", "ENOSYS", "SIGSYS"},
			"Landlock's scope; before ABI 9 neither has unix sockets", false, func(c *sitter) scene {
				return scene{probe: "unix", args: []string{"type=" + kind, "path=@" + c.name + "-" + number, "token=" + c.s.nonce}, canary: c.heard}
			})
	}
	for variant, dir := range map[string]string{"tmp": "/tmp/", "shm": "/dev/shm/"} {
		add(variant, "read its file in "+strings.TrimSuffix(dir, "/"), notThere, "each call has its own", false, func(c *sitter) scene {
			return scene{probe: "read", args: []string{"how=open", "path=" + dir + c.name}, canary: leaked(c.secret)}
		})
	}
	add("other-session", "connect to the port of a call of another session", noNetwork, "another session has another network", true, func(c *sitter) scene {
		return scene{probe: "tcp", args: []string{"ip=4", "how=connect", "port=" + c.port, "token=" + c.s.nonce}, canary: c.heard}
	})
	slices.SortStableFunc(out, func(x, y attackCase) int { return strings.Compare(x.variant, y.variant) })
	return out
}

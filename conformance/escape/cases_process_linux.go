package main

import (
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
)

// processCases are 24 to 29: a process of the host.
func processCases() []attackCase {
	readable := at([]string{"EACCES", "ENOENT", "EPERM"}, notThere)
	out := []attackCase{
		{number: 24, variant: "cmdline", name: "proc-host-pid", attack: "find a host process in /proc by its command line",
			stopped: at([]string{"OPEN", "EACCES", "ENOENT"}, []string{"OPEN", "ENOENT", "EACCES"}), note: "OPEN: no process of the host",
			stage: func(s *stage) (scene, error) {
				v, err := s.victim()
				if err != nil {
					return scene{}, err
				}
				return scene{probe: "ps", canary: leaked(v.args)}, nil
			}},
	}
	type file struct {
		number              int
		variant, name, path string
		secret              func(*victim) string
	}
	for _, f := range []file{
		{24, "cmdline-by-pid", "proc-host-pid", "cmdline", func(v *victim) string { return v.args }},
		{25, "root", "proc-pid-root", "root", func(v *victim) string { return v.file }},
		{25, "cwd", "proc-pid-root", "cwd", func(v *victim) string { return v.file }},
		{25, "fd", "proc-pid-root", "fd/9", func(v *victim) string { return v.file }},
		{26, "", "proc-pid-environ", "environ", func(v *victim) string { return v.env }},
	} {
		out = append(out, attackCase{number: f.number, variant: f.variant, name: f.name, attack: "read a host process's /proc/PID/" + f.path,
			stopped: readable, stage: func(s *stage) (scene, error) {
				v, err := s.victim()
				if err != nil {
					return scene{}, err
				}
				path := f.path
				switch f.path {
				case "root":
					path += s.dir + "/host/" + s.nonce
				case "cwd":
					path += "/" + s.nonce
				}
				return scene{probe: "proc", args: []string{pid(v), "file=" + path}, canary: leaked(f.secret(v))}, nil
			}})
	}
	for _, how := range []string{"kill", "tgkill", "tkill", "sigqueue", "setown"} {
		out = append(out, attackCase{number: 27, variant: how, name: "signal-host", attack: "kill a host process",
			stopped: both(join(noProcess, []string{"OPEN"})...), note: "OPEN: nothing was sent (F_SETOWN is checked when it sends)",
			stage: func(s *stage) (scene, error) {
				v, err := s.victim()
				if err != nil {
					return scene{}, err
				}
				return scene{probe: "signal", args: []string{"how=" + how, pid(v)}, canary: v.dead}, nil
			}})
	}
	out = append(out, attackCase{number: 27, variant: "probe", name: "signal-host", attack: "learn with kill(pid, 0) that it exists",
		stopped: both(noProcess...), stage: func(s *stage) (scene, error) {
			v, err := s.victim()
			if err != nil {
				return scene{}, err
			}
			return scene{probe: "signal", args: []string{"how=probe", pid(v)}}, nil
		}})
	return append(out, descriptorCases()...)
}

func descriptorCases() []attackCase {
	var out []attackCase
	for _, how := range []string{"open", "signal", "getfd"} {
		out = append(out, attackCase{number: 28, variant: how, name: "pidfd-host", attack: "use a host process's pidfd",
			stopped: both(join(noProcess, []string{"EINVAL"})...), stage: func(s *stage) (scene, error) {
				v, err := s.victim()
				if err != nil {
					return scene{}, err
				}
				sc := scene{probe: "pidfd", args: []string{"how=" + how, pid(v), "fd=9"}}
				switch how {
				case "signal":
					sc.canary = v.dead
				case "getfd":
					sc.canary = leaked(v.file)
				}
				return sc, nil
			}})
	}
	for _, how := range []string{"seize", "attach", "readv", "writev", "mem"} {
		out = append(out, attackCase{number: 29, variant: how, name: "ptrace-host", attack: "trace a host process or reach its memory",
			stopped: both(join(noProcess, []string{"EACCES", "ENOENT"})...), stage: func(s *stage) (scene, error) {
				v, err := s.victim()
				if err != nil {
					return scene{}, err
				}
				sc := scene{probe: "ptrace", args: []string{"how=" + how, pid(v), "addr=" + v.addr}}
				switch how {
				case "readv", "mem":
					sc.canary = leaked(v.secret)
				case "writev":
					sc.canary = v.changed
				}
				return sc, nil
			}})
	}
	return out
}

func pid(v *victim) string { return "pid=" + strconv.Itoa(v.pid) }

// program starts a program of the host as the user, until the stage is taken down.
func (s *stage) program(argv ...string) (*exec.Cmd, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user.credential(), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	s.later(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, nil
}

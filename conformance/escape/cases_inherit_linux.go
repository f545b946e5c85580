package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// inheritCases are 18 to 23: things that a launcher lets through by accident.
func inheritCases() []attackCase {
	none := both("EBADF")
	out := []attackCase{
		{number: 18, variant: "cwd", name: "leaked-cwd-fd", attack: "find the launcher's working directory",
			stopped: at(fenced, notThere), stage: func(s *stage) (scene, error) {
				path, secret, err := s.secret()
				return scene{probe: "cwd", args: []string{"name=" + filepath.Base(path), "path=" + path},
					opt: options{dir: filepath.Dir(path)}, canary: leaked(secret)}, err
			}},
		{number: 18, variant: "workspace", name: "leaked-cwd-fd", attack: "name /proc/self/fd/8, the host's /, as the workspace",
			stopped: both(refused), note: "a workspace is no link and not /",
			stage: func(s *stage) (scene, error) {
				path, secret, err := s.secret()
				sc := scene{probe: "cwd", args: []string{"name=" + filepath.Base(path), "path=" + path},
					because: "workspace", opt: options{fds: map[int]string{8: "/"}, workspace: "/proc/self/fd/8"}, canary: leaked(secret)}
				if !s.inside {
					sc.opt.workspace, sc.opt.dir = "", "/"
				}
				return sc, err
			}},
		{number: 19, name: "inherited-file-fd", attack: "read a secret that the launcher had open", stopped: none,
			stage: func(s *stage) (scene, error) {
				path, secret, err := s.secret()
				return scene{probe: "files", opt: options{fds: map[int]string{9: path}}, canary: leaked(secret)}, err
			}},
		{number: 20, name: "inherited-dir-fd", attack: "open a host file beneath the launcher's open /", stopped: none,
			stage: func(s *stage) (scene, error) {
				path, secret, err := s.secret()
				return scene{probe: "dirs", args: []string{"name=" + path[1:]}, opt: options{fds: map[int]string{8: "/"}}, canary: leaked(secret)}, err
			}},
		{number: 21, name: "env-secret", attack: "find the launcher's environment in ours or /proc", stopped: both("OPEN", "ENOENT"),
			note: "OPEN: an environment without the secret",
			stage: func(s *stage) (scene, error) {
				secret := nonce()
				return scene{probe: "environ", opt: options{hostEnv: []string{"AWS_SECRET_ACCESS_KEY=" + secret}}, canary: leaked(secret)}, nil
			}},
		{number: 22, variant: "inherited", name: "env-inject", attack: "inherit the launcher's LD_PRELOAD and its like", stopped: both("OPEN", "ENOENT"),
			stage: func(s *stage) (scene, error) {
				secret := nonce()
				var env []string
				for _, n := range injectors {
					if n != "LD_PRELOAD" {
						// The loader would complain outside; its relatives prove the same.
						env = append(env, n+"=/nonexistent/"+secret)
					}
				}
				return scene{probe: "environ", opt: options{hostEnv: env}, canary: leaked(secret)}, nil
			}},
	}
	for _, n := range injectors {
		out = append(out, attackCase{number: 22, variant: n, name: "env-inject", attack: "ask for it in the call's environment",
			stopped: both(refused, "OPEN"), note: "OPEN: run without it",
			stage: func(s *stage) (scene, error) {
				secret := nonce()
				return scene{probe: "environ", because: "environment", opt: options{env: []string{n + "=/nonexistent/" + secret}}, canary: leaked(secret)}, nil
			}})
	}
	return append(out,
		attackCase{number: 23, variant: "own", name: "self-exe-overwrite", attack: "overwrite the executed file through /proc/self/exe (CVE-2019-5736)",
			stopped: both("ETXTBSY", "EROFS", "EACCES", "EPERM", "ENOENT", "ENOSYS", "SIGSYS"), stage: selfExeScene},
		attackCase{number: 23, variant: "launcher", name: "self-exe-overwrite", attack: "open the executable of process 1 or the parent through /proc",
			stopped: both("EACCES", "EPERM", "ENOENT"), stage: func(s *stage) (scene, error) {
				v, err := s.victimOfShell()
				if err != nil {
					return scene{}, err
				}
				return scene{probe: "init-exe", args: []string{fmt.Sprintf("pids=%d", v)}}, nil
			}})
}

// injectors are variables that make a program run other code.
var injectors = []string{"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "PYTHONSTARTUP", "BASH_ENV", "NODE_OPTIONS", "PERL5OPT", "RUBYOPT"}

// selfExeScene executes a copy of the attack program that its user may write.
func selfExeScene(s *stage) (scene, error) {
	b, err := os.ReadFile(s.b.attack)
	if err != nil {
		return scene{}, err
	}
	path, err := s.file("attack", string(b), 0o755)
	if err != nil {
		return scene{}, err
	}
	before := sha256.Sum256(b)
	return scene{probe: "self-exe", opt: options{attack: path}, canary: func(*outcome) (bool, string) {
		b, err := os.ReadFile(path)
		if err != nil {
			return true, err.Error()
		}
		return sha256.Sum256(b) != before, "the executed file's content"
	}}, nil
}

// victimOfShell starts a process that runs another program than the probe's.
func (s *stage) victimOfShell() (int, error) {
	h, err := s.program("/bin/sleep", "60")
	if err != nil {
		return 0, err
	}
	return h.Process.Pid, nil
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const mib = 1 << 20

// inodeLimit is the number of files that a cell may have by default.
const inodeLimit = 16 << 10

// bombCases are 79 to 83: more than one's share.
func bombCases() []attackCase {
	stopped := both("EAGAIN", "ENOMEM", "SIGKILL", "TIMEOUT")
	out := []attackCase{
		{number: 79, name: "fork-bomb", attack: "have 2000 children at once with --pids 64", stopped: stopped,
			stage: func(s *stage) (scene, error) {
				return scene{probe: "fork", args: []string{"count=2000"}, opt: options{pids: "64", watch: true, timeout: 20 * time.Second},
					canary: func(o *outcome) (bool, string) {
						r, _ := o.main()
						return o.most > 80 || r.Outcome == "OPEN", fmt.Sprintf("%d at once seen from the host", o.most)
					}}, nil
			}},
	}
	// Nothing but the limit, or a refusal of that kind of memory, counts as stopped.
	limit := []string{"ENOMEM", "SIGKILL", "LIMIT"}
	for _, k := range []struct {
		how     string
		stopped []string
	}{{"private", limit}, {"shared", join(limit, []string{"EPERM"})}, {"memfd", join(limit, []string{"ENOSYS"})}} {
		how := k.how
		out = append(out, attackCase{number: 80, variant: how, name: "mem-bomb", attack: "touch 1 GiB of such memory with --memory 256M",
			stopped: both(k.stopped...), note: "EPERM, ENOSYS: refused without a cgroup to count it",
			stage: func(s *stage) (scene, error) {
				return scene{probe: "memory", args: []string{"how=" + how, "mib=1024"}, opt: options{memory: "256M", watch: true, timeout: 20 * time.Second}, canary: memoryOver(512 * mib)}, nil
			}})
	}
	out = append(out, attackCase{number: 80, variant: "tree", name: "mem-bomb", attack: "touch 2 GiB … in 16 children, each below the limit",
		stopped: both("ENOMEM", "SIGKILL", "LIMIT"), stage: func(s *stage) (scene, error) {
			return scene{probe: "memory", args: []string{"how=tree", "mib=2048", "children=16"}, opt: options{memory: "256M", watch: true, timeout: 20 * time.Second}, canary: memoryOver(1280 * mib)}, nil
		}})
	for _, d := range []struct{ variant, dir string }{{"cwd", "."}, {"tmp", "/tmp"}, {"shm", "/dev/shm"}} {
		// Tier B of an unprivileged user has no quota: its directory is sampled.
		closed := join(full, []string{"LIMIT", "SIGKILL"})
		if d.dir != "." {
			closed = join(full, []string{"EACCES", "ENOENT", "EROFS"})
		}
		out = append(out,
			attackCase{number: 81, variant: d.variant, name: "disk-fill", attack: "write 600 MiB in files of 8 MiB to the folder (., /tmp, /dev/shm), without a workspace",
				stopped: both(closed...), stage: func(s *stage) (scene, error) {
					return scene{probe: "fill", args: []string{"dir=" + s.where(d.dir), "mib=600", "file=8"}, opt: options{timeout: 30 * time.Second}}, nil
				}},
			attackCase{number: 82, variant: d.variant, name: "inode-fill", attack: "make 16,385 files there, one too many, without a workspace",
				stopped: both(closed...), stage: func(s *stage) (scene, error) {
					stay := 0
					if s.inside { // so that a directory that is sampled can be found too full
						stay = 15
					}
					return scene{probe: "inodes", args: []string{"dir=" + s.where(d.dir), "count=" + strconv.Itoa(inodeLimit+1), "stay=" + strconv.Itoa(stay)}, opt: options{timeout: 30 * time.Second}}, nil
				}})
	}
	for _, h := range []struct{ hide, says string }{{"name", "unlinked files"}, {"folder", "an unreadable folder"}} {
		out = append(out, attackCase{number: 81, variant: "hidden-" + h.hide, name: "disk-fill", attack: "write 600 MiB to " + h.says,
			stopped: both(join(full, []string{"LIMIT", "SIGKILL"})...), stage: func(s *stage) (scene, error) {
				stay := 0
				if s.inside {
					stay = 5
				}
				return scene{probe: "fill", args: []string{"dir=" + s.where("."), "mib=600", "file=8", "hide=" + h.hide, "stay=" + strconv.Itoa(stay)}, opt: options{timeout: 30 * time.Second}}, nil
			}})
	}
	out = append(out, attackCase{number: 81, variant: "one-file", name: "disk-fill", attack: "write 200 MiB to a file in the workspace with --max-file 8M",
		stopped: both("EFBIG", "SIGXFSZ", "ENOSPC"), stage: func(s *stage) (scene, error) {
			ws, err := s.workspace()
			return scene{probe: "fill", args: []string{"dir=.", "mib=200", "file=200"}, opt: options{workspace: ws, maxFile: "8M", timeout: 30 * time.Second},
				canary: func(*outcome) (bool, string) {
					n := size(ws)
					return n > 9*mib, fmt.Sprintf("%d bytes on the host", n)
				}}, err
		}})
	for _, to := range []string{"stdout", "stderr"} {
		out = append(out, attackCase{number: 83, variant: to, name: "output-flood", attack: "write 512 MiB without a newline with --max-output 1M",
			stopped: both("NONE", "OPEN", "EPIPE", "SIGPIPE", "SIGKILL"), note: "NONE, OPEN: the excess was dropped",
			stage: func(s *stage) (scene, error) {
				return scene{probe: "flood", args: []string{"to=" + to, "mib=512"}, opt: options{maxOutput: "1M", timeout: 30 * time.Second},
					canary: func(o *outcome) (bool, string) {
						n := o.stdout.total + o.stderr.total
						return n > 2*mib, fmt.Sprintf("%d bytes came out", n)
					}}, nil
			}})
	}
	return out
}

// where puts a path that is private inside onto the stage outside, so that the control
// doesn't fill a place that others share.
func (s *stage) where(dir string) string {
	if s.inside || dir == "." {
		return dir
	}
	return s.dir
}

// memoryOver is the canary of a memory limit: the memory that the host saw resident, or the
// probe's word for memory in no address space.
func memoryOver(limit int64) func(*outcome) (bool, string) {
	return func(o *outcome) (bool, string) {
		r, _ := o.main()
		return o.memory > limit || r.Outcome == "OPEN", fmt.Sprintf("%d MiB resident seen from the host", o.memory/mib)
	}
}

// size sums the files in a directory.
func size(dir string) (n int64) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if st, err := e.Info(); err == nil {
			n += st.Size()
		}
	}
	return n
}

// limitCases are 84 to 87: living longer, running first, raising limits.
func limitCases() []attackCase {
	ended := both("TIMEOUT", "SIGKILL", "OPEN", "NONE")
	var out []attackCase
	for _, v := range []struct{ variant, attack, parent, output string }{
		{"exits", "leave a grandchild in its own session and exit", "exits", "open"},
		{"closed", "… with its descriptors closed", "exits", "closed"},
		{"waits", "… and wait for the deadline", "waits", "open"},
	} {
		out = append(out, attackCase{number: 84, variant: v.variant, name: "daemonize", attack: v.attack, stopped: ended, note: "OPEN: it is dead",
			stage: func(s *stage) (scene, error) {
				return scene{probe: "daemon", args: []string{"parent=" + v.parent, "output=" + v.output}, opt: options{timeout: 2 * time.Second},
					canary: func(o *outcome) (bool, string) {
						return len(o.survivors) > 0 || o.hung, fmt.Sprintf("%d processes left, hung: %t", len(o.survivors), o.hung)
					}}, nil
			}})
	}
	for _, how := range []string{"fifo", "rr", "setscheduler", "nice"} {
		out = append(out, call(85, how, "cpu-hog-realtime", "run before all others", both("EPERM", "EACCES", "ENOSYS", "SIGSYS"), "realtime", "how="+how))
	}
	out = append(out, attackCase{number: 85, variant: "spin", name: "cpu-hog-realtime", attack: "spin in two processes that ignore SIGXCPU, with --cpu 1s",
		stopped: both("SIGKILL", "SIGXCPU"), stage: func(s *stage) (scene, error) {
			// Longer than the hard limit, which is a second above the requested one.
			const more = 3 * time.Second
			return scene{probe: "spin", args: []string{"count=2"}, opt: options{cpu: "1s", timeout: time.Minute, deadline: 3 * time.Minute, spend: more},
				canary: func(o *outcome) (bool, string) {
					return o.spent >= more, fmt.Sprintf("a process had the processor for %v, seen from the host", o.spent)
				}}, nil
		}})
	for _, l := range []string{"nofile", "nproc", "fsize", "core"} {
		out = append(out, call(86, l, "rlimit-raise", "raise the hard limit", both("EPERM", "EINVAL"), "rlimit", "limit="+l))
	}
	out = append(out,
		attackCase{number: 86, variant: "soft", name: "rlimit-raise", attack: "exceed the soft limit after raising it, with --max-file 1M",
			stopped: both("EFBIG", "SIGXFSZ"), stage: func(s *stage) (scene, error) {
				ws, err := s.workspace()
				sc := scene{probe: "soft", args: []string{"mib=4"}, opt: options{workspace: ws, maxFile: "1M"}, canary: func(*outcome) (bool, string) {
					n := size(ws)
					return n > mib, fmt.Sprintf("%d bytes on the host", n)
				}}
				if !s.inside {
					sc.args = append(sc.args, "lower=1")
				}
				return sc, err
			}},
		attackCase{number: 86, variant: "other", name: "rlimit-raise", attack: "set a host process's limit", stopped: both(noProcess...),
			stage: func(s *stage) (scene, error) {
				v, err := s.victim()
				if err != nil {
					return scene{}, err
				}
				return scene{probe: "prlimit", args: []string{pid(v)}, canary: coreLimit(v.pid)}, nil
			}},
		attackCase{number: 86, variant: "reaper", name: "rlimit-raise", attack: "set the limit of processor time of the cell's own reaper, whose end is the call's",
			stopped: both("EPERM"), stage: func(s *stage) (scene, error) {
				if s.inside {
					return scene{probe: "prlimit", args: []string{"cpu=1"}}, nil
				}
				v, err := s.victim()
				if err != nil {
					return scene{}, err
				}
				return scene{probe: "prlimit", args: []string{"cpu=1", pid(v)}}, nil
			}})
	for _, how := range []string{"stop", "ignore", "vfork"} {
		out = append(out, attackCase{number: 87, variant: how, name: "timeout-evasion", attack: "outlive the deadline", stopped: both("TIMEOUT", "SIGKILL"),
			stage: func(s *stage) (scene, error) {
				o := options{timeout: time.Second, deadline: 4 * time.Second}
				return scene{probe: "evade", args: []string{"how=" + how}, opt: o, lasting: true, canary: func(o *outcome) (bool, string) {
					return o.hung || len(o.survivors) > 0, fmt.Sprintf("%d processes left, ended after %v", len(o.survivors), o.took.Round(time.Millisecond))
				}}, nil
			}})
	}
	return out
}

// coreLimit is the canary of a process's core limit, which the probe sets to
// 4096.
func coreLimit(pid int) func(*outcome) (bool, string) {
	return func(*outcome) (bool, string) {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
		if err != nil {
			return true, err.Error()
		}
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "Max core file size") {
				return strings.Contains(line, " 4096 "), strings.TrimSpace(line)
			}
		}
		return true, "no limit line"
	}
}

// backendCases are 90: the sandbox is broken, and the program must not run. The canary is a
// file that it would make. The control has the same grants and a working sandbox.
func backendCases() []attackCase {
	var out []attackCase
	for _, v := range []struct {
		variant, attack string
		because         string
		stopped         map[string][]string
		breakIt         func(*stage, *options) error
	}{
		{"missing-cell", "run without palyra-cell", "palyra-cell", both(refused), func(s *stage, o *options) error { return copyBinary(s, o, "") }},
		{"true-cell", "… with /bin/true as palyra-cell", "palyra-cell", both(refused), func(s *stage, o *options) error { return copyBinary(s, o, "/bin/true") }},
		{"sleep-cell", "… with a palyra-cell that never answers", "palyra-cell", both(refused), func(s *stage, o *options) error { return copyBinary(s, o, "sleep") }},
		{"no-userns", "… with max_user_namespaces 0", "user_namespaces", onlyC(refused), func(s *stage, o *options) error {
			o.wrap, o.userns = []string{s.b.attack, "without", "control=userns", "--"}, true
			return nil
		}},
		{"no-landlock", "… without Landlock", "landlock", both(refused), func(s *stage, o *options) error {
			o.wrap = []string{s.b.attack, "without", "control=landlock", "--"}
			return nil
		}},
		{"no-seccomp", "… without seccomp filters", "seccomp", both(refused), func(s *stage, o *options) error {
			o.wrap = []string{s.b.attack, "without", "control=seccomp", "--"}
			return nil
		}},
	} {
		out = append(out, attackCase{number: 90, variant: v.variant, name: "silent-no-sandbox", attack: v.attack, stopped: v.stopped, perTier: true,
			absent: map[string]string{"b": "B needs no user namespace"}, note: "exit 125 and the reason; the program never ran",
			stage: func(s *stage) (scene, error) { return brokenScene(s, v.because, v.breakIt) }})
	}
	return append(out, evidenceCase())
}

func brokenScene(s *stage, because string, breakIt func(*stage, *options) error) (scene, error) {
	ws, err := s.workspace()
	if err != nil {
		return scene{}, err
	}
	sc := scene{probe: "drop", args: []string{"path=ran"}, opt: options{workspace: ws}, because: because, confined: true}
	sc.canary = func(*outcome) (bool, string) {
		if exists(filepath.Join(ws, "ran")) {
			return true, "the program ran"
		}
		return false, ""
	}
	if s.inside {
		err = breakIt(s, &sc.opt)
	}
	return sc, err
}

// copyBinary puts palyra into a directory of its own, with another file as
// palyra-cell, or none.
func copyBinary(s *stage, o *options, cell string) error {
	dir, err := s.folder("bin", 0o755)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(s.b.palyra)
	if err != nil {
		return err
	}
	o.binary = filepath.Join(dir, "palyra")
	if err := s.write(o.binary, string(b), 0o755); err != nil || cell == "" {
		return err
	}
	if cell == "sleep" {
		return s.write(filepath.Join(dir, "palyra-cell"), "#!/bin/sh\nexec sleep 30\n", 0o755)
	}
	if b, err = os.ReadFile(cell); err != nil {
		return err
	}
	return s.write(filepath.Join(dir, "palyra-cell"), string(b), 0o755)
}

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// memoryCases are 101 to 103: memory that no process maps, things that the kernel counts
// for the cell's user, and the memory that a cell begins with.
func memoryCases() []attackCase {
	var out []attackCase
	for _, v := range []struct {
		how, attack string
		stopped     []string // besides by the limit
	}{
		{"memfd", "write to memfds with the allowed flag", []string{"ENOSYS"}},
		{"shared", "unmap all but a page of shared mappings", []string{"EPERM"}},
		{"zero", "… of /dev/zero", nil},
		{"semaphore", "make sets of semaphores", []string{"ENOSPC", "ENOSYS"}},
		{"message", "leave empty messages in queues", []string{"ENOSPC", "ENOSYS"}},
		{"segment", "make, fill and detach shared memory segments", []string{"ENOSPC", "ENOSYS"}},
		{"tables", "read a byte in every 2 MiB of an empty mapping", nil},
		{"socket", "fill socket pairs", []string{"EAFNOSUPPORT"}},
		{"received", "fill TCP connections that it accepts and doesn't read", []string{"EAFNOSUPPORT"}},
		{"orphan", "… that it doesn't accept, and closes", []string{"EAFNOSUPPORT"}},
		{"datagram", "fill the queues of UDP sockets", []string{"EAFNOSUPPORT", "EMFILE"}},
		{"pipe", "fill enlarged pipes, 60 MiB with 48M", []string{"EPERM"}},
		{"mapping", "cut a mapping into pieces, in children too", nil},
		{"lock", "lock every second byte of files, 96 MiB with 48M", []string{"ENOLCK"}},
		{"policy", "give every second page of empty files a policy (mbind)", []string{"ENOSYS"}},
		{"acl", "give folders in memory long access control lists, by descriptor", []string{"ENOTSUP"}},
		{"folder", "open folders, of whose names the kernel keeps a block each, in children", nil},
	} {
		mib, memory := 256, "64M"
		switch v.how {
		case "pipe":
			mib, memory = 60, "48M" // the kernel's limit for a user without privileges is 64 MiB
		case "lock":
			mib, memory = 96, "48M" // the kernel looks through all of a file's each time
		}
		out = append(out, attackCase{number: 101, variant: v.how, name: "unmapped-memory", alone: true,
			attack:  v.attack,
			stopped: both(join(spent, v.stopped)...),
			note:    "256 MiB with --memory 64M. An errno: refused or bounded without a cgroup; EAFNOSUPPORT: a network without such sockets",
			stage: func(s *stage) (scene, error) {
				dir := s.where(".")
				if v.how == "acl" && !s.inside {
					dir = "/dev/shm" // disks hold shorter ones
				}
				return scene{probe: "unmapped", args: []string{"how=" + v.how, "mib=" + strconv.Itoa(mib), "dir=" + dir},
					opt: options{memory: memory, timeout: 30 * time.Second}}, nil
			}})
	}
	for _, how := range []string{"instances", "watches"} {
		out = append(out, inotifyCase(how))
	}
	return append(out, dumpableCase())
}

// manyInstances is more than a user of the host has by default.
const manyInstances = 200

// inotifyCase takes things that the kernel counts for a user. The canary is a program
// outside of the same user, which must still get its own: it tries while the cell holds its
// share.
func inotifyCase(how string) attackCase {
	count := manyInstances
	if how == "watches" {
		count = 12 << 10
	}
	return attackCase{number: 102, variant: how, name: "inotify-exhaustion", alone: true,
		attack:  fmt.Sprintf("have %d inotify %s", count, how),
		stopped: at([]string{"ENOSYS"}, []string{"EMFILE", "ENOSPC"}), note: "tier B has no inotify",
		stage: func(s *stage) (scene, error) {
			dir := "."
			if !s.inside {
				dir = s.dir
			}
			return scene{probe: "inotify", args: []string{"how=" + how, "count=" + strconv.Itoa(count), "stay=100", "dir=" + dir},
				opt: options{timeout: 30 * time.Second},
				canary: func(o *outcome) (bool, string) {
					r, _ := o.main()
					var n int
					fmt.Sscanf(r.Detail[max(strings.Index(r.Detail, "had "), 0):], "had %d", &n)
					// All that a user has, or as many as were asked for.
					return n >= count || how == "instances" && n > 100, fmt.Sprintf("%d %s in one cell", n, how)
				}}, nil
		}}
}

// suidDumpable is the variable that decides whether a process that changed its user may
// be looked into.
const suidDumpable = "/proc/sys/fs/suid_dumpable"

// dumpableCase is the reaper's memory again, on a host that lets others look into
// processes that changed their user. The variable is that for as long as one call takes.
func dumpableCase() attackCase {
	return attackCase{number: 103, name: "suid-dumpable", alone: true,
		attack:  "read the memory of process 1 and the parent where fs.suid_dumpable is 1",
		stopped: both("EACCES", "EPERM", "ENOENT", "ESRCH"),
		stage: func(s *stage) (scene, error) {
			v, err := s.victim()
			if err == nil && s.inside && os.Geteuid() == 0 {
				err = s.setDumpable()
			}
			return scene{probe: "reaper", args: []string{"file=mem", fmt.Sprintf("pids=%d", v.pid)}}, err
		}}
}

// setDumpable sets the variable until the stage is closed. Its case runs alone.
func (s *stage) setDumpable() error {
	before, err := os.ReadFile(suidDumpable)
	if err != nil {
		return err
	}
	s.later(func() { os.WriteFile(suidDumpable, before, 0) })
	return os.WriteFile(suidDumpable, []byte("1"), 0)
}

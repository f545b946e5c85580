package main

import "os"

// kernelCases are 47 to 65: parts of the kernel that a tool does not need.
func kernelCases() []attackCase {
	out := []attackCase{
		call(47, "setup", "io_uring", "make a ring, which no filter sees into", both(filtered...), "io_uring"),
		call(49, "plain", "clone3-pointer", "clone3, whose flags are in memory", both("ENOSYS"), "clone3"),
		call(49, "newuser", "clone3-pointer", "clone3 with a new user namespace", both("ENOSYS"), "clone3", "kind=user"),
	}
	for _, kind := range []string{"user", "user+net", "user+mnt", "user+pid", "user+ipc+uts+cgroup"} {
		out = append(out, call(48, "clone-"+kind, "nested-userns", "clone with new namespaces: "+kind, both(join(filtered, []string{"ENOSPC"})...), "clone", "kind="+kind))
	}
	for _, kind := range []string{"user", "mnt", "net", "pid", "uts", "ipc", "cgroup", "time"} {
		out = append(out, call(50, "unshare-"+kind, "setns-unshare", "unshare "+kind+", as root of a new user namespace if it can", both(filtered...), "unshare", "kind="+kind))
	}
	for _, how := range []string{"fd", "pidfd"} {
		out = append(out, call(50, "setns-"+how, "setns-unshare", "setns by "+how, both(join(filtered, []string{"ENOENT", "EACCES"})...), "setns", "how="+how))
	}
	for _, how := range []string{"tmpfs", "bind", "overlay", "remount", "umount"} {
		out = append(out, call(51, how, "mount-old-api", "mount(2): "+how, both(filtered...), "mount", "how="+how))
	}
	for _, how := range []string{"fsopen", "fsmount", "fspick", "open_tree", "move_mount", "mount_setattr"} {
		out = append(out, call(52, how, "mount-new-api", "the mount calls by descriptor: "+how, both(filtered...), "mount2", "how="+how))
	}
	for _, how := range []string{"chroot", "pivot"} {
		out = append(out, call(53, how, "chroot-escape", how, both(filtered...), "root", "how="+how))
	}
	out = append(out,
		call(55, "map", "bpf", "create a map", both(filtered...), "bpf", "how=map"),
		call(55, "prog", "bpf", "load a program", both(filtered...), "bpf", "how=prog"),
		call(56, "", "perf_event_open", "count events of this process", both(filtered...), "perf"),
		call(57, "syscall", "userfaultfd", "handle our own page faults", both(filtered...), "userfaultfd", "how=syscall"),
		call(57, "device", "userfaultfd", "the same through /dev/userfaultfd", both(join(filtered, []string{"ENOENT", "EACCES"})...), "userfaultfd", "how=device"),
		call(62, "", "fanotify", "watch the file system", both(filtered...), "fanotify"),
		call(63, "", "kcmp", "compare kernel pointers", both(filtered...), "kcmp"),
		call(64, "", "modify_ldt", "write the descriptor table", both(filtered...), "ldt"),
	)
	for _, how := range []string{"splice", "vmsplice", "tee"} {
		out = append(out, call(65, how, "splice-vmsplice-tee", "move pages without copying: "+how, both(join(filtered, []string{"EINVAL"})...), "splice", "how="+how))
	}
	return append(out, execCases()...)
}

// execCases are 58 and 59: a program that the host never saw. The canary is
// that a copy of the attack program, executed so, speaks.
func execCases() []attackCase {
	var out []attackCase
	for _, v := range []struct {
		number                     int
		variant, name, attack, how string
	}{
		{58, "plain", "memfd-exec", "execute a memfd through /proc/self/fd", "memfd"},
		{58, "exec", "memfd-exec", "the same, made with MFD_EXEC", "memfd"},
		{58, "execveat", "memfd-exec", "execute a memfd with execveat", "memfd"},
		{59, "unlinked", "execveat-empty-path", "execute a file without a name with AT_EMPTY_PATH", "execveat"},
		{59, "self", "execveat-empty-path", "execute what we were started from with AT_EMPTY_PATH", "execveat"},
	} {
		out = append(out, attackCase{number: v.number, variant: v.variant, name: v.name, attack: v.attack,
			stopped: both(join(filtered, []string{"EACCES", "ENOENT"})...), stage: func(s *stage) (scene, error) {
				return scene{probe: v.how, args: []string{"how=" + v.variant, "token=" + s.nonce}, canary: executed}, nil
			}})
	}
	// With the flag that the filter lets through: what a memfd of that kind holds is never
	// executable. Outside it is made without, or the control would show nothing.
	return append(out, attackCase{number: 58, variant: "sealed", name: "memfd-exec", attack: "execute one that is made with MFD_NOEXEC_SEAL, after a chmod",
		stopped: both("EACCES", "EPERM", "ENOSYS"), note: "ENOSYS: without a cgroup there is no memfd",
		stage: func(s *stage) (scene, error) {
			how := "plain"
			if s.inside {
				how = "sealed"
			}
			return scene{probe: "memfd", args: []string{"how=" + how, "token=" + s.nonce}, canary: executed}, nil
		}})
}

// executed is the canary of a program that must not have run.
func executed(o *outcome) (bool, string) {
	for _, l := range o.lines {
		if l.Case == "executed" && l.Outcome == "OPEN" {
			return true, "the program ran"
		}
	}
	return false, ""
}

// reached are the calls that a filter must stop, made with arguments that mean
// nothing, by the number of the case that they belong to.
var reached = []struct {
	number int
	name   string
	calls  []string
}{
	{28, "pidfd-host", []string{"pidfd_getfd"}},
	{29, "ptrace-host", []string{"ptrace", "process_vm_readv", "process_vm_writev"}},
	{33, "add-key", []string{"keyctl", "add_key", "request_key"}},
	{47, "io_uring", []string{"io_uring_setup", "io_uring_enter", "io_uring_register"}},
	{49, "clone3-pointer", []string{"clone3"}},
	{50, "setns-unshare", []string{"unshare", "setns"}},
	{51, "mount-old-api", []string{"mount", "umount2"}},
	{52, "mount-new-api", []string{"mount_setattr", "open_tree", "fsconfig"}},
	{53, "chroot-escape", []string{"chroot"}},
	{54, "open_by_handle_at", []string{"open_by_handle_at", "name_to_handle_at"}},
	{55, "bpf", []string{"bpf"}},
	{56, "perf_event_open", []string{"perf_event_open"}},
	{57, "userfaultfd", []string{"userfaultfd"}},
	{62, "fanotify", []string{"fanotify_init"}},
	{63, "kcmp", []string{"kcmp"}},
	{64, "modify_ldt", []string{"modify_ldt"}},
	{65, "splice-vmsplice-tee", []string{"vmsplice", "tee", "splice"}},
}

// abiCases are 66 to 68 and 70, and the reach of single calls.
func abiCases() []attackCase {
	var out []attackCase
	ia32 := []string{"getpid", "socket", "shmget", "mq_open", "execveat"}
	for _, r := range reached {
		for _, c := range r.calls {
			ia32 = append(ia32, c)
			if r.number == 65 {
				continue // the calls themselves prove more
			}
			ac := call(r.number, "reach-"+c, r.name, "make the call with arguments that mean nothing", both(filtered...), "reach", "call="+c)
			ac.note = "the kernel answers EFAULT, EBADF, EINVAL or ESRCH; a filter answers first"
			out = append(out, ac)
		}
	}
	for _, c := range ia32 {
		out = append(out, call(66, c, "int80-compat", c+" through int $0x80", both("SIGSYS", "ENOSYS"), "reach-i386", "call="+c))
	}
	for _, c := range []string{"getpid", "keyctl", "unshare", "ptrace"} {
		out = append(out, call(67, c, "x32", c+" with the x32 bit in its number", both(filtered...), "x32", "call="+c))
	}
	return append(out, ttyCases()...)
}

// ttyCases type on the terminal from which the launcher was started, which is
// its controlling terminal. The canary is what then stands in its input.
func ttyCases() []attackCase {
	out := []attackCase{
		call(68, "tioclinux", "seccomp-arg-highbits", "TIOCLINUX with bit 32 set, on no terminal", both(filtered...), "ioctl", "request=0x10000541c"),
		call(68, "reach", "seccomp-arg-highbits", "TIOCSTI with bit 32 set, on no terminal", both(filtered...), "ioctl", "request=0x100005412"),
		call(70, "reach", "tiocsti", "TIOCSTI on no terminal", both(filtered...), "ioctl", "request=0x5412"),
	}
	for _, v := range []struct {
		number     int
		name, more string
	}{{68, "seccomp-arg-highbits", "high=1"}, {70, "tiocsti", "low=1"}} {
		out = append(out, attackCase{number: v.number, variant: "terminal", name: v.name, attack: "type on the launcher's terminal",
			stopped: both(join(filtered, []string{"ENOTTY", "EIO", "EBADF"})...), stage: func(s *stage) (scene, error) {
				return scene{probe: "tiocsti", args: []string{"token=" + s.nonce, v.more}, opt: options{wrap: []string{s.b.attack, "on-tty", "--"}},
					canary: func(o *outcome) (bool, string) {
						for _, l := range o.lines {
							if l.Outcome == "TYPED" && l.Detail == s.nonce+"\n" {
								return true, "the launcher's terminal has the input"
							}
						}
						return false, ""
					}}, nil
			}})
	}
	return out
}

// exists reports whether a path is there.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

package main

import "os"

// kernelCases are 47 to 65: parts of the kernel that a tool does not need.
func kernelCases() []attackCase {
	out := []attackCase{
		call(47, "setup", "io_uring", "make a ring, which no filter sees into", both(filtered...), "io_uring"),
		call(49, "plain", "clone3-pointer", "clone3, whose flags are in memory", both("ENOSYS"), "clone3"),
		call(49, "newuser", "clone3-pointer", "… for a user namespace", both("ENOSYS"), "clone3", "kind=user"),
	}
	for _, kind := range []string{"user", "user+net", "user+mnt", "user+pid", "user+ipc+uts+cgroup"} {
		out = append(out, call(48, "clone-"+kind, "nested-userns", "clone with new namespaces", both(join(filtered, []string{"ENOSPC"})...), "clone", "kind="+kind))
	}
	for _, kind := range []string{"user", "mnt", "net", "pid", "uts", "ipc", "cgroup", "time"} {
		out = append(out, call(50, "unshare-"+kind, "setns-unshare", "unshare it, as root of a new user namespace if possible", both(filtered...), "unshare", "kind="+kind))
	}
	for _, how := range []string{"fd", "pidfd"} {
		out = append(out, call(50, "setns-"+how, "setns-unshare", "call setns with it", both(join(filtered, []string{"ENOENT", "EACCES"})...), "setns", "how="+how))
	}
	for _, how := range []string{"tmpfs", "bind", "overlay", "remount", "umount"} {
		out = append(out, call(51, how, "mount-old-api", "mount(2)", both(filtered...), "mount", "how="+how))
	}
	for _, how := range []string{"fsopen", "fsmount", "fspick", "open_tree", "move_mount", "mount_setattr"} {
		out = append(out, call(52, how, "mount-new-api", "the newer mount calls", both(filtered...), "mount2", "how="+how))
	}
	for _, how := range []string{"chroot", "pivot"} {
		out = append(out, call(53, how, "chroot-escape", "change the root", both(filtered...), "root", "how="+how))
	}
	out = append(out,
		call(55, "map", "bpf", "create a map", both(filtered...), "bpf", "how=map"),
		call(55, "prog", "bpf", "load a program", both(filtered...), "bpf", "how=prog"),
		call(55, "seccomp", "bpf", "install a seccomp filter, whose compiled form takes of the memory that all filters of the host share", both("EINVAL"), "bpf-classic", "how=seccomp"),
		call(55, "prctl", "bpf", "… by prctl", both("EINVAL"), "bpf-classic", "how=prctl"),
		call(55, "socket", "bpf", "… on a socket", both(noFamily...), "bpf-classic", "how=socket"),
		call(56, "", "perf_event_open", "count own events", both(filtered...), "perf"),
		call(57, "syscall", "userfaultfd", "handle own page faults", both(filtered...), "userfaultfd", "how=syscall"),
		call(57, "device", "userfaultfd", "… through /dev/userfaultfd", both(join(filtered, []string{"ENOENT", "EACCES"})...), "userfaultfd", "how=device"),
		call(62, "", "fanotify", "watch the file system", both(filtered...), "fanotify"),
		call(63, "", "kcmp", "compare kernel pointers", both(filtered...), "kcmp"),
		call(64, "", "modify_ldt", "write the descriptor table", both(filtered...), "ldt"),
	)
	for _, how := range []string{"splice", "vmsplice", "tee"} {
		out = append(out, call(65, how, "splice-vmsplice-tee", "move pages without copying", both(join(filtered, []string{"EINVAL"})...), "splice", "how="+how))
	}
	return append(out, execCases()...)
}

// execCases are 58 and 59: a program that the host never saw. The canary: a copy of the
// attack program, executed so, speaks.
func execCases() []attackCase {
	var out []attackCase
	for _, v := range []struct {
		number                     int
		variant, name, attack, how string
	}{
		{58, "plain", "memfd-exec", "execute a memfd through /proc/self/fd", "memfd"},
		{58, "exec", "memfd-exec", "… made with MFD_EXEC", "memfd"},
		{58, "execveat", "memfd-exec", "… with execveat", "memfd"},
		{59, "unlinked", "execveat-empty-path", "execute a file without a name", "execveat"},
		{59, "self", "execveat-empty-path", "… the executed file", "execveat"},
	} {
		out = append(out, attackCase{number: v.number, variant: v.variant, name: v.name, attack: v.attack,
			stopped: both(join(filtered, []string{"EACCES", "ENOENT"})...), stage: func(s *stage) (scene, error) {
				return scene{probe: v.how, args: []string{"how=" + v.variant, "token=" + s.nonce}, canary: executed}, nil
			}})
	}
	// The filter lets this flag through: the content of a memfd of that kind is never
	// executable. Outside it is made without the flag, or the control would show nothing.
	return append(out, attackCase{number: 58, variant: "sealed", name: "memfd-exec", attack: "… made with MFD_NOEXEC_SEAL, after chmod",
		stopped: both("EACCES", "EPERM", "ENOSYS"), note: "ENOSYS: no memfd without a cgroup",
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

// reached are the calls that a filter must stop, with meaningless arguments, by the number
// of their case.
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
	{107, "aio-exhaustion", []string{"io_setup"}}, // fs.aio-max-nr is for all of the host
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
			out = append(out, call(r.number, "reach-"+c, r.name, "make the call with meaningless arguments", both(filtered...), "reach", "call="+c))
		}
	}
	for _, c := range ia32 {
		out = append(out, call(66, c, "int80-compat", "make the call through int $0x80", both("SIGSYS", "ENOSYS"), "reach-i386", "call="+c))
	}
	for _, c := range []string{"getpid", "keyctl", "unshare", "ptrace"} {
		out = append(out, call(67, c, "x32", "make the call with the x32 bit", both(filtered...), "x32", "call="+c))
	}
	return append(out, ttyCases()...)
}

// ttyCases type on the terminal from which the launcher was started, which is its
// controlling terminal. The canary is the terminal's input afterwards.
func ttyCases() []attackCase {
	out := []attackCase{
		call(68, "tioclinux", "seccomp-arg-highbits", "TIOCLINUX with bit 32 set, without a terminal", both(filtered...), "ioctl", "request=0x10000541c"),
		call(68, "reach", "seccomp-arg-highbits", "TIOCSTI, the same", both(filtered...), "ioctl", "request=0x100005412"),
		call(70, "reach", "tiocsti", "TIOCSTI without a terminal", both(filtered...), "ioctl", "request=0x5412"),
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

// exists reports whether a path exists.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

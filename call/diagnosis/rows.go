package diagnosis

import (
	"fmt"
	"strconv"
	"strings"

	"palyra/call"
	"palyra/call/egress"
)

// Row is one line of the table.
type Row struct {
	Code string
	// Text is the sentence. {limit} stands for the call's limit, {cut} for dropped bytes,
	// {signal} for a signal's name, {denied} for a host and its port, {refused} for the host alone,
	// {exceeded} for a limit of its connections, {ssh} for the host of a remote over SSH and {caches}
	// for the call's caches.
	Text                string
	When                string // when it applies, for the page
	Flag, Input, Config string // see Diagnosis

	limit  func(*call.Limits) string
	denied string // the reason of the denial that the sentence is about

	// One of them says whether the row applies: observed to the evidence, status to the exit
	// status, text to a line of standard error in lower case.
	observed func(*facts) bool
	status   int
	text     func(s *Seen, line string) bool
}

// Basis is Observed or Guess.
func (r *Row) Basis() string {
	if r.observed != nil {
		return Observed
	}
	return Guess
}

// Rows returns the table. The first row that applies is the diagnosis.
func Rows() []Row { return append([]Row(nil), rows...) }

// OutputLimit is the code of dropped output.
const OutputLimit = "output_limit"

const (
	sigKill = 9
	sigXCPU = 24
	sigXFSZ = 25
	sigSys  = 31
)

// signals are the names of those that rows speak of: Linux has these numbers on every
// architecture that Palyra runs on.
var signals = map[int]string{1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 8: "SIGFPE",
	sigKill: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", sigXCPU: "SIGXCPU", sigXFSZ: "SIGXFSZ", sigSys: "SIGSYS"}

// The names of settings that several rows have.
const (
	workspacePath     = "workspaces.NAME.path"
	workspaceReadOnly = "workspaces.NAME.read_only"
)

// A guess that many programs' texts fit stands after those that few fit.
var rows = []Row{
	{Code: "time_limit", Text: "the time limit of {limit} passed", When: "the evidence's limit_hit is wall",
		Flag: "--timeout", Input: "timeout_ms", limit: func(l *call.Limits) string { return l.Wall.String() }, observed: hit("wall")},
	{Code: "cpu_limit", Text: "{signal} ended the program, the signal for processor time beyond the limit of {limit}", When: "limit_hit is cpu",
		Flag: "--cpu", Input: "cpu_ms", limit: cpuLimit, observed: hit("cpu")},
	{Code: "memory_limit", Text: "the call used up its memory limit of {limit}, to which files in /tmp and /dev/shm count", When: "limit_hit is memory",
		Flag: "--memory", Input: "memory", limit: memoryLimit, observed: hit("memory")},
	{Code: "disk_limit", Text: "the private folder or layer held more than {limit}, or a cache ({caches}) too much: see palyra caches ls", When: "limit_hit is disk, in a call with caches",
		limit: diskLimit, observed: func(f *facts) bool { return f.limitHit == "disk" && f.caches }},
	{Code: "disk_limit", Text: "the call's private folder, or its layer, held more than {limit}; a workspace holds more", When: "limit_hit is disk, in any other call",
		Flag: "--disk", Input: "workspace", Config: workspacePath, limit: diskLimit, observed: hit("disk")},
	{Code: "uncounted", Text: "the program kept Palyra from counting its memory or files, so the call was ended", When: "limit_hit is uncounted",
		observed: hit("uncounted")},
	{Code: "file_size_limit", Text: "SIGXFSZ ended the program, the signal for a file beyond the limit of {limit}", When: "the program ended by SIGXFSZ",
		Flag: "--max-file", limit: fileLimit, observed: by(sigXFSZ)},
	{Code: "foreign_syscall", Text: "SIGSYS ended the program, the signal for a system call of another architecture", When: "it ended by SIGSYS",
		observed: by(sigSys)},
	{Code: "killed", Text: "SIGKILL ended the program, and Palyra saw no limit hit", When: "it ended by SIGKILL, and no limit was hit",
		observed: by(sigKill)},

	{Code: "cpu_limit", Text: "a process used up its processor time of {limit}", When: "status 152: a shell's for SIGXCPU",
		Flag: "--cpu", Input: "cpu_ms", limit: cpuLimit, status: 152},
	{Code: "file_size_limit", Text: "a process wrote a file up to the limit of {limit}", When: "status 153: a shell's for SIGXFSZ",
		Flag: "--max-file", limit: fileLimit, status: 153},
	{Code: "foreign_syscall", Text: "a process made a system call of another architecture", When: "status 159: a shell's for SIGSYS",
		status: 128 + sigSys},
	{Code: "killed", Text: "SIGKILL ended a process of the call", When: "status 137: a shell's for SIGKILL",
		status: 128 + sigKill},

	{Code: "processes_limit", Text: "the call has as many processes and threads as its limit of {limit} permits", When: "no process or thread could be started: `fork: Resource temporarily unavailable`",
		Flag: "--pids", Input: "pids", limit: func(l *call.Limits) string { return fmt.Sprint(l.PIDs) },
		text: anyOf(all(has("resource temporarily unavailable", "eagain"), has("fork", "clone", "thread", "spawn")),
			has("can't start new thread", "failed to create new os thread", "unable to create native thread", "unable to create new native thread"))},
	{Code: "file_size_limit", Text: "a file reached the limit of {limit}", When: "`File too large`, `File size limit exceeded`",
		Flag: "--max-file", limit: fileLimit, text: has("file too large", "file size limit exceeded", "efbig")},
	{Code: "memory_limit", Text: "a process reached the memory limit of {limit}", When: "`Cannot allocate memory`, `MemoryError`, `out of memory`, `bad_alloc`",
		Flag: "--memory", Input: "memory", limit: memoryLimit,
		text: has("cannot allocate memory", "memoryerror", "memory exhausted", "out of memory", "bad_alloc", "enomem", "virtual memory exhausted")},
	{Code: "open_files_limit", Text: "a process had {limit} open files, and no setting raises that", When: "`Too many open files`",
		limit: func(l *call.Limits) string { return fmt.Sprint(l.OpenFiles) }, text: has("too many open files", "emfile")},
	{Code: "disk_full", Text: "a private folder such as /tmp was full, with {limit}; a workspace and the /tmp of a session hold more", When: "`No space left on device`",
		Flag: "--disk", Input: "tmp", Config: workspacePath,
		limit: diskLimit, text: has("no space left on device", "enospc", "disk quota exceeded")},
	{Code: "no_ssh_key", Text: "git over SSH needs a key, and a call has none: use https://{ssh}/, with its token as a placeholder", When: "what the next row has, and the host is known: the program was denied it, the call names it, or git's arguments have it (`git@HOST:PATH`, `ssh://HOST/PATH`), or it's the one whose port 22 the call names",
		Flag: "--egress-secret", Input: "egress_secrets",
		text: all(sshLine, func(s *Seen, l string) bool { return sshHost(s, []string{l}) != "" })},
	{Code: "no_ssh_key", Text: "git over SSH needs a key, and a call has none: use the HTTPS remote, with its token as a placeholder", When: "`ssh: Could not resolve hostname`, `ssh: connect to host`, `Host key verification failed`, `Permission denied (publickey`, `kex_exchange_identification`, `Connection reset by HOST port N`",
		Flag: "--egress-secret", Input: "egress_secrets",
		text: sshLine},
	{Code: "EgressDenied", Text: "the program asked for {denied}; git over SSH has no key in a call: use the HTTPS remote https://{refused}/", When: "`egress.denied` has port 22 of a name that no rule of the call has",
		Flag: "--egress", Input: "egress_hosts", denied: notListed, observed: deniedSSH},
	{Code: "EgressDenied", Text: "the program asked for {denied}, which the call does not name among its hosts", When: "the evidence's `egress.denied` has a name or address that no rule of the call has",
		Flag: "--egress", Input: "egress_hosts", denied: notListed, observed: denied(notListed)},
	{Code: "EgressDenied", Text: "the program asked for {denied}, which is in no network that the call names, as it has to be over http://", When: "`egress.denied` has the name of a model over `http://`, which leads elsewhere than into the model's `network`: to a public address, too",
		denied: forbidden, observed: func(f *facts) bool { return f.networks && denied(forbidden)(f) }},
	{Code: "EgressDenied", Text: "the program asked for {denied}, which is in a private network that the call does not name", When: "`egress.denied` has a name that resolves into a range which no rule of the call has",
		Flag: "--egress", Input: "egress_hosts", denied: forbidden, observed: denied(forbidden)},
	{Code: "EgressDenied", Text: "the program asked for {denied} beyond {exceeded}", When: "`egress.denied` has a connection or a name beyond a limit of the call, or a bound of a rule",
		denied: limited, observed: denied(limited)},
	{Code: "name_unresolved", Text: "this host's resolver knows no address of {denied}", When: "`egress.denied` has a name of the call's hosts that has no address",
		denied: noName, observed: denied(noName)},
	{Code: "name_unresolved", Text: "this host's resolver did not answer for {denied}", When: "`egress.denied` has a name of the call's hosts for which the host's resolver didn't answer",
		denied: noAnswer, observed: denied(noAnswer)},
	{Code: "no_network", Text: "a call reaches the hosts alone that it names; the network loopback gives it 127.0.0.1 and ::1 of its own", When: "`Network is unreachable`, `Could not resolve host`, `Address family not supported`, and what languages make of these",
		Flag: "--egress", Input: "egress_hosts",
		text: anyOf(all(has("failed to connect to"), has(" port ")), has("network is unreachable", "enetunreach", "temporary failure in name resolution", "temporary failure resolving", "could not resolve host",
			"unable to resolve host", "name or service not known", "nodename nor servname", "no such host", "unknownhostexception", "could not translate host name",
			"eai_again", "getaddrinfo enotfound", "address family not supported", "eafnosupport", "couldn't connect to server", "dial tcp", "dial udp"))},
	{Code: "script_by_path", Text: "a sealed script is read by descriptor, and its interpreter wants a path: run that with it, as in node ./x.js", When: "an error that names /memfd:palyra-script",
		text: has("/memfd:palyra-script")},
	{Code: "no_terminal", Text: "the call has no terminal", When: "`not a tty`, `Inappropriate ioctl for device`, or an error that names /dev/tty; a call without one",
		Flag: "--tty", Input: "tty",
		text: all(func(s *Seen, _ string) bool { return !s.TTY },
			anyOf(has("not a tty", "not a terminal", "pseudo-terminal", "openpty", "inappropriate ioctl for device"), all(has("/dev/tty"), has("no such", "read-only", "denied"))))},
	{Code: "no_device", Text: "a cell has only the devices null, zero, full, random and urandom", When: "an error that names another file in /dev",
		text: all(otherDevice, has("no such file or directory", "permission denied", "operation not permitted"))},
	{Code: "no_namespaces", Text: "cells refuse mounts and further namespaces, and no setting permits them", When: "a line with unshare, mount, chroot, bwrap or namespace, and a refusal",
		text: all(has("unshare", "setns", "mount", "pivot_root", "chroot", "bwrap", "namespace"), has(refusals...))},
	{Code: "no_tracing", Text: "cells refuse to trace processes, and no setting permits it", When: "a line with ptrace, strace, gdb or perf, and a refusal",
		text: anyOf(all(has("ptrace", "strace:", "gdb:", "process_vm", "perf_event"), has(refusals...)), has("could not trace the inferior process"))},
	{Code: "no_privileges", Text: "a program in a cell gets no privileges: no other user, no setuid", When: "a line with sudo, su, chown, setuid or mknod, and a refusal",
		text: all(has("sudo:", "su:", "chown", "chgrp", "changing ownership", "changing group", "setuid", "seteuid", "setgid", "setegid", "setgroups", "set groups", "mknod", "capset"),
			has(append([]string{"setuid bit", "no new privileges", "invalid argument"}, refusals...)...))},
	{Code: "read_only", Text: "only /tmp, /dev/shm and a writable workspace can be written", When: "`Read-only file system`",
		Flag: "--workspace", Input: "read_only", Config: workspaceReadOnly, text: has("read-only file system", "erofs")},
	{Code: "host_path", Text: "the workspace's path on the host means nothing in a cell: there it's /workspace", When: "an error that names a path in the workspace by its host path; tier C",
		text: func(s *Seen, l string) bool {
			return !s.InPlace && s.Workspace != "" && has("no such file or directory", "enoent", "permission denied")(s, l) && strings.Contains(l, strings.ToLower(s.Workspace))
		}},
	{Code: "empty_home", Text: "the HOME of a call is /tmp, private and empty at first", When: "`No such file or directory` with a path below /tmp that begins with a dot; tier C",
		text: func(s *Seen, l string) bool {
			return !s.InPlace && has("no such file or directory", "enoent")(s, l) && strings.Contains(l, "/tmp/.")
		}},
	{Code: "not_shown", Text: "the cell doesn't show that path: of the host it has /usr, a little of /etc and a workspace", When: "`No such file or directory` with a path below /home, /root, /etc, /var, /opt and the like; tier C",
		Flag: "--workspace", Input: "workspace", Config: workspacePath,
		text: func(s *Seen, l string) bool {
			return !s.InPlace && has("no such file or directory", "enoent")(s, l) && names(l, hidden)
		}},
	{Code: "not_permitted", Text: "outside its workspace and /tmp, a call may read little and write nothing", When: "`Permission denied` with an absolute path outside /workspace and /tmp",
		Flag: "--workspace", Input: "workspace", Config: workspacePath,
		text: func(s *Seen, l string) bool {
			return has("permission denied", "eacces")(s, l) && names(l, func(top string) bool { return top != "workspace" && top != "tmp" })
		}},
	{Code: "program_missing", Text: "a cell has the programs below /usr and in its workspace, and no others", When: "`command not found`, or status 127 and `not found` or `No such file or directory`",
		Flag: "--workspace", Input: "workspace", Config: workspacePath,
		text: anyOf(has("command not found"), func(s *Seen, l string) bool {
			return s.Code == 127 && has("not found", "no such file or directory")(s, l)
		})},

	{Code: "signal", Text: "{signal} ended the program, and no limit of the call sends that signal", When: "it ended by a signal such as SIGSEGV, SIGABRT or SIGTERM",
		observed: func(f *facts) bool { return f.limitHit == "" && f.signal != sigXCPU && signals[f.signal] != "" }},
	{Code: OutputLimit, Text: "{cut} bytes beyond the output limit of {limit} were dropped", When: "output was dropped",
		Flag: "--max-output", Input: "output", limit: func(l *call.Limits) string { return call.Bytes(l.Output) },
		observed: func(f *facts) bool { return f.cut > 0 }},
}

func cpuLimit(l *call.Limits) string    { return seconds(l.CPU) }
func memoryLimit(l *call.Limits) string { return call.Bytes(l.Memory) }
func diskLimit(l *call.Limits) string {
	return fmt.Sprintf("%s or %d files", call.Bytes(l.Disk), l.Inodes)
}
func fileLimit(l *call.Limits) string { return call.Bytes(l.FileSize) }

func hit(limit string) func(*facts) bool { return func(f *facts) bool { return f.limitHit == limit } }

// Why a host was denied, as evidence.Denial has it.
const (
	notListed = "not_listed"
	forbidden = "forbidden"
	noName    = "no_name"
	noAnswer  = "no_answer"
	limited   = "limit"
)

func denied(why string) func(*facts) bool {
	return func(f *facts) bool { return refusedFor(why, f.refused) != "" }
}

// deniedSSH reports whether the first host that was denied is a name's port 22.
func deniedSSH(f *facts) bool {
	name, port, _ := strings.Cut(refusedFor(notListed, f.refused), ":")
	_, addr, err := egress.Host(name)
	return err == nil && !addr.IsValid() && port == strconv.Itoa(sshPort)
}

func by(signal int) func(*facts) bool {
	return func(f *facts) bool { return f.limitHit == "" && f.signal == signal }
}

// refusals are how programs put EPERM and EACCES.
var refusals = []string{"operation not permitted", "permission denied", "must be superuser", "must be root", "only root", "no permissions", "eperm", "eacces"}

type matcher = func(s *Seen, line string) bool

// has fits a line with any of the texts, which are in lower case.
func has(texts ...string) matcher {
	return func(_ *Seen, line string) bool {
		for _, t := range texts {
			if strings.Contains(line, t) {
				return true
			}
		}
		return false
	}
}

func all(ms ...matcher) matcher {
	return func(s *Seen, line string) bool {
		for _, m := range ms {
			if !m(s, line) {
				return false
			}
		}
		return true
	}
}

func anyOf(ms ...matcher) matcher {
	return func(s *Seen, line string) bool {
		for _, m := range ms {
			if m(s, line) {
				return true
			}
		}
		return false
	}
}

// otherDevice fits a line that names a file in /dev that cells don't have.
func otherDevice(_ *Seen, line string) bool {
	for rest := line; ; {
		_, after, ok := strings.Cut(rest, "/dev/")
		if !ok {
			return false
		}
		name := after
		if n := strings.IndexFunc(after, func(r rune) bool { return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '_' || r == '-') }); n >= 0 {
			name = after[:n]
		}
		switch name {
		case "", "null", "zero", "full", "random", "urandom", "shm", "fd", "stdin", "stdout", "stderr":
		default:
			return true
		}
		rest = after
	}
}

// hidden reports whether a cell shows little or nothing of a folder of the host's root.
func hidden(top string) bool {
	switch top {
	case "home", "root", "etc", "var", "opt", "srv", "mnt", "media", "nix", "snap", "run", "sys", "boot", "users":
		return true
	}
	return false
}

// names reports whether line has an absolute path whose first element f accepts.
func names(line string, f func(top string) bool) bool {
	for i := range len(line) {
		if line[i] != '/' || i > 0 && !strings.ContainsRune(" '\"`=:([<\t", rune(line[i-1])) && line[i-1] < 0x80 {
			continue
		}
		top := line[i+1:]
		if n := strings.IndexFunc(top, func(r rune) bool {
			return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '.' || r == '_' || r == '-')
		}); n >= 0 {
			top = top[:n]
		}
		if top != "" && f(top) {
			return true
		}
	}
	return false
}

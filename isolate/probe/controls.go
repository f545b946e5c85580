package probe

import "palyra/isolate/tier"

// clone(2), linux/sched.h.
const (
	newTime   = 0x00000080
	newNS     = 0x00020000
	newCgroup = 0x02000000
	newUTS    = 0x04000000
	newIPC    = 0x08000000
	newUser   = 0x10000000
	newPID    = 0x20000000
	newNet    = 0x40000000
)

const usernsHint = "allow user namespaces: sysctl user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1, " +
	"kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile with userns for palyra-cell"

// Controls returns the table.
func Controls() []Control {
	both, c := []tier.Tier{tier.B, tier.C}, []tier.Tier{tier.C}
	namespace := func(kind, since, cost string, flag uint64) Control {
		return Control{Name: kind + "_namespace", Since: since, How: "start a process in a new one and compare it with ours",
			Cost: cost, Hint: usernsHint, Needed: c, namespaces: newUser | flag}
	}
	return []Control{
		{Name: "no_new_privs", Since: "3.5", How: "set it and read it back", Needed: both,
			Cost: "setuid programs could raise privileges; nothing runs without it"},
		{Name: "seccomp_filter", Since: "3.5", How: "install a filter and make the call that it refuses", Needed: both,
			Cost: "no system call can be refused; nothing runs without it", Hint: "boot a kernel with CONFIG_SECCOMP_FILTER"},
		{Name: "seccomp_kill_process", Since: "4.14", How: "ask the kernel whether it knows the action", Needed: both,
			Cost: "a call through another system call table would end a thread only"},
		{Name: "landlock", Since: "5.13", How: "restrict a thread to nothing and open /", Needed: both,
			Cost: "files are confined by one layer less", Hint: "boot with CONFIG_SECURITY_LANDLOCK and landlock in the lsm= list"},
		{Name: "landlock_scopes", Since: "6.12", How: "build a ruleset that scopes signals and abstract sockets",
			Cost: "at tier B other processes of the user can be signalled"},
		{Name: "close_range", Since: "5.9", How: "close a descriptor and see it closed", Needed: both,
			Cost: "descriptors could be left open by mistake"},
		{Name: "pidfd", Since: "5.3", How: "open a child by PID, signal it and wait for it", Needed: both,
			Cost: "a process could be mistaken for another that took its number"},
		{Name: "clone3", Since: "5.5", How: "make a malformed call and see it refused", Needed: both,
			Cost: "cells cannot be started"},
		{Name: "execveat", Since: "3.19", How: "execute an open descriptor", Needed: both,
			Cost: "a program could be replaced between check and start"},
		{Name: "memfd_seals", Since: "3.17", How: "seal a memory file and try to write to it", Needed: both,
			Cost: "approved bytes could be changed before they run"},
		{Name: "memfd_noexec", Since: "6.3", How: "create a memory file that cannot be executed",
			Cost: "programs that use memfd_create fall back to files"},
		{Name: "openat2", Since: "5.6", How: "open through a symbolic link with links forbidden", Needed: both,
			Cost: "paths could be redirected while they are opened"},
		{Name: "user_namespace", Since: "3.8", How: "start a process in a new one and use its capabilities", Needed: c,
			Cost: "no tier C: it stands on user namespaces", Hint: usernsHint, namespaces: newUser | newUTS},
		{Name: "user_namespace_unprivileged", Since: "3.8", How: "the same as a user without privileges",
			Cost: "tier C needs root on this host", Hint: usernsHint, nobody: true},
		namespace("mnt", "3.8", "the host's files are in reach", newNS),
		namespace("pid", "3.8", "the host's processes are in reach", newPID),
		namespace("net", "3.8", "the host's network is in reach", newNet),
		namespace("ipc", "3.8", "the host's shared memory and queues are in reach", newIPC),
		namespace("uts", "3.8", "the host's name can be seen", newUTS),
		namespace("cgroup", "4.6", "the place in the host's cgroup tree can be seen", newCgroup),
		namespace("time", "5.6", "the host's uptime can be seen", newTime),
		{Name: "mount_api", Since: "5.12", How: "make a tmpfs, set its attributes and attach it, by descriptor", Needed: c,
			Cost: "the root could be redirected while it is built", Hint: usernsHint, namespaces: newUser | newNS},
		{Name: "proc_mount", Since: "5.2", How: "mount a new proc in a new PID namespace", Needed: c,
			Cost:       "programs see no /proc, or the host's",
			Hint:       "/proc must be fully visible: containers need an unmasked one (podman: --security-opt unmask=/proc/*)",
			namespaces: newUser | newNS | newPID},
		{Name: "tmpfs_quota", Since: "5.2", How: "fill a small tmpfs", Needed: c,
			Cost: "private directories could fill the machine's memory", namespaces: newUser | newNS},
		{Name: "idmapped_mount", Since: "5.12", How: "map the ids of a clone of the working directory's mount",
			Cost: "as root, a workspace is used with its owner's id instead; a user who is not root does not need it"},
		{Name: "cgroup_v2", Since: "5.14", How: "look for a delegated group with cpu, memory and pids",
			Cost: "memory is limited per process and not per tree", Hint: "run palyra as a systemd service with Delegate=cpu memory pids"},
	}
}

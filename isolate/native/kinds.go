package native

// Kinds names the namespaces of CLONE_NEW* flags as /proc/<pid>/ns does.
func Kinds(flags uint64) []string {
	kinds := []string{}
	for _, k := range []struct {
		flag uint64
		name string
	}{{cloneNewCgroup, "cgroup"}, {cloneNewIPC, "ipc"}, {cloneNewNS, "mnt"}, {cloneNewNet, "net"}, {cloneNewPID, "pid"},
		{cloneNewTime, "time"}, {cloneNewUser, "user"}, {cloneNewUTS, "uts"}} {
		if flags&k.flag != 0 {
			kinds = append(kinds, k.name)
		}
	}
	return kinds
}

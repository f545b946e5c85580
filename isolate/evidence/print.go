package evidence

import (
	"palyra/internal/canon"
)

// PrintCanonical implements canon.Printer: each type's members in the order of
// their names. TestPrint fails where a member of evidence is missing here.
func (e *Evidence) PrintCanonical(w *canon.Writer) { printEvidence(w, e) }

func printEvidence(w *canon.Writer, x *Evidence) {
	w.Raw(`{"cell":`)
	printCell(w, &x.Cell)
	w.Raw(`,"cgroup":`)
	printCgroup(w, &x.Cgroup)
	w.Raw(`,"degradations":`)
	w.Strings(x.Degraded)
	w.Raw(`,"executable":`)
	printExecutable(w, &x.Executable)
	w.Raw(`,"executor":`)
	w.String(x.Executor)
	w.Raw(`,"exit":`)
	printExit(w, &x.Exit)
	w.Raw(`,"host":`)
	printHost(w, &x.Host)
	w.Raw(`,"landlock":`)
	printLandlock(w, &x.Landlock)
	w.Raw(`,"limits":`)
	printLimits(w, &x.Limits)
	w.Raw(`,"mounts":`)
	printMounts(w, &x.Mounts)
	w.Raw(`,"namespaces":`)
	printNamespaces(w, &x.Namespaces)
	w.Raw(`,"network":`)
	printNetwork(w, &x.Network)
	w.Raw(`,"output":`)
	printOutput(w, &x.Output)
	w.Raw(`,"process":`)
	printProcess(w, &x.Process)
	if len(x.Scripts) > 0 {
		w.Raw(`,"scripts":`)
		canon.PrintList(w, x.Scripts, func(w *canon.Writer, x Executable) { printExecutable(w, &x) })
	}
	w.Raw(`,"seccomp":`)
	printSeccomp(w, &x.Seccomp)
	w.Raw(`,"tape":`)
	printTape(w, &x.Tape)
	w.Raw(`,"tier":`)
	w.String(x.Tier)
	w.Raw(`,"usage":`)
	printUsage(w, &x.Usage)
	w.Raw(`}`)
}

func printCell(w *canon.Writer, x *Cell) {
	w.Raw(`{`)
	if x.ArmedNS != 0 {
		w.Raw(`"armed_ns":`)
		w.Int(x.ArmedNS)
		w.Raw(",")
	}
	w.Raw(`"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"mode":`)
	w.String(x.Mode)
	w.Raw(`}`)
}

func printCgroup(w *canon.Writer, x *Cgroup) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"state":`)
	w.String(x.State)
	if len(x.Values) > 0 {
		w.Raw(`,"values":`)
		canon.PrintMap(w, x.Values, (*canon.Writer).String)
	}
	w.Raw(`}`)
}

func printExecutable(w *canon.Writer, x *Executable) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"digest":`)
	w.Digest(x.Digest)
	if x.DigestBasis != "" {
		w.Raw(`,"digest_basis":`)
		w.String(x.DigestBasis)
	}
	if x.DigestTime != "" {
		w.Raw(`,"digest_time":`)
		w.String(x.DigestTime)
	}
	w.Raw(`,"path":`)
	w.String(x.Path)
	w.Raw(`,"pinned":`)
	w.String(x.Pinned)
	w.Raw(`}`)
}

func printExit(w *canon.Writer, x *Exit) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"code":`)
	w.Int(int64(x.Code))
	if x.LimitHit != "" {
		w.Raw(`,"limit_hit":`)
		w.String(x.LimitHit)
	}
	if x.Signal != 0 {
		w.Raw(`,"signal":`)
		w.Int(int64(x.Signal))
	}
	if x.TreeBasis != "" {
		w.Raw(`,"tree_basis":`)
		w.String(string(x.TreeBasis))
	}
	w.Raw(`,"tree_dead":`)
	w.Bool(x.TreeDead)
	w.Raw(`}`)
}

func printHost(w *canon.Writer, x *Host) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"boot_id":`)
	w.String(x.BootID)
	w.Raw(`,"machine":`)
	w.String(x.Machine)
	w.Raw(`,"release":`)
	w.String(x.Release)
	w.Raw(`}`)
}

func printLandlock(w *canon.Writer, x *Landlock) {
	w.Raw(`{"abi":`)
	w.Int(int64(x.ABI))
	w.Raw(`,"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"handled_fs":`)
	w.Uint(x.HandledFS)
	w.Raw(`,"handled_net":`)
	w.Uint(x.HandledNet)
	w.Raw(`,"rules":`)
	w.Strings(x.Rules)
	w.Raw(`,"scoped":`)
	w.Uint(x.Scoped)
	w.Raw(`}`)
}

func printLimits(w *canon.Writer, x *Limits) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"hard":`)
	canon.PrintMap(w, x.Hard, (*canon.Writer).Int)
	w.Raw(`,"soft":`)
	canon.PrintMap(w, x.Soft, (*canon.Writer).Int)
	w.Raw(`}`)
}

func printMounts(w *canon.Writer, x *Mounts) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"digest":`)
	w.Digest(x.Digest)
	w.Raw(`,"table":`)
	w.Strings(x.Table)
	w.Raw(`}`)
}

func printNamespaces(w *canon.Writer, x *Namespaces) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"cell":`)
	canon.PrintMap(w, x.Cell, (*canon.Writer).Uint)
	w.Raw(`,"fresh":`)
	w.Strings(x.Fresh)
	w.Raw(`,"host":`)
	canon.PrintMap(w, x.Host, (*canon.Writer).Uint)
	w.Raw(`}`)
}

func printNetwork(w *canon.Writer, x *Network) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"mode":`)
	w.String(x.Mode)
	w.Raw(`}`)
}

func printOutput(w *canon.Writer, x *Output) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"cut_bytes":`)
	w.Int(x.Cut)
	w.Raw(`,"stderr_bytes":`)
	w.Int(x.StderrBytes)
	w.Raw(`,"stderr_digest":`)
	w.Digest(x.StderrDigest)
	w.Raw(`,"stdout_bytes":`)
	w.Int(x.StdoutBytes)
	w.Raw(`,"stdout_digest":`)
	w.Digest(x.StdoutDigest)
	w.Raw(`}`)
}

func printProcess(w *canon.Writer, x *Process) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"cap_amb":`)
	w.String(x.CapAmb)
	w.Raw(`,"cap_bnd":`)
	w.String(x.CapBnd)
	w.Raw(`,"cap_eff":`)
	w.String(x.CapEff)
	w.Raw(`,"cap_inh":`)
	w.String(x.CapInh)
	w.Raw(`,"cap_prm":`)
	w.String(x.CapPrm)
	w.Raw(`,"descriptors":`)
	w.Strings(x.Descriptors)
	w.Raw(`,"groups":`)
	canon.PrintList(w, x.Groups, func(w *canon.Writer, x uint32) { w.Uint(uint64(x)) })
	w.Raw(`,"host_gid":`)
	w.Uint(uint64(x.HostGID))
	w.Raw(`,"host_uid":`)
	w.Uint(uint64(x.HostUID))
	w.Raw(`,"no_new_privs":`)
	w.Int(int64(x.NoNewPrivs))
	w.Raw(`,"seccomp":`)
	w.Int(int64(x.Seccomp))
	w.Raw(`,"seccomp_filters":`)
	w.Int(int64(x.Filters))
	w.Raw(`,"session":`)
	w.Int(int64(x.Session))
	w.Raw(`,"tty_nr":`)
	w.Int(int64(x.TTY))
	w.Raw(`}`)
}

func printSeccomp(w *canon.Writer, x *Seccomp) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"default_errno":`)
	w.Int(int64(x.DefaultErrno))
	w.Raw(`,"instructions":`)
	w.Int(int64(x.Instructions))
	w.Raw(`,"policy":`)
	w.Digest(x.Policy)
	w.Raw(`,"program":`)
	w.Digest(x.Program)
	w.Raw(`}`)
}

func printTape(w *canon.Writer, x *Tape) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"digest":`)
	w.Digest(x.Digest)
	w.Raw(`,"steps":`)
	w.Int(int64(x.Steps))
	w.Raw(`}`)
}

func printUsage(w *canon.Writer, x *Usage) {
	w.Raw(`{"basis":`)
	w.String(string(x.Basis))
	w.Raw(`,"max_rss_bytes":`)
	w.Int(x.MaxRSS)
	w.Raw(`,"peak_memory_bytes":`)
	w.Int(x.PeakMemory)
	w.Raw(`,"system_ns":`)
	w.Int(x.SystemNS)
	w.Raw(`,"user_ns":`)
	w.Int(x.UserNS)
	w.Raw(`,"wall_ns":`)
	w.Int(x.WallNS)
	w.Raw(`}`)
}

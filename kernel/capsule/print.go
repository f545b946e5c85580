package capsule

import (
	"palyra/internal/canon"
	"palyra/isolate"
)

// PrintCanonical implements canon.Printer: each type's members in the order of
// their names. TestPrint fails where a member of a capsule is missing here.
func (c *Capsule) PrintCanonical(w *canon.Writer) { printCapsule(w, c) }

func printCapsule(w *canon.Writer, x *Capsule) {
	w.Raw(`{"argv":`)
	w.Strings(x.Argv)
	if len(x.Capabilities) > 0 {
		w.Raw(`,"capabilities":`)
		w.Strings(x.Capabilities)
	}
	w.Raw(`,"cwd":`)
	w.String(x.Cwd)
	w.Raw(`,"egress_hosts":`)
	w.Strings(x.EgressHosts)
	w.Raw(`,"env":`)
	w.Strings(x.Env)
	w.Raw(`,"executable":`)
	printFile(w, &x.Executable)
	w.Raw(`,"limits":`)
	printLimits(w, &x.Limits)
	if x.Loader != nil {
		w.Raw(`,"loader":`)
		printFile(w, x.Loader)
	}
	if x.Network != "" {
		w.Raw(`,"network":`)
		w.String(x.Network)
	}
	w.Raw(`,"operands":`)
	canon.PrintList(w, x.Operands, func(w *canon.Writer, x File) { printFile(w, &x) })
	w.Raw(`,"scripts":`)
	canon.PrintList(w, x.Scripts, func(w *canon.Writer, x Script) { printScript(w, &x) })
	w.Raw(`,"secrets":`)
	w.Strings(x.Secrets)
	if x.Sensitive {
		w.Raw(`,"sensitive":`)
		w.Bool(x.Sensitive)
	}
	w.Raw(`,"stdin":`)
	printStdin(w, &x.Stdin)
	w.Raw(`,"tier_floor":`)
	w.String(x.TierFloor.String())
	w.Raw(`,"tool":`)
	w.String(x.Tool)
	w.Raw(`,"unpinned":`)
	canon.PrintList(w, x.Unpinned, func(w *canon.Writer, x Unpinned) { printUnpinned(w, &x) })
	w.Raw(`,"version":`)
	w.Int(int64(x.Version))
	w.Raw(`,"workspace":`)
	if x.Workspace == nil {
		w.Raw("null")
	} else {
		printWorkspace(w, x.Workspace)
	}
	w.Raw(`}`)
}

func printFile(w *canon.Writer, x *File) {
	w.Raw(`{"digest":`)
	w.Digest(x.Digest)
	w.Raw(`,"path":`)
	w.String(x.Path)
	w.Raw(`,"pinned":`)
	w.String(x.Pinned)
	w.Raw(`,"size":`)
	w.Int(x.Size)
	w.Raw(`}`)
}

func printLimits(w *canon.Writer, x *isolate.Limits) {
	w.Raw(`{"cpu":`)
	w.Int(int64(x.CPU))
	w.Raw(`,"disk":`)
	w.Int(x.Disk)
	w.Raw(`,"file_size":`)
	w.Int(x.FileSize)
	w.Raw(`,"inodes":`)
	w.Int(x.Inodes)
	w.Raw(`,"memory":`)
	w.Int(x.Memory)
	w.Raw(`,"open_files":`)
	w.Int(x.OpenFiles)
	w.Raw(`,"output":`)
	w.Int(x.Output)
	w.Raw(`,"pids":`)
	w.Int(x.PIDs)
	w.Raw(`,"wall":`)
	w.Int(int64(x.Wall))
	w.Raw(`}`)
}

func printScript(w *canon.Writer, x *Script) {
	w.Raw(`{"argument":`)
	if x.Argument == nil {
		w.Raw("null")
	} else {
		w.String(*x.Argument)
	}
	w.Raw(`,"digest":`)
	w.Digest(x.Digest)
	w.Raw(`,"interpreter":`)
	w.String(x.Interpreter)
	w.Raw(`,"path":`)
	w.String(x.Path)
	w.Raw(`,"pinned":`)
	w.String(x.Pinned)
	w.Raw(`,"size":`)
	w.Int(x.Size)
	w.Raw(`}`)
}

func printStdin(w *canon.Writer, x *Stdin) {
	w.Raw(`{"digest":`)
	w.Digest(x.Digest)
	w.Raw(`,"mode":`)
	w.String(x.Mode)
	w.Raw(`,"size":`)
	w.Int(x.Size)
	w.Raw(`}`)
}

func printUnpinned(w *canon.Writer, x *Unpinned) {
	w.Raw(`{"kind":`)
	w.String(x.Kind)
	w.Raw(`,"path":`)
	w.String(x.Path)
	w.Raw(`}`)
}

func printWorkspace(w *canon.Writer, x *Workspace) {
	w.Raw(`{"gid":`)
	w.Uint(uint64(x.GID))
	w.Raw(`,"read_only":`)
	w.Bool(x.ReadOnly)
	w.Raw(`,"source":`)
	w.String(x.Source)
	w.Raw(`,"uid":`)
	w.Uint(uint64(x.UID))
	w.Raw(`}`)
}

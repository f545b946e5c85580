package receipt

import (
	"palyra/internal/canon"
)

// PrintCanonical implements canon.Printer: each type's members in the order of
// their names. TestPrint fails where a member of a statement is missing here.
func (s *Statement) PrintCanonical(w *canon.Writer) { printStatement(w, s) }

func printStatement(w *canon.Writer, x *Statement) {
	w.Raw(`{"_type":`)
	w.String(x.Type)
	w.Raw(`,"predicate":`)
	printPredicate(w, &x.Predicate)
	w.Raw(`,"predicateType":`)
	w.String(x.PredicateType)
	w.Raw(`,"subject":`)
	canon.PrintList(w, x.Subject, func(w *canon.Writer, x Subject) { printSubject(w, &x) })
	w.Raw(`}`)
}

func printPredicate(w *canon.Writer, x *Predicate) {
	w.Raw(`{"approval":`)
	if x.Approval == nil {
		w.Raw("null")
	} else {
		printApproval(w, x.Approval)
	}
	w.Raw(`,"boot_id":`)
	w.String(x.BootID)
	w.Raw(`,"call_id":`)
	w.String(x.CallID)
	w.Raw(`,"capsule":`)
	printCapsule(w, &x.Capsule)
	w.Raw(`,"decision":`)
	printDecision(w, &x.Decision)
	w.Raw(`,"error":`)
	if x.Error == nil {
		w.Raw("null")
	} else {
		printError(w, x.Error)
	}
	w.Raw(`,"evidence":`)
	w.JSON(x.Evidence)
	w.Raw(`,"intent":`)
	if x.Intent == nil {
		w.Raw("null")
	} else {
		w.Uint(*x.Intent)
	}
	w.Raw(`,"outcome":`)
	w.String(x.Outcome)
	if x.Planted != nil {
		w.Raw(`,"planted":`)
		printPlanted(w, x.Planted)
	}
	w.Raw(`,"principal":`)
	w.String(x.Principal)
	if x.Question != nil {
		w.Raw(`,"question":`)
		printQuestion(w, x.Question)
	}
	if x.RunID != "" {
		w.Raw(`,"run_id":`)
		w.String(x.RunID)
	}
	w.Raw(`,"seq":`)
	w.Uint(x.Seq)
	w.Raw(`,"session_id":`)
	w.String(x.SessionID)
	w.Raw(`,"time":`)
	w.String(x.Time)
	w.Raw(`,"tool":`)
	w.String(x.Tool)
	w.Raw(`,"version":`)
	w.Int(int64(x.Version))
	w.Raw(`}`)
}

func printSubject(w *canon.Writer, x *Subject) {
	w.Raw(`{"digest":`)
	printSubjectDigest(w, &x.Digest)
	w.Raw(`,"name":`)
	w.String(x.Name)
	w.Raw(`}`)
}

func printApproval(w *canon.Writer, x *Approval) {
	w.Raw(`{"answer":`)
	w.String(x.Answer)
	w.Raw(`,"answered":`)
	w.String(x.Answered)
	w.Raw(`,"approver":`)
	w.String(x.Approver)
	if len(x.Approvers) > 0 {
		w.Raw(`,"approvers":`)
		w.Strings(x.Approvers)
	}
	w.Raw(`,"capsule":`)
	w.Digest(x.Capsule)
	if x.Grant != "" {
		w.Raw(`,"grant":`)
		w.String(x.Grant)
	}
	w.Raw(`,"id":`)
	w.String(x.ID)
	if !x.Pattern.IsZero() {
		w.Raw(`,"pattern":`)
		w.Digest(x.Pattern)
	}
	w.Raw(`,"policy_set":`)
	w.Digest(x.PolicySet)
	w.Raw(`,"requested":`)
	w.String(x.Requested)
	w.Raw(`,"scope":`)
	w.String(x.Scope)
	w.Raw(`,"surface":`)
	w.String(x.Surface)
	w.Raw(`}`)
}

func printCapsule(w *canon.Writer, x *Capsule) {
	w.Raw(`{"argv":`)
	w.Strings(x.Argv)
	w.Raw(`,"bytes":`)
	w.Int(x.Bytes)
	if len(x.Capabilities) > 0 {
		w.Raw(`,"capabilities":`)
		w.Strings(x.Capabilities)
	}
	w.Raw(`,"cwd":`)
	w.String(x.Cwd)
	w.Raw(`,"digest":`)
	w.Digest(x.Digest)
	w.Raw(`,"egress_hosts":`)
	w.Strings(x.EgressHosts)
	w.Raw(`,"env_names":`)
	w.Strings(x.EnvNames)
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
	w.Raw(`,"script":`)
	if x.Script == nil {
		w.Raw("null")
	} else {
		printFile(w, x.Script)
	}
	if x.Sensitive {
		w.Raw(`,"sensitive":`)
		w.Bool(x.Sensitive)
	}
	w.Raw(`,"stdin":`)
	printStdin(w, &x.Stdin)
	w.Raw(`,"tier_floor":`)
	w.String(x.TierFloor)
	w.Raw(`,"workspace":`)
	if x.Workspace == nil {
		w.Raw("null")
	} else {
		printWorkspace(w, x.Workspace)
	}
	w.Raw(`}`)
}

func printDecision(w *canon.Writer, x *Decision) {
	w.Raw(`{"effect":`)
	w.String(x.Effect)
	w.Raw(`,"errors":`)
	w.Strings(x.Errors)
	w.Raw(`,"fix":`)
	w.String(x.Fix)
	w.Raw(`,"id":`)
	w.String(x.ID)
	w.Raw(`,"policies":`)
	w.Strings(x.Policies)
	w.Raw(`,"policy_set":`)
	w.Digest(x.PolicySet)
	w.Raw(`,"reason":`)
	w.String(x.Reason)
	w.Raw(`}`)
}

func printError(w *canon.Writer, x *Error) {
	w.Raw(`{"kind":`)
	w.String(x.Kind)
	w.Raw(`,"reason":`)
	w.String(x.Reason)
	w.Raw(`}`)
}

func printPlanted(w *canon.Writer, x *Planted) {
	w.Raw(`{"found":`)
	canon.PrintList(w, x.Found, func(w *canon.Writer, x Finding) { printFinding(w, &x) })
	w.Raw(`,"incomplete":`)
	canon.PrintList(w, x.Incomplete, func(w *canon.Writer, x Unlooked) { printUnlooked(w, &x) })
	w.Raw(`,"kinds":`)
	canon.PrintList(w, x.Kinds, func(w *canon.Writer, x KindCount) { printKindCount(w, &x) })
	w.Raw(`,"looked":`)
	w.Int(x.Looked)
	w.Raw(`,"times_kept":`)
	w.Bool(x.TimesKept)
	w.Raw(`}`)
}

func printQuestion(w *canon.Writer, x *Question) {
	w.Raw(`{`)
	if x.Certificate != "" {
		w.Raw(`"certificate":`)
		w.String(x.Certificate)
		w.Raw(",")
	}
	w.Raw(`"channel":`)
	w.String(x.Channel)
	w.Raw(`,"device":`)
	w.String(x.Device)
	if len(x.EnvCode) > 0 {
		w.Raw(`,"env_code":`)
		w.Strings(x.EnvCode)
	}
	if len(x.EnvOverridden) > 0 {
		w.Raw(`,"env_overridden":`)
		w.Strings(x.EnvOverridden)
	}
	w.Raw(`,"roles":`)
	w.Strings(x.Roles)
	w.Raw(`,"system":`)
	w.Bool(x.System)
	if len(x.Unpinned) > 0 {
		w.Raw(`,"unpinned":`)
		w.Strings(x.Unpinned)
	}
	w.Raw(`}`)
}

func printSubjectDigest(w *canon.Writer, x *SubjectDigest) {
	w.Raw(`{"sha256":`)
	w.String(x.SHA256)
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

func printLimits(w *canon.Writer, x *Limits) {
	w.Raw(`{"cpu_ns":`)
	w.Int(x.CPUNS)
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
	w.Raw(`,"wall_ns":`)
	w.Int(x.WallNS)
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

func printWorkspace(w *canon.Writer, x *Workspace) {
	w.Raw(`{"read_only":`)
	w.Bool(x.ReadOnly)
	w.Raw(`,"source":`)
	w.String(x.Source)
	w.Raw(`}`)
}

func printFinding(w *canon.Writer, x *Finding) {
	w.Raw(`{"kind":`)
	w.String(x.Kind)
	w.Raw(`,"mode":`)
	w.String(x.Mode)
	if x.Moved {
		w.Raw(`,"moved":`)
		w.Bool(x.Moved)
	}
	w.Raw(`,"path":`)
	w.String(x.Path)
	if x.Target != "" {
		w.Raw(`,"target":`)
		w.String(x.Target)
	}
	w.Raw(`}`)
}

func printUnlooked(w *canon.Writer, x *Unlooked) {
	w.Raw(`{"folders":`)
	w.Int(x.Folders)
	w.Raw(`,"why":`)
	w.String(x.Why)
	w.Raw(`}`)
}

func printKindCount(w *canon.Writer, x *KindCount) {
	w.Raw(`{"count":`)
	w.Int(x.Count)
	w.Raw(`,"kind":`)
	w.String(x.Kind)
	w.Raw(`}`)
}

package kernel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate"
	"palyra/kernel/capsule"
)

// localUser is the principal of a process that nobody else authenticated: the
// user that the operating system says it is.
func localUser() policy.Entity { return policy.LocalUser("uid:" + strconv.Itoa(os.Geteuid())) }

// question is the capsule as policy sees it. Everything in it is read from the
// sealed capsule, apart from who asks and in which session, and from where
// variables lead.
func question(who *Caller, s *sealed, p *Proposal) policy.Request {
	c := s.capsule
	q := policy.Request{
		Principal: who.Principal,
		Action:    policy.ToolExecute,
		Resource:  policy.Tool(c.Tool),
		Context: policy.Context{
			CapsuleDigest: s.id,
			Executable:    executable(c),
			Args:          c.Argv[1:],
			Cwd:           c.Cwd,
			EgressHosts:   c.EgressHosts,
			Capabilities:  capabilities(c),
			Tier:          c.TierFloor.String(),
			Limits: policy.Limits{Wall: c.Limits.Wall, CPU: c.Limits.CPU, Memory: c.Limits.Memory, PIDs: c.Limits.PIDs,
				Output: c.Limits.Output, FileSize: c.Limits.FileSize},
			Stdin:     c.Stdin.Mode,
			Network:   c.Network,
			SessionID: p.SessionID,
			RunID:     p.RunID,
			DeviceID:  who.Device,
			ChannelID: who.Channel,
			Sensitive: c.Sensitive,
			Env:       changedEnv(c.Env),
			EnvCode:   s.envCode,
			Unpinned:  unpinnedKinds(c),
		},
	}
	if w := c.Workspace; w != nil {
		q.Context.WorkspaceSource, q.Context.WorkspaceReadOnly = w.Source, w.ReadOnly
	}
	return q
}

// question is question with what this installation knows of its sandbox.
func (k *Kernel) question(who *Caller, s *sealed, p *Proposal) policy.Request {
	q := question(who, s, p)
	q.Context.Certificate = k.certificate(s.capsule.TierFloor)
	return q
}

// executable names a script by itself and by the binary that reads it, and
// trusts it only as far as every file in the chain.
func executable(c *capsule.Capsule) policy.Executable {
	e := policy.Executable{Path: c.Executable.Path, Digest: c.Executable.Digest, System: c.Executable.Pinned == capsule.PinnedSystem}
	if len(c.Scripts) == 0 {
		return e
	}
	e.Interpreter, e.Path, e.Digest = e.Path, c.Scripts[0].Path, c.Scripts[0].Digest
	for _, f := range c.Scripts {
		e.System = e.System && f.Pinned == capsule.PinnedSystem
	}
	return e
}

// capabilities are those that the capsule shows and those that the tool's table
// declares. A tool of the table runs its own program and no other, so
// process_exec is derived for process.run alone.
func capabilities(c *capsule.Capsule) []string {
	var can []string
	if c.Tool == ToolRun {
		can = append(can, policy.CapProcessExec)
	}
	if c.Workspace != nil && !c.Workspace.ReadOnly {
		can = append(can, policy.CapFilesystemWrite)
	}
	for _, d := range c.Capabilities {
		if !slices.Contains(can, d) {
			can = append(can, d)
		}
	}
	return can
}

// unpinnedKinds are the kinds of what is named and not held, each once, sorted.
func unpinnedKinds(c *capsule.Capsule) (kinds []string) {
	for _, u := range c.Unpinned {
		if !slices.Contains(kinds, u.Kind) {
			kinds = append(kinds, u.Kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// card is the capsule as the approver sees it.
func (c *call) card(set *policy.Set) approval.Request {
	s, d := c.s, c.out.Decision
	return cardOf(s, d, set, principal(c.who.Principal), c.k.cfg.ApprovalTimeout)
}

func cardOf(s *sealed, d policy.Decision, set *policy.Set, who string, timeout time.Duration) approval.Request {
	c := s.capsule
	q := approval.Request{
		Decision: d.ID, Capsule: s.id, PolicySet: d.PolicySet,
		Principal: who, Tool: c.Tool, Timeout: timeout,
		Call: approval.Call{
			Argv: c.Argv, Executable: c.Executable.Path, Digest: c.Executable.Digest,
			EnvNames: c.EnvNames(), EnvChanged: shownEnv(c.Env), Cwd: c.Cwd, Stdin: c.Stdin.Mode, EgressHosts: c.EgressHosts,
			Capabilities: capabilities(c), Tier: c.TierFloor.String(), Limits: limitsLine(c.Limits),
			StdinDigest: c.Stdin.Digest, Network: c.Network, Sensitive: c.Sensitive,
			Bounds: approval.Limits{Wall: int64(c.Limits.Wall), CPU: int64(c.Limits.CPU), Memory: c.Limits.Memory, PIDs: c.Limits.PIDs, Output: c.Limits.Output,
				FileSize: c.Limits.FileSize, OpenFiles: c.Limits.OpenFiles, Disk: c.Limits.Disk, Inodes: c.Limits.Inodes},
		},
	}
	// Of what cannot be put into canonical form there is no digest, and no pattern.
	if env, err := canon.Marshal(c.Env); err == nil {
		q.Call.EnvDigest = canon.Sum(env)
	}
	exe := executable(c)
	kind, _ := policy.Classify(exe.Path, exe.Interpreter)
	q.Call.Kind, q.Call.System = string(kind), exe.System
	for _, u := range c.Unpinned {
		switch u.Kind {
		case capsule.KindDirectory:
			q.Call.Folders = append(q.Call.Folders, u.Path)
		case capsule.KindAbsent:
			q.Call.Absent = append(q.Call.Absent, u.Path)
		case capsule.KindLibrary:
			q.Call.Libraries = append(q.Call.Libraries, u.Path)
		default:
			q.Call.Loose = append(q.Call.Loose, u.Path)
		}
	}
	for _, f := range toolproto.Flagged(c.Tool, c.Argv) {
		q.Call.Planted = append(q.Call.Planted, approval.Planted(f))
	}
	if s.stdin != nil {
		head := make([]byte, min(c.Stdin.Size, approval.MaxStdinHead))
		n, _ := s.stdin.File.ReadAt(head, 0) // a memfd of ours; less is shown as less
		q.Call.StdinSize, q.Call.StdinHead = c.Stdin.Size, string(head[:n])
	}
	if len(c.Scripts) > 0 {
		q.Call.Script, q.Call.ScriptDigest = c.Scripts[0].Path, c.Scripts[0].Digest
	}
	for _, o := range c.Operands {
		q.Call.Operands = append(q.Call.Operands, approval.Operand{Path: o.Path, Digest: o.Digest})
	}
	if w := c.Workspace; w != nil {
		q.Call.Workspace, q.Call.ReadOnly = w.Source, w.ReadOnly
	}
	for _, id := range d.Policies {
		why := approval.Why{Policy: id}
		if info, ok := set.Policy(id); ok {
			why.Reason, why.Where = info.Reason, fmt.Sprintf("%s:%d", info.File, info.Line)
		}
		q.Why = append(q.Why, why)
	}
	return q
}

// principal is an entity as Cedar writes it.
func principal(e policy.Entity) string { return e.Type + "::" + strconv.Quote(e.ID) }

func limitsLine(l isolate.Limits) string {
	return fmt.Sprintf("wall %v, cpu %v, memory %s, processes %d, output %s, file %s",
		l.Wall, l.CPU, size(l.Memory), l.PIDs, size(l.Output), size(l.FileSize))
}

// size is a number of bytes in the largest binary unit that divides it.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n != 0 && n%1024 == 0 && i < len(units)-1; i++ {
		n /= 1024
	}
	return fmt.Sprintf("%d %s", n, units[i])
}

// notApproved is the error of a call that got no yes. What a person said with a no
// is the caller's to read and no part of the error's text, which is recorded.
func notApproved(v *approval.View) error {
	var why error
	if v.Detail != "" {
		why = errors.New(v.Detail)
	}
	err := fault.New(fault.NotApproved, v.Answer, "ask for approval", why)
	if v.Answer == approval.Denied {
		return err.WithHint("a person said no to this call: propose another one")
	}
	return err
}

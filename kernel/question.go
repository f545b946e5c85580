package kernel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	vocabulary "palyra/call"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

// localUser is the principal of a process without a surface: the user that the operating system
// names.
func localUser() policy.Entity { return policy.LocalUser("uid:" + strconv.Itoa(os.Geteuid())) }

// question is policy's view of the capsule. Everything in it is read from the sealed capsule,
// apart from the caller, the session, what that has read, the run, and where variables lead.
func question(who *Caller, s *sealed, p *Proposal) policy.Request {
	c := s.capsule
	q := policy.Request{
		Principal: who.Principal,
		Action:    policy.ToolExecute,
		Resource:  policy.Tool(c.Tool),
		Context: policy.Context{
			CapsuleDigest: s.id,
			Executable:    executable(c),
			Argv0:         c.Argv[0],
			Args:          c.Argv[1:],
			LineArgs:      lineArgs(c.Scripts),
			Cwd:           c.Cwd,
			EgressHosts:   c.EgressHosts,
			EgressInspect: c.EgressInspect,
			Capabilities:  capabilities(c),
			Tier:          c.TierFloor.String(),
			Limits: policy.Limits{Wall: c.Limits.Wall, CPU: c.Limits.CPU, Memory: c.Limits.Memory, PIDs: c.Limits.PIDs,
				Output: c.Limits.Output, FileSize: c.Limits.FileSize},
			TTY:       c.TTY != nil,
			Stdin:     c.Stdin.Mode,
			Network:   c.Network,
			SessionID: p.SessionID,
			RunID:     p.RunID,
			DeviceID:  who.Device,
			ChannelID: who.Channel,
			Sensitive: c.Sensitive, Background: c.Background,
			Env:      changedEnv(c.Env, c.TTY),
			EnvCode:  s.envCode,
			Unpinned: unpinnedKinds(c),
			Inputs:   who.inputs.Origins(),
			Signals:  slices.Clone(s.signs),
		},
	}
	if m := s.mcp; m != nil {
		q.Context.MCP = *m
	}
	q.Context.Caches, q.Context.Secrets = slices.Clone(c.Caches), secretRefs(c.Secrets)
	if len(c.EgressSecrets) > 0 {
		q.Context.EgressSecrets = capsule.UseTexts(c.EgressSecrets)
	}
	if d := c.Declared; d != nil {
		q.Context.DeclaredWorkspace, q.Context.DeclaredEnv = d.Workspace, d.Env
	}
	for _, m := range c.Mounts {
		q.Context.Mounts = append(q.Context.Mounts, m.Source)
	}
	if w := c.Workspace; w != nil {
		q.Context.WorkspaceSource, q.Context.WorkspaceReadOnly, q.Context.WorkspaceStaged = w.Source, w.ReadOnly, w.Staged
	}
	return q
}

// question adds this installation's sandbox certificate.
func (k *Kernel) question(who *Caller, s *sealed, p *Proposal) policy.Request {
	q := question(who, s, p)
	q.Context.Certificate = k.certificate(s.capsule.TierFloor)
	return q
}

// maxAsker bounds a statement's description of the asker, in bytes. Device and channel are a
// few words. A longer description leaves the question out of the record, and then the decision
// can't be repeated.
const maxAsker = 1024

// whoAsks records the inputs of question that the capsule doesn't have.
func whoAsks(who *Caller, s *sealed, certificate string) *receipt.Question {
	n := len(who.Device) + len(who.Channel)
	for _, r := range who.Principal.Roles {
		n += len(r)
	}
	line := lineArgs(s.capsule.Scripts)
	for _, text := range slices.Concat(s.envCode, line) {
		n += len(text)
	}
	if n > maxAsker {
		return nil
	}
	if certificate == policy.CertificateNone {
		certificate = "" // absent, as in statements from before certificates
	}
	return &receipt.Question{Roles: slices.Clone(who.Principal.Roles), Device: who.Device, Channel: who.Channel, System: executable(s.capsule).System,
		Certificate: certificate, EnvOverridden: overridden(s.capsule), EnvCode: slices.Clone(s.envCode), Unpinned: unpinnedKinds(s.capsule), LineArgs: line, MCP: s.mcp,
		Inputs: who.inputs.Origins(), Signals: slices.Clone(s.signs)}
}

func overridden(c *capsule.Capsule) (names []string) {
	for _, e := range changedEnv(c.Env, c.TTY) {
		if builtName(capsule.Name(e), c.TTY) {
			names = append(names, capsule.Name(e))
		}
	}
	return names
}

// QuestionOf rebuilds policy's question about the call of a statement. It's exact except for
// the values of variables, of which only names are recorded. An older statement without a
// Question is fault.Unsupported "question_not_recorded".
func QuestionOf(p *receipt.Predicate) (policy.Request, error) {
	const op = "rebuild the question of a call"
	if p.Question == nil {
		return policy.Request{}, fault.New(fault.Unsupported, "question_not_recorded", op, errors.New("the statement does not say who asked in full"))
	}
	kind, quoted, ok := strings.Cut(p.Principal, `::"`)
	id, err := strconv.Unquote(`"` + quoted)
	if !ok || err != nil {
		return policy.Request{}, fault.New(fault.Integrity, "receipt_statement", op, fmt.Errorf("principal %q", p.Principal)).
			WithHint("principals look like \"uid:1000\", \"user:alice\" or \"service:ci\"")
	}
	floor, err := tier.Parse(p.Capsule.TierFloor)
	if err != nil || len(p.Capsule.Argv) == 0 {
		return policy.Request{}, fault.New(fault.Integrity, "receipt_statement", op, errors.Join(err, errors.New("no tier or no arguments")))
	}
	s := p.Capsule
	c := &capsule.Capsule{
		Tool: p.Tool, Argv: s.Argv, Cwd: s.Cwd, TierFloor: floor, EgressHosts: s.EgressHosts, Network: s.Network,
		Capabilities: s.Capabilities, Sensitive: s.Sensitive, Executable: s.Executable,
		Stdin: s.Stdin, Limits: isolate.Limits(s.Limits), Mounts: s.Mounts, Caches: s.Caches, Secrets: s.Secrets, Declared: s.Declared, TTY: s.TTY, Background: s.Background,
		EgressInspect: s.EgressInspect, EgressSecrets: s.EgressSecrets,
	}
	inspected := len(s.EgressInspect)+len(s.EgressSecrets) > 0
	if s.Script != nil {
		c.Scripts = append(c.Scripts, capsule.Script{File: *s.Script})
	}
	if w := s.Workspace; w != nil {
		c.Workspace = &capsule.Workspace{Source: w.Source, ReadOnly: w.ReadOnly, Staged: w.Staged, Layer: w.Layer, OwnPath: w.OwnPath}
	}
	who := Caller{Principal: policy.Entity{Type: kind, ID: id, Roles: p.Question.Roles}, Device: p.Question.Device, Channel: p.Question.Channel}
	q := question(&who, &sealed{capsule: c, id: s.Digest, mcp: p.Question.MCP, signs: p.Question.Signals}, &Proposal{SessionID: p.SessionID, RunID: p.RunID})
	q.Context.Executable.System, q.Context.Certificate = p.Question.System, orNone(p.Question.Certificate)
	q.Context.EnvNames, q.Context.EnvCode, q.Context.Unpinned = slices.Clone(p.Question.EnvOverridden), p.Question.EnvCode, p.Question.Unpinned
	q.Context.LineArgs, q.Context.Inputs = p.Question.LineArgs, slices.Clone(p.Question.Inputs)
	for _, name := range s.EnvNames {
		if !builtName(name, s.TTY) && !(inspected && rootsName(name)) {
			q.Context.EnvNames = append(q.Context.EnvNames, name)
		}
	}
	return q, nil
}

// repeatable refuses a question that a set can't be asked again, because the set reads values
// of variables and those aren't recorded.
func repeatable(q *policy.Request, sets ...*policy.Set) error {
	for _, s := range sets {
		if len(q.Context.EnvNames) > 0 && s.Reads("env") {
			return fault.New(fault.Unsupported, "question_not_recorded", "rebuild the question of a call",
				errors.New("a policy reads values of the environment, and the record has only names"))
		}
	}
	return nil
}

func orNone(certificate string) string {
	if certificate == "" {
		return policy.CertificateNone
	}
	return certificate
}

// executable names a script by itself and by the binary that reads it. It's the system's only
// if every file in the chain is.
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

// capabilities returns those that follow from the capsule and those that the tool's table
// declares. A tool of the table runs its own program and no other, so process_exec is derived
// for process.run alone.
func capabilities(c *capsule.Capsule) []string {
	var can []string
	if c.Tool == ToolRun {
		can = append(can, policy.CapProcessExec)
	}
	if w := c.Workspace; w != nil && !w.ReadOnly && !w.Staged {
		can = append(can, policy.CapFilesystemWrite)
	}
	if len(c.Secrets) > 0 {
		can = append(can, policy.CapSecretsRead)
	}
	if len(c.EgressSecrets) > 0 {
		can = append(can, policy.CapSecretsUse)
	}
	if len(c.EgressHosts) > 0 || isolate.AllowsHostNetwork(c.Network) {
		can = append(can, policy.CapNetwork)
	}
	for _, d := range c.Capabilities {
		if !slices.Contains(can, d) {
			can = append(can, d)
		}
	}
	return can
}

// unpinnedKinds returns the kinds of named files that aren't held, each once, sorted.
func unpinnedKinds(c *capsule.Capsule) (kinds []string) {
	for _, u := range c.Unpinned {
		if !slices.Contains(kinds, u.Kind) {
			kinds = append(kinds, u.Kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

func (c *call) card(set *policy.Set) approval.Request {
	s, d := c.s, c.out.Decision
	q := cardOf(s, d, set, principal(c.who.Principal), c.k.cfg.ApprovalTimeout)
	q.Call.Inputs = c.who.inputs
	values := c.k.values(&c.who.Principal).Stream() // a value that the head cuts off is one, too
	head := string(values.Next([]byte(q.Call.StdinHead)))
	if int64(len(q.Call.StdinHead)) >= q.Call.StdinSize {
		head += string(values.End())
	}
	q.Call.StdinHead = head
	return q
}

func cardOf(s *sealed, d policy.Decision, set *policy.Set, who string, timeout time.Duration) approval.Request {
	c := s.capsule
	q := approval.Request{
		Decision: d.ID, Capsule: s.id, PolicySet: d.PolicySet, Timeout: timeout,
		Call: approval.Call{
			Principal: who, Tool: c.Tool, Argv: c.Argv, Executable: c.Executable.Path, Digest: c.Executable.Digest,
			EnvNames: c.EnvNames(), EnvChanged: shownEnv(c.Env, c.TTY), Cwd: c.Cwd, Stdin: c.Stdin.Mode, EgressHosts: c.EgressHosts,
			Capabilities: capabilities(c), Tier: c.TierFloor.String(), Limits: limitsLine(c.Limits),
			StdinDigest: c.Stdin.Digest, TTY: c.TTY, Network: c.Network, Sensitive: c.Sensitive,
			Bounds: approval.Limits(c.Limits), MCP: s.mcp,
		},
	}
	// An environment without a canonical form has no digest, and so no pattern.
	if env, err := canon.Marshal(c.Env); err == nil {
		q.Call.EnvDigest = canon.Sum(env)
	}
	exe := executable(c)
	kind, _ := policy.Classify(exe.Path, exe.Interpreter)
	if kind == policy.Other { // a program that is several goes by the name it's called by
		kind, _ = policy.Classify(s.program.argv[0], "")
	}
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
		if slices.Contains([]string{toolproto.ChangesApply, toolproto.ChangesUndo}, c.Tool) {
			head = nil // the arguments say what is in it; palyra changes diff shows it
		}
		n, _ := s.stdin.File.ReadAt(head, 0) // a memfd of ours; a short read shows less
		q.Call.StdinSize, q.Call.StdinHead = c.Stdin.Size, string(head[:n])
	}
	if len(c.Scripts) > 0 {
		q.Call.Script, q.Call.ScriptDigest = c.Scripts[0].Path, c.Scripts[0].Digest
		for _, f := range c.Scripts[1:] {
			q.Call.Readers = append(q.Call.Readers, approval.Operand{Path: f.Path, Digest: f.Digest})
		}
	}
	q.Call.Called = s.program.argv[:len(s.program.argv)-(len(c.Argv)-1)]
	for _, o := range c.Operands {
		q.Call.Operands = append(q.Call.Operands, approval.Operand{Path: o.Path, Digest: o.Digest})
	}
	q.Call.Name(func(name string) string { return s.place.found[name] })
	if w := c.Workspace; w != nil {
		q.Call.Workspace, q.Call.ReadOnly, q.Call.Staged = w.Source, w.ReadOnly, w.Staged
		if s.layer != nil && !s.layer.Empty() {
			q.Call.Layer = s.layer.Name
		}
	}
	q.Call.Secrets = slices.Clone(c.Secrets)
	q.Call.EgressInspect, q.Call.EgressSecrets = slices.Clone(c.EgressInspect), slices.Clone(c.EgressSecrets)
	q.Call.Caches, q.Call.Declared, q.Call.Background = slices.Clone(c.Caches), c.Declared, c.Background
	for _, m := range c.Mounts {
		q.Call.Mounts = append(q.Call.Mounts, m.Source)
	}
	for _, id := range d.Policies {
		why := approval.Why{Policy: id}
		if info, ok := set.Policy(id); ok {
			why.Reason, why.Where = info.Reason, fmt.Sprintf("%s:%d", info.File, info.Line)
		}
		q.Call.Why = append(q.Call.Why, why)
	}
	return q
}

// principal returns an entity as Cedar writes it.
func principal(e policy.Entity) string { return e.Type + "::" + strconv.Quote(e.ID) }

func limitsLine(l isolate.Limits) string {
	return fmt.Sprintf("wall %v, cpu %v, memory %s, processes %d, output %s, file %s",
		l.Wall, l.CPU, vocabulary.Bytes(l.Memory), l.PIDs, vocabulary.Bytes(l.Output), vocabulary.Bytes(l.FileSize))
}

// notApproved is the error of a call that got no yes. A person's words with a no are for the
// caller and aren't part of the error's text, which is recorded.
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

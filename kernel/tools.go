package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"palyra/authz/policy"
	vocabulary "palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

const maxInput = 1 << 20

// Tools is the table of tools. Expand gets an unchecked name and input. It decodes strictly and
// returns the program to run, or a fault.Usage error that names the mistake. It runs nothing.
// who is the caller as the surface authenticated it: a table that reads callers' stored data
// (artifacts) gives each caller only their own.
type Tools interface {
	Expand(ctx context.Context, who policy.Entity, tool string, input []byte) (*Expansion, error)
}

// Expansion is the call that a tool makes of its input. It's sealed and decided like every
// call; the proposer controls only the tool's input.
type Expansion struct {
	Argv []string // Argv[0] is an absolute path, or a name for the search path
	// LeaveOperands says that the arguments are text for policy and approver, not names of
	// files: none is looked up in the workspace and none is held. Arguments of the program's
	// own #! line are.
	LeaveOperands bool
	Env           []string // "NAME=VALUE", on top of the built environment
	// Stdin is sealed and part of the capsule. nil: empty. StdinMost bounds it, in bytes;
	// default: as for any call. Streams says that it's the caller's stream instead.
	Stdin     []byte
	StdinMost int64
	Streams   bool
	// Exchanges says that no program starts: Stdin is a Question, which Caller.Exchange puts to
	// a program that runs already. The rest describes that program.
	Exchanges bool

	Workspace         string // absolute path on the host; "" is an empty private one
	WorkspaceName     string // in the table
	WorkspaceReadOnly bool
	// WorkspaceStaged says that what the program writes goes to a layer, whatever the caller
	// wants (Caller.Layer).
	WorkspaceStaged bool
	Mounts          []string  // as in a Proposal, beside what is declared
	Caches          []string  // so too
	Secrets         []string  // as in a Proposal
	EgressHosts     []string  // so too
	EgressInspect   []string  // so too
	EgressSecrets   []string  // so too
	Cwd             string    // as the program sees it, or relative to the workspace
	Declared        *Declared // nil: nothing

	Limits    isolate.Limits  // zero fields get DefaultLimits
	TierFloor tier.Tier       // default C
	Network   string          // as in isolate.Spec
	TTY       *vocabulary.TTY // as in a Proposal
	// Background says that no caller waits for the program's end. Capsule, card and receipt say so;
	// it changes nothing in the cell.
	Background bool
	// Capabilities are those of policy that the tool has by its nature. The gate adds those
	// that the rest shows (a writable workspace).
	Capabilities []string
	Sensitive    bool // ask a person whatever else policy says, unless the workspace is staged

	// EgressNetworks has the names of EgressHosts lead into networks among them, and nowhere else: for
	// what is meant for a network of the operator's. It narrows what the capsule says.
	EgressNetworks bool

	// EgressEarly says that the program asks its one inspected host first of all, so that
	// palyra-egress may connect there while the cell is made.
	EgressEarly bool

	// Effect, if not nil, is told when the program begins and ends.
	Effect Effect
}

// Declared is what the operator declared for the calls in a workspace. Capsule, card and receipt
// name it. A caller may do without all of it, and adds nothing to it.
type Declared struct {
	OwnPath  bool     // as Proposal.WorkspaceOwnPath
	Mounts   []string // as in a Proposal
	Caches   []string
	Env      []string // the environment set, "NAME=VALUE", which the caller's variables can't replace
	Programs []string // absolute paths of folders, first in PATH and where bare names are looked up
}

// set returns the environment set, sorted; PATH is part of it.
func (d *Declared) set() []string {
	if d == nil {
		return nil
	}
	env := slices.Clone(d.Env)
	if len(d.Programs) > 0 {
		env = append(env, "PATH="+strings.Join(d.Programs, ":")+":"+searchPath)
	}
	slices.Sort(env)
	return env
}

// Effect is the work in the state directory that belongs to a tool's program. Begin is the last
// step before the program: an error refuses the call. End comes when the program has ended by
// itself, with its exit status, or if it never ran. If neither is certain there is no End, and
// the next user of what Begin wrote goes on from there. Close comes last, always, and may come
// again.
type Effect interface {
	Begin(ctx context.Context) error
	End(ran bool, exit int)
	Close()
}

// stage makes the workspace a staged one. A tool that reads sees the layer, too, so it gets the
// same mount as one that writes; nothing of the host changes either way. The layer counts toward
// the limits of space, which a tool that needs none has low.
func (x *Expansion) stage() {
	x.WorkspaceStaged, x.WorkspaceReadOnly, x.Sensitive = true, false, false
	x.Capabilities = slices.DeleteFunc(slices.Clone(x.Capabilities), func(c string) bool { return c == policy.CapFilesystemWrite })
	d := DefaultLimits()
	x.Limits.Disk, x.Limits.Inodes = max(x.Limits.Disk, d.Disk), max(x.Limits.Inodes, d.Inodes)
}

// expand replaces a proposal that names a tool with an input by the proposal of the tool's
// program, and returns its standard input. It leaves a process.run with its own argv as it is.
func (k *Kernel) expand(ctx context.Context, who *Caller, p *Proposal, stdin io.Reader) (io.Reader, error) {
	p.tool = nil
	if p.Tool == ToolRun && len(p.Input) == 0 {
		return stdin, nil
	}
	op := fmt.Sprintf("expand tool %q", clip(p.Tool))
	switch {
	case len(p.Argv)+len(p.Env) > 0 || p.Dir != "" || p.Workspace != "" || p.WorkspaceReadOnly || p.WorkspaceStaged || p.WorkspaceOwnPath || len(p.Mounts)+len(p.Caches)+len(p.Secrets)+len(p.EgressHosts)+len(p.EgressInspect)+len(p.EgressSecrets) > 0 || p.Layer != "" || p.Cwd != "" ||
		p.Stdin != StdinNone || p.Network != "" || p.TTY != nil:
		return nil, usage("invalid_input", op, errors.New("the tool says what runs, not the proposal"))
	case len(p.Input) > maxInput:
		return nil, usage("too_large", op, fmt.Errorf("input of %d bytes, limit %d", len(p.Input), maxInput))
	case k.cfg.Tools == nil:
		return nil, usage("not_found", op, errors.New("there are no tools here"))
	}
	x, err := k.cfg.Tools.Expand(ctx, who.Principal, p.Tool, p.Input)
	if err != nil {
		return nil, err
	}
	if x == nil || len(x.Argv) == 0 {
		return nil, fault.New(fault.Internal, "internal", op, errors.New("the table gave nothing to run"))
	}
	var layer string
	if x.Workspace != "" && who.Layer != nil && x.Effect == nil {
		if layer, err = who.Layer(ctx, x.WorkspaceName, x.WorkspaceStaged); err != nil {
			return nil, err
		}
	}
	if layer != "" || x.WorkspaceStaged {
		if p.Tool == ToolRun && x.WorkspaceReadOnly {
			return nil, usage("invalid_input", op, errors.New("a staged workspace can't be read-only: what the program writes goes to a layer"))
		}
		x.stage()
	}
	floor := x.TierFloor
	if floor == tier.None {
		floor = tier.C
	}
	if p.TierFloor.Meets(floor) {
		floor = p.TierFloor
	}
	d := x.Declared
	if d == nil {
		d = new(Declared)
	}
	*p = Proposal{
		WorkspaceOwnPath: d.OwnPath, Mounts: slices.Concat(d.Mounts, x.Mounts), Caches: slices.Concat(d.Caches, x.Caches),
		Tool: p.Tool, Argv: x.Argv, Env: x.Env, Workspace: x.Workspace, WorkspaceReadOnly: x.WorkspaceReadOnly,
		WorkspaceStaged: x.WorkspaceStaged, Layer: layer, Cwd: x.Cwd, Secrets: x.Secrets, EgressHosts: x.EgressHosts,
		EgressInspect: x.EgressInspect, EgressSecrets: x.EgressSecrets,
		Limits: lower(x.Limits, p.Limits), TierFloor: floor, Network: x.Network,
		TTY: x.TTY, SessionID: p.SessionID, RunID: p.RunID, tool: x,
	}
	switch {
	case x.Streams:
		p.Stdin = StdinStream
		return stdin, nil
	case x.Stdin == nil:
		return nil, nil
	}
	p.Stdin = StdinSealed
	return bytes.NewReader(x.Stdin), nil
}

// lower returns the limits of l, each lowered to bound's if that has one.
func lower(l, bound isolate.Limits) isolate.Limits {
	d := DefaultLimits()
	for _, f := range []struct{ v, def, most *int64 }{
		{(*int64)(&l.Wall), (*int64)(&d.Wall), (*int64)(&bound.Wall)},
		{(*int64)(&l.CPU), (*int64)(&d.CPU), (*int64)(&bound.CPU)},
		{&l.Memory, &d.Memory, &bound.Memory},
		{&l.PIDs, &d.PIDs, &bound.PIDs},
		{&l.Output, &d.Output, &bound.Output},
		{&l.FileSize, &d.FileSize, &bound.FileSize},
		{&l.OpenFiles, &d.OpenFiles, &bound.OpenFiles},
		{&l.Disk, &d.Disk, &bound.Disk},
		{&l.Inodes, &d.Inodes, &bound.Inodes},
	} {
		if *f.v == 0 {
			*f.v = *f.def
		}
		if *f.most != 0 {
			*f.v = min(*f.v, *f.most) // a negative one is refused later, as it should be
		}
	}
	return l
}

// declared returns the capabilities of the tool's table in the capsule's form: sorted, each
// once, nil for none.
func (p *Proposal) declared() []string {
	if p.tool == nil || len(p.tool.Capabilities) == 0 {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(p.tool.Capabilities)))
}

// declaration returns what the operator declared for the call, nil for nothing.
func (p *Proposal) declaration() *Declared {
	if p.tool == nil {
		return nil
	}
	return p.tool.Declared
}

// declares names the declaration in the capsule.
func (p *Proposal) declares() (*vocabulary.Declared, error) {
	d := p.declaration()
	if d == nil {
		return nil, nil
	}
	v := &vocabulary.Declared{Workspace: p.tool.WorkspaceName}
	set := d.set()
	if len(set) == 0 {
		return v, nil
	}
	b, err := canon.Marshal(set)
	v.Env = canon.Sum(b)
	return v, err
}

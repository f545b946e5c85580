// Package tool is the table of built-in tools: each one's name, input, permissions and
// program.
//
// A call of a tool is a call like any other. [Table.Expand] turns a name and an input into
// the call that the kernel seals, decides, approves and runs: the program palyra-tool in a
// cell, with the input as sealed standard input and its gist in the arguments, where policy
// and approver see it. process.run becomes the command that its input holds. The proposer
// chooses nothing else: neither the program, nor the folder of the host, which comes from
// the operator's table of workspaces by name, nor the capabilities.
//
//	t := tool.New(tool.Config{Program: "/usr/libexec/palyra/palyra-tool", Workspaces: …})
//	k, err := kernel.Open(ctx, kernel.Config{Tools: t, …})
//	out, err := k.CallAs(ctx, who, kernel.Proposal{Tool: "fs.read_file", Input: …}, …)
//
// # Contract
//
// The table decodes inputs into the Go types of package toolproto, strictly and within the
// bounds of their tags, and hands them on in canonical form. [Info.InputSchema] prints the
// same tags for others to read. A bad input, an unknown workspace and a read-only one for a
// tool that writes are fault.Usage errors, before anything is opened.
//
// A tool that reads gets its workspace read-only, so that policy need not ask
// about it. One that writes is declared sensitive. A staged workspace is the
// same for both: what they write goes to a layer.
//
// # What it does not protect against
//
// A palyra-tool that isn't ours: the kernel hashes and holds it like every program, and its
// digest is in every receipt, but no part of Palyra knows the right digest. Install it
// where only root can write. And two calls at once in one workspace see each other's
// changes.
package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"palyra/authz/policy"
	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/internal/tools"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// Config configures the tools.
type Config struct {
	// Program is the absolute path of palyra-tool.
	Program string
	// Fetch is the absolute path of palyra-fetch. Default: none, and http.fetch isn't in the table.
	Fetch string
	// Workspaces are the folders that calls can name. Default: none.
	Workspaces map[string]Workspace
	// Artifacts is the source of artifact.read. Default: none, and the tool isn't in the
	// table.
	Artifacts Artifacts
	// Processes has the processes in the background. Default: none, and the tools for them aren't
	// in the table.
	Processes Processes
	// State is the state directory, whose layers the tools for changes are about. Default:
	// none, and these tools aren't in the table.
	State string
	// ChangesBeside says that these tools work for calls alone that have a [BesideChanges], and for
	// layers over Workspaces. Default: for each call, and each layer.
	ChangesBeside bool
	// Memory has what principals had remembered. Default: none, and the tools for it aren't in the
	// table.
	Memory Memory
	// Vault is the vault that the tools for secrets work on. Default: none, and these tools
	// aren't in the table.
	Vault *Vault
}

// Workspace is a folder of the host that the operator declared.
type Workspace struct {
	Path     string // absolute
	ReadOnly bool   // tools that write to it are refused
	Staged   bool   // tools write to a layer, and not to it

	// The rest is for process.run.
	Network  string           // of calls that name none, as in a call's input
	Limits   isolate.Limits   // likewise; zero fields are the kernel's
	Declared *kernel.Declared // nil: nothing
}

// Artifacts gives the content of artifacts to their owners. For other principals they don't
// exist: fault.NotFound, as for an unknown digest. The content that Open returns is hashed
// before it is used.
type Artifacts interface {
	Open(ctx context.Context, who policy.Entity, d canon.Digest) (content io.ReadCloser, size int64, err error)
}

// Table is the table of tools. It is immutable and safe for concurrent use.
type Table struct {
	cfg     Config
	entries []entry
}

var _ kernel.Tools = (*Table)(nil)

// Info describes a tool.
type Info struct {
	Name         string          `json:"name"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"input_schema"` // JSON Schema 2020-12
	Capabilities []string        `json:"capabilities"`
	Tier         tier.Tier       `json:"tier"` // floor
	Limits       isolate.Limits  `json:"limits"`
	Sensitive    bool            `json:"sensitive"`
	Staged       []string        `json:"staged,omitempty"` // workspaces that are staged, if it works in one
}

// entry is a row of the table.
type entry struct {
	tools.Tool
	limits       isolate.Limits
	capabilities []string
	expand       func(ctx context.Context, t *Table, e *entry, who policy.Entity, input any) (*kernel.Expansion, error)
}

func (e *entry) writes() bool { return e.Access.Writing() }

func (e *entry) sensitive() bool {
	return e.writes() && e.Access != tools.Recovers || e.Destroys
}

// quick returns the limits of tools that read a few files: no longer than a person would wait.
// A Go program needs a dozen threads to start.
func quick() isolate.Limits {
	return isolate.Limits{Wall: 30 * time.Second, CPU: 30 * time.Second, Memory: 512 << 20, PIDs: 64, Output: 16 << 20,
		FileSize: 128 << 20, OpenFiles: 2048, Disk: 1 << 20, Inodes: 64}
}

// table returns the rows: process.run, which runs what its input names, and the tools
// of palyra-tool.
func table() []entry {
	var out []entry
	for _, t := range tools.All() {
		e := entry{Tool: t, limits: quick(), expand: expandPlain}
		if t.Patient {
			e.limits.Wall = 90 * time.Second
		}
		if t.Access != tools.None {
			e.expand = expandFiles
		}
		switch {
		case t.Name == toolproto.ArtifactRead:
			e.expand = expandArtifact
		case strings.HasPrefix(t.Name, "process."):
			e.expand = expandProcess
		}
		if t.Access.Layered() {
			e.expand = expandChanges
			e.limits.Memory, e.limits.Wall = 1<<30, 5*time.Minute
		}
		if t.Vault {
			e.expand = expandVault
		}
		if t.Remembers {
			e.expand = expandMemory
		}
		if t.Reaches {
			e.expand, e.capabilities = expandFetch, []string{policy.CapNetwork}
		}
		if t.Reveals {
			e.capabilities = []string{policy.CapSecretsRead}
		}
		if e.writes() {
			e.capabilities = []string{policy.CapFilesystemWrite}
		}
		out = append(out, e)
	}
	run := tools.Tool{Name: kernel.ToolRun, Description: "Runs a program in a sandbox, without network unless egress_hosts names hosts.", Input: func() any { return new(toolproto.RunInput) },
		Example: `{"argv":["id"],"workspace":"src"}`}
	return slices.Insert(out, 2, entry{run, kernel.DefaultLimits(), []string{policy.CapProcessExec}, expandRun})
}

// New returns the table.
func New(cfg Config) *Table {
	cfg.Workspaces = maps.Clone(cfg.Workspaces)
	t := &Table{cfg: cfg, entries: table()}
	if cfg.Artifacts == nil {
		t.entries = slices.DeleteFunc(t.entries, func(e entry) bool { return e.Name == toolproto.ArtifactRead })
	}
	if cfg.Processes == nil {
		t.entries = slices.DeleteFunc(t.entries, func(e entry) bool { return e.Name != kernel.ToolRun && strings.HasPrefix(e.Name, "process.") })
	}
	if cfg.Fetch == "" {
		t.entries = slices.DeleteFunc(t.entries, func(e entry) bool { return e.Reaches })
	}
	if cfg.Memory == nil {
		t.entries = slices.DeleteFunc(t.entries, func(e entry) bool { return e.Remembers })
	}
	if cfg.Vault == nil {
		t.entries = slices.DeleteFunc(t.entries, func(e entry) bool { return e.Vault })
	}
	if cfg.State == "" {
		t.entries = slices.DeleteFunc(t.entries, func(e entry) bool { return e.Access.Layered() })
	}
	return t
}

// List describes the tools, in the order of the table. The schemas name the
// workspaces that there are.
func (t *Table) List() []Info {
	var out []Info
	for i := range t.entries {
		e := &t.entries[i]
		i := Info{Name: e.Name, Description: e.Description, InputSchema: t.schema(e),
			Capabilities: append([]string{}, e.capabilities...), Tier: tier.C, Limits: e.limits, Sensitive: e.sensitive()}
		if slices.ContainsFunc(toolproto.Members(e.Input()), func(m toolproto.Member) bool { return m.Name == "workspace" }) {
			for _, name := range slices.Sorted(maps.Keys(t.cfg.Workspaces)) {
				if t.cfg.Workspaces[name].Staged {
					i.Staged = append(i.Staged, name)
				}
			}
		}
		out = append(out, i)
	}
	return out
}

// Expand implements kernel.Tools.
func (t *Table) Expand(ctx context.Context, who policy.Entity, name string, input []byte) (*kernel.Expansion, error) {
	i := slices.IndexFunc(t.entries, func(e entry) bool { return e.Name == name })
	if i < 0 {
		return nil, usage("not_found", fmt.Sprintf("find tool %q", clip(name)), errors.New("there is none of this name")).WithHint(fault.Lists("tool"))
	}
	e := &t.entries[i]
	in := e.Input()
	if err := toolproto.Decode(input, in); err != nil {
		return nil, err
	}
	return e.expand(ctx, t, e, who, in)
}

// tool returns the common part of every call of palyra-tool.
func (t *Table) tool(e *entry, in any) (*kernel.Expansion, error) {
	brief, err := e.Brief(in)
	if err != nil {
		return nil, err
	}
	line, err := canon.Marshal(in)
	if err != nil {
		return nil, err
	}
	return &kernel.Expansion{Argv: append([]string{t.cfg.Program, e.Name}, brief...), LeaveOperands: true,
		Stdin: line, WorkspaceReadOnly: !e.writes(), Limits: e.limits, TierFloor: tier.C, Network: isolate.NetworkVoid, Capabilities: e.capabilities, Sensitive: e.sensitive()}, nil
}

func expandPlain(_ context.Context, t *Table, e *entry, _ policy.Entity, in any) (*kernel.Expansion, error) {
	x, err := t.tool(e, in)
	if err == nil {
		x.WorkspaceReadOnly = false // it has none
	}
	return x, err
}

// expandFiles is for the tools that work in a workspace.
func expandFiles(_ context.Context, t *Table, e *entry, _ policy.Entity, in any) (*kernel.Expansion, error) {
	root, err := t.workspace(e.Workspace(in), e.writes())
	if err != nil {
		return nil, err
	}
	x, err := t.tool(e, in)
	if err == nil {
		x.Workspace, x.WorkspaceName, x.WorkspaceStaged = root.Path, e.Workspace(in), root.Staged
	}
	return x, err
}

// workspace finds a workspace by name.
func (t *Table) workspace(name string, write bool) (Workspace, error) {
	w, ok := t.cfg.Workspaces[name]
	op := fmt.Sprintf("find workspace %q", clip(name))
	switch {
	case !ok:
		return w, usage("not_found", op, errors.New("the operator declared none of this name"))
	case write && w.ReadOnly && !w.Staged:
		return w, usage("read_only", op, errors.New("the operator declared it read-only: programs run there with read_only")).
			WithHint("read_only = false in [workspaces." + name + "] of palyrad.toml, or staged = true, which keeps what is written in a layer")
	}
	return w, nil
}

func expandRun(_ context.Context, t *Table, e *entry, _ policy.Entity, input any) (*kernel.Expansion, error) {
	in := input.(*toolproto.RunInput)
	x := &kernel.Expansion{Argv: in.Argv, Env: in.Env, Secrets: in.Secrets, EgressHosts: in.EgressHosts, EgressInspect: in.EgressInspect, EgressSecrets: in.EgressSecrets, WorkspaceReadOnly: in.ReadOnly, Limits: e.limits, TierFloor: tier.C}
	x.Limits.Output = in.Output
	x.Background = in.Background
	if in.Workspace != "" {
		// The table makes nothing read-only behind the caller's back: the caller has to say
		// so.
		root, err := t.workspace(in.Workspace, !in.ReadOnly)
		if err != nil {
			return nil, err
		}
		x.Workspace, x.WorkspaceName, x.WorkspaceStaged = root.Path, in.Workspace, root.Staged
		if in.Network == "" && !in.Hosts() { // hosts are a network of the call's own
			in.Network = root.Network
		}
		limit(&x.Limits, root.Limits)
		if !in.Bare {
			x.Declared = root.Declared
		}
		share(x, in.Tmp)
	}
	if in.Background {
		background(&x.Limits)
	}
	if in.TTY {
		x.TTY = &call.TTY{Rows: 24, Columns: 80, Term: "xterm-256color"} // as a terminal without a person mostly is
	}
	limit(&x.Limits, isolate.Limits{Wall: time.Duration(in.TimeoutMS) * time.Millisecond, CPU: time.Duration(in.CPUMS) * time.Millisecond,
		Memory: in.Memory, PIDs: in.PIDs})
	if in.Network != policy.NetworkFresh {
		x.Network = in.Network
	}
	if in.Cwd != "." {
		cwd, err := toolproto.ParsePath(in.Cwd)
		if err != nil {
			return nil, err
		}
		x.Cwd = cwd
	}
	if in.Stdin != "" {
		b, err := in.Bytes()
		if err != nil {
			return nil, err
		}
		x.Stdin = b
	}
	return x, nil
}

// share has a call share /tmp with its session, or not, whatever is declared.
func share(x *kernel.Expansion, tmp string) {
	declared := x.Declared != nil && slices.Contains(x.Declared.Caches, isolate.CacheTmp)
	switch {
	case tmp == toolproto.TmpSession && !declared:
		x.Caches = []string{isolate.CacheTmp}
	case tmp == toolproto.TmpPrivate && declared:
		d := *x.Declared
		d.Caches = slices.DeleteFunc(slices.Clone(d.Caches), func(name string) bool { return name == isolate.CacheTmp })
		x.Declared = &d
	}
}

// limit replaces those of the limits that a call, or its workspace, names.
func limit(l *isolate.Limits, by isolate.Limits) {
	l.Wall, l.CPU = cmp.Or(by.Wall, l.Wall), cmp.Or(by.CPU, l.CPU)
	l.Memory, l.PIDs = cmp.Or(by.Memory, l.Memory), cmp.Or(by.PIDs, l.PIDs)
}

func usage(reason, op string, err error) *fault.Error { return fault.New(fault.Usage, reason, op, err) }

// clip bounds a foreign name for a message.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}

// Package tool is the table of built-in tools: what each is called, what it
// takes, what it may do, and what runs for it.
//
// A call of a tool is a call like any other. [Table.Expand] turns a name and an
// input into what the kernel seals, decides, approves and runs: the program
// palyra-tool in a cell, with the input as sealed standard input and its gist in
// the arguments, where policy and approver see it. process.run becomes the
// command that its input holds. The proposer has no say in anything else: not in
// the program, not in the folder of the host, which comes from the operator's
// table of workspaces by name, not in the capabilities.
//
//	t := tool.New(tool.Config{Program: "/usr/libexec/palyra/palyra-tool", Workspaces: …})
//	k, err := kernel.Open(ctx, kernel.Config{Tools: t, …})
//	out, err := k.CallAs(ctx, who, kernel.Proposal{Tool: "fs.read_file", Input: …}, …)
//
// # Contract
//
// Inputs are decoded into the Go types of package toolproto, strictly and within
// the bounds of their tags (that is the validator; [Info.InputSchema] is printed
// from the same tags for others to read), and handed on in canonical form. What
// is wrong with an input, an unknown workspace and a read-only one for a tool
// that writes are fault.Usage errors, before anything is opened.
//
// A tool that reads gets its workspace read-only, so that policy need not ask
// about it. One that writes is declared sensitive.
//
// # What it does not protect against
//
// A palyra-tool that is not ours: it is hashed and held like every program, and
// its digest is in every receipt, but nobody here knows what the digest should
// be. Install it where only root can write. And two calls at once in one
// workspace see each other's changes.
package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/patch"
	"palyra/internal/toolproto"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// Config says what the tools work on.
type Config struct {
	// Program is the absolute path of palyra-tool.
	Program string
	// Workspaces are the folders that calls can name. Default: none.
	Workspaces map[string]Workspace
	// Artifacts is where artifact.read reads. Default: nowhere, and the tool is
	// not in the table.
	Artifacts Artifacts
}

// Workspace is a folder of the host that the operator declared.
type Workspace struct {
	Path     string // absolute
	ReadOnly bool   // tools that write are refused
}

// Artifacts gives the content of artifacts to whom they belong. What somebody
// else's calls left does not exist: fault.NotFound, as for a digest that nobody
// knows. The content that Open returns is hashed before anybody sees it.
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
}

// entry is a row of the table.
type entry struct {
	name, description string
	input             func() any // a new, empty input
	limits            isolate.Limits
	writes            bool // in its workspace
	capabilities      []string
	expand            func(ctx context.Context, t *Table, e *entry, who policy.Entity, input any) (*kernel.Expansion, error)
}

// quick are the limits of tools that read a few files: no more than a person
// would wait. A Go program needs a dozen threads to start.
func quick() isolate.Limits {
	return isolate.Limits{Wall: 30 * time.Second, CPU: 30 * time.Second, Memory: 512 << 20, PIDs: 64, Output: 16 << 20,
		FileSize: 128 << 20, OpenFiles: 2048, Disk: 1 << 20, Inodes: 64}
}

// table returns the rows. Descriptions are read by agents.
func table() []entry {
	patient := quick()
	patient.Wall = 90 * time.Second
	run := kernel.DefaultLimits()
	return []entry{
		{toolproto.Echo, "Gives the text back. Shows that calls come through.",
			func() any { return new(toolproto.EchoInput) }, quick(), false, nil, expandPlain},
		{toolproto.Sleep, "Waits. Shows that running calls can be cancelled and time out.",
			func() any { return new(toolproto.SleepInput) }, patient, false, nil, expandPlain},
		{kernel.ToolRun, "Runs a program in a sandbox without network.",
			func() any { return new(toolproto.RunInput) }, run, false, []string{policy.CapProcessExec}, expandRun},
		{toolproto.ReadFile, "Reads a part of a file of a workspace, by bytes or by lines, with the digest of the whole.",
			func() any { return new(toolproto.ReadFileInput) }, quick(), false, nil, expandFiles},
		{toolproto.ListDir, "Lists a folder of a workspace, some levels deep. Follows no links.",
			func() any { return new(toolproto.ListDirInput) }, quick(), false, nil, expandFiles},
		{toolproto.Search, "Finds lines that hold a text or match a regular expression, in the files of a workspace.",
			func() any { return new(toolproto.SearchInput) }, patient, false, nil, expandFiles},
		{toolproto.WriteFile, "Creates, replaces or extends a file of a workspace, in one step. Says if other programs would run or obey it.",
			func() any { return new(toolproto.WriteFileInput) }, quick(), true, []string{policy.CapFilesystemWrite}, expandFiles},
		{toolproto.ApplyPatch, "Applies a unified diff to files of a workspace, all of it or nothing. Every line of context must match.",
			func() any { return new(toolproto.ApplyPatchInput) }, quick(), true, []string{policy.CapFilesystemWrite}, expandFiles},
		{toolproto.ArtifactRead, "Reads a part of an artifact, which is what a large result of an earlier call became.",
			func() any { return new(toolproto.ArtifactReadInput) }, quick(), false, nil, expandArtifact},
	}
}

// New returns the table.
func New(cfg Config) *Table {
	cfg.Workspaces = maps.Clone(cfg.Workspaces)
	t := &Table{cfg: cfg, entries: table()}
	if cfg.Artifacts == nil {
		t.entries = slices.DeleteFunc(t.entries, func(e entry) bool { return e.name == toolproto.ArtifactRead })
	}
	return t
}

// List describes the tools, in the order of the table. The schemas name the
// workspaces that there are.
func (t *Table) List() []Info {
	var out []Info
	for i := range t.entries {
		e := &t.entries[i]
		out = append(out, Info{Name: e.name, Description: e.description, InputSchema: t.schema(e),
			Capabilities: append([]string{}, e.capabilities...), Tier: tier.C, Limits: e.limits, Sensitive: e.writes})
	}
	return out
}

// Expand implements kernel.Tools.
func (t *Table) Expand(ctx context.Context, who policy.Entity, name string, input []byte) (*kernel.Expansion, error) {
	i := slices.IndexFunc(t.entries, func(e entry) bool { return e.name == name })
	if i < 0 {
		return nil, usage("unknown_tool", fmt.Sprintf("find tool %q", clip(name)), nil)
	}
	e := &t.entries[i]
	in := e.input()
	if err := toolproto.Decode(input, in); err != nil {
		return nil, err
	}
	return e.expand(ctx, t, e, who, in)
}

// tool is what every call of palyra-tool has in common.
func (t *Table) tool(e *entry, in any, brief []string) (*kernel.Expansion, error) {
	line, err := canon.Marshal(in)
	if err != nil {
		return nil, err
	}
	return &kernel.Expansion{Argv: append([]string{t.cfg.Program, e.name}, brief...), LeaveOperands: true,
		Stdin: line, WorkspaceReadOnly: !e.writes, Limits: e.limits, TierFloor: tier.C, Network: isolate.NetworkVoid, Capabilities: e.capabilities, Sensitive: e.writes}, nil
}

// briefed is an input that says its own gist.
type briefed interface{ Brief() []string }

func expandPlain(_ context.Context, t *Table, e *entry, _ policy.Entity, in any) (*kernel.Expansion, error) {
	var brief []string
	if b, ok := in.(briefed); ok {
		brief = b.Brief()
	}
	x, err := t.tool(e, in, brief)
	if err == nil {
		x.WorkspaceReadOnly = false // it has none
	}
	return x, err
}

// expandFiles is for the tools that work in a workspace.
func expandFiles(_ context.Context, t *Table, e *entry, _ policy.Entity, in any) (*kernel.Expansion, error) {
	var workspace string
	var brief []string
	switch in := in.(type) {
	case *toolproto.ReadFileInput:
		workspace, brief = in.Workspace, in.Brief()
	case *toolproto.ListDirInput:
		workspace, brief = in.Workspace, in.Brief()
	case *toolproto.SearchInput:
		workspace, brief = in.Workspace, in.Brief()
	case *toolproto.WriteFileInput:
		workspace, brief = in.Workspace, in.Brief()
	case *toolproto.ApplyPatchInput:
		var err error
		if brief, err = patchBrief(in); err != nil {
			return nil, err
		}
		workspace = in.Workspace
	default:
		panic(fmt.Sprintf("tool: internal error: %T", in))
	}
	root, err := t.workspace(workspace, e.writes)
	if err != nil {
		return nil, err
	}
	x, err := t.tool(e, in, brief)
	if err == nil {
		x.Workspace = root.Path
	}
	return x, err
}

// patchBrief reads a patch, so that a malformed one is refused before anybody
// is asked about it, and says which files it is about.
func patchBrief(in *toolproto.ApplyPatchInput) ([]string, error) {
	text, err := in.Bytes()
	if err != nil {
		return nil, err
	}
	files, err := patch.Parse(text)
	if err != nil {
		return nil, err
	}
	brief, err := patch.Brief(files)
	if err != nil {
		return nil, err
	}
	if in.DryRun {
		brief = append(brief, "dry_run")
	}
	return brief, nil
}

// workspace finds a workspace by name.
func (t *Table) workspace(name string, write bool) (Workspace, error) {
	w, ok := t.cfg.Workspaces[name]
	op := fmt.Sprintf("find workspace %q", clip(name))
	switch {
	case !ok:
		return w, usage("unknown_workspace", op, errors.New("the operator declared none of this name"))
	case write && w.ReadOnly:
		return w, usage("workspace_read_only", op, errors.New("the operator declared it read-only"))
	}
	return w, nil
}

// view is where a program sees its workspace at tier C.
const view = "/workspace"

func expandRun(_ context.Context, t *Table, e *entry, _ policy.Entity, input any) (*kernel.Expansion, error) {
	in := input.(*toolproto.RunInput)
	x := &kernel.Expansion{Argv: in.Argv, Env: in.Env, WorkspaceReadOnly: in.ReadOnly, Limits: e.limits, TierFloor: tier.C}
	if in.Network == isolate.NetworkVoid {
		x.Network = isolate.NetworkVoid
	}
	x.Limits.Wall, x.Limits.CPU = time.Duration(in.TimeoutMS)*time.Millisecond, time.Duration(in.CPUMS)*time.Millisecond
	x.Limits.Memory, x.Limits.PIDs, x.Limits.Output = in.Memory, in.PIDs, in.Output
	if in.Workspace != "" {
		// Nothing is made read-only behind the caller's back: it has to say so.
		root, err := t.workspace(in.Workspace, !in.ReadOnly)
		if err != nil {
			return nil, err
		}
		x.Workspace = root.Path
	}
	if in.Cwd != "." {
		cwd, err := toolproto.ParsePath(in.Cwd)
		if err != nil {
			return nil, err
		}
		x.Cwd = view + "/" + cwd
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

func usage(reason, op string, err error) *fault.Error { return fault.New(fault.Usage, reason, op, err) }

// clip bounds a foreign name for a message.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}

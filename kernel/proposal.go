package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	vocabulary "palyra/call"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cache"
	"palyra/isolate/stage"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

// ToolRun is the tool that runs a program with arguments. A proposal may bring its arguments;
// every other tool is a row of the table (tools.go).
const ToolRun = "process.run"

// Proposal asks for one call. It serialises, holds no authority, and can't weaken the demands
// of policy and tier.
type Proposal struct {
	Tool string `json:"tool"`

	// Input is the tool's JSON. With an input, and for every tool but ToolRun, the table
	// decides what runs. Then only Limits, which lower the tool's, TierFloor, which raises it,
	// and the two ids may be set beside it.
	Input json.RawMessage `json:"input,omitempty"`

	Argv []string `json:"argv"` // Argv[0] names the program; program.go says how it is found
	Env  []string `json:"env"`  // "NAME=VALUE", on top of the built environment

	// Dir is the caller's directory, absolute. Relative program paths are looked up there if
	// the call has no workspace. Default: they are refused.
	Dir string `json:"dir"`

	// Workspace is the absolute path of the host folder that the program sees at /workspace.
	// Default: an empty private one.
	Workspace         string `json:"workspace"`
	WorkspaceReadOnly bool   `json:"workspace_read_only"`
	// WorkspaceStaged says that what the program writes goes to a layer of the state
	// directory, and the folder stays as it is. Layer is its name; default: a new layer, which
	// the Outcome names. It needs tier C.
	WorkspaceStaged bool   `json:"workspace_staged,omitempty"`
	Layer           string `json:"layer,omitempty"`
	// WorkspaceOwnPath says that the program sees the folder at its own path, its links
	// resolved, as tier B always does.
	WorkspaceOwnPath bool `json:"workspace_own_path,omitempty"`

	// Mounts are absolute paths of further host folders, which the program sees read-only and at
	// their own paths, links resolved. They need tier C.
	Mounts []string `json:"mounts,omitempty"`

	// Caches are names of folders that the program writes and later calls of the same principal
	// and workspace find again, at /caches/NAME; "tmp" is /tmp, of the session. They need tier C and a
	// workspace.
	Caches []string `json:"caches,omitempty"`
	// Home are files that a cache "home" gets, each if it has none of the name. They aren't in the
	// capsule, as nothing in a cache is: an earlier call may have left others.
	Home []cache.File `json:"-"`

	// Secrets are "NAME=vault://SCOPE/KEY": the program reads the newest version's value in the file
	// /run/secrets/NAME. They need tier C.
	Secrets []string `json:"secrets,omitempty"`

	// EgressHosts are the hosts that the program may reach, as call/egress spells rules: "HOST:PORT",
	// or "HOST" for port 443. They need tier C, and a network of the call's own: Network is
	// NetworkFresh, or one of isolate.NetworkLoopback and isolate.NetworkEgress.
	EgressHosts []string `json:"egress_hosts,omitempty"`
	// EgressInspect are rules about the requests to hosts, which palyra-egress then reads;
	// EgressSecrets are secrets that it puts into them, and that the program has a placeholder of.
	// call/egress spells both. Their hosts needn't be in EgressHosts.
	EgressInspect []string `json:"egress_inspect,omitempty"`
	EgressSecrets []string `json:"egress_secrets,omitempty"`

	// Cwd is the folder in which the program starts, as it sees it: the workspace or a folder
	// in it. Default: the workspace.
	Cwd string `json:"cwd"`

	// TTY gives the program a terminal of its own. Standard input is typed there, with the key for
	// its end behind it, and all output is one stream. It needs tier C.
	TTY *vocabulary.TTY `json:"tty,omitempty"`

	Stdin     StdinMode      `json:"stdin"`
	TierFloor tier.Tier      `json:"tier_floor"` // default C
	Network   string         `json:"network"`    // as in isolate.Spec; default NetworkFresh
	Limits    isolate.Limits `json:"limits"`     // zero fields get DefaultLimits

	// The ids are for policy and the receipt; the program doesn't see them. SessionID also says whose
	// network isolate.NetworkSession is, and whose the caches "home" and "tmp" are.
	SessionID string `json:"session_id"`
	RunID     string `json:"run_id"`

	tool    *Expansion                // made of Input; set by expand alone
	secrets []vocabulary.Secret       // what Secrets mean; set by findSecrets alone
	uses    []vocabulary.EgressSecret // what EgressSecrets mean; likewise
}

// StdinMode is the source of the program's standard input.
type StdinMode string

// The modes. The zero StdinMode is StdinNone.
const (
	StdinNone   StdinMode = ""       // empty
	StdinSealed StdinMode = "sealed" // IO.Stdin, read in full before the decision and part of the capsule
	StdinStream StdinMode = "stream" // IO.Stdin, copied while the program runs
)

// IO holds the caller's streams for a call.
type IO struct {
	Stdin  io.Reader // nil is empty; not read for a tool with an input
	Stdout io.Writer // nil drops
	Stderr io.Writer // nil drops

	// Resize, if not nil, gives the sizes that a call's terminal takes, rows and columns.
	Resize <-chan [2]uint16

	// Observe, if not nil, gets each step when it's done (observe.go).
	Observe func(Event)
}

// DefaultLimits replace the zero limits of a proposal.
func DefaultLimits() isolate.Limits {
	return isolate.Limits{
		Wall:      time.Minute,
		CPU:       time.Minute,
		Memory:    1 << 30,
		PIDs:      256,
		Output:    16 << 20,
		FileSize:  256 << 20,
		OpenFiles: 1024,
		Disk:      256 << 20,
		Inodes:    16 << 10,
	}
}

// maxLimits bound a proposal's limits. Those in bytes stay far below 2^53, from which on JSON's
// doubles aren't exact.
func maxLimits() isolate.Limits {
	return isolate.Limits{
		Wall:      24 * time.Hour,
		CPU:       24 * time.Hour,
		Memory:    1 << 44,
		PIDs:      1 << 16,
		Output:    1 << 40,
		FileSize:  1 << 44,
		OpenFiles: 1 << 16,
		Disk:      1 << 40,
		Inodes:    1 << 24,
	}
}

// withDefaults fills in zero limits and refuses those out of bounds.
func withDefaults(l isolate.Limits) (isolate.Limits, error) {
	d, m := DefaultLimits(), maxLimits()
	for _, f := range []struct {
		name      string
		v         *int64
		def, most int64
	}{
		{"wall", (*int64)(&l.Wall), int64(d.Wall), int64(m.Wall)},
		{"cpu", (*int64)(&l.CPU), int64(d.CPU), int64(m.CPU)},
		{"memory", &l.Memory, d.Memory, m.Memory},
		{"pids", &l.PIDs, d.PIDs, m.PIDs},
		{"output", &l.Output, d.Output, m.Output},
		{"file_size", &l.FileSize, d.FileSize, m.FileSize},
		{"open_files", &l.OpenFiles, d.OpenFiles, m.OpenFiles},
		{"disk", &l.Disk, d.Disk, m.Disk},
		{"inodes", &l.Inodes, d.Inodes, m.Inodes},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < 0 || *f.v > f.most {
			return l, usage("invalid_input", "check limit "+f.name, fmt.Errorf("%d is not within 1 and %d", *f.v, f.most))
		}
	}
	return l, nil
}

func usage(reason, op string, err error) *fault.Error { return fault.New(fault.Usage, reason, op, err) }

// The kernel's bounds on execve (execve(2), "Limits on size of arguments and environment"): 32
// pages for a string, and a quarter of the stack limit for all of them with their pointers. We
// take the usual stack limit of 8 MiB.
const (
	maxString  = 32 * 4096
	maxStrings = 8 << 20 / 4
	pointer    = 8
)

func checkArguments(argv, env []string) error {
	total := 2 * pointer // the two terminating nulls
	for _, s := range slices.Concat(argv, env) {
		if len(s)+1 > maxString {
			return usage("too_large", "check arguments", fmt.Errorf("a string of %d bytes, limit %d", len(s), maxString-1))
		}
		if total += len(s) + 1 + pointer; total > maxStrings {
			return usage("too_large", "check arguments",
				fmt.Errorf("arguments and environment need more than %d bytes", maxStrings)).
				WithHint("pass data on standard input or in a file of the workspace")
		}
	}
	return nil
}

// checkText refuses strings that C strings or canonical JSON can't hold. Bytes that aren't
// UTF-8 would have to be replaced, and two calls would share a digest.
func checkText(what string, ss ...string) error {
	for _, s := range ss {
		if strings.IndexByte(s, 0) >= 0 {
			return usage("invalid_input", "check "+what, fmt.Errorf("a NUL byte in it"))
		}
		if !utf8.ValidString(s) {
			return usage("invalid_input", "check "+what, fmt.Errorf("not UTF-8")).
				WithHint("only UTF-8 can be shown for approval and recorded faithfully")
		}
	}
	return nil
}

// check makes all checks of a proposal that need no file.
func (p *Proposal) check() (isolate.Limits, error) {
	if p.Tool != ToolRun && p.tool == nil {
		return isolate.Limits{}, usage("not_found", fmt.Sprintf("check tool %q", p.Tool), errors.New("there is none of this name")).WithHint(fault.Lists("tool"))
	}
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return isolate.Limits{}, usage("invalid_input", "check arguments", fmt.Errorf("no program named")).
			WithHint("name what is to run behind --")
	}
	for _, t := range []struct {
		what string
		ss   []string
	}{{"arguments", p.Argv}, {"environment", p.Env}, {"paths", []string{p.Dir, p.Workspace, p.Cwd}}, {"ids", []string{p.SessionID, p.RunID}}} {
		if err := checkText(t.what, t.ss...); err != nil {
			return isolate.Limits{}, err
		}
	}
	if max(len(p.SessionID), len(p.RunID)) > 128 {
		return isolate.Limits{}, usage("invalid_input", "check ids", fmt.Errorf("longer than 128 bytes"))
	}
	if err := checkArguments(p.Argv, p.Env); err != nil {
		return isolate.Limits{}, err
	}
	switch p.Stdin {
	case StdinNone, StdinSealed, StdinStream:
	default:
		return isolate.Limits{}, usage("invalid_input", fmt.Sprintf("check stdin mode %q", string(p.Stdin)), errors.New("no such mode"))
	}
	switch staged := p.WorkspaceStaged; {
	case !staged && p.Layer == "":
	case !staged || p.Workspace == "" || p.WorkspaceReadOnly:
		return isolate.Limits{}, usage("invalid_input", "check workspace", errors.New("a layer is for a workspace that is staged, and not read-only"))
	case p.TierFloor != tier.None && p.TierFloor != tier.C:
		return isolate.Limits{}, usage("invalid_input", "check workspace", errors.New("a staged workspace needs the mounts of tier c"))
	case p.Layer != "":
		if err := stage.CheckName(p.Layer); err != nil {
			return isolate.Limits{}, err
		}
	}
	if len(p.Caches) > 0 && (p.Workspace == "" || p.TierFloor != tier.None && p.TierFloor != tier.C) {
		return isolate.Limits{}, usage("invalid_input", "check caches", errors.New("a cache belongs to a workspace, and needs the mounts of tier c"))
	}
	for _, name := range p.Caches {
		if err := isolate.CheckCache(name); err != nil {
			return isolate.Limits{}, err
		}
	}
	if slices.Contains(p.Caches, isolate.CacheTmp) && p.SessionID == "" {
		return isolate.Limits{}, usage("invalid_input", "check caches", errors.New("no session to share /tmp with")).
			WithHint("palyrad has sessions: palyra call --session ID; with palyra exec leave it out")
	}
	if err := p.checkMounts(); err != nil {
		return isolate.Limits{}, err
	}
	if err := p.checkSecrets(); err != nil {
		return isolate.Limits{}, err
	}
	if p.WorkspaceOwnPath && p.Workspace == "" {
		return isolate.Limits{}, usage("invalid_input", "check workspace", errors.New("a private workspace has no path of its own"))
	}
	floor := p.TierFloor
	if floor == tier.None {
		floor = tier.C
	}
	if err := isolate.CheckTTY(floor, p.TTY); err != nil {
		return isolate.Limits{}, usage("invalid_input", "check terminal", err)
	}
	if p.TierFloor == tier.A {
		return isolate.Limits{}, usage("invalid_input", "check tier", fmt.Errorf("tier a runs WASM, not programs"))
	}
	switch {
	case isolate.HasNetwork(p.TierFloor, p.Network):
	case isolate.HasNetwork(tier.C, p.Network):
		return isolate.Limits{}, usage("invalid_input", "check network", fmt.Errorf("tier %s has no network namespace", p.TierFloor))
	default:
		return isolate.Limits{}, usage("invalid_input", fmt.Sprintf("check network %q", clip(p.Network)), errors.New("no such mode"))
	}
	if err := p.checkEgress(); err != nil {
		return isolate.Limits{}, err
	}
	if err := isolate.CheckSession(p.Network, p.networkSession()); err != nil {
		return isolate.Limits{}, usage("invalid_input", "check network", err).
			WithHint("palyrad has sessions: palyra call --session ID; with palyra exec use loopback")
	}
	return withDefaults(p.Limits)
}

// networkSession is the session whose network the call shares; "" for another network.
func (p *Proposal) networkSession() string {
	if p.Network != isolate.NetworkSession {
		return ""
	}
	return p.SessionID
}

func (m StdinMode) mode() string {
	if m == StdinNone {
		return capsule.StdinNone
	}
	return string(m)
}

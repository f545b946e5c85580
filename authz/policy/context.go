package policy

import (
	"math/bits"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// attr is a set of context attributes, a bit for each leaf. A Set knows which of
// them its policies mention, and only those are built for a decision: what no
// policy reads cannot change an answer, and most of the time of a small decision
// goes into building records. Explain and the tests build all of them.
type attr uint64

const (
	attrSession attr = 1 << iota
	attrRun
	attrDevice
	attrChannel
	attrSensitive
	attrApproved
	attrCapsule
	attrInterpreterPermitted
	attrArgs
	attrArgCount
	attrFirstArg
	attrCwd
	attrEgressHosts
	attrCapabilities
	attrTier
	attrStdin
	attrExecPath
	attrExecDir
	attrExecName
	attrExecDigest
	attrExecSystem
	attrExecInterpreter
	attrExecKind
	attrExecFamily
	attrLimits
	attrWorkspaceSource
	attrWorkspaceReadOnly
	attrEnd

	attrAll        = attrEnd - 1
	attrOrigin     = attrSession | attrRun | attrDevice | attrChannel | attrSensitive | attrApproved
	attrExecutable = attrExecPath | attrExecDir | attrExecName | attrExecDigest | attrExecSystem | attrExecInterpreter |
		attrExecKind | attrExecFamily
	attrWorkspace = attrWorkspaceSource | attrWorkspaceReadOnly
)

// attrNames are the attributes by path below context. A record's own path
// stands for all that is in it.
var attrNames = map[string]attr{
	"session": attrSession, "run": attrRun, "device": attrDevice, "channel": attrChannel,
	"sensitive": attrSensitive, "approved": attrApproved, "capsule": attrCapsule,
	"interpreter_permitted": attrInterpreterPermitted, "args": attrArgs, "arg_count": attrArgCount,
	"first_arg": attrFirstArg, "cwd": attrCwd, "egress_hosts": attrEgressHosts, "capabilities": attrCapabilities,
	"tier": attrTier, "stdin": attrStdin, "limits": attrLimits,
	"executable": attrExecutable, "executable.path": attrExecPath, "executable.dir": attrExecDir,
	"executable.name": attrExecName, "executable.digest": attrExecDigest, "executable.system": attrExecSystem,
	"executable.interpreter": attrExecInterpreter, "executable.kind": attrExecKind, "executable.family": attrExecFamily,
	"workspace": attrWorkspace, "workspace.source": attrWorkspaceSource, "workspace.read_only": attrWorkspaceReadOnly,
}

// mentions returns the attributes that p reads. The longest access that is
// known counts; context by itself, or anything unknown, counts as all.
func mentions(p *ast.Policy) attr {
	var m attr
	for _, c := range p.Conditions {
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			path := pathOf(n)
			if has, ok := n.(ast.NodeTypeHas); ok {
				if path = pathOf(has.Arg); path != "" {
					path += "." + string(has.Value)
				}
			}
			if path == "context" {
				m = attrAll
			}
			below, ok := strings.CutPrefix(path, "context.")
			if !ok {
				return true
			}
			if a, ok := attrNames[below]; ok {
				m |= a
				return false
			}
			return true // context.limits.memory: look at context.limits
		})
	}
	return m
}

// facts is a request's context on its way to Cedar: every value of the
// mentioned attributes except the two that the decision itself sets.
type facts struct {
	values cedar.RecordMap
	want   attr
	kind   Kind
	family string
}

func newFacts(r *Request, want attr) *facts {
	c := &r.Context
	f := &facts{kind: Other}
	if !runsProgram(r.Action) {
		want &= attrOrigin
	} else {
		f.kind, f.family = Classify(c.Executable.Path, c.Executable.Interpreter)
	}
	f.want, f.values = want, make(cedar.RecordMap, bits.OnesCount64(uint64(want)))
	text := func(a attr, name, s string) {
		if want&a != 0 {
			f.values[cedar.String(name)] = cedar.String(s)
		}
	}
	text(attrSession, "session", c.SessionID)
	text(attrRun, "run", c.RunID)
	text(attrDevice, "device", c.DeviceID)
	text(attrChannel, "channel", c.ChannelID)
	text(attrCwd, "cwd", c.Cwd)
	text(attrTier, "tier", c.Tier)
	text(attrStdin, "stdin", orNone(c.Stdin))
	text(attrFirstArg, "first_arg", first(c.Args))
	if want&attrCapsule != 0 {
		f.values["capsule"] = cedar.String(c.CapsuleDigest.String())
	}
	if want&attrSensitive != 0 {
		f.values["sensitive"] = cedar.Boolean(c.Sensitive)
	}
	if want&attrArgs != 0 {
		f.values["args"] = stringSet(c.Args)
	}
	if want&attrArgCount != 0 {
		f.values["arg_count"] = cedar.Long(len(c.Args))
	}
	if want&attrEgressHosts != 0 {
		f.values["egress_hosts"] = stringSet(c.EgressHosts)
	}
	if want&attrCapabilities != 0 {
		f.values["capabilities"] = stringSet(c.Capabilities)
	}
	if want&attrExecutable != 0 {
		f.values["executable"] = f.executable(&c.Executable)
	}
	if want&attrLimits != 0 {
		f.values["limits"] = limitsRecord(&c.Limits)
	}
	if want&attrWorkspace != 0 {
		f.values["workspace"] = workspaceRecord(c, want)
	}
	return f
}

// record is the context for one evaluation.
func (f *facts) record(approved, interpreterPermitted bool) cedar.Record {
	if f.want&attrApproved != 0 {
		f.values["approved"] = cedar.Boolean(approved)
	}
	if f.want&attrInterpreterPermitted != 0 {
		f.values["interpreter_permitted"] = cedar.Boolean(interpreterPermitted)
	}
	return cedar.NewRecord(f.values)
}

func (f *facts) executable(e *Executable) cedar.Value {
	m := make(cedar.RecordMap, 8)
	text := func(a attr, name, s string) {
		if f.want&a != 0 {
			m[cedar.String(name)] = cedar.String(s)
		}
	}
	text(attrExecPath, "path", e.Path)
	text(attrExecDir, "dir", dirName(e.Path))
	text(attrExecName, "name", baseName(e.Path))
	text(attrExecInterpreter, "interpreter", e.Interpreter)
	text(attrExecKind, "kind", string(f.kind))
	text(attrExecFamily, "family", f.family)
	if f.want&attrExecDigest != 0 {
		m["digest"] = cedar.String(e.Digest.String())
	}
	if f.want&attrExecSystem != 0 {
		m["system"] = cedar.Boolean(e.System)
	}
	return cedar.NewRecord(m)
}

func workspaceRecord(c *Context, want attr) cedar.Value {
	m := make(cedar.RecordMap, 2)
	if want&attrWorkspaceSource != 0 {
		m["source"] = cedar.String(c.WorkspaceSource)
	}
	if want&attrWorkspaceReadOnly != 0 {
		m["read_only"] = cedar.Boolean(c.WorkspaceReadOnly)
	}
	return cedar.NewRecord(m)
}

func limitsRecord(l *Limits) cedar.Value {
	return cedar.NewRecord(cedar.RecordMap{
		"wall_ms": cedar.Long(l.Wall.Milliseconds()), "cpu_ms": cedar.Long(l.CPU.Milliseconds()),
		"memory": cedar.Long(l.Memory), "pids": cedar.Long(l.PIDs), "output": cedar.Long(l.Output),
		"file_size": cedar.Long(l.FileSize),
	})
}

func stringSet(ss []string) cedar.Value {
	if len(ss) == 0 {
		return cedar.Set{}
	}
	vs := make([]cedar.Value, len(ss))
	for i, s := range ss {
		vs[i] = cedar.String(s)
	}
	return cedar.NewSet(vs...)
}

func first(ss []string) string {
	if len(ss) == 0 {
		return ""
	}
	return ss[0]
}

func orNone(mode string) string {
	if mode == "" {
		return "none"
	}
	return mode
}

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
	attrNetwork
	attrCertificate
	attrEnv
	attrEnvNames
	attrEnvCode
	attrUnpinned
	attrTool
	attrRequester
	attrApprover
	attrScope
	attrPattern
	attrSensitiveCall
	attrApprovers
	attrFeatures
	attrEnd

	attrAll        = attrEnd - 1
	attrOrigin     = attrSession | attrRun | attrDevice | attrChannel | attrSensitive | attrApproved
	attrExecutable = attrExecPath | attrExecDir | attrExecName | attrExecDigest | attrExecSystem | attrExecInterpreter |
		attrExecKind | attrExecFamily
	attrWorkspace = attrWorkspaceSource | attrWorkspaceReadOnly

	// What the contexts of the actions have: attrOrigin, or of these.
	attrOfAnswer = attrTool | attrRequester | attrApprover | attrScope | attrPattern | attrSensitiveCall | attrApprovers | attrFeatures
	attrCall     = attrAll &^ attrOfAnswer
	attrUse      = attrOrigin | attrFeatures
	attrAnswer   = attrOrigin | attrExecutable | attrEgressHosts | attrCapabilities | attrTier | attrOfAnswer

	attrBool = attrSensitive | attrApproved | attrInterpreterPermitted | attrExecSystem | attrWorkspaceReadOnly | attrPattern | attrSensitiveCall
	attrSets = attrArgs | attrEgressHosts | attrCapabilities | attrFeatures | attrEnv | attrEnvNames | attrEnvCode | attrUnpinned
	attrText = attrAll &^ (attrBool | attrSets | attrArgCount | attrLimits | attrApprovers)
)

// leaf is where an attribute stands in the context: top, or top.sub.
type leaf struct{ top, sub cedar.String }

// leaves are the attributes by their bit.
var leaves = [...]leaf{
	{"session", ""}, {"run", ""}, {"device", ""}, {"channel", ""}, {"sensitive", ""}, {"approved", ""},
	{"capsule", ""}, {"interpreter_permitted", ""}, {"args", ""}, {"arg_count", ""}, {"first_arg", ""},
	{"cwd", ""}, {"egress_hosts", ""}, {"capabilities", ""}, {"tier", ""}, {"stdin", ""},
	{"executable", "path"}, {"executable", "dir"}, {"executable", "name"}, {"executable", "digest"},
	{"executable", "system"}, {"executable", "interpreter"}, {"executable", "kind"}, {"executable", "family"},
	{"limits", ""}, {"workspace", "source"}, {"workspace", "read_only"}, {"network", ""}, {"certificate", ""},
	{"env", ""}, {"env_names", ""}, {"env_code", ""}, {"unpinned", ""},
	{"tool", ""}, {"requester", ""}, {"approver", ""}, {"scope", ""}, {"pattern", ""}, {"sensitive_call", ""}, {"approvers", ""}, {"features", ""},
}

// attrNames are the attributes by path below context. A record's own path
// stands for all that is in it.
var attrNames = func() map[string]attr {
	m := make(map[string]attr)
	for i, l := range leaves {
		m[string(l.top)] |= 1 << i
		if l.sub != "" {
			m[string(l.top+"."+l.sub)] = 1 << i
		}
	}
	return m
}()

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

// facts is a request's context on its way to Cedar: the values of attributes,
// built when they are asked for. Owned by one evaluation.
type facts struct {
	request          *Request
	has              attr // what the action's context has
	want             attr // of it, what record builds
	kind             Kind
	family           string
	approved, byName bool // context.approved and context.interpreter_permitted
	memo             *memo
	records          [len(leaves)]cedar.Record // see record.go
}

func (f *facts) init(r *Request, want attr, m *memo) {
	f.request, f.has, f.memo, f.kind = r, attrOrigin, m, Other
	switch {
	case runsProgram(r.Action):
		f.has = attrCall
	case answers(r.Action):
		f.has = attrAnswer
	case r.Action == PermissionUse:
		f.has = attrUse
	}
	if f.want = want & f.has; f.has&attrExecutable == 0 {
		return
	}
	f.kind, f.family = Classify(r.Context.Executable.Path, r.Context.Executable.Interpreter)
}

// record is the context for one evaluation, with every value of the wanted attributes.
func (f *facts) record(approved, interpreterPermitted bool) cedar.Record {
	f.set(approved, interpreterPermitted)
	return f.recordOf(f.want)
}

func (f *facts) recordOf(want attr) cedar.Record {
	if want == 0 {
		return cedar.Record{}
	}
	values := make(cedar.RecordMap, bits.OnesCount64(uint64(want)))
	inner := make(map[cedar.String]cedar.RecordMap)
	for ; want != 0; want &= want - 1 {
		a := want & -want
		switch l := leaves[a.bit()]; {
		case l.sub == "":
			values[l.top] = f.value(a)
		case inner[l.top] == nil:
			inner[l.top] = cedar.RecordMap{l.sub: f.value(a)}
		default:
			inner[l.top][l.sub] = f.value(a)
		}
	}
	for top, m := range inner {
		values[top] = cedar.NewRecord(m)
	}
	return cedar.NewRecord(values)
}

// bit is the number of a single attribute.
func (a attr) bit() int { return bits.TrailingZeros64(uint64(a)) }

// value is the Cedar value of a single attribute.
func (f *facts) value(a attr) cedar.Value {
	c := &f.request.Context
	switch {
	case a&attrText != 0:
		return cedar.String(f.text(a))
	case a&attrBool != 0:
		return cedar.Boolean(f.truth(a))
	case a&attrSets != 0:
		return stringSet(f.elements(a))
	}
	switch a {
	case attrArgCount:
		return cedar.Long(len(c.Args))
	case attrLimits:
		return limitsRecord(&c.Limits)
	case attrApprovers:
		return cedar.Long(c.Answer.Approvers)
	}
	panic("policy: internal error: no such attribute")
}

// text is the value of an attribute in attrText.
func (f *facts) text(a attr) string {
	c := &f.request.Context
	switch a {
	case attrSession:
		return c.SessionID
	case attrRun:
		return c.RunID
	case attrDevice:
		return c.DeviceID
	case attrChannel:
		return c.ChannelID
	case attrCapsule:
		return c.CapsuleDigest.String()
	case attrFirstArg:
		return first(c.Args)
	case attrCwd:
		return c.Cwd
	case attrTier:
		return c.Tier
	case attrStdin:
		return orNone(c.Stdin)
	case attrNetwork:
		return orFresh(c.Network)
	case attrCertificate:
		return orNone(c.Certificate)
	case attrExecPath:
		return c.Executable.Path
	case attrExecDir:
		return dirName(c.Executable.Path)
	case attrExecName:
		return baseName(c.Executable.Path)
	case attrExecDigest:
		return c.Executable.Digest.String()
	case attrExecInterpreter:
		return c.Executable.Interpreter
	case attrExecKind:
		return string(f.kind)
	case attrExecFamily:
		return f.family
	case attrWorkspaceSource:
		return c.WorkspaceSource
	case attrTool:
		return c.Answer.Tool
	case attrRequester:
		return c.Answer.Requester
	case attrApprover:
		return c.Answer.Approver
	case attrScope:
		if c.Answer.Scope == "" {
			return ScopeOnce
		}
		return c.Answer.Scope
	}
	panic("policy: internal error: no such text")
}

// elements are the value of an attribute in attrSets.
func (f *facts) elements(a attr) []string {
	c := &f.request.Context
	switch a {
	case attrArgs:
		return c.Args
	case attrEgressHosts:
		return c.EgressHosts
	case attrCapabilities:
		return c.Capabilities
	case attrFeatures:
		return c.Features
	case attrEnv:
		return c.Env
	case attrEnvNames:
		return c.envNames()
	case attrEnvCode:
		return c.EnvCode
	case attrUnpinned:
		return c.Unpinned
	}
	panic("policy: internal error: no such set")
}

// truth is the value of an attribute in attrBool.
func (f *facts) truth(a attr) bool {
	switch a {
	case attrSensitive:
		return f.request.Context.Sensitive
	case attrApproved:
		return f.approved
	case attrInterpreterPermitted:
		return f.byName
	case attrExecSystem:
		return f.request.Context.Executable.System
	case attrWorkspaceReadOnly:
		return f.request.Context.WorkspaceReadOnly
	case attrPattern:
		return f.request.Context.Answer.Pattern
	case attrSensitiveCall:
		return f.request.Context.Answer.Sensitive
	}
	panic("policy: internal error: no such truth")
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

func orFresh(network string) string {
	if network == "" {
		return NetworkFresh
	}
	return network
}

func orNone(mode string) string {
	if mode == "" {
		return "none"
	}
	return mode
}

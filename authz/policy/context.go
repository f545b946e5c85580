package policy

import (
	"math/bits"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/policy/internal/tree"
)

// attr is a set of context attributes, with a bit for each row of [attributes]. A Set knows the
// attributes that its policies mention, and a decision builds only those: building records
// takes most of the time of a small decision. Explain and the tests build all of them.
type attr uint64

// attrAll is every attribute; the constant overflows where attr has too few bits.
const attrAll attr = 1<<len(attributes) - 1

func (a attr) bit() int { return bits.TrailingZeros64(uint64(a)) }

func attrsWhere(is func(*attribute) bool) (m attr) {
	for i := range attributes {
		if is(&attributes[i]) {
			m |= 1 << i
		}
	}
	return m
}

// The attributes by type, and by the contexts that have them.
var (
	attrText = attrsWhere(func(a *attribute) bool { return a.text != nil || a.digest != nil })
	attrSets = attrsWhere(func(a *attribute) bool { return a.set != nil })
	attrBool = attrsWhere(func(a *attribute) bool { return a.truth != nil })

	attrOrigin = attrsWhere(func(a *attribute) bool { return a.in&inOrigin != 0 })
	attrCall   = attrsWhere(func(a *attribute) bool { return a.in&inCall != 0 })
	attrUse    = attrsWhere(func(a *attribute) bool { return a.in&inUse != 0 })
	attrAnswer = attrsWhere(func(a *attribute) bool { return a.in&inAnswer != 0 })
)

// attrNames are the attributes by path below context. A record's own path stands for all
// attributes in it.
var attrNames = func() map[string]attr {
	m := make(map[string]attr)
	for i := range attributes {
		path := attributes[i].path
		m[path] |= 1 << i
		if top, _, nested := strings.Cut(path, "."); nested {
			m[top] |= 1 << i
		}
	}
	return m
}()

// attrsOf returns the attributes with these paths. It panics if there is none.
func attrsOf(paths ...string) (m attr) {
	for _, p := range paths {
		if attrNames[p] == 0 {
			panic("policy: internal error: no attribute " + p)
		}
		m |= attrNames[p]
	}
	return m
}

// The attributes that code names.
var (
	attrApproved             = attrsOf("approved")
	attrInterpreterPermitted = attrsOf("interpreter_permitted")
	attrExecutable           = attrsOf("executable")
	attrCapabilities         = attrsOf("capabilities")
)

// place is where an attribute stands in the context: top, or top.sub.
type place struct{ top, sub cedar.String }

var places = func() (out [len(attributes)]place) {
	for i := range attributes {
		top, sub, _ := strings.Cut(attributes[i].path, ".")
		out[i] = place{cedar.String(top), cedar.String(sub)}
	}
	return out
}()

// mentions returns the attributes that p reads. The longest known access counts. The bare
// context, or an unknown attribute, counts as all.
func mentions(p *ast.Policy) attr {
	var m attr
	for _, c := range p.Conditions {
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			path := tree.Path(n)
			if has, ok := n.(ast.NodeTypeHas); ok {
				if path = tree.Path(has.Arg); path != "" {
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

// facts is a request's context on its way to Cedar: attribute values, built on demand. Owned by
// one evaluation.
type facts struct {
	given
	has     attr // the attributes of the action's context
	want    attr // those of them that record builds
	memo    *memo
	records [len(attributes)]cedar.Record // see record.go
}

func (f *facts) init(r *Request, want attr, s *Set) {
	f.Context, f.has, f.memo, f.kind, f.tool, f.principal, f.hosts = &r.Context, contextOf(r.Action), s.memo, Other, "", r.Principal.ID, s.hostsFor(r)
	if runsProgram(r.Action) {
		f.tool = r.Resource.ID
	}
	if s.unknown != (byContext{}) {
		f.has &^= s.unknown.of(r.Action)
	}
	if f.want = want & f.has; f.has&attrExecutable == 0 {
		return
	}
	f.kind, f.family = Classify(r.Context.Executable.Path, r.Context.Executable.Interpreter)
}

func contextOf(action string) attr {
	switch {
	case runsProgram(action), action == interpreterRun, action == vaultExpose:
		return attrCall
	case answers(action):
		return attrAnswer
	case action == PermissionUse:
		return attrUse
	}
	return attrOrigin
}

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
		switch l := places[a.bit()]; {
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

func (f *facts) value(a attr) cedar.Value {
	switch {
	case a&attrText != 0:
		return cedar.String(f.text(a))
	case a&attrBool != 0:
		return cedar.Boolean(f.truth(a))
	case a&attrSets != 0:
		return stringSet(f.elements(a))
	}
	return cedar.Long(attributes[a.bit()].number(&f.given))
}

func (f *facts) text(a attr) string {
	row := &attributes[a.bit()]
	if row.digest != nil {
		return row.digest(&f.given).String()
	}
	if text := row.text(&f.given); text != "" {
		return text
	}
	return row.absent
}

func (f *facts) elements(a attr) []string { return attributes[a.bit()].set(&f.given) }

func (f *facts) truth(a attr) bool { return attributes[a.bit()].truth(&f.given) }

func stringSet(ss []string) cedar.Value {
	if len(ss) == 0 {
		return cedar.Set{}
	}
	if len(ss) > uncrowded {
		ss = distinct(ss)
	}
	vs := make([]cedar.Value, len(ss))
	for i, s := range ss {
		vs[i] = cedar.String(s)
	}
	return cedar.NewSet(vs...)
}

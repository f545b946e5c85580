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
type attr [2]uint64

// attrAll is every attribute.
var attrAll = attrsWhere(func(*attribute) bool { return true })

// attrAt is the attribute of a row.
func attrAt(row int) (a attr) {
	a[row/64] = 1 << (row % 64)
	return a
}

func (a attr) or(b attr) attr      { return attr{a[0] | b[0], a[1] | b[1]} }
func (a attr) and(b attr) attr     { return attr{a[0] & b[0], a[1] & b[1]} }
func (a attr) without(b attr) attr { return attr{a[0] &^ b[0], a[1] &^ b[1]} }

func (a attr) isEmpty() bool     { return a == attr{} }
func (a attr) meets(b attr) bool { return !a.and(b).isEmpty() }
func (a attr) len() int          { return bits.OnesCount64(a[0]) + bits.OnesCount64(a[1]) }

// bit returns the row of the first attribute in a, which isn't empty.
func (a attr) bit() int {
	if a[0] != 0 {
		return bits.TrailingZeros64(a[0])
	}
	return 64 + bits.TrailingZeros64(a[1])
}

// each yields the attributes in a one by one.
func (a attr) each(yield func(attr) bool) {
	for i, word := range a {
		for ; word != 0; word &= word - 1 {
			if !yield(attrAt(64*i + bits.TrailingZeros64(word))) {
				return
			}
		}
	}
}

func attrsWhere(is func(*attribute) bool) (m attr) {
	for i := range attributes {
		if is(&attributes[i]) {
			m = m.or(attrAt(i))
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
		m[path] = m[path].or(attrAt(i))
		if top, _, nested := strings.Cut(path, "."); nested {
			m[top] = m[top].or(attrAt(i))
		}
	}
	return m
}()

// attrsOf returns the attributes with these paths. It panics if there is none.
func attrsOf(paths ...string) (m attr) {
	for _, p := range paths {
		if attrNames[p].isEmpty() {
			panic("policy: internal error: no attribute " + p)
		}
		m = m.or(attrNames[p])
	}
	return m
}

// The attributes that code names.
var (
	attrApproved             = attrsOf("approved")
	attrInterpreterPermitted = attrsOf("interpreter_permitted")
	attrExecutable           = attrsOf("executable")
	attrCapabilities         = attrsOf("capabilities")
	attrOfUse                = attrsOf("use")
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
				m = m.or(a)
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
		f.has = f.has.without(s.unknown.of(r.Action))
	}
	if f.want = want.and(f.has); !f.has.meets(attrExecutable) {
		return
	}
	f.kind, f.family = Classify(r.Context.Executable.Path, r.Context.Executable.Interpreter)
}

func contextOf(action string) attr {
	switch {
	case runsProgram(action), action == interpreterRun, action == vaultExpose, action == vaultUse:
		return attrCall
	case answers(action):
		return attrAnswer
	case action == PermissionUse:
		return attrUse
	}
	return attrOrigin
}

// about sets the attributes of a question about vault.use; a zero use is for every other question.
func (f *facts) about(u use) {
	f.use = u
	for a := range attrOfUse.each {
		f.records[a.bit()] = cedar.Record{}
	}
}

func (f *facts) record(approved, interpreterPermitted bool) cedar.Record {
	f.set(approved, interpreterPermitted)
	return f.recordOf(f.want)
}

func (f *facts) recordOf(want attr) cedar.Record {
	if want.isEmpty() {
		return cedar.Record{}
	}
	values := make(cedar.RecordMap, want.len())
	inner := make(map[cedar.String]cedar.RecordMap)
	for a := range want.each {
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
	case a.meets(attrText):
		return cedar.String(f.text(a))
	case a.meets(attrBool):
		return cedar.Boolean(f.truth(a))
	case a.meets(attrSets):
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

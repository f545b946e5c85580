package policy

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	cedar "github.com/cedar-policy/cedar-go"
	publicast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/policy/internal/tree"
)

// Context records would take most of the time of a small decision: cedar-go sorts and hashes a
// record when it's made, however little is then read from it. So a policy's conditions are
// rewritten when they're compiled: context.tier becomes the attribute "v" of an entity that
// stands for the tier. When Cedar asks for that entity, [store] answers with a record of one
// attribute. Attributes that Cedar doesn't ask for aren't built, and [memo] keeps those that
// recur from call to call. Evaluation stays Cedar's; values, order and errors are those of the
// policy as written, and tests compare the two.

// factType is the type of the entities that stand for attributes. No policy and no request can
// name it, because their types are never empty.
const factType cedar.EntityType = ""

func factUID(a attr) cedar.EntityUID {
	return cedar.EntityUID{Type: factType, ID: cedar.String([]byte{byte(a.bit())})}
}

const factValue = "v"

// quicken returns p as Decide evaluates it: reading facts instead of the context, and without
// the scopes that the index has matched exactly. It returns nil if p accesses the context other
// than through single known attributes, or has a rare construct; p is then evaluated as
// written, with a context.
func quicken(p *ast.Policy) *cedar.Policy {
	q := *p
	q.Action = ast.ScopeTypeAll{}
	if exactScope(p.Principal) {
		q.Principal = ast.ScopeTypeAll{}
	}
	if exactScope(p.Resource) {
		q.Resource = ast.ScopeTypeAll{}
	}
	q.Conditions = make([]ast.ConditionType, len(p.Conditions))
	for i, c := range p.Conditions {
		body, ok := onFacts(c.Body)
		if !ok {
			return nil
		}
		q.Conditions[i] = ast.ConditionType{Condition: c.Condition, Body: body}
	}
	return cedar.NewPolicyFromAST((*publicast.Policy)(&q))
}

// exactScope reports whether the scope of each rule that the index yields for it holds. That
// isn't so for an entity with an empty id, which shares its number with its type; for == with a
// role, permission or group, which a principal or a tool has but isn't; and for "is … in",
// which is filed by the entity alone.
func exactScope(scope ast.IsScopeNode) bool {
	switch s := scope.(type) {
	case ast.ScopeTypeAll, ast.ScopeTypeIs:
		return true
	case ast.ScopeTypeEq:
		return s.Entity.ID != "" && s.Entity.Type != TypeRole && s.Entity.Type != TypePermission && s.Entity.Type != TypeToolGroup
	case ast.ScopeTypeIn:
		return s.Entity.ID != ""
	}
	return false
}

// onFacts rewrites n, or returns false if it can't.
func onFacts(n ast.IsNode) (ast.IsNode, bool) {
	ok := true
	on := func(n ast.IsNode) ast.IsNode {
		m, can := onFacts(n)
		ok = ok && can
		return m
	}
	two := func(b ast.BinaryNode) ast.BinaryNode { return ast.BinaryNode{Left: on(b.Left), Right: on(b.Right)} }
	switch v := n.(type) {
	case ast.NodeTypeAccess:
		if below, found := strings.CutPrefix(tree.Path(v), "context."); found {
			if a := attrNames[below]; a.len() == 1 {
				n = ast.NodeTypeAccess{StrOpNode: ast.StrOpNode{Arg: ast.NodeValue{Value: factUID(a)}, Value: factValue}}
				break
			}
		}
		v.Arg = on(v.Arg)
		n = v
	case ast.NodeTypeVariable:
		ok = v.Name != "context"
	case ast.NodeValue:
	case ast.NodeTypeSet:
		elements := make([]ast.IsNode, len(v.Elements))
		for i, e := range v.Elements {
			elements[i] = on(e)
		}
		n = ast.NodeTypeSet{Elements: elements}
	case ast.NodeTypeAnd:
		n = ast.NodeTypeAnd{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeOr:
		n = ast.NodeTypeOr{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeNot:
		n = ast.NodeTypeNot{UnaryNode: ast.UnaryNode{Arg: on(v.Arg)}}
	case ast.NodeTypeIfThenElse:
		n = ast.NodeTypeIfThenElse{If: on(v.If), Then: on(v.Then), Else: on(v.Else)}
	case ast.NodeTypeEquals:
		n = ast.NodeTypeEquals{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeNotEquals:
		n = ast.NodeTypeNotEquals{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeLessThan:
		n = ast.NodeTypeLessThan{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeLessThanOrEqual:
		n = ast.NodeTypeLessThanOrEqual{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeGreaterThan:
		n = ast.NodeTypeGreaterThan{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeGreaterThanOrEqual:
		n = ast.NodeTypeGreaterThanOrEqual{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeIn:
		n = ast.NodeTypeIn{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeContains:
		n = ast.NodeTypeContains{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeContainsAll:
		n = ast.NodeTypeContainsAll{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeContainsAny:
		n = ast.NodeTypeContainsAny{BinaryNode: two(v.BinaryNode)}
	case ast.NodeTypeIsEmpty:
		n = ast.NodeTypeIsEmpty{UnaryNode: ast.UnaryNode{Arg: on(v.Arg)}}
	case ast.NodeTypeLike:
		v.Arg = on(v.Arg)
		n = v
	case ast.NodeTypeIs:
		v.Left = on(v.Left)
		n = v
	default: // has, tags, arithmetic, records, extension calls
		ok = false
	}
	return n, ok
}

func recordOn(v cedar.Value) cedar.Record { return cedar.NewRecord(cedar.RecordMap{factValue: v}) }

// Records that many calls share. Immutable.
var (
	boolRecords    = [...]cedar.Record{recordOn(cedar.False), recordOn(cedar.True)}
	emptySetRecord = recordOn(cedar.Set{})
)

// set sets the two attributes that the decision itself determines.
func (f *facts) set(approved, byName bool) {
	f.approved, f.byName = approved, byName
	f.records[attrApproved.bit()] = cedar.Record{}
	f.records[attrInterpreterPermitted.bit()] = cedar.Record{}
}

func (f *facts) fact(bit int) cedar.Record {
	rec := &f.records[bit]
	if rec.Len() == 0 {
		*rec = f.newFact(attrAt(bit))
	}
	return *rec
}

func (f *facts) newFact(a attr) cedar.Record {
	switch {
	case a.meets(attrBool):
		if f.truth(a) {
			return boolRecords[1]
		}
		return boolRecords[0]
	case a.meets(attrRecurring):
		return f.memo.text(a, f.text(a))
	case a == attrCapabilities:
		return f.memo.capabilities(f.Capabilities)
	case a.meets(attrSets) && len(f.elements(a)) == 0:
		return emptySetRecord
	}
	return recordOn(f.value(a))
}

// attrRecurring are texts that are often those of a recent call, as with an agent that works in
// one directory with a dozen programs. Arguments and digests rarely recur, and arguments may
// hold secrets.
var attrRecurring = attrsOf("device", "channel", "cwd", "tier", "stdin", "executable.path", "executable.dir", "executable.name",
	"executable.interpreter", "executable.kind", "executable.family", "workspace.source", "network", "certificate")

// memo keeps records from call to call, and the cleared memory of finished evaluations. It
// caches a pure function: it can change an answer's time, not the answer. Its size is bounded;
// a new text replaces an older one. Safe for concurrent use.
type memo struct {
	free  sync.Pool // *evaluation
	seed  maphash.Seed
	texts [len(attributes)][memoWays]atomic.Pointer[memoText]
	caps  [1 << len(vocabCapabilities)]atomic.Pointer[cedar.Record] // by set of capabilities
}

const (
	memoWays    = 64  // texts kept for an attribute
	memoTries   = 4   // places that a text may take; with one, every fourth of a dozen programs collided
	memoLongest = 512 // bytes of the longest text kept
)

type memoText struct {
	text   string
	record cedar.Record
}

func (m *memo) evaluation() *evaluation {
	if e, ok := m.free.Get().(*evaluation); ok {
		return e
	}
	return blankEvaluation()
}

// done takes back an evaluation that nothing refers to.
func (m *memo) done(e *evaluation) {
	*e = evaluation{all: e.all}
	m.free.Put(e)
}

func newMemo() *memo { return &memo{seed: maphash.MakeSeed()} }

func (m *memo) text(a attr, s string) cedar.Record {
	if len(s) > memoLongest {
		return recordOn(cedar.String(s))
	}
	slots, first := &m.texts[a.bit()], maphash.String(m.seed, s)
	slot := &slots[first%memoWays] // of the text to replace, unless there is room
	for i := range uint64(memoTries) {
		try := &slots[(first+i)%memoWays]
		t := try.Load()
		if t == nil {
			slot = try
			break
		}
		if t.text == s {
			return t.record
		}
	}
	s = strings.Clone(s) // it may be part of a large string
	t := &memoText{s, recordOn(cedar.String(s))}
	slot.Store(t)
	return t.record
}

// capabilities returns the record of names, which check found in the vocabulary.
func (m *memo) capabilities(names []string) cedar.Record {
	set := 0
	for _, name := range names {
		for i, v := range vocabCapabilities {
			if name == v {
				set |= 1 << i
			}
		}
	}
	if rec := m.caps[set].Load(); rec != nil {
		return *rec
	}
	rec := recordOn(stringSet(names))
	m.caps[set].Store(&rec)
	return rec
}

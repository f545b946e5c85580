package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// BundleVersion is the value of Bundle.Version.
const BundleVersion = 1

// Bundle is a decision with everything that it follows from, so that any Cedar engine can
// repeat it without our code. docs/formats/policy.md says how.
type Bundle struct {
	Version   int               `json:"version"`  // BundleVersion
	Decision  string            `json:"decision"` // id, "" for none
	PolicySet canon.Digest      `json:"policy_set"`
	Schema    string            `json:"schema"`   // Cedar's own syntax
	Policies  map[string]string `json:"policies"` // Cedar text by id
	// Hosts are the set's lists of hosts by name, each rule in its canonical form;
	// context.egress_unlisted follows from them.
	Hosts     map[string][]string `json:"hosts,omitempty"`
	Request   Request             `json:"request"` // as Palyra was asked it
	Kind      Kind                `json:"kind"`    // of the executable, and
	Family    string              `json:"family"`  // its family, as Palyra classified it
	Questions []BundleQuestion    `json:"questions"`
	Answer    BundleAnswer        `json:"answer"` // follows from the answers to the questions
}

// BundleQuestion is one request to Cedar, in the form that its engines take, and Cedar's
// answer.
type BundleQuestion struct {
	Principal BundleEntity    `json:"principal"`
	Action    BundleEntity    `json:"action"`
	Resource  BundleEntity    `json:"resource"`
	Context   json.RawMessage `json:"context"`
	Entities  []BundleRecord  `json:"entities"`
	Allow     bool            `json:"allow"`    // Cedar's decision, and no policy failed
	Policies  []string        `json:"policies"` // that determined it, sorted
	Errors    []string        `json:"errors"`   // ids of policies that could not be evaluated, sorted
}

// BundleEntity is an entity's name.
type BundleEntity struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// BundleRecord is an entity as Cedar's entity documents spell it.
type BundleRecord struct {
	UID     BundleEntity   `json:"uid"`
	Attrs   struct{}       `json:"attrs"`
	Parents []BundleEntity `json:"parents"`
}

// BundleAnswer is Palyra's answer.
type BundleAnswer struct {
	Effect   Effect   `json:"effect"`
	Reason   string   `json:"reason"`
	Policies []string `json:"policies"`
	Errors   []string `json:"errors"` // ids of policies
}

// Bundle decides r once more and returns it as a Bundle. A request that doesn't fit the schema
// is fault.Usage "invalid_input".
func (s *Set) Bundle(r Request, decision string) (*Bundle, error) {
	if err := r.check(); err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", "bundle decision", err)
	}
	if s.lost != "" {
		return nil, fault.New(fault.Unsupported, "question_not_recorded", "bundle decision", fmt.Errorf("the set's schema has context.%s, which this version of Palyra doesn't fill", s.lost)).
			WithHint("ask the version that decided")
	}
	d := s.Decide(r)
	b := &Bundle{Version: BundleVersion, Decision: decision, PolicySet: s.digest, Schema: s.schema, Policies: make(map[string]string), Request: r,
		Answer: BundleAnswer{d.Effect, d.Reason, orEmpty(d.Policies), failedIDs(d.Errors)}}
	b.Kind, b.Family = s.kindOf(&r)
	for _, l := range s.hostsFor(&r).All() {
		if b.Hosts == nil {
			b.Hosts = make(map[string][]string)
		}
		for _, x := range l.Rules {
			b.Hosts[l.Name] = append(b.Hosts[l.Name], x.String())
		}
	}
	for _, x := range s.rules {
		text, err := s.policyText(x)
		if err != nil {
			return nil, err
		}
		b.Policies[x.id] = text
	}
	if r.Action == PermissionUse && s.implied != nil {
		b.Policies[impliedID] = impliedText
	}
	for _, q := range s.queries(&r) {
		context, err := json.Marshal(q.Context)
		if err != nil {
			return nil, fault.New(fault.Internal, "internal", "bundle decision", err)
		}
		x := BundleQuestion{Principal: named(q.Principal), Action: named(q.Action), Resource: named(q.Resource), Context: context,
			Allow: q.answer.allow, Policies: orEmpty(q.answer.ids), Errors: failedIDs(q.answer.errors)}
		for _, uid := range roleUIDs {
			x.Entities = append(x.Entities, record(roleEntities[uid]))
		}
		principal := cedar.Entity{UID: q.Principal, Parents: parentsOf(rolesOf(r.Principal.Roles), held(&r.Principal))}
		x.Entities = append(x.Entities, record(principal), record(resourceOf(q.Resource)))
		b.Questions = append(b.Questions, x)
	}
	return b, nil
}

func orEmpty(ss []string) []string { return append([]string{}, ss...) }

func named(uid cedar.EntityUID) BundleEntity { return BundleEntity{string(uid.Type), string(uid.ID)} }

func record(e cedar.Entity) BundleRecord {
	r := BundleRecord{UID: named(e.UID), Parents: []BundleEntity{}}
	for p := range e.Parents.All() {
		r.Parents = append(r.Parents, named(p))
	}
	slices.SortFunc(r.Parents, func(a, b BundleEntity) int { return strings.Compare(a.ID, b.ID) })
	return r
}

// failedIDs returns the ids of the policies that evaluation errors are about; an error reads
// `policy "id": …`.
func failedIDs(errs []string) []string {
	ids := []string{}
	for _, e := range errs {
		text, named := strings.CutPrefix(e, `policy "`)
		if id, _, whole := strings.Cut(text, `"`); named && whole && strings.HasPrefix(text[len(id):], `": `) {
			ids = append(ids, id)
		} else {
			ids = append(ids, e) // no policy is named
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (s *Set) policyText(r *rule) (string, error) {
	data := s.text(r.file)
	from := r.policy.Position().Offset
	end := endOfPolicy(data, from)
	if end < 0 {
		return "", r.fault("internal", errors.New("its end is not found"))
	}
	return string(bytes.TrimSpace(data[from : end+1])), nil
}

type query struct {
	cedar.Request
	approved, byName bool
	answer           answer
}

// queries returns Decide's questions to Cedar about r, in order, each with the whole context.
// It returns nil for a request that doesn't fit the schema.
func (s *Set) queries(r *Request) (out []query) {
	if r.check() != nil {
		return nil
	}
	e := s.newEvaluation(r, attrAll)
	ask := func(action cedar.String, resource cedar.EntityUID, approved, byName bool) answer {
		q := query{approved: approved, byName: byName, answer: e.ask(action, resource, approved, byName)}
		q.Request = cedar.Request{Principal: e.entities.principal.UID, Action: cedar.EntityUID{Type: actionType, ID: action},
			Resource: resource, Context: e.facts.record(approved, byName)}
		out = append(out, q)
		return q.answer
	}
	both := func(approved bool) answer {
		byName := false
		if e.facts.kind.dangerous() && e.facts.has.and(s.want).meets(attrInterpreterPermitted) {
			a := ask(interpreterRun, cedar.EntityUID{Type: TypeExecutable, ID: cedar.String(e.facts.family)}, approved, false)
			if len(a.errors) > 0 {
				return a
			}
			byName = a.allow
		}
		a := e.named(ask(e.action, e.entities.resource.UID, approved, byName))
		for _, ref := range r.Context.Secrets {
			if !a.allow {
				break
			}
			a = ask(vaultExpose, secretUID(ref), approved, byName)
		}
		defer e.facts.about(use{})
		for _, u := range usesOf(&r.Context) {
			if !a.allow {
				break
			}
			e.facts.about(u.use)
			a = ask(vaultUse, secretUID(u.ref), approved, byName)
		}
		return a
	}
	if a := both(false); !a.allow && len(a.errors) == 0 && e.facts.has.and(s.want).meets(attrApproved) {
		both(true)
	}
	return out
}

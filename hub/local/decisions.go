package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// maxScan bounds the search for a decision to so many of the newest journal entries; see
// decidedIndex.
const maxScan = 100000

// The number of remembered denials that aren't of a call, in all and of one source. They
// aren't in the journal: any client that can connect could fill it.
const (
	maxRefusals  = 1024
	eachRefusals = 128
)

// refusals remembers denials that no journal has, newest last. It is in memory only: after
// a restart only the daemon's log has them. A source that has its share pushes out its own;
// when all are used up, the source with the most gives way.
type refusals struct {
	mu   sync.Mutex
	last []*refusal // guarded by mu; at most maxRefusals
}

type refusal struct {
	source string          // see Hub.source
	asked  *policy.Request // what policy was asked; nil where it was not
	whose  string          // principal to whom the subject of asked belongs; "" is who asked
	hub.DecisionReport
}

func (r *refusals) add(d *refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	source := d.source
	has := make(map[string]int)
	for _, old := range r.last {
		has[old.source]++
	}
	loser := source
	if has[source] < eachRefusals {
		for s, n := range has {
			if n > has[loser] {
				loser = s
			}
		}
	}
	if has[source] >= eachRefusals || len(r.last) >= maxRefusals {
		i := slices.IndexFunc(r.last, func(old *refusal) bool { return old.source == loser })
		r.last = slices.Delete(r.last, i, i+1)
	}
	r.last = append(r.last, d)
}

func (r *refusals) find(id string) (refusal, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.last) - 1; i >= 0 && len(id) >= 8; i-- {
		if strings.HasPrefix(r.last[i].DecisionID, id) {
			return *r.last[i], true
		}
	}
	return refusal{}, false
}

// refuse makes d an error that the operator can ask about by its id.
func (h *Hub) refuse(c hub.Caller, reason, op, hint string, d hub.Denial) error {
	return h.refuseAs(fault.Denied, c, reason, op, hint, d)
}

func (h *Hub) refuseAs(kind fault.Kind, c hub.Caller, reason, op, hint string, d hub.Denial) error {
	if d.DecisionID == "" {
		var id [16]byte
		rand.Read(id[:])
		d.DecisionID = hex.EncodeToString(id[:])
	}
	h.remember(c, op, d, nil, "")
	return fault.New(kind, reason, op, &hub.DenialError{Denial: d}).WithHint(hint)
}

// refusedBy returns policy's denial of a question that isn't about a call.
func refusedBy(d *policy.Decision, permission string) hub.Denial {
	return hub.Denial{DecisionID: hex.EncodeToString(d.ID[:]), Layer: hub.LayerPolicy, Reason: d.Reason, Policies: some(d.Policies),
		PolicySet: d.PolicySet, Permission: permission, Errors: d.Errors}
}

// askedError is a denial by policy with its question, on its way to remember.
type askedError struct {
	hub.DenialError
	asked policy.Request
}

// Unwrap returns the denial.
func (e *askedError) Unwrap() error { return &e.DenialError }

// askedIn returns policy's question from an error; nil if the error doesn't have it.
func askedIn(err error) *policy.Request {
	if e, ok := errors.AsType[*askedError](err); ok {
		return &e.asked
	}
	return nil
}

// Remember keeps a surface's own denial, so that [Hub.PolicyWhy] knows it.
func (h *Hub) Remember(c hub.Caller, d hub.Denial) {
	h.remember(c, "authorize at "+c.Surface, d, nil, "")
}

// remember keeps a denial that no journal has, with what policy was asked if it was:
// whoever looks the denial up, and sees what belongs to whose, is told what would have
// to change.
func (h *Hub) remember(c hub.Caller, op string, d hub.Denial, asked *policy.Request, whose string) {
	now, source := time.Now(), h.source(c)
	h.refused.add(&refusal{source, asked, whose, hub.DecisionReport{Denial: d, Effect: policy.Deny.String(), Rules: []hub.Policy{}, Principal: c.User,
		Time: now.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano)}})
	if before, ok := h.noise.take(source, now); ok {
		h.cfg.Log.Info("denied", "decision", d.DecisionID, "layer", d.Layer, "reason", d.Reason, "principal", c.User, "surface", c.Surface,
			"operation", op, "left_out", before)
	}
}

// source names the cause of a denial: a member, or "" for all other callers, who can come
// under many names.
func (h *Hub) source(c hub.Caller) string {
	if h.access.Role(c.User) == "" {
		return ""
	}
	return c.User
}

// named gives a denial without an id one. It leaves other errors as they are.
func (h *Hub) named(c hub.Caller, err error) error {
	if d := hub.DenialOf(err); d != nil && d.DecisionID == "" {
		return h.refuseAs(fault.KindOf(err), c, fault.ReasonOf(err), "start run", fault.HintOf(err), *d)
	}
	return err
}

// byRegistry gives a denial by the registry of members and tokens an id, since the registry
// knows no decisions, so that the operator can ask about it. It leaves other errors as they
// are.
func (h *Hub) byRegistry(c hub.Caller, op string, err error) error {
	if fault.KindOf(err) != fault.Denied || hub.DenialOf(err) != nil {
		return err
	}
	reason, hint := fault.ReasonOf(err), fault.HintOf(err)
	named := h.refuse(c, reason, op, hint, hub.Denial{Layer: hub.LayerAccess, Reason: reason, Fix: hint})
	return fault.New(fault.Denied, reason, op, fmt.Errorf("%w: %v", &hub.DenialError{Denial: *hub.DenialOf(named)}, err)).WithHint(hint)
}

// decision finds the decision about a call that the caller may see.
func (h *Hub) decision(ctx context.Context, c hub.Caller, id string) (kernel.Decided, error) {
	if _, err := kernel.FindDecision(h.k.JournalEntries, 0, 0, id); fault.KindOf(err) == fault.Usage {
		return kernel.Decided{}, err
	}
	ctx, over := h.works.begin(ctx, c)
	defer over()
	release, err := h.reads(ctx, c, scanBytes)
	if err != nil {
		return kernel.Decided{}, err
	}
	defer release()
	s, err := h.k.JournalStatus(ctx)
	if err != nil {
		return kernel.Decided{}, err
	}
	at, ok, err := h.decided.find(ctx, h.k.JournalEntries, s.Size, id)
	if err != nil {
		return kernel.Decided{}, err
	}
	if !ok {
		return kernel.Decided{}, noSuch("decision", id)
	}
	d, err := kernel.FindDecision(h.k.JournalEntries, at+1, 1, id)
	if err != nil {
		return d, err
	}
	q, err := kernel.QuestionOf(&d.Statement.Predicate)
	if mine := err == nil && q.Principal.Type == policy.TypeUser && q.Principal.ID == c.User; !mine && !h.seesAll(c) {
		return kernel.Decided{}, noSuch("decision", id)
	}
	return d, nil
}

// decisionOperations returns the operations of decisions.
func (h *Hub) decisionOperations() []hub.Entry {
	return []hub.Entry{
		hub.GetDecision.By(h.getDecision),
		hub.ExportDecision.By(h.exportDecision),
	}
}

func (h *Hub) getDecision(ctx context.Context, c hub.Caller, id string) (hub.DecisionReport, error) {
	if r, ok := h.refused.find(id); ok {
		if !h.sees(c, r.Principal) {
			return hub.DecisionReport{}, noSuch("decision", id)
		}
		return h.explainRefusal(ctx, c, r)
	}
	d, err := h.decision(ctx, c, id)
	if err != nil {
		return hub.DecisionReport{}, err
	}
	_, done, err := h.explaining(ctx, c)
	if err != nil {
		return hub.DecisionReport{}, err
	}
	defer done()
	p := &d.Statement.Predicate
	r := hub.DecisionReport{
		Denial: hub.Denial{DecisionID: d.ID(), Layer: layerOf(p), Reason: p.Decision.Reason, Policies: p.Decision.Policies,
			PolicySet: p.Decision.PolicySet, Capsule: p.Capsule.Digest, Errors: p.Decision.Errors},
		Effect: p.Decision.Effect, Rules: []hub.Policy{}, Outcome: p.Outcome, CallID: p.CallID, LogIndex: &d.Index, Time: p.Time,
		Principal: p.Principal, Session: p.SessionID, Run: p.RunID, Tool: p.Tool, Argv: p.Capsule.Argv,
	}
	set := h.decider(&d)
	if set.Digest() == p.Decision.PolicySet {
		r.Rules = rulesIn(set, p.Decision.Policies)
	}
	// Without the set that decided, or the values of variables that it reads, there is no
	// fix to offer; the rest stands.
	r.Fix, _ = d.Fix(set)
	return r, nil
}

// explainRefusal reports on a denial that no journal has.
func (h *Hub) explainRefusal(ctx context.Context, c hub.Caller, r refusal) (hub.DecisionReport, error) {
	if r.asked == nil || r.whose != "" && !h.sees(c, r.whose) {
		return r.DecisionReport, nil
	}
	_, done, err := h.explaining(ctx, c)
	if err != nil {
		return hub.DecisionReport{}, err
	}
	defer done()
	if set := h.setOf(r.PolicySet); set != nil {
		r.Rules, r.Fix = rulesIn(set, r.Policies), set.Fix(*r.asked)
	}
	return r.DecisionReport, nil
}

// rulesIn returns a set's policies with these ids.
func rulesIn(set *policy.Set, ids []string) []hub.Policy {
	rules := []hub.Policy{}
	for _, id := range ids {
		if info, ok := set.Policy(id); ok {
			rules = append(rules, hub.Policy(info))
		}
	}
	return rules
}

// decider returns the set that made a decision or, if it wasn't kept, the one in force.
func (h *Hub) decider(d *kernel.Decided) *policy.Set {
	if set := h.setOf(d.Statement.Predicate.Decision.PolicySet); set != nil {
		return set
	}
	return h.k.PolicySet() // which Fix and Export refuse, by name
}

// layerOf returns the layer that had the last word about a call.
func layerOf(p *receipt.Predicate) string {
	switch p.Outcome {
	case receipt.NotApproved:
		return hub.LayerApproval
	case receipt.Refused:
		return hub.LayerIsolation
	}
	return hub.LayerPolicy
}

func (h *Hub) exportDecision(ctx context.Context, c hub.Caller, id string) ([]byte, error) {
	d, err := h.decision(ctx, c, id)
	if err != nil {
		return nil, err
	}
	_, done, err := h.explaining(ctx, c)
	if err != nil {
		return nil, err
	}
	defer done()
	b, err := kernel.Export(&d, h.decider(&d))
	if err != nil {
		return nil, err
	}
	doc, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "export decision", err)
	}
	return append(doc, '\n'), nil
}

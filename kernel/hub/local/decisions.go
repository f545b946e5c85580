package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/hub"
)

// maxScan is how many of the newest journal entries are looked through for a
// decision, once: see decidedIndex.
const maxScan = 100000

// maxRefusals bounds how many denials that are none of a call are remembered.
// They are not in the journal: anybody who may knock could fill it.
const maxRefusals = 1024

// refusals remembers denials that no journal has, newest last. It is in memory
// only: after a restart the daemon's log is what is left of them.
type refusals struct {
	mu   sync.Mutex
	last []hub.DecisionReport // guarded by mu; at most maxRefusals
}

func (r *refusals) add(d hub.DecisionReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) >= maxRefusals {
		r.last = append(r.last[:0], r.last[len(r.last)-maxRefusals/2:]...)
	}
	r.last = append(r.last, d)
}

func (r *refusals) find(id string) (hub.DecisionReport, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.last) - 1; i >= 0 && len(id) >= 8; i-- {
		if strings.HasPrefix(r.last[i].DecisionID, id) {
			return r.last[i], true
		}
	}
	return hub.DecisionReport{}, false
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
	h.remember(c, op, d)
	return fault.New(kind, reason, op, &hub.DenialError{Denial: d}).WithHint(hint)
}

// Remember keeps a denial of a surface's own, so that [Hub.PolicyWhy] knows it.
func (h *Hub) Remember(c hub.Caller, d hub.Denial) { h.remember(c, "authorize at "+c.Surface, d) }

// remember keeps a denial that no journal has.
func (h *Hub) remember(c hub.Caller, op string, d hub.Denial) {
	h.refused.add(hub.DecisionReport{Denial: d, Effect: policy.Deny.String(), Rules: []hub.Policy{}, Principal: c.User,
		Time: time.Now().UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano)})
	h.cfg.Log.Info("denied", "decision", d.DecisionID, "layer", d.Layer, "reason", d.Reason, "principal", c.User, "surface", c.Surface, "operation", op)
}

// named gives a denial that has no id one. Other errors are left as they are.
func (h *Hub) named(c hub.Caller, err error) error {
	if d := hub.DenialOf(err); d != nil && d.DecisionID == "" {
		return h.refuseAs(fault.KindOf(err), c, fault.ReasonOf(err), "start run", fault.HintOf(err), *d)
	}
	return err
}

// byRegistry gives a denial by the registry of members and tokens, which knows no
// decisions, an id, so that the operator can ask about it. Other errors are left
// as they are.
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
	s, err := h.k.JournalStatus()
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

// PolicyWhy implements hub.Hub.
func (h *Hub) PolicyWhy(ctx context.Context, c hub.Caller, id string) (hub.DecisionReport, error) {
	if err := h.ask(c, "PolicyWhy"); err != nil {
		return hub.DecisionReport{}, err
	}
	if r, ok := h.refused.find(id); ok {
		if !h.sees(c, r.Principal) {
			return hub.DecisionReport{}, noSuch("decision", id)
		}
		return r, nil
	}
	d, err := h.decision(ctx, c, id)
	if err != nil {
		return hub.DecisionReport{}, err
	}
	p := &d.Statement.Predicate
	r := hub.DecisionReport{
		Denial: hub.Denial{DecisionID: d.ID(), Layer: layerOf(p), Reason: p.Decision.Reason, Policies: p.Decision.Policies,
			PolicySet: p.Decision.PolicySet.String(), Capsule: p.Capsule.Digest.String(), Errors: p.Decision.Errors, Fix: p.Decision.Fix},
		Effect: p.Decision.Effect, Rules: []hub.Policy{}, Outcome: p.Outcome, CallID: p.CallID, LogIndex: &d.Index, Time: p.Time,
		Principal: p.Principal, Session: p.SessionID, Run: p.RunID, Tool: p.Tool, Argv: p.Capsule.Argv,
	}
	if set := h.setOf(p.Decision.PolicySet); set != nil {
		for _, id := range p.Decision.Policies {
			if info, ok := set.Policy(id); ok {
				r.Rules = append(r.Rules, hub.Policy(info))
			}
		}
	}
	return r, nil
}

// layerOf is who had the last word about a call, of those that can say no.
func layerOf(p *receipt.Predicate) string {
	switch p.Outcome {
	case receipt.NotApproved:
		return hub.LayerApproval
	case receipt.Refused:
		return hub.LayerIsolation
	}
	return hub.LayerPolicy
}

// PolicyExport implements hub.Hub.
func (h *Hub) PolicyExport(ctx context.Context, c hub.Caller, id string) ([]byte, error) {
	if err := h.ask(c, "PolicyExport"); err != nil {
		return nil, err
	}
	d, err := h.decision(ctx, c, id)
	if err != nil {
		return nil, err
	}
	set := h.setOf(d.Statement.Predicate.Decision.PolicySet)
	if set == nil {
		set = h.k.PolicySet() // which Export refuses, by name
	}
	b, err := kernel.Export(&d, set)
	if err != nil {
		return nil, err
	}
	doc, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return nil, fault.New(fault.Internal, "bundle", "export decision", err)
	}
	return append(doc, '\n'), nil
}

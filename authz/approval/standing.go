package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/clock"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// Bounds of standing grants.
const (
	MaxStanding     = 24 * time.Hour // a grant's life, whatever its scope
	maxPerRequester = 256            // grants at once
)

// Reply is a person's answer and its reach. The zero Reply is no.
type Reply struct {
	Approve bool
	Comment string
	Scope   string        // ScopeOnce, the default, ScopeSession or ScopeTimed
	For     time.Duration // of ScopeTimed: 1 s to MaxStanding
	// Uses bounds the calls that a standing grant is good for, this one included; 0: no
	// bound.
	Uses    int64
	Pattern *Loosen // further calls that fit this pattern; nil: those of this very capsule
	// Signature is a passkey's over the statement of this yes; nil: none signed it.
	Signature *Signature
}

// Standing is a yes that stands for further calls of one requester, under the policy set
// that asked, until it expires, is used up or is revoked. It lives in memory, so it ends
// with the process, and no older copy of a file brings it back. The journal has every use
// of it.
type Standing struct {
	ID            string // "grt_" and 32 hexadecimal digits
	Approval      string // the record that made it
	Scope         string // ScopeSession or ScopeTimed
	Session       string // of ScopeSession
	Requester     string
	By            By       // who said yes last
	Voters        []By     // all who said yes, and by which credential; judged at each use
	Approvers     []string // their names
	Tool          string
	Capsule       canon.Digest // that it is bound to, zero with a Pattern
	Pattern       *Pattern
	PatternDigest canon.Digest
	PolicySet     canon.Digest
	Created       time.Time
	Expires       time.Time
	Uses          int64 // so far
	MaxUses       int64 // 0: not bounded

	signed *call.SignedYes // By's yes, if a passkey signed it

	due clock.Due // it ends at Expires or after as much time, whichever is first
	// coming: it covers nothing yet, because its answer or its entry in the journal isn't
	// durable.
	coming bool
}

// terms is the part of a Reply on which several people must agree.
type terms struct {
	scope   string
	life    time.Duration
	uses    int64
	bound   bool // to a pattern
	pattern canon.Digest
}

// standing returns the grant that a reply to e asks for; nil for ScopeOnce.
func (r *Reply) standing(e *Entry) (*Standing, terms, error) {
	const op = "approve for further calls"
	scope := r.Scope
	if scope == "" {
		scope = ScopeOnce
	}
	t := terms{scope: scope, uses: r.Uses, bound: r.Pattern != nil}
	bad := func(format string, a ...any) (*Standing, terms, error) {
		return nil, t, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf(format, a...))
	}
	switch {
	case scope == ScopeOnce && (r.For != 0 || r.Uses != 0 || r.Pattern != nil):
		return bad("a yes for once has no time, uses or pattern")
	case scope == ScopeOnce:
		return nil, t, nil
	case scope != ScopeSession && scope != ScopeTimed:
		return bad("scope %.20q is none of once, session and timed", scope)
	case scope == ScopeTimed && (r.For < time.Second || r.For > MaxStanding):
		return bad("a time between a second and %v is needed", MaxStanding)
	case scope == ScopeSession && (r.For != 0 || e.Session == ""):
		return bad("a yes for a session has a session and no other time")
	case r.Uses < 0:
		return bad("%d uses", r.Uses)
	}
	t.life = MaxStanding
	if scope == ScopeTimed {
		t.life = r.For
	}
	q := &e.Request
	s := &Standing{ID: ident.New(ident.Grant), Approval: e.ID, Scope: scope, Requester: e.Requester, Tool: q.Call.Tool, PolicySet: q.PolicySet, MaxUses: r.Uses, Uses: 1}
	if scope == ScopeSession {
		s.Session = e.Session
	}
	if r.Pattern == nil {
		s.Capsule = q.Capsule
		return s, t, nil
	}
	var err error
	if s.Pattern, err = NewPattern(q.Call.Tool, &q.Call, *r.Pattern); err == nil {
		s.PatternDigest, err = s.Pattern.Sum()
	}
	t.pattern = s.PatternDigest
	return s, t, err
}

// covers reports whether s covers a call at this moment.
func (s *Standing) covers(sub *Subject, q *Request, c *clock.Clock) bool {
	switch {
	case s.coming, s.Requester != sub.Requester || s.Requester == "" || s.Scope == ScopeSession && s.Session != sub.Session,
		s.PolicySet != q.PolicySet || q.PolicySet.IsZero(), c.Past(s.due), s.spent():
		return false
	case s.Pattern != nil:
		return s.Pattern.Match(q.Call.Tool, &q.Call) == nil
	}
	return s.Capsule == q.Capsule && !s.Capsule.IsZero()
}

// detail returns s for the journal.
func (s *Standing) detail() map[string]string {
	d := map[string]string{"approval": s.Approval, "scope": s.Scope, "requester": s.Requester, "tool": s.Tool, "policy_set": s.PolicySet.String(),
		"expires": s.Expires.UTC().Format(time.RFC3339), "max_uses": strconv.FormatInt(s.MaxUses, 10), "approvers": strings.Join(s.Approvers, " "), "surface": s.By.Surface}
	if s.Session != "" {
		d["session"] = s.Session
	}
	sign(d, s.signed)
	if s.Pattern == nil {
		d["capsule"] = s.Capsule.String()
		return d
	}
	d["pattern"] = s.PatternDigest.String()
	if b, err := json.Marshal(s.Pattern); err == nil && len(b) <= maxDetail {
		d["pattern_text"] = string(b)
	}
	return d
}

// maxDetail is the longest text that an act in the journal takes, in bytes.
const maxDetail = 4096

// shelf keeps the standing grants.
type shelf struct {
	clock *clock.Clock

	mu  sync.Mutex
	all map[string][]*Standing // by requester; guarded by mu, and so is what they point to
}

// take uses one of the grants that cover a call, and returns a copy. It first asks may
// about each, without locks.
func (s *shelf) take(sub *Subject, q *Request, may func(*Standing) bool) *Standing {
	s.mu.Lock()
	var fit []*Standing
	for _, g := range s.all[sub.Requester] {
		if g.covers(sub, q, s.clock) {
			fit = append(fit, g)
		}
	}
	s.mu.Unlock()
	for _, g := range fit {
		if !may(g) { // reads only what never changes
			continue
		}
		s.mu.Lock()
		ok := slices.Contains(s.all[sub.Requester], g) && g.covers(sub, q, s.clock)
		if ok {
			g.Uses++
		}
		v := *g
		s.mu.Unlock()
		if ok {
			return &v
		}
	}
	return nil
}

// has reports whether a grant still stands.
func (s *shelf) has(requester, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.all[requester], func(g *Standing) bool { return g.ID == id && !g.coming && !s.expired(g) })
}

// reserve puts g on the shelf as coming. From here on every removal of grants takes this
// one as well: an emergency stop must not miss it between the answer and its entry in the
// journal.
func (s *shelf) reserve(g *Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.coming = true
	if s.all == nil {
		s.all = make(map[string][]*Standing)
	}
	s.all[g.Requester] = append(s.all[g.Requester], g)
}

// put makes the reserved grant stand as v. It reports false if that was taken away
// meanwhile.
func (s *shelf) put(g *Standing, v Standing) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.all[g.Requester], g) {
		return false
	}
	v.coming = false
	*g = v
	return true
}

// release drops a reserved grant.
func (s *shelf) release(g *Standing) { s.remove(func(o *Standing) bool { return o == g }) }

// full reports whether a requester has as many grants as allowed.
func (s *shelf) full(requester string) bool {
	s.remove(s.expired)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, g := range s.all[requester] {
		if !g.spent() {
			n++
		}
	}
	return n >= maxPerRequester
}

func (s *shelf) expired(g *Standing) bool { return !g.coming && s.clock.Past(g.due) }

// spent reports whether g has no use left. A spent grant stays on the shelf until it
// expires, so that it can be told from a revoked one.
func (g *Standing) spent() bool { return g.MaxUses > 0 && g.Uses >= g.MaxUses }

// remove takes away the grants that which chooses, and returns copies.
func (s *shelf) remove(which func(*Standing) bool) (gone []Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for who, list := range s.all {
		list = slices.DeleteFunc(list, func(g *Standing) bool {
			if which(g) {
				gone = append(gone, *g)
				return true
			}
			return false
		})
		if s.all[who] = list; len(list) == 0 {
			delete(s.all, who)
		}
	}
	return gone
}

// list returns copies of the standing grants, oldest first.
func (s *shelf) list() (out []Standing) {
	s.remove(s.expired)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range s.all {
		for _, g := range list {
			if !g.spent() && !g.coming {
				out = append(out, *g)
			}
		}
	}
	slices.SortFunc(out, func(a, b Standing) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

// Standing lists the grants that stand, oldest first.
func (h *Hub) Standing() []Standing { return h.shelf.list() }

// Revoke ends a standing grant. It counts at once, and returns when the journal has it. An
// unknown one is fault.NotFound "not_found".
func (h *Hub) Revoke(ctx context.Context, id string, by By) (Standing, error) {
	gone := h.shelf.remove(func(g *Standing) bool { return g.ID == id })
	if len(gone) == 0 {
		return Standing{}, fault.New(fault.NotFound, "not_found", "revoke grant", fmt.Errorf("%.80q", id)).WithHint(fault.Lists("grant"))
	}
	return gone[0], h.record(context.WithoutCancel(ctx), "approval.revoke", gone[0].ID, by, map[string]string{"approval": gone[0].Approval, "why": "revoked"})
}

// Drop ends the standing grants that which chooses, at once, and returns their number. A
// grant that is just being given is among them: its yes is for that call alone. The caller
// journals the drop, with the act that it is part of.
func (h *Hub) Drop(which func(*Standing) bool) int { return len(h.shelf.remove(which)) }

// Preview returns the pattern that an answer to a pending question would let through, nil
// if the answer is bound to the capsule, or the reason why there can be no pattern.
func (h *Hub) Preview(id string, r Reply) (*Pattern, Request, error) {
	w := h.waiter(id)
	if w == nil {
		return nil, Request{}, fault.New(fault.NotApproved, "approval_expired", "preview answer", errors.New("no call waits for it"))
	}
	s, _, err := r.standing(&w.entry)
	if err != nil || s == nil {
		return nil, w.entry.Request, err
	}
	return s.Pattern, w.entry.Request, nil
}

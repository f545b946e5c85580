package local

import (
	"strconv"
	"strings"
	"time"

	"palyra/authz/access"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/internal/budget"
)

// Journal and store keep what principals write for long or for ever, so each principal may
// add only so much in a day (Config.JournalEach). Both report every write once it is
// durable; the account is checked before a principal writes more. The account is written
// down with the note of how far the journal has come, and the next Open adds the entries
// beyond the note. So killing the process gives back only what lies in the store alone.

// quota is the Hub as run.Engine's Quota.
type quota struct{ h *Hub }

// Owner reports whether a principal is an owner, whom no quota binds.
func (h *Hub) Owner(principal string) bool { return h.access.Role(principal) == access.Owner }

// Check returns fault.Unavailable "quota" if a principal may add nothing more now.
// An owner at the socket isn't bound; an agent with an owner's token is.
func (q quota) Check(principal string, free bool) error {
	return q.h.written.Check(budget.Owner{Name: principal, Reserve: free}, q.h.cfg.Clock.Earliest())
}

// room is quota.Check for the caller of an operation.
func (h *Hub) room(c hub.Caller) error { return quota{h}.Check(c.User, h.privileged(c)) }

// MayAdd returns fault.Unavailable "quota" if a principal may add nothing more to
// journal and store now, by any surface. It is for checks that an operation repeats.
func (h *Hub) MayAdd(principal string) error { return quota{h}.Check(principal, h.Owner(principal)) }

// Spend notes the bytes that a principal added.
func (q quota) Spend(principal string, bytes int64) {
	q.h.written.Spend(principal, bytes, q.h.cfg.Clock.Earliest())
}

// timeOf returns the time that a statement or act gives as its own.
func timeOf(st *receipt.Statement, act *receipt.Act) time.Time {
	text := ""
	if act != nil {
		text = act.Time
	} else {
		text = st.Predicate.Time
	}
	t, _ := time.Parse(time.RFC3339Nano, text) // receipts are checked for it
	return t
}

// spender returns the principal whose entry of the journal a payload is, "" if it has none.
func spender(st *receipt.Statement, act *receipt.Act) string {
	if act != nil {
		who, _, _ := strings.Cut(act.Principal, " ")
		return who
	}
	if _, id, ok := strings.Cut(st.Predicate.Principal, "::"); ok { // User::"uid:1000"
		if id, err := strconv.Unquote(id); err == nil {
			return id
		}
	}
	return ""
}

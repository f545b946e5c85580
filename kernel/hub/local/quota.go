package local

import (
	"strconv"
	"strings"
	"time"

	"palyra/authz/access"
	"palyra/crypt/receipt"
	"palyra/internal/budget"
)

// What principals leave in journal and store is kept for long or for ever, so
// that each may add so much in a day (Config.JournalEach). The account is
// written down with the note of how far the journal has come; what the journal has
// beyond the note is added by the next Open, so that killing the process gives
// nothing back but what lies in the store alone.

// quota is the Hub as run.Engine's Quota.
type quota struct{ h *Hub }

// Owner reports whether a principal is an owner, whom no quota binds.
func (h *Hub) Owner(principal string) bool { return h.access.Role(principal) == access.Owner }

// Check returns fault.Unavailable "quota_journal" if a principal may add nothing
// more now.
func (q quota) Check(principal string) error {
	return q.h.written.Check(budget.Owner{Name: principal, Reserve: q.h.Owner(principal)}, q.h.cfg.Clock.Earliest())
}

// Spend notes what a principal added.
func (q quota) Spend(principal string, bytes int64) {
	q.h.written.Spend(principal, bytes, q.h.cfg.Clock.Earliest())
}

// rowBytes is about what a session or token takes in the store, with its
// idempotency key.
const rowBytes = 1024

// timeOf returns when a statement or act says that it was made.
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

// spender returns whose entry of the journal a payload is, "" if it is nobody's.
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

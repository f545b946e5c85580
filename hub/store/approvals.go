package store

import (
	"errors"

	"palyra/internal/fault"
	"palyra/internal/ident"
)

const selectApproval = `SELECT id, coalesce(run, ''), coalesce(session, ''), step, call, requester, decision, request, capsule, policy_set,
	scope, state, version, approver, surface, detail, created, expires, answered, used FROM approvals`

// selectApprovalOnly is selectApproval without the card, of up to 0.7 MB.
const selectApprovalOnly = `SELECT id, coalesce(run, ''), coalesce(session, ''), step, call, requester, decision, NULL, capsule, policy_set,
	scope, state, version, approver, surface, detail, created, expires, answered, used FROM approvals`

func scanApproval(r scanner, a *Approval) error {
	var created, expires, answered, used int64
	var capsule, set []byte
	err := r.Scan(&a.ID, &a.Run, &a.Session, &a.Step, &a.Call, &a.Requester, &a.Decision, &a.Request, &capsule, &set,
		&a.Scope, &a.State, &a.Version, &a.Approver, &a.Surface, &a.Detail, &created, &expires, &answered, &used)
	a.Capsule, a.PolicySet = digestOf(capsule), digestOf(set)
	a.Created, a.Expires, a.Answered, a.Used = at(created), at(expires), at(answered), at(used)
	return err
}

// orNull makes the empty id NULL, which a foreign key does not look up.
func orNull(id string) any {
	if id == "" {
		return nil
	}
	return id
}

func (tx *Tx) createApproval(a *Approval) error {
	const op = "create approval"
	fill(&a.ID, ident.New(ident.Approval))
	fill(&a.State, ApprovalPending)
	fill(&a.Version, 1)
	fill(&a.Created, tx.now)
	if err := ident.Check(ident.Approval, a.ID); err != nil {
		return err
	}
	if a.State != ApprovalPending {
		return usage("invalid_input", op, "a new request is pending, not %.20q", a.State)
	}
	if err := checkJSON(op, a.Request); err != nil {
		return err
	}
	if a.Run != "" {
		r, err := tx.runHead(a.Run)
		if err != nil {
			return err
		}
		if r.State.Terminal() {
			return usage("run_ended", op, "run %s is %s", quoteID(a.Run), r.State)
		}
	}
	_, err := tx.insert(op, a.Requester, `INSERT INTO approvals (id, run, session, step, call, requester, decision, request, capsule, policy_set, scope, state,
		version, approver, surface, detail, created, expires, answered, used) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', '', ?, ?, 0, 0)`,
		a.ID, orNull(a.Run), orNull(a.Session), a.Step, a.Call, a.Requester, a.Decision, blob(a.Request), digestBlob(a.Capsule), digestBlob(a.PolicySet),
		a.Scope, string(a.State), a.Version, ns(a.Created), ns(a.Expires))
	return err
}

func (tx *Tx) approval(id string) (*Approval, error) {
	return one(tx, "approval", id, selectApproval+` WHERE id = ?`, []any{id}, scanApproval)
}

func (tx *Tx) approvalHead(id string) (*Approval, error) {
	return one(tx, "approval", id, selectApprovalOnly+` WHERE id = ?`, []any{id}, scanApproval)
}

func (tx *Tx) approvals(f ApprovalFilter, p Page) ([]Approval, error) {
	var l list
	for _, c := range []struct{ column, value string }{{"requester", f.Requester}, {"run", f.Run}, {"session", f.Session}} {
		if c.value != "" {
			l.and(c.column+" = ?", c.value)
		}
	}
	if f.Reader != "" {
		l.and("(requester = ? OR approver = ? OR answered = 0)", f.Reader, f.Reader)
	}
	in(&l, "state", f.States)
	if len(f.States) == 1 && f.States[0] == ApprovalPending {
		l.and("answered = 0") // follows, and lets SQLite take the small index
	}
	sel := selectApproval
	if f.Heads {
		sel = selectApprovalOnly
	}
	return find(tx, "approvals", sel, "approvals", &l, p, scanApproval, func(a *Approval) int { return len(a.Request) + len(a.Detail) })
}

func (tx *Tx) resolveApproval(id string, version int64, r Resolution) (*Approval, error) {
	op := "resolve approval " + quoteID(id)
	answer := r.State == ApprovalApproved || r.State == ApprovalDenied
	switch {
	case !answer && r.State != ApprovalExpired && r.State != ApprovalWithdrawn:
		return nil, usage("invalid_input", op, "%.20q does not end a request", r.State)
	case answer && r.Approver == "":
		return nil, usage("invalid_input", op, "the answer names no approver")
	}
	fill(&r.Time, tx.now)
	a, err := tx.approvalHead(id)
	switch {
	case err != nil:
		return nil, err
	case a.State != ApprovalPending || a.Version != version:
		return a, conflict(op)
	case answer && !r.Time.Before(a.Expires):
		return a, fault.New(fault.NotApproved, "approval_expired", op, nil)
	}
	fill(&r.Scope, a.Scope)
	n, err := tx.exec(op, `UPDATE approvals SET state = ?, approver = ?, surface = ?, detail = ?, scope = ?, answered = ?, version = version + 1
		WHERE id = ? AND version = ? AND state = 'pending'`,
		string(r.State), r.Approver, r.Surface, r.Detail, r.Scope, ns(r.Time), id, version)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, conflict(op)
	}
	who := r.Approver
	fill(&who, a.Requester)
	tx.spend(who, argCost([]any{r.Approver, r.Surface, r.Detail}))
	a.State, a.Approver, a.Surface, a.Detail, a.Scope, a.Answered = r.State, r.Approver, r.Surface, r.Detail, r.Scope, r.Time
	a.Version++
	return a, nil
}

func (tx *Tx) useApproval(id string) error {
	op := "use approval " + quoteID(id)
	n, err := tx.exec(op, `UPDATE approvals SET used = ?1, version = version + 1 WHERE id = ?2 AND state = 'approved' AND used = 0`, ns(tx.now), id)
	if err != nil || n == 1 {
		return err
	}
	a, err := tx.approvalHead(id)
	switch {
	case err != nil:
		return err
	case a.State != ApprovalApproved:
		return fault.New(fault.NotApproved, "not_approved", op, errors.New("it is not approved"))
	}
	return fault.New(fault.NotApproved, "not_approved", op, errors.New("it was used"))
}

package httpapi

import (
	"errors"
	"fmt"
	"net/http"

	"palyra/internal/canon"
	"palyra/internal/ident"
	"palyra/kernel/hub"
	"palyra/transport/api"
)

// What serves sessions, runs, calls and approvals.

// id returns a path parameter that is an id with this prefix.
func (x *exchange) id(name, prefix string) (string, error) {
	id := x.r.PathValue(name)
	return id, ident.Check(prefix, id)
}

// optionalID returns a query parameter that is an id with this prefix, or "".
func (x *exchange) optionalID(name, prefix string) (string, error) {
	id := x.query.Get(name)
	if id == "" {
		return "", nil
	}
	return id, ident.Check(prefix, id)
}

// list reads the page parameters of a list whose cursors are ids with this
// prefix. A cursor is the id of the last item that was seen, so it stays good
// over a restart; one from another list is refused.
func (x *exchange) list(prefix string) (hub.PageQuery, error) {
	q := x.page()
	if x.query.Has("limit") && (q.Limit < 1 || q.Limit > maxPage) {
		return q, usage("bad_limit", "parse query", fmt.Errorf("limit is not between 1 and %d", maxPage))
	}
	if q.After != "" {
		if err := ident.Check(prefix, q.After); err != nil {
			return q, usage("bad_cursor", "parse query", errors.New("after is not the next of a page of this list"))
		}
	}
	return q, nil
}

// maxPage is the largest page.
const maxPage = 1000

func createSession(x *exchange) error {
	n := x.body.(*hub.NewSession)
	v, had, err := x.once(func() (any, any, error) {
		s, err := x.s.cfg.Hub.CreateSession(x.r.Context(), x.caller, *n)
		return s, nil, err
	})
	if err != nil {
		return err
	}
	if had != nil {
		return x.replayed(had)
	}
	s := v.(hub.Session)
	x.w.Header().Set("Location", api.Prefix+"/sessions/"+s.ID)
	return x.versioned(x.rt.Status, s, s.Version)
}

// replayed answers with what was recorded for the key.
func (x *exchange) replayed(b []byte) error {
	x.w.Header().Set("Idempotency-Replayed", "true")
	return x.bytes(x.rt.Status, api.MediaJSON, b)
}

func listSessions(x *exchange) error {
	q, err := x.list(ident.Session)
	if err != nil {
		return err
	}
	p, err := x.s.cfg.Hub.Sessions(x.r.Context(), x.caller, hub.SessionQuery{PageQuery: q, Principal: x.query.Get("principal"), State: x.query.Get("state")})
	if err != nil {
		return err
	}
	return x.json(p)
}

func getSession(x *exchange) error {
	id, err := x.id("session", ident.Session)
	if err != nil {
		return err
	}
	s, err := x.s.cfg.Hub.Session(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.versioned(x.rt.Status, s, s.Version)
}

func endSession(x *exchange) error {
	id, err := x.id("session", ident.Session)
	if err != nil {
		return err
	}
	s, err := x.s.cfg.Hub.EndSession(x.r.Context(), x.caller, id, x.version)
	if err != nil {
		return err
	}
	return x.versioned(x.rt.Status, s, s.Version)
}

func startRun(x *exchange) error {
	n := x.body.(*hub.NewRun)
	if err := ident.Check(ident.Session, n.Session); err != nil {
		return err
	}
	n.IdempotencyKey = x.key
	run, err := x.s.cfg.Hub.StartRun(x.r.Context(), x.caller, *n)
	if err != nil {
		return err
	}
	x.w.Header().Set("Location", api.Prefix+"/runs/"+run.ID)
	return x.run(x.rt.Status, run)
}

func listRuns(x *exchange) error {
	page, err := x.list(ident.Run)
	if err != nil {
		return err
	}
	q := hub.RunQuery{PageQuery: page, Principal: x.query.Get("principal"), States: x.query["state"]}
	if q.Session, err = x.optionalID("session", ident.Session); err != nil {
		return err
	}
	p, err := x.s.cfg.Hub.Runs(x.r.Context(), x.caller, q)
	if err != nil {
		return err
	}
	return x.json(p)
}

func getRun(x *exchange) error {
	id, err := x.id("run", ident.Run)
	if err != nil {
		return err
	}
	run, err := x.s.cfg.Hub.Run(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.run(x.rt.Status, run)
}

func cancelRun(x *exchange) error {
	id, err := x.id("run", ident.Run)
	if err != nil {
		return err
	}
	run, err := x.s.cfg.Hub.CancelRun(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.run(x.rt.Status, run)
}

func makeCall(x *exchange) error {
	n := x.body.(*hub.NewCall)
	if n.Session != "" {
		if err := ident.Check(ident.Session, n.Session); err != nil {
			return err
		}
	}
	status := x.rt.Status
	var run hub.Run
	var err error
	if x.async {
		if n.Session == "" {
			return usage("session_required", "call without waiting", errors.New("a call that nobody waits for belongs to a session"))
		}
		status = http.StatusAccepted
		run, err = x.s.cfg.Hub.StartRun(x.r.Context(), x.caller, hub.NewRun{Session: n.Session, Budget: n.Budget, IdempotencyKey: x.key,
			Steps: []hub.Step{{Tool: n.Tool, Input: n.Input}}})
	} else {
		n.IdempotencyKey = x.key
		run, err = x.s.cfg.Hub.Call(x.r.Context(), x.caller, *n)
	}
	if err != nil {
		return err
	}
	if x.async {
		x.w.Header().Set("Preference-Applied", api.RespondAsync)
	}
	x.w.Header().Set("Location", api.Prefix+"/runs/"+run.ID)
	return x.run(status, run)
}

func listTools(x *exchange) error {
	ts, err := x.s.cfg.Hub.Tools(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(hub.Page[hub.Tool]{Items: ts})
}

func getArtifact(x *exchange) error {
	id, err := x.id("run", ident.Run)
	if err != nil {
		return err
	}
	d, err := canon.ParseDigest(x.r.PathValue("digest"))
	if err != nil || d.IsZero() {
		return usage("bad_digest", "parse digest", errors.New("want sha256: and 64 lower-case hexadecimal digits"))
	}
	a, err := x.s.cfg.Hub.Artifact(x.r.Context(), x.caller, id, d.String())
	if err != nil {
		return err
	}
	defer a.Close()
	return x.content(a)
}

func listApprovals(x *exchange) error {
	page, err := x.list(ident.Approval)
	if err != nil {
		return err
	}
	q := hub.ApprovalQuery{PageQuery: page, State: x.query.Get("state")}
	if q.Session, err = x.optionalID("session", ident.Session); err != nil {
		return err
	}
	if q.Run, err = x.optionalID("run", ident.Run); err != nil {
		return err
	}
	p, err := x.s.cfg.Hub.Approvals(x.r.Context(), x.caller, q)
	if err != nil {
		return err
	}
	return x.json(p)
}

func getApproval(x *exchange) error {
	id, err := x.id("approval", ident.Approval)
	if err != nil {
		return err
	}
	a, err := x.s.cfg.Hub.Approval(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.versioned(x.rt.Status, a, a.Version)
}

func previewApproval(x *exchange) error {
	id, err := x.id("approval", ident.Approval)
	if err != nil {
		return err
	}
	p, err := x.s.cfg.Hub.PreviewApproval(x.r.Context(), x.caller, id, *x.body.(*hub.Answer))
	if err != nil {
		return err
	}
	return x.json(p)
}

func listGrants(x *exchange) error {
	p, err := x.s.cfg.Hub.Grants(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(p)
}

func revokeGrant(x *exchange) error {
	id, err := x.id("grant", ident.Grant)
	if err != nil {
		return err
	}
	g, err := x.s.cfg.Hub.RevokeGrant(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.json(g)
}

func resolveApproval(x *exchange) error {
	id, err := x.id("approval", ident.Approval)
	if err != nil {
		return err
	}
	a, err := x.s.cfg.Hub.ResolveApproval(x.r.Context(), x.caller, id, x.version, *x.body.(*hub.Answer))
	if err != nil {
		return err
	}
	return x.versioned(x.rt.Status, a, a.Version)
}

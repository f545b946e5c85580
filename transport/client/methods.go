package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"palyra/internal/fault"
	"palyra/kernel/hub"
	"palyra/transport/api"
)

// Authenticate is the daemon's own work.
func (c *Client) Authenticate(context.Context, hub.Credential) (hub.Caller, error) {
	return hub.Caller{}, fault.New(fault.Unsupported, "not_over_http", "authenticate", errors.New("the daemon says who asks; see Status"))
}

func get(op, path string) *request  { return &request{op: op, method: http.MethodGet, path: path} }
func post(op, path string) *request { return &request{op: op, method: http.MethodPost, path: path} }

func (r *request) with(in any) *request {
	r.in = in
	return r
}

// where adds parameters, as pairs of name and value; empty ones are left out.
func (r *request) where(pairs ...string) *request {
	if r.query == nil {
		r.query = make(url.Values)
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			r.query.Add(pairs[i], pairs[i+1])
		}
	}
	return r
}

// page adds the parameters of a page.
func (r *request) page(q hub.PageQuery) *request {
	r.where("after", q.After)
	if q.Limit != 0 {
		r.where("limit", strconv.Itoa(q.Limit))
	}
	return r
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// CreateSession implements hub.Hub.
func (c *Client) CreateSession(ctx context.Context, _ hub.Caller, n hub.NewSession) (hub.Session, error) {
	return ask[hub.Session](ctx, c, post("create session", "/sessions").keyed("").with(n))
}

// Session implements hub.Hub.
func (c *Client) Session(ctx context.Context, _ hub.Caller, id string) (hub.Session, error) {
	return ask[hub.Session](ctx, c, get("read session", "/sessions/"+url.PathEscape(id)))
}

// Sessions implements hub.Hub.
func (c *Client) Sessions(ctx context.Context, _ hub.Caller, q hub.SessionQuery) (hub.Page[hub.Session], error) {
	return ask[hub.Page[hub.Session]](ctx, c, get("list sessions", "/sessions").page(q.PageQuery).where("principal", q.Principal, "state", q.State))
}

// EndSession implements hub.Hub.
func (c *Client) EndSession(ctx context.Context, _ hub.Caller, id string, version int64) (hub.Session, error) {
	return ask[hub.Session](ctx, c, post("end session", "/sessions/"+url.PathEscape(id)+"/end").match(version))
}

// StartRun implements hub.Hub.
func (c *Client) StartRun(ctx context.Context, _ hub.Caller, n hub.NewRun) (hub.Run, error) {
	return ask[hub.Run](ctx, c, post("start run", "/runs").keyed(n.IdempotencyKey).with(n))
}

// Run implements hub.Hub.
func (c *Client) Run(ctx context.Context, _ hub.Caller, id string) (hub.Run, error) {
	return ask[hub.Run](ctx, c, get("read run", "/runs/"+url.PathEscape(id)))
}

// Runs implements hub.Hub.
func (c *Client) Runs(ctx context.Context, _ hub.Caller, q hub.RunQuery) (hub.Page[hub.Run], error) {
	r := get("list runs", "/runs").page(q.PageQuery).where("session", q.Session, "principal", q.Principal)
	for _, s := range q.States {
		r.where("state", s)
	}
	return ask[hub.Page[hub.Run]](ctx, c, r)
}

// CancelRun implements hub.Hub.
func (c *Client) CancelRun(ctx context.Context, _ hub.Caller, id string) (hub.Run, error) {
	return ask[hub.Run](ctx, c, post("cancel run", "/runs/"+url.PathEscape(id)+"/cancel"))
}

// Call implements hub.Hub.
func (c *Client) Call(ctx context.Context, _ hub.Caller, n hub.NewCall) (hub.Run, error) {
	r := post("call", "/calls")
	if n.IdempotencyKey != "" {
		r.keyed(n.IdempotencyKey)
	}
	return ask[hub.Run](ctx, c, r.with(n))
}

// Approvals implements hub.Hub.
func (c *Client) Approvals(ctx context.Context, _ hub.Caller, q hub.ApprovalQuery) (hub.Page[hub.Approval], error) {
	return ask[hub.Page[hub.Approval]](ctx, c, get("list approvals", "/approvals").page(q.PageQuery).where("state", q.State, "run", q.Run, "session", q.Session))
}

// Approval implements hub.Hub.
func (c *Client) Approval(ctx context.Context, _ hub.Caller, id string) (hub.Approval, error) {
	return ask[hub.Approval](ctx, c, get("read approval", "/approvals/"+url.PathEscape(id)))
}

// ResolveApproval implements hub.Hub.
func (c *Client) ResolveApproval(ctx context.Context, _ hub.Caller, id string, version int64, a hub.Answer) (hub.Approval, error) {
	return ask[hub.Approval](ctx, c, post("resolve approval", "/approvals/"+url.PathEscape(id)+"/resolve").match(version).with(a))
}

// PreviewApproval implements hub.Hub.
func (c *Client) PreviewApproval(ctx context.Context, _ hub.Caller, id string, a hub.Answer) (hub.Preview, error) {
	return ask[hub.Preview](ctx, c, post("preview approval", "/approvals/"+url.PathEscape(id)+"/preview").with(a))
}

// Grants implements hub.Hub.
func (c *Client) Grants(ctx context.Context, _ hub.Caller) (hub.Page[hub.StandingGrant], error) {
	return ask[hub.Page[hub.StandingGrant]](ctx, c, get("list grants", "/grants"))
}

// RevokeGrant implements hub.Hub.
func (c *Client) RevokeGrant(ctx context.Context, _ hub.Caller, id string) (hub.StandingGrant, error) {
	return ask[hub.StandingGrant](ctx, c, post("revoke grant", "/grants/"+url.PathEscape(id)+"/revoke"))
}

// Tools implements hub.Hub.
func (c *Client) Tools(ctx context.Context, _ hub.Caller) ([]hub.Tool, error) {
	p, err := ask[hub.Page[hub.Tool]](ctx, c, get("list tools", "/tools"))
	return p.Items, err
}

// PolicyExplain implements hub.Hub.
func (c *Client) PolicyExplain(ctx context.Context, _ hub.Caller, n hub.NewCall) (hub.Explanation, error) {
	return ask[hub.Explanation](ctx, c, post("explain policy", "/policy/explain").with(n))
}

// PolicyTest implements hub.Hub.
func (c *Client) PolicyTest(ctx context.Context, _ hub.Caller, candidate *hub.PolicySet) (hub.PolicyReport, error) {
	return ask[hub.PolicyReport](ctx, c, post("test policy", "/policy/test").with(api.PolicyTestRequest{Candidate: candidate}))
}

// PolicyWhy implements hub.Hub.
func (c *Client) PolicyWhy(ctx context.Context, _ hub.Caller, id string) (hub.DecisionReport, error) {
	return ask[hub.DecisionReport](ctx, c, get("read decision", "/policy/decisions/"+url.PathEscape(id)))
}

// PolicyExport implements hub.Hub.
func (c *Client) PolicyExport(ctx context.Context, _ hub.Caller, id string) ([]byte, error) {
	return c.askBytes(ctx, get("export decision", "/policy/decisions/"+url.PathEscape(id)+"/bundle"))
}

// PolicyDiff implements hub.Hub.
func (c *Client) PolicyDiff(ctx context.Context, _ hub.Caller, q hub.PolicyDiffQuery) (hub.PolicyDiff, error) {
	return ask[hub.PolicyDiff](ctx, c, post("diff policy", "/policy/diff").with(q))
}

// PolicyInfo implements hub.Hub.
func (c *Client) PolicyInfo(ctx context.Context, _ hub.Caller) (hub.PolicyInfo, error) {
	return ask[hub.PolicyInfo](ctx, c, get("read policy", "/policy"))
}

// Reload implements hub.Hub.
func (c *Client) Reload(ctx context.Context, _ hub.Caller) (hub.PolicyInfo, error) {
	return ask[hub.PolicyInfo](ctx, c, post("reload policy", "/reload"))
}

// Receipt implements hub.Hub.
func (c *Client) Receipt(ctx context.Context, _ hub.Caller, index uint64) ([]byte, error) {
	return c.askBytes(ctx, get("read receipt", "/receipts/"+number(index)))
}

// JournalStatus implements hub.Hub.
func (c *Client) JournalStatus(ctx context.Context, _ hub.Caller) (hub.JournalStatus, error) {
	return ask[hub.JournalStatus](ctx, c, get("read journal", "/journal"))
}

// JournalEntries implements hub.Hub.
func (c *Client) JournalEntries(ctx context.Context, _ hub.Caller, from uint64, limit int) (hub.Page[hub.JournalEntry], error) {
	return ask[hub.Page[hub.JournalEntry]](ctx, c, get("list journal entries", "/journal/entries").page(hub.PageQuery{Limit: limit}).where("from", number(from)))
}

// JournalProof implements hub.Hub.
func (c *Client) JournalProof(ctx context.Context, _ hub.Caller, index uint64) (hub.JournalProof, error) {
	return ask[hub.JournalProof](ctx, c, get("prove journal entry", "/journal/entries/"+number(index)+"/proof"))
}

// JournalConsistency implements hub.Hub.
func (c *Client) JournalConsistency(ctx context.Context, _ hub.Caller, old uint64) (hub.JournalConsistency, error) {
	return ask[hub.JournalConsistency](ctx, c, get("prove journal consistency", "/journal/consistency").where("old", number(old)))
}

// JournalCheckpoint implements hub.Hub.
func (c *Client) JournalCheckpoint(ctx context.Context, _ hub.Caller) ([]byte, error) {
	return c.askBytes(ctx, get("read checkpoint", "/journal/checkpoint"))
}

// JournalTile implements hub.Hub.
func (c *Client) JournalTile(ctx context.Context, _ hub.Caller, name string) ([]byte, error) {
	return c.askBytes(ctx, get("read tile", "/journal/"+(&url.URL{Path: name}).EscapedPath()))
}

// CreateToken implements hub.Hub.
func (c *Client) CreateToken(ctx context.Context, _ hub.Caller, n hub.NewToken) (hub.TokenSecret, error) {
	return ask[hub.TokenSecret](ctx, c, post("create token", "/tokens").keyed("").with(n))
}

// Tokens implements hub.Hub.
func (c *Client) Tokens(ctx context.Context, _ hub.Caller, q hub.TokenQuery) (hub.Page[hub.Token], error) {
	return ask[hub.Page[hub.Token]](ctx, c, get("list tokens", "/tokens").page(q.PageQuery).where("principal", q.Principal))
}

// RevokeToken implements hub.Hub.
func (c *Client) RevokeToken(ctx context.Context, _ hub.Caller, id string, version int64) (hub.Token, error) {
	return ask[hub.Token](ctx, c, post("revoke token", "/tokens/"+url.PathEscape(id)+"/revoke").match(version))
}

// RotateToken implements hub.Hub.
func (c *Client) RotateToken(ctx context.Context, _ hub.Caller, id string, r hub.Rotation) (hub.TokenSecret, error) {
	return ask[hub.TokenSecret](ctx, c, post("rotate token", "/tokens/"+url.PathEscape(id)+"/rotate").keyed("").match(r.Version).
		with(api.RotationRequest{TTL: r.TTL, Overlap: r.Overlap}))
}

// Members implements hub.Hub.
func (c *Client) Members(ctx context.Context, _ hub.Caller) (hub.Page[hub.Member], error) {
	return ask[hub.Page[hub.Member]](ctx, c, get("list members", "/members"))
}

// PutMember implements hub.Hub.
func (c *Client) PutMember(ctx context.Context, _ hub.Caller, m hub.Member) (hub.Member, error) {
	r := &request{op: "change member", method: http.MethodPut, path: "/members/" + url.PathEscape(m.Principal)}
	if m.Version == 0 {
		r.set("If-None-Match", "*")
	} else {
		r.match(m.Version)
	}
	return ask[hub.Member](ctx, c, r.with(api.MemberChange{Role: m.Role}))
}

// RemoveMember implements hub.Hub.
func (c *Client) RemoveMember(ctx context.Context, _ hub.Caller, principal string, version int64) error {
	r := &request{op: "remove member", method: http.MethodDelete, path: "/members/" + url.PathEscape(principal)}
	_, err := c.askBytes(ctx, r.match(version))
	return err
}

// Config implements hub.Hub.
func (c *Client) Config(ctx context.Context, _ hub.Caller) ([]hub.Setting, error) {
	p, err := ask[hub.Page[hub.Setting]](ctx, c, get("read configuration", "/config"))
	return p.Items, err
}

// Status implements hub.Hub.
func (c *Client) Status(ctx context.Context, _ hub.Caller) (hub.Status, error) {
	return ask[hub.Status](ctx, c, get("read status", "/status"))
}

// Doctor implements hub.Hub.
func (c *Client) Doctor(ctx context.Context, _ hub.Caller) (hub.Doctor, error) {
	return ask[hub.Doctor](ctx, c, get("examine host", "/doctor"))
}

// Stop implements hub.Hub.
func (c *Client) Stop(ctx context.Context, _ hub.Caller, r hub.StopRequest) (hub.Stopped, error) {
	return ask[hub.Stopped](ctx, c, post("stop", "/stop").with(r))
}

// Resume implements hub.Hub.
func (c *Client) Resume(ctx context.Context, _ hub.Caller) (hub.Stopped, error) {
	return ask[hub.Stopped](ctx, c, post("resume", "/resume"))
}

// Backup implements hub.Hub. Without the daemon's word on what it holds, which
// comes last, what was written is not a whole backup.
func (c *Client) Backup(ctx context.Context, _ hub.Caller, q hub.BackupRequest, w io.Writer) (info hub.BackupInfo, err error) {
	r := post("back up", "/backup").with(q)
	resp, err := c.send(ctx, r)
	if err != nil {
		return info, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(sink{w}, resp.Body); err != nil {
		if e, ok := errors.AsType[sinkError](err); ok {
			return info, fault.New(fault.Unavailable, "backup_not_written", r.op, e.error)
		}
		return info, c.lost(ctx, r.op, err)
	}
	if err := json.Unmarshal([]byte(resp.Trailer.Get(api.TrailerBackup)), &info); err != nil {
		return info, fault.New(fault.Integrity, "backup_incomplete", r.op, errors.New("it ends before its end"))
	}
	return info, nil
}

// sink marks the errors of a writer, to tell them from those of the connection.
type sink struct{ w io.Writer }

type sinkError struct{ error }

// Write implements io.Writer.
func (s sink) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	if err != nil {
		err = sinkError{err}
	}
	return n, err
}

package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// Tokens that the in-memory hub knows: an owner's, and one of a principal that may only
// look at sessions and start runs.
const (
	OwnerToken = "palyra_owner_secret_check"
	WeakToken  = "palyra_weak_secret_check"
)

// Tools of the in-memory hub.
const (
	ToolEcho = "test.echo" // done at once
	ToolWait = "test.wait" // until the run is cancelled or Finish is called
	ToolDeny = "test.deny" // StartRun and Call return a denial by policy
	ToolBug  = "test.bug"  // StartRun and Call return an error from inside, with a secret in it
)

// Secret is in the text that ToolBug returns; no client may see it.
const Secret = "/var/lib/secret-place"

// Hub is a hub.Hub in memory. It is safe for concurrent use. Operations that it doesn't
// have answer with fixed values.
type Hub struct {
	hub.Table

	mu        sync.Mutex
	sessions  map[string]*hub.Session
	order     []string // of sessions, oldest first
	runs      map[string]*run
	runOrder  []string
	keys      map[string]string // idempotency key → run
	approvals map[string]*hub.Approval
	members   map[string]hub.Member
	tokens    map[string]*hub.Token
	bodies    map[string][]byte // artifacts
	revoked   map[string]bool   // texts of tokens
	calls     int               // of methods that change something
}

type run struct {
	hub.Run
	events []hub.Event
	wrote  []hub.OutputPart // of its step, in order
	more   chan struct{}    // closed and replaced at each event and part
	over   chan struct{}    // closed when it has ended
}

// NewHub returns a Hub with one owner, uid 0 and the user of this process.
func NewHub() *Hub {
	h := &Hub{sessions: map[string]*hub.Session{}, runs: map[string]*run{}, keys: map[string]string{}, approvals: map[string]*hub.Approval{},
		members: map[string]hub.Member{"uid:0": {Principal: "uid:0", Role: "owner", Version: 1, Created: time.Now()}},
		tokens:  map[string]*hub.Token{}, bodies: map[string][]byte{}, revoked: map[string]bool{}}
	h.Table = hub.NewTable(
		hub.CreateSession.By(h.createSession), hub.GetSession.By(h.getSession), hub.ListSessions.By(h.listSessions), hub.EndSession.By(h.endSession),
		hub.StartRun.By(h.startRun), hub.GetRun.By(h.getRun), hub.ListRuns.By(h.listRuns), hub.CancelRun.By(h.cancelRun), hub.SendInput.By(h.sendInput), hub.SetMetadata.By(h.setMetadata),
		hub.ReadTape.By(h.readTape), hub.ReadOutput.By(h.readOutput), hub.Call.By(h.call),
		hub.ListInstructions.By(h.listInstructions), hub.InspectInstructions.By(h.inspectInstructions), hub.AcceptInstructions.By(h.acceptInstructions),
		hub.RevokeInstructions.By(h.revokeInstructions),
		hub.ListServers.By(h.listServers), hub.AddServer.By(h.addServer), hub.GetServer.By(h.getServer), hub.InspectServer.By(h.inspectServer),
		hub.AcceptServer.By(h.acceptServer), hub.RemoveServer.By(h.removeServer), hub.ListServerTools.By(h.listServerTools),
		hub.ListLayers.By(h.listLayers), hub.GetLayer.By(h.getLayer), hub.GetPatch.By(h.getPatch), hub.DiscardLayer.By(h.discardLayer), hub.ApplyLayer.By(h.applyLayer), hub.UndoLayer.By(h.applyLayer), hub.RecoverLayer.By(h.recoverLayer), hub.ListApprovals.By(h.listApprovals), hub.GetApproval.By(h.getApproval),
		hub.ResolveApproval.By(h.resolveApproval), hub.PreviewApproval.By(h.previewApproval), hub.ListGrants.By(h.listGrants), hub.RevokeGrant.By(h.revokeGrant),
		hub.ListTools.By(h.listTools), hub.ListModels.By(h.listModels), hub.GetUsage.By(h.getUsage), hub.FindFolders.By(h.findFolders), hub.ExplainPolicy.By(h.explainPolicy), hub.TestPolicy.By(h.testPolicy), hub.DiffPolicy.By(h.diffPolicy),
		hub.GetPolicy.By(h.getPolicy), hub.ListPolicySets.By(h.listPolicySets), hub.GetPolicySet.By(h.getPolicySet), hub.GetDecision.By(h.getDecision), hub.ExportDecision.By(h.exportDecision), hub.GetReceipt.By(h.getReceipt), hub.VerifyReceipt.By(h.verifyReceipt), hub.GetReach.By(h.getReach), hub.VerifyJournal.By(h.verifyJournal),
		hub.GetJournal.By(h.getJournal), hub.ListJournalEntries.By(h.listJournalEntries), hub.ProveJournalEntry.By(h.proveJournalEntry), hub.ProveJournalConsistency.By(h.proveJournalConsistency),
		hub.GetCheckpoint.By(h.getCheckpoint), hub.GetTile.By(h.getTile), hub.GetArtifact.By(h.getArtifact), hub.CreateToken.By(h.createToken),
		hub.ListTokens.By(h.listTokens), hub.RevokeToken.By(h.revokeToken), hub.RotateToken.By(h.rotateToken), hub.ListMembers.By(h.listMembers),
		hub.PutMember.By(h.putMember), hub.RemoveMember.By(h.removeMember), hub.GetConfig.By(h.getConfig), hub.GetStatus.By(h.getStatus),
		hub.GetDoctor.By(h.getDoctor), hub.Stop.By(h.stop), hub.Resume.By(h.resume), hub.Reload.By(h.reload),
		hub.WatchJournal.By(h.watchJournal), hub.CosignJournal.By(h.cosignJournal),
		hub.Backup.By(h.backup), hub.ListKeys.By(h.listKeys), hub.RotateKey.By(h.rotateKey),
		hub.ListDevices.By(h.listDevices), hub.GetDevice.By(h.getDevice), hub.RevokeDevice.By(h.revokeDevice), hub.RemoveDevice.By(h.removeDevice), hub.RenewDevice.By(h.renewDevice),
		hub.GetAuthority.By(h.getAuthority), hub.ReplaceRoot.By(h.replaceRoot),
		hub.OpenConsole.By(h.openConsole), hub.ListPasskeys.By(h.listPasskeys), hub.RevokePasskey.By(h.revokePasskey), hub.BeginPairing.By(h.beginPairing), hub.ListPairings.By(h.listPairings), hub.GetPairing.By(h.getPairing), hub.ApprovePairing.By(h.approvePairing), hub.DenyPairing.By(h.denyPairing),
	)
	maps.Copy(h.Table, hub.NewTable(append(h.vaultEntries(), h.memoryEntries()...)...))
	return h
}

// Changes returns how often something was changed.
func (h *Hub) Changes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

// Authenticate knows the two tokens, and every peer as an owner.
func (h *Hub) Authenticate(_ context.Context, c hub.Credential) (hub.Caller, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case c.Token == OwnerToken && !h.revoked[c.Token]:
		return hub.Caller{User: "alice", Surface: c.Surface, Role: "owner", Token: "tok_1", Address: c.Address, ReadsPolicy: true}, nil
	case c.Token == WeakToken && !h.revoked[c.Token]:
		return hub.Caller{User: "bob", Surface: c.Surface, Role: "operator", Token: "tok_2",
			Scopes: []string{"session.read", "session.write", "run.start"}}, nil
	case c.Token == "" && c.PeerUID != nil:
		return hub.Caller{User: fmt.Sprintf("uid:%d", *c.PeerUID), Surface: c.Surface, Role: "owner", ReadsPolicy: true}, nil
	}
	return hub.Caller{}, fault.New(fault.Denied, "unauthenticated", "authenticate", nil)
}

// Revoke makes a token useless.
func (h *Hub) Revoke(token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revoked[token] = true
}

func (h *Hub) createSession(_ context.Context, c hub.Caller, n hub.NewSession) (hub.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	s := &hub.Session{ID: ident.New(ident.Session), Principal: c.User, Title: n.Title, State: hub.SessionOpen, Version: 1, Created: time.Now().UTC()}
	h.sessions[s.ID] = s
	h.order = append(h.order, s.ID)
	return *s, nil
}

func (h *Hub) getSession(_ context.Context, _ hub.Caller, id string) (hub.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil {
		return hub.Session{}, fault.New(fault.NotFound, "no_such_session", "read session", nil)
	}
	return *s, nil
}

func (h *Hub) listSessions(_ context.Context, _ hub.Caller, q hub.SessionQuery) (hub.Page[hub.Session], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids, next := page(h.order, q.PageQuery)
	p := hub.Page[hub.Session]{Next: next}
	for _, id := range ids {
		p.Items = append(p.Items, *h.sessions[id])
	}
	return p, nil
}

// page cuts a part out of a list, newest first.
func page(oldestFirst []string, q hub.PageQuery) (ids []string, next string) {
	all := slices.Clone(oldestFirst)
	slices.Reverse(all)
	if q.After != "" {
		all = all[slices.Index(all, q.After)+1:]
	}
	n := q.Limit
	if n == 0 {
		n = 100
	}
	if len(all) > n {
		return all[:n], all[n-1]
	}
	return all, ""
}

func (h *Hub) endSession(_ context.Context, _ hub.Caller, in hub.SessionChange) (hub.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[in.ID]
	switch {
	case s == nil:
		return hub.Session{}, fault.New(fault.NotFound, "no_such_session", "end session", nil)
	case in.Version != 0 && in.Version != s.Version:
		return hub.Session{}, conflict()
	}
	h.calls++
	now := time.Now().UTC()
	s.State, s.Ended = hub.SessionEnded, &now
	s.Version++
	return *s, nil
}

func conflict() error { return fault.New(fault.Busy, "version_conflict", "change", nil) }

func (h *Hub) startRun(_ context.Context, c hub.Caller, n hub.NewRun) (hub.Run, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.startLocked(c, n)
	if err != nil {
		return hub.Run{}, err
	}
	return r.view(), nil
}

func (h *Hub) startLocked(c hub.Caller, n hub.NewRun) (*run, error) {
	if id := h.keys[c.User+" "+n.IdempotencyKey]; id != "" && n.IdempotencyKey != "" {
		return h.runs[id], nil
	}
	if n.Session != "" && h.sessions[n.Session] == nil {
		return nil, fault.New(fault.NotFound, "no_such_session", "start run", nil)
	}
	if len(n.Steps) == 0 {
		return nil, fault.New(fault.Usage, "invalid_input", "start run", errors.New("no steps"))
	}
	switch n.Steps[0].Tool {
	case ToolDeny:
		d := hub.Denial{DecisionID: "00112233445566778899aabbccddeeff", Layer: hub.LayerPolicy, Reason: "policy_denied", Policies: []string{"never"}, Fix: "permit it"}
		return nil, fault.New(fault.Denied, "policy_denied", "start run", &hub.DenialError{Denial: d}).WithHint("ask the operator")
	case ToolBug:
		return nil, fmt.Errorf("open %s: permission denied", Secret)
	}
	h.calls++
	now := time.Now().UTC()
	r := &run{Run: hub.Run{ID: ident.New(ident.Run), Session: n.Session, Principal: c.User, State: hub.RunInProgress, Budget: n.Budget, Version: 1, Created: now, Started: &now},
		more: make(chan struct{}), over: make(chan struct{})}
	for i, s := range n.Steps {
		r.Steps = append(r.Steps, hub.StepResult{Index: i, Tool: s.Tool, Input: s.Input, State: hub.StepRunning})
	}
	h.runs[r.ID] = r
	h.runOrder = append(h.runOrder, r.ID)
	if n.IdempotencyKey != "" {
		h.keys[c.User+" "+n.IdempotencyKey] = r.ID
	}
	h.emitLocked(r, hub.EventRunInProgress, hub.RunChange{State: hub.RunInProgress})
	if n.Steps[0].Tool == ToolEcho {
		h.finishLocked(r, hub.RunDone)
	}
	return r, nil
}

// view is a copy that does not change any more.
func (r *run) view() hub.Run {
	v := r.Run
	v.Steps = slices.Clone(r.Steps)
	return v
}

func (h *Hub) emitLocked(r *run, kind string, data any) {
	b, err := json.Marshal(data)
	if err != nil {
		panic("apitest: internal error: " + err.Error())
	}
	r.LastSeq++
	r.events = append(r.events, hub.Event{Run: r.ID, Seq: r.LastSeq, Kind: kind, Time: time.Now().UTC(), Data: b})
	close(r.more)
	r.more = make(chan struct{})
}

func (h *Hub) finishLocked(r *run, state string) {
	if r.Ended != nil {
		return
	}
	now := time.Now().UTC()
	r.State, r.Ended = state, &now
	r.Version++
	for i := range r.Steps {
		r.Steps[i].State, r.Steps[i].Outcome = hub.StepDone, "executed"
		r.Steps[i].Stdout = hub.Output{Size: 3, Text: "hi\n"}
	}
	close(r.over)
	h.emitLocked(r, "run."+state, hub.RunChange{State: state})
}

// Emit appends an event to the tape of a run.
func (h *Hub) Emit(id, kind string, data any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.emitLocked(h.runs[id], kind, data)
}

// Write has the step of a run write.
func (h *Hub) Write(id, stream, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.runs[id]
	p := hub.OutputPart{Stream: stream, Text: text}
	for _, q := range r.wrote {
		if q.Stream == stream {
			p.From += int64(len(q.Text))
		}
	}
	r.wrote = append(r.wrote, p)
	close(r.more)
	r.more = make(chan struct{})
}

// Finish ends a run.
func (h *Hub) Finish(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finishLocked(h.runs[id], hub.RunDone)
}

func (h *Hub) getRun(_ context.Context, _ hub.Caller, id string) (hub.Run, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.runs[id]
	if r == nil {
		return hub.Run{}, fault.New(fault.NotFound, "not_found", "read run", nil)
	}
	return r.view(), nil
}

func (h *Hub) listRuns(_ context.Context, _ hub.Caller, q hub.RunQuery) (hub.Page[hub.Run], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	order := slices.DeleteFunc(slices.Clone(h.runOrder), func(id string) bool {
		r := h.runs[id]
		return q.Session != "" && r.Session != q.Session || len(q.States) > 0 && !slices.Contains(q.States, r.State)
	})
	ids, next := page(order, q.PageQuery)
	p := hub.Page[hub.Run]{Next: next}
	for _, id := range ids {
		r := h.runs[id].Run
		r.Steps, r.LastSeq = nil, 0
		p.Items = append(p.Items, r)
	}
	return p, nil
}

func (h *Hub) cancelRun(_ context.Context, _ hub.Caller, id string) (hub.Run, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.runs[id]
	if r == nil {
		return hub.Run{}, fault.New(fault.NotFound, "not_found", "cancel run", nil)
	}
	h.calls++
	h.finishLocked(r, hub.RunCancelled)
	return r.view(), nil
}

func (h *Hub) sendInput(_ context.Context, _ hub.Caller, in hub.RunInput) (hub.RunInputTaken, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs[in.Run] == nil {
		return hub.RunInputTaken{}, fault.New(fault.NotFound, "not_found", "tell agent", nil)
	}
	h.calls++
	return hub.RunInputTaken{Seq: 1}, nil
}

func (h *Hub) setMetadata(_ context.Context, _ hub.Caller, in hub.RunMetadata) (hub.None, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs[in.Run] == nil {
		return hub.None{}, fault.New(fault.NotFound, "not_found", "set metadata", nil)
	}
	h.calls++
	h.runs[in.Run].Metadata = in.Metadata.Metadata
	return hub.None{}, nil
}

func (h *Hub) call(ctx context.Context, c hub.Caller, n hub.NewCall) (hub.Run, error) {
	h.mu.Lock()
	r, err := h.startLocked(c, hub.NewRun{Session: n.Session, Budget: n.Budget, IdempotencyKey: n.IdempotencyKey,
		Steps: []hub.Step{{Tool: n.Tool, Input: n.Input}}})
	h.mu.Unlock()
	if err != nil {
		return hub.Run{}, err
	}
	select {
	case <-r.over:
	case <-ctx.Done():
		if n.IdempotencyKey == "" {
			_, _ = h.cancelRun(context.Background(), c, r.ID)
		}
		return hub.Run{}, fault.New(fault.Canceled, "canceled", "call", ctx.Err())
	}
	return h.getRun(ctx, c, r.ID)
}

func (h *Hub) readTape(_ context.Context, _ hub.Caller, q hub.TapeQuery) (hub.Tape, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.runs[q.Run]
	if r == nil {
		return nil, fault.New(fault.NotFound, "not_found", "read tape", nil)
	}
	return &tape{h, r, q.After}, nil
}

type tape struct {
	h     *Hub
	r     *run
	after uint64
}

// Next implements hub.Tape.
func (t *tape) Next(ctx context.Context) (hub.Event, error) {
	for {
		t.h.mu.Lock()
		more := t.r.more
		if t.after < uint64(len(t.r.events)) {
			ev := t.r.events[t.after]
			t.after++
			t.h.mu.Unlock()
			return ev, nil
		}
		ended := t.r.Ended != nil
		t.h.mu.Unlock()
		if ended {
			return hub.Event{}, io.EOF
		}
		select {
		case <-more:
		case <-ctx.Done():
			return hub.Event{}, fault.New(fault.Canceled, "canceled", "read tape", ctx.Err())
		}
	}
}

// Close implements hub.Tape.
func (t *tape) Close() error { return nil }

// Ask adds a request for approval.
func (h *Hub) Ask(run string) hub.Approval {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := &hub.Approval{ID: ident.New(ident.Approval), State: hub.ApprovalPending, Version: 1, Run: run, Scope: "once",
		Created: time.Now().UTC(), Expires: time.Now().UTC().Add(time.Minute)}
	h.approvals[a.ID] = a
	return *a
}

func (h *Hub) listApprovals(context.Context, hub.Caller, hub.ApprovalQuery) (hub.Page[hub.Approval], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var p hub.Page[hub.Approval]
	for _, a := range h.approvals {
		p.Items = append(p.Items, *a)
	}
	return p, nil
}

func (h *Hub) getApproval(_ context.Context, _ hub.Caller, id string) (hub.Approval, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.approvals[id]; a != nil {
		return *a, nil
	}
	return hub.Approval{}, fault.New(fault.NotFound, "not_found", "read approval", nil)
}

func (h *Hub) resolveApproval(_ context.Context, c hub.Caller, in hub.Resolution) (hub.Approval, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.approvals[in.ID]
	switch {
	case a == nil:
		return hub.Approval{}, fault.New(fault.NotFound, "not_found", "resolve approval", nil)
	case a.State != hub.ApprovalPending || in.Version != 0 && in.Version != a.Version:
		return hub.Approval{}, conflict()
	}
	h.calls++
	now := time.Now().UTC()
	a.State, a.Approver, a.Surface, a.Answered = hub.ApprovalDenied, c.User, c.Surface, &now
	if in.Answer.Approve {
		a.State = hub.ApprovalApproved
	}
	a.Version++
	return *a, nil
}

func (h *Hub) previewApproval(_ context.Context, _ hub.Caller, in hub.PreviewQuery) (hub.Preview, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.approvals[in.ID] == nil {
		return hub.Preview{}, fault.New(fault.NotFound, "not_found", "preview approval", nil)
	}
	return hub.Preview{Text: "exactly this, " + in.Answer.Scope, Looked: 3, Refused: []hub.PreviewCall{}}, nil
}

func (h *Hub) listGrants(context.Context, hub.Caller, hub.None) (hub.Page[hub.StandingGrant], error) {
	return hub.Page[hub.StandingGrant]{Items: []hub.StandingGrant{{ID: "grt_" + strings.Repeat("0", 32), Scope: "session"}}}, nil
}

func (h *Hub) revokeGrant(_ context.Context, _ hub.Caller, id string) (hub.StandingGrant, error) {
	if id != "grt_"+strings.Repeat("0", 32) {
		return hub.StandingGrant{}, fault.New(fault.NotFound, "not_found", "revoke grant", nil)
	}
	return hub.StandingGrant{ID: id, Scope: "session"}, nil
}

func (h *Hub) readOutput(_ context.Context, _ hub.Caller, q hub.OutputQuery) (hub.Outputs, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.runs[q.Run]
	if r == nil {
		return nil, fault.New(fault.NotFound, "not_found", "read output", nil)
	}
	return &outputs{h: h, r: r, q: q}, nil
}

type outputs struct {
	h *Hub
	r *run
	q hub.OutputQuery
	n int // parts that were looked at
}

// Next implements hub.Outputs.
func (o *outputs) Next(ctx context.Context) (hub.OutputPart, error) {
	for {
		o.h.mu.Lock()
		more, parts, ended := o.r.more, o.r.wrote[o.n:], o.r.Ended != nil
		o.h.mu.Unlock()
		for _, p := range parts {
			o.n++
			if seen := map[string]uint64{"stdout": o.q.Stdout, "stderr": o.q.Stderr}[p.Stream]; p.Step >= o.q.Step && uint64(p.From) >= seen {
				return p, nil
			}
		}
		if ended || o.q.Until == hub.UntilNow {
			return hub.OutputPart{}, io.EOF
		}
		select {
		case <-more:
		case <-ctx.Done():
			return hub.OutputPart{}, fault.New(fault.Canceled, "canceled", "read output", ctx.Err())
		}
	}
}

// Close implements hub.Outputs.
func (o *outputs) Close() error { return nil }

// PutArtifact makes content that Artifact finds.
func (h *Hub) PutArtifact(content []byte) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := canon.Sum(content).String()
	h.bodies[d] = content
	return d
}

type artifact struct {
	*bytes.Reader
	info hub.ArtifactInfo
}

// Close implements hub.Artifact.
func (a artifact) Close() error { return nil }

// Info implements hub.Artifact.
func (a artifact) Info() hub.ArtifactInfo { return a.info }

func (h *Hub) getArtifact(_ context.Context, _ hub.Caller, q hub.ArtifactQuery) (hub.Artifact, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, ok := h.bodies[q.Digest]
	if !ok {
		return nil, fault.New(fault.NotFound, "not_found", "read artifact", nil)
	}
	return artifact{bytes.NewReader(b), hub.ArtifactInfo{Digest: q.Digest, Size: int64(len(b)), MediaType: "text/html\r\nX: y", Created: time.Unix(1, 0).UTC()}}, nil
}

// backup breaks off in the middle without recipients.
func (h *Hub) backup(_ context.Context, _ hub.Caller, r hub.BackupTo) (hub.BackupInfo, error) {
	if _, err := io.WriteString(r.W, "age-encrypt"); err != nil {
		return hub.BackupInfo{}, err
	}
	if len(r.Recipients) == 0 {
		return hub.BackupInfo{}, errors.New("the disk went away")
	}
	_, err := io.WriteString(r.W, "ion.org/v1")
	return hub.BackupInfo{Files: 1, Bytes: 21, Digest: canon.Sum([]byte("x")).String()}, err
}

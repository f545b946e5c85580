package local

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"palyra/authz/policy"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Notify says where palyrad tells that questions wait.
type Notify struct {
	URL     string        // "": nowhere
	Secret  string        // a reference, sent as a bearer token by palyra-egress; "": none
	Network string        // of its host, if that has a private address; see toolproto.FetchInput
	Every   time.Duration // at least from one notification to the next. Default 30s
}

// daemonsOwn is the principal of palyrad's own calls. No member has such a name
// (access.CheckPrincipal), so no caller can be it, and it has no role: policy permits it by name.
const daemonsOwn = "palyrad"

// The bounds of one notification, in time.
const (
	notifyEvery   = 30 * time.Second
	notifyConnect = 5 * time.Second
	notifyRequest = 10 * time.Second
	notifyRun     = 20 * time.Second // with its wait for a place
)

// Notify tells a URL of the operator's that questions wait, until ctx is done: by a call of
// http.fetch in a run of its own, which policy decides and no person is asked about. What is sent
// is an opaque id and a number. One notification is under way at a time, and what comes meanwhile
// is one with the next; one that fails isn't tried again.
func (h *Hub) Notify(ctx context.Context) {
	n := h.cfg.Notify
	if n.URL == "" {
		return
	}
	if n.Every <= 0 {
		n.Every = notifyEvery
	}
	told := map[string]bool{} // that still wait
	for {
		select {
		case <-h.notices.asked:
		case <-ctx.Done():
			return
		}
		rows, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Approval, error) {
			return tx.Approvals(store.ApprovalFilter{States: []store.ApprovalState{store.ApprovalPending}, Heads: true}, store.Page{Limit: store.MaxPage})
		})
		if err != nil {
			continue // status says what is wrong with the store
		}
		fresh, now := "", make(map[string]bool, len(rows))
		for i := range rows { // the newest first
			now[rows[i].ID] = true
			if fresh == "" && !told[rows[i].ID] {
				fresh = rows[i].ID
			}
		}
		if told = now; fresh == "" {
			continue
		}
		err = h.notify(ctx, &n, fresh, len(rows))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			h.cfg.Log.Warn("a notification failed", "error", err.Error(), "reason", fault.ReasonOf(err))
		}
		h.mu.Lock()
		h.notified = err
		h.mu.Unlock()
		t := time.NewTimer(n.Every)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// notify makes one notification.
func (h *Hub) notify(ctx context.Context, n *Notify, id string, waiting int) error {
	const op = "notify"
	body, err := canon.Marshal(map[string]any{"id": id, "waiting": waiting})
	if err != nil {
		return err
	}
	in := map[string]any{"url": n.URL, "method": http.MethodPost, "headers": []string{"content-type: application/json"}, "body": string(body), "allow_redirects": false, "max_response_bytes": 1,
		"connect_timeout_ms": notifyConnect.Milliseconds(), "request_timeout_ms": notifyRequest.Milliseconds()}
	if n.Secret != "" {
		in["credential_bindings"] = []string{"authorization: Bearer " + n.Secret}
	}
	if n.Network != "" {
		in["egress_hosts"] = []string{n.Network}
	}
	input, err := canon.Marshal(in)
	if err != nil {
		return err
	}
	made, err := h.runs.Start(ctx, run.Request{User: daemonsOwn, Steps: []hub.Step{{Tool: toolproto.Fetch, Input: input}}, Attended: true, Unasked: true,
		Budget: hub.Budget{Calls: 1, Wall: notifyRun}})
	if err != nil {
		return err
	}
	if err := h.runs.Wait(ctx, made); err != nil {
		return err
	}
	r, err := h.runs.Read(ctx, made)
	if err != nil {
		return err
	}
	if len(r.Steps) != 1 { // it waited for a place too long
		return fault.New(fault.Timeout, "budget_wall", op, nil)
	}
	s := &r.Steps[0]
	if s.Outcome != "executed" || s.Exit != 0 {
		var f toolproto.Failure
		if canon.Decode([]byte(strings.TrimSuffix(s.Stdout.Text, "\n")), &f, canon.Limits{Bytes: hub.MaxInline}) == nil && f.Error.Reason != "" {
			s.Reason = f.Error.Reason // the tool's own
		}
		return fault.New(fault.Unavailable, s.Reason, op, nil)
	}
	var answer toolproto.FetchResult
	if err := canon.Decode([]byte(strings.TrimSuffix(s.Stdout.Text, "\n")), &answer, canon.Limits{Bytes: hub.MaxInline}); err != nil || answer.Status < 200 || answer.Status > 299 {
		return fault.New(fault.Integrity, "bad_answer", op, fmt.Errorf("the URL answers with status %d", answer.Status))
	}
	return nil
}

// Notified says why the last notification failed, nil if none did.
func (h *Hub) Notified() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.notified
}

// own is the principal of palyrad's own calls for policy.
func own() policy.Entity { return policy.Entity{Type: policy.TypeUser, ID: daemonsOwn} }

package local

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"palyra/authz/approval"
	"palyra/call"
	"palyra/crypt/passkey"
	"palyra/hub"
	"palyra/internal/fault"
)

// AskAnswer implements hub.PasskeyDoor.
func (h *Hub) AskAnswer(ctx context.Context, c hub.Caller, in hub.Resolution) (*hub.PasskeyRequest, error) {
	const op = "ask for passkey"
	if err := h.ask(c, hub.ResolveApproval.Operation); err != nil {
		return nil, err
	}
	this, err := h.approvalHead(ctx, in.ID)
	asked, ok := h.runs.Approvals().Asked(in.ID)
	this.Card = hub.Card(asked.Call)
	if err == nil && ok && !h.seesRequest(ctx, c, &this) {
		err = noSuch("approval", in.ID)
	}
	if err != nil {
		return nil, err
	}
	y, err := h.runs.Approvals().Statement(ctx, in.ID, in.Version, answerer(c), reply(in.Answer))
	switch {
	case err != nil:
		return nil, err
	case in.Answer.Capsule != y.Capsule.String():
		return nil, fault.New(fault.NotApproved, "not_approved", op, fmt.Errorf("the answer is to capsule %.80q", in.Answer.Capsule)).WithHint("read it again")
	}
	w, err := h.word(ctx, &approval.Question{By: answerer(c), Scope: y.Scope, Pattern: !y.Pattern.IsZero(), Request: &asked, Approvers: append(slices.Clone(this.Yes), c.User),
		Subject: approval.Subject{Run: this.Run, Session: this.Session, Step: this.Step, CallID: this.CallID, Requester: this.Requester}})
	if err != nil || !w.passkey {
		return nil, err
	}
	site, err := h.site(op)
	if err != nil {
		return nil, err
	}
	y.Origin = site.Origin
	q := &hub.PasskeyRequest{RP: site.RP, Origin: site.Origin, Name: c.User}
	if q.Challenge, err = y.Challenge(); err != nil {
		return nil, err
	}
	for _, p := range h.access.PasskeysOf(c.User) {
		if p.Halted.IsZero() {
			q.Known = append(q.Known, p.Credential)
		}
	}
	return q, nil
}

// verifyYes is approval.HubOptions.Verify. The rules are those of signing in, but the challenge is
// the answer's. A form that is sent again has the signature that it had, which no copy of a passkey
// makes.
func (h *Hub) verifyYes(ctx context.Context, by approval.By, y call.Yes, s *approval.Signature) (*call.SignedYes, error) {
	const op = "answer approval"
	bad := func(err error) (*call.SignedYes, error) {
		return nil, fault.New(fault.NotApproved, "not_approved", op, fmt.Errorf("no passkey signed this yes: %w", err)).WithHint("read it again, and answer with a passkey that palyra passkeys ls has")
	}
	site, err := h.site(op)
	if err != nil {
		return nil, err
	}
	y.Origin = site.Origin
	challenge, err := y.Challenge()
	if err != nil {
		return nil, err
	}
	h.passkeys.using.Lock()
	defer h.passkeys.using.Unlock()
	p, ok := h.access.PasskeyOf(s.Credential)
	switch {
	case by.Surface != hub.SurfaceConsole:
		return bad(errors.New("passkeys sign in the console alone"))
	case !ok || p.Principal != by.Principal:
		return bad(errors.New("the passkey isn't one of this member's"))
	}
	signed := &call.SignedYes{Statement: y, Passkey: p.ID, Credential: p.Credential, Key: p.Key, Data: s.Data, Client: s.Client, Signature: s.Signature}
	count, err := passkey.Verify(site, challenge, &passkey.Credential{ID: p.Credential, Key: p.Key, Count: p.Count},
		passkey.Assertion{ID: s.Credential, Data: s.Data, Client: s.Client, Signature: s.Signature})
	sum := sha256.Sum256(s.Signature)
	back := errors.Is(err, passkey.ErrCount)
	again := back && h.passkeys.last[p.ID] == sum
	switch {
	case err != nil && !back:
		return bad(err)
	case back && !again:
		if halted := h.access.HaltPasskey(context.WithoutCancel(ctx), p.ID); halted != nil {
			return nil, halted
		}
		return bad(err)
	case !p.Halted.IsZero():
		return bad(errHalted)
	}
	if b, err := json.Marshal(signed); err != nil || len(b) > approval.MaxSigned {
		return bad(fmt.Errorf("it has more than the %d bytes that the journal takes", approval.MaxSigned))
	}
	if again {
		return signed, nil
	}
	h.passkeys.last[p.ID] = sum
	return signed, h.access.UsePasskey(ctx, p.ID, count)
}

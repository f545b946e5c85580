package local

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/kernel"
	"palyra/kernel/hub"
	"palyra/kernel/run"
)

// artifact is an open artifact of the store.
type artifact struct {
	io.ReadSeekCloser
	info hub.ArtifactInfo
}

// Info implements hub.Artifact.
func (a *artifact) Info() hub.ArtifactInfo { return a.info }

// ResolveApproval implements hub.Hub.
func (h *Hub) ResolveApproval(ctx context.Context, c hub.Caller, id string, version int64, a hub.Answer) (hub.Approval, error) {
	if err := h.ask(c, "ResolveApproval"); err != nil {
		return hub.Approval{}, err
	}
	if err := ident.Check(ident.Approval, id); err != nil {
		return hub.Approval{}, err
	}
	if len(a.Comment) > maxComment || !utf8.ValidString(a.Comment) {
		return hub.Approval{}, fault.New(fault.Usage, "bad_comment", "answer approval", fmt.Errorf("a comment is at most %d bytes of UTF-8", maxComment))
	}
	if a.Approve { // a no needs nobody's permission beyond that of the method
		if err := h.mayApprove(ctx, c, id); err != nil {
			return hub.Approval{}, err
		}
	}
	_, err := h.runs.Approvals().Resolve(ctx, id, version, approval.By{Principal: c.User, Surface: c.Surface}, a.Approve, a.Comment)
	if err != nil {
		if fault.KindOf(err) == fault.Denied {
			reason := fault.ReasonOf(err)
			err = fault.New(fault.Denied, reason, "answer approval", &hub.DenialError{Denial: hub.Denial{
				Layer: hub.LayerApproval, Reason: reason, Fix: fault.HintOf(err)}}).WithHint(fault.HintOf(err))
		}
		return hub.Approval{}, err
	}
	return h.approval(context.WithoutCancel(ctx), id)
}

// mayApprove asks policy whether the caller may say yes to a call in that
// workspace. It comes on top of the permission, and of who asked for the call.
func (h *Hub) mayApprove(ctx context.Context, c hub.Caller, id string) error {
	const op = "answer approval"
	who, err := h.entity(ctx, c.User)
	if err != nil {
		return err
	}
	v, err := h.approval(ctx, id)
	if err != nil {
		return err
	}
	place := v.Card.Workspace
	if place == "" {
		place = privateWorkspace
	}
	d := h.k.PolicySet().Decide(policy.Request{
		Principal: who, Action: policy.ApprovalResolve, Resource: policy.Entity{Type: policy.TypeWorkspace, ID: place},
		Context: policy.Context{SessionID: v.Session, RunID: v.Run, DeviceID: c.Device, ChannelID: c.Surface},
	})
	if d.Effect == policy.Allow {
		return nil
	}
	const hint = "somebody whom the policies let approve must answer"
	return fault.New(fault.Denied, d.Reason, op, &hub.DenialError{Denial: hub.Denial{
		DecisionID: hex.EncodeToString(d.ID[:]), Layer: hub.LayerPolicy, Reason: d.Reason, Policies: some(d.Policies),
		PolicySet: d.PolicySet.String(), Errors: d.Errors, Fix: d.Fix}}).WithHint(hint)
}

// privateWorkspace names, for policy, the empty workspace of a call that has no
// other.
const privateWorkspace = "private"

// Stop implements hub.Hub. It acts first and writes then: what runs is told to
// end, and nothing new begins, before anything waits for a disk.
func (h *Hub) Stop(ctx context.Context, c hub.Caller, r hub.StopRequest) (hub.Stopped, error) {
	if err := h.ask(c, "Stop"); err != nil {
		return hub.Stopped{}, err
	}
	if r.DenyNew && !r.All {
		return hub.Stopped{}, fault.New(fault.Usage, "deny_new_needs_all", "stop", nil).WithHint("use both, --all and --deny-new")
	}
	h.stopping.Lock()
	defer h.stopping.Unlock()
	ctx = context.WithoutCancel(ctx) // once begun it is finished
	if r.DenyNew {
		h.deny(true)
	}
	n, err := h.runs.CancelAll(ctx, run.Stop{Reason: run.ReasonStopped, By: c.User}, func(_, user string) bool { return r.All || user == c.User })
	h.cfg.TestOnlyStep("stop:cancelled")
	if err != nil {
		return hub.Stopped{Cancelled: n}, err
	}
	if r.DenyNew {
		if err := h.writeDeny(ctx, true); err != nil {
			return hub.Stopped{Cancelled: n, DenyNew: true}, err
		}
	}
	h.cfg.TestOnlyStep("stop:durable")
	index, err := h.record(ctx, c, "stop", "", map[string]string{
		"all": strconv.FormatBool(r.All), "deny_new": strconv.FormatBool(r.DenyNew), "cancelled": strconv.Itoa(n)})
	return hub.Stopped{Cancelled: n, DenyNew: h.denies(), LogIndex: index}, err
}

// Resume implements hub.Hub. The journal has it before anything begins again.
func (h *Hub) Resume(ctx context.Context, c hub.Caller) (hub.Stopped, error) {
	if err := h.ask(c, "Resume"); err != nil {
		return hub.Stopped{}, err
	}
	h.stopping.Lock()
	defer h.stopping.Unlock()
	ctx = context.WithoutCancel(ctx)
	index, err := h.record(ctx, c, "resume", "", nil)
	if err == nil {
		err = h.writeDeny(ctx, false)
	}
	if err != nil {
		return hub.Stopped{DenyNew: h.denies()}, err
	}
	h.deny(false)
	return hub.Stopped{LogIndex: index}, nil
}

func (h *Hub) deny(on bool) {
	h.runs.DenyNew(on)
	h.mu.Lock()
	h.denyNew = on
	h.mu.Unlock()
}

func (h *Hub) denies() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.denyNew
}

// record puts an act of a caller into the journal.
func (h *Hub) record(ctx context.Context, c hub.Caller, act, subject string, detail map[string]string) (uint64, error) {
	d := map[string]string{"surface": c.Surface}
	if c.Token != "" {
		d["token"] = c.Token
	}
	for name, text := range detail {
		d[name] = text
	}
	return h.k.Record(ctx, kernel.Act{Act: act, Principal: c.User, Subject: subject, Detail: d})
}

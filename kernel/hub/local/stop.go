package local

import (
	"context"
	"io"
	"strconv"

	"palyra/authz/approval"
	"palyra/internal/fault"
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

// Stop implements hub.Hub. It acts first and writes then: what runs is told to
// end, and nothing new begins, before anything waits for a disk.
func (h *Hub) Stop(ctx context.Context, c hub.Caller, r hub.StopRequest) (hub.Stopped, error) {
	if err := h.askStop(c); err != nil {
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
	// What was approved ahead is approved no more.
	drop := func() int {
		return h.runs.Approvals().Drop(func(g *approval.Standing) bool { return r.All || g.Requester == c.User })
	}
	grants := drop()
	h.cfg.TestOnlyStep("stop:dropped")
	n, err := h.runs.CancelAll(ctx, run.Stop{Reason: run.ReasonStopped, By: c.User}, func(_, user string) bool { return r.All || user == c.User })
	grants += drop() // what was given while the calls that it was given for were ending; none of them waits any more
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
		"all": strconv.FormatBool(r.All), "deny_new": strconv.FormatBool(r.DenyNew), "cancelled": strconv.Itoa(n), "grants": strconv.Itoa(grants)})
	return hub.Stopped{Cancelled: n, DenyNew: h.denies(), LogIndex: index}, err
}

// askStop is ask for the stop, which no policy takes away from an owner at the
// socket: the kernel says who that is, and a policy that forbids everything, by
// mistake or by design, must not keep its owner from the brake. For anybody else,
// and for an owner's token, it is a permission like any other. The daemon's own
// signals remain where there is no owner.
func (h *Hub) askStop(c hub.Caller) error {
	if h.privileged(c) {
		return nil
	}
	return h.ask(c, "Stop")
}

// surfaceUnix is the surface of callers whom the kernel has named.
const surfaceUnix = "unix"

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

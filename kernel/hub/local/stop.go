package local

import (
	"context"
	"io"
	"slices"
	"strconv"
	"time"

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
// end, and nothing new begins, before anything waits for a disk. It waits for no
// lock, line or hash that a request holds, and for a bounded time for the rest. No
// quota keeps it from what it does; one that had nothing to do is not recorded of a
// principal that has used up what it may leave in the journal.
func (h *Hub) Stop(ctx context.Context, c hub.Caller, r hub.StopRequest) (hub.Stopped, error) {
	if err := h.askStop(c); err != nil {
		return hub.Stopped{}, err
	}
	if r.DenyNew && !r.All {
		return hub.Stopped{}, fault.New(fault.Usage, "deny_new_needs_all", "stop", nil).WithHint("use both, --all and --deny-new")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience) // once begun it is finished
	defer cancel()
	records := quota{h}.Check(c.User) == nil // also what comes to nothing
	changed := false
	o, turn := &owed{Principal: c.User, Surface: c.Surface, Token: c.Token, Time: time.Now().UTC()}, uint64(0)
	if r.DenyNew {
		turn, changed = h.brake.engage(o, records)
	}
	if r.All {
		h.works.stop("")
	} else {
		h.works.stop(c.User)
	}
	// What was approved ahead is approved no more.
	drop := func() int {
		return h.runs.Approvals().Drop(func(g *approval.Standing) bool { return r.All || g.Requester == c.User })
	}
	grants := drop()
	h.cfg.TestOnlyStep("stop:dropped")
	halt := h.runs.Halt(run.Stop{Reason: run.ReasonStopped, By: c.User}, func(_, user string) bool { return r.All || user == c.User })
	n := halt.Cancelled()
	left, unrecorded := halt.Wait(ctx)
	grants += drop() // what was given while the calls that it was given for were ending; none of them waits any more
	h.cfg.TestOnlyStep("stop:cancelled")
	pending := h.brake.await(ctx, turn, nil)
	h.cfg.TestOnlyStep("stop:durable")
	if !records && !changed && n == 0 && grants == 0 {
		return hub.Stopped{DenyNew: h.brake.denies(), Left: left, Pending: pending}, nil
	}
	a := &stopAct{act: o.act(map[string]string{
		"all": strconv.FormatBool(r.All), "deny_new": strconv.FormatBool(r.DenyNew), "cancelled": strconv.Itoa(n), "grants": strconv.Itoa(grants)})}
	if r.DenyNew {
		a.owed = o
	}
	a = h.brake.logLater(a)
	pending = append(pending, h.brake.await(ctx, 0, a)...)
	if unrecorded > 0 && !slices.Contains(pending, pendingStore) {
		pending = append(pending, pendingStore)
	}
	return hub.Stopped{Cancelled: n, DenyNew: h.brake.denies(), LogIndex: h.brake.indexOf(a), Left: left, Pending: pending}, nil
}

// stopPatience bounds how long a stop waits for programs to end and for disks to
// write. What is not done by then its answer names, and is done later.
const stopPatience = 2 * time.Second

// resumePatience bounds the wait of a resume for the disks.
const resumePatience = 10 * time.Second

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
	if err := (quota{h}).Check(c.User); err != nil { // each resume, and the stop before it, stays in the journal
		return hub.Stopped{DenyNew: h.brake.denies()}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumePatience)
	defer cancel()
	since := h.brake.since()
	index, err := h.record(ctx, c, "resume", "", nil)
	if err == nil {
		err = h.brake.release(ctx, since)
	}
	if err != nil {
		return hub.Stopped{DenyNew: h.brake.denies()}, err
	}
	return hub.Stopped{LogIndex: index}, nil
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

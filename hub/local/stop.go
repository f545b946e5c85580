package local

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"palyra/authz/approval"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/internal/fault"
	"palyra/kernel"
)

// artifact is an open artifact of the store.
type artifact struct {
	io.ReadSeekCloser
	info hub.ArtifactInfo
}

// Info implements hub.Artifact.
func (a *artifact) Info() hub.ArtifactInfo { return a.info }

// stopOperations returns the emergency stop and its end.
func (h *Hub) stopOperations() []hub.Entry {
	return []hub.Entry{
		hub.Stop.By(h.stop),
		hub.Resume.By(h.resume),
	}
}

// stop acts first and writes then: it tells runs to end, and lets nothing new begin, before
// it waits for a disk. It waits for no lock, line or hash that a request holds, and for a
// bounded time for the rest. No quota prevents a stop. But if a stop had nothing to do, and
// its principal has used up its quota of the journal, it isn't recorded.
func (h *Hub) stop(ctx context.Context, c hub.Caller, r hub.StopRequest) (hub.Stopped, error) {
	if r.DenyNew && !r.All {
		return hub.Stopped{}, fault.New(fault.Usage, "invalid_input", "stop", errors.New("--deny-new without --all")).WithHint("use both, --all and --deny-new")
	}
	// A stop that has begun runs to its end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
	defer cancel()
	records := h.room(c) == nil // also what comes to nothing
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
	// Standing grants end.
	drop := func() int {
		return h.runs.Approvals().Drop(func(g *approval.Standing) bool { return r.All || g.Requester == c.User })
	}
	grants := drop()
	h.cfg.TestOnlyStep("stop:dropped")
	halt := h.runs.Halt(run.Stop{Reason: run.ReasonStopped, By: c.User}, func(_, user string) bool { return r.All || user == c.User })
	n := halt.Cancelled()
	left, unrecorded := halt.Wait(ctx)
	// Drop grants given while their calls were ending; none of these calls waits any more.
	grants += drop()
	h.notices.note(hub.TopicDaemon | hub.TopicQuestions)
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

// stopPatience bounds how long a stop waits for programs to end and for disks to write. Its
// answer names the work that isn't done by then, which is done later.
const stopPatience = 2 * time.Second

// resumePatience bounds the wait of a resume for the disks.
const resumePatience = 10 * time.Second

// surfaceUnix is the surface of callers whom the kernel has named, surfaceToken that of tokens
// at the same socket: policies that trust the person there mean no token.
const (
	surfaceUnix  = "unix"
	surfaceToken = "unix_token"
)

// resume: the journal has it before anything begins again.
func (h *Hub) resume(ctx context.Context, c hub.Caller, _ hub.None) (hub.Stopped, error) {
	if err := h.room(c); err != nil { // each resume, and the stop before it, stays in the journal
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
	h.notices.note(hub.TopicDaemon)
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

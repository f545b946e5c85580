package local

import (
	"context"
	"errors"
	"fmt"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/stage"
	"palyra/kernel/tool"
)

// Bringing a layer to its workspace is a call of changes.apply as any other, in a session of its
// own: the layer's may have ended, be another's, or be at work. It begins with the label of that
// session, whose calls wrote the changes; those of a list that a person has looked at were written
// before it begins. No caller can name these tools, and without what comes beside such a call they
// do nothing (tool.BesideChanges).

func (h *Hub) applyLayer(ctx context.Context, c hub.Caller, in hub.LayerList) (hub.Run, error) {
	return h.changesCall(ctx, c, toolproto.ChangesApply, in.Layer, in.Digest)
}

func (h *Hub) undoLayer(ctx context.Context, c hub.Caller, in hub.LayerList) (hub.Run, error) {
	return h.changesCall(ctx, c, toolproto.ChangesUndo, in.Layer, in.Digest)
}

func (h *Hub) recoverLayer(ctx context.Context, c hub.Caller, name string) (none hub.Run, err error) {
	op := fmt.Sprintf("recover layer %q", name)
	k, free, err := h.layer(c, name)
	if err != nil {
		return none, err
	}
	digest, err := h.layers.unfinished(name)
	free()
	if err != nil {
		return none, err
	}
	if digest == "" {
		return none, fault.New(fault.NotFound, "not_found", op, errors.New("nothing is unfinished"))
	}
	return h.startChanges(ctx, c, k, toolproto.ChangesRecover, name, digest)
}

func (h *Hub) changesCall(ctx context.Context, c hub.Caller, what, name, digest string) (none hub.Run, err error) {
	op := fmt.Sprintf("%s of layer %q", what, name)
	if err := stage.CheckName(name); err != nil {
		return none, err
	}
	if _, err := canon.ParseDigest(digest); err != nil {
		return none, fault.New(fault.Usage, "invalid_input", op, err).WithHint("the digest is that of the changes that were looked at")
	}
	k, err := h.seenLayer(c, op, name)
	if err != nil {
		return none, err
	}
	return h.startChanges(ctx, c, k, what, name, digest)
}

// startChanges starts the run of one call of a tool for changes.
func (h *Hub) startChanges(ctx context.Context, c hub.Caller, k layerFacts, what, name, digest string) (none hub.Run, err error) {
	if err := h.need(c, access.RunStart); err != nil {
		return none, err
	}
	line, err := canon.Marshal(&toolproto.ChangesInput{Layer: name, Digest: digest})
	if err != nil {
		return none, err
	}
	beside := h.besideChanges(c, k, what, name)
	id, err := h.runs.Start(ctx, run.Request{User: c.User, Surface: c.Surface, Device: c.Device, Token: c.Token, Reserve: h.privileged(c),
		Steps: []hub.Step{{Tool: what, Input: line}}, Attended: true, Wrote: k.session,
		Beside: func(ctx context.Context) context.Context { return tool.WithChanges(ctx, beside) }})
	if err != nil {
		return none, h.named(c, err)
	}
	return h.answer(ctx, c, id)
}

// applyPatience is how long a call waits for others that use the layer: when it's about to be
// decided, and again when it's about to begin, for which a grant gives a minute.
const applyPatience = 10 * time.Second

// besideChanges is what comes beside a call of a tool for changes.
func (h *Hub) besideChanges(c hub.Caller, k layerFacts, what, name string) *tool.BesideChanges {
	return &tool.BesideChanges{
		Limits: layerLimits,
		Room: func(ctx context.Context) (func(), error) {
			room, err := h.pools.applies.Take(h.payer(c), 1)
			if err != nil {
				return nil, err
			}
			return room.Release, nil
		},
		Alone: func(ctx context.Context) (func(), error) {
			patience := applyPatience
			if len(h.backgroundOf(k.session)) > 0 { // a program, which may go on for hours
				patience = 0
			}
			release, err := h.layers.takeSoon(ctx, k.session, patience)
			if err != nil {
				return nil, fault.New(fault.Busy, "locked", fmt.Sprintf("use layer %q", name), err).WithHint(h.busyHint(k.session))
			}
			return func() {
				h.layers.measureOne(name, true)
				digest, _ := h.layers.unfinished(name)
				release()
				h.notices.note(hub.TopicLayers, k.principal)
				if digest != "" && what != toolproto.ChangesRecover {
					h.settle(c, k, name, digest)
				}
			}, nil
		},
		Reading: func(ctx context.Context) (context.Context, func(), error) {
			place, err := h.pools.layers.Wait(ctx, h.payer(c), 1)
			if err != nil {
				return nil, nil, err
			}
			ctx, over := context.WithTimeoutCause(ctx, layerTime, fault.New(fault.Usage, "too_large", "read the layer", fmt.Errorf("it takes more than %v", layerTime)))
			return ctx, func() {
				over()
				place.Release()
			}, nil
		},
	}
}

// settle begins the call that ends what a killed one left half done.
func (h *Hub) settle(c hub.Caller, k layerFacts, name, digest string) {
	if _, err := h.startChanges(context.Background(), c, k, toolproto.ChangesRecover, name, digest); err != nil {
		h.cfg.Log.Warn("an interrupted apply isn't ended", "layer", name, "error", err) // a person ends it
	}
}

// unfinished returns the digest of a list that is half applied, "" if none is. The layer's session
// is taken.
func (l *layers) unfinished(name string) (string, error) {
	s, e, err := stage.OpenUnfinished(l.state(), name)
	if err != nil {
		return "", err
	}
	defer s.Close()
	if e == nil {
		return "", nil
	}
	return e.Record.Digest.String(), nil
}

// takeSoon takes a session's layers as take does, and waits so long for calls and readers.
func (l *layers) takeSoon(ctx context.Context, session string, patience time.Duration) (release func(), err error) {
	ctx, over := context.WithTimeout(ctx, patience)
	defer over()
	for {
		if release, ok := l.take(session); ok {
			return release, nil
		}
		l.mu.Lock()
		t := l.used[session]
		l.mu.Unlock()
		if t == nil {
			continue
		}
		select {
		case <-t.free:
		case <-ctx.Done():
			return nil, errors.New("a call of its session is under way")
		}
	}
}

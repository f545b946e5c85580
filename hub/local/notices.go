package local

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/fault"
)

// notices tells readers that there is something new, by topic. They come from the two places that
// everything passes, once it's durable: the store's commits and the journal's entries; and from
// the few operations that change neither. A reader is a set of topics and a bell, which rings once
// until it's heard: a slow one hears less often and holds no more.
type notices struct {
	h      *Hub
	places *budget.Pool  // readers, by principal
	asked  chan struct{} // holds one element while Notify is to look for new questions; never closed

	mu      sync.Mutex
	readers map[*notified]struct{} // guarded by mu
}

const (
	maxNotices      = 256 // readers in all
	noticesEach     = 64  // of one principal
	noticesPerToken = 4
)

// lookEvery is how often a reader who hears nothing is looked at: its token may have expired.
const lookEvery = time.Second

func newNotices(h *Hub) *notices {
	return &notices{h: h, asked: make(chan struct{}, 1), readers: make(map[*notified]struct{}),
		places: budget.New(budget.Limits{Name: "notices", Total: maxNotices, Each: noticesEach, Reserve: 8})}
}

// notified is one reader.
type notified struct {
	n     *notices
	who   hub.Caller
	place *budget.Hold
	rung  chan struct{} // holds one element while something is due; never closed

	due   hub.Topics // guarded by notices.mu
	stale bool       // guarded by notices.mu; what it may have changed
	may   hub.Topics // guarded by notices.mu
	all   bool       // guarded by notices.mu; it sees the things of every principal
}

var _ hub.Notices = (*notified)(nil)

var _ hub.Notifier = (*Hub)(nil)

// Notices implements hub.Notifier.
func (h *Hub) Notices(c hub.Caller) (hub.Notices, error) {
	const op = "follow notices"
	n := h.notices
	if err := h.stillThere(c); err != nil {
		return nil, err
	}
	r := &notified{n: n, who: c, rung: make(chan struct{}, 1), stale: true}
	n.mu.Lock()
	defer n.mu.Unlock()
	same := 0
	for o := range n.readers {
		if c.Token != "" && o.who.Token == c.Token {
			same++
		}
	}
	if same >= noticesPerToken {
		return nil, fault.New(fault.Busy, "too_many", op, errors.New("as many read by this token as may"))
	}
	var err error
	if r.place, err = n.places.Take(h.payer(c), 1); err != nil {
		return nil, fault.New(fault.Busy, "too_many", op, err)
	}
	n.readers[r] = struct{}{}
	r.rung <- struct{}{} // what it may is found out by its own goroutine
	return r, nil
}

// note tells the readers who may look. Things of principals are told to those who see them.
func (n *notices) note(t hub.Topics, of ...string) {
	const owned = hub.TopicRuns | hub.TopicLayers // lists leave others' out; those of other topics don't
	if t&hub.TopicQuestions != 0 {
		select {
		case n.asked <- struct{}{}:
		default:
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for r := range n.readers {
		due := t & r.may
		if !r.all && !slices.Contains(of, r.who.User) {
			due &^= owned
		}
		rights := t&(hub.TopicPolicy|hub.TopicAccess) != 0
		if due == 0 && !rights {
			continue
		}
		r.due, r.stale = r.due|due, r.stale || rights
		select {
		case r.rung <- struct{}{}:
		default:
		}
	}
}

// changed tells of an update of the store.
func (n *notices) changed(c store.Change) {
	var t hub.Topics
	for _, table := range c.Tables {
		switch table {
		case "sessions", "runs", "steps", "events", "usage":
			t |= hub.TopicRuns
		case "approvals":
			t |= hub.TopicQuestions
		case "members", "tokens", "passkeys", "access_changes", "devices", "device_certificates":
			t |= hub.TopicAccess
		case "servers":
			t |= hub.TopicServers
		case "settings":
			t |= hub.TopicDaemon
		case "artifacts", "artifact_holds", "idempotency":
		default:
			t |= hub.EveryTopic
		}
	}
	if t != 0 {
		n.note(t, c.Principals...)
	}
}

// Next implements hub.Notices.
func (r *notified) Next(ctx context.Context) (hub.Topics, error) {
	for {
		if err := r.n.h.stillThere(r.who); err != nil {
			return 0, err
		}
		if t := r.take(); t != 0 {
			return t, nil
		}
		late := time.NewTimer(lookEvery)
		select {
		case <-r.rung:
		case <-late.C:
		case <-ctx.Done():
		}
		late.Stop()
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

// take returns the topics that are due. A reader whose rights have changed, as has one who has just
// come, is to look at everything.
func (r *notified) take() hub.Topics {
	n, h := r.n, r.n.h
	n.mu.Lock()
	stale := r.stale
	r.stale = false
	n.mu.Unlock()
	var may hub.Topics
	var all bool
	if stale { // policy decides: not under the lock
		may = hub.Looked(func(op *hub.Operation) bool { return h.holds(r.who, access.Permission(op.Permission)) })
		all = h.seesAll(r.who)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if stale && (may != r.may || all != r.all) {
		r.may, r.all, r.due = may, all, may
	}
	t := r.due & r.may
	r.due = 0
	return t
}

// Close implements hub.Notices.
func (r *notified) Close() error {
	r.n.mu.Lock()
	defer r.n.mu.Unlock()
	delete(r.n.readers, r)
	r.place.Release()
	return nil
}

// stillThere returns nil for a caller whose token and membership haven't ended. It waits for
// nothing.
func (h *Hub) stillThere(c hub.Caller) error {
	switch {
	case !c.Until.IsZero() && !h.cfg.Clock.Latest().Before(c.Until), h.access.Role(c.User) == "":
		return unauthenticated()
	case c.Token != "" && h.access.Live(holder(c)) != nil:
		return unauthenticated()
	}
	return nil
}

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"palyra/hub"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/isolate/stage"
	"palyra/kernel"
)

// Layers bounds what one principal's layers of staged workspaces take. Zero fields are no bound.
type Layers struct {
	Each      int   // sessions with a layer
	BytesEach int64 // when a call begins, which then adds at most its own limit of space
}

// A session has one layer for each workspace that its calls see staged. The layer's name has the
// beginning of the session's id, and so says whose it is. Other layers of the state directory are
// palyra exec's and none of the hub's.
var layerNames = regexp.MustCompile(`^[a-z0-9-]{1,32}-([0-9a-f]{16})$`)

// layerName returns the name of a session's layer over a workspace.
func layerName(session, workspace string) string {
	digits := strings.TrimPrefix(session, ident.Session+"_")
	return workspace + "-" + (digits + strings.Repeat("0", 16))[:16]
}

// layers has the sessions' layers. The calls of a session and a reader of its layers take turns: a
// layer that a reader has is refused to a call (locked), and no call should be.
type layers struct {
	h *Hub

	mu    sync.Mutex
	used  map[string]*layerTurn    // guarded by mu; by session
	known map[string]layerFacts    // guarded by mu; by name
	sized map[string]chan struct{} // guarded by mu; by principal: closed when its layers have been looked into
}

// layerTurn is the calls of a session that may use its layers, or a reader.
type layerTurn struct {
	calls int           // guarded by layers.mu; 0: a reader has them
	free  chan struct{} // closed at its end

	// A call holds look while it waits for another process that reads a layer: the attempt locks
	// the layer, and would refuse it to a call that has begun.
	look   chan struct{} // holds one
	looked bool          // no other process reads them; guarded by look
}

// layerFacts is what is known of a layer.
type layerFacts struct {
	session, principal string
	bytes              int64 // after the last call
	unsized            bool  // an earlier process left it, and nobody has looked into it yet
}

var _ run.Layers = (*layers)(nil)

func newLayers(h *Hub) *layers {
	return &layers{h: h, used: make(map[string]*layerTurn), known: make(map[string]layerFacts), sized: make(map[string]chan struct{})}
}

func (l *layers) state() string { return l.h.k.StateDir() }

// take takes a session's layers for a reader, unless they are in use.
func (l *layers) take(session string) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used[session] != nil {
		return nil, false
	}
	t := &layerTurn{free: make(chan struct{})}
	l.used[session] = t
	return func() { l.over(session, t) }, true
}

// over ends a turn.
func (l *layers) over(session string, t *layerTurn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.used, session)
	close(t.free)
}

// join takes a session's layers for a call, beside others, or returns what is closed when they
// are free.
func (l *layers) join(session string) (t *layerTurn, free <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t = l.used[session]
	switch {
	case t == nil:
		t = &layerTurn{free: make(chan struct{}), look: make(chan struct{}, 1)}
		l.used[session] = t
	case t.calls == 0:
		return nil, t.free
	}
	t.calls++
	return t, nil
}

// leave ends a call's use of its session's layers. The last one is their reader before they are
// free.
func (l *layers) leave(session string, t *layerTurn) {
	l.mu.Lock()
	t.calls--
	last := t.calls == 0
	l.mu.Unlock()
	l.measure(session, last)
	if last {
		l.over(session, t)
	}
}

// lookAgain is how often a layer is tried that another process reads, such as palyra changes, and
// patience for how long.
const (
	lookAgain     = 20 * time.Millisecond
	layerPatience = 30 * time.Second
)

// Hold implements run.Layers.
func (l *layers) Hold(ctx context.Context, session string) (func(), error) {
	stopped := func() error {
		return fault.New(fault.Canceled, "canceled", "wait for the session's layers", context.Cause(ctx))
	}
	t, free := l.join(session)
	for t == nil {
		select {
		case <-free:
			t, free = l.join(session)
		case <-ctx.Done():
			return nil, stopped()
		}
	}
	select {
	case t.look <- struct{}{}:
	case <-ctx.Done():
		l.leave(session, t)
		return nil, stopped()
	}
	if !t.looked {
		t.looked = l.await(ctx, session)
	}
	looked := t.looked
	<-t.look
	if !looked {
		l.leave(session, t)
		return nil, stopped()
	}
	return func() { l.leave(session, t) }, nil
}

// await waits for other processes that read a session's layers. It returns false if ctx is done
// before.
func (l *layers) await(ctx context.Context, session string) bool {
	over := time.Now().Add(layerPatience)
	for _, name := range l.of(session) {
		for l.busy(name) && time.Now().Before(over) {
			select {
			case <-time.After(lookAgain):
			case <-ctx.Done():
				return false
			}
		}
	}
	return true
}

// of returns the names of a session's layers.
func (l *layers) of(session string) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, k := range l.known {
		if k.session == session {
			names = append(names, name)
		}
	}
	return names
}

func (l *layers) busy(name string) bool {
	s, err := stage.Open(l.state(), name)
	if err == nil {
		s.Close()
	}
	return fault.KindOf(err) == fault.Busy && !errors.Is(err, fault.ErrApplyUnfinished)
}

// unseen stands for a layer that doesn't let its size be seen: what a call may add by default.
var unseen = kernel.DefaultLimits().Disk

// measure notes the sizes of a session's layers, and removes those that are empty, if alone: no
// call uses them.
func (l *layers) measure(session string, alone bool) {
	for _, name := range l.of(session) {
		l.measureOne(name, alone)
	}
}

func (l *layers) measureOne(name string, alone bool) {
	if !alone {
		if n, whole, err := stage.Size(l.state(), name); err == nil {
			l.measured(name, n, whole)
		}
		return
	}
	s, err := stage.Open(l.state(), name)
	if fault.KindOf(err) == fault.NotFound {
		l.forget(name)
	}
	if err != nil {
		return // damaged, or in use: as it was
	}
	defer s.Close()
	if s.Empty() && !s.Applied() && s.Remove() == nil {
		l.forget(name)
		return
	}
	n, whole := s.Size()
	l.measured(name, n, whole)
}

func (l *layers) measured(name string, bytes int64, whole bool) {
	if !whole {
		bytes = max(bytes, unseen)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k, ok := l.known[name]; ok {
		k.bytes, k.unsized = bytes, false
		l.known[name] = k
	}
}

// size measures the layers of a principal that an earlier process left: at its first call, for
// members can leave a million names each, and a start can't wait for that. session is taken.
func (l *layers) size(ctx context.Context, user, session string) error {
	var names []string
	for mine := make(chan struct{}); ; {
		l.mu.Lock()
		other := l.sized[user]
		if other == nil {
			for name, k := range l.known {
				if k.principal == user && k.unsized {
					names = append(names, name)
				}
			}
			if len(names) > 0 {
				l.sized[user] = mine
				defer func() {
					l.mu.Lock()
					defer l.mu.Unlock()
					delete(l.sized, user)
					close(mine)
				}()
			}
		}
		l.mu.Unlock()
		if other == nil {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
			return fault.New(fault.Canceled, "canceled", "measure layers", context.Cause(ctx))
		}
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return fault.New(fault.Canceled, "canceled", "measure layers", context.Cause(ctx))
		}
		l.mu.Lock()
		k := l.known[name]
		l.mu.Unlock()
		if k.session != session {
			release, _ := l.take(k.session)
			if release == nil {
				continue // its call measures it at its end
			}
			l.measureOne(name, true)
			release()
			continue
		}
		l.measureOne(name, false)
	}
	return nil
}

// forget is for a layer that is gone. Its session is taken, or has ended for good.
func (l *layers) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, name)
}

// load finds the layers that an earlier process left. Their sizes take as long as their programs
// want, and are looked for later.
func (l *layers) load(ctx context.Context) error {
	names, err := stage.Names(l.state())
	if err != nil {
		return err
	}
	for _, name := range names {
		m := layerNames.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		s, err := store.View(ctx, l.h.st, func(tx *store.Tx) (*store.Session, error) { return tx.SessionOf(ident.Session + "_" + m[1]) })
		switch {
		case fault.KindOf(err) == fault.NotFound:
			l.known[name] = layerFacts{bytes: unseen} // Retain removes it
			continue
		case err != nil:
			return err
		}
		l.known[name] = layerFacts{session: s.ID, principal: s.Principal, bytes: unseen, unsized: true}
	}
	return nil
}

// Name implements run.Layers.
func (l *layers) Name(ctx context.Context, session, user, workspace string) (string, error) {
	const op = "find the layer of a staged workspace"
	if err := l.size(ctx, user, session); err != nil {
		return "", err
	}
	name, b := layerName(session, workspace), l.h.cfg.Layers
	l.mu.Lock()
	defer l.mu.Unlock()
	var bytes int64
	with := map[string]bool{}
	for _, k := range l.known {
		if k.principal == user {
			bytes += k.bytes
			with[k.session] = true
		}
	}
	var over error
	switch {
	case b.Each > 0 && len(with) >= b.Each && !with[session]:
		over = fmt.Errorf("%d sessions of %.80q have one", len(with), user)
	case b.BytesEach > 0 && bytes >= b.BytesEach:
		over = fmt.Errorf("those of %.80q take %d bytes, limit %d", user, bytes, b.BytesEach)
	}
	if over != nil {
		return "", fault.New(fault.Unavailable, "quota", op, over).WithHint("discard some: palyra changes ls --socket, palyra changes discard")
	}
	if _, ok := l.known[name]; !ok {
		l.known[name] = layerFacts{session: session, principal: user}
	}
	return name, nil
}

// layerOperations returns the operations of layers.
func (h *Hub) layerOperations() []hub.Entry {
	return []hub.Entry{
		hub.ListLayers.By(h.listLayers),
		hub.GetLayer.By(h.getLayer),
		hub.GetPatch.By(h.getPatch),
		hub.DiscardLayer.By(h.discardLayer),
		hub.ApplyLayer.By(h.applyLayer),
		hub.UndoLayer.By(h.undoLayer),
		hub.RecoverLayer.By(h.recoverLayer),
	}
}

func (h *Hub) listLayers(ctx context.Context, c hub.Caller, q hub.LayerQuery) (p hub.Page[hub.Layer], err error) {
	page, err := page(q.PageQuery)
	if err != nil {
		return p, err
	}
	_, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return p, err
	}
	defer release()
	h.layers.mu.Lock()
	var names []string
	for name, k := range h.layers.known {
		if k.session != "" && h.sees(c, k.principal) && (q.Session == "" || q.Session == k.session) && name > page.After {
			names = append(names, name)
		}
	}
	h.layers.mu.Unlock()
	slices.Sort(names)
	p.Items = []hub.Layer{}
	for i, name := range names {
		if i == page.Limit {
			p.Next = names[i-1]
			break
		}
		if v, ok := h.layers.describe(name); ok {
			p.Items = append(p.Items, v)
		}
	}
	return p, nil
}

// describe returns a layer as clients see it, unless it's gone.
func (l *layers) describe(name string) (v hub.Layer, ok bool) {
	l.mu.Lock()
	k := l.known[name]
	l.mu.Unlock()
	v = hub.Layer{Layer: name, Session: k.session, Principal: k.principal, Bytes: k.bytes, State: hub.LayerInUse}
	if i, err := stage.Describe(l.state(), name); err == nil {
		v.Workspace, v.Made = i.Source.Path, &i.Made
	}
	release, ok := l.take(k.session) // else a call could find the layer locked
	if !ok {
		return v, true
	}
	defer release()
	s, err := stage.Open(l.state(), name)
	if errors.Is(err, fault.ErrApplyUnfinished) {
		v.State = hub.LayerUnfinished
		return v, true
	}
	switch fault.KindOf(err) {
	case fault.Busy:
		return v, true
	case fault.NotFound:
		return v, false // another process discarded it; the session's next call notices
	}
	if err != nil {
		v.State = hub.LayerDamaged
		return v, true
	}
	defer s.Close()
	if v.State = hub.LayerChanged; s.Empty() {
		v.State = hub.LayerEmpty
	}
	return v, true
}

// seenLayer returns what is known of a layer that the caller sees.
func (h *Hub) seenLayer(c hub.Caller, op, name string) (layerFacts, error) {
	h.layers.mu.Lock()
	k, ok := h.layers.known[name]
	h.layers.mu.Unlock()
	if !ok || k.session == "" || !h.sees(c, k.principal) {
		return k, fault.New(fault.NotFound, "not_found", op, stage.ErrNoLayer).WithHint("palyra changes ls --socket lists palyrad's layers")
	}
	return k, nil
}

// layer takes the layers of the session of a layer that the caller sees.
func (h *Hub) layer(c hub.Caller, name string) (k layerFacts, release func(), err error) {
	op := fmt.Sprintf("use layer %q", name)
	if err := stage.CheckName(name); err != nil {
		return k, nil, err
	}
	if k, err = h.seenLayer(c, op, name); err != nil {
		return k, nil, err
	}
	release, ok := h.layers.take(k.session)
	if !ok {
		return k, nil, fault.New(fault.Busy, "locked", op, errors.New("a call of its session is under way")).WithHint(h.busyHint(k.session))
	}
	return k, release, nil
}

// The bounds of what is read of a layer for an answer.
const (
	layerBytes = 24 << 20         // of memory
	patchBytes = 4 << 20          // of the patch
	layerTime  = 30 * time.Second // that a reader has a processor
)

var layerLimits = stage.Limits{Entries: 20_000, Bytes: 1 << 30, Names: 2 << 20, Objects: 2 << 20}

// readLayer reads the changes of a layer that the caller sees, and has f read more of it.
func (h *Hub) readLayer(ctx context.Context, c hub.Caller, name string, f func(context.Context, *stage.Layer, *stage.List) error) error {
	return h.readLayerFor(ctx, c, name, layerTime, f)
}

// readLayerFor is readLayer, for as long as most.
func (h *Hub) readLayerFor(ctx context.Context, c hub.Caller, name string, most time.Duration, f func(context.Context, *stage.Layer, *stage.List) error) error {
	_, free, err := h.layer(c, name)
	if err != nil {
		return err
	}
	defer free()
	room, err := h.reads(ctx, c, layerBytes)
	if err != nil {
		return err
	}
	defer room()
	place, err := h.pools.layers.Wait(ctx, h.payer(c), 1)
	if err != nil {
		return err
	}
	defer place.Release()
	ctx, end := h.works.begin(ctx, c)
	defer end()
	s, err := stage.Open(h.layers.state(), name)
	if err != nil {
		return err
	}
	defer s.Close()
	slow := fault.New(fault.Usage, "too_large", "read the layer", fmt.Errorf("it takes more than %v", most)).
		WithHint("on palyrad's host, as its user, palyra changes show takes its time")
	ctx, over := context.WithTimeoutCause(ctx, most, slow)
	defer over()
	list, err := s.Read(ctx, layerLimits)
	if err == nil {
		err = f(ctx, s, list)
	}
	if err != nil && context.Cause(ctx) == slow {
		return slow
	}
	return err
}

func (h *Hub) getLayer(ctx context.Context, c hub.Caller, name string) (v hub.LayerChanges, err error) {
	err = h.readLayer(ctx, c, name, func(_ context.Context, s *stage.Layer, list *stage.List) (err error) {
		h.layers.mu.Lock()
		k := h.layers.known[name]
		h.layers.mu.Unlock()
		made := s.Made
		v = hub.LayerChanges{Version: list.Version, Changes: make([]hub.LayerChange, 0, len(list.Changes)),
			Layer: hub.Layer{Layer: name, Session: k.session, Principal: k.principal, Bytes: k.bytes, State: hub.LayerChanged, Workspace: s.Source.Path, Made: &made}}
		if s.Empty() {
			v.Layer.State = hub.LayerEmpty
		}
		v.Changes, v.Git = layerChanges(list), layerGit(list.GitView())
		v.Undo = layerUndo(s)
		v.Digest, err = list.Digest()
		return err
	})
	if errors.Is(err, fault.ErrApplyUnfinished) {
		if l, ok := h.layers.describe(name); ok {
			return hub.LayerChanges{Layer: l, Version: stage.Version, Changes: []hub.LayerChange{}}, nil
		}
	}
	return v, err
}

// layerChanges returns a list's changes as clients see them.
func layerChanges(list *stage.List) []hub.LayerChange {
	out := make([]hub.LayerChange, 0, len(list.Changes))
	for _, c := range list.Changes {
		x := hub.LayerChange{Path: c.Path, Kind: c.Kind, Old: (*hub.LayerNode)(c.Old), New: (*hub.LayerNode)(c.New), Stale: c.Stale}
		for _, m := range c.Marks {
			x.Marks = append(x.Marks, hub.LayerMark(m))
		}
		out = append(out, x)
	}
	return out
}

// layerUndo returns what takes back the last apply, nil if there was none.
func layerUndo(s *stage.Layer) *hub.LayerUndo {
	s.Limits = layerLimits
	list, err := s.Undo()
	if fault.KindOf(err) == fault.NotFound {
		return nil
	}
	v := &hub.LayerUndo{Changes: []hub.LayerChange{}}
	if err == nil {
		var d canon.Digest
		d, err = list.Digest()
		v.Digest = d.String()
	}
	if err != nil {
		v.Digest, v.Reason, v.Error = "", fault.ReasonOf(err), err.Error()
		return v
	}
	v.Changes, v.Git = layerChanges(list), layerGit(list.GitView())
	return v
}

// layerGit returns a repository's changes as clients see them.
func layerGit(g *stage.GitView) *hub.LayerGit {
	if g == nil {
		return nil
	}
	v := &hub.LayerGit{Refs: make([]hub.LayerRef, 0, len(g.Refs)), Head: (*hub.LayerMove)(g.Head), Index: (*hub.LayerMove)(g.Index),
		Objects: g.Objects, Bytes: g.Bytes, Pack: g.Pack}
	marks := func(all []stage.Mark) (out []hub.LayerMark) {
		for _, m := range all {
			out = append(out, hub.LayerMark(m))
		}
		return out
	}
	for _, r := range g.Refs {
		v.Refs = append(v.Refs, hub.LayerRef{Name: r.Name, Kind: r.Kind, Old: r.Old, New: r.New, Commits: r.Commits, Subjects: r.Subjects,
			Stale: r.Stale, Marks: marks(r.Marks)})
	}
	for _, x := range g.Left {
		v.Left = append(v.Left, hub.LayerSkip{Path: x.Path, Why: x.Why})
	}
	v.Look = marks(g.Look)
	return v
}

func (h *Hub) getPatch(ctx context.Context, c hub.Caller, q hub.PatchQuery) (v hub.LayerPatch, err error) {
	err = h.readLayer(ctx, c, q.Layer, func(ctx context.Context, s *stage.Layer, list *stage.List) (err error) {
		v = hub.LayerPatch{Layer: q.Layer, LeftOut: []hub.LayerSkip{}, Stale: []string{}}
		if v.Digest, err = list.Digest(); err != nil {
			return err
		}
		w := &atMost{left: patchBytes}
		skipped, err := s.Patch(ctx, w, list, q.Files == hub.FilesBinary)
		if w.left < 0 {
			return fault.New(fault.Usage, "too_large", "make a patch", fmt.Errorf("more than %d bytes", patchBytes)).
				WithHint("palyra changes diff on palyrad's host, as its user, prints it whole")
		}
		if err != nil {
			return err
		}
		for _, x := range skipped {
			v.LeftOut = append(v.LeftOut, hub.LayerSkip(x))
		}
		for _, c := range list.Changes {
			if c.Stale {
				v.Stale = append(v.Stale, c.Path)
			}
		}
		v.Patch = w.Bytes()
		return nil
	})
	return v, err
}

// atMost is a buffer of a bounded size.
type atMost struct {
	bytes.Buffer
	left int
}

func (b *atMost) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errors.New("too long")
	}
	return b.Buffer.Write(p)
}

func (h *Hub) discardLayer(_ context.Context, c hub.Caller, name string) (none hub.None, err error) {
	_, free, err := h.layer(c, name)
	if err != nil {
		return none, err
	}
	defer free()
	if err = stage.Discard(h.layers.state(), name, false); err == nil || fault.KindOf(err) == fault.NotFound {
		h.layers.forget(name)
		h.notices.note(hub.TopicLayers, c.User)
	}
	return none, err
}

// orphans returns the layers whose sessions are gone, and their bytes.
func (l *layers) orphans(ctx context.Context) (names []string, bytes int64, err error) {
	l.mu.Lock()
	all := maps.Clone(l.known)
	l.mu.Unlock()
	for name, k := range all {
		if k.session != "" {
			_, err := store.View(ctx, l.h.st, func(tx *store.Tx) (*store.Session, error) { return tx.Session(k.session) })
			if err == nil {
				continue
			}
			if fault.KindOf(err) != fault.NotFound {
				return nil, 0, err
			}
		}
		names, bytes = append(names, name), bytes+k.bytes
	}
	return names, bytes, nil
}

// discard removes layers of sessions that are gone. One that another process reads stays for the
// next time.
func (l *layers) discard(names []string) error {
	var errs []error
	for _, name := range names {
		err := stage.Discard(l.state(), name, false)
		switch fault.KindOf(err) {
		case fault.Busy:
			continue
		case fault.NotFound:
			err = nil
		}
		if err == nil {
			l.forget(name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

package local

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"palyra/authz/access"
	"palyra/crypt/pair"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/kernel"
)

// pairingOperations returns the operations of pairings.
func (h *Hub) pairingOperations() []hub.Entry {
	return []hub.Entry{
		hub.BeginPairing.By(h.beginPairing),
		hub.ListPairings.By(h.listPairings),
		hub.GetPairing.By(h.getPairing),
		hub.ApprovePairing.By(h.approvePairing),
		hub.DenyPairing.By(h.denyPairing),
	}
}

const (
	// pairingWait is how long getPairing waits for another state.
	pairingWait = 20 * time.Second
	// pairingMessage is how long a device may take for a message that it owes.
	pairingMessage = 10 * time.Second
	// pairingsEach bounds the pairings of one principal that wait.
	pairingsEach = 3
	// maxUnwritten bounds the events that wait for a journal that can't be written.
	maxUnwritten = 256
)

// pairings are those of this process. They end with it: a code that a crash has outlived is good
// for nothing.
type pairings struct {
	h    *Hub
	cert tls.Certificate // made anew by each process, for the enrolment listener alone
	key  []byte          // SubjectPublicKeyInfo of cert

	journaling sync.Mutex // held while events are written, so that they keep their order

	mu        sync.Mutex
	all       *pair.Hub         // guarded by mu
	changed   chan struct{}     // closed and replaced when a state has changed; guarded by mu
	unwritten []pairingEvent    // guarded by mu
	of        map[string]string // who began which; guarded by mu
}

// pairingEvent is an event that belongs into the journal.
type pairingEvent struct {
	pair.Event
	by hub.Caller // zero: no operator did it
}

func newPairings(h *Hub) (*pairings, error) {
	const op = "make enrolment key"
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} // devices look at the key alone
	der, err := x509.CreateCertificate(rand.Reader, t, t, k.Public(), k)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	p := &pairings{h: h, cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}, changed: make(chan struct{}), of: make(map[string]string)}
	if p.key, err = x509.MarshalPKIXPublicKey(k.Public()); err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	p.all = pair.NewHub(p.key)
	return p, nil
}

// do changes pairings in the name of a caller, or of no operator.
func (p *pairings) do(by hub.Caller, f func(all *pair.Hub, now time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.all, time.Now())
	events := p.all.Events()
	if len(events) == 0 {
		return
	}
	for _, e := range events {
		p.unwritten = append(p.unwritten, pairingEvent{e, by})
	}
	close(p.changed)
	p.changed = make(chan struct{})
	p.h.notices.note(hub.TopicAccess) // which no commit tells: a pairing is of this process
}

// write puts what has happened into the journal. What can't be written waits for the next time.
func (p *pairings) write(ctx context.Context) error {
	p.journaling.Lock()
	defer p.journaling.Unlock()
	p.mu.Lock()
	events := p.unwritten
	p.unwritten = nil
	p.mu.Unlock()
	for i, e := range events {
		if err := p.record(context.WithoutCancel(ctx), e); err != nil {
			p.mu.Lock()
			p.unwritten = append(events[i:], p.unwritten...)
			lost := max(0, len(p.unwritten)-maxUnwritten)
			p.unwritten = p.unwritten[lost:]
			p.mu.Unlock()
			p.h.cfg.Log.Warn("record pairing", "error", err, "waiting", len(events)-i, "lost", lost)
			return err
		}
	}
	return nil
}

func (p *pairings) record(ctx context.Context, e pairingEvent) error {
	d := map[string]string{}
	for name, text := range map[string]string{"device": e.Request.Device, "kind": e.Request.Kind, "scopes": strings.Join(e.Request.Scopes, " "),
		"key": e.Key.String(), "end": string(e.End)} {
		if text != "" {
			d[name] = text
		}
	}
	act := "pairing." + string(e.State)
	if e.by.User != "" {
		_, err := p.h.record(ctx, e.by, act, e.ID, d)
		return err
	}
	_, err := p.h.k.Record(ctx, kernel.Act{Act: act, Principal: self(), Subject: e.ID, Detail: d})
	return err
}

// sweep ends what has waited too long, and writes what waits for the journal.
func (p *pairings) sweep(ctx context.Context) error {
	p.do(hub.Caller{}, func(all *pair.Hub, now time.Time) { all.Expire(now) })
	return p.write(ctx)
}

// close ends all pairings.
func (p *pairings) close(ctx context.Context) error {
	p.do(hub.Caller{}, func(all *pair.Hub, _ time.Time) { all.Close() })
	return p.write(ctx)
}

// EnrolmentCertificate returns the certificate of the enrolment listener: codes name its key.
func (h *Hub) EnrolmentCertificate() tls.Certificate { return h.pairings.cert }

// PairingWaits reports whether there is a pairing that a device could begin or go on with.
func (h *Hub) PairingWaits() (waits bool) {
	h.pairings.do(hub.Caller{}, func(all *pair.Hub, now time.Time) {
		all.Expire(now)
		waits = all.Waiting()
	})
	return waits
}

// Enrol does one exchange with a device. The end of m, or of ctx, ends it.
func (h *Hub) Enrol(ctx context.Context, m hub.Messages) error {
	p := h.pairings
	e := &enrolling{p: p, m: m}
	err := e.run(ctx)
	_ = m.Close()
	e.wg.Wait()
	if e.x != nil {
		p.do(hub.Caller{}, func(all *pair.Hub, _ time.Time) { all.Gone(e.x) })
	}
	_ = p.write(ctx) // logged, and tried again
	return err
}

// enrolling is one connection.
type enrolling struct {
	p  *pairings
	m  hub.Messages
	x  *pair.Exchange
	wg sync.WaitGroup
}

func (e *enrolling) run(ctx context.Context) error {
	identity, err := e.p.h.identity()
	if err != nil {
		return err
	}
	b, err := e.m.Read(time.Now().Add(pairingMessage))
	if err != nil {
		return err
	}
	c := pair.Channel{HubKey: e.p.key, Binding: e.m.Binding()}
	if err := e.step(ctx, func(all *pair.Hub, now time.Time) (reply []byte, err error) {
		e.x, reply, err = all.Hello(c, identity, b, now)
		return reply, err
	}); err != nil {
		return err
	}
	if b, err = e.m.Read(time.Now().Add(pairingMessage)); err != nil {
		return err
	}
	if err := e.step(ctx, func(all *pair.Hub, now time.Time) ([]byte, error) { return all.Reveal(e.x, b, now) }); err != nil {
		return err
	}
	return e.await(ctx)
}

// step takes a message and sends what answers it, a refusal too.
func (e *enrolling) step(ctx context.Context, f func(all *pair.Hub, now time.Time) ([]byte, error)) (err error) {
	var reply []byte
	e.p.do(hub.Caller{}, func(all *pair.Hub, now time.Time) { reply, err = f(all, now) })
	_ = e.p.write(ctx) // logged, and tried again
	if reply != nil {
		if sent := e.m.Write(reply); err == nil {
			err = sent
		}
	}
	return err
}

// await waits for an operator, sends the answer, and waits for the device to have it. The device
// owes nothing before: a message, or the end of the connection, ends the pairing.
func (e *enrolling) await(ctx context.Context) error {
	type message struct {
		b   []byte
		err error
	}
	next := make(chan message, 1)
	e.wg.Go(func() {
		b, err := e.m.Read(time.Time{})
		next <- message{b, err}
	})
	told := false
	for {
		var answer, refusal []byte
		var until time.Time
		var changed chan struct{}
		e.p.do(hub.Caller{}, func(all *pair.Hub, now time.Time) {
			all.Expire(now)
			answer, refusal, until, changed = e.x.Answer(), e.x.Refusal(), e.x.Expires, e.p.changed
		})
		switch {
		case refusal != nil:
			if !told {
				_ = e.m.Write(refusal)
			}
			return fault.New(fault.Denied, "pairing_over", "pair with device", fmt.Errorf("it is %s", e.state()))
		case answer != nil && !told:
			if err := e.m.Write(answer); err != nil {
				return err
			}
			told = true
			continue
		}
		timer := time.NewTimer(max(time.Until(until), time.Second)) // while it's approved, its time doesn't count
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case n := <-next:
			timer.Stop()
			if n.err != nil {
				return n.err
			}
			return e.step(ctx, func(all *pair.Hub, now time.Time) ([]byte, error) { return nil, all.Done(e.x, n.b, now) })
		}
		timer.Stop()
	}
}

func (e *enrolling) state() pair.State {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	return e.x.State
}

// ownView is a pairing with whose it is.
type ownView struct {
	pair.View
	principal string
}

// pairingOf returns a pairing as operators see it.
func (h *Hub) pairingOf(v ownView) hub.Pairing {
	out := hub.Pairing{ID: v.ID, Principal: v.principal, State: string(v.State), End: string(v.End), Device: v.Request.Device, Kind: v.Request.Kind,
		Scopes: append([]string{}, v.Request.Scopes...), Key: v.Key.String(), Begun: v.Begun.UTC(), Expires: v.Expires.UTC()}
	out.Known = v.State == pair.Pending && h.HasDevice(v.Request.Device)
	return out
}

// prepareAuthority makes the certificate authority, the first time.
func (h *Hub) prepareAuthority(ctx context.Context, c hub.Caller) error {
	h.devices.changing.Lock()
	defer h.devices.changing.Unlock()
	_, err := h.certifier(ctx, c)
	return err
}

// identity returns what devices are told of this hub. Begin has made it.
func (h *Hub) identity() (pair.Identity, error) {
	a, err := h.devices.existing("pair with device")
	if err != nil {
		return pair.Identity{}, fault.New(fault.Unavailable, "not_ready", "pair with device", errors.New("there is no certificate authority"))
	}
	return pair.Identity{Domain: a.Domain(), Roots: a.Roots()}, nil
}

func (h *Hub) beginPairing(ctx context.Context, c hub.Caller, _ hub.None) (hub.PairingCode, error) {
	const op = "begin pairing"
	address := h.cfg.Pairing()
	if address == "" {
		return hub.PairingCode{}, fault.New(fault.Unavailable, "not_ready", op, errors.New("palyrad does not listen for devices that pair")).
			WithHint("set pairing.listen to an address that devices reach, and restart palyrad")
	}
	if err := h.room(c); err != nil {
		return hub.PairingCode{}, err
	}
	if err := h.prepareAuthority(ctx, c); err != nil {
		return hub.PairingCode{}, err
	}
	var code pair.Code
	id := ident.New(ident.Pairing)
	v := ownView{principal: c.User}
	p := h.pairings
	var err error
	p.do(c, func(all *pair.Hub, now time.Time) {
		if err = p.roomLocked(c.User, all.Views(now)); err != nil {
			return
		}
		if code, err = all.Begin(id, now); err == nil {
			p.of[id] = c.User
			v.View, err = all.View(id, now)
		}
	})
	if err == nil {
		if err = p.write(ctx); err != nil {
			p.do(c, func(all *pair.Hub, now time.Time) { _, _ = all.Refuse(id, now) })
		}
	}
	if err != nil {
		return hub.PairingCode{}, err
	}
	return hub.PairingCode{Pairing: h.pairingOf(v), Code: code.Text(), URI: code.URI(), Address: address}, nil
}

// roomLocked returns an error if a principal has as many pairings as it may. It forgets whose those
// were that are no longer kept.
func (p *pairings) roomLocked(principal string, views []pair.View) error {
	of := make(map[string]string, len(views))
	n := 0
	for _, v := range views {
		of[v.ID] = p.of[v.ID]
		if of[v.ID] == principal && !v.State.Ended() {
			n++
		}
	}
	if p.of = of; n >= pairingsEach {
		return fault.New(fault.Busy, "too_many", "begin pairing", fmt.Errorf("%d of yours wait", n)).
			WithHint("palyra devices pairings lists them, and palyra devices deny ID ends one")
	}
	return nil
}

func (h *Hub) listPairings(ctx context.Context, c hub.Caller, _ hub.None) (hub.Page[hub.Pairing], error) {
	page := hub.Page[hub.Pairing]{Items: []hub.Pairing{}}
	p := h.pairings
	var views []ownView
	p.do(hub.Caller{}, func(all *pair.Hub, now time.Time) {
		for _, v := range all.Views(now) {
			views = append(views, ownView{v, p.of[v.ID]})
		}
	})
	_ = p.write(ctx) // logged, and tried again
	for _, v := range views {
		if h.sees(c, v.principal) {
			page.Items = append(page.Items, h.pairingOf(v))
		}
	}
	return page, nil
}

// pairing returns a pairing as it is now, if the caller sees it, and what is closed when one has
// changed.
func (h *Hub) pairing(ctx context.Context, c hub.Caller, id string) (v ownView, changed chan struct{}, err error) {
	if err := ident.Check(ident.Pairing, id); err != nil {
		return v, nil, err
	}
	p := h.pairings
	p.do(hub.Caller{}, func(all *pair.Hub, now time.Time) {
		all.Expire(now)
		v.View, err = all.View(id, now)
		v.principal, changed = p.of[id], p.changed
	})
	_ = p.write(ctx) // logged, and tried again
	if err == nil && !h.sees(c, v.principal) {
		err = noSuch("pairing", id)
	}
	return v, changed, err
}

func (h *Hub) getPairing(ctx context.Context, c hub.Caller, q hub.PairingQuery) (hub.Pairing, error) {
	timer := time.NewTimer(pairingWait)
	defer timer.Stop()
	for {
		v, changed, err := h.pairing(ctx, c, q.ID)
		if err != nil {
			return hub.Pairing{}, err
		}
		if q.Unlike == "" || string(v.State) != q.Unlike {
			return h.pairingOf(v), nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return h.pairingOf(v), nil
		case <-ctx.Done():
			return hub.Pairing{}, fault.New(fault.Canceled, "canceled", "get pairing", ctx.Err())
		}
	}
}

// approvePairing checks everything that can be mended before the digits, which have one try.
func (h *Hub) approvePairing(ctx context.Context, c hub.Caller, in hub.PairingApproval) (hub.Pairing, error) {
	const op = "approve pairing"
	if err := h.room(c); err != nil {
		return hub.Pairing{}, err
	}
	if len(in.Digits) != 6 || strings.Trim(in.Digits, "0123456789") != "" {
		return hub.Pairing{}, fault.New(fault.Usage, "invalid_input", op, errors.New("digits: want the six that the device shows"))
	}
	v, _, err := h.pairing(ctx, c, in.ID)
	switch {
	case err != nil:
		return hub.Pairing{}, err
	case v.principal != c.User: // the device would act as another than who asked for it
		return hub.Pairing{}, h.byRegistry(c, op, fault.New(fault.Denied, "permission_denied", op, errors.New("another principal began it")).
			WithHint("whoever began it approves it"))
	}
	scopes := v.Request.Scopes
	if in.Scopes != nil {
		scopes = *in.Scopes
	}
	if err := h.mayGrant(c, op, scopes, v.Request.Scopes); err != nil {
		return hub.Pairing{}, err
	}
	if v.State == pair.Pending && !in.Replace && h.HasDevice(v.Request.Device) {
		return hub.Pairing{}, fault.New(fault.Busy, "exists", op, fmt.Errorf("there is a device %q", v.Request.Device)).
			WithHint("if this is the same device, or takes its place, say so: --replace; its old certificates end")
	}
	if v.State == pair.Pending && !h.HasDevice(v.Request.Device) {
		if err := h.devices.room(c.User); err != nil {
			return hub.Pairing{}, err
		}
	}
	var w *pair.Wanted
	h.pairings.do(c, func(all *pair.Hub, now time.Time) { w, err = all.Approve(in.ID, in.Digits, now) })
	written := h.pairings.write(ctx)
	if err != nil {
		return hub.Pairing{}, err
	}
	// However this ends, no pairing stays approved: it would hold its place for ever.
	defer func() {
		h.pairings.do(c, func(all *pair.Hub, _ time.Time) { all.Fail(in.ID) })
		_ = h.pairings.write(ctx) // logged, and tried again
	}()
	if written != nil {
		return hub.Pairing{}, written
	}
	waits := func() (yes bool) {
		h.pairings.do(c, func(all *pair.Hub, _ time.Time) { yes = all.Waits(in.ID) })
		return yes
	}
	_, chain, _, err := h.enrol(context.WithoutCancel(ctx), c, Enrolment{ID: w.Request.Device, Scopes: scopes, CSR: w.CSR.Raw, Replace: in.Replace, Waits: waits})
	if err != nil {
		return hub.Pairing{}, err
	}
	h.pairings.do(c, func(all *pair.Hub, now time.Time) { _, err = all.Issued(in.ID, scopes, chain, now) })
	_ = h.pairings.write(ctx) // logged, and tried again
	if err != nil {           // no one has the certificate, so no one should find its device active
		_, gone := h.revokeDevice(context.WithoutCancel(ctx), c, w.Request.Device)
		return hub.Pairing{}, errors.Join(err, gone)
	}
	if v, _, err = h.pairing(ctx, c, in.ID); err != nil {
		return hub.Pairing{}, err
	}
	return h.pairingOf(v), nil
}

// mayGrant: a device gets what it asked for, and nothing that the operator lacks.
func (h *Hub) mayGrant(c hub.Caller, op string, scopes, asked []string) error {
	if _, err := access.ParseSet(scopes); err != nil {
		return err
	}
	for _, s := range scopes {
		if !slices.Contains(asked, s) {
			return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("scope %.80q was not asked for", s))
		}
		if !h.holds(c, access.Permission(s)) {
			return h.byRegistry(c, op, fault.New(fault.Denied, "permission_denied", op, fmt.Errorf("you lack the scope %q yourself", s)).
				WithHint("give it fewer scopes: --scope"))
		}
	}
	return nil
}

func (h *Hub) denyPairing(ctx context.Context, c hub.Caller, id string) (hub.Pairing, error) {
	v, _, err := h.pairing(ctx, c, id)
	if err != nil {
		return hub.Pairing{}, err
	}
	h.pairings.do(c, func(all *pair.Hub, now time.Time) { v.View, err = all.Refuse(id, now) })
	if written := h.pairings.write(ctx); err == nil {
		err = written
	}
	if err != nil {
		return hub.Pairing{}, err
	}
	return h.pairingOf(v), nil
}

package local

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"sync"
	"time"

	"palyra/authz/access"
	"palyra/crypt/passkey"
	"palyra/hub"
	"palyra/internal/fault"
)

// A passkey gets a browser into the console as a code does, with a token as a code's. It can be
// added while the browser's code is fresh alone: whoever has a browser's cookie, or a passkey,
// makes no further ones of it.

// freshTime is how long after its code a browser may add passkeys.
const freshTime = 5 * time.Minute

// passkeys are the challenges that are out, and the browsers that came by a code of late. They end
// with the process.
type passkeys struct {
	challenges *passkey.Challenges
	using      sync.Mutex // held from a count's check until it's durable

	// last are the digests of the newest answers' signatures, by passkey; guarded by using.
	last map[string][32]byte

	mu    sync.Mutex
	fresh map[string]time.Time // by token, when its browser came by a code; guarded by mu
}

func newPasskeys() *passkeys {
	return &passkeys{challenges: passkey.NewChallenges(), last: make(map[string][32]byte), fresh: make(map[string]time.Time)}
}

// came notes that a browser got its token by a code, and forgets those that did long ago.
func (p *passkeys) came(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t, at := range p.fresh {
		if time.Since(at) > freshTime {
			delete(p.fresh, t)
		}
	}
	p.fresh[token] = time.Now()
}

func (p *passkeys) isFresh(token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.fresh[token]
	return ok && time.Since(at) <= freshTime
}

// The purposes of challenges.
const (
	toEnter = "enter"
	toAdd   = "add"
)

// PasskeyOrigin implements hub.PasskeyDoor.
func (h *Hub) PasskeyOrigin() string {
	s, err := passkey.SiteOf(h.cfg.Console())
	if err != nil {
		return ""
	}
	return s.Origin
}

func (h *Hub) site(op string) (passkey.Site, error) {
	s, err := passkey.SiteOf(h.cfg.Console())
	if err != nil {
		return s, fault.New(fault.Unsupported, "platform_unsupported", op, err).WithHint("let listen.tls_cert have a name, or listen on loopback")
	}
	return s, nil
}

// handleOf returns the user handle of a member. An authenticator keeps one passkey for a host's
// user, and several palyrads may be at localhost: so it has the journal's name in it.
func (h *Hub) handleOf(ctx context.Context, principal string) ([]byte, error) {
	j, err := h.k.JournalStatus(ctx)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte("palyra/hub/passkey-user/v1\x00" + j.Origin + "\x00" + principal))
	return sum[:], nil
}

// AskPasskey implements hub.PasskeyDoor.
func (h *Hub) AskPasskey(nonce string) (hub.PasskeyRequest, error) {
	s, err := h.site("ask for passkey")
	if err != nil {
		return hub.PasskeyRequest{}, err
	}
	return hub.PasskeyRequest{RP: s.RP, Origin: s.Origin, Challenge: h.passkeys.challenges.New(toEnter, nonce)}, nil
}

// EnterByPasskey implements hub.PasskeyDoor. It logs refusals, but of strangers' a few a second.
func (h *Hub) EnterByPasskey(ctx context.Context, nonce, user string, s hub.PasskeySignature) (hub.TokenSecret, error) {
	p, err := h.usePasskey(ctx, nonce, user, s)
	if err != nil {
		if before, ok := h.noise.take("", time.Now()); ok {
			h.cfg.Log.Info("passkey refused", "error", err, "user", user, "left_out", before)
		}
		return hub.TokenSecret{}, err
	}
	c := hub.Caller{User: p.Principal, Surface: hub.SurfaceConsole, Role: string(h.access.Role(p.Principal))}
	return h.admit(ctx, c, p.ID)
}

// usePasskey returns the passkey that made a signature, whose count is then durable.
func (h *Hub) usePasskey(ctx context.Context, nonce, user string, s hub.PasskeySignature) (access.Passkey, error) {
	const op = "enter console"
	site, err := h.site(op)
	if err != nil {
		return access.Passkey{}, err
	}
	bad := func(err error) (access.Passkey, error) {
		return access.Passkey{}, fault.New(fault.Denied, "unauthenticated", op, err).WithHint("palyra console open lets this browser in without a passkey")
	}
	h.passkeys.using.Lock()
	defer h.passkeys.using.Unlock()
	p, ok := h.access.PasskeyOf(s.ID)
	switch {
	case !ok:
		return bad(errors.New("this passkey isn't known here, or was revoked"))
	case user != "" && user != p.Principal:
		return bad(errors.New("the passkey isn't this user's"))
	}
	handle, err := h.handleOf(ctx, p.Principal)
	if err != nil {
		return access.Passkey{}, err
	}
	if subtle.ConstantTimeCompare(handle, s.User) != 1 {
		return bad(errors.New("the passkey was made for another palyrad"))
	}
	count, err := passkey.Verify(site, s.Challenge, &passkey.Credential{ID: p.Credential, Key: p.Key, Count: p.Count},
		passkey.Assertion{ID: s.ID, Data: s.Data, Client: s.Client, Signature: s.Signature})
	back := errors.Is(err, passkey.ErrCount)
	if err != nil && !back {
		return bad(err)
	}
	// A form that is sent again has the same count, and is no copy.
	if err := h.passkeys.challenges.Spend(s.Challenge, toEnter, nonce); err != nil {
		return bad(err)
	}
	switch {
	case back:
		if halted := h.access.HaltPasskey(context.WithoutCancel(ctx), p.ID); halted != nil {
			return access.Passkey{}, halted
		}
		return bad(err)
	case !p.Halted.IsZero():
		return bad(errHalted)
	}
	return p, h.access.UsePasskey(ctx, p.ID, count)
}

var errHalted = errors.New("there may be a copy of this passkey: revoke it, and add another")

// mayAdd returns nil if the caller may add a passkey now.
func (h *Hub) mayAdd(c hub.Caller) error {
	const op = "add passkey"
	if err := h.ask(c, hub.RevokePasskey.Operation); err != nil {
		return err
	}
	if c.Surface != hub.SurfaceConsole || !h.passkeys.isFresh(c.Token) {
		return fault.New(fault.Denied, "permission_denied", op, errors.New("a passkey is added by a browser that came in by a code within five minutes")).
			WithHint("palyra console open")
	}
	if h.brake.denies() {
		return h.refuse(c, "stopped", op, "an operator stopped this daemon and must let it go on: palyra resume",
			hub.Denial{Layer: hub.LayerStop, Reason: "stopped", Fix: "palyra resume"})
	}
	if h.cfg.Hold {
		return fault.New(fault.Unavailable, "safe_mode", op, errors.New("palyrad is in safe mode"))
	}
	return h.room(c)
}

// OfferPasskey implements hub.PasskeyDoor.
func (h *Hub) OfferPasskey(ctx context.Context, c hub.Caller) (hub.PasskeyRequest, error) {
	s, err := h.site("add passkey")
	if err == nil {
		err = h.mayAdd(c)
	}
	if err != nil {
		return hub.PasskeyRequest{}, err
	}
	handle, err := h.handleOf(ctx, c.User)
	if err != nil {
		return hub.PasskeyRequest{}, err
	}
	all, err := h.access.Passkeys(holder(c))
	if err != nil {
		return hub.PasskeyRequest{}, err
	}
	q := hub.PasskeyRequest{RP: s.RP, Origin: s.Origin, Challenge: h.passkeys.challenges.New(toAdd, c.Token), User: handle, Name: c.User}
	for _, p := range all {
		if p.Principal == c.User {
			q.Known = append(q.Known, p.Credential)
		}
	}
	return q, nil
}

// AddPasskey implements hub.PasskeyDoor.
func (h *Hub) AddPasskey(ctx context.Context, c hub.Caller, m hub.PasskeyMade) (hub.Passkey, error) {
	const op = "add passkey"
	s, err := h.site(op)
	if err == nil {
		err = h.mayAdd(c)
	}
	if err != nil {
		return hub.Passkey{}, err
	}
	cred, err := passkey.Register(s, m.Challenge, passkey.Registration{ID: m.ID, Key: m.Key, Data: m.Data, Client: m.Client})
	if err == nil {
		err = h.passkeys.challenges.Spend(m.Challenge, toAdd, c.Token)
	}
	if err != nil {
		return hub.Passkey{}, fault.New(fault.Usage, "invalid_input", op, err)
	}
	p, err := h.access.AddPasskey(ctx, holder(c), access.Passkey{Name: m.Name, Credential: cred.ID, Key: cred.Key, Count: cred.Count})
	if err != nil {
		return hub.Passkey{}, h.byRegistry(c, op, err)
	}
	return passkeyOf(p), nil
}

func passkeyOf(p *access.Passkey) hub.Passkey {
	v := hub.Passkey{ID: p.ID, Name: p.Name, Principal: p.Principal, State: "active", Created: p.Created}
	if !p.LastUsed.IsZero() {
		v.LastUse = &p.LastUsed
	}
	if !p.Halted.IsZero() {
		v.State, v.Halted = "halted", &p.Halted
	}
	return v
}

func (h *Hub) listPasskeys(_ context.Context, c hub.Caller, _ hub.None) (hub.Page[hub.Passkey], error) {
	v := hub.Page[hub.Passkey]{Items: []hub.Passkey{}}
	all, err := h.access.Passkeys(holder(c))
	for i := range all {
		if h.sees(c, all[i].Principal) {
			v.Items = append(v.Items, passkeyOf(&all[i]))
		}
	}
	return v, err
}

func (h *Hub) revokePasskey(ctx context.Context, c hub.Caller, id string) (hub.Passkey, error) {
	all, err := h.listPasskeys(ctx, c, hub.None{})
	if err != nil {
		return hub.Passkey{}, err
	}
	seen := false
	for _, p := range all.Items {
		seen = seen || p.ID == id
	}
	if !seen {
		return hub.Passkey{}, noSuch("passkey", id)
	}
	p, _, err := h.access.RemovePasskey(ctx, holder(c), id, hub.ConsoleToken)
	if err == nil {
		h.passkeys.using.Lock()
		delete(h.passkeys.last, id)
		h.passkeys.using.Unlock()
	}
	h.reviewDevices()
	h.runs.Review(c.User)
	if err != nil {
		return hub.Passkey{}, h.byRegistry(c, "revoke passkey", err)
	}
	v := passkeyOf(p)
	v.State = "revoked"
	return v, nil
}

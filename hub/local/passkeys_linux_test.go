package local

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/crypt/passkey"
	"palyra/crypt/passkey/passkeytest"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

const consoleAt = "http://localhost:7142"

var consoleSite = passkey.Site{RP: "localhost", Origin: consoleAt}

// porch is a house with a console at a name.
func porch(t *testing.T) *house {
	return newHouse(t, func(c *Config, _ *kernel.Config) { c.Console = func() string { return consoleAt } })
}

// enter lets a browser of a caller's in by a code, and returns it as a caller.
func (h *house) enter(c hub.Caller) hub.Caller {
	h.t.Helper()
	code, err := hub.OpenConsole.Do(h.t.Context(), h, c, hub.None{})
	if err != nil {
		h.t.Fatal(err)
	}
	tok, err := h.Enter(h.t.Context(), code.Code, "nonce", c.User)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.browser(tok)
}

func (h *house) browser(tok hub.TokenSecret) hub.Caller {
	h.t.Helper()
	c, err := h.Authenticate(h.t.Context(), hub.Credential{Token: tok.Secret, Surface: hub.SurfaceConsole})
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

func (h *house) passkeyOffer(c hub.Caller) hub.PasskeyRequest {
	h.t.Helper()
	q, err := h.OfferPasskey(h.t.Context(), c)
	if err != nil {
		h.t.Fatal(err)
	}
	return q
}

func made(q hub.PasskeyRequest, k *passkeytest.Key) hub.PasskeyMade {
	r := k.Register(q.Challenge)
	return hub.PasskeyMade{Challenge: q.Challenge, Name: "laptop", ID: r.ID, Key: r.Key, Data: r.Data, Client: r.Client}
}

// add gives a browser's member a passkey, and returns its handle, too.
func (h *house) add(c hub.Caller) (*passkeytest.Key, hub.Passkey, []byte) {
	h.t.Helper()
	q := h.passkeyOffer(c)
	k := passkeytest.New(h.t, consoleSite)
	p, err := h.AddPasskey(h.t.Context(), c, made(q, k))
	if err != nil {
		h.t.Fatal(err)
	}
	return k, p, q.User
}

func (h *house) challenge(nonce string) []byte {
	h.t.Helper()
	q, err := h.AskPasskey(nonce)
	if err != nil {
		h.t.Fatal(err)
	}
	return q.Challenge
}

func signed(challenge, user []byte, k *passkeytest.Key) hub.PasskeySignature {
	a := k.Sign(challenge)
	return hub.PasskeySignature{Challenge: challenge, ID: a.ID, Data: a.Data, Client: a.Client, Signature: a.Signature, User: user}
}

// TestPasskeyDoor: a passkey that a browser added lets others of its member in, also after a restart
// and in a stop, with a token as a code's, and the journal says by which.
func TestPasskeyDoor(t *testing.T) {
	h := porch(t)
	ctx := t.Context()
	first := h.enter(h.owner)
	q := h.passkeyOffer(first)
	if q.RP != "localhost" || q.Origin != consoleAt || q.Name != h.owner.User || len(q.User) != 32 || len(q.Known) != 0 || h.PasskeyOrigin() != consoleAt {
		t.Errorf("%+v", q)
	}
	k, p, user := h.add(first)
	if p.Principal != h.owner.User || p.Name != "laptop" || p.State != "active" {
		t.Errorf("%+v", p)
	}
	if q := h.passkeyOffer(first); len(q.Known) != 1 || !bytes.Equal(q.Known[0], k.ID) || !bytes.Equal(q.User, user) {
		t.Errorf("known %x, want %x", q.Known, k.ID)
	}
	for range 2 {
		tok, err := h.EnterByPasskey(ctx, "n", h.owner.User, signed(h.challenge("n"), user, k))
		if err != nil {
			t.Fatal(err)
		}
		if tok.Name != hub.ConsoleToken || tok.Principal != h.owner.User || time.Until(tok.Expires) > sessionTime || !slices.Equal(tok.Scopes, scopesOf(h.access.Permissions(holder(h.owner)))) {
			t.Errorf("%+v", tok.Token)
		}
		acts, err := hub.ListJournalEntries.Do(ctx, h, h.owner, hub.JournalQuery{Limit: 200})
		if err != nil {
			t.Fatal(err)
		}
		mint := acts.Items[len(acts.Items)-1]
		if mint.Act != "token.mint" || mint.Subject != tok.ID || !strings.Contains(string(mint.Statement), `"passkey":"`+p.ID+`"`) {
			t.Errorf("the journal ends with %s %s: %s", mint.Act, mint.Subject, mint.Statement)
		}
		if _, err := h.OfferPasskey(ctx, h.browser(tok)); fault.ReasonOf(err) != "permission_denied" {
			t.Errorf("a browser that came by a passkey adds one: %v", err)
		}
		h.stop()
		h.reopen(func(c *Config, _ *kernel.Config) { c.Console = func() string { return consoleAt } })
	}
	if _, err := h.EnterByPasskey(ctx, "n", "", signed(h.challenge("n"), user, k)); err != nil {
		t.Errorf("from another machine: %v", err)
	}
	if _, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.EnterByPasskey(ctx, "n", h.owner.User, signed(h.challenge("n"), user, k)); err != nil {
		t.Errorf("in a stop: %v", err)
	}
	if _, err := h.OfferPasskey(ctx, h.enter(h.owner)); fault.ReasonOf(err) != "stopped" {
		t.Errorf("a new one in a stop: %v", err)
	}
	list, err := hub.ListPasskeys.Do(ctx, h, h.owner, hub.None{})
	if err != nil || len(list.Items) != 1 || list.Items[0].LastUse == nil {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestPasskeyRefused: what a passkey signs is good once, for the browser that asked, on the
// console's page, by a person, and for its own user's connection.
func TestPasskeyRefused(t *testing.T) {
	h := porch(t)
	ctx := t.Context()
	other := h.member(4002, access.Operator)
	k, _, user := h.add(h.enter(h.owner))
	foreign, _, theirs := h.add(h.enter(other))
	removed, gone, _ := h.add(h.enter(other))
	if _, err := hub.RevokePasskey.Do(ctx, h, other, gone.ID); err != nil {
		t.Fatal(err)
	}
	early := h.challenge("n")
	late := signed(early, user, k)
	if _, err := h.EnterByPasskey(ctx, "n", h.owner.User, late); err != nil {
		t.Fatalf("control: %v", err)
	}
	with := func(change func(*passkeytest.Key)) func([]byte) hub.PasskeySignature {
		return func(c []byte) hub.PasskeySignature {
			o := *k
			change(&o)
			return signed(c, user, &o)
		}
	}
	for what, x := range map[string]struct {
		sign func(challenge []byte) hub.PasskeySignature
		why  string
	}{
		"sent again":                  {func([]byte) hub.PasskeySignature { return late }, "used"},
		"another browser's challenge": {func([]byte) hub.PasskeySignature { return signed(h.challenge("m"), user, k) }, "something else"},
		"a challenge to add one":      {func([]byte) hub.PasskeySignature { return signed(h.passkeyOffer(h.enter(h.owner)).Challenge, user, k) }, "something else"},
		"a challenge of its own":      {func([]byte) hub.PasskeySignature { return signed([]byte("mine"), user, k) }, "something else"},
		"another challenge than signed": {func(c []byte) hub.PasskeySignature {
			s := signed(c, user, k)
			s.Challenge = h.challenge("n")
			return s
		}, "another challenge"},
		"another origin":       {with(func(k *passkeytest.Key) { k.Site.Origin = "http://localhost:7143" }), "origin"},
		"another host":         {with(func(k *passkeytest.Key) { k.Site.RP = "evil.example" }), "another host"},
		"no one verified":      {with(func(k *passkeytest.Key) { k.Flags = 1 << 0 }), "didn't verify"},
		"another key":          {with(func(k *passkeytest.Key) { k.Private = foreign.Private }), "isn't the passkey's"},
		"none that is known":   {with(func(k *passkeytest.Key) { k.ID = []byte("unknown") }), "isn't known"},
		"one that was revoked": {func(c []byte) hub.PasskeySignature { return signed(c, theirs, removed) }, "isn't known"},
		"another user's":       {func(c []byte) hub.PasskeySignature { return signed(c, theirs, foreign) }, "isn't this user's"},
		"another handle":       {func(c []byte) hub.PasskeySignature { return signed(c, theirs, k) }, "another palyrad"},
		"no handle":            {func(c []byte) hub.PasskeySignature { return signed(c, nil, k) }, "another palyrad"},
	} {
		_, err := h.EnterByPasskey(ctx, "n", h.owner.User, x.sign(h.challenge("n")))
		if fault.ReasonOf(err) != "unauthenticated" || !strings.Contains(err.Error(), x.why) {
			t.Errorf("%s: %v, want unauthenticated with %q", what, err, x.why)
		}
	}
	if _, err := h.EnterByPasskey(ctx, "n", h.owner.User, signed(h.challenge("n"), user, k)); err != nil {
		t.Errorf("after all that: %v", err)
	}
	if _, err := h.EnterByPasskey(ctx, "n", other.User, signed(h.challenge("n"), theirs, foreign)); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.RemoveMember.Do(ctx, h, h.owner, hub.MemberRemoval{Principal: other.User}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.EnterByPasskey(ctx, "n", other.User, signed(h.challenge("n"), theirs, foreign)); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a passkey of a former member: %v", err)
	}
}

// TestPasskeyCount: a count that goes back halts the passkey for good, and a form that is sent again
// doesn't.
func TestPasskeyCount(t *testing.T) {
	h := porch(t)
	ctx := t.Context()
	k, p, user := h.add(h.enter(h.owner))
	k.Count = 7
	state := func() string {
		t.Helper()
		list, err := hub.ListPasskeys.Do(ctx, h, h.owner, hub.None{})
		if err != nil || len(list.Items) != 1 || list.Items[0].ID != p.ID {
			t.Fatalf("%+v, %v", list, err)
		}
		return list.Items[0].State
	}
	s := signed(h.challenge("n"), user, k)
	if _, err := h.EnterByPasskey(ctx, "n", "", s); err != nil {
		t.Fatal(err)
	}
	if _, err := h.EnterByPasskey(ctx, "n", "", s); err == nil || state() != "active" {
		t.Errorf("sent again: %v, %s", err, state())
	}
	copied := *k
	copied.Count = 7
	if _, err := h.EnterByPasskey(ctx, "n", "", signed(h.challenge("n"), user, &copied)); fault.ReasonOf(err) != "unauthenticated" || !strings.Contains(err.Error(), "copy") || state() != "halted" {
		t.Errorf("the copy: %v, %s", err, state())
	}
	h.stop()
	h.reopen(func(c *Config, _ *kernel.Config) { c.Console = func() string { return consoleAt } })
	if _, err := h.EnterByPasskey(ctx, "n", "", signed(h.challenge("n"), user, k)); fault.ReasonOf(err) != "unauthenticated" || state() != "halted" {
		t.Errorf("the first, afterwards: %v, %s", err, state())
	}
}

// TestPasskeyAdded: only a browser with a fresh code adds a passkey, once for a challenge, of a key
// that its page made.
func TestPasskeyAdded(t *testing.T) {
	at := consoleAt
	h := newHouse(t, func(c *Config, _ *kernel.Config) { c.Console = func() string { return at } })
	ctx := t.Context()
	b := h.enter(h.owner)
	q := h.passkeyOffer(b)
	k := passkeytest.New(t, consoleSite)
	good := made(q, k)
	second := h.enter(h.owner)
	refused := func(what, reason string, c hub.Caller, m hub.PasskeyMade) {
		t.Helper()
		if _, err := h.AddPasskey(ctx, c, m); fault.ReasonOf(err) != reason {
			t.Errorf("%s: %v, want %s", what, err, reason)
		}
	}
	refused("another browser's challenge", "invalid_input", second, good)
	refused("a challenge to enter", "invalid_input", b, made(hub.PasskeyRequest{Challenge: h.challenge("n")}, passkeytest.New(t, consoleSite)))
	unverified := passkeytest.New(t, consoleSite)
	unverified.Flags = 1 << 0
	refused("no one verified", "invalid_input", b, made(h.passkeyOffer(b), unverified))
	refused("another origin", "invalid_input", b, made(h.passkeyOffer(b), passkeytest.New(t, passkey.Site{RP: "localhost", Origin: "http://localhost:1"})))
	hidden := made(h.passkeyOffer(b), passkeytest.New(t, consoleSite))
	hidden.Name = "a\u202eb"
	refused("a name that hides", "invalid_input", b, hidden)
	refused("the socket", "permission_denied", h.owner, good)
	if _, err := h.AddPasskey(ctx, b, good); err != nil {
		t.Fatal(err)
	}
	refused("the challenge again", "invalid_input", b, made(q, passkeytest.New(t, consoleSite)))
	refused("the passkey again", "exists", b, made(h.passkeyOffer(b), k))
	for range access.MaxPasskeys - 1 {
		h.add(b)
	}
	refused("one more", "quota", b, made(h.passkeyOffer(b), passkeytest.New(t, consoleSite)))
	waiting := made(h.passkeyOffer(b), passkeytest.New(t, consoleSite))
	h.passkeys.mu.Lock()
	h.passkeys.fresh[b.Token] = time.Now().Add(-freshTime - time.Second)
	h.passkeys.mu.Unlock()
	refused("after five minutes", "permission_denied", b, waiting)
	if _, err := h.OfferPasskey(ctx, b); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("an offer after five minutes: %v", err)
	}
	if h.enter(h.owner); h.passkeys.isFresh(b.Token) || len(h.passkeys.fresh) != 2 {
		t.Errorf("%d browsers are fresh", len(h.passkeys.fresh))
	}
	at = "https://192.0.2.1:7142"
	if _, err := h.OfferPasskey(ctx, second); fault.ReasonOf(err) != "platform_unsupported" || h.PasskeyOrigin() != "" {
		t.Errorf("at an IP address: %v", err)
	}
	if _, err := h.AskPasskey("n"); fault.ReasonOf(err) != "platform_unsupported" {
		t.Errorf("a challenge at an IP address: %v", err)
	}
}

// TestRevokePasskey: a revoked passkey takes its member's browsers along but for the one that asks,
// and is no one else's to revoke.
func TestRevokePasskey(t *testing.T) {
	h := porch(t)
	ctx := t.Context()
	other := h.member(4003, access.Operator)
	mine := h.enter(h.owner)
	k, p, user := h.add(mine)
	tok, err := h.EnterByPasskey(ctx, "n", "", signed(h.challenge("n"), user, k))
	if err != nil {
		t.Fatal(err)
	}
	theirs := h.enter(other)
	if _, err := hub.RevokePasskey.Do(ctx, h, theirs, p.ID); fault.ReasonOf(err) != "not_found" {
		t.Errorf("another member: %v", err)
	}
	if list, err := hub.ListPasskeys.Do(ctx, h, theirs, hub.None{}); err != nil || len(list.Items) != 0 {
		t.Errorf("another member sees %+v, %v", list.Items, err)
	}
	got, err := hub.RevokePasskey.Do(ctx, h, mine, p.ID)
	if err != nil || got.State != "revoked" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := h.Authenticate(ctx, hub.Credential{Token: tok.Secret, Surface: hub.SurfaceConsole}); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("the browser that came in by it: %v", err)
	}
	for _, c := range []hub.Caller{mine, theirs} {
		if _, err := hub.ListPasskeys.Do(ctx, h, c, hub.None{}); err != nil {
			t.Errorf("a browser that may stay: %v", err)
		}
	}
	if _, err := hub.RevokePasskey.Do(ctx, h, mine, p.ID); fault.ReasonOf(err) != "not_found" {
		t.Errorf("twice: %v", err)
	}
	if _, err := h.EnterByPasskey(ctx, "n", "", signed(h.challenge("n"), user, k)); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a revoked passkey: %v", err)
	}
}

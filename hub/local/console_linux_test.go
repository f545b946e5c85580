package local

import (
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestDoor: a code lets in the first browser that comes with it, once, for a minute, as a member whom
// the kernel named, also while a stop refuses new runs.
func TestDoor(t *testing.T) {
	h := newHouse(t, func(c *Config, _ *kernel.Config) { c.Console = func() string { return "http://localhost:7142" } })
	ctx := t.Context()
	open := func(c hub.Caller) hub.ConsoleCode {
		t.Helper()
		code, err := hub.OpenConsole.Do(ctx, h, c, hub.None{})
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	refused := func(what string, err error) {
		t.Helper()
		if fault.ReasonOf(err) != "unauthenticated" {
			t.Errorf("%s: %v", what, err)
		}
	}
	api, err := hub.CreateToken.Do(ctx, h, h.owner, hub.NewToken{Name: "api", Scopes: []string{"run.start"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.CreateToken.Do(ctx, h, h.owner, hub.NewToken{Name: hub.ConsoleToken, Scopes: []string{"run.start"}, TTL: time.Hour}); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("a token of the name of browsers': %v", err)
	}
	code := open(h.owner)
	if code.URL != "http://localhost:7142/enter?code="+code.Code || len(code.Code) < 26 {
		t.Errorf("%+v", code)
	}
	refused("a made-up code", h.Knock(strings.Repeat("A", 26), "n", h.owner.User))
	refused("no nonce", h.Knock(code.Code, "", h.owner.User))
	refused("another user, who saw the code", h.Knock(code.Code, "theirs", "uid:4711"))
	_, err = h.Enter(ctx, code.Code, "theirs", "uid:4711")
	refused("another user enters", err)
	if err := h.Knock(code.Code, "mine", h.owner.User); err != nil {
		t.Fatal(err)
	}
	refused("another browser", h.Knock(code.Code, "other", h.owner.User))
	_, err = h.Enter(ctx, code.Code, "other", "")
	refused("another browser enters", err)
	if _, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Fatal(err)
	}
	tok, err := h.Enter(ctx, code.Code, "mine", "")
	if err != nil {
		t.Fatal(err)
	}
	if tok.Name != hub.ConsoleToken || tok.Principal != h.owner.User || time.Until(tok.Expires) > sessionTime || !slices.Equal(tok.Scopes, scopesOf(h.access.Permissions(holder(h.owner)))) {
		t.Errorf("%+v", tok.Token)
	}
	_, err = h.Enter(ctx, code.Code, "mine", "")
	refused("a second time", err)
	for surface, good := range map[string]bool{hub.SurfaceConsole: true, surfaceHTTP: false, surfaceUnix: false} { // whoever got the cookie
		if _, err := h.Authenticate(ctx, hub.Credential{Token: tok.Secret, Surface: surface}); (err == nil) != good {
			t.Errorf("a browser's token at %s: %v", surface, err)
		}
	}
	_, err = h.Authenticate(ctx, hub.Credential{Token: api.Secret, Surface: hub.SurfaceConsole})
	refused("an API token in a cookie", err)

	first := open(h.owner)
	open(h.owner)
	refused("a code before the newest", h.Knock(first.Code, "n", h.owner.User))
	late := open(h.owner)
	for _, o := range h.doors.codes {
		o.until = time.Now().Add(-time.Second)
	}
	refused("after a minute", h.Knock(late.Code, "n", h.owner.User))
	if open(h.owner); len(h.doors.codes) != 1 {
		t.Errorf("%d codes of one member", len(h.doors.codes))
	}

	with := h.owner
	with.Token, with.Surface = tok.ID, surfaceToken
	web := h.owner
	web.Surface = surfaceHTTP
	for what, c := range map[string]hub.Caller{"a token": with, "not the socket": web} {
		if _, err := hub.OpenConsole.Do(ctx, h, c, hub.None{}); fault.ReasonOf(err) != "permission_denied" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestDoorCloses: who isn't a member any more doesn't get in with a code of before, and without a
// console there is none.
func TestDoorCloses(t *testing.T) {
	at := "http://localhost:7142"
	h := newHouse(t, func(c *Config, _ *kernel.Config) { c.Console = func() string { return at } })
	ctx := t.Context()
	uid := uint32(4001)
	if _, err := hub.PutMember.Do(ctx, h, h.owner, hub.MemberPut{Principal: peer(uid), MemberChange: hub.MemberChange{Role: "operator"}}); err != nil {
		t.Fatal(err)
	}
	c, err := h.Authenticate(ctx, hub.Credential{PeerUID: &uid, Surface: surfaceUnix})
	if err != nil {
		t.Fatal(err)
	}
	code, err := hub.OpenConsole.Do(ctx, h, c, hub.None{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.RemoveMember.Do(ctx, h, h.owner, hub.MemberRemoval{Principal: c.User}); err != nil {
		t.Fatal(err)
	}
	if tok, err := h.Enter(ctx, code.Code, "n", ""); fault.KindOf(err) != fault.Denied {
		t.Errorf("%+v, %v", tok.Token, err)
	}
	at = ""
	if _, err := hub.OpenConsole.Do(ctx, h, h.owner, hub.None{}); fault.ReasonOf(err) != "feature_off" {
		t.Errorf("without a console: %v", err)
	}
}

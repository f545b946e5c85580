package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/hub/gateway"
	"palyra/hub/local"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/kernel"
)

// routesPage is printed from the table, with the tests below.
const routesPage = "../../docs/ROUTES.md"

// office is the real hub without anything that could run a call.
func office(t *testing.T, change ...func(*local.Config)) *local.Hub {
	t.Helper()
	base := t.TempDir()
	k, err := kernel.Open(t.Context(), kernel.Config{StateDir: filepath.Join(base, "state")})
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(base, "store"), store.Options{})
	if err != nil {
		t.Fatal(errors.Join(err, k.Close()))
	}
	cfg := local.Config{Kernel: k, Store: st, Gateway: gateway.New(gateway.Config{Store: st})}
	for _, c := range change {
		c(&cfg)
	}
	h, err := local.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(errors.Join(err, st.Close(), k.Close()))
	}
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		if err := errors.Join(h.Close(now), st.Close(), k.Close()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// callerOf returns a caller that comes through the socket.
func callerOf(t *testing.T, h *local.Hub, uid uint32) hub.Caller {
	t.Helper()
	c, err := h.Authenticate(t.Context(), hub.Credential{PeerUID: &uid, Surface: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tokenOf mints a token with these scopes for a principal.
func tokenOf(t *testing.T, h *local.Hub, c hub.Caller, scopes []string) hub.TokenSecret {
	t.Helper()
	s, err := hub.CreateToken.Do(t.Context(), h, c, hub.NewToken{Name: "t", Scopes: scopes, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// roles are those that there are, the least first.
var roles = []string{"operator", "admin", "owner"}

// held returns what a member holds: what they can put into a token.
func held(t *testing.T, h *local.Hub, c hub.Caller) (out []string) {
	t.Helper()
	for _, p := range append([]string{"trust.operate", "workspace.manage"}, permissions...) {
		_, err := hub.CreateToken.Do(t.Context(), h, c, hub.NewToken{Name: "t", Scopes: []string{p}, TTL: time.Hour})
		switch {
		case err == nil:
			out = append(out, p)
		case fault.ReasonOf(err) != "permission_denied":
			t.Fatalf("%s: %v", p, err)
		}
	}
	return out
}

// member makes a user of this machine a member.
func member(t *testing.T, h *local.Hub, uid uint32, role string) hub.Caller {
	t.Helper()
	c := callerOf(t, h, uid)
	if _, err := hub.PutMember.Do(t.Context(), h, callerOf(t, h, uint32(os.Geteuid())), hub.MemberPut{Principal: c.User, MemberChange: hub.MemberChange{Role: role}}); err != nil {
		t.Fatal(err)
	}
	return c
}

// forDevices reports whether an empty request of anyone but a device is refused as such.
func forDevices(rt *route) bool {
	return rt.Operation == hub.WatchJournal.Operation || rt.Operation == hub.CosignJournal.Operation
}

// TestRoutes asks for every route as every role, through a token with all that the role
// holds; without the route's permission, with everything else; and as a former member. A
// caller that may ask gets past the door, whatever the hub then says of an empty request.
// One that may not is told which permission is missing, and nothing else.
func TestRoutes(t *testing.T) {
	h := office(t)
	r := newRig(t, func(c *Config) {
		c.Hub, c.Check, c.Denied, c.Limits.Rate = h, h.MayFollow, h.Remember, -1
	})
	r.failures = newBuckets(-1, 0) // all come from one address, and many are refused
	root := callerOf(t, h, uint32(os.Geteuid()))
	ask := func(rt *route, token string) answer {
		body := ""
		if rt.in.BodyType != nil {
			body = "{}"
		}
		if rt.ID == "stop" {
			body = `{"all":false,"deny_new":false}`
		}
		return r.sendTCP(rt.Method, fillPath(rt.Full()), body, "Authorization: Bearer "+token)
	}
	for i, role := range roles {
		c := member(t, h, uint32(2001+i), role)
		holds := held(t, h, c)
		token := tokenOf(t, h, c, holds).Secret
		for _, rt := range table() {
			t.Run(role+"/"+rt.ID, func(t *testing.T) {
				r.t = t
				a := ask(&rt, token)
				if forDevices(&rt) || rt.Operation == hub.OpenConsole.Operation && slices.Contains(holds, rt.Permission) { // the latter is for the socket
					r.refused(a, 403, "permission_denied")
					return
				}
				may := rt.Permission == hub.Public || rt.Permission == hub.Authenticated || slices.Contains(holds, rt.Permission)
				if may && (a.status == 401 || a.status == 403) {
					t.Errorf("%s holds %s and gets %d: %s", role, rt.Permission, a.status, a.body)
				}
				if !may {
					if p := r.refused(a, 403, "scope_missing"); p.Permission != rt.Permission || p.Layer != hub.LayerAccess {
						t.Errorf("refused with %+v", p)
					}
				}
			})
		}
	}
	gone := member(t, h, 2009, "operator")
	former := tokenOf(t, h, gone, held(t, h, gone)).Secret
	if _, err := hub.RemoveMember.Do(t.Context(), h, root, hub.MemberRemoval{Principal: gone.User, Version: 0}); err != nil {
		t.Fatal(err)
	}
	owner := member(t, h, 2010, "owner")
	everything := held(t, h, owner)
	for _, rt := range table() {
		t.Run("without/"+rt.ID, func(t *testing.T) {
			r.t = t
			rest := slices.DeleteFunc(slices.Clone(everything), func(p string) bool { return p == rt.Permission })
			a := ask(&rt, tokenOf(t, h, owner, rest).Secret)
			if forDevices(&rt) {
				r.refused(a, 403, "permission_denied")
				return
			}
			switch rt.Permission {
			case hub.Public, hub.Authenticated:
				if a.status == 401 || a.status == 403 {
					t.Errorf("status %d", a.status)
				}
			default:
				p := r.refused(a, 403, "scope_missing")
				if p.Permission != rt.Permission {
					t.Errorf("refused with %+v", p)
				}
				// The operator can ask why, by the id that the caller was given.
				if why, err := hub.GetDecision.Do(t.Context(), h, root, p.Decision); err != nil || why.Permission != rt.Permission || why.Layer != hub.LayerAccess ||
					why.Reason != "scope_missing" || why.Principal != owner.User || len(why.Policies) != 1 {
					t.Errorf("why: %+v, %v", why, err)
				}
			}
			if rt.Permission != hub.Public {
				r.refused(ask(&rt, former), 401, "unauthenticated")
				r.refused(r.sendTCP(rt.Method, fillPath(rt.Full()), ""), 401, "unauthenticated")
			}
		})
	}
	r.t = t
}

// TestRoutesPage holds docs/ROUTES.md to the table.
func TestRoutesPage(t *testing.T) {
	h := office(t)
	holds := map[string][]string{}
	for i, role := range roles {
		holds[role] = held(t, h, member(t, h, uint32(2001+i), role))
	}
	var b strings.Builder
	b.WriteString("# Routes\n\nEvery route of the HTTP API by its permission, with the least role that holds it, printed by\n" +
		"`go test ./transport/httpapi -run TestRoutesPage -update`. `TestRoutes/ROLE/OPERATION` gets in, and\n" +
		"`TestRoutes/without/OPERATION` is kept out where the route isn't public. The hub asks for the same\n" +
		"permission again (`TestPermissions` in hub/local).\n")
	var permissions []string
	routes := map[string][]string{}
	for _, rt := range table() {
		if routes[rt.Permission] == nil {
			permissions = append(permissions, rt.Permission)
		}
		routes[rt.Permission] = append(routes[rt.Permission], fmt.Sprintf("- `%s %s` %s\n", rt.Method, rt.Full(), rt.ID))
	}
	for _, p := range permissions {
		least := ""
		if p != hub.Public && p != hub.Authenticated {
			least = ", " + roles[slices.IndexFunc(roles, func(r string) bool { return slices.Contains(holds[r], p) })]
		}
		fmt.Fprintf(&b, "\n`%s`%s:\n\n%s", p, least, strings.Join(routes[p], ""))
	}
	if *update {
		if err := os.WriteFile(routesPage, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(routesPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is stale: go test ./transport/httpapi -run TestRoutesPage -update", routesPage)
	}
}

// TestRevokedTokenCutsTapes: whoever loses a right, on whatever surface it was
// taken, reads no further; whoever does not reads on.
func TestRevokedTokenCutsTapes(t *testing.T) {
	t.Parallel() // it waits for a token to expire
	h, _ := newHouse(t)
	r := newRig(t, func(c *Config) { c.Hub, c.Check = h, h.MayFollow })
	ctx := t.Context()
	root := callerOf(t, h, uint32(os.Geteuid()))
	read := []string{"session.read"}
	s, err := hub.CreateSession.Do(ctx, h, root, hub.NewSession{})
	if err != nil {
		t.Fatal(err)
	}
	run, err := hub.StartRun.Do(ctx, h, root, hub.NewRun{Session: s.ID, Steps: []hub.Step{{Tool: "palyra.sleep", Input: []byte(`{"ms":60000}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	path := run.ID + "/tape"
	for name, take := range map[string]func(tok hub.TokenSecret) error{
		"revoked": func(tok hub.TokenSecret) error {
			_, err := hub.RevokeToken.Do(ctx, h, root, hub.TokenChange{ID: tok.ID, Version: 0})
			return err
		},
		"rotated": func(tok hub.TokenSecret) error {
			_, err := hub.RotateToken.Do(ctx, h, root, hub.Rotation{ID: tok.ID})
			return err
		},
		"expiring": func(hub.TokenSecret) error { return nil },
	} {
		n := hub.NewToken{Name: name, Scopes: read, TTL: time.Hour}
		if name == "expiring" {
			n.TTL = 2 * time.Second
		}
		other := tokenOf(t, h, root, read)
		var tok hub.TokenSecret
		var resp *http.Response
		for again := true; again; again = resp.StatusCode != 200 && time.Now().After(tok.Expires) { // before it came in
			var err error
			if tok, err = hub.CreateToken.Do(ctx, h, root, n); err != nil {
				t.Fatal(err)
			}
			_, resp = r.follow(path, hub.MediaSSE, "Authorization: Bearer "+tok.Secret)
		}
		_, stays := r.follow(path, hub.MediaSSE, "Authorization: Bearer "+other.Secret)
		if resp.StatusCode != 200 || stays.StatusCode != 200 {
			t.Fatalf("status %d and %d", resp.StatusCode, stays.StatusCode)
		}
		if err := take(tok); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, _, err := events(t, resp.Body, true, -1); err == nil || err == io.EOF {
			// EOF is a tape's own end.
			t.Errorf("%s: the tape ended with %v", name, err)
		}
		t.Logf("%s: cut after %v", name, time.Since(start))
		// The other one still sees what comes.
		if evs, _, err := events(t, stays.Body, true, 1); err != nil || len(evs) != 1 {
			t.Errorf("%s: the other reader: %v", name, err)
		}
		_, again := r.follow(path, hub.MediaSSE, "Authorization: Bearer "+tok.Secret)
		if again.StatusCode != 401 {
			t.Errorf("%s: the token opens a tape again: %d", name, again.StatusCode)
		}
	}
	if _, err := hub.CancelRun.Do(ctx, h, root, run.ID); err != nil {
		t.Error(err)
	}
}

// TestClaims: nothing but the credential says who asks; what else claims so is
// refused or means nothing.
func TestClaims(t *testing.T) {
	h := office(t)
	r := newRig(t, func(c *Config) { c.Hub = h })
	c := member(t, h, 2001, "operator")
	tok := tokenOf(t, h, c, held(t, h, c)).Secret
	auth := "Authorization: Bearer " + tok
	who := func(headers ...string) hub.Caller {
		t.Helper()
		var s hub.Status
		a := r.want(r.sendTCP(get, "/api/v1/status", "", append(headers, auth)...), 200)
		a.into(t, &s)
		return s.Caller
	}
	plain := who()
	if plain.User != c.User || plain.Role != "operator" {
		t.Fatalf("%+v", plain)
	}
	for _, claim := range []string{"X-Forwarded-User: uid:0", "X-Remote-User: uid:0", "Palyra-User: uid:0", "Palyra-Principal: uid:0", "X-Real-IP: 127.0.0.1",
		"X-Forwarded-For: 10.0.0.1", "Forwarded: for=10.0.0.1;by=uid:0", "Cookie: session=uid:0; palyra_user=uid:0; token=palyra_x", "X-Original-URL: /api/v1/members",
		"X-HTTP-Method-Override: DELETE", "From: root@localhost"} {
		if got := who(claim); got.User != plain.User || got.Role != plain.Role || !slices.Equal(got.Scopes, plain.Scopes) || got.Address != plain.Address {
			t.Errorf("%s: the caller is %+v", claim, got)
		}
	}
	// Two credentials are none; so is one in the URL or in a cookie alone.
	r.refused(r.sendTCP(get, "/api/v1/status", "", auth, auth), 401, "unauthenticated")
	r.refused(r.sendTCP(get, "/api/v1/status", "", "Cookie: Authorization=Bearer "+tok), 401, "unauthenticated")
	r.refused(r.sendTCP(get, "/api/v1/status?token="+tok, "", auth), 400, "invalid_input")
	r.refused(r.sendTCP(get, "/api/v1/status?access_token="+tok, ""), 401, "unauthenticated")
	// Bodies: a principal that is not the caller's, and members that are not there.
	for _, body := range []string{`{"title":"x","principal":"uid:0"}`, `{"title":"x","user":"uid:0"}`, `{"title":"x","caller":{"user":"uid:0"}}`, `{"title":"x","TITLE":"y"}`} {
		if a := r.sendTCP(post, "/api/v1/sessions", body, auth, r.key()); a.status != 400 {
			t.Errorf("%s: %d", body, a.status)
		}
	}
	r.refused(r.sendTCP(post, "/api/v1/tokens", `{"name":"x","principal":"uid:0","scopes":["session.read"],"ttl_ns":3600000000000}`, auth, r.key()), 403, "permission_denied")
	r.refused(r.sendTCP(http.MethodPut, "/api/v1/members/"+c.User, `{"role":"owner"}`, auth, `If-Match: "v2"`), 403, "scope_missing")
}

// TestGuessing: guessing locks out no one. A good token is looked at however many wrong
// ones came from the same address, even if it is used for the first time, as all are after
// a restart. A guesser is soon told that there are too many.
func TestGuessing(t *testing.T) {
	h := office(t)
	r := newRig(t, func(c *Config) { c.Hub, c.Limits.Rate = h, -1 })
	root := callerOf(t, h, uint32(os.Geteuid()))
	late := tokenOf(t, h, root, []string{"config.read"})
	for name, send := range map[string]func(method, path, body string, headers ...string) answer{"tcp": r.sendTCP, "unix": r.send} {
		count := map[int]int{}
		for i := range 200 {
			b := []byte(late.Secret)
			if c := &b[len("palyra_")+40+i%10]; *c == 'a' {
				*c = 'b'
			} else {
				*c = 'a'
			}
			a := send(get, "/api/v1/status", "", "Authorization: Bearer "+string(b))
			if count[a.status]++; !a.closed {
				t.Fatalf("%s: the connection of a guess stays", name)
			}
			if i%20 == 19 { // never used before
				fresh := tokenOf(t, h, root, []string{"config.read"})
				r.want(send(get, "/api/v1/status", "", "Authorization: Bearer "+fresh.Secret), 200)
			}
		}
		// The burst, and one a second.
		if count[401] < failureBurst/2 || count[401] > 150 || count[429] < 50 || count[200] > 0 {
			t.Errorf("%s: answers %v", name, count)
		}
		r.want(send(get, "/api/v1/status", "", "Authorization: Bearer "+late.Secret), 200)
	}
}

// TestRatesOfTokens: many tokens have the rate of one.
func TestRatesOfTokens(t *testing.T) {
	h := office(t)
	r := newRig(t, func(c *Config) { c.Hub, c.Limits.Rate, c.Limits.Burst = h, 0.001, 6 })
	root := callerOf(t, h, uint32(os.Geteuid()))
	good := 0
	for range 6 {
		tok := tokenOf(t, h, root, []string{"config.read"}).Secret
		for range 6 {
			if r.sendTCP(get, "/api/v1/status", "", "Authorization: Bearer "+tok).status == 200 {
				good++
			}
		}
	}
	if good != 6 {
		t.Errorf("six tokens: %d requests, want 6", good)
	}
	// The principal itself isn't kept out by its tokens.
	r.want(r.send(get, "/api/v1/status", ""), 200)
}

// TestQuotaKeepsNoKey: a request that a quota refuses leaves no idempotency key
// behind, and can be repeated.
func TestQuotaKeepsNoKey(t *testing.T) {
	h := office(t, func(c *local.Config) { c.TokensEach = 1 })
	keys := NewMemoryKeys()
	r := newRig(t, func(c *Config) { c.Hub, c.Keys = h, keys })
	const body = `{"name":"x","scopes":["config.read"],"ttl_ns":3600000000000}`
	r.want(r.send(post, "/api/v1/tokens", body, "Idempotency-Key: one"), 201)
	for range 2 {
		a := r.send(post, "/api/v1/tokens", body, "Idempotency-Key: two")
		if p := r.refused(a, 429, "quota"); p.Hint == "" || a.header.Get("Retry-After") == "" {
			t.Errorf("%+v", p)
		}
	}
	if len(keys.m) != 1 {
		t.Errorf("%d keys are kept", len(keys.m))
	}
}

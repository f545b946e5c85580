package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"sync"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
)

// A browser gets into the console by a code that its user asked for at the unix socket, where the
// kernel says who that is. It has a token afterwards, as any client: it's listed, expires, can be
// revoked, and ends with the member.

const (
	codeTime    = time.Minute
	sessionTime = 12 * time.Hour // of a browser's token
)

// doors are the codes that wait for their browser, one for each member at most. They end with the
// process.
type doors struct {
	mu    sync.Mutex
	codes map[[32]byte]*door // by the code's hash; guarded by mu
}

type door struct {
	caller  hub.Caller
	until   time.Time
	browser []byte // hash of the nonce of the browser that came with it; nil: none has
}

// openConsole makes a code for the caller, and ends the one that it had.
func (h *Hub) openConsole(_ context.Context, c hub.Caller, _ hub.None) (hub.ConsoleCode, error) {
	if c.Token != "" || c.Surface != surfaceUnix {
		return hub.ConsoleCode{}, fault.New(fault.Denied, "permission_denied", "open console", errors.New("a code is for callers at the unix socket")).
			WithHint("palyra console open, without a token, on the machine of palyrad")
	}
	at := h.cfg.Console()
	if at == "" {
		return hub.ConsoleCode{}, h.refuse(c, "feature_off", "open console", "features.console = true and listen.http in palyrad.toml turn it on, where palyrad shares the host's network",
			hub.Denial{Layer: hub.LayerAccess, Reason: "feature_off", Policies: []string{"feature:" + string(access.Console)}})
	}
	now := time.Now()
	code := hub.ConsoleCode{Code: rand.Text(), Expires: now.Add(codeTime).UTC()}
	code.URL = at + "/enter?code=" + code.Code
	d := &h.doors
	d.mu.Lock()
	defer d.mu.Unlock()
	for sum, o := range d.codes {
		if o.caller.User == c.User || now.After(o.until) {
			delete(d.codes, sum)
		}
	}
	if d.codes == nil {
		d.codes = make(map[[32]byte]*door)
	}
	d.codes[sha256.Sum256([]byte(code.Code))] = &door{caller: c, until: code.Expires}
	return code, nil
}

// findLocked returns the door of a code, if the browser with nonce was the first with it.
func (d *doors) findLocked(code, nonce, user string) (*door, [32]byte, error) {
	sum, browser := sha256.Sum256([]byte(code)), sha256.Sum256([]byte(nonce))
	o := d.codes[sum]
	switch {
	case o == nil || time.Now().After(o.until) || nonce == "":
	case user != "" && user != o.caller.User: // who has seen the address, as in a list of processes
	case o.browser == nil:
		o.browser = browser[:]
		return o, sum, nil
	case subtle.ConstantTimeCompare(o.browser, browser[:]) == 1:
		return o, sum, nil
	}
	return nil, sum, fault.New(fault.Denied, "unauthenticated", "enter console", errors.New("the code isn't good: it lasts a minute, and for one browser")).
		WithHint("palyra console open makes another")
}

// Knock implements hub.Door.
func (h *Hub) Knock(code, nonce, user string) error {
	h.doors.mu.Lock()
	defer h.doors.mu.Unlock()
	_, _, err := h.doors.findLocked(code, nonce, user)
	return err
}

// Enter implements hub.Door. The token has no rights beyond its owner's at the socket, so an
// emergency stop doesn't refuse it: whoever looks into one may need the console.
func (h *Hub) Enter(ctx context.Context, code, nonce, user string) (hub.TokenSecret, error) {
	h.doors.mu.Lock()
	o, sum, err := h.doors.findLocked(code, nonce, user)
	if err == nil {
		delete(h.doors.codes, sum)
	}
	h.doors.mu.Unlock()
	if err != nil {
		return hub.TokenSecret{}, err
	}
	t, err := h.admit(ctx, o.caller, "")
	if err == nil {
		h.passkeys.came(t.ID)
	}
	return t, err
}

// admit makes the token of a browser that came by a code, or by a passkey. Its member may have lost
// the right to it since.
func (h *Hub) admit(ctx context.Context, c hub.Caller, passkey string) (hub.TokenSecret, error) {
	if err := h.ask(c, hub.OpenConsole.Operation); err != nil {
		return hub.TokenSecret{}, err
	}
	scopes := scopesOf(h.access.Permissions(holder(c)))
	return h.mint(ctx, c, hub.NewToken{Name: hub.ConsoleToken, Scopes: scopes, TTL: min(sessionTime, h.longestToken())}, passkey)
}

func (h *Hub) longestToken() time.Duration {
	if h.cfg.TokenMaxAge > 0 {
		return h.cfg.TokenMaxAge
	}
	return sessionTime
}

var _ hub.Door = (*Hub)(nil)

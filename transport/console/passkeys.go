package console

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/behind"
)

// stranger is what a page for a browser that isn't let in gets.
type stranger struct {
	Detail string
	Origin string              // of the pages on which passkeys work; "": none do
	Ask    *hub.PasskeyRequest // at the door alone: its challenge is for the browser with a nonce
}

func (c *Console) stranger(detail string) stranger {
	return stranger{Detail: detail, Origin: c.cfg.Door.PasskeyOrigin()}
}

// askTime is how long the browser that asked for a challenge is known.
const askTime = 2 * time.Minute

// signIn shows the page with a challenge to sign. The script of a page for strangers gets it.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	s := c.stranger("")
	if s.Origin != "" {
		nonce := nonceOf(r, v)
		if nonce == "" {
			nonce = rand.Text()
		}
		q, err := c.cfg.Door.AskPasskey(nonce)
		if err != nil {
			return err
		}
		s.Ask = &q
		http.SetCookie(w, cookie(v.Cookie+"-enter", nonce, askTime))
	}
	return c.show(w, nil, http.StatusOK, "stranger", view{Title: "Enter the console", Data: s})
}

// field returns the bytes in a field of a passkey's form.
func field(f url.Values, name string) ([]byte, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(f.Get(name))
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", "read form", errors.New(name+": want base64url without padding"))
	}
	return b, nil
}

// fields reads several into where they go.
func fields(f url.Values, into map[string]*[]byte) error {
	var all []error
	for name, to := range into {
		b, err := field(f, name)
		*to = b
		all = append(all, err)
	}
	return errors.Join(all...)
}

// enterByPasskey is enter for a form with a passkey's signature.
func (c *Console) enterByPasskey(r *http.Request, v *behind.Visitor) (hub.TokenSecret, error) {
	var s hub.PasskeySignature
	if err := fields(v.Form, map[string]*[]byte{"challenge": &s.Challenge, "id": &s.ID, "data": &s.Data, "client": &s.Client, "signature": &s.Signature, "user": &s.User}); err != nil {
		return hub.TokenSecret{}, err
	}
	return c.cfg.Door.EnterByPasskey(r.Context(), nonceOf(r, v), v.User, s)
}

// passkeyForm offers to make a passkey, or says why not now. A script makes it, so the page isn't
// replaced while it's being filled in.
func (t *turn) passkeyForm() error {
	data := struct {
		Ask   *hub.PasskeyRequest
		Why   string
		Known []string
	}{}
	q, err := t.c.cfg.Door.OfferPasskey(t.ctx, t.v.Caller)
	switch {
	case err == nil:
		data.Ask, data.Known = &q, textsOf(q.Known)
	case fault.KindOf(err) == fault.Denied || fault.KindOf(err) == fault.Unsupported:
		data.Why = err.Error()
	default:
		return err
	}
	return t.showStill("passkey", "Add a passkey", data)
}

// textsOf spells ids of credentials as scripts read them.
func textsOf(ids [][]byte) (all []string) {
	for _, id := range ids {
		all = append(all, base64.RawURLEncoding.EncodeToString(id))
	}
	return all
}

func (t *turn) addPasskey() error {
	m := hub.PasskeyMade{Name: t.v.Form.Get("name")}
	if err := fields(t.v.Form, map[string]*[]byte{"challenge": &m.Challenge, "id": &m.ID, "key": &m.Key, "data": &m.Data, "client": &m.Client}); err != nil {
		return err
	}
	if _, err := t.c.cfg.Door.AddPasskey(t.ctx, t.v.Caller, m); err != nil {
		return err
	}
	return t.see("access", "added")
}

func (t *turn) revokePasskey() error {
	if _, err := ask(t, hub.RevokePasskey, t.words[2]); err != nil {
		return err
	}
	return t.see("access", "removed")
}

package console

import (
	"errors"
	"strconv"

	"palyra/hub"
	"palyra/internal/fault"
)

func (t *turn) access() error {
	tokens, err := may(t, hub.ListTokens, hub.TokenQuery{PageQuery: hub.PageQuery{Limit: listed}})
	if err != nil {
		return err
	}
	members, err := may(t, hub.ListMembers, hub.None{})
	if err != nil {
		return err
	}
	devices, err := may(t, hub.ListDevices, hub.None{})
	if err != nil {
		return err
	}
	passkeys, err := may(t, hub.ListPasskeys, hub.None{})
	if err != nil {
		return err
	}
	pairings, err := may(t, hub.ListPairings, hub.None{})
	if err != nil {
		return err
	}
	return t.show("access", "Access", struct {
		Tokens   *hub.Page[hub.Token]
		Members  *hub.Page[hub.Member]
		Devices  *hub.Page[hub.Device]
		Passkeys *hub.Page[hub.Passkey]
		Pairings *hub.Page[hub.Pairing]
		Origin   string
	}{tokens, members, devices, passkeys, pairings, t.c.cfg.Door.PasskeyOrigin()})
}

func (t *turn) revokeToken() error {
	version, err := strconv.ParseInt(t.v.Form.Get("version"), 10, 64)
	if err != nil {
		return fault.New(fault.Usage, "invalid_input", "revoke token", errors.New("the form lacks what it was for"))
	}
	if _, err := ask(t, hub.RevokeToken, hub.TokenChange{ID: t.words[1], Version: version}); err != nil {
		return err
	}
	return t.see("access", "revoked")
}

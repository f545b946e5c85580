package local

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"palyra/authz/access"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// enrolment is what the store knows of the last enrolment that began. A crash can come between the
// token of a device and the device's row: then no one has that token, and no one would end it.
type enrolment struct {
	Principal string   `json:"principal"`
	Name      string   `json:"name"`   // of the token
	Others    []string `json:"others"` // tokens that had this name before
}

// enrolmentSetting is the setting that has it.
const enrolmentSetting = "hub.enrolment"

func deviceTokenName(id string) string { return "device " + id }

// beginEnrolment notes an enrolment before its token is minted. The caller holds devices.changing.
func (h *Hub) beginEnrolment(ctx context.Context, principal, name string) error {
	if err := h.settleEnrolment(ctx); err != nil {
		return err
	}
	e := enrolment{principal, name, h.access.Unused(principal, name)}
	return h.st.Update(ctx, func(tx *store.Tx) error {
		s, err := tx.Setting(enrolmentSetting)
		if fault.KindOf(err) == fault.NotFound {
			s, err = &store.Setting{Key: enrolmentSetting}, nil
		}
		if err == nil {
			s.Value, err = json.Marshal(e)
		}
		if err != nil {
			return err
		}
		return tx.PutSetting(s)
	})
}

// settleEnrolment revokes the token of an enrolment that made no device. Everything that it looks
// at is durable, so that it may come again. The caller holds devices.changing, or has the hub to
// itself.
func (h *Hub) settleEnrolment(ctx context.Context) error {
	s, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Setting, error) { return tx.Setting(enrolmentSetting) })
	if fault.KindOf(err) == fault.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	var e enrolment
	if err := json.Unmarshal(s.Value, &e); err != nil {
		return fault.New(fault.Integrity, "store_corrupt", "read setting "+enrolmentSetting, err)
	}
	for _, id := range h.access.Unused(e.Principal, e.Name) {
		if slices.Contains(e.Others, id) || h.devices.ofToken(id) {
			continue
		}
		_, err := h.access.Revoke(ctx, access.Holder{Principal: self()}, id)
		if err != nil { // the daemon's user may be no owner any more
			if _, own := h.access.Revoke(ctx, access.Holder{Principal: e.Principal}, id); own != nil {
				return errors.Join(err, own)
			}
		}
		h.cfg.Log.Warn("a token for a device that was never made is revoked", "token", id, "principal", e.Principal)
	}
	return nil
}

// ofToken reports whether a token is a device's.
func (ds *devices) ofToken(token string) bool {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	for _, d := range ds.byID {
		if d.Token == token {
			return true
		}
	}
	return false
}

package local

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"palyra/authz/access"
	"palyra/authz/approval"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/hub"
	"palyra/kernel/store"
)

// surfaceHTTP is the surface of callers that came over a network.
const surfaceHTTP = "http"

// turnedOff returns the feature that is off and that a method would need, "" for
// none. What an answer to an approval reaches for is looked at by [Hub.answerOff].
func (h *Hub) turnedOff(c hub.Caller, method string, p access.Permission) access.Feature {
	var needs []access.Feature
	switch method {
	case "CreateToken", "RotateToken":
		needs = append(needs, access.Tokens)
	case "ResolveApproval":
		if c.Surface == surfaceHTTP {
			needs = append(needs, access.HTTPApprovals)
		}
	}
	switch p {
	case access.MemberManage, access.PolicyManage, access.BackupManage:
		if c.Surface == surfaceHTTP {
			needs = append(needs, access.HTTPAdmin)
		}
	}
	return h.firstOff(needs)
}

func (h *Hub) firstOff(needs []access.Feature) access.Feature {
	for _, f := range needs {
		if !h.cfg.Features.Has(f) {
			return f
		}
	}
	return ""
}

// answerOff is turnedOff for how far a yes reaches.
func (h *Hub) answerOff(a hub.Answer) access.Feature {
	var needs []access.Feature
	if a.Approve && a.Scope != "" && a.Scope != approval.ScopeOnce {
		needs = append(needs, access.StandingGrants)
	}
	if a.Approve && a.Pattern != nil {
		needs = append(needs, access.PatternGrants)
	}
	return h.firstOff(needs)
}

func (h *Hub) refuseFeature(c hub.Caller, op string, f access.Feature) error {
	const reason = "feature_off"
	hint := "whoever configures this daemon can set features." + string(f) + " = true"
	return h.refuse(c, reason, op, hint, hub.Denial{Layer: hub.LayerAccess, Reason: reason, Policies: []string{"feature:" + string(f)}, Fix: hint})
}

// featureSetting is what was off when the journal was last told.
const featureSetting = "hub.features_off"

// noteFeatures puts into the journal what is off, if it is not what it was. The
// journal has it first: what is not noted then is journaled once more.
func (h *Hub) noteFeatures(ctx context.Context) error {
	was := []string{}
	s, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Setting, error) { return tx.Setting(featureSetting) })
	switch {
	case fault.KindOf(err) == fault.NotFound:
		s = &store.Setting{Key: featureSetting}
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(s.Value, &was); err != nil {
			return fault.New(fault.Integrity, "setting", "read setting "+featureSetting, err)
		}
	}
	off := h.cfg.Features.Off()
	if slices.Equal(was, off) {
		return nil
	}
	_, err = h.k.Record(ctx, kernel.Act{Act: "features.set", Principal: self(), Detail: map[string]string{
		"off": strings.Join(off, " "), "was_off": strings.Join(was, " ")}})
	if err != nil {
		return err
	}
	if s.Value, err = json.Marshal(off); err != nil {
		return fault.New(fault.Internal, "setting", "write setting "+featureSetting, err)
	}
	return h.st.Update(ctx, func(tx *store.Tx) error { return tx.PutSetting(s) })
}

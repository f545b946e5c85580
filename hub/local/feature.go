package local

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"palyra/authz/access"
	"palyra/authz/approval"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/kernel"
)

// surfaceHTTP is the surface of callers that came over a network.
const surfaceHTTP = "http"

// overHTTP reports whether a caller came by HTTP, with a token or in a browser.
func overHTTP(c hub.Caller) bool { return c.Surface == surfaceHTTP || c.Surface == hub.SurfaceConsole }

// turnedOff returns the feature that is off and that an operation would need beside its
// permission, "" for none. [Hub.answerOff] looks at the features that an answer to an
// approval needs.
func (h *Hub) turnedOff(c hub.Caller, op *hub.Operation) access.Feature {
	var needs []access.Feature
	switch op {
	case hub.CreateToken.Operation, hub.RotateToken.Operation:
		needs = append(needs, access.Tokens)
	case hub.ResolveApproval.Operation:
		if overHTTP(c) {
			needs = append(needs, access.HTTPApprovals)
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

// answerOff is turnedOff for the reach of a yes.
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
	d, hint := featureOff(f)
	return h.refuse(c, d.Reason, op, hint, *d)
}

func featureOff(f access.Feature) (_ *hub.Denial, hint string) {
	hint = "whoever configures this daemon can set features." + string(f) + " = true"
	return &hub.Denial{Layer: hub.LayerAccess, Reason: "feature_off", Policies: []string{"feature:" + string(f)}, Fix: hint}, hint
}

// featureSetting is what was off when the journal was last told.
const featureSetting = "hub.features_off"

// noteFeatures puts the features that are off into the journal, if they changed. The
// journal has them before the store's note: after a crash in between they are journaled
// once more.
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
			return fault.New(fault.Integrity, "store_corrupt", "read setting "+featureSetting, err)
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
		return fault.New(fault.Internal, "internal", "write setting "+featureSetting, err)
	}
	return h.st.Update(ctx, func(tx *store.Tx) error { return tx.PutSetting(s) })
}

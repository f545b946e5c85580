package local

import (
	"testing"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
)

// TestGetReach: a caller sees the sessions of its own, an owner all, and a token without policy.read
// none.
func TestGetReach(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice, bob := h.member(1001, access.Operator), h.member(1002, access.Operator)
	r := h.start(alice, argv("/usr/bin/seq", "3"))
	h.ended(alice, r.ID)
	for who, want := range map[*hub.Caller]int{&alice: 1, &bob: 0, &h.owner: 1} {
		v, err := hub.GetReach.Do(ctx, h, *who, hub.ReachQuery{})
		if err != nil || len(v.Sessions) != want || v.Size == 0 || v.Cut {
			t.Errorf("%s: %+v, %v", who.User, v, err)
		} else if want == 1 && (v.Sessions[0].Session != r.Session || v.Sessions[0].Principal != alice.User || v.Sessions[0].Calls != 1 || v.Sessions[0].Open != 0) {
			t.Errorf("%s: %+v", who.User, v.Sessions)
		}
	}
	if v, err := hub.GetReach.Do(ctx, h, alice, hub.ReachQuery{Session: "ses_00112233445566778899aabbccddeeff"}); err != nil || len(v.Sessions) != 0 {
		t.Errorf("another session: %+v, %v", v, err)
	}
	auditor, _ := h.token(h.owner, "journal.read")
	if _, err := hub.GetReach.Do(ctx, h, auditor, hub.ReachQuery{}); fault.KindOf(err) != fault.Denied {
		t.Errorf("without policy.read: %v", err)
	}
}

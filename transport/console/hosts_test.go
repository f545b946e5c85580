package console

import (
	"net/url"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestJournalVerify: what was checked, and of a journal that isn't sound what doesn't hold.
func TestJournalVerify(t *testing.T) {
	h := hub.NewTable(answer(hub.VerifyJournal, hub.JournalAudit{Origin: "palyra.test/1", Size: 12, Intents: 4, Results: 3, Outcomes: map[string]int{"executed": 2, "outcome_unknown": 1},
		Orphans: []uint64{11}, Keys: []hub.JournalKey{{Hint: "k1"}, {Hint: "k2", From: 7}}, LogKeys: []hub.JournalKey{{Hint: "l1"}}}, nil))
	show := func() string {
		t.Helper()
		w, err := visit(t, h, "journal/verify", url.Values{})
		if err != nil {
			t.Fatal(err)
		}
		return w.Body.String()
	}
	has(t, show(), "is sound", "palyra.test/1", "12 entries", "executed: 2", "1 calls were interrupted", "/console/journal/11", "by 2 keys", "by 1 key of", "k2</span> from entry 7", "palyra journal verify --state")
	bad := answer(hub.VerifyJournal, hub.JournalAudit{}, fault.New(fault.Integrity, "journal_tree_mismatch", "x", nil))
	h[bad.Operation] = bad
	has(t, show(), "isn't sound", "journal_tree_mismatch", "-Verified by palyrad")
	long := answer(hub.VerifyJournal, hub.JournalAudit{}, fault.New(fault.Usage, "invalid_input", "x", nil))
	h[long.Operation] = long
	if _, err := visit(t, h, "journal/verify", url.Values{}); fault.KindOf(err) != fault.Usage {
		t.Errorf("too long a journal: %v", err)
	}
}

// TestHosts: names are foreign text, and a denial has its rule to copy, or says that there is none.
func TestHosts(t *testing.T) {
	h := hub.NewTable(answer(hub.GetReach, hub.Reach{Size: 9, From: 2, Calls: 3, Cut: true, Sessions: []hub.SessionReach{{Session: "ses_00112233", Principal: "uid:7", Calls: 3, Open: 1,
		Networks: []string{"egress", "host"}, May: []string{"a.example:443"}, Connected: []hub.HostReached{{Host: "<b>a.example", Port: 443, Connections: 2, Sent: 2048, Entry: 5}},
		Denied: []hub.HostDenied{{Host: "b.example", Port: 443, Why: "not_listed", Times: 4, Entry: 6, Rule: "b.example:443"}, {Host: "10.0.0.1", Port: 22, Why: "forbidden", Times: 1, Entry: 6}}}}}, nil))
	w, err := visit(t, h, "hosts", nil)
	if err != nil {
		t.Fatal(err)
	}
	has(t, w.Body.String(), "&lt;b&gt;a.example", "-<b>a", "2.0 KiB", "<code>b.example:443</code>", "not listed", "-<code>10.0.0.1", ">none<", "/console/receipts/5", "1 have no result yet", `mono bad">host`,
		"more sessions or hosts")
	denied := answer(hub.GetReach, hub.Reach{}, fault.New(fault.Denied, "permission_denied", "x", nil))
	h[denied.Operation] = denied
	if _, err := visit(t, h, "hosts", nil); fault.KindOf(err) != fault.Denied {
		t.Errorf("without the permission: %v", err)
	}
}

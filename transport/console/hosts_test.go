package console

import (
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

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

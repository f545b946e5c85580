package console

import (
	"net/url"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestReceipts: a receipt that verifies is shown by parts with the basis of what was seen, one that
// doesn't only as what it lacks, and the file comes as an attachment.
func TestReceipts(t *testing.T) {
	good := answer(hub.VerifyReceipt, hub.ReceiptAccount{Origin: "palyra.test/1", Index: 7, Size: 9, Key: "k1", Outcome: "executed", Rows: []hub.ReceiptRow{
		{Part: "ending", Name: "outcome", Text: "executed, exit status 0"},
		{Part: "request", Name: "command", Text: `cat "<script>alert(1)</script>"`},
		{Part: "controls", Name: "seccomp", Text: "sha256:00, 9 instructions", Basis: "verified"},
		{Part: "egress", Name: "denied", Text: "evil.example"},
	}}, nil)
	h := hub.NewTable(answer(hub.GetReceipt, []byte(`{"a":1}`), nil), good)
	show := func(at string, form url.Values) string {
		t.Helper()
		w, err := visit(t, h, at, form)
		if err != nil {
			t.Fatal(err)
		}
		return w.Body.String()
	}
	has(t, show("receipts", nil), `name="receipt"`)
	has(t, show("receipts/7", nil), "Verified by palyrad", "palyra.test/1", "Controls that were seen in force", "verified</td>", "&lt;script&gt;", "-<script>alert",
		"evil.example", "/console/receipts/7/bundle", "palyra attest verify --trust DIR palyra-receipt-7.sigstore.json")
	has(t, show("receipts", url.Values{"receipt": {` {"a":1} `}}), "Verified by palyrad", "-/bundle")
	has(t, show("receipts", url.Values{"receipt": {`{"a":`}}), "doesn't verify", "receipt_syntax", "-Verified")

	w, err := visit(t, h, "receipts/7/bundle", nil)
	if err != nil || w.Body.String() != `{"a":1}` {
		t.Fatalf("the file: %q, %v", w.Body, err)
	}
	for name, want := range map[string]string{"Content-Type": hub.MediaBundle, "X-Content-Type-Options": "nosniff",
		"Content-Disposition": `attachment; filename="palyra-receipt-7.sigstore.json"`, "Content-Security-Policy": policy} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for reason, want := range map[string]string{"receipt_log": "The log entry is another&#39;s", "receipt_key": "Not a trusted key&#39;s", "receipt_signature": "Not the trusted key",
		"receipt_inclusion": "The proof", "receipt_form": "Another form", "other": "doesn't verify"} {
		bad := answer(hub.VerifyReceipt, hub.ReceiptAccount{}, fault.New(fault.Integrity, reason, "verify receipt", nil))
		h[bad.Operation] = bad
		has(t, show("receipts/7", nil), want, reason, "another palyrad's", "-Verified", "-seccomp")
	}
	for _, at := range []string{"receipts/x", "receipts/-1", "receipts/7/other", "receipts/x/bundle"} {
		if _, err := visit(t, h, at, nil); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s: %v", at, err)
		}
	}
	none := answer(hub.GetReceipt, nil, fault.New(fault.Denied, "permission_denied", "get receipt", nil))
	h[none.Operation] = none
	if _, err := visit(t, h, "receipts/7", nil); fault.KindOf(err) != fault.Denied {
		t.Errorf("without the permission: %v", err)
	}
}

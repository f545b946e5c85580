package kernel

import (
	"os"
	"strings"
	"testing"

	"palyra/crypt/receipt"
)

// TestYesTakesPasskey: a person at a terminal isn't asked for a yes that policy wants a passkey for.
// More people, or another rule, aren't that.
func TestYesTakesPasskey(t *testing.T) {
	for _, c := range []struct{ unless, outcome string }{
		{"context.passkey", receipt.NotApproved},
		{"context.passkey && context.approvers >= 2", receipt.NotApproved},
		{"context.passkey || context.approvers >= 2", receipt.Executed},
		{"context.passkey || context.channel == \"terminal\"", receipt.Executed},
	} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, dir+"/all.cedar", `@id("asked") permit (principal, action == Palyra::Action::"tool.execute", resource) when { context.approved };
@id("answers") permit (principal, action == Palyra::Action::"approval.resolve", resource);
@id("passkey") @untested("here") forbid (principal, action == Palyra::Action::"approval.resolve", resource) unless { `+c.unless+" };\n", 0o644)
		h := openHouse(t, Config{PolicyDir: dir, Approver: answer{yes: true}})
		o := h.call(proposal("/bin/true"), IO{})
		if o.Outcome != c.outcome || o.Approval == nil {
			t.Fatalf("unless %s: %s, %+v, %v", c.unless, o.Outcome, o.Approval, o.Error)
		}
		if c.outcome == receipt.NotApproved && (!strings.Contains(o.Approval.Detail, "takes a passkey") || !strings.Contains(o.Approval.Detail, "palyra console open")) {
			t.Errorf("unless %s: %q", c.unless, o.Approval.Detail)
		}
	}
}

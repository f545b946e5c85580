package local

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestVerifyReceipt: a receipt of this journal verifies and is told in rows, before and after the
// key was replaced; one of another palyrad's, and a changed one, is refused for what it lacks.
func TestVerifyReceipt(t *testing.T) {
	h, other := newHouse(t, nil), newHouse(t, nil)
	ctx := t.Context()
	receiptOf := func(h *house) []byte {
		t.Helper()
		r := h.start(h.owner, argv("/usr/bin/seq", "3"))
		r = h.ended(h.owner, r.ID)
		b, err := hub.GetReceipt.Do(ctx, h, h.owner, *r.Steps[0].LogIndex)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	mine := receiptOf(h)
	check := func(b []byte) (hub.ReceiptAccount, error) {
		return hub.VerifyReceipt.Do(ctx, h, h.owner, hub.ReceiptCheck{Receipt: b})
	}
	basis := "verified"
	if os.Geteuid() != 0 { // the kernel shows filters to CAP_SYS_ADMIN alone (ptrace(2), PTRACE_SECCOMP_GET_FILTER)
		basis = "reported"
	}
	good := func() {
		t.Helper()
		a, err := check(mine)
		if err != nil {
			t.Fatal(err)
		}
		row := func(part, name, text string) bool {
			return slices.ContainsFunc(a.Rows, func(r hub.ReceiptRow) bool {
				return r.Part == part && r.Name == name && strings.Contains(r.Text, text)
			})
		}
		if a.Outcome != "executed" || a.CallID == "" || a.Size <= a.Index || a.Root.IsZero() || !row("ending", "outcome", "executed, exit status 0") ||
			!row("request", "command", "/usr/bin/seq 3") || !row("decision", "decision", "allow") {
			t.Errorf("%+v", a)
		}
		if i := slices.IndexFunc(a.Rows, func(r hub.ReceiptRow) bool { return r.Name == "seccomp" }); i < 0 || a.Rows[i].Part != "controls" || a.Rows[i].Basis != basis {
			t.Errorf("no seccomp by its basis: %+v", a.Rows)
		}
	}
	good()
	if _, err := hub.RotateKey.Do(ctx, h, h.owner, hub.KeyRotation{}); err != nil {
		t.Fatal(err)
	}
	good()
	if _, err := check(receiptOf(other)); fault.KindOf(err) != fault.Integrity || !slices.Contains([]string{"receipt_key", "receipt_log"}, fault.ReasonOf(err)) {
		t.Errorf("another palyrad's: %v", err)
	}
	i := bytes.Index(mine, []byte(`"payload":"`)) + 40
	changed := bytes.Clone(mine)
	changed[i] = map[bool]byte{true: 'B', false: 'A'}[changed[i] == 'A']
	if _, err := check(changed); fault.KindOf(err) != fault.Integrity {
		t.Errorf("a changed one: %v", err)
	}
	if _, err := check([]byte(`{}`)); fault.KindOf(err) != fault.Integrity {
		t.Errorf("none: %v", err)
	}
	if _, err := check(nil); fault.KindOf(err) != fault.Usage {
		t.Errorf("nothing: %v", err)
	}
	agent, _ := h.token(h.owner, "run.start", "session.read")
	if _, err := hub.VerifyReceipt.Do(ctx, h, agent, hub.ReceiptCheck{Receipt: mine}); fault.KindOf(err) != fault.Denied {
		t.Errorf("without journal.read: %v", err)
	}
}

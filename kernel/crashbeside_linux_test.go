package kernel

import (
	"fmt"
	"os"
	"testing"

	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
)

// TestCrashBeside kills a process at the steps of its calls while another, with a call under
// way, uses the same state directory. The other goes on, closes the dead one's intents and no
// others, and everything that was acknowledged is there.
func TestCrashBeside(t *testing.T) {
	cell, tool := cellPath(t), unknown(t, "/bin/echo")
	for i, at := range []struct {
		step   string
		nth    int
		orphan int // intents that it leaves
	}{
		{"sealed", 1, 0}, {"granted", 1, 0}, {"append:begin", 1, 0}, {"append:written", 1, 1}, {"append:durable", 1, 1}, {"intent", 1, 1},
		{"executed", 1, 1}, {"append:begin", 2, 1}, {"append:written", 2, 0}, {"append:durable", 2, 0}, {"result", 1, 0}, {"receipt", 1, 0},
		{"intent", 2, 1}, {"before close", 1, 0},
	} {
		t.Run(fmt.Sprintf("%s %d", at.step, at.nth), func(t *testing.T) {
			running, release := make(chan struct{}), make(chan struct{})
			h := openHouse(t, withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) {
				close(running)
				<-release
				return nil, fault.New(fault.Internal, "x", "run", nil)
			}))
			done := make(chan error)
			go func() {
				_, err := h.Call(t.Context(), *proposal("true"), IO{})
				done <- err
			}()
			<-running
			v := victim{Cell: cell, Tool: tool, State: h.dir, Word: fmt.Sprintf("palyra-beside-%d-%d", os.Getpid(), i), Step: at.step, Nth: at.nth}
			_, got, _ := v.run(t)
			if left := survivors(v.Word); left != nil {
				t.Errorf("survivors: %q", left)
			}
			for range 2 {
				if err := h.CloseOrphans(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if s, err := h.JournalStatus(t.Context()); err != nil || fmt.Sprint(s.Open) != "[0]" {
				t.Errorf("open: %v, %v, want the call that goes on", s.Open, err)
			}
			for _, x := range got {
				if _, err := h.Receipt(t.Context(), x.Index); err != nil {
					t.Errorf("entry %d, which somebody has a receipt for: %v", x.Index, err)
				}
			}
			close(release)
			if err := <-done; err != nil {
				t.Error(err)
			}
			r := h.audit()
			if len(r.Orphans) != 0 || r.Outcomes[receipt.OutcomeUnknown] != at.orphan || r.Outcomes[receipt.Failed] != 1 {
				t.Errorf("audit: %+v, want %d outcome_unknown", r, at.orphan)
			}
		})
	}
}

package local

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/kernel"
)

// breakWAL puts a full device in the place of the journal's open write-ahead
// file: what it writes from then on fails with ENOSPC, and cannot be cut back.
func breakWAL(t testing.TB, base string) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer full.Close()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Error(err)
	}
	n := 0
	for _, l := range links {
		to, err := os.Readlink(l)
		if err != nil || !strings.HasPrefix(to, base+"/") || !strings.HasPrefix(filepath.Base(to), "wal") {
			continue
		}
		var fd int
		if _, err := fmt.Sscan(filepath.Base(l), &fd); err != nil {
			t.Error(err)
		}
		if err := syscall.Dup3(int(full.Fd()), fd, syscall.O_CLOEXEC); err != nil {
			t.Error(err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d write-ahead files are open", n)
	}
}

// TestJournalFails: the journal fails at a named step of a call. The step says
// what is known, the next start learns what the journal has, and both agree.
func TestJournalFails(t *testing.T) {
	for _, test := range []struct {
		name, step    string
		nth           int32 // of the step
		now, then     string
		state, nextSt string
		effects       int
	}{
		// The intent cannot be written: nothing runs.
		{"before the intent", "granted", 1, "", "", hub.StepFailed, hub.StepFailed, 0},
		// It is written and cannot be flushed: nothing runs, and it is found after a restart.
		{"under the intent", "append:written", 1, "", receipt.OutcomeUnknown, hub.StepFailed, hub.StepDone, 0},
		// The call has run, and its result cannot be written.
		{"before the result", "executed", 1, receipt.OutcomeUnknown, receipt.OutcomeUnknown, hub.StepDone, hub.StepDone, 1},
		// The result is written and cannot be flushed: it is found.
		{"under the result", "append:written", 2, receipt.OutcomeUnknown, receipt.Executed, hub.StepDone, hub.StepDone, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			var armed atomic.Bool
			var seen atomic.Int32
			var h *house
			policies := t.TempDir()
			if err := os.WriteFile(filepath.Join(policies, "all.cedar"), []byte("@id(\"all\") permit (principal, action, resource);\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			h = newHouse(t, func(_ *Config, k *kernel.Config) {
				k.PolicyDir = policies
				k.TestOnlyStep = func(name string) {
					if name == test.step && armed.Load() && seen.Add(1) == test.nth {
						breakWAL(t, h.base)
					}
				}
			})
			armed.Store(true)
			r := h.call(h.owner, appendTo("one"))
			armed.Store(false)
			s := r.Steps[0]
			if r.State != hub.RunFailed || s.State != test.state || s.Outcome != test.now || s.Reason == "" || s.LogIndex != nil {
				t.Errorf("the run is %s %s, its step %+v", r.State, r.Reason, s)
			}
			// Nothing more is made, and reading works.
			if again := h.call(h.owner, appendTo("two")); again.State != hub.RunFailed || again.Steps[0].State != hub.StepFailed {
				t.Errorf("the next call: %+v", again)
			}
			if st, err := hub.GetStatus.Do(t.Context(), h, h.owner, hub.None{}); err != nil || st.Journal.Size == 0 {
				t.Errorf("status: %+v, %v", st.Journal, err)
			}
			h.crash()
			h.reopen(func(_ *Config, k *kernel.Config) { k.PolicyDir = policies })
			after, err := hub.GetRun.Do(t.Context(), h, h.owner, r.ID)
			if err != nil {
				t.Fatal(err)
			}
			a := after.Steps[0]
			if a.State != test.nextSt || a.Outcome != test.then || a.State == hub.StepDone && (a.LogIndex == nil || a.CallID == "") {
				t.Errorf("after the restart its step is %+v", a)
			}
			if a.State == hub.StepDone {
				h.verify(a)
			}
			if n := effects(t, h, "one"); n != test.effects {
				t.Errorf("it had its effect %d times", n)
			}
			if n := effects(t, h, "two"); n != 0 {
				t.Errorf("the next one had its effect %d times", n)
			}
			if r := h.call(h.owner, appendTo("three")); r.State != hub.RunDone {
				t.Errorf("a call after the restart: %+v", r)
			}
			h.stop() // asks the oracles
		})
	}
}

func effects(t *testing.T, h *house, word string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(h.work(), "effects"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte(word+"\n"))
}

package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"palyra/crypt/receipt"
	"palyra/internal/sample"
	"palyra/isolate/tier"
)

// TestCellCrash kills palyra-cell, and not palyra, at every step of a call that runs a program.
// The call ends with a receipt that says so, outcome_unknown if palyra-cell may have taken the
// call. Nothing of it survives, the next call works, and the journal is sound.
func TestCellCrash(t *testing.T) {
	for _, floor := range []tier.Tier{tier.B, tier.C} {
		t.Run(floor.String(), func(t *testing.T) { cellCrash(t, floor, sample.Steps) })
	}
}

func cellCrash(t *testing.T, floor tier.Tier, some func(steps []string) []int) {
	steps, _ := killCellAt(t, floor, "", 0)
	if text := strings.Join(steps, " "); !strings.Contains(text, "cell_started") || !strings.Contains(text, "run_sent") || !strings.Contains(text, "output") {
		t.Fatalf("steps %q: the run does not go where it should be stopped", steps)
	}
	tried, nth := some(steps), make(map[string]int)
	outcomes := make(map[string]int)
	sent := false
	for i, s := range steps {
		nth[s]++
		n := nth[s]
		if !slices.Contains(tried, i) {
			continue
		}
		t.Run(fmt.Sprintf("%s-%d", strings.ReplaceAll(s, ":", "-"), n), func(t *testing.T) {
			_, outcome := killCellAt(t, floor, s, n)
			outcomes[outcome]++
			if sent = sent || s == "run_sent"; sent && outcome == receipt.Refused || s == "output" && outcome == receipt.Failed {
				t.Errorf("%s, after it was sent", outcome)
			}
		})
	}
	// A death before the program ran must show; one after it must not.
	if n := outcomes[receipt.Executed]; n == 0 || n == len(tried) {
		t.Errorf("outcomes %v: want some that executed and some that did not", outcomes)
	}
}

// killCellAt makes a call and kills every palyra-cell of this process when step is reached for
// the nth time; "" is a call without a crash. It returns the steps and the call's outcome.
func killCellAt(t *testing.T, floor tier.Tier, step string, nth int) (steps []string, outcome string) {
	t.Helper()
	word := fmt.Sprintf("palyra-cellcrash-%d-%s-%s-%d", os.Getpid(), floor, strings.ReplaceAll(step, ":", "-"), nth)
	var mu sync.Mutex
	var calls, count int
	killed := 0
	var h *house
	var victim *lane
	reached := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		if calls != 1 {
			return // outside of the watched call
		}
		steps = append(steps, name)
		if name == step {
			if count++; count == nth {
				victim = h.now(floor)
				killed = killCells(t)
			}
		}
	}
	h = openHouse(t, Config{TestOnlyStep: reached, Approver: answer{yes: true}})
	// A program that needs approval and leaves a child behind.
	p := proposal(unknown(t, "/bin/sh"), "-c", "echo out; sleep 0.05 & sleep 0.02; : "+word)
	p.TierFloor = floor
	mu.Lock()
	calls = 1
	mu.Unlock()
	o, err := h.Call(context.Background(), *p, IO{Stdout: writerFunc(func(b []byte) (int, error) {
		reached("output")
		return len(b), nil
	})})
	if err != nil {
		t.Fatalf("no outcome: %v", err)
	}
	h.verify(o)
	mu.Lock()
	calls = 2
	mu.Unlock()
	switch {
	case step == "" && o.Outcome != receipt.Executed:
		t.Fatalf("without a crash: %s, %+v", o.Outcome, o.Error)
	case step != "" && killed == 0 && count < nth:
		t.Fatalf("step %q was not reached", step)
	case o.Outcome != receipt.Executed && o.Outcome != receipt.Failed && o.Outcome != receipt.Refused && o.Outcome != receipt.OutcomeUnknown:
		t.Errorf("outcome %s, %+v", o.Outcome, o.Error)
	case o.Outcome != receipt.Executed && o.Exit != exitRefused:
		t.Errorf("%s with exit %d", o.Outcome, o.Exit)
	}
	if left := survivors(word); left != nil {
		t.Errorf("survivors: %q", left)
	}
	q := proposal("/bin/true")
	q.TierFloor = floor
	if killed > 0 {
		h.awaitDeath(victim)
	}
	if next := h.call(q, IO{}); next.Outcome != receipt.Executed {
		t.Errorf("the next call: %s, %+v", next.Outcome, next.Error)
	}
	if r := h.audit(); len(r.Orphans) != 0 || r.Intents > r.Results {
		t.Errorf("audit: %+v", r)
	}
	return steps, o.Outcome
}

// killCells kills the palyra-cells that are children of this process, and returns their number.
func killCells(t *testing.T) int {
	pids := cells(t)
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	return len(pids)
}

func cells(t *testing.T) (pids []int) {
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Error(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for id := range strings.FieldsSeq(string(b)) {
			// PID (COMM) STATE: a zombie doesn't count. Victims of other tests leave some,
			// which come to us as a subreaper.
			stat, err := os.ReadFile("/proc/" + id + "/stat")
			pid, perr := strconv.Atoi(id)
			if err == nil && perr == nil && strings.Contains(string(stat), " (palyra-cell) ") && !strings.Contains(string(stat), " (palyra-cell) Z ") {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

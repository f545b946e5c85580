package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/hub"
)

// starter returns palyrad's one child.
func (r *running) starter() int {
	r.t.Helper()
	c := r.children(r.cmd.Process.Pid)
	if len(c) != 1 {
		r.t.Fatalf("palyrad has children %v, want its starter", c)
	}
	return c[0]
}

// killCells kills every palyra-cell of palyrad and returns when another one is
// there: palyrad knows of the death then.
func (r *running) killCells() {
	r.t.Helper()
	starter := r.starter()
	old := r.children(starter)
	if len(old) == 0 {
		r.t.Fatal("there is no palyra-cell to kill")
	}
	for _, c := range old {
		if err := syscall.Kill(c, syscall.SIGKILL); err != nil {
			r.t.Fatal(err)
		}
	}
	limit := time.Now().Add(patience)
	for isNew := func(pid int) bool { return !slices.Contains(old, pid) }; !slices.ContainsFunc(r.children(starter), isNew); {
		if time.Now().After(limit) {
			r.t.Fatalf("no other palyra-cell was started\n%s", r.log)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestCellDies: another palyra-cell is started before a call comes, although palyrad
// can start nothing itself, and no call is lost. Without the starter palyrad ends,
// to be started again.
func TestCellDies(t *testing.T) {
	p := newPlace(t, "")
	r := p.start()
	r.call(echo)
	for range 3 {
		r.killCells()
		r.call(echo)
	}
	if err := syscall.Kill(r.starter(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := r.exit(); code != 75 {
		t.Errorf("status %d without a starter\n%s", code, r.log)
	}
	gone(t, p.bin, 0)
}

// TestCellDiesInCall: palyra-cell dies when a call has had its effect. The call's outcome
// is unknown, for good, and asking again doesn't repeat the call.
func TestCellDiesInCall(t *testing.T) {
	p := newCrowdedPlace(t)
	r := p.start()
	effect := filepath.Join(p.dir, "work", "effect")
	ask := func() (run hub.Run, err error) {
		req, err := http.NewRequest("POST", "http://localhost/api/v1/calls", strings.NewReader(
			`{"tool":"process.run","input":{"argv":["/bin/sh","-c","echo once >>effect; exec sleep 600"],"workspace":"w"}}`))
		if err != nil {
			return run, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "k")
		resp, err := r.client().Do(req)
		if err != nil {
			return run, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != 200 {
			return run, fmt.Errorf("status %d", resp.StatusCode)
		}
		return run, json.NewDecoder(resp.Body).Decode(&run)
	}
	same := func(when string, run hub.Run, err error, id string) {
		t.Helper()
		if err != nil || run.State != hub.RunFailed || len(run.Steps) != 1 || id != "" && run.ID != id {
			t.Fatalf("%s: %+v, %v\n%s", when, run, err, r.log)
		}
		s := run.Steps[0]
		if s.State != hub.StepDone || s.Outcome != "outcome_unknown" || s.Reason != "cell_died" || s.LogIndex == nil || s.Denial != nil {
			t.Errorf("%s: the step is %+v", when, s)
		}
		if b, err := os.ReadFile(effect); err != nil || bytes.Count(b, []byte("once\n")) != 1 {
			t.Errorf("%s: the effect is %q, %v", when, b, err)
		}
	}
	type answer struct {
		run hub.Run
		err error
	}
	first := make(chan answer, 1)
	go func() {
		run, err := ask()
		first <- answer{run, err}
	}()
	for limit := time.Now().Add(patience); ; {
		if b, _ := os.ReadFile(effect); bytes.Contains(b, []byte("\n")) {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("the call has no effect\n%s", r.log)
		}
		<-time.After(5 * time.Millisecond)
	}
	r.killCells()
	a := <-first
	same("at first", a.run, a.err, "")
	again, err := ask()
	same("asked again", again, err, a.run.ID)
	r.call(echo)

	// The journal says so, also to the next palyrad.
	r.signal(syscall.SIGKILL)
	r.exit()
	gone(t, p.bin, 0)
	r = p.start()
	again, err = ask()
	same("after a restart", again, err, a.run.ID)
}

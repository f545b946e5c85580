package store

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// endedRun makes a run that has ended, with a plan of this size.
func endedRun(t *testing.T, s *Store, size int) *Run {
	t.Helper()
	r := &Run{Principal: "uid:1000", Plan: []byte(`"` + strings.Repeat("x", size) + `"`), Session: newRun(t, s).Session, State: RunCancelled}
	do(t, s, func(tx *Tx) error { return tx.CreateRun(r) })
	return r
}

// TestRetireBytes: a transaction of a sweep ends with the run that goes beyond the bound,
// however few runs it has removed.
func TestRetireBytes(t *testing.T) {
	sweeps := 0
	s := openStore(t, t.TempDir()+"/store", Options{TestOnlyStep: func(name string) {
		if name == "retired" {
			sweeps++
		}
	}})
	const runs = 12
	for range runs {
		endedRun(t, s, retireBytes/4)
	}
	if err := s.Retire(t.Context(), Retention{Before: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	gone, err := s.OwedRetirement(t.Context())
	// After the last run one finds nothing, and so does one that looks for sessions.
	if err != nil || gone.Runs != runs || sweeps != runs/4+2 {
		t.Errorf("%d transactions removed %d runs, %v; four runs reach the bound", sweeps, gone.Runs, err)
	}
	check(t, s)
}

// TestRetireMemory: removing a run takes little of this process's memory, however large
// the run is. In a savepoint it took more than twice the run.
func TestRetireMemory(t *testing.T) {
	s := newStore(t)
	const size = 32 << 20
	r, part := endedRun(t, s, 0), []byte(`"`+strings.Repeat("x", MaxPayload-2)+`"`)
	for range size / MaxPayload {
		do(t, s, func(tx *Tx) error {
			_, err := tx.AppendEvent(r.ID, "k", part)
			return err
		})
	}
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // proc_pid_clear_refs(5): VmHWM
		t.Fatal(err)
	}
	before := peak(t)
	if err := s.Retire(t.Context(), Retention{Before: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if grown := peak(t) - before; grown > size/2 {
		t.Errorf("removing a run of %d MiB took %d MiB", size>>20, grown>>20)
	}
}

// peak returns the most memory that the process had, in bytes.
func peak(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

package store

import (
	"context"
	"testing"
)

// TestScansLeaveReaders: however many lists are made, whoever looks something up doesn't wait for
// them.
func TestScansLeaveReaders(t *testing.T) {
	s, err := Open(t.TempDir()+"/store", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	begun, end, over := make(chan struct{}), make(chan struct{}), make(chan error)
	const scans = 8 // more than there are readers
	for range scans {
		go func() {
			_, err := Scan(t.Context(), s, func(*Tx) (int, error) {
				begun <- struct{}{}
				<-end
				return 0, nil
			})
			over <- err
		}()
	}
	for range cap(s.scans) {
		<-begun
	}
	if _, err := View(t.Context(), s, func(tx *Tx) (int, error) { return tx.OpenSessions("") }); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Scan(ctx, s, func(*Tx) (int, error) { return 0, nil }); err == nil {
		t.Error("a scan began that was called off")
	}
	go func() {
		for range begun {
		}
	}()
	close(end)
	for range scans {
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
	close(begun)
}

// TestLiveRunsByFewRows: the live runs of a principal are found without looking at those that
// ended.
func TestLiveRunsByFewRows(t *testing.T) {
	s, err := Open(t.TempDir()+"/store", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, f := range []RunFilter{
		{Principal: "uid:1", States: []RunState{RunPending}},
		{Principal: "uid:1", Session: "ses_x", States: []RunState{RunPending, RunInProgress}},
		{Session: "ses_x", States: []RunState{RunAccepted}},
	} {
		var l list
		l.runs(f)
		text, args := l.text(selectRunOnly, "runs", Page{})
		plan, err := View(t.Context(), s, func(tx *Tx) (plan string, err error) {
			var id, parent, other int
			_, err = tx.row("explain", "EXPLAIN QUERY PLAN "+text, args, &id, &parent, &other, &plan)
			return plan, err
		})
		if want := "SCAN runs USING INDEX runs_live"; err != nil || plan != want {
			t.Errorf("%+v: %q, %v, want %q", f, plan, err, want)
		}
	}
}

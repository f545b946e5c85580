package store

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
)

// TestOnChanged: each Update that changes rows is told once, with its tables and principals; one
// that fails, or changes nothing, isn't.
func TestOnChanged(t *testing.T) {
	s := newStore(t)
	var told []Change
	s.OnChanged(func(c Change) {
		slices.Sort(c.Tables)
		told = append(told, c)
	})
	ses := &Session{Principal: "uid:1"}
	r := &Run{Principal: "uid:1", Plan: []byte("{}")}
	up := func(f func(tx *Tx) error) error { return s.Update(context.Background(), f) }
	bad := errors.New("bad")
	for _, f := range []func(tx *Tx) error{
		func(tx *Tx) error { return tx.CreateSession(ses) },
		func(tx *Tx) error { r.Session = ses.ID; return tx.CreateRun(r) },
		func(tx *Tx) error { _, err := tx.AppendEvent(r.ID, "run.pending", []byte("{}")); return err },
		func(tx *Tx) error { r.State = RunFailed; return tx.UpdateRun(r) },
		func(tx *Tx) error { _, _ = tx.AppendEvent(r.ID, "x", []byte("{}")); return bad },
		func(tx *Tx) error { _, err := tx.ExpireIdempotent(5); return err },
		func(tx *Tx) error { return tx.PutSetting(&Setting{Key: "k", Value: []byte("1")}) },
	} {
		if err := up(f); err != nil && !errors.Is(err, bad) {
			t.Fatal(err)
		}
	}
	who := []string{"uid:1"}
	want := []Change{{[]string{"sessions"}, who}, {[]string{"runs"}, who}, {[]string{"events"}, who}, {[]string{"runs"}, nil}, {[]string{"settings"}, nil}}
	if !reflect.DeepEqual(told, want) {
		t.Errorf("told %+v, want %+v", told, want)
	}
	for table := range rowCost {
		for _, text := range []string{insertInto + table + " VALUES (1)", "UPDATE " + table + " SET a = 1", "DELETE FROM " + table + "\n\tWHERE a = 1"} {
			if got := tableOf(text); got != table {
				t.Errorf("%q changes %q", text, got)
			}
		}
	}
}

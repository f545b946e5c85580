package store

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

func inputs(t testing.TB, s *Store, session string) call.Inputs {
	t.Helper()
	return see(t, s, func(tx *Tx) (call.Inputs, error) { return tx.Inputs(session) })
}

// TestInputs: whatever is joined, a label is what call.Inputs makes of it, also after the store was
// opened again, and no statement takes anything out of it while its session is there.
func TestInputs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := openStore(t, dir, Options{})
	r := newRun(t, s)
	other := newRun(t, s)
	var want call.Inputs
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range 30 {
		var more []call.Input
		for range rnd.IntN(3) {
			o := call.Origins()[rnd.IntN(len(call.Origins()))]
			more = append(more, call.Input{Origin: o, Tool: "t", Run: r.ID, Step: i, Time: time.Unix(int64(i+1), 0).UTC()})
		}
		do(t, s, func(tx *Tx) error { return tx.JoinInputs(r.Session, r.Principal, more...) })
		want = want.Join(more...)
		if got := inputs(t, s, r.Session); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if i == 10 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, dir, Options{})
		}
	}
	if got := inputs(t, s, other.Session); got != nil {
		t.Errorf("another session's is %v", got)
	}
	for _, sql := range []string{
		`UPDATE session_inputs SET origin = 'model' WHERE origin = 'web'`,
		`UPDATE session_inputs SET session = '` + other.Session + `'`,
		`DELETE FROM session_inputs WHERE origin = 'web'`,
		`DELETE FROM session_inputs`,
	} {
		err := s.Update(t.Context(), func(tx *Tx) error { _, err := tx.exec("x", sql); return err })
		if err == nil {
			t.Errorf("%s: no error", sql)
		}
	}
	err := s.Update(t.Context(), func(tx *Tx) error { return tx.JoinInputs(r.Session, r.Principal, call.Input{Origin: "elsewhere"}) })
	wants(t, err, fault.Usage, "invalid_input", "origin IN")
	if got := inputs(t, s, r.Session); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	check(t, s)

	// A label goes with its session.
	do(t, s, func(tx *Tx) error {
		for _, text := range []string{
			fmt.Sprintf(`DELETE FROM runs WHERE session = '%s'`, r.Session), fmt.Sprintf(`DELETE FROM sessions WHERE id = '%s'`, r.Session),
		} {
			if _, err := tx.exec("x", text); err != nil {
				return err
			}
		}
		return nil
	})
	if got := inputs(t, s, r.Session); got != nil {
		t.Errorf("of a session that is gone: %v", got)
	}
	check(t, s)
}

// TestInputsSchema: in a store from before labels, an open session whose calls may have run has
// read from outside, and no other has.
func TestInputsSchema(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, err := open(dir, Options{}, migrations()[:7])
	if err != nil {
		t.Fatal(err)
	}
	ran := fillStore(t, s)
	denied, none, over := newRun(t, s), newRun(t, s), fillStore(t, s)
	do(t, s, func(tx *Tx) error {
		return tx.CreateStep(&Step{Run: denied.ID, Tool: "t", Input: []byte("{}"), State: StepDone, CallID: "call-d", Capsule: canon.Sum(nil), Outcome: "denied", LogIndex: 9})
	})
	raw(t, s, `UPDATE runs SET state = 'failed', ended = 5 WHERE id = '`+over.ID+`'`, `UPDATE sessions SET state = 'ended', ended = 5 WHERE id = '`+over.Session+`'`)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	if got := inputs(t, s, ran.Session); len(got) != 1 || got[0].Origin != call.OriginWeb || got[0].Run != ran.ID || got[0].Tool != "t" {
		t.Errorf("got %+v", got)
	}
	for _, r := range []*Run{denied, none, over} {
		if got := inputs(t, s, r.Session); got != nil {
			t.Errorf("got %+v", got)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("before-schema-%d-from-7.db", len(migrations())))); err != nil {
		t.Error(err)
	}
}

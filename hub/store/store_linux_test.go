package store

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// openStore opens a store in dir and checks it when the test ends.
func openStore(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	fill(&o.Readers, 1) // each connection costs time under the race detector
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newStore(t testing.TB) *Store {
	t.Helper()
	return openStore(t, filepath.Join(t.TempDir(), "store"), Options{})
}

// do is Update that must succeed.
func do(t testing.TB, s *Store, f func(*Tx) error) {
	t.Helper()
	if err := s.Update(context.Background(), f); err != nil {
		t.Fatal(err)
	}
}

// see is View that must succeed.
func see[T any](t testing.TB, s *Store, f func(*Tx) (T, error)) T {
	t.Helper()
	v, err := View(context.Background(), s, f)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// wants fails unless err has this kind and reason, and says each text: a reason such as
// invalid_input has many causes.
func wants(t testing.TB, err error, k fault.Kind, reason string, says ...string) {
	t.Helper()
	if fault.KindOf(err) != k || fault.ReasonOf(err) != reason {
		t.Errorf("%v (%v, %q), want %v, %q", err, fault.KindOf(err), fault.ReasonOf(err), k, reason)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

// check fails unless the store is sound.
func check(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Check(context.Background()); err != nil {
		t.Errorf("check: %v", err)
	}
}

// newRun makes a session with one run.
func newRun(t testing.TB, s *Store) *Run {
	t.Helper()
	ses := &Session{Principal: "uid:1000", Title: "a title"}
	run := &Run{Principal: "uid:1000", Plan: []byte(`{"steps":[]}`), Budget: Budget{Calls: 3, Wall: time.Minute, Bytes: 1 << 20}}
	do(t, s, func(tx *Tx) error {
		if err := tx.CreateSession(ses); err != nil {
			return err
		}
		run.Session = ses.ID
		return tx.CreateRun(run)
	})
	return run
}

func TestSessions(t *testing.T) {
	s := newStore(t)
	a := &Session{Principal: "uid:1000", Title: "ünïcode \x00 '; DROP TABLE sessions"}
	do(t, s, func(tx *Tx) error { return tx.CreateSession(a) })
	got := see(t, s, func(tx *Tx) (*Session, error) { return tx.Session(a.ID) })
	if *got != *a || got.Version != 1 || got.State != SessionOpen || got.Created.IsZero() {
		t.Errorf("read %+v, wrote %+v", got, a)
	}
	stale := *a
	a.State, a.Title = SessionEnded, "over"
	do(t, s, func(tx *Tx) error { return tx.UpdateSession(a) })
	if a.Version != 2 || a.Ended.IsZero() {
		t.Errorf("after the end: %+v", a)
	}
	wants(t, s.Update(context.Background(), func(tx *Tx) error { return tx.UpdateSession(&stale) }), fault.Busy, "version_conflict")
	if stale.Version != 1 {
		t.Errorf("a lost race left version %d", stale.Version)
	}
	_, err := View(context.Background(), s, func(tx *Tx) (*Session, error) { return tx.Session("ses_nobody") })
	wants(t, err, fault.NotFound, "no_such_session")
	for _, bad := range []*Session{{}, {Principal: "x", ID: "run_1"}, {Principal: "x", State: "dead"}, {Principal: "x", State: SessionEnded}} {
		if err := s.Update(context.Background(), func(tx *Tx) error { return tx.CreateSession(bad) }); fault.KindOf(err) != fault.Usage {
			t.Errorf("%+v: %v, want usage", bad, err)
		}
	}
	check(t, s)
}

// TestForeignCursor: a principal learns nothing from an id of another's row that
// it doesn't learn from one that does not exist.
func TestForeignCursor(t *testing.T) {
	s := newStore(t)
	r := newRun(t, s) // of uid:1000
	for range 3 {
		do(t, s, func(tx *Tx) error {
			own := &Session{Principal: "uid:2"}
			if err := tx.CreateSession(own); err != nil {
				return err
			}
			return tx.CreateRun(&Run{Session: own.ID, Principal: "uid:2", Plan: []byte("{}")})
		})
	}
	for _, older := range []bool{true, false} {
		sessions := func(who, after string) error {
			_, err := View(t.Context(), s, func(tx *Tx) ([]Session, error) {
				return tx.Sessions(SessionFilter{Principal: who}, Page{After: after, OldestFirst: older})
			})
			return err
		}
		runs := func(who, after string) error {
			_, err := View(t.Context(), s, func(tx *Tx) ([]Run, error) {
				return tx.Runs(RunFilter{Principal: who}, Page{After: after, OldestFirst: older})
			})
			return err
		}
		for _, test := range []struct {
			list func(who, after string) error
			id   string
		}{{sessions, r.Session}, {runs, r.ID}} {
			none := test.id[:4] + strings.Repeat("0", 32)
			foreign, unknown := test.list("uid:2", test.id), test.list("uid:2", none)
			wants(t, foreign, fault.Usage, "invalid_input", "no page begins after")
			if foreign == nil {
				continue
			}
			if got, want := strings.ReplaceAll(foreign.Error(), test.id, none), unknown.Error(); got != want {
				t.Errorf("%s for another's, %s for none", got, want)
			}
			for _, who := range []string{"uid:1000", ""} {
				if err := test.list(who, test.id); err != nil {
					t.Errorf("of %q: %v", who, err)
				}
			}
		}
	}
}

func TestPages(t *testing.T) {
	s := newStore(t)
	var ids []string
	for i := range 7 {
		a := &Session{Principal: fmt.Sprint("uid:", i%2)}
		do(t, s, func(tx *Tx) error { return tx.CreateSession(a) })
		ids = append(ids, a.ID)
	}
	walk := func(f SessionFilter, oldest bool) (got []string) {
		p := Page{Limit: 2, OldestFirst: oldest}
		for range 10 {
			items := see(t, s, func(tx *Tx) ([]Session, error) { return tx.Sessions(f, p) })
			if len(items) == 0 {
				return got
			}
			for _, i := range items {
				got = append(got, i.ID)
			}
			p.After = items[len(items)-1].ID
		}
		t.Fatal("the pages do not end")
		return nil
	}
	if got := walk(SessionFilter{}, true); strings.Join(got, " ") != strings.Join(ids, " ") {
		t.Errorf("oldest first: %v, want %v", got, ids)
	}
	if got := walk(SessionFilter{}, false); len(got) != 7 || got[0] != ids[6] || got[6] != ids[0] {
		t.Errorf("newest first: %v", got)
	}
	if got := walk(SessionFilter{Principal: "uid:1", State: SessionOpen}, true); strings.Join(got, " ") != strings.Join([]string{ids[1], ids[3], ids[5]}, " ") {
		t.Errorf("of one principal: %v", got)
	}
	_, err := View(context.Background(), s, func(tx *Tx) ([]Session, error) { return tx.Sessions(SessionFilter{}, Page{After: "ses_x"}) })
	wants(t, err, fault.Usage, "invalid_input", "no page begins after")
}

func TestRuns(t *testing.T) {
	s := newStore(t)
	ctx := context.Background()
	r := newRun(t, s)
	got := see(t, s, func(tx *Tx) (*Run, error) { return tx.Run(r.ID) })
	if fmt.Sprint(*got) != fmt.Sprint(*r) {
		t.Errorf("read %+v, wrote %+v", got, r)
	}
	r.State, r.Use = RunInProgress, Budget{Calls: 1, Wall: 5, Bytes: 6}
	do(t, s, func(tx *Tx) error { return tx.UpdateRun(r) })
	other := &Run{Session: r.Session, Principal: r.Principal, Plan: []byte(`{}`), IdempotencyKey: "k"}
	do(t, s, func(tx *Tx) error { return tx.CreateRun(other) })
	again := *other
	again.ID = ""
	wants(t, s.Update(ctx, func(tx *Tx) error { return tx.CreateRun(&again) }), fault.Busy, "locked")
	if found := see(t, s, func(tx *Tx) (*Run, error) { return tx.RunByKey(r.Principal, "k") }); found.ID != other.ID {
		t.Errorf("by key: %s, want %s", found.ID, other.ID)
	}
	for _, key := range []string{"", "K"} {
		_, err := View(ctx, s, func(tx *Tx) (*Run, error) { return tx.RunByKey(r.Principal, key) })
		wants(t, err, fault.NotFound, "not_found")
	}
	other.State = RunWaitingApproval
	wants(t, s.Update(ctx, func(tx *Tx) error { return tx.UpdateRun(other) }), fault.Busy, "locked")
	live := see(t, s, func(tx *Tx) ([]Run, error) {
		return tx.Runs(RunFilter{States: []RunState{RunPending, RunInProgress}}, Page{OldestFirst: true})
	})
	if len(live) != 2 || live[0].ID != r.ID || live[0].Use != r.Use {
		t.Errorf("live runs: %+v", live)
	}
	r.State, r.Reason = RunDone, "completed"
	do(t, s, func(tx *Tx) error { return tx.UpdateRun(r) })
	if r.Ended.IsZero() {
		t.Error("a run that is done has no end")
	}
	r.State = RunInProgress
	wants(t, s.Update(ctx, func(tx *Tx) error { return tx.UpdateRun(r) }), fault.Usage, "run_ended")
	wants(t, s.Update(ctx, func(tx *Tx) error { return tx.CreateStep(&Step{Run: r.ID, Tool: "t", Input: []byte("{}")}) }), fault.Usage, "run_ended")
	do(t, s, func(tx *Tx) error { // the session is free again
		other.State = RunInProgress
		return tx.UpdateRun(other)
	})
	wants(t, s.Update(ctx, func(tx *Tx) error {
		return tx.CreateRun(&Run{Session: "ses_x", Principal: "p", Plan: []byte("{}")})
	}), fault.NotFound, "no_such_session")
	wants(t, s.Update(ctx, func(tx *Tx) error {
		return tx.CreateRun(&Run{Session: r.Session, Principal: "p", Plan: []byte("{")})
	}), fault.Usage, "invalid_input", "no JSON text")
	do(t, s, func(tx *Tx) error {
		other.State = RunCancelled
		if err := tx.UpdateRun(other); err != nil {
			return err
		}
		ses, err := tx.Session(r.Session)
		if err != nil {
			return err
		}
		ses.State = SessionEnded
		return tx.UpdateSession(ses)
	})
	wants(t, s.Update(ctx, func(tx *Tx) error {
		return tx.CreateRun(&Run{Session: r.Session, Principal: "p", Plan: []byte("{}")})
	}), fault.Usage, "no_such_session")
	check(t, s)
}

func TestSteps(t *testing.T) {
	s := newStore(t)
	ctx := context.Background()
	r := newRun(t, s)
	one := &Step{Run: r.ID, Tool: "fs.read_file", Input: []byte(`{"path":"x"}`)}
	do(t, s, func(tx *Tx) error {
		if err := tx.CreateStep(one); err != nil {
			return err
		}
		return tx.CreateStep(&Step{Run: r.ID, Index: 1, Tool: "t", Input: []byte(`{}`)})
	})
	for _, i := range []int{0, 1, 3, -1} {
		wants(t, s.Update(ctx, func(tx *Tx) error {
			return tx.CreateStep(&Step{Run: r.ID, Index: i, Tool: "t", Input: []byte(`{}`)})
		}), fault.Usage, "invalid_input", fmt.Sprintf("has 2 steps, this one says it is number %d", i))
	}
	one.State, one.CallID, one.Capsule, one.Outcome = StepDone, "call-1", canon.Sum([]byte("c")), "executed"
	one.Exit, one.LogIndex, one.Output, one.OutputDigest = 3, 1<<40, []byte(`"out"`), canon.Sum([]byte("o"))
	wants(t, s.Update(ctx, func(tx *Tx) error { return tx.UpdateStep(one, StepRunning) }), fault.Busy, "version_conflict")
	do(t, s, func(tx *Tx) error { return tx.UpdateStep(one, StepPending) })
	got := see(t, s, func(tx *Tx) (*Step, error) { return tx.StepByCall("call-1") })
	if fmt.Sprint(*got) != fmt.Sprint(*one) {
		t.Errorf("read %+v, wrote %+v", got, one)
	}
	two := &Step{Run: r.ID, Index: 1, State: StepRunning, CallID: "call-1"}
	wants(t, s.Update(ctx, func(tx *Tx) error { return tx.UpdateStep(two, StepPending) }), fault.Usage, "invalid_input", "steps.call")
	for _, bad := range []struct {
		Step
		says string
	}{
		{Step{State: StepDone, CallID: "c2", Outcome: "executed"}, "length(capsule) = 32"},
		{Step{State: StepDone, CallID: "c2", Capsule: one.Capsule}, "outcome <> ''"},
		{Step{State: StepDone, Outcome: "executed", Capsule: one.Capsule}, "call <> ''"},
		{Step{State: StepRunning, CallID: "c2", Outcome: "x", Capsule: one.Capsule}, "outcome <> ''"}, // before the end
		{Step{State: StepFailed, CallID: "c2"}, "call = ''"},                                          // it was never decided
	} {
		bad.Run, bad.Index = r.ID, 1
		wants(t, s.Update(ctx, func(tx *Tx) error { return tx.UpdateStep(&bad.Step, StepPending) }), fault.Usage, "invalid_input", bad.says)
	}
	if all := see(t, s, func(tx *Tx) ([]Step, error) { return tx.Steps(r.ID) }); len(all) != 2 || all[0].CallID != "call-1" || all[1].State != StepPending {
		t.Errorf("steps: %+v", all)
	}
	check(t, s)
}

func TestTape(t *testing.T) {
	s := newStore(t)
	r := newRun(t, s)
	for i := range 5 {
		do(t, s, func(tx *Tx) error {
			e, err := tx.AppendEvent(r.ID, "k", []byte(fmt.Sprint(i)))
			if e.Seq != uint64(i+1) {
				t.Errorf("event %d has number %d", i, e.Seq)
			}
			return err
		})
	}
	got := see(t, s, func(tx *Tx) ([]Event, error) { return tx.Events(r.ID, 2, 2) })
	if len(got) != 2 || got[0].Seq != 3 || got[1].Seq != 4 || string(got[1].Payload) != "3" || got[0].Run != r.ID {
		t.Errorf("events after 2: %+v", got)
	}
	if n := see(t, s, func(tx *Tx) (uint64, error) { return tx.LastEvent(r.ID) }); n != 5 {
		t.Errorf("last event %d, want 5", n)
	}
	if got := see(t, s, func(tx *Tx) ([]Event, error) { return tx.Events(r.ID, 1<<63+5, 2) }); len(got) != 0 {
		t.Errorf("events after the end of time: %+v", got)
	}
	ctx := context.Background()
	for _, c := range []struct {
		run, payload, reason string
		kind                 fault.Kind
	}{{"run_x", "{}", "not_found", fault.NotFound}, {r.ID, "{", "invalid_input", fault.Usage},
		{r.ID, `"` + strings.Repeat("x", MaxPayload) + `"`, "too_large", fault.Usage}} {
		wants(t, s.Update(ctx, func(tx *Tx) error { _, err := tx.AppendEvent(c.run, "k", []byte(c.payload)); return err }), c.kind, c.reason)
	}
	check(t, s)
}

// TestTapeConcurrent: many writers share commits and no number is lost or given twice.
func TestTapeConcurrent(t *testing.T) {
	s := newStore(t)
	r := newRun(t, s)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 8 {
				if err := s.Update(context.Background(), func(tx *Tx) error {
					_, err := tx.AppendEvent(r.ID, "k", []byte("1"))
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := see(t, s, func(tx *Tx) (uint64, error) { return tx.LastEvent(r.ID) }); n != 128 {
		t.Errorf("last event %d, want 128", n)
	}
	check(t, s)
}

// TestApprovalRace: of many answers one counts.
func TestApprovalRace(t *testing.T) {
	s := newStore(t)
	r := newRun(t, s)
	a := &Approval{Run: r.ID, Session: r.Session, Requester: "uid:1000", Request: []byte("{}"), Capsule: canon.Sum([]byte("c")),
		PolicySet: canon.Sum([]byte("p")), Scope: "once", Expires: time.Now().Add(time.Hour)}
	do(t, s, func(tx *Tx) error { return tx.CreateApproval(a) })
	var mu sync.Mutex
	won := ""
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			state := []ApprovalState{ApprovalApproved, ApprovalDenied}[i%2]
			who := fmt.Sprint("uid:", i)
			err := s.Update(context.Background(), func(tx *Tx) error {
				_, err := tx.ResolveApproval(a.ID, 1, Resolution{State: state, Approver: who, Surface: "test"})
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && won == "":
				won = who + " " + string(state)
			case err == nil:
				t.Errorf("%s and %s both won", won, who)
			default:
				wants(t, err, fault.Busy, "version_conflict")
			}
		})
	}
	wg.Wait()
	got := see(t, s, func(tx *Tx) (*Approval, error) { return tx.Approval(a.ID) })
	if got.Approver+" "+string(got.State) != won || got.Version != 2 || got.Answered.IsZero() {
		t.Errorf("%+v, and %q won", got, won)
	}
	check(t, s)
}

func TestApprovals(t *testing.T) {
	s := newStore(t)
	ctx := context.Background()
	add := func(expires time.Duration) *Approval {
		a := &Approval{Requester: "uid:1", Request: []byte(`{"card":1}`), Capsule: canon.Sum([]byte("c")), PolicySet: canon.Sum([]byte("p")),
			Created: time.Now().Add(-time.Hour).UTC(), Expires: time.Now().Add(expires).UTC()}
		do(t, s, func(tx *Tx) error { return tx.CreateApproval(a) })
		return a
	}
	resolve := func(id string, version int64, r Resolution) error {
		return s.Update(ctx, func(tx *Tx) error { _, err := tx.ResolveApproval(id, version, r); return err })
	}
	use := func(id string) error { return s.Update(ctx, func(tx *Tx) error { return tx.UseApproval(id) }) }
	yes := Resolution{State: ApprovalApproved, Approver: "uid:2", Surface: "cli"}

	late := add(-time.Second)
	wants(t, resolve(late.ID, 1, yes), fault.NotApproved, "approval_expired")
	wants(t, use(late.ID), fault.NotApproved, "not_approved")
	if err := resolve(late.ID, 1, Resolution{State: ApprovalExpired}); err != nil {
		t.Error(err)
	}
	wants(t, resolve(late.ID, 1, yes), fault.Busy, "version_conflict")
	wants(t, resolve(late.ID, 2, yes), fault.Busy, "version_conflict")

	a := add(time.Hour)
	wants(t, resolve(a.ID, 1, Resolution{State: ApprovalApproved}), fault.Usage, "invalid_input", "names no approver")
	wants(t, resolve(a.ID, 1, Resolution{State: ApprovalPending}), fault.Usage, "invalid_input", "does not end a request")
	wants(t, resolve("apr_x", 1, yes), fault.NotFound, "not_found")
	if got := see(t, s, func(tx *Tx) ([]Approval, error) {
		return tx.Approvals(ApprovalFilter{States: []ApprovalState{ApprovalPending}}, Page{})
	}); len(got) != 1 || got[0].ID != a.ID || !bytes.Equal(got[0].Request, a.Request) {
		t.Errorf("pending: %+v", got)
	}
	// Heads come without the card, and have all the rest.
	head := *see(t, s, func(tx *Tx) (*Approval, error) { return tx.Approval(a.ID) })
	head.Request = nil
	if got := see(t, s, func(tx *Tx) (*Approval, error) { return tx.ApprovalHead(a.ID) }); !reflect.DeepEqual(*got, head) {
		t.Errorf("head: %+v, want %+v", *got, head)
	}
	if got := see(t, s, func(tx *Tx) ([]Approval, error) {
		return tx.Approvals(ApprovalFilter{States: []ApprovalState{ApprovalPending}, Heads: true}, Page{})
	}); len(got) != 1 || !reflect.DeepEqual(got[0], head) {
		t.Errorf("heads: %+v", got)
	}
	_, err := View(ctx, s, func(tx *Tx) (*Approval, error) { return tx.ApprovalHead("apr_x") })
	wants(t, err, fault.NotFound, "not_found")
	if err := resolve(a.ID, 1, yes); err != nil {
		t.Fatal(err)
	}
	if err := use(a.ID); err != nil {
		t.Fatal(err)
	}
	wants(t, use(a.ID), fault.NotApproved, "not_approved", "was used")
	check(t, s)
}

func TestIdempotency(t *testing.T) {
	s := newStore(t)
	ctx := context.Background()
	row := Idempotency{Principal: "uid:1", Key: "k", Request: canon.Sum([]byte("r")), Expires: time.Now().Add(time.Hour)}
	begin := func(i Idempotency) (old *Idempotency, err error) {
		err = s.Update(ctx, func(tx *Tx) error { old, err = tx.BeginIdempotent(i); return err })
		return old, err
	}
	if old, err := begin(row); old != nil || err != nil {
		t.Fatalf("first: %+v, %v", old, err)
	}
	if old, err := begin(row); err != nil || old == nil || old.Response != nil {
		t.Errorf("second: %+v, %v", old, err)
	}
	do(t, s, func(tx *Tx) error { return tx.FinishIdempotent("uid:1", "k", nil) })
	if old, err := begin(row); err != nil || old.Response == nil {
		t.Errorf("after an empty response: %+v, %v", old, err)
	}
	wants(t, s.Update(ctx, func(tx *Tx) error { return tx.FinishIdempotent("uid:1", "k", nil) }), fault.NotFound, "not_found")
	other := row
	other.Request = canon.Sum([]byte("other"))
	_, err := begin(other)
	wants(t, err, fault.Usage, "idempotency_key_reused")
	other.Principal = "uid:2"
	if old, err := begin(other); old != nil || err != nil {
		t.Errorf("another principal's: %+v, %v", old, err)
	}
	do(t, s, func(tx *Tx) error { return tx.AbandonIdempotent("uid:2", "k") })
	if old, err := begin(other); old != nil || err != nil {
		t.Errorf("after it was given back: %+v, %v", old, err)
	}
	past := Idempotency{Principal: "uid:3", Key: "k", Request: row.Request, Created: time.Now().Add(-time.Hour), Expires: time.Now().Add(-time.Minute)}
	if _, err := begin(past); err != nil {
		t.Fatal(err)
	}
	if old, err := begin(past); old != nil || err != nil {
		t.Errorf("after its time: %+v, %v", old, err)
	}
	do(t, s, func(tx *Tx) error {
		if n, err := tx.ExpireIdempotent(10); n != 1 || err != nil {
			return fmt.Errorf("expired %d, %w", n, err)
		}
		return nil
	})
	check(t, s)
}

func TestSettings(t *testing.T) {
	s := newStore(t)
	a := &Setting{Key: "k", Value: []byte("1")}
	do(t, s, func(tx *Tx) error { return tx.PutSetting(a) })
	stale := Setting{Key: "k", Value: []byte("2")}
	wants(t, s.Update(context.Background(), func(tx *Tx) error { return tx.PutSetting(&stale) }), fault.Busy, "version_conflict")
	a.Value = []byte("3")
	do(t, s, func(tx *Tx) error { return tx.PutSetting(a) })
	got := see(t, s, func(tx *Tx) (*Setting, error) { return tx.Setting("k") })
	if string(got.Value) != "3" || got.Version != 2 || a.Version != 2 {
		t.Errorf("%+v", got)
	}
}

package session

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/kernel/store"
)

func TestTable(t *testing.T) {
	states := []store.SessionState{store.SessionOpen, store.SessionEnded}
	for _, from := range states {
		for _, to := range states {
			want := from == store.SessionOpen && to == store.SessionEnded
			if got := slices.Contains(next[from], to); got != want {
				t.Errorf("%s to %s: %v", from, to, got)
			}
		}
	}
}

func TestSession(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "store"), store.Options{})
	if fault.KindOf(err) == fault.Unsupported {
		t.Skip("needs linux")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	ctx := t.Context()
	for _, title := range []string{strings.Repeat("x", MaxTitle+1), "\xff", "a\x00b"} {
		if _, err := Create(ctx, st, "uid:1", title, 1); fault.ReasonOf(err) != "bad_title" {
			t.Errorf("title %q: %v", title, err)
		}
	}
	if _, err := Create(ctx, st, "", "", 1); fault.KindOf(err) != fault.Denied {
		t.Errorf("a session of nobody: %v", err)
	}
	s, err := Create(ctx, st, "uid:1", "title", 1)
	if err != nil || s.Version != 1 || s.ID == "" {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := End(ctx, st, s.ID, 7); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("another version: %v", err)
	}
	if _, err := Create(ctx, st, "uid:1", "one more", 1); fault.KindOf(err) != fault.Busy || fault.ReasonOf(err) != "too_many_sessions" {
		t.Errorf("a session more than the bound: %v", err)
	}
	if _, err := Create(ctx, st, "uid:2", "of somebody else", 1); err != nil {
		t.Error(err)
	}
	e, err := End(ctx, st, s.ID, 1)
	if err != nil || e.State != store.SessionEnded || e.Ended.IsZero() || e.Version != 2 {
		t.Fatalf("%+v, %v", e, err)
	}
	if _, err := Create(ctx, st, "uid:1", "in its place", 1); err != nil {
		t.Error(err)
	}
	if again, err := End(ctx, st, s.ID, 1); err != nil || again.Version != 2 {
		t.Errorf("again: %+v, %v", again, err)
	}
	if _, err := End(ctx, st, "ses_00000000000000000000000000000000", 0); fault.KindOf(err) != fault.NotFound {
		t.Errorf("no session: %v", err)
	}
}

func TestLines(t *testing.T) {
	l := NewLines(Bounds{Active: 2, Queue: 3, Line: 2, Paused: 1})
	enter := func(session, run string, want Place) {
		t.Helper()
		if got, err := l.Enter(session, run, "p"); got != want || (err == nil) != (want != Gone) || err != nil && fault.ReasonOf(err) != "queue_full" {
			t.Fatalf("%s: %v, %v, want %v", run, got, err, want)
		}
	}
	enter("a", "a1", Active)
	enter("a", "a2", Queued)
	enter("a", "a3", Queued)
	enter("a", "a4", Gone) // its line is full
	enter("b", "b1", Active)
	enter("c", "c1", Head)
	enter("d", "d1", Gone) // the queue is full
	if p := l.Restore("d", "d1", "p"); p != Head {
		t.Fatalf("restored at %v", p)
	}
	if m := l.Leave("a1"); m.Head != "a2" || !slices.Equal(m.Active, []string{"c1"}) {
		t.Fatalf("%+v", m) // the longest waiting head, not the next of a
	}
	if m := l.Pause("b1"); !slices.Equal(m.Active, []string{"d1"}) {
		t.Fatalf("%+v", m)
	}
	if m := l.Pause("c1"); m.Active != nil { // no more may pause
		t.Fatalf("%+v", m)
	}
	enter("b", "b2", Queued) // the session's run is still the active one
	l.Resume("b1")
	if active, waiting := l.Counts(); active != 3 || waiting != 3 {
		t.Fatalf("%d active, %d waiting", active, waiting)
	}
	if m := l.Leave("c1"); m.Active != nil { // two are still at work
		t.Fatalf("%+v", m)
	}
	if m := l.Leave("a3"); m.Head != "" || m.Active != nil { // out of the middle
		t.Fatalf("%+v", m)
	}
	if m := l.Leave("b1"); m.Head != "b2" || !slices.Equal(m.Active, []string{"a2"}) {
		t.Fatalf("%+v", m)
	}
	if l.Place("b2") != Head || l.Place("a1") != Gone {
		t.Errorf("b2 at %v, a1 at %v", l.Place("b2"), l.Place("a1"))
	}
	if m := l.Leave("none"); m.Head != "" || m.Active != nil {
		t.Errorf("%+v", m)
	}
}

// TestLinesEach: the bound of one principal, over its sessions, is nobody else's.
func TestLinesEach(t *testing.T) {
	l := NewLines(Bounds{Active: 1, Queue: 4, Each: 2, Line: 2})
	for _, e := range []struct {
		session, run, principal string
		want                    Place
		reason                  string
	}{
		{"a", "a1", "p", Active, ""}, {"a", "a2", "p", Queued, ""}, {"b", "b1", "p", Head, ""},
		{"c", "c1", "p", Gone, "too_many_runs"}, {"d", "d1", "q", Head, ""}, {"e", "e1", "q", Head, ""},
		{"f", "f1", "r", Gone, "queue_full"}, {"d", "d2", "q", Gone, "too_many_runs"},
	} {
		got, err := l.Enter(e.session, e.run, e.principal)
		if got != e.want || fault.ReasonOf(err) != e.reason {
			t.Errorf("%s: %v, %v", e.run, got, err)
		}
	}
	if p := l.Restore("c", "c1", "p"); p != Head { // it has been promised
		t.Errorf("restored at %v", p)
	}
	l.Leave("a2")
	l.Leave("b1")
	l.Leave("d1")
	if p, err := l.Enter("a", "a3", "p"); p != Queued || err != nil {
		t.Errorf("a place again: %v, %v", p, err)
	}
}

// TestLinesHold: whatever happens, in whichever order, a session has one active
// run, the bounds hold, no place stays empty while somebody waits, and in a
// session runs become active in the order in which they came.
func TestLinesHold(t *testing.T) {
	owner := func(session string) string { return map[bool]string{true: "p", false: "q"}[session < "c"] }
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := Bounds{Active: 1 + rng.IntN(3), Queue: 1 + rng.IntN(6), Line: 1 + rng.IntN(3), Each: 1 + rng.IntN(4), Paused: 1 + rng.IntN(2)}
		l := NewLines(b)
		var live []string
		order := make(map[string][]string) // by session: entered and not yet active
		resumed := 0                       // over the bound, because a person said yes
		activate := func(run string) {
			s := run[:1]
			if order[s][0] != run {
				t.Fatalf("seed %d: %s overtook %v", seed, run, order[s])
			}
			order[s] = order[s][1:]
		}
		for i := range 300 {
			switch rng.IntN(4) {
			case 0, 1:
				s := string(rune('a' + rng.IntN(4)))
				run := fmt.Sprintf("%s%d", s, i)
				p, err := l.Enter(s, run, owner(s))
				if err != nil {
					continue
				}
				live = append(live, run)
				order[s] = append(order[s], run)
				if p == Active {
					activate(run)
				}
			case 2:
				if len(live) == 0 {
					continue
				}
				i := rng.IntN(len(live))
				run := live[i]
				live = slices.Delete(live, i, i+1)
				if l.Place(run) != Active {
					order[run[:1]] = slices.DeleteFunc(order[run[:1]], func(r string) bool { return r == run })
				}
				for _, r := range l.Leave(run).Active {
					activate(r)
				}
			case 3:
				if len(live) == 0 {
					continue
				}
				run := live[rng.IntN(len(live))]
				if s := l.runs[run]; s.paused {
					l.Resume(run)
					resumed = max(resumed, l.active)
				} else {
					for _, r := range l.Pause(run).Active {
						activate(r)
					}
				}
			}
			active := make(map[string]int)
			n, waiting := 0, 0
			each := make(map[string]int)
			for _, run := range live {
				switch s := l.runs[run]; s.place {
				case Active:
					active[s.session]++
					if !s.paused {
						n++
					}
				default:
					waiting++
					each[s.principal]++
				}
			}
			if !maps.Equal(each, l.each) || each["p"] > b.Each || each["q"] > b.Each {
				t.Fatalf("seed %d: %v wait, lines say %v, the bound is %d", seed, each, l.each, b.Each)
			}
			for s, n := range active {
				if n > 1 {
					t.Fatalf("seed %d: %d active runs in %s", seed, n, s)
				}
			}
			if n != l.active || waiting != l.waiting || waiting > b.Queue || l.paused > b.Paused {
				t.Fatalf("seed %d: %d at work, %d wait; lines say %+v", seed, n, waiting, l)
			}
			if n > max(b.Active, resumed) || n < b.Active && len(l.heads) > 0 {
				t.Fatalf("seed %d: %d of %d at work while %v wait", seed, n, b.Active, l.heads)
			}
		}
	}
}

// TestLinesBegun: one principal's runs that wait for a person, however many they
// are, leave places to others; when one of them goes the next one begins.
func TestLinesBegun(t *testing.T) {
	l := NewLines(Bounds{Active: 2, Paused: 8, Each: 100})
	var first string
	for i := range 20 {
		id := fmt.Sprint("x", i)
		p, err := l.Enter("session of "+id, id, "uid:1")
		if err != nil {
			t.Fatal(err)
		}
		if p == Active {
			if first == "" {
				first = id
			}
			if m := l.Pause(id); len(m.Active) != 0 {
				t.Errorf("%s made room for %v", id, m.Active)
			}
		}
	}
	for i := range 2 {
		if p, err := l.Enter(fmt.Sprint("y", i), fmt.Sprint("y", i), "uid:2"); p != Active || err != nil {
			t.Errorf("another's run %d: place %v, %v", i, p, err)
		}
	}
	if m := l.Leave("y0"); len(m.Active) != 0 {
		t.Errorf("runs %v of one that has as many as it may", m.Active)
	}
	if m := l.Leave(first); len(m.Active) != 1 || m.Active[0] != "x6" {
		t.Errorf("when one went, %v began", m.Active)
	}
}

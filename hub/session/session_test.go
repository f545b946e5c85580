package session

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/fault"
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
		if _, err := Create(ctx, st, "uid:1", title, 1); fault.ReasonOf(err) != "invalid_input" {
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
	if _, err := Create(ctx, st, "uid:1", "one more", 1); fault.KindOf(err) != fault.Busy || fault.ReasonOf(err) != "too_many" {
		t.Errorf("a session more than the bound: %v", err)
	}
	if _, err := Create(ctx, st, "uid:2", "of somebody else", 1); err != nil {
		t.Error(err)
	}
	r := &store.Run{Session: s.ID, Principal: "uid:1", Plan: []byte("{}")}
	if err := st.Update(ctx, func(tx *store.Tx) error { return tx.CreateRun(r) }); err != nil {
		t.Fatal(err)
	}
	if _, err := EndIdle(ctx, st, s.ID, 1); !errors.Is(err, fault.ErrLocked) {
		t.Errorf("while a run waits in it: %v", err)
	}
	e, err := End(ctx, st, s.ID, 1)
	if err != nil || e.State != store.SessionEnded || e.Ended.IsZero() || e.Version != 2 {
		t.Fatalf("%+v, %v", e, err)
	}
	if _, err := Create(ctx, st, "uid:1", "in its place", 1); err != nil {
		t.Error(err)
	}
	idle, err := Create(ctx, st, "uid:3", "nothing in it", 1)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := EndIdle(ctx, st, idle.ID, 1); err != nil || e.State != store.SessionEnded {
		t.Errorf("idle: %+v, %v", e, err)
	}
	if again, err := End(ctx, st, s.ID, 1); err != nil || again.Version != 2 {
		t.Errorf("again: %+v, %v", again, err)
	}
	if _, err := End(ctx, st, "ses_00000000000000000000000000000000", 0); fault.KindOf(err) != fault.NotFound {
		t.Errorf("no session: %v", err)
	}
}

// of is a principal without the reserve.
func of(name string) budget.Owner { return budget.Owner{Name: name} }

func TestLines(t *testing.T) {
	l := NewLines(Bounds{Active: 2, Share: 2, Queue: 4, Line: 2, Paused: 1})
	enter := func(session, run string, want Place) {
		t.Helper()
		if got, err := l.Enter(session, run, of("p"), false); got != want || (err == nil) != (want != Gone) || err != nil && fault.KindOf(err) != fault.Busy {
			t.Fatalf("%s: %v, %v, want %v", run, got, err, want)
		}
	}
	enter("a", "a1", Active)
	enter("a", "a2", Queued)
	enter("a", "a3", Queued)
	enter("a", "a4", Gone) // its line is full
	enter("b", "b1", Active)
	enter("c", "c1", Head)
	enter("d", "d1", Gone) // three quarters of the queue
	if p := l.Restore("d", "d1", of("p"), false); p != Head {
		t.Fatalf("restored at %v", p)
	}
	if m := l.Leave("a1"); !slices.Equal(m.Heads, []string{"a2"}) || !slices.Equal(m.Active, []string{"c1"}) {
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
	if m := l.Leave("a3"); m.Heads != nil || m.Active != nil { // out of the middle
		t.Fatalf("%+v", m)
	}
	if m := l.Leave("b1"); !slices.Equal(m.Heads, []string{"b2"}) || !slices.Equal(m.Active, []string{"a2"}) {
		t.Fatalf("%+v", m)
	}
	if l.Place("b2") != Head || l.Place("a1") != Gone {
		t.Errorf("b2 at %v, a1 at %v", l.Place("b2"), l.Place("a1"))
	}
	if m := l.Leave("none"); m.Heads != nil || m.Active != nil {
		t.Errorf("%+v", m)
	}
}

// TestLinesEach: the bound of one principal, over its sessions, doesn't bind another.
func TestLinesEach(t *testing.T) {
	l := NewLines(Bounds{Active: 1, Queue: 4, Each: 2, Line: 2})
	for _, e := range []struct {
		session, run, principal string
		want                    Place
		reason                  string
	}{
		{"a", "a1", "p", Active, ""}, {"a", "a2", "p", Queued, ""}, {"b", "b1", "p", Head, ""},
		{"c", "c1", "p", Gone, "too_many"}, {"d", "d1", "q", Head, ""}, {"e", "e1", "q", Head, ""},
		{"f", "f1", "r", Gone, "queue_full"}, {"d", "d2", "q", Gone, "too_many"},
	} {
		got, err := l.Enter(e.session, e.run, of(e.principal), false)
		if got != e.want || fault.ReasonOf(err) != e.reason {
			t.Errorf("%s: %v, %v", e.run, got, err)
		}
	}
	if p := l.Restore("c", "c1", of("p"), false); p != Head { // it has been promised
		t.Errorf("restored at %v", p)
	}
	l.Leave("a2")
	l.Leave("b1")
	l.Leave("d1")
	if p, err := l.Enter("a", "a3", of("p"), false); p != Queued || err != nil {
		t.Errorf("a place again: %v, %v", p, err)
	}
}

// TestLinesHold: whatever happens, in whichever order, a session has one active
// run, or parallel ones up to the bound, the bounds hold, no place stays empty while a run waits that may have it,
// and in a session runs become active in the order in which they came.
func TestLinesHold(t *testing.T) {
	owners := map[string]budget.Owner{"a": of("p"), "b": of("p"), "c": of("q"), "d": of("q"), "e": of("r"), "f": {Name: "p", Reserve: true}}
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := Bounds{Active: 1 + rng.IntN(6), Share: rng.IntN(3), Queue: 1 + rng.IntN(9), Line: 1 + rng.IntN(3), Each: 1 + rng.IntN(4), Paused: 1 + rng.IntN(2), Wide: 1 + rng.IntN(3)}
		l := NewLines(b)
		b = b.withDefaults()
		var live []string
		order := make(map[string][]string) // by session: entered and not yet active
		resumed := make(map[budget.Owner]bool)
		returning := make(map[string]bool)
		activate := func(run string) {
			s := run[:1]
			if returning[run] {
				delete(returning, run)
				return
			}
			if order[s][0] != run {
				t.Fatalf("seed %d: %s overtook %v", seed, run, order[s])
			}
			order[s] = order[s][1:]
		}
		for i := range 300 {
			switch rng.IntN(4) {
			case 0, 1:
				s := string(rune('a' + rng.IntN(len(owners))))
				run, parallel := fmt.Sprintf("%s%d", s, i), rng.IntN(3) > 0
				p, err := l.Enter(s, run, owners[s], parallel)
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
				delete(returning, run)
				for _, r := range l.Leave(run).Active {
					activate(r)
				}
			case 3:
				if len(live) == 0 {
					continue
				}
				run := live[rng.IntN(len(live))]
				switch s := l.runs[run]; {
				case s.paused && rng.IntN(2) == 0:
					l.Resume(run)
					delete(returning, run)
					resumed[s.account.owner] = true
				case s.paused:
					if !l.Return(run) {
						returning[run] = true
					}
				default:
					for _, r := range l.Pause(run).Active {
						activate(r)
					}
				}
			}
			var all counted
			each := make(map[budget.Owner]*counted)
			active := make(map[string]int) // by session
			for _, o := range owners {
				each[o] = &counted{}
			}
			for _, run := range live {
				s := l.runs[run]
				one := each[s.account.owner]
				switch {
				case s.place != Active:
					one.waiting++
				case !s.paused:
					one.work++
				}
				if s.place == Active {
					active[s.session]++
				}
			}
			for s, n := range active {
				if n > b.Wide {
					t.Fatalf("seed %d: %d active runs in %s", seed, n, s)
				}
			}
			for s, line := range l.lines {
				begun := 0 // at the front, beside each other
				for begun < len(line) && l.Place(line[begun]) != Queued {
					begun++
				}
				for i, run := range line {
					if (l.Place(run) != Queued) != (i < begun) || i < begun && begun > 1 && !l.runs[run].parallel {
						t.Fatalf("seed %d: %s stands %v in %v of %s", seed, run, l.Place(run), line, s)
					}
				}
				if next := min(begun, len(line)-1); begun == 0 || begun < len(line) && begun < b.Wide && l.runs[line[0]].parallel && l.runs[line[next]].parallel {
					t.Fatalf("seed %d: %d of %v in %s have a turn", seed, begun, line, s)
				}
			}
			taken := 0
			for o, n := range each {
				all.work += n.work
				all.waiting += n.waiting
				if a := l.account(o); a.work != n.work || a.waiting != n.waiting || n.waiting > b.Each {
					t.Fatalf("seed %d: %+v: %+v, lines say %+v, the bound is %d", seed, o, n, a, b.Each)
				}
				if o.Reserve {
					taken += n.work
				} else if taken += min(n.work, b.most); n.work > b.most && !resumed[o] {
					t.Fatalf("seed %d: %d runs of %+v at work, the most is %d", seed, n.work, o, b.most)
				}
			}
			if l.active != all.work || l.waiting != all.waiting || l.taken != taken || l.paused > b.Paused || all.waiting > b.Queue+Reserve(b.Queue) {
				t.Fatalf("seed %d: %+v, %d taken; lines say %+v", seed, all, taken, l)
			}
			if len(resumed) == 0 && all.work > b.Active+Reserve(b.Active) {
				t.Fatalf("seed %d: %d of %d at work", seed, all.work, b.Active)
			}
			for _, a := range l.round {
				if len(a.heads)+len(a.back) == 0 || l.mayGoOn(a) {
					t.Fatalf("seed %d: %v and %v of %+v wait, with %d of %d places taken", seed, a.heads, a.back, a.owner, l.taken, b.Active)
				}
				for _, run := range a.back {
					if !returning[run] {
						t.Fatalf("seed %d: %s is to return, and was not asked to", seed, run)
					}
				}
			}
			for run := range returning {
				if !slices.Contains(l.runs[run].account.back, run) {
					t.Fatalf("seed %d: %s is forgotten", seed, run)
				}
			}
		}
		for _, run := range live {
			l.Leave(run)
		}
		if l.taken+l.active+l.paused+l.waiting+len(l.whose)+len(l.round)+len(l.runs)+len(l.lines) != 0 {
			t.Fatalf("seed %d: %+v after the last run", seed, l)
		}
	}
}

// TestReturnsTakeTurns: the runs of two principals that return don't keep the next of
// a third from its turn.
func TestReturnsTakeTurns(t *testing.T) {
	l := NewLines(Bounds{Active: 2, Share: 1, Queue: 9, Each: 9})
	for _, run := range []string{"a1", "a2", "a3", "b1", "b2", "b3"} {
		if p, err := l.Enter(run, run, of(run[:1]), false); err != nil || p != Active {
			t.Fatal(run, p, err)
		}
		l.Pause(run)
	}
	for _, run := range []string{"a1", "b1", "a2", "b2", "a3", "b3"} {
		if l.Return(run) != (run[1] == '1') {
			t.Fatalf("%s returns", run)
		}
	}
	if p, err := l.Enter("c", "c1", of("c"), false); err != nil || p != Head {
		t.Fatal(p, err)
	}
	var got []string
	for _, run := range []string{"a1", "b1", "a2", "b2"} {
		got = append(got, l.Leave(run).Active...)
	}
	if want := []string{"a2", "b2", "c1"}; !slices.Equal(got[:3], want) {
		t.Errorf("turns: %v, want %v first", got, want)
	}
}

type counted struct{ work, waiting int }

// TestLinesShare: runs of one principal that never end leave a place to the next
// principal, and to the owner, with however few places there are.
func TestLinesShare(t *testing.T) {
	for _, test := range []struct {
		bounds      Bounds
		alone, next int // places of one principal, and of another after it
		owner       int // and of an owner after both
	}{
		{Bounds{}, 6, 2, 1},
		{Bounds{Active: 1}, 1, 0, 1}, // the place is everybody's
		{Bounds{Active: 2}, 1, 1, 1},
		{Bounds{Active: 3}, 2, 1, 1},
		{Bounds{Active: 4}, 3, 1, 1},
		{Bounds{Active: 16}, 12, 4, 2},
		{Bounds{Share: 4}, 4, 4, 1},
		{Bounds{Share: 100}, 8, 0, 1},
	} {
		l := NewLines(test.bounds)
		enter := func(o budget.Owner) (active int) {
			for i := range 56 {
				if p, _ := l.Enter(fmt.Sprint(o, i), fmt.Sprint(o, i), o, false); p == Active {
					active++
				}
			}
			return active
		}
		alone, next := enter(of("x")), enter(of("y"))
		// The owner's own tokens have what others have.
		owner := enter(budget.Owner{Name: "x", Reserve: true})
		if alone != test.alone || next != test.next || owner != test.owner {
			t.Errorf("%+v: %d at work, then %d, and %d of the owner; want %+v", test.bounds, alone, next, owner, test)
		}
	}
}

// TestLinesRound: places that come free go round the principals, and a principal
// that has more than half gets none of them while another waits.
func TestLinesRound(t *testing.T) {
	l := NewLines(Bounds{Active: 4, Queue: 40})
	enter := func(run string, want Place) {
		t.Helper()
		if p, err := l.Enter("session of "+run, run, of(run[:1]), false); p != want || err != nil {
			t.Fatalf("%s: %v, %v", run, p, err)
		}
	}
	for _, run := range []string{"x1", "x2", "x3"} {
		enter(run, Active)
	}
	for _, run := range []string{"x4", "x5", "x6"} {
		enter(run, Head)
	}
	enter("y1", Active)
	for _, run := range []string{"y2", "y3", "y4", "z1", "z2"} {
		enter(run, Head)
	}
	var got []string
	for _, run := range []string{"x1", "x2", "y1", "x3", "y2", "z1", "x4", "y3", "z2"} {
		got = append(got, strings.Join(l.Leave(run).Active, " "))
	}
	// When x1 goes x has two, half of the places: y is next in turn.
	want := []string{"y2", "x4", "z1", "y3", "x5", "z2", "y4", "x6", ""}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLinesLine: one principal doesn't fill the line alone, and all of them not
// the owner's part of it.
func TestLinesLine(t *testing.T) {
	l := NewLines(Bounds{Active: 1, Queue: 16, Each: 1000})
	fill := func(o budget.Owner) (n int, reason string) {
		for i := range 100 {
			_, err := l.Enter(fmt.Sprint(o, i), fmt.Sprint(o, i), o, false)
			if err != nil {
				return n, fault.ReasonOf(err)
			}
			n++
		}
		return n, ""
	}
	for _, test := range []struct {
		owner  budget.Owner
		n      int
		reason string
	}{{of("x"), 1 + 12, "too_many"}, {of("y"), 4, "queue_full"}, {of("z"), 0, "queue_full"}, {budget.Owner{Name: "x", Reserve: true}, 1 + 2, "queue_full"}} {
		if n, reason := fill(test.owner); n != test.n || reason != test.reason {
			t.Errorf("%+v: %d, %s, want %+v", test.owner, n, reason, test)
		}
	}
	if _, err := NewLines(Bounds{Active: 1, Queue: -1, Share: 1}).Enter("a", "a", of("x"), false); err != nil {
		t.Errorf("without a line: %v", err)
	}
}

// TestLinesResumed: runs of one principal that go on after a pause, beyond its
// share, take no place of another's.
func TestLinesResumed(t *testing.T) {
	l := NewLines(Bounds{Active: 4})
	for i := range 20 {
		id := fmt.Sprint("x", i)
		if p, err := l.Enter(id, id, of("x"), false); p != Active || err != nil {
			t.Fatalf("%s: %v, %v", id, p, err)
		}
		l.Pause(id)
	}
	for i := range 20 {
		l.Resume(fmt.Sprint("x", i))
	}
	if p, err := l.Enter("x", "x", of("x"), false); p != Head || err != nil {
		t.Errorf("one more of them: %v, %v", p, err)
	}
	if p, err := l.Enter("y", "y", of("y"), false); p != Active || err != nil {
		t.Errorf("another's: %v, %v", p, err)
	}
}

// TestLinesBegun: one principal's runs that wait for a person, however many they
// are, leave places to others; when one of them goes the next one begins.
func TestLinesBegun(t *testing.T) {
	l := NewLines(Bounds{Active: 2, Share: 2, Paused: 8, Queue: 100, Each: 100})
	var first string
	for i := range 20 {
		id := fmt.Sprint("x", i)
		p, err := l.Enter("session of "+id, id, of("uid:1"), false)
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
		if p, err := l.Enter(fmt.Sprint("y", i), fmt.Sprint("y", i), of("uid:2"), false); p != Active || err != nil {
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

// TestLinesParallel: parallel runs of a session that follow each other are made together, and one
// that isn't waits for those before it, as those behind it wait for it.
func TestLinesParallel(t *testing.T) {
	l := NewLines(Bounds{Active: 16, Share: 16, Line: 3, Wide: 2})
	for _, e := range []struct {
		run      string
		parallel bool
		want     Place
	}{{"1", true, Active}, {"2", true, Active}, {"3", true, Queued}, {"4", false, Queued}, {"5", true, Queued}, {"6", true, Gone}} {
		if p, err := l.Enter("a", e.run, of("p"), e.parallel); p != e.want || (p == Gone) != (fault.ReasonOf(err) == "queue_full") {
			t.Fatalf("%s: %v, %v", e.run, p, err)
		}
	}
	for _, e := range []struct{ leaves, get string }{{"2", "3"}, {"1", ""}, {"3", "4"}, {"4", "5"}} {
		if m := l.Leave(e.leaves); strings.Join(m.Active, " ") != e.get || strings.Join(m.Heads, " ") != e.get {
			t.Errorf("%s leaves: %+v, want %s", e.leaves, m, e.get)
		}
	}
	if p, err := l.Enter("a", "7", of("p"), true); p != Active || err != nil {
		t.Errorf("beside one: %v, %v", p, err)
	}
	if p, err := l.Enter("a", "8", of("p"), false); p != Queued || err != nil {
		t.Errorf("not parallel: %v, %v", p, err)
	}
}

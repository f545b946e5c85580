package session

import (
	"fmt"
	"slices"

	"palyra/internal/budget"
	"palyra/internal/fault"
)

// Bounds are the sizes of Lines. Zero fields have the defaults, negative ones
// are none.
//
// Owners at the socket have an eighth more of Active and of Queue, rounded up,
// which no one else can take. Share doesn't bind them.
type Bounds struct {
	Active int // runs at work at the same time; default 8
	// Share is how many of these places one principal has. Default: half of them,
	// and more as long as a quarter of them stays free. 48 calls of 500 ms of a
	// principal that is alone took 4.6 s then, 3.5 s with a share of all 8 places and
	// 6.8 s with one of half; calls of 1 ms took the same (2 processors).
	Share  int
	Queue  int // runs that wait, in all sessions together; default 64
	Each   int // runs of one principal that wait, at most three quarters of Queue; default 48
	Line   int // runs that wait in one session; default 16
	Wide   int // parallel runs of one session at work; default 8
	Paused int // runs that wait for a person and give their place to others meanwhile; default 256
	// Begun bounds the runs of one principal at work or paused; default Active and a
	// quarter of Paused.
	Begun int

	most int // places of one principal that finds all of them free
}

func (b Bounds) withDefaults() Bounds {
	for _, f := range []struct {
		v   *int
		def int
	}{{&b.Active, 8}, {&b.Queue, 64}, {&b.Each, 48}, {&b.Line, 16}, {&b.Wide, 8}, {&b.Paused, 256}} {
		if *f.v == 0 {
			*f.v = f.def
		}
		*f.v = max(*f.v, 0)
	}
	if b.Begun <= 0 {
		b.Begun = b.Active + max(b.Paused/4, min(b.Paused, 4))
	}
	if b.most = min(b.Share, b.Active); b.Share <= 0 {
		b.Share, b.most = max(1, b.Active/2), allButAQuarter(b.Active)
	}
	if b.Queue > 0 {
		b.Each = min(b.Each, allButAQuarter(b.Queue))
	}
	return b
}

// allButAQuarter returns one principal's part of n: something is left for another, unless n
// is 1.
func allButAQuarter(n int) int { return min(n, max(1, n-max(1, n/4))) }

// Reserve returns how many more than n there are for owners at the socket.
func Reserve(n int) int { return (n + 7) / 8 }

// Place is a run's place in Lines. The zero Place is none.
type Place uint8

// The places, from back to front.
const (
	Gone   Place = iota
	Queued       // behind another run of its session, beside which it isn't made
	Head         // the next of its session, or beside that; waits for a place
	Active       // at work
)

// Moves are the runs that a change lets move.
type Moves struct {
	Heads  []string // the runs of a session that are now next
	Active []string // runs that have got a place; one that returns was in Active all the time
}

// Lines is the order in which runs get their turn. A session makes one run at a time; parallel
// ones that follow each other in its line may be at work together. Free places go round the
// principals; each gives its place to the run that has waited longest as the next of its session.
// An owner's runs from the socket and those from elsewhere in the same name are accounts of
// their own ([budget.Owner]).
//
// It is a plain data structure: its owner locks. The zero Lines is useless; see NewLines.
type Lines struct {
	bounds  Bounds
	lines   map[string][]string // run ids by session; the front ones (see front) are Head or Active
	runs    map[string]*standing
	whose   map[budget.Owner]*account // of those that have a run here
	round   []*account                // those that want a place, in the order of their turns
	active  int                       // runs in Active that are not paused
	taken   int                       // places that are not free
	paused  int                       // runs in Active that gave their place away
	waiting int                       // runs in Queued or Head
}

// account has one principal's runs in Lines.
type account struct {
	owner   budget.Owner
	runs    int      // of any place
	heads   []string // runs in Head, the longest waiting first
	back    []string // paused runs that want a place again, likewise; they go before heads
	work    int      // runs in Active that are not paused
	begun   int      // runs in Active
	waiting int      // runs in Queued or Head
}

type standing struct {
	session  string
	account  *account
	place    Place
	parallel bool
	paused   bool
}

// NewLines returns empty lines.
func NewLines(b Bounds) *Lines {
	return &Lines{bounds: b.withDefaults(), lines: make(map[string][]string), runs: make(map[string]*standing), whose: make(map[budget.Owner]*account)}
}

// Enter puts a run at the end of its session's line and returns its place. A parallel run may be
// at work beside others that are, too. No room is fault.Busy "queue_full", none for this principal
// "too_many".
func (l *Lines) Enter(session, run string, o budget.Owner, parallel bool) (Place, error) {
	line, a := l.lines[session], l.account(o)
	front := l.front(line)
	// With a place free no head can take it: fill would have given it one.
	if front == len(line) && l.joins(line, parallel) && l.mayBegin(a) {
		return l.add(session, run, a, parallel), nil
	}
	full := func(reason, format string, args ...any) (Place, error) {
		return Gone, fault.New(fault.Busy, reason, "queue run", fmt.Errorf(format, args...)).
			WithHint("try again when a run has ended, or cancel one")
	}
	queue := l.bounds.Queue
	if o.Reserve {
		queue += Reserve(queue)
	}
	switch {
	case a.waiting >= l.bounds.Each:
		return full("too_many", "%d runs of %.80q wait already", a.waiting, o.Name)
	case l.waiting >= queue:
		return full("queue_full", "%d runs wait already", l.waiting)
	case len(line)-max(front, 1) >= l.bounds.Line:
		return full("queue_full", "%d runs of this session wait already", l.bounds.Line)
	}
	return l.add(session, run, a, parallel), nil
}

// front returns how many runs at the front of a session's line may be at work together.
func (l *Lines) front(line []string) (n int) {
	for n < len(line) && l.joins(line[:n], l.runs[line[n]].parallel) {
		n++
	}
	return n
}

// joins reports whether a run may be at work together with those before it, which may.
func (l *Lines) joins(before []string, parallel bool) bool {
	return len(before) == 0 || parallel && l.runs[before[0]].parallel && len(before) < l.bounds.Wide
}

// Restore is Enter for a run that an earlier process accepted: it was promised, so no bound
// on waiting runs keeps it out.
func (l *Lines) Restore(session, run string, o budget.Owner, parallel bool) Place {
	return l.add(session, run, l.account(o), parallel)
}

// account returns a principal's account, which is kept while it has runs.
func (l *Lines) account(o budget.Owner) *account {
	if a := l.whose[o]; a != nil {
		return a
	}
	return &account{owner: o}
}

// add puts a run where it belongs.
func (l *Lines) add(session, run string, a *account, parallel bool) Place {
	s := &standing{session: session, account: a, parallel: parallel}
	l.lines[session] = append(l.lines[session], run)
	l.runs[run] = s
	line := l.lines[session]
	l.whose[a.owner] = a
	a.runs++
	switch {
	case l.front(line) < len(line):
		s.place = Queued
		l.wait(a, 1)
	case l.mayBegin(a):
		l.begin(s)
	default:
		l.wait(a, 1)
		l.head(run, s)
	}
	return s.place
}

// wait counts runs that wait.
func (l *Lines) wait(a *account, n int) {
	l.waiting += n
	a.waiting += n
}

// work counts runs at work. Those of one principal that went on after a pause,
// beyond the places that it can take, take none of the others'.
func (l *Lines) work(a *account, n int) {
	l.taken -= l.places(a)
	l.active += n
	a.work += n
	l.taken += l.places(a)
}

// places returns how many places a principal takes.
func (l *Lines) places(a *account) int {
	if a.owner.Reserve {
		return a.work
	}
	return min(a.work, l.bounds.most)
}

func (l *Lines) begin(s *standing) {
	s.place = Active
	l.work(s.account, 1)
	s.account.begun++
}

// head makes a run that waits the next of its session.
func (l *Lines) head(run string, s *standing) {
	s.place = Head
	s.account.heads = append(s.account.heads, run)
	l.queue(s.account)
}

// queue puts a principal into the round, at its end, if it wants a place, or out of it.
func (l *Lines) queue(a *account) {
	i := slices.Index(l.round, a)
	switch wants := len(a.heads)+len(a.back) > 0; {
	case wants && i < 0:
		l.round = append(l.round, a)
	case !wants && i >= 0:
		l.round = slices.Delete(l.round, i, i+1)
	}
}

// Place returns where a run stands.
func (l *Lines) Place(run string) Place {
	if s := l.runs[run]; s != nil {
		return s.place
	}
	return Gone
}

// Leave takes a run out, wherever it stands.
func (l *Lines) Leave(run string) Moves {
	s := l.runs[run]
	if s == nil {
		return Moves{}
	}
	l.remove(run, s)
	line := l.lines[s.session]
	i := slices.Index(line, run)
	line = slices.Delete(line, i, i+1)
	var m Moves
	if len(line) == 0 {
		delete(l.lines, s.session)
	} else {
		l.lines[s.session] = line
	}
	for _, next := range line[:l.front(line)] {
		if s := l.runs[next]; s.place == Queued {
			m.Heads = append(m.Heads, next)
			l.head(next, s)
		}
	}
	m.Active = l.fill()
	return m
}

// remove takes a run out of its principal's account.
func (l *Lines) remove(run string, s *standing) {
	a := s.account
	switch s.place {
	case Active:
		a.begun--
		if s.paused {
			l.paused--
			l.forget(&a.back, run, a)
		} else {
			l.work(a, -1)
		}
	case Head:
		l.forget(&a.heads, run, a)
		l.wait(a, -1)
	default:
		l.wait(a, -1)
	}
	delete(l.runs, run)
	if a.runs--; a.runs == 0 {
		delete(l.whose, a.owner)
	}
}

// forget takes a run out of a list of its principal.
func (l *Lines) forget(list *[]string, run string, a *account) {
	*list = slices.DeleteFunc(*list, func(id string) bool { return id == run })
	l.queue(a)
}

// Pause gives the place of a run that waits for a person to others, within
// bounds. The run stays an active one of its session.
func (l *Lines) Pause(run string) Moves {
	s := l.runs[run]
	if s == nil || s.place != Active || s.paused || l.paused >= l.bounds.Paused {
		return Moves{}
	}
	s.paused = true
	l.paused++
	l.work(s.account, -1)
	return Moves{Active: l.fill()}
}

// Resume ends a pause. The run goes on at once, even if that makes one more than the bound:
// a person said yes to it now, and it gave nothing back meanwhile.
func (l *Lines) Resume(run string) {
	if s := l.runs[run]; s != nil && s.paused {
		l.forget(&s.account.back, run, s.account)
		l.resume(s)
	}
}

// Return ends a pause that got no yes, as soon as there is a place. It reports false if the
// run will be among the Moves that get one.
func (l *Lines) Return(run string) bool {
	s := l.runs[run]
	switch {
	case s == nil || !s.paused:
		return true
	case slices.Contains(s.account.back, run):
		return false
	case l.mayWork(s.account):
		l.resume(s)
		return true
	}
	s.account.back = append(s.account.back, run)
	l.queue(s.account)
	return false
}

func (l *Lines) resume(s *standing) {
	s.paused = false
	l.paused--
	l.work(s.account, 1)
}

// fill gives free places to the runs that return and to the heads that may begin, one
// for each principal in turn.
func (l *Lines) fill() (got []string) {
	for {
		i := slices.IndexFunc(l.round, l.mayGoOn)
		if i < 0 {
			return got
		}
		a := l.round[i]
		l.round = slices.Delete(l.round, i, i+1)
		if len(a.back) > 0 {
			got = append(got, a.back[0])
			a.back = slices.Delete(a.back, 0, 1)
		} else {
			got = append(got, a.heads[0])
			a.heads = slices.Delete(a.heads, 0, 1)
			l.wait(a, -1)
		}
		l.queue(a)
		if s := l.runs[got[len(got)-1]]; s.paused {
			l.resume(s)
		} else {
			l.begin(s)
		}
	}
}

// mayGoOn reports whether there is a place for what a principal wants next.
func (l *Lines) mayGoOn(a *account) bool {
	return len(a.back) > 0 && l.mayWork(a) || len(a.heads) > 0 && l.mayBegin(a)
}

// mayBegin reports whether a principal may have one run more at work.
//
// A run isn't interrupted for another's, so a taken place is gone for as long as its run
// likes: the next principal has only the places kept free. An owner at the socket is bound
// by the places alone.
func (l *Lines) mayBegin(a *account) bool {
	b := &l.bounds
	if a.owner.Reserve {
		return l.mayWork(a)
	}
	// Without a bound on begun runs, one principal's unanswered questions would use up
	// Paused, and its next ones would keep their places.
	return a.begun < b.Begun && l.mayWork(a)
}

// mayWork reports whether there is a place for one more run of a principal.
func (l *Lines) mayWork(a *account) bool {
	b := &l.bounds
	if a.owner.Reserve {
		return l.taken < b.Active+Reserve(b.Active)
	}
	return l.taken < b.Active && (a.work < b.Share || l.taken < b.most)
}

// Counts returns how many runs are at work, those that wait for a person
// included, and how many wait for their turn.
func (l *Lines) Counts() (active, waiting int) { return l.active + l.paused, l.waiting }

package session

import (
	"fmt"
	"slices"

	"palyra/internal/fault"
)

// Bounds are the sizes of Lines. Zero fields have the defaults, negative ones
// are none.
type Bounds struct {
	Active int // runs at work at the same time; default 8
	Queue  int // runs that wait, in all sessions together; default 64
	Each   int // runs of one principal that wait; default 48
	Line   int // runs that wait in one session; default 16
	Paused int // runs that wait for a person and give their place to others meanwhile; default 256
	Begun  int // runs of one principal that are at work or paused; default Active and a quarter of Paused
}

func (b Bounds) withDefaults() Bounds {
	for _, f := range []struct {
		v   *int
		def int
	}{{&b.Active, 8}, {&b.Queue, 64}, {&b.Each, 48}, {&b.Line, 16}, {&b.Paused, 256}} {
		if *f.v == 0 {
			*f.v = f.def
		}
		*f.v = max(*f.v, 0)
	}
	if b.Begun <= 0 {
		b.Begun = b.Active + max(b.Paused/4, min(b.Paused, 4))
	}
	return b
}

// Place is where a run stands. The zero Place is none.
type Place uint8

// The places, from back to front.
const (
	Gone   Place = iota
	Queued       // behind another run of its session
	Head         // the next of its session; waits for a place
	Active       // at work
)

// Moves are what became possible by a change.
type Moves struct {
	Head   string   // the run that is now the next of its session; "" if none
	Active []string // runs that have got a place
}

// Lines is the order in which runs get their turn. It is a plain data structure:
// its owner locks. The zero Lines is of no use; see NewLines.
type Lines struct {
	bounds  Bounds
	lines   map[string][]string // run ids by session; the first is Head or Active
	runs    map[string]*standing
	heads   []string       // runs in Head, the longest waiting first
	active  int            // runs in Active that are not paused
	paused  int            // runs in Active that gave their place away
	waiting int            // runs in Queued or Head
	each    map[string]int // of those, by principal
	begun   map[string]int // runs in Active, paused or not, by principal
}

type standing struct {
	session   string
	principal string
	place     Place
	paused    bool
}

// NewLines returns empty lines.
func NewLines(b Bounds) *Lines {
	return &Lines{bounds: b.withDefaults(), lines: make(map[string][]string), runs: make(map[string]*standing), each: make(map[string]int), begun: make(map[string]int)}
}

// Enter puts a run of a principal at the end of its session's line and returns
// where it stands then. No room is fault.Busy "queue_full", none for this
// principal "too_many_runs".
func (l *Lines) Enter(session, run, principal string) (Place, error) {
	line := l.lines[session]
	// With a place free no head can take it: fill would have given it one.
	if len(line) == 0 && l.active < l.bounds.Active && l.mayBegin(principal) {
		l.add(session, run, principal, Active)
		l.active++
		l.begun[principal]++
		return Active, nil
	}
	full := func(reason, format string, a ...any) (Place, error) {
		return Gone, fault.New(fault.Busy, reason, "queue run", fmt.Errorf(format, a...)).
			WithHint("try again when a run has ended, or cancel one")
	}
	switch {
	case l.each[principal] >= l.bounds.Each:
		return full("too_many_runs", "%d runs of %.80q wait already", l.bounds.Each, principal)
	case l.waiting >= l.bounds.Queue:
		return full("queue_full", "%d runs wait already", l.waiting)
	case len(line) > l.bounds.Line:
		return full("queue_full", "%d runs of this session wait already", l.bounds.Line)
	}
	l.waiting++
	l.each[principal]++
	if len(line) > 0 {
		l.add(session, run, principal, Queued)
		return Queued, nil
	}
	l.add(session, run, principal, Head)
	l.heads = append(l.heads, run)
	return Head, nil
}

// Restore is Enter for a run that was accepted by an earlier process: it has
// been promised, and so no bound keeps it out.
func (l *Lines) Restore(session, run, principal string) Place {
	b := l.bounds
	l.bounds.Queue, l.bounds.Each, l.bounds.Line = l.waiting+1, l.waiting+1, len(l.lines[session])+1
	p, _ := l.Enter(session, run, principal) // there is room
	l.bounds = b
	return p
}

func (l *Lines) add(session, run, principal string, p Place) {
	l.lines[session] = append(l.lines[session], run)
	l.runs[run] = &standing{session: session, principal: principal, place: p}
}

// turn takes a run off those that wait.
func (l *Lines) turn(s *standing) {
	l.waiting--
	if l.each[s.principal]--; l.each[s.principal] == 0 {
		delete(l.each, s.principal)
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
	delete(l.runs, run)
	line := l.lines[s.session]
	i := slices.Index(line, run)
	line = slices.Delete(line, i, i+1)
	switch {
	case s.place == Active && s.paused:
		l.paused--
	case s.place == Active:
		l.active--
	default:
		l.turn(s)
	}
	if s.place == Active {
		if l.begun[s.principal]--; l.begun[s.principal] == 0 {
			delete(l.begun, s.principal)
		}
	}
	l.heads = slices.DeleteFunc(l.heads, func(id string) bool { return id == run })
	var m Moves
	if len(line) == 0 {
		delete(l.lines, s.session)
	} else {
		l.lines[s.session] = line
		if i == 0 { // the one behind it comes to the front
			m.Head = line[0]
			l.runs[m.Head].place = Head
			l.heads = append(l.heads, m.Head)
		}
	}
	m.Active = l.fill()
	return m
}

// Pause gives the place of a run that waits for a person to others, within
// bounds. The run stays the active one of its session.
func (l *Lines) Pause(run string) Moves {
	s := l.runs[run]
	if s == nil || s.place != Active || s.paused || l.paused >= l.bounds.Paused {
		return Moves{}
	}
	s.paused = true
	l.paused++
	l.active--
	return Moves{Active: l.fill()}
}

// Resume ends a pause. The run goes on at once, also where that makes one more
// than the bound: a person said yes to it now, and what it holds it held all the time.
func (l *Lines) Resume(run string) {
	s := l.runs[run]
	if s == nil || !s.paused {
		return
	}
	s.paused = false
	l.paused--
	l.active++
}

// fill gives free places to the heads that may begin.
func (l *Lines) fill() (got []string) {
	l.heads = slices.DeleteFunc(l.heads, func(id string) bool {
		s := l.runs[id]
		if l.active >= l.bounds.Active || !l.mayBegin(s.principal) {
			return false
		}
		s.place = Active
		l.active++
		l.begun[s.principal]++
		l.turn(s)
		got = append(got, id)
		return true
	})
	return got
}

// mayBegin reports whether a principal may have one run more that is at work or
// waits for a person. Without that bound the questions of one, which nobody
// answers, would use up Paused, and the next ones would keep their places.
func (l *Lines) mayBegin(principal string) bool { return l.begun[principal] < l.bounds.Begun }

// Counts returns how many runs are at work, those that wait for a person
// included, and how many wait for their turn.
func (l *Lines) Counts() (active, waiting int) { return l.active + l.paused, l.waiting }

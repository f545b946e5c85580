package egress

import (
	"sync/atomic"
	"time"

	rule "palyra/call/egress"
	"palyra/isolate/evidence"
)

// ruled is a rule with bounds, and what they have let pass.
type ruled struct {
	rule.Bounds
	rate pace  // guarded by the session's mu, as are the next two
	open int64 // connections
	made int64

	sentLeft, receivedLeft atomic.Int64
}

func newRuled(b rule.Bounds) *ruled {
	x := &ruled{Bounds: b, rate: pace{n: int64(b.Rate.N), per: b.Rate.Per}}
	x.sentLeft.Store(b.Sent)
	x.receivedLeft.Store(b.Received)
	return x
}

// full returns the word of the bound that another connection goes beyond, "" for none.
func (x *ruled) full(now time.Time) string {
	switch b := x.Bounds; {
	case b.Open > 0 && x.open >= b.Open:
		return word(rule.Bounds{Open: b.Open})
	case b.Connections > 0 && x.made >= b.Connections:
		return word(rule.Bounds{Connections: b.Connections})
	case b.Rate.N > 0 && !x.rate.ready(now):
		return word(rule.Bounds{Rate: b.Rate})
	}
	return ""
}

func (x *ruled) count(now time.Time) {
	x.open++
	x.made++
	if x.Rate.N > 0 {
		x.rate.count(now)
	}
}

// word is the word of one bound in a rule, by which evidence names it.
func word(b rule.Bounds) string { return b.Split()[0].Text }

// ruledBy returns the bounds of the rules about a host. The resolver and the proxies have no rule,
// and so none.
func (s *session) ruledBy(host string, port uint16) (out []*ruled) {
	for _, r := range s.rules.Bounded(host, port) {
		out = append(out, s.ruled[r])
	}
	return out
}

// rulesLocked returns the bounds of the rules about a host that another connection counts for, or
// the word of the one that it goes beyond.
func (s *session) rulesLocked(host string, port uint16, now time.Time) (all counted, limit string) {
	all = s.ruledBy(host, port)
	for _, x := range all {
		if limit = x.full(now); limit != "" {
			return nil, limit
		}
	}
	return all, ""
}

// counted are the bounds that count a connection.
type counted []*ruled

// enterLocked counts it, until leaveLocked does.
func (all counted) enterLocked(now time.Time) {
	for _, x := range all {
		x.count(now)
	}
}

func (all counted) leaveLocked() {
	for _, x := range all {
		x.open--
	}
}

// admit counts a connection that a proxy makes to a host until leave is called. It returns nil for
// one beyond a bound, and notes that.
func (s *session) admit(host string, port uint16, now time.Time) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, limit := s.rulesLocked(host, port, now)
	if limit != "" {
		s.denyLocked(host, port, evidence.DenyLimit, limit)
		return nil
	}
	all.enterLocked(now)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		all.leaveLocked()
	}
}

// allowance is what may still pass one way, by a limit.
type allowance struct {
	left  *atomic.Int64
	limit string
}

// take returns how much of n may pass, and takes that.
func (a allowance) take(n int) int {
	over := -a.left.Add(-int64(n))
	if over <= 0 {
		return n
	}
	back := min(over, int64(n))
	a.left.Add(back)
	return n - int(back)
}

// allowances are those of a connection to a host both ways: the call's, and those of rules.
func (s *session) allowances(host string, port uint16) (sent, received []allowance) {
	sent, received = []allowance{{&s.sentLeft, evidence.LimitSent}}, []allowance{{&s.receivedLeft, evidence.LimitReceived}}
	for _, x := range s.ruledBy(host, port) {
		if x.Sent > 0 {
			sent = append(sent, allowance{&x.sentLeft, word(rule.Bounds{Sent: x.Sent})})
		}
		if x.Received > 0 {
			received = append(received, allowance{&x.receivedLeft, word(rule.Bounds{Received: x.Received})})
		}
	}
	return sent, received
}

// lasting returns how long a connection to a host may last by its rules, and the word of that
// bound; 0 if they don't say.
func (s *session) lasting(host string, port uint16) (most time.Duration, limit string) {
	for _, x := range s.ruledBy(host, port) {
		if x.Time > 0 && (most == 0 || x.Time < most) {
			most, limit = x.Time, word(rule.Bounds{Time: x.Time})
		}
	}
	return most, limit
}

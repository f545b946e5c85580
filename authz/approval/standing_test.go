package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"palyra/internal/canon"
	"palyra/internal/clock"
	"palyra/internal/fault"
)

// notes is a journal in memory.
type notes struct {
	mu   sync.Mutex
	acts []string
	last map[string]string
	fail error
}

func (n *notes) record(_ context.Context, act, subject string, by By, detail map[string]string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return n.fail
	}
	n.acts, n.last = append(n.acts, act+" "+by.Principal), detail
	return nil
}

// call is a question about a sealed call that the default policies ask about.
func callQuestion(change func(*Call)) Request {
	q := question()
	q.Call = sealed()
	if change != nil {
		change(&q.Call)
	}
	// The capsule depends on everything.
	q.Capsule = canon.Sum(fmt.Appendf(nil, "%+v", q.Call))
	return q
}

// ask puts q and answers it with r by the approver, if it is asked at all.
func askAnd(t *testing.T, m *memory, h *Hub, s Subject, q Request, r Reply) (rec *Record, asked bool, err error) {
	t.Helper()
	got := make(chan *Record, 1)
	go func() { got <- Resolve(t.Context(), h.For(s), q) }()
	select {
	case rec := <-got:
		return rec, false, nil
	case id := <-m.opened:
		_, err = h.Resolve(t.Context(), id, 0, By{Principal: "uid:0", Surface: "unix"}, r)
		if err != nil && fault.ReasonOf(err) != "disk" { // leave no call waiting
			_, _ = h.Resolve(t.Context(), id, 0, By{Principal: "uid:0", Surface: "unix"}, Reply{})
		}
		return <-got, true, err
	}
}

func TestScopes(t *testing.T) {
	other := func(c *Call) { c.Argv[2] = "docs/b.txt" }
	for _, test := range []struct {
		name                string
		reply               Reply
		subject             func(*Subject)
		q                   func(*Request)
		then                func(*Call)
		covered             bool
		scope, reason, says string
	}{
		{name: "once", reply: Reply{Approve: true}, scope: ScopeOnce},
		{name: "no for a session", reply: Reply{Scope: ScopeSession}, scope: ScopeOnce},
		{name: "session, this capsule", reply: Reply{Approve: true, Scope: ScopeSession}, covered: true, scope: ScopeSession},
		{name: "session, another capsule", reply: Reply{Approve: true, Scope: ScopeSession}, then: other, scope: ScopeSession},
		{name: "session, pattern", reply: Reply{Approve: true, Scope: ScopeSession, Pattern: &Loosen{Within: []int{2}}}, then: other, covered: true, scope: ScopeSession},
		{name: "session, pattern that differs", reply: Reply{Approve: true, Scope: ScopeSession, Pattern: &Loosen{}}, then: other, scope: ScopeSession},
		{name: "another session", reply: Reply{Approve: true, Scope: ScopeSession}, subject: func(s *Subject) { s.Session = "ses_2" }, scope: ScopeSession},
		{name: "for a time, another session", reply: Reply{Approve: true, Scope: ScopeTimed, For: time.Hour}, subject: func(s *Subject) { s.Session = "ses_2" }, covered: true, scope: ScopeTimed},
		{name: "another requester", reply: Reply{Approve: true, Scope: ScopeTimed, For: time.Hour}, subject: func(s *Subject) { s.Requester = "uid:1001" }, scope: ScopeTimed},
		{name: "another policy set", reply: Reply{Approve: true, Scope: ScopeTimed, For: time.Hour}, q: func(q *Request) { q.PolicySet = canon.Sum([]byte("new")) }, scope: ScopeTimed},
		{name: "no more uses", reply: Reply{Approve: true, Scope: ScopeSession, Uses: 1}, scope: ScopeSession},
		{name: "one more use", reply: Reply{Approve: true, Scope: ScopeSession, Uses: 2}, covered: true, scope: ScopeSession},
		{name: "time without an end", reply: Reply{Approve: true, Scope: ScopeTimed}, reason: "invalid_input", says: "a time between a second"},
		{name: "too long", reply: Reply{Approve: true, Scope: ScopeTimed, For: MaxStanding + 1}, reason: "invalid_input", says: "a time between a second"},
		{name: "negative", reply: Reply{Approve: true, Scope: ScopeTimed, For: -time.Hour}, reason: "invalid_input", says: "a time between a second"},
		{name: "for ever", reply: Reply{Approve: true, Scope: "always"}, reason: "invalid_input", says: "is none of once, session and timed"},
		{name: "once with a pattern", reply: Reply{Approve: true, Pattern: &Loosen{}}, reason: "invalid_input", says: "has no time, uses or pattern"},
		{name: "negative uses", reply: Reply{Approve: true, Scope: ScopeSession, Uses: -1}, reason: "invalid_input", says: "-1 uses"},
		{name: "session with a time", reply: Reply{Approve: true, Scope: ScopeSession, For: time.Hour}, reason: "invalid_input", says: "has a session and no other time"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, n := newMemory(), &notes{}
			h := NewHub(m, HubOptions{Record: n.record})
			rec, _, err := askAnd(t, m, h, subject, callQuestion(nil), test.reply)
			if fault.ReasonOf(err) != test.reason || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v, want %q: %q", err, test.reason, test.says)
			}
			if test.reason != "" {
				if rec.Approved() || len(h.Standing()) > 0 || len(n.acts) > 0 {
					t.Error("a reply without sense approved something")
				}
				return
			}
			v := rec.View()
			if v.Scope != test.scope || rec.Approved() != test.reply.Approve || (v.Grant != "") != (test.scope != ScopeOnce) || v.Pattern.IsZero() != (test.reply.Pattern == nil) {
				t.Errorf("the record says %+v", v)
			}
			s, q := subject, callQuestion(test.then)
			q.Decision = [16]byte{9}
			if test.subject != nil {
				test.subject(&s)
			}
			if test.q != nil {
				test.q(&q)
			}
			again, asked, _ := askAnd(t, m, h, s, q, Reply{})
			if asked == test.covered || again.Approved() != test.covered {
				t.Fatalf("asked %v, approved %v; covered should be %v", asked, again.Approved(), test.covered)
			}
			if !test.covered {
				return
			}
			w := again.View()
			if w.ID == v.ID || w.Grant != v.Grant || w.Pattern != v.Pattern || w.Approver != "uid:0" || w.Capsule != q.Capsule {
				t.Errorf("the record of the use says %+v", w)
			}
			if e, _ := m.Entry(t.Context(), w.ID); e == nil || e.State != Approved || e.Detail != "by grant "+v.Grant {
				t.Errorf("the entry of the use is %+v", e)
			}
			if again.Use(q.Decision, canon.Sum([]byte("another")), q.PolicySet) == nil || again.Use(q.Decision, q.Capsule, q.PolicySet) != nil {
				t.Error("the record of the use is not bound to its capsule")
			}
			if !slices.Equal(n.acts, []string{"approval.grant uid:0"}) || n.last["approval"] != v.ID || n.last["scope"] != test.scope {
				t.Errorf("the journal has %q, %v", n.acts, n.last)
			}
		})
	}
}

// TestStandingEnds: what ends a grant ends it for good.
func TestStandingEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, h *Hub, g Standing){
		"revoked": func(t *testing.T, h *Hub, g Standing) {
			if v, err := h.Revoke(t.Context(), g.ID, By{Principal: "uid:5"}); err != nil || v.ID != g.ID {
				t.Error(err)
			}
			if _, err := h.Revoke(t.Context(), g.ID, By{Principal: "uid:5"}); fault.ReasonOf(err) != "not_found" {
				t.Errorf("revoked twice: %v", err)
			}
		},
		"dropped": func(t *testing.T, h *Hub, g Standing) {
			if n := h.Drop(func(x *Standing) bool { return x.ID == g.ID }); n != 1 {
				t.Error(n)
			}
		},
		// The time of the bubble.
		"time": func(_ *testing.T, _ *Hub, g Standing) { <-time.After(time.Until(g.Expires)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				h := NewHub(m, HubOptions{})
				reply := Reply{Approve: true, Scope: ScopeTimed, For: 10 * time.Minute}
				if _, _, err := askAnd(t, m, h, subject, callQuestion(nil), reply); err != nil {
					t.Fatal(err)
				}
				if rec, asked, _ := askAnd(t, m, h, subject, callQuestion(nil), Reply{}); asked || !rec.Approved() {
					t.Fatal("it does not stand")
				}
				gs := h.Standing()
				if len(gs) != 1 || gs[0].Uses != 2 || gs[0].Expires.Sub(gs[0].Created) != 10*time.Minute {
					t.Fatalf("%+v", gs)
				}
				end(t, h, gs[0])
				if rec, asked, _ := askAnd(t, m, h, subject, callQuestion(nil), Reply{}); !asked || rec.Approved() || len(h.Standing()) > 0 {
					t.Error("it still stands")
				}
			})
		})
	}
}

// TestStandingNeedsItsGiver: whoever may approve no more has given nothing.
func TestStandingNeedsItsGiver(t *testing.T) {
	m, may := newMemory(), true
	h := NewHub(m, HubOptions{Judge: func(_ context.Context, q Question) (Verdict, error) {
		if q.Use && (!may || q.By.Token != "") {
			return No, errors.New("not any more")
		}
		return Yes, nil
	}})
	if _, _, err := askAnd(t, m, h, subject, callQuestion(nil), Reply{Approve: true, Scope: ScopeSession}); err != nil {
		t.Fatal(err)
	}
	may = false
	if rec, asked, _ := askAnd(t, m, h, subject, callQuestion(nil), Reply{}); !asked || rec.Approved() {
		t.Error("a grant outlived its giver's right")
	}
	may = true
	if rec, asked, _ := askAnd(t, m, h, subject, callQuestion(nil), Reply{}); asked || !rec.Approved() {
		t.Error("the grant is gone although its giver may again")
	}
}

// TestStandingIsJournaledFirst: what the journal does not take does not stand.
func TestStandingIsJournaledFirst(t *testing.T) {
	m, n := newMemory(), &notes{fail: fault.New(fault.Unavailable, "disk", "append", nil)}
	h := NewHub(m, HubOptions{Record: n.record})
	rec, _, err := askAnd(t, m, h, subject, callQuestion(nil), Reply{Approve: true, Scope: ScopeSession})
	if fault.ReasonOf(err) != "disk" || !rec.Approved() || len(h.Standing()) != 0 {
		t.Errorf("%v, %+v, %d grants", err, rec.View(), len(h.Standing()))
	}
	if v := rec.View(); v.Grant != "" || v.Scope != ScopeOnce {
		t.Errorf("the record names grant %q for %q, which the journal does not have", v.Grant, v.Scope)
	}
	// A use that cannot be put down runs nothing.
	n.fail = nil
	if _, _, err := askAnd(t, m, h, subject, callQuestion(nil), Reply{Approve: true, Scope: ScopeSession}); err != nil {
		t.Fatal(err)
	}
	m.fail = errors.New("disk full")
	if rec := Resolve(t.Context(), h.For(subject), callQuestion(nil)); rec.Approved() {
		t.Error("a use that is not on record was approved")
	}
}

// TestUsesRace: of many calls at once no more than the uses run unasked.
func TestUsesRace(t *testing.T) {
	s := shelf{clock: clock.New()}
	q := callQuestion(nil)
	g := Standing{ID: "grt_1", Scope: ScopeTimed, Requester: subject.Requester, Capsule: q.Capsule, PolicySet: q.PolicySet,
		Expires: time.Now().Add(time.Hour), due: s.clock.In(time.Hour), Uses: 1, MaxUses: 11}
	s.reserve(&g)
	if s.take(&subject, &q, func(*Standing) bool { return true }) != nil || s.has(g.Requester, g.ID) || len(s.list()) != 0 {
		t.Error("a grant that is only coming is in force")
	}
	if !s.put(&g, g) {
		t.Fatal("it was taken away")
	}
	var wg sync.WaitGroup
	var yes atomic.Int64
	for range 100 {
		wg.Go(func() {
			if s.take(&subject, &q, func(*Standing) bool { return true }) != nil {
				yes.Add(1)
			}
		})
	}
	wg.Wait()
	if yes.Load() != 10 {
		t.Errorf("%d calls ran unasked, the grant was good for 10 more", yes.Load())
	}
}

// TestTwoPeople: a policy that wants two gets two, to the same, by two.
func TestTwoPeople(t *testing.T) {
	m, n := newMemory(), &notes{}
	h := NewHub(m, HubOptions{Record: n.record, Judge: func(_ context.Context, q Question) (Verdict, error) {
		switch {
		case q.By.Principal == q.Subject.Requester:
			return No, ErrSelf()
		case len(q.Approvers) < 2:
			return More, nil
		}
		return Yes, nil
	}})
	got := asking(t.Context(), h)
	id := <-m.opened
	yes := func(who string, r Reply) *Entry {
		t.Helper()
		r.Approve = true
		e, err := h.Resolve(t.Context(), id, 0, By{Principal: who, Surface: "unix"}, r)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for _, step := range []struct {
		who   string
		reply Reply
		names []string
	}{
		{"uid:1", Reply{}, []string{"uid:1"}},
		{"uid:1", Reply{}, []string{"uid:1"}},                    // once more is still one
		{"uid:2", Reply{Scope: ScopeSession}, []string{"uid:2"}}, // not to the same
	} {
		if e := yes(step.who, step.reply); e.State != Pending || !slices.Equal(e.Yes, step.names) {
			t.Fatalf("%s: %+v", step.who, e)
		}
	}
	if _, err := h.Resolve(t.Context(), id, 0, By{Principal: subject.Requester}, Reply{Approve: true}); fault.ReasonOf(err) != "self_approval" {
		t.Errorf("the requester as the second: %v", err)
	}
	select {
	case rec := <-got:
		t.Fatalf("it ran with one yes: %+v", rec.View())
	default:
	}
	if e := yes("uid:3", Reply{}); e.State != Approved {
		t.Fatalf("%+v", e)
	}
	if v := (<-got).View(); v.Answer != Approved || v.Approver != "uid:3" || !slices.Equal(v.Approvers, []string{"uid:1", "uid:3"}) {
		t.Errorf("%+v", v)
	}
	if !slices.Equal(n.acts, []string{"approval.concur uid:1", "approval.concur uid:2"}) {
		t.Errorf("the journal has %q", n.acts)
	}
	// One no is enough.
	got = asking(t.Context(), h)
	id = <-m.opened
	yes("uid:1", Reply{})
	if !slices.Equal(h.Yes(id), []string{"uid:1"}) {
		t.Error(h.Yes(id))
	}
	if _, err := h.Resolve(t.Context(), id, 0, By{Principal: "uid:2"}, Reply{}); err != nil {
		t.Fatal(err)
	}
	if rec := <-got; rec.Approved() {
		t.Error("a no counted for nothing")
	}
}

// TestEveryVoteMustBeEnough: where policy says of one person that their yes takes more
// than another's, it does in whichever order they answer.
func TestEveryVoteMustBeEnough(t *testing.T) {
	for _, order := range [][]string{{"uid:2", "uid:3", "uid:4"}, {"uid:3", "uid:2", "uid:4"}, {"uid:3", "uid:4"}} {
		m := newMemory()
		h := NewHub(m, HubOptions{Judge: func(_ context.Context, q Question) (Verdict, error) {
			need := 2
			if q.By.Principal == "uid:2" { // counts among three only
				need = 3
			}
			if len(q.Approvers) < need {
				return More, nil
			}
			return Yes, nil
		}})
		got := asking(t.Context(), h)
		id := <-m.opened
		for i, who := range order {
			want := Pending
			if i == len(order)-1 {
				want = Approved
			}
			if e, err := h.Resolve(t.Context(), id, 0, By{Principal: who}, Reply{Approve: true}); err != nil || e.State != want {
				t.Fatalf("%q, %s: %+v, %v, want %s", order, who, e, err, want)
			}
		}
		if v := (<-got).View(); v.Answer != Approved || !slices.Equal(v.Approvers, order) {
			t.Errorf("%q: %+v", order, v)
		}
	}
}

// TestVotesAreJudgedAgain: the yes of a token that was revoked counts neither
// with the next one nor in what stands.
func TestVotesAreJudgedAgain(t *testing.T) {
	m, revoked := newMemory(), map[string]bool{}
	h := NewHub(m, HubOptions{Judge: func(_ context.Context, q Question) (Verdict, error) {
		switch {
		case revoked[q.By.Token]:
			return No, errors.New("revoked")
		case len(q.Approvers) < 2:
			return More, nil
		}
		return Yes, nil
	}})
	got := asking(t.Context(), h)
	id := <-m.opened
	yes := func(who, token string) *Entry {
		t.Helper()
		e, err := h.Resolve(t.Context(), id, 0, By{Principal: who, Token: token}, Reply{Approve: true, Scope: ScopeSession})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	yes("uid:1", "tok_1")
	revoked["tok_1"] = true
	if e := yes("uid:2", "tok_2"); e.State != Pending || !slices.Equal(e.Yes, []string{"uid:2"}) {
		t.Fatalf("a revoked token's yes counts: %+v", e)
	}
	if e := yes("uid:1", "tok_3"); e.State != Approved {
		t.Fatalf("%+v", e)
	}
	if v := (<-got).View(); !slices.Equal(v.Approvers, []string{"uid:2", "uid:1"}) {
		t.Errorf("%+v", v)
	}
	if !(<-asking(t.Context(), h)).Approved() {
		t.Error("what two gave does not stand")
	}
	revoked["tok_2"] = true // the first of the two
	got = asking(t.Context(), h)
	id = <-m.opened
	if _, err := h.Resolve(t.Context(), id, 0, By{Principal: "uid:1"}, Reply{}); err != nil {
		t.Fatal(err)
	}
	if (<-got).Approved() {
		t.Error("a grant outlived the right of the first who gave it")
	}
}

func TestTooManyGrants(t *testing.T) {
	m := newMemory()
	h := NewHub(m, HubOptions{})
	for i := range maxPerRequester {
		h.shelf.reserve(&Standing{ID: fmt.Sprint(i), Requester: subject.Requester, Expires: time.Now().Add(time.Hour)})
	}
	if _, _, err := askAnd(t, m, h, subject, callQuestion(nil), Reply{Approve: true, Scope: ScopeSession}); fault.ReasonOf(err) != "too_many" {
		t.Error(err)
	}
}

// TestVotesAreBounded: of each person the newest yes counts, and one that takes another
// is an entry in the journal only as far as its giver may add one.
func TestVotesAreBounded(t *testing.T) {
	m, n, full := newMemory(), &notes{}, false
	h := NewHub(m, HubOptions{Record: n.record, Quota: func(string) error {
		if full {
			return fault.New(fault.Unavailable, "quota", "test", nil)
		}
		return nil
	}, Judge: func(_ context.Context, q Question) (Verdict, error) {
		if len(q.Approvers) < 2 {
			return More, nil
		}
		return Yes, nil
	}})
	got := asking(t.Context(), h)
	id := <-m.opened
	yes := func(who string, r Reply) (*Entry, error) {
		r.Approve = true
		return h.Resolve(t.Context(), id, 0, By{Principal: who, Surface: "unix"}, r)
	}
	for i := range 5 {
		if _, err := yes("uid:1", Reply{Scope: ScopeTimed, For: time.Duration(60+i) * time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	h.mu.Lock()
	kept := len(h.waiting[id].yes)
	h.mu.Unlock()
	if kept != 1 || len(n.acts) != 5 {
		t.Errorf("%d yeses are kept, the journal has %q", kept, n.acts)
	}
	full = true
	if _, err := yes("uid:1", Reply{}); fault.ReasonOf(err) != "quota" || len(n.acts) != 5 {
		t.Errorf("past the quota: %v, %q", err, n.acts)
	}
	// Terms that were given up count no more, the newest do, and the last yes needs no room.
	if e, err := yes("uid:2", Reply{Scope: ScopeTimed, For: 60 * time.Second}); fault.ReasonOf(err) != "quota" {
		t.Errorf("%+v, %v", e, err)
	}
	if e, err := yes("uid:2", Reply{Scope: ScopeTimed, For: 64 * time.Second}); err != nil || e.State != Approved {
		t.Errorf("%+v, %v", e, err)
	}
	<-got
}

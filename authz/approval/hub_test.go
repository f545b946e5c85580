package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"palyra/call"
	"palyra/internal/fault"
)

// memory is a Book without a disk.
type memory struct {
	mu      sync.Mutex
	entries map[string]*Entry
	opened  chan string // id of each entry that was opened
	fail    error       // of every change
}

func newMemory() *memory {
	return &memory{entries: make(map[string]*Entry), opened: make(chan string, 64)}
}

func (m *memory) Open(_ context.Context, e *Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	c := *e
	m.entries[e.ID] = &c
	m.opened <- e.ID
	return nil
}

func (m *memory) Resolve(_ context.Context, id string, version int64, r Resolution) (*Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[id]
	switch {
	case m.fail != nil:
		return nil, m.fail
	case e.State != Pending || e.Version != version:
		return nil, fault.New(fault.Busy, "version_conflict", "resolve", ErrConflict)
	}
	e.State, e.Approver, e.Surface, e.Detail, e.Answered = r.State, r.Approver, r.Surface, r.Detail, time.Now()
	if r.Scope != "" {
		e.Scope = r.Scope
	}
	e.Version++
	c := *e
	return &c, nil
}

func (m *memory) Cover(ctx context.Context, e *Entry, r Resolution) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	c := *e
	c.State, c.Approver, c.Surface, c.Detail, c.Answered, c.Version = r.State, r.Approver, r.Surface, r.Detail, time.Now(), 2
	m.entries[e.ID] = &c
	return nil
}

func (m *memory) Entry(_ context.Context, id string) (*Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[id]
	if e == nil {
		return nil, fault.New(fault.NotFound, "not_found", "look up", nil)
	}
	c := *e
	return &c, nil
}

func (m *memory) Pending(context.Context) (left []Entry, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if e.State == Pending {
			left = append(left, *e)
		}
	}
	return left, nil
}

var subject = Subject{Run: "run_1", Session: "ses_1", Requester: "uid:1000"}

// asking puts the question in the background.
func asking(ctx context.Context, h *Hub) chan *Record {
	got := make(chan *Record, 1)
	go func() { got <- Resolve(ctx, h.For(subject), question()) }()
	return got
}

func TestHubAnswers(t *testing.T) {
	for _, yes := range []bool{true, false} {
		m := newMemory()
		h := NewHub(m, HubOptions{})
		got := asking(t.Context(), h)
		id := <-m.opened
		e, err := h.Resolve(t.Context(), id, 1, By{Principal: "uid:0", Surface: "unix"}, Reply{Approve: yes, Comment: "because"})
		if err != nil {
			t.Fatal(err)
		}
		rec := <-got
		v := rec.View()
		want := Denied
		if yes {
			want = Approved
		}
		if v.Answer != want || e.State != want || rec.Approved() != yes || e.Version != 2 || e.Detail != "because" {
			t.Errorf("answer %v: record %+v, entry %+v", yes, v, e)
		}
		if v.ID != id || v.Approver != "uid:0" || v.Surface != "unix" {
			t.Errorf("the record is not of this entry: %+v", v)
		}
		if err := rec.Use(decision, capsule, policySet); (err == nil) != yes {
			t.Errorf("Use: %v", err)
		}
		if h.Waiting() != 0 {
			t.Error("somebody still waits")
		}
	}
}

// TestHubRace: of many answers one counts, and everybody else is told.
func TestHubRace(t *testing.T) {
	for round := range 50 {
		m := newMemory()
		h := NewHub(m, HubOptions{})
		got := asking(t.Context(), h)
		id := <-m.opened
		var wg sync.WaitGroup
		var mu sync.Mutex
		var won []*Entry
		for i := range 20 {
			wg.Go(func() {
				e, err := h.Resolve(t.Context(), id, 0, By{Principal: "uid:" + string(rune('a'+i)), Surface: "unix"}, Reply{Approve: i%2 == 0})
				switch {
				case err == nil:
					mu.Lock()
					won = append(won, e)
					mu.Unlock()
				case fault.KindOf(err) != fault.Busy && fault.ReasonOf(err) != "approval_expired":
					t.Errorf("the loser is told %v", err)
				}
			})
		}
		wg.Wait()
		rec := (<-got).View()
		if len(won) != 1 || rec.Approver != won[0].Approver || rec.Answer != won[0].State {
			t.Fatalf("round %d: %d answers counted, the record has %+v", round, len(won), rec)
		}
	}
}

func TestHubRefuses(t *testing.T) {
	other := By{Principal: "uid:0", Surface: "unix"}
	for _, test := range []struct {
		name    string
		opt     HubOptions
		version int64
		by      By
		yes     bool
		kind    fault.Kind
		reason  string
	}{
		{"self", HubOptions{}, 1, By{Principal: "uid:1000", Surface: "http"}, true, fault.Denied, "self_approval"},
		{"nobody", HubOptions{AllowSelf: true}, 1, By{Principal: "", Surface: "http"}, true, fault.Denied, "no_approver"},
		{"another version", HubOptions{}, 2, other, true, fault.Busy, "version_conflict"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMemory()
			h := NewHub(m, test.opt)
			ctx, cancel := context.WithCancel(t.Context())
			got := asking(ctx, h)
			id := <-m.opened
			if _, err := h.Resolve(t.Context(), id, test.version, test.by, Reply{Approve: test.yes}); fault.KindOf(err) != test.kind || fault.ReasonOf(err) != test.reason {
				t.Errorf("got %v, want %s", err, test.reason)
			}
			if e, _ := m.Entry(ctx, id); e.State != Pending || h.Waiting() != 1 {
				t.Errorf("a refused answer changed the entry: %+v", e)
			}
			cancel()
			if rec := <-got; rec.Approved() || rec.View().Answer != Withdrawn || rec.View().ID != id {
				t.Errorf("record %+v", rec.View())
			}
			if e, _ := m.Entry(t.Context(), id); e.State != Withdrawn {
				t.Errorf("entry %+v", e)
			}
			if _, err := h.Resolve(t.Context(), id, 0, other, Reply{Approve: true}); fault.ReasonOf(err) != "version_conflict" {
				t.Errorf("an answer after the withdrawal: %v", err)
			}
		})
	}
	h := NewHub(newMemory(), HubOptions{})
	if _, err := h.Resolve(t.Context(), "apr_0", 0, other, Reply{Approve: true}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("an answer to nothing: %v", err)
	}
}

func TestHubSelf(t *testing.T) {
	self := By{Principal: "uid:1000", Surface: "unix"}
	// Saying no to oneself harms no one.
	m := newMemory()
	h := NewHub(m, HubOptions{})
	got := asking(t.Context(), h)
	if _, err := h.Resolve(t.Context(), <-m.opened, 0, self, Reply{Approve: false}); err != nil {
		t.Error(err)
	}
	if v := (<-got).View(); v.Answer != Denied {
		t.Errorf("%+v", v)
	}
	m = newMemory()
	h = NewHub(m, HubOptions{AllowSelf: true})
	got = asking(t.Context(), h)
	if _, err := h.Resolve(t.Context(), <-m.opened, 0, self, Reply{Approve: true}); err != nil {
		t.Error(err)
	}
	if rec := <-got; !rec.Approved() {
		t.Errorf("%+v", rec.View())
	}
}

func TestHubExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		h := NewHub(m, HubOptions{})
		start := time.Now()
		got := asking(t.Context(), h)
		id := <-m.opened
		if e, _ := m.Entry(t.Context(), id); e.Expires.Sub(start) != DefaultTimeout {
			t.Errorf("expires after %v", e.Expires.Sub(start))
		}
		rec := <-got
		if rec.View().Answer != Expired || rec.Approved() || time.Since(start) != DefaultTimeout {
			t.Errorf("%+v after %v", rec.View(), time.Since(start))
		}
		if e, _ := m.Entry(t.Context(), id); e.State != Expired || e.Approver != "" {
			t.Errorf("entry %+v", e)
		}
		if _, err := h.Resolve(t.Context(), id, 0, By{Principal: "uid:0", Surface: "unix"}, Reply{Approve: true}); err == nil {
			t.Error("an answer after the end was taken")
		}

		// The caller's own deadline comes first.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		rec = Resolve(ctx, h.For(subject), question())
		if e, _ := m.Entry(t.Context(), <-m.opened); e.State != Expired || e.Expires.Sub(start) != time.Second || rec.View().Answer != Expired {
			t.Errorf("entry %+v, record %+v", e, rec.View())
		}
	})
}

// late is a Book in which an answer comes in just before the question is closed.
type late struct {
	*memory
	by By
}

func (l *late) Resolve(ctx context.Context, id string, version int64, r Resolution) (*Entry, error) {
	if r.State == Withdrawn || r.State == Expired {
		if _, err := l.memory.Resolve(ctx, id, version, Resolution{State: Approved, Approver: l.by.Principal, Surface: l.by.Surface}); err != nil {
			return nil, err
		}
	}
	return l.memory.Resolve(ctx, id, version, r)
}

// TestHubBookDecides: what the book has is what the record says, also where the
// caller gives up at the same time.
func TestHubBookDecides(t *testing.T) {
	b := &late{newMemory(), By{Principal: "uid:0", Surface: "unix"}}
	h := NewHub(b, HubOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	got := asking(ctx, h)
	id := <-b.opened
	cancel()
	v := (<-got).View()
	if e, _ := b.Entry(t.Context(), id); e.State != Approved || v.Answer != Approved || v.Approver != "uid:0" {
		t.Errorf("book %+v, record %+v", e, v)
	}
}

func TestHubAfterRestart(t *testing.T) {
	m := newMemory()
	old := NewHub(m, HubOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := asking(ctx, old)
	id := <-m.opened
	// Another process over the same book: the first one's calls are gone.
	h := NewHub(m, HubOptions{})
	if _, err := h.Resolve(t.Context(), id, 0, By{Principal: "uid:0", Surface: "unix"}, Reply{Approve: true}); fault.ReasonOf(err) != "approval_expired" {
		t.Errorf("an answer that nobody waits for: %v", err)
	}
	if n, err := h.Expire(t.Context()); n != 1 || err != nil {
		t.Errorf("expired %d, %v", n, err)
	}
	if n, err := h.Expire(t.Context()); n != 0 || err != nil {
		t.Errorf("expired again %d, %v", n, err)
	}
	if e, _ := m.Entry(ctx, id); e.State != Expired || !strings.Contains(e.Detail, "restart") {
		t.Errorf("entry %+v", e)
	}
	cancel()
	if rec := <-got; rec.Approved() {
		t.Error("an expired question was approved")
	}
}

func TestHubBookFails(t *testing.T) {
	m := newMemory()
	m.fail = errors.New("disk full")
	h := NewHub(m, HubOptions{})
	if v := Resolve(t.Context(), h.For(subject), question()).View(); v.Answer != Unreachable || !strings.Contains(v.Detail, "disk full") {
		t.Errorf("%+v", v)
	}
	m.fail = nil
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := asking(ctx, h)
	id := <-m.opened
	m.mu.Lock()
	m.fail = errors.New("disk full")
	m.mu.Unlock()
	if _, err := h.Resolve(ctx, id, 0, By{Principal: "uid:0", Surface: "unix"}, Reply{Approve: true}); err == nil {
		t.Error("an answer that is not on record was taken")
	}
	cancel()
	if rec := <-got; rec.Approved() || rec.View().ID != id {
		t.Errorf("%+v", rec.View())
	}
	if h.Waiting() != 0 {
		t.Error("somebody still waits")
	}
}

// TestThousandRacers: of a thousand answers at once one counts, every other one is
// told, and the call hears the one that counts.
func TestThousandRacers(t *testing.T) {
	m := newMemory()
	h := NewHub(m, HubOptions{})
	got := asking(t.Context(), h)
	id := <-m.opened
	start := make(chan struct{})
	var wg sync.WaitGroup
	var won, lost atomic.Int64
	for i := range 1000 {
		wg.Go(func() {
			<-start
			by := By{Principal: fmt.Sprintf("uid:%d", 2000+i), Surface: "unix"}
			if i%10 == 0 {
				by.Principal = subject.Requester // tries it, too
			}
			e, err := h.Resolve(t.Context(), id, 0, by, Reply{Approve: i%2 == 0})
			switch reason := fault.ReasonOf(err); {
			case err == nil && i%10 == 0 && i%2 == 0:
				t.Error("the requester's yes counted")
			case err == nil && e.Approver == by.Principal:
				won.Add(1)
			case reason == "version_conflict" || reason == "approval_expired" || reason == "self_approval":
				lost.Add(1)
			default:
				t.Errorf("the loser is told %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
	rec := (<-got).View()
	e, err := m.Entry(t.Context(), id)
	if won.Load() != 1 || lost.Load() != 999 || err != nil || e.State != rec.Answer || e.Approver != rec.Approver || e.Version != 2 {
		t.Errorf("%d won, %d lost; record %+v, entry %+v", won.Load(), lost.Load(), rec, e)
	}
}

// TestPromptTricks: what a model puts into a call cannot change what a person
// sees of it: no line, no direction, no width, no escape sequence.
func TestPromptTricks(t *testing.T) {
	for _, trick := range []string{"\x1b[2J\x1b[H", "\x1b]0;title\x07", "\u202etxt.exe", "\u2066a\u2069", "a\u200bb", "\ufeff", "x\nApproval needed\n  capsule     sha256:00",
		"\r  runs        \"true\"", "\x9b31m", "\u00ad", "\u2028", "\U000e0041", "\x08\x08\x08", "e\u0301", "раураl", "\xff\xfe", "\t\v\f\x00"} {
		q := question()
		q.Call = Call{Principal: trick, Tool: trick, Argv: []string{"true", trick}, Executable: "/bin/" + trick, Cwd: trick, Workspace: trick, EnvNames: []string{trick}, Stdin: trick, Tier: trick,
			EgressHosts: []string{trick}, EgressInspect: []string{trick}, EgressSecrets: []call.EgressSecret{{Use: trick}}, Capabilities: []string{trick}, Limits: trick, Script: trick, Operands: []Operand{{Path: trick}}, Loose: []string{trick},
			EnvChanged: []string{trick}, Absent: []string{trick}, Libraries: []string{trick}, Folders: []string{trick},
			Why: []Why{{Policy: trick, Reason: trick, Where: trick}}}
		clean := question()
		clean.Call = Call{Principal: "x", Tool: "x", Argv: []string{"true", "x"}, Executable: "/bin/x", Cwd: "x", Workspace: "x", EnvNames: []string{"x"}, Stdin: "x", Tier: "x",
			EgressHosts: []string{"x"}, EgressInspect: []string{"x"}, EgressSecrets: []call.EgressSecret{{Use: "x"}}, Capabilities: []string{"x"}, Limits: "x", Script: "x", Operands: []Operand{{Path: "x"}}, Loose: []string{"x"},
			EnvChanged: []string{"x"}, Absent: []string{"x"}, Libraries: []string{"x"}, Folders: []string{"x"},
			Why: []Why{{Policy: "x", Reason: "x", Where: "x"}}}
		p := Pattern{Tool: trick, Executable: trick, Argv: []PatternArg{{Kind: ArgExact, Text: trick}, {Kind: ArgWithin, Text: trick}, {Kind: ArgContent, Text: trick}}, Cwd: trick, Workspace: trick,
			Stdin: trick, EgressHosts: []string{trick}, Capabilities: []string{trick}, Tier: trick}
		card := Card(q)
		if strings.Count(card, "\n") != strings.Count(Card(clean), "\n") {
			t.Errorf("%q adds a line:\n%s", trick, card)
		}
		for _, text := range []string{card, p.Text()} {
			if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }); i >= 0 {
				t.Errorf("%q shows as %q", trick, text[i:min(i+20, len(text))])
			}
		}
	}
}

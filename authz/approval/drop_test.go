package approval

import (
	"context"
	"slices"
	"testing"

	"palyra/internal/fault"
)

// TestDropMeetsAnswer: grants are taken away while one is being given, at each
// point between the answer and the end of its being put down. It stands at none
// of them, and its call has a yes for once.
func TestDropMeetsAnswer(t *testing.T) {
	all := func(*Standing) bool { return true }
	for _, at := range []string{"resolving", "answered", "journaling", "journaled"} {
		t.Run(at, func(t *testing.T) {
			m, n := newMemory(), &notes{}
			var h *Hub
			dropped := 0
			drop := func(where string) {
				if where == at {
					dropped += h.Drop(all)
				}
			}
			h = NewHub(resolving{m, func() { drop("resolving") }}, HubOptions{
				Record: func(ctx context.Context, act, subject string, by By, detail map[string]string) error {
					if act == "approval.grant" {
						drop("journaling")
						defer drop("journaled")
					}
					return n.record(ctx, act, subject, by, detail)
				},
				TestOnlyStep: func(name string) {
					if name == "approval:answered" {
						drop("answered")
					}
				},
			})
			rec, asked, err := askAnd(t, m, h, subject, callQuestion(nil), Reply{Approve: true, Scope: ScopeSession})
			if err != nil || !asked || !rec.Approved() {
				t.Fatalf("%v, asked %v, %+v", err, asked, rec.View())
			}
			if dropped != 1 || len(h.Standing()) != 0 {
				t.Errorf("%d were taken away, %d stand", dropped, len(h.Standing()))
			}
			if v := rec.View(); v.Grant != "" || v.Scope != ScopeOnce {
				t.Errorf("the record rests on grant %q for %q", v.Grant, v.Scope)
			}
			if want := []string{"approval.grant uid:0", "approval.revoke uid:0"}; !slices.Equal(n.acts, want) {
				t.Errorf("the journal has %q, want %q", n.acts, want)
			}
			if _, asked, err := askAnd(t, m, h, subject, callQuestion(nil), Reply{}); err != nil || !asked {
				t.Errorf("the same call again: %v, asked %v", err, asked)
			}
		})
	}
}

// TestLostAnswerReservesNothing: an answer that comes second leaves no grant behind.
func TestLostAnswerReservesNothing(t *testing.T) {
	m := newMemory()
	h := NewHub(resolving{m, func() {}}, HubOptions{})
	lose := true
	h.book = resolving{m, func() {
		if lose { // another answer is first
			lose = false
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, e := range m.entries {
				e.State, e.Version = Denied, e.Version+1
			}
		}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan *Record, 1)
	go func() { got <- Resolve(ctx, h.For(subject), callQuestion(nil)) }()
	id := <-m.opened
	_, err := h.Resolve(t.Context(), id, 0, By{Principal: "uid:0", Surface: "unix"}, Reply{Approve: true, Scope: ScopeSession})
	if fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("%v", err)
	}
	if n := h.Drop(func(*Standing) bool { return true }); n != 0 {
		t.Errorf("%d grants are left on the shelf", n)
	}
	cancel()
	<-got
}

// resolving is a Book that does something before each answer is put down.
type resolving struct {
	Book
	do func()
}

func (b resolving) Resolve(ctx context.Context, id string, version int64, r Resolution) (*Entry, error) {
	b.do()
	return b.Book.Resolve(ctx, id, version, r)
}

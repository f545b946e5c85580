package local

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
)

// follow returns a reader that has heard of everything that there was.
func (h *house) follow(c hub.Caller) hub.Notices {
	h.t.Helper()
	n, err := h.Notices(c)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { n.Close() })
	if t, err := n.Next(h.t.Context()); err != nil || t == 0 {
		h.t.Fatalf("first: %v, %v", t, err)
	}
	return n
}

// hear returns when n has told of all of want, and what it told.
func (h *house) hear(n hub.Notices, want hub.Topics) (all hub.Topics) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	for all&want != want {
		t, err := n.Next(ctx)
		if err != nil {
			h.t.Fatalf("told of %q, want %q: %v", all, want, err)
		}
		all |= t
	}
	return all
}

// silent returns what n tells within a short time.
func (h *house) silent(n hub.Notices) (all hub.Topics) {
	ctx, cancel := context.WithTimeout(h.t.Context(), 50*time.Millisecond)
	defer cancel()
	for {
		t, err := n.Next(ctx)
		if err != nil {
			return all
		}
		all |= t
	}
}

// TestNotices: a reader hears of each topic that its caller may look at, and of no other; of runs
// only those who see them.
func TestNotices(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice, mallory := h.member(1001, access.Operator), h.member(1002, access.Operator)
	clerk, _ := h.token(alice, "journal.read")
	owner, hers, his, clerks := h.follow(h.owner), h.follow(alice), h.follow(mallory), h.follow(clerk)

	r := h.start(alice, writeFile("a.txt", "x"))
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	q := h.question(h.owner)
	h.hear(owner, hub.TopicRuns|hub.TopicQuestions)
	h.hear(hers, hub.TopicRuns|hub.TopicQuestions)
	if got := h.hear(his, hub.TopicQuestions); got&hub.TopicRuns != 0 {
		t.Errorf("another operator hears of %q", got)
	}
	h.silent(owner)
	if _, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: q.ID, Answer: hub.Answer{Approve: true}}); err != nil {
		t.Fatal(err)
	}
	h.ended(alice, r.ID)
	h.hear(owner, hub.TopicRuns|hub.TopicQuestions|hub.TopicJournal)
	if got := h.hear(clerks, hub.TopicJournal); got != hub.TopicJournal|hub.TopicDaemon && got != hub.TopicJournal {
		t.Errorf("a token for the journal hears of %q", got)
	}

	for name, c := range map[string]struct {
		do   func() error
		want hub.Topics
	}{
		"token":  {func() error { h.token(h.owner, "journal.read"); return nil }, hub.TopicAccess | hub.TopicJournal},
		"member": {func() error { h.member(1004, access.Operator); return nil }, hub.TopicAccess},
		"stop": {func() error {
			_, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true, DenyNew: true})
			return err
		}, hub.TopicDaemon},
		"resume":  {func() error { _, err := hub.Resume.Do(ctx, h, h.owner, hub.None{}); return err }, hub.TopicDaemon},
		"reload":  {func() error { _, err := hub.Reload.Do(ctx, h, h.owner, hub.None{}); return err }, hub.TopicPolicy},
		"session": {func() error { _, err := hub.CreateSession.Do(ctx, h, h.owner, hub.NewSession{}); return err }, hub.TopicRuns},
	} {
		h.silent(owner)
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		h.hear(owner, c.want)
	}
	h.silent(owner)
	if got := h.silent(owner); got != 0 {
		t.Errorf("with nothing going on: %q", got)
	}
}

// TestNoticesEnd: a reader ends with its token, its member, and its ctx; it gives its place back.
func TestNoticesEnd(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice := h.member(1001, access.Operator)
	by, tok := h.token(alice, "approval.read")
	hers, its := h.follow(alice), h.follow(by)
	if _, err := hub.RevokeToken.Do(ctx, h, h.owner, hub.TokenChange{ID: tok}); err != nil {
		t.Fatal(err)
	}
	for err := error(nil); fault.ReasonOf(err) != "unauthenticated"; {
		if _, err = its.Next(ctx); err != nil && fault.ReasonOf(err) != "unauthenticated" {
			t.Fatal(err)
		}
	}
	if _, err := h.Notices(by); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a revoked token gets a reader: %v", err)
	}
	if _, err := hub.RemoveMember.Do(ctx, h, h.owner, hub.MemberRemoval{Principal: alice.User}); err != nil {
		t.Fatal(err)
	}
	for err := error(nil); fault.ReasonOf(err) != "unauthenticated"; {
		if _, err = hers.Next(ctx); err != nil && fault.ReasonOf(err) != "unauthenticated" {
			t.Fatal(err)
		}
	}
	_, _ = hers.Close(), hers.Close()
	_ = its.Close()
	n := h.follow(h.owner)
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := n.Next(done); !errors.Is(err, context.Canceled) {
		t.Errorf("after its ctx: %v", err)
	}
	_ = n.Close()
	if held := h.notices.places.Held(); held != 0 || len(h.notices.readers) != 0 {
		t.Errorf("%d places, %d readers left", held, len(h.notices.readers))
	}
}

// TestNoticesBounds: readers are bounded for a token, a principal and in all. However much one
// doesn't hear, it holds nothing more, and then hears of all of it at once.
func TestNoticesBounds(t *testing.T) {
	h := newHouse(t, nil)
	by, _ := h.token(h.owner, "approval.read")
	for range noticesPerToken {
		h.follow(by)
	}
	if _, err := h.Notices(by); fault.ReasonOf(err) != "too_many" {
		t.Errorf("one more of a token: %v", err)
	}
	slow := h.follow(h.owner)
	for range noticesEach - noticesPerToken - 1 {
		h.follow(h.owner)
	}
	if _, err := h.Notices(h.owner); err == nil && h.payer(h.owner).Reserve {
		t.Log("the owner at the socket has the reserve")
	} else if fault.ReasonOf(err) != "too_many" {
		t.Errorf("one more of a principal: %v", err)
	}
	h.silent(slow)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 1000 {
				h.notices.note(1<<i, h.owner.User)
			}
		})
	}
	wg.Wait()
	if got, err := slow.Next(t.Context()); err != nil || got != hub.EveryTopic {
		t.Errorf("%q, %v", got, err)
	}
	if got := h.silent(slow); got != 0 {
		t.Errorf("and then %q", got)
	}
}

// BenchmarkNote is what a change costs with as many readers as there may be.
func BenchmarkNote(b *testing.B) {
	h := newHouse(b, nil)
	for range 50 {
		n, err := h.Notices(h.owner)
		if err != nil {
			b.Fatal(err)
		}
		defer n.Close()
		if _, err := n.Next(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		h.notices.note(hub.TopicRuns, h.owner.User)
	}
}

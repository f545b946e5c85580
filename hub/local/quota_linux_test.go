package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/clock"
	"palyra/internal/fault"
	"palyra/kernel"
)

// large is a call that is allowed without a question and leaves much in the journal.
func large(tool string) hub.Step { return argv(tool, strings.Repeat("x", 100<<10)) }

// TestJournalQuota: a principal adds so much to the journal in a day, whatever
// becomes of its calls and whatever credentials it has; others and the owner go
// on. Neither a restart nor the death of the process gives anything back; time does.
func TestJournalQuota(t *testing.T) {
	host, c := clock.TestOnlyNew(time.Now())
	change := func(cfg *Config, _ *kernel.Config) { cfg.JournalEach, cfg.Clock = 1<<20, c }
	h := newHouse(t, change)
	ctx := t.Context()
	alice, bob := h.member(2001, access.Operator), h.member(2002, access.Operator)
	sess := h.session(alice)
	first := h.call(alice, argv("true")).ID
	refused := func(when string) {
		t.Helper()
		_, call := hub.Call.Do(ctx, h, alice, hub.NewCall{Tool: "process.run", Input: argv("true").Input})
		_, start := hub.StartRun.Do(ctx, h, alice, hub.NewRun{Session: sess, Steps: []hub.Step{argv("true")}})
		_, session := hub.CreateSession.Do(ctx, h, alice, hub.NewSession{})
		_, token := hub.CreateToken.Do(ctx, h, alice, hub.NewToken{Name: "x", TTL: time.Hour})
		_, metadata := hub.SetMetadata.Do(ctx, h, alice, hub.RunMetadata{Run: first})
		for what, err := range map[string]error{"call": call, "run": start, "session": session, "token": token, "metadata": metadata} {
			if fault.ReasonOf(err) != "quota" || fault.KindOf(err) != fault.Unavailable || fault.HintOf(err) == "" {
				t.Errorf("%s: a %s: %v", when, what, err)
			}
		}
	}
	calls := 0
	for ; calls < 20; calls++ {
		if _, err := hub.Call.Do(ctx, h, alice, hub.NewCall{Tool: "process.run", Input: large("true").Input}); err != nil {
			break
		}
	}
	if calls < 2 || calls > 5 { // of some 300 KiB each
		t.Errorf("%d calls", calls)
	}
	refused("full")
	if r := h.call(bob, argv("true")); r.State != hub.RunDone {
		t.Errorf("another's call: %+v", r)
	}
	for range 2 * calls {
		if r := h.call(h.owner, large("true")); r.State != hub.RunDone {
			t.Errorf("the owner's call: %+v", r)
		}
	}
	// The owner's own calls have filled its account.
	agent, _ := h.token(h.owner, "run.start", "session.write")
	if _, err := hub.Call.Do(ctx, h, agent, hub.NewCall{Tool: "process.run", Input: argv("true").Input}); fault.ReasonOf(err) != "quota" {
		t.Errorf("an owner's agent: %v", err)
	}
	h.stop()
	h.reopen(change)
	refused("after a restart")

	host.Pass(24 * time.Hour)
	h.call(alice, argv("true"))
	for range 8 { // what is denied is journaled, too
		if _, err := hub.Call.Do(ctx, h, alice, hub.NewCall{Tool: "process.run", Input: large("/bin/sh").Input}); err != nil {
			break
		}
	}
	refused("after denied calls")
	now, cancel := context.WithCancel(ctx)
	cancel()
	// A process that is killed writes down nothing more.
	if err := errors.Join(h.runs.Close(now), h.st.Close(), h.k.Close()); err != nil {
		t.Fatal(err)
	}
	h.Hub = nil
	h.reopen(change)
	refused("after a crash")
}

// TestJournalQuotaInRun: a run that uses up the quota ends with that reason.
func TestJournalQuotaInRun(t *testing.T) {
	h := newHouse(t, func(cfg *Config, _ *kernel.Config) { cfg.JournalEach = 1 << 20 })
	alice := h.member(2001, access.Operator)
	r := h.ended(alice, h.start(alice, large("true"), large("true"), large("true"), large("true"), large("true"), large("true")).ID)
	last := r.Steps[len(r.Steps)-1]
	for _, s := range r.Steps {
		if s.State == hub.StepFailed {
			last = s
		}
	}
	if r.State != hub.RunFailed || last.Reason != "quota" || last.Hint == "" {
		t.Errorf("the run ended %s, a step %+v", r.State, last)
	}
}

// TestTokenQuota: a principal has so many tokens, and makes so many in a day.
func TestTokenQuota(t *testing.T) {
	h := newHouse(t, func(cfg *Config, _ *kernel.Config) { cfg.TokensEach = 4 })
	ctx := t.Context()
	alice, bob := h.member(2001, access.Operator), h.member(2002, access.Operator)
	mint := func(c hub.Caller) (hub.TokenSecret, error) {
		return hub.CreateToken.Do(ctx, h, c, hub.NewToken{Name: "x", Scopes: []string{"token.manage"}, TTL: time.Hour})
	}
	var tokens []hub.TokenSecret
	for i := range 4 {
		tok, err := mint(alice)
		if err != nil {
			t.Fatalf("token %d: %v", i, err)
		}
		tokens = append(tokens, tok)
	}
	other, err := h.Authenticate(ctx, hub.Credential{Token: tokens[0].Secret, Surface: "http"})
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		_, rotated := hub.RotateToken.Do(ctx, h, alice, hub.Rotation{ID: tokens[1].ID})
		_, one := mint(alice)
		_, two := mint(other)
		for _, err := range []error{rotated, one, two} {
			if fault.ReasonOf(err) != "quota" || fault.KindOf(err) != fault.Unavailable || fault.HintOf(err) == "" {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	check("four tokens")
	if _, err := mint(bob); err != nil {
		t.Errorf("another's token: %v", err)
	}
	for _, tok := range tokens[2:] { // which does not let it make more today
		if _, err := hub.RevokeToken.Do(ctx, h, alice, hub.TokenChange{ID: tok.ID, Version: 0}); err != nil {
			t.Fatal(err)
		}
	}
	check("two revoked")
}

// TestRetainFairly: when artifacts take too much, whoever holds most loses some,
// however new they are, and whoever holds little keeps what it has.
func TestRetainFairly(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice, bob := h.member(2001, access.Operator), h.member(2002, access.Operator)
	small := h.call(alice, argv("/usr/bin/seq", "4001")) // the oldest
	var big []hub.Run
	for i := range 4 {
		big = append(big, h.call(bob, argv("/usr/bin/seq", fmt.Sprint(30000+i))))
	}
	size := big[0].Steps[0].Stdout.Size
	if err := h.Retain(ctx, Keep{ArtifactBytes: 3 * size}); err != nil {
		t.Fatal(err)
	}
	has := func(c hub.Caller, r hub.Run) bool {
		a, err := hub.GetArtifact.Do(ctx, h, c, hub.ArtifactQuery{Run: r.ID, Digest: r.Steps[0].Stdout.Artifact.String()})
		if err == nil {
			a.Close()
		}
		return err == nil
	}
	if !has(alice, small) {
		t.Error("whoever held least lost it")
	}
	if has(bob, big[0]) || has(bob, big[1]) || !has(bob, big[2]) || !has(bob, big[3]) {
		t.Error("whoever held most did not lose the oldest")
	}
}

// TestJournalQuotaOfActs: what a principal does besides calls counts, too. Its
// emergency stop works for ever; one that has nothing to do is not recorded then.
func TestJournalQuotaOfActs(t *testing.T) {
	h := newHouse(t, func(cfg *Config, _ *kernel.Config) { cfg.JournalEach = 32 << 10 })
	ctx := t.Context()
	size := func() uint64 {
		s, err := hub.GetJournal.Do(ctx, h, h.owner, hub.None{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Size
	}
	alice, admin := h.member(2001, access.Operator), h.member(2003, access.Admin)
	stop := func(r hub.StopRequest) hub.Stopped {
		t.Helper()
		s, err := hub.Stop.Do(ctx, h, alice, r)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	began := size()
	for range 200 {
		stop(hub.StopRequest{})
	}
	if n := size() - began; n == 0 || n > 100 {
		t.Errorf("200 stops are %d entries", n)
	}
	if s := stop(hub.StopRequest{All: true, DenyNew: true}); !s.DenyNew || s.LogIndex == 0 {
		t.Errorf("a stop that denies: %+v", s)
	}
	for range 2 {
		if s := stop(hub.StopRequest{All: true, DenyNew: true}); !s.DenyNew || s.LogIndex != 0 {
			t.Errorf("one that changes nothing: %+v", s)
		}
	}

	if _, err := hub.Resume.Do(ctx, h, admin, hub.None{}); err != nil { // a stop lets no one in
		t.Fatal(err)
	}
	began = size()
	for range 200 {
		m, err := hub.PutMember.Do(ctx, h, admin, hub.MemberPut{Principal: "uid:2004", MemberChange: hub.MemberChange{Role: "operator"}})
		if err == nil {
			_, err = hub.RemoveMember.Do(ctx, h, admin, hub.MemberRemoval{Principal: m.Principal, Version: m.Version})
		}
		if fault.ReasonOf(err) == "quota" {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := size() - began; n == 0 || n > 100 {
		t.Errorf("changes of members are %d entries", n)
	}
	_, reload := hub.Reload.Do(ctx, h, admin, hub.None{})
	_, resume := hub.Resume.Do(ctx, h, admin, hub.None{})
	_, backup := hub.Backup.Do(ctx, h, admin, hub.BackupTo{BackupRequest: hub.BackupRequest{}, W: io.Discard})
	for what, err := range map[string]error{"reload": reload, "resume": resume, "backup": backup} {
		if r := fault.ReasonOf(err); r != "quota" && (what != "backup" || r != "permission_denied") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s, err := hub.Resume.Do(ctx, h, h.owner, hub.None{}); err != nil || s.DenyNew {
		t.Errorf("the owner's resume: %+v, %v", s, err)
	}
}

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

func TestCall(t *testing.T) {
	h := newHouse(t, nil)
	r := h.call(h.owner, step("palyra.echo", obj{"text": "grüße"}))
	s := r.Steps[0]
	if r.State != hub.RunDone || s.Outcome != "executed" || !strings.Contains(s.Stdout.Text, "grüße") {
		t.Fatalf("%+v", r)
	}
	v := h.verify(s)
	if p := v.Statement.Predicate; p.Tool != "palyra.echo" || p.SessionID != r.Session || !strings.Contains(p.Principal, h.owner.User) {
		t.Errorf("%+v", p)
	}
	// A denial is a result; what would have to change is told to whoever asks.
	r = h.call(h.owner, argv("/bin/sh", "-c", "true"))
	d := r.Steps[0].Denial
	if r.State != hub.RunFailed || r.Steps[0].Outcome != "denied" || d == nil || d.Layer != hub.LayerPolicy || len(d.DecisionID) != 32 || d.Fix != "" {
		t.Errorf("%+v", r.Steps[0])
	}
	h.verify(r.Steps[0])
	// So is a program that is not there; it never came to a decision.
	r = h.call(h.owner, argv("/no/such/program"))
	if s := r.Steps[0]; r.State != hub.RunFailed || s.State != hub.StepFailed || s.LogIndex != nil || s.Reason == "" {
		t.Errorf("%+v", s)
	}
	// Large output is an artifact of the run.
	r = h.call(h.owner, argv("/usr/bin/seq", "10000"))
	o := r.Steps[0].Stdout
	a, err := hub.GetArtifact.Do(t.Context(), h, h.owner, hub.ArtifactQuery{Run: r.ID, Digest: o.Artifact.String()})
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	defer a.Close()
	b, err := io.ReadAll(a)
	if err != nil || digestOf(b) != o.Artifact.String() || int64(len(b)) != o.Size || a.Info().Size != o.Size || !bytes.HasSuffix(b, []byte("\n10000\n")) {
		t.Errorf("%d bytes, %v, %+v", len(b), err, o)
	}
	other := h.call(h.owner, argv("true"))
	if _, err := hub.GetArtifact.Do(t.Context(), h, h.owner, hub.ArtifactQuery{Run: other.ID, Digest: o.Artifact.String()}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("through another run: %v", err)
	}
	// The space comes back with the end of the session, which has ended already.
	same := h.call(h.owner, argv("/usr/bin/seq", "10000"))
	for _, run := range []hub.Run{r, same} {
		if s, err := h.st.Stats(t.Context()); err != nil || s.Artifacts != 1 {
			t.Errorf("%+v, %v", s, err)
		}
		if _, err := hub.EndSession.Do(t.Context(), h, h.owner, hub.SessionChange{ID: run.Session, Version: 0}); err != nil {
			t.Error(err)
		}
		if _, err := hub.GetArtifact.Do(t.Context(), h, h.owner, hub.ArtifactQuery{Run: run.ID, Digest: o.Artifact.String()}); fault.KindOf(err) != fault.NotFound {
			t.Errorf("after its session was ended: %v", err)
		}
	}
	if s, err := h.st.Stats(t.Context()); err != nil || s.Artifacts != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestPermissions: every operation has a function, refuses who holds nothing, and
// does not refuse who holds the permission that it names.
func TestPermissions(t *testing.T) {
	h := newHouse(t, nil)
	nobody := h.peer(4242)
	if n := len(h.table); n != len(hub.Operations()) {
		t.Errorf("%d functions for %d operations", n, len(hub.Operations()))
	}
	for _, op := range hub.Operations() {
		call := func(c hub.Caller) error {
			in := reflect.New(op.In).Elem()
			if op == hub.Backup.Operation {
				in.Set(reflect.ValueOf(hub.BackupTo{W: io.Discard}))
			}
			_, err := h.Do(t.Context(), c, op, in.Interface())
			return err
		}
		if op == hub.GetStatus.Operation {
			s, err := hub.GetStatus.Do(t.Context(), h, nobody, hub.None{})
			if err != nil || s.Caller.User != nobody.User || s.StatusDetail != nil || !s.Hidden {
				t.Errorf("status for nobody: %+v, %v", s, err)
			}
			continue
		}
		if op == hub.RenewDevice.Operation || op == hub.WatchJournal.Operation || op == hub.CosignJournal.Operation { // for a device alone, and not even an owner is one
			for _, c := range []hub.Caller{nobody, {}, h.owner} {
				if err := call(c); fault.ReasonOf(err) != "permission_denied" {
					t.Errorf("%s for %+v: %v", op.ID, c, err)
				}
			}
			continue
		}
		if _, err := access.ParseSet([]string{op.Permission}); err != nil {
			t.Errorf("%s: %v", op.ID, err)
		}
		for _, c := range []hub.Caller{nobody, {}, {User: h.owner.User, Token: ident.New(ident.Token)}, {Role: "owner", Scopes: []string{op.Permission}}} {
			err := call(c)
			if d := hub.DenialOf(err); fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "permission_denied" || d == nil || d.Layer != hub.LayerAccess || d.Permission != op.Permission {
				t.Errorf("%s for %+v: %v", op.ID, c, err)
			}
		}
		if op == hub.Stop.Operation || op == hub.Resume.Operation { // these would do it
			continue
		}
		if err := call(h.owner); err != nil && (fault.ReasonOf(err) == "permission_denied" || fault.KindOf(err) == fault.Internal || fault.ReasonOf(err) == "no_operation") {
			t.Errorf("%s for an owner: %v", op.ID, err)
		}
	}
}

// TestOwners: the daemon's user and root are owners of a new installation; no other user is
// a member.
func TestOwners(t *testing.T) {
	h := newHouse(t, nil)
	if h.owner.Role != "owner" || h.peer(0).Role != "owner" || h.peer(4242).Role != "" {
		t.Errorf("%+v, %+v, %+v", h.owner, h.peer(0), h.peer(4242))
	}
	uid := uint32(0)
	for _, c := range []hub.Credential{{}, {PeerUID: &uid, Token: "palyra_x"}, {Token: "palyra_x"}, {Token: h.owner.User}} {
		if _, err := h.Authenticate(t.Context(), c); fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "unauthenticated" {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// A removed owner doesn't come back with the next start.
	if os.Geteuid() == 0 {
		h.member(7, access.Owner)
		if _, err := hub.RemoveMember.Do(t.Context(), h, h.peer(7), hub.MemberRemoval{Principal: "uid:0", Version: 0}); err != nil {
			t.Fatal(err)
		}
		h.stop()
		h.reopen(nil)
		if h.owner.Role != "" {
			t.Errorf("%+v", h.owner)
		}
	}
}

func TestTokens(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	made, err := hub.CreateToken.Do(ctx, h, h.owner, hub.NewToken{Name: "ci", Scopes: []string{"session.read", "run.start"}, TTL: time.Hour})
	if err != nil || made.Secret == "" || made.State != "active" {
		t.Fatalf("%+v, %v", made, err)
	}
	use := func(secret string) (hub.Caller, error) {
		return h.Authenticate(ctx, hub.Credential{Token: secret, Surface: "http"})
	}
	c, err := use(made.Secret)
	if err != nil || c.User != h.owner.User || c.Token != made.ID || !slices.Equal(c.Scopes, []string{"session.read", "run.start"}) {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := hub.Call.Do(ctx, h, c, hub.NewCall{Tool: "palyra.echo", Input: []byte(`{"text":"x"}`)}); err != nil {
		t.Error(err)
	}
	if _, err := hub.ListMembers.Do(ctx, h, c, hub.None{}); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("beyond the scopes: %v", err)
	}
	if _, err := hub.CreateToken.Do(ctx, h, h.owner, hub.NewToken{Principal: "uid:4242", Scopes: []string{"run.start"}, TTL: time.Hour}); fault.KindOf(err) != fault.Denied {
		t.Errorf("for another: %v", err)
	}
	next, err := hub.RotateToken.Do(ctx, h, h.owner, hub.Rotation{ID: made.ID, Version: 1, RotationRequest: hub.RotationRequest{Overlap: time.Hour}})
	if err != nil || next.ID == made.ID {
		t.Fatalf("%+v, %v", next, err)
	}
	if _, err := hub.RevokeToken.Do(ctx, h, h.owner, hub.TokenChange{ID: made.ID, Version: 1}); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("an old version: %v", err)
	}
	gone, err := hub.RevokeToken.Do(ctx, h, h.owner, hub.TokenChange{ID: made.ID, Version: 2})
	if err != nil || gone.State != "revoked" || gone.Revoked == nil {
		t.Errorf("%+v, %v", gone, err)
	}
	if _, err := use(made.Secret); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("a revoked token: %v", err)
	}
	// A caller that was made before is refused from now on, too.
	if _, err := hub.ListSessions.Do(ctx, h, c, hub.SessionQuery{}); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("a caller with a revoked token: %v", err)
	}
	all, err := hub.ListTokens.Do(ctx, h, h.owner, hub.TokenQuery{})
	if err != nil || len(all.Items) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestReadOutput: output is read while its program runs, up to the limit and on from any byte;
// the receipt has the digest of what was read. A reader that loses its right reads no more.
func TestReadOutput(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice := h.member(1001, access.Operator)
	r := h.start(alice, argv("/usr/bin/yes", strings.Repeat("0123456789", 20)))
	open := func(c hub.Caller, q hub.OutputQuery) hub.Outputs {
		q.Run = r.ID
		out, err := hub.ReadOutput.Do(ctx, h, c, q)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { out.Close() })
		return out
	}
	read := func(out hub.Outputs, n int) (got []byte) {
		for n < 0 || len(got) < n {
			p, err := out.Next(ctx)
			if errors.Is(err, io.EOF) && n < 0 {
				return got
			}
			if err != nil || p.Stream != "stdout" || p.Lost != "" {
				t.Fatalf("after %d bytes: %+v, %v", len(got), p, err)
			}
			got = append(got, p.Bytes()...)
		}
		return got
	}
	out, other := open(alice, hub.OutputQuery{}), open(h.owner, hub.OutputQuery{})
	first := read(out, 3*hub.MaxInline)
	if now, err := hub.GetRun.Do(ctx, h, alice, r.ID); err != nil || now.State != hub.RunInProgress {
		t.Fatalf("%+v, %v: read before it ended", now.State, err)
	}
	if b := read(open(alice, hub.OutputQuery{Stdout: 201, Until: hub.UntilNow}), hub.MaxInline); !bytes.HasPrefix(first[201:], b[:hub.MaxInline]) {
		t.Errorf("from byte 201: %.20q, want %.20q", b, first[201:])
	}
	if _, err := hub.CancelRun.Do(ctx, h, alice, r.ID); err != nil {
		t.Fatal(err)
	}
	rest := read(out, -1)
	end := h.ended(alice, r.ID).Steps[0]
	all := digestOf(append(first, rest...))
	if ev := h.verify(end).Statement.Predicate.Evidence; all != end.Stdout.Artifact.String() || !bytes.Contains(ev, []byte(all)) {
		t.Errorf("read %s, kept %s, attested %s", all, end.Stdout.Artifact, ev)
	}
	if b := read(open(alice, hub.OutputQuery{Stdout: uint64(len(first))}), -1); !bytes.Equal(b, rest) {
		t.Errorf("afterwards: %d bytes from %d on, want %d", len(b), len(first), len(rest))
	}
	late := open(alice, hub.OutputQuery{})
	if _, err := hub.RemoveMember.Do(ctx, h, h.owner, hub.MemberRemoval{Principal: alice.User}); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Next(ctx); fault.KindOf(err) != fault.Denied {
		t.Errorf("a reader that is no member any more: %v", err)
	}
	read(other, -1)
}

// TestVisibility: what belongs to another does not exist, for whoever does not
// manage members.
func TestVisibility(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice, bob, admin := h.member(1001, access.Operator), h.member(1002, access.Operator), h.member(1003, access.Admin)
	r := h.start(alice, argv("/usr/bin/seq", "10000"))
	r = h.ended(alice, r.ID)
	for _, test := range []struct {
		name string
		do   func(c hub.Caller) error
	}{
		{"session", func(c hub.Caller) error { _, err := hub.GetSession.Do(ctx, h, c, r.Session); return err }},
		{"run", func(c hub.Caller) error { _, err := hub.GetRun.Do(ctx, h, c, r.ID); return err }},
		{"tape", func(c hub.Caller) error {
			tape, err := hub.ReadTape.Do(ctx, h, c, hub.TapeQuery{Run: r.ID})
			if err == nil {
				tape.Close()
			}
			return err
		}},
		{"cancel", func(c hub.Caller) error { _, err := hub.CancelRun.Do(ctx, h, c, r.ID); return err }},
		{"artifact", func(c hub.Caller) error {
			a, err := hub.GetArtifact.Do(ctx, h, c, hub.ArtifactQuery{Run: r.ID, Digest: r.Steps[0].Stdout.Artifact.String()})
			if err == nil {
				a.Close()
			}
			return err
		}},
		{"output", func(c hub.Caller) error {
			out, err := hub.ReadOutput.Do(ctx, h, c, hub.OutputQuery{Run: r.ID})
			if err == nil {
				out.Close()
			}
			return err
		}},
		{"end", func(c hub.Caller) error {
			_, err := hub.EndSession.Do(ctx, h, c, hub.SessionChange{ID: r.Session, Version: 0})
			return err
		}},
	} {
		if err := test.do(bob); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s for another: %v", test.name, err)
		}
		for _, c := range []hub.Caller{alice, admin} {
			if err := test.do(c); err != nil {
				t.Errorf("%s for %s: %v", test.name, c.User, err)
			}
		}
	}
	for _, test := range []struct {
		c    hub.Caller
		q    string
		want int
	}{{alice, "", 1}, {bob, "", 0}, {bob, alice.User, 0}, {admin, "", 1}, {admin, bob.User, 0}} {
		s, err := hub.ListSessions.Do(ctx, h, test.c, hub.SessionQuery{Principal: test.q})
		if err != nil || len(s.Items) != test.want || s.Items == nil {
			t.Errorf("%s sees %d sessions of %q, %v", test.c.User, len(s.Items), test.q, err)
		}
		rs, err := hub.ListRuns.Do(ctx, h, test.c, hub.RunQuery{Principal: test.q})
		if err != nil || len(rs.Items) != test.want || rs.Items == nil {
			t.Errorf("%s sees %d runs of %q, %v", test.c.User, len(rs.Items), test.q, err)
		}
	}
	// No principal works in the session of another, whatever it may see.
	s := h.session(alice)
	for _, c := range []hub.Caller{bob, admin} {
		if _, err := hub.StartRun.Do(ctx, h, c, hub.NewRun{Session: s, Steps: []hub.Step{argv("true")}}); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s in another's session: %v", c.User, err)
		}
	}
}

func TestPages(t *testing.T) {
	h := newHouse(t, nil)
	var want []string
	for range 5 {
		want = append(want, h.session(h.owner))
	}
	var got []string
	q := hub.SessionQuery{PageQuery: hub.PageQuery{Limit: 2}}
	for {
		p, err := hub.ListSessions.Do(t.Context(), h, h.owner, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range p.Items {
			got = append(got, s.ID)
		}
		if q.After = p.Next; p.Next == "" {
			break
		}
	}
	slices.Reverse(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	ctx := t.Context()
	for _, list := range []func() error{
		func() error {
			_, err := hub.ListSessions.Do(ctx, h, h.owner, hub.SessionQuery{PageQuery: hub.PageQuery{Limit: -1}})
			return err
		},
		func() error { _, err := hub.ListSessions.Do(ctx, h, h.owner, hub.SessionQuery{State: "x"}); return err },
		func() error {
			_, err := hub.ListRuns.Do(ctx, h, h.owner, hub.RunQuery{States: []string{"done", "x"}})
			return err
		},
		func() error {
			_, err := hub.ListApprovals.Do(ctx, h, h.owner, hub.ApprovalQuery{State: "x"})
			return err
		},
	} {
		if err := list(); fault.KindOf(err) != fault.Usage {
			t.Errorf("a senseless list: %v", err)
		}
	}
}

// TestCancelKills: when CancelRun returns no process of the run is left.
func TestCancelKills(t *testing.T) {
	h := newHouse(t, nil)
	for i := range 3 {
		word := fmt.Sprintf("%d.%d", 100+i, os.Getpid())
		r := h.start(h.owner, argv("/bin/sleep", word), argv("true"))
		h.until(h.owner, r.ID, hub.EventStepDecided) // the intent is durable
		waitFor(t, func() bool { return len(withWord(word)) > 0 })
		got, err := hub.CancelRun.Do(t.Context(), h, h.owner, r.ID)
		left := withWord(word)
		if err != nil || len(left) > 0 {
			t.Errorf("%v, %q is left", err, left)
		}
		if got.State != hub.RunCancelled || got.Reason != "cancelled" || got.Steps[0].Outcome != "killed" || got.Steps[1].State != hub.StepSkipped {
			t.Errorf("%s %s %+v", got.State, got.Reason, got.Steps)
		}
		h.verify(got.Steps[0])
	}
}

// waitFor returns when ok does. It is for what no event tells.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("it never came")
		}
	}
}

// TestCallerGone: a Call ends when its caller no longer waits, unless it has a key with
// which the caller may ask again.
func TestCallerGone(t *testing.T) {
	h := newHouse(t, nil)
	for _, key := range []string{"", "key"} {
		word := fmt.Sprintf("%d.%d%d", 200, os.Getpid(), len(key))
		s := argv("/bin/sleep", word)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan hub.Run, 1)
		go func() {
			r, err := hub.Call.Do(ctx, h, h.owner, hub.NewCall{Tool: s.Tool, Input: s.Input, IdempotencyKey: key})
			if (err == nil) != (key == "") {
				t.Errorf("key %q: %v", key, err)
			}
			got <- r
		}()
		waitFor(t, func() bool { return len(withWord(word)) > 0 })
		cancel()
		r := <-got
		if key == "" {
			if r.State != hub.RunCancelled || r.Reason != "caller_gone" || len(withWord(word)) > 0 {
				t.Errorf("%s %s", r.State, r.Reason)
			}
			continue
		}
		p, err := hub.ListRuns.Do(t.Context(), h, h.owner, hub.RunQuery{States: []string{hub.RunInProgress}})
		if err != nil || len(p.Items) != 1 {
			t.Fatalf("%+v, %v", p, err)
		}
		again, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: p.Items[0].Session, Steps: []hub.Step{s}, IdempotencyKey: key})
		if fault.ReasonOf(err) != "idempotency_key_reused" {
			// A run in that session is another request.
			t.Errorf("%+v, %v", again, err)
		}
		if _, err := hub.CancelRun.Do(t.Context(), h, h.owner, p.Items[0].ID); err != nil {
			t.Fatal(err)
		}
		same, err := hub.Call.Do(t.Context(), h, h.owner, hub.NewCall{Tool: s.Tool, Input: s.Input, IdempotencyKey: key})
		if err != nil || same.ID != p.Items[0].ID {
			t.Errorf("%s, %v", same.ID, err)
		}
	}
}

// TestStop: the emergency stop ends everything, outlives a restart, and is in
// the journal.
func TestStop(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice := h.member(1001, access.Operator)
	word := fmt.Sprintf("300.%d", os.Getpid())
	var runs []string
	for range 3 {
		runs = append(runs, h.start(alice, argv("/bin/sleep", word)).ID)
	}
	asking := h.start(alice, step("fs.write_file", obj{"workspace": "src", "path": "a", "mode": "create", "content": "x"}))
	h.until(alice, asking.ID, hub.EventRunWaitingApproval)
	waitFor(t, func() bool { return len(withWord(word)) >= 3 })
	if _, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{DenyNew: true}); fault.KindOf(err) != fault.Usage {
		t.Errorf("deny_new without all: %v", err)
	}
	if s, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{}); err != nil || s.Cancelled != 0 {
		// The stop ends the caller's runs.
		t.Errorf("%+v, %v", s, err)
	}
	s, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true, DenyNew: true})
	if err != nil || s.Cancelled != 4 || !s.DenyNew || len(withWord(word)) > 0 {
		t.Errorf("%+v, %v, %q", s, err, withWord(word))
	}
	for _, id := range append(runs, asking.ID) {
		if r := h.ended(alice, id); r.State != hub.RunCancelled || r.Reason != "stopped" {
			t.Errorf("%s %s", r.State, r.Reason)
		}
	}
	e, err := hub.ListJournalEntries.Do(ctx, h, h.owner, hub.JournalQuery{From: s.LogIndex, Limit: 1})
	if err != nil || e.Items[0].Act != "stop" || e.Items[0].Principal != h.owner.User {
		t.Errorf("%+v, %v", e, err)
	}
	refused := func() {
		t.Helper()
		_, err := hub.Call.Do(ctx, h, h.owner, hub.NewCall{Tool: "palyra.echo", Input: []byte(`{"text":"x"}`)})
		if d := hub.DenialOf(err); fault.ReasonOf(err) != "stopped" || d == nil || d.Layer != hub.LayerStop {
			t.Errorf("a new call: %v", err)
		}
	}
	refused()
	h.stop()
	h.reopen(nil)
	refused()
	if st, err := hub.GetStatus.Do(ctx, h, h.owner, hub.None{}); err != nil || !st.DenyNew || st.Mode != "stopped" {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := hub.Resume.Do(ctx, h, alice, hub.None{}); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("an operator lifts it: %v", err)
	}
	if s, err := hub.Resume.Do(ctx, h, h.owner, hub.None{}); err != nil || s.DenyNew {
		t.Errorf("%+v, %v", s, err)
	}
	h.call(h.owner, argv("true"))
	h.stop()
	h.reopen(nil)
	h.call(h.owner, argv("true"))
}

func TestEndSession(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	r := h.start(h.owner, argv("/bin/sleep", "400"))
	s, err := hub.EndSession.Do(ctx, h, h.owner, hub.SessionChange{ID: r.Session, Version: 0})
	if err != nil || s.State != hub.SessionEnded || s.Ended == nil {
		t.Errorf("%+v, %v", s, err)
	}
	if r := h.ended(h.owner, r.ID); r.State != hub.RunCancelled || r.Reason != "session_ended" {
		t.Errorf("%s %s", r.State, r.Reason)
	}
	if _, err := hub.StartRun.Do(ctx, h, h.owner, hub.NewRun{Session: r.Session, Steps: []hub.Step{argv("true")}}); fault.ReasonOf(err) != "no_such_session" {
		t.Error(err)
	}
	if again, err := hub.EndSession.Do(ctx, h, h.owner, hub.SessionChange{ID: r.Session, Version: 0}); err != nil || again.Version != s.Version {
		t.Errorf("%+v, %v", again, err)
	}
}

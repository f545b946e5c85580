package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// fillStore puts one of everything into s and returns a run that goes on, with a step done.
func fillStore(t testing.TB, s *Store) *Run {
	t.Helper()
	return fillRun(t, s, newRun(t, s))
}

// fillRun gives a run a row of each kind.
func fillRun(t testing.TB, s *Store, r *Run) *Run {
	t.Helper()
	art, err := s.PutArtifact(context.Background(), r.ID, "text/plain; charset=utf-8", strings.NewReader("output"))
	if err != nil {
		t.Fatal(err)
	}
	do(t, s, func(tx *Tx) error {
		r.State = RunInProgress
		if err := tx.UpdateRun(r); err != nil {
			return err
		}
		for i, k := range []string{"run.started", "step.done"} {
			if _, err := tx.AppendEvent(r.ID, k, []byte(fmt.Sprint(i))); err != nil {
				return err
			}
		}
		step := &Step{Run: r.ID, Tool: "t", Input: []byte("{}"), State: StepDone, CallID: "call-" + r.ID, Capsule: canon.Sum([]byte("c")),
			Outcome: "executed", LogIndex: 7, OutputDigest: art.Digest}
		if err := tx.CreateStep(step); err != nil {
			return err
		}
		if err := tx.CreateStep(&Step{Run: r.ID, Index: 1, Tool: "t", Input: []byte("{}"), State: StepRunning}); err != nil {
			return err
		}
		return tx.CreateApproval(&Approval{Run: r.ID, Session: r.Session, Step: 1, Requester: r.Principal, Request: []byte("{}"),
			Capsule: canon.Sum([]byte("c")), PolicySet: canon.Sum([]byte("p")), Scope: "once", Expires: time.Now().Add(time.Hour)})
	})
	return r
}

// TestCheckFinds breaks each rule in turn, behind the back of the methods.
func TestCheckFinds(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	fillStore(t, s)
	newRun(t, s) // another session
	reg, err := access.Open(context.Background(), access.Config{Storage: s.Access()})
	if err != nil {
		t.Fatal(err)
	}
	if err := reg.Bootstrap(context.Background(), "uid:0"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := reg.Mint(context.Background(), access.Holder{Principal: "uid:0"}, access.Request{Lifetime: time.Hour}); err != nil {
		t.Fatal(err)
	}
	check(t, s)
	covered := make(map[string]bool)
	for _, c := range []struct{ rule, sql string }{
		{"tape_gap", `UPDATE events SET seq = 9 WHERE seq = 2`},
		{"tape_gap", `DELETE FROM events WHERE seq = 1`},
		{"step_gap", `UPDATE steps SET idx = 5 WHERE idx = 1`},
		{"ended_run_waits", `UPDATE runs SET state = 'done', ended = 1`},
		{"ended_run_runs", `UPDATE runs SET state = 'failed', ended = 1`},
		{"ended_session_runs", `UPDATE sessions SET state = 'ended', ended = 1`},
		{"not_alone", `UPDATE runs SET state = 'in_progress', session = (SELECT min(session) FROM runs), parallel = (n = 1)`},
		{"foreign_session", `UPDATE approvals SET session = (SELECT id FROM sessions ORDER BY n DESC LIMIT 1)`},
		{"generation_gap", `DELETE FROM access_changes WHERE generation = 1`},
		{"no_owner", `UPDATE members SET role = 'admin'`},
		{"unknown_parent", `INSERT INTO tokens SELECT n + 1, 'tok_x', principal, name, hash, scopes, 'tok_gone', successor, created, expires, revoked, used FROM tokens`},
		{"foreign_passkey", `INSERT INTO passkeys VALUES ('psk_x', 'user:x', '', x'00', x'00', 0, 1, 0, 0)`},
		{"schema", `DELETE FROM schema_migrations`},
		{"schema", `INSERT INTO schema_migrations VALUES (99, 0)`},
		{"artifact_missing", `INSERT INTO artifacts SELECT randomblob(32), 1, type, created FROM artifacts`},
		{"artifact_size", `UPDATE artifacts SET size = size + 1`},
		{"artifact_bytes", `UPDATE artifacts SET size = size + 1`},
		{"artifact_orphaned", `DELETE FROM artifact_holds; DELETE FROM artifacts`},
		{"foreign_key_check", `DELETE FROM sessions`},
		{"lost_usage", `INSERT INTO usage VALUES ('ses_gone', 1, 'm', 1, 0, 1, 0, 1, 0, 0)`},
		{"uncounted_usage", `INSERT INTO usage SELECT id, 1, 'm', 1, 0, 1, 0, 1, 0, 0 FROM sessions LIMIT 1`},
		{"lost_memory", `INSERT INTO memories VALUES (1, 'mem_x', 'uid:0', 'session', 'ses_gone', 'agent', 'model', 1, 0, 1, x'00')`},
	} {
		covered[c.rule] = true
		err := withBroken(t, s, c.sql, strings.HasPrefix(c.rule, "artifact_"))
		if fault.ReasonOf(err) != "store_corrupt" || !strings.Contains(err.Error(), c.rule+":") {
			t.Errorf("%s: %v", c.sql, err)
		}
	}
	check(t, s)
	for _, r := range rules {
		if !covered[r.name] {
			t.Errorf("no case breaks the rule %s", r.name)
		}
	}
}

// withBroken runs a statement, checks, and undoes it: on the connection itself,
// or for what the check sees from elsewhere, on a copy.
func withBroken(t testing.TB, s *Store, statement string, elsewhere bool) error {
	t.Helper()
	if elsewhere {
		dir := filepath.Join(t.TempDir(), "store")
		copyStore(t, s, dir)
		broken := openStore(t, dir, Options{})
		check(t, broken)
		// A pragma like this one counts only outside of a transaction.
		raw(t, broken, `PRAGMA foreign_keys = off`, statement, `PRAGMA foreign_keys = on`)
		return broken.Check(context.Background())
	}
	raw(t, s, `PRAGMA foreign_keys = off`, `BEGIN`, statement)
	defer raw(t, s, `ROLLBACK`, `PRAGMA foreign_keys = on`)
	found, err := (&Tx{conn: s.writer.conn}).findings()
	if err != nil {
		t.Fatal(err)
	}
	return unsound("check", found)
}

// raw runs statements on the writer's connection, past all methods.
func raw(t testing.TB, s *Store, statements ...string) {
	t.Helper()
	<-s.writer.turn
	defer func() { s.writer.turn <- struct{}{} }()
	for _, q := range statements {
		if _, err := s.writer.conn.c.ExecContext(context.Background(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// copyStore puts a copy of s into dir while s is open.
func copyStore(t testing.TB, s *Store, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	<-s.writer.turn
	err := s.snapshot(s.writer.conn, filepath.Join(dir, dbFile))
	s.writer.turn <- struct{}{}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, artifactDir), os.DirFS(s.artifacts.dir)); err != nil {
		t.Fatal(err)
	}
	tighten(t, dir)
}

// tighten takes access from group and others, which os.CopyFS gives.
func tighten(t testing.TB, dir string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	}); err != nil {
		t.Fatal(err)
	}
}

// TestCheckDamage flips bytes of the closed database: it is found, or the store
// does not open, and never a panic or a wrong answer as if nothing was.
func TestCheckDamage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s := openStore(t, dir, Options{})
	fillStore(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, dbFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused, tried := 0, 0
	for page := 0; page < len(good); page += 3 * 4096 { // each third page, for the time it takes
		tried++
		b := bytes.Clone(good)
		for i := range 64 { // over the page's header and cell pointers
			b[page+i] ^= 0xa5
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir, Options{})
		if err == nil {
			err = s.Check(context.Background())
			_ = s.Close() // of a damaged file
		}
		if err != nil {
			refused++
			if k := fault.KindOf(err); k == fault.Internal || k == fault.Usage {
				t.Errorf("page %d: %v (%v)", page/4096, err, k)
			}
		}
	}
	if refused != tried || tried < 10 {
		t.Errorf("%d of %d damaged pages were noticed", refused, tried)
	}
}

// TestDraft: what was written of an artifact can be read before it is one, and after. A draft
// that doesn't become one leaves nothing.
func TestDraft(t *testing.T) {
	t.Parallel()
	s := openStore(t, filepath.Join(t.TempDir(), "store"), Options{ArtifactQuota: 100, MaxArtifact: 10})
	ctx := context.Background()
	draft := func(text string) *Draft {
		t.Helper()
		d, err := s.Draft(ctx, "run_1", "text/plain")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		if n, err := io.WriteString(d, text); n != len(text) || err != nil {
			t.Fatalf("write %q: %d, %v", text, n, err)
		}
		return d
	}
	reads := func(d *Draft, off int64, want string) {
		t.Helper()
		b := make([]byte, 20)
		if n, err := d.ReadAt(b, off); string(b[:n]) != want || err != io.EOF {
			t.Errorf("from %d: %q, %v, want %q", off, b[:n], err, want)
		}
	}
	a, b := draft("hello"), draft("hello")
	reads(a, 0, "hello")
	reads(a, 4, "o")
	reads(a, 9, "")
	for range 2 { // the second becomes the first one's artifact
		art, err := a.Commit(ctx)
		if err != nil || art.Digest != canon.Sum([]byte("hello")) {
			t.Fatalf("%+v, %v", art, err)
		}
		reads(a, 1, "ello")
		a = b
	}
	c := draft("12345")
	_, err := io.WriteString(c, "678901")
	wants(t, err, fault.Usage, "too_large")
	reads(c, 3, "45")
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		_ = b.Close()
	}
	left, err := filepath.Glob(filepath.Join(s.dir, artifactDir, ".*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left over: %q, %v", left, err)
	}
	if n, err := s.Stats(ctx); err != nil || n.Artifacts != 1 {
		t.Errorf("%+v, %v", n, err)
	}
	check(t, s)
}

func TestArtifacts(t *testing.T) {
	t.Parallel()
	s := openStore(t, filepath.Join(t.TempDir(), "store"), Options{ArtifactQuota: 100, MaxArtifact: 60})
	ctx := context.Background()
	put := func(holder, text string) (*Artifact, error) {
		return s.PutArtifact(ctx, holder, "text/plain", strings.NewReader(text))
	}
	a, err := put("run_1", "hello")
	if err != nil || a.Digest != canon.Sum([]byte("hello")) || a.Size != 5 || a.Refs != 1 || a.MediaType != "text/plain" {
		t.Fatalf("%+v, %v", a, err)
	}
	if b, err := put("run_2", "hello"); err != nil || b.Refs != 2 || b.Digest != a.Digest {
		t.Errorf("the same again: %+v, %v", b, err)
	}
	f, row, err := s.OpenArtifact(ctx, a.Digest)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil || string(b) != "hello" || row.Size != 5 || f.Close() != nil {
		t.Errorf("read %q, %+v, %v", b, row, err)
	}
	if _, err := put("run_1", ""); err != nil {
		t.Errorf("an empty one: %v", err)
	}
	_, err = put("run_1", strings.Repeat("x", 61))
	wants(t, err, fault.Usage, "too_large")
	_, err = put("", "x")
	wants(t, err, fault.Usage, "invalid_input", "no holder is named")
	if _, err = put("run_1", strings.Repeat("y", 60)); err != nil {
		t.Fatal(err)
	}
	_, err = put("run_1", strings.Repeat("z", 36))
	wants(t, err, fault.Unavailable, "disk_full")
	_, _, err = s.OpenArtifact(ctx, canon.Sum([]byte("other")))
	wants(t, err, fault.NotFound, "not_found")
	wants(t, s.Update(ctx, func(tx *Tx) error { return tx.holdArtifact(canon.Sum([]byte("other")), "run_1") }), fault.NotFound, "not_found")
	if _, err := s.PutArtifact(ctx, "run_1", "text/html\r\nX: y", strings.NewReader("m")); err != nil {
		t.Error(err)
	} else if m := see(t, s, func(tx *Tx) (*Artifact, error) { return tx.artifact(canon.Sum([]byte("m"))) }); m.MediaType != octets {
		t.Errorf("media type %q", m.MediaType)
	}
	_, err = s.PutArtifact(ctx, "run_1", "", io.MultiReader(strings.NewReader("x"), failing{}))
	if !errors.Is(err, errRead) {
		t.Errorf("a reader that fails: %v", err)
	}
	check(t, s)

	// Whose it is goes by the run that holds it.
	r := newRun(t, s)
	mine, err := put(r.ID, "mine")
	if err != nil {
		t.Fatal(err)
	}
	for who, want := range map[string]bool{r.Principal: true, "somebody": false, "": false} {
		if got := see(t, s, func(tx *Tx) (bool, error) { return tx.OwnsArtifact(mine.Digest, who) }); got != want {
			t.Errorf("%q owns it: %v", who, got)
		}
	}
	if see(t, s, func(tx *Tx) (bool, error) { return tx.OwnsArtifact(a.Digest, r.Principal) }) {
		t.Error("what no run of theirs holds is theirs")
	}

	// Held by nobody, it can go; the file of one that stays is untouched.
	do(t, s, func(tx *Tx) error { return tx.ReleaseArtifacts("run_1") })
	if ok := see(t, s, func(tx *Tx) (bool, error) { return tx.HoldsArtifact(a.Digest, "run_1") }); ok {
		t.Error("still held")
	}
	if n, bytes, err := s.SweepArtifacts(ctx); n != 3 || bytes != 61 || err != nil {
		t.Errorf("swept %d, %d bytes, %v", n, bytes, err)
	}
	if _, err = put("run_1", strings.Repeat("z", 36)); err != nil {
		t.Errorf("after the sweep: %v", err)
	}
	if _, _, err := s.OpenArtifact(ctx, a.Digest); err != nil {
		t.Error(err)
	}
	check(t, s)
	if err := s.CheckArtifacts(ctx); err != nil {
		t.Error(err)
	}
	if st, err := s.Stats(ctx); err != nil || st.Artifacts != 3 || st.ArtifactBytes != 45 || st.ArtifactQuota != 100 {
		t.Errorf("%+v, %v", st, err)
	}

	// What is on the disk is not believed.
	path := filepath.Join(s.artifacts.dir, artifactPath(a.Digest))
	for _, bad := range []string{"hellO", "hell", "hello!", ""} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := s.OpenArtifact(ctx, a.Digest)
		wants(t, err, fault.Integrity, "store_corrupt")
		wants(t, s.CheckArtifacts(ctx), fault.Integrity, "store_corrupt")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, _, err = s.OpenArtifact(ctx, a.Digest)
	wants(t, err, fault.Integrity, "store_corrupt")
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	_, _, err = s.OpenArtifact(ctx, a.Digest)
	wants(t, err, fault.BadState, "bad_file")
}

var errRead = errors.New("reader")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errRead }

// TestArtifactsConcurrent puts the same few contents from many sides while
// others sweep: what is held is there.
func TestArtifactsConcurrent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := context.Background()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			holder := fmt.Sprint("run_", w)
			for i := range 6 {
				a, err := s.PutArtifact(ctx, holder, "text/plain", strings.NewReader(fmt.Sprint("content ", i%3)))
				if err != nil {
					t.Error(err)
					return
				}
				f, _, err := s.OpenArtifact(ctx, a.Digest)
				if err != nil {
					t.Error(err)
					return
				}
				_ = f.Close()
				if w%2 == 0 {
					err = s.Update(ctx, func(tx *Tx) error { return tx.ReleaseArtifacts(holder) })
				} else {
					_, _, err = s.SweepArtifacts(ctx)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	check(t, s)
	if err := s.CheckArtifacts(ctx); err != nil {
		t.Error(err)
	}
}

// results is a journal in memory.
type results []JournalResult

func (r results) Results(_ context.Context, f func(JournalResult) error) error {
	for _, x := range r {
		if err := f(x); err != nil {
			return err
		}
	}
	return nil
}

var _ JournalView = results(nil)

func TestCheckJournal(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := fillStore(t, s)
	good := JournalResult{LogIndex: 7, Call: "call-" + r.ID, Session: r.Session, Run: r.ID, Outcome: "executed", Capsule: canon.Sum([]byte("c"))}
	do(t, s, func(tx *Tx) error {
		step, err := tx.Step(r.ID, 1)
		if err != nil {
			return err
		}
		step.CallID = "call-running"
		return tx.UpdateStep(step, StepRunning)
	})
	with := func(f func(*JournalResult)) results {
		x := good
		f(&x)
		return results{x}
	}
	for _, c := range []struct {
		name string
		j    results
		want string
	}{
		{"agree", results{good}, ""},
		{"a call outside runs", results{{LogIndex: 1, Call: "exec", Outcome: "executed"}, good}, ""},
		{"no result", nil, StepWithoutResult},
		{"no step", results{good, {LogIndex: 9, Call: "ghost", Run: r.ID, Outcome: "executed"}}, ResultWithoutStep},
		{"twice", results{good, good}, ResultTwice},
		{"outcome", with(func(x *JournalResult) { x.Outcome = "denied" }), OutcomeDiffers},
		{"capsule", with(func(x *JournalResult) { x.Capsule[0]++ }), CapsuleDiffers},
		{"index", with(func(x *JournalResult) { x.LogIndex++ }), IndexDiffers},
		{"run", with(func(x *JournalResult) { x.Run = "run_other" }), RunDiffers},
		{"not done", results{good, {LogIndex: 8, Call: "call-running", Run: r.ID, Outcome: "executed"}}, StepNotDone},
	} {
		rep, err := s.CheckJournal(context.Background(), c.j)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, d := range rep.Differences {
			got += d.Kind
		}
		if got != c.want || rep.Steps != 1 {
			t.Errorf("%s: %+v, want %q", c.name, rep, c.want)
		}
	}
	if _, err := s.CheckJournal(context.Background(), brokenJournal{}); !errors.Is(err, errRead) {
		t.Errorf("a journal that cannot be read: %v", err)
	}
}

type brokenJournal struct{}

func (brokenJournal) Results(context.Context, func(JournalResult) error) error { return errRead }

// PutArtifact stores what r gives until its end, durably, and holds it for holder.
func (s *Store) PutArtifact(ctx context.Context, holder, mediaType string, r io.Reader) (*Artifact, error) {
	d, err := s.Draft(ctx, holder, mediaType)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if _, err := io.Copy(d, &ctxReader{ctx: ctx, r: r}); err != nil {
		return nil, classify(opPut, err)
	}
	return d.Commit(ctx)
}

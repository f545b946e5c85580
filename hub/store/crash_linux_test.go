package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/internal/sample"
)

// TestMain is the victim of TestCrash when the environment asks: it works until
// the step whose number it was given and dies there.
func TestMain(m *testing.M) {
	dir := os.Getenv("PALYRA_TEST_CRASH")
	if dir == "" {
		os.Exit(m.Run())
	}
	last, err := strconv.Atoi(os.Getenv("PALYRA_TEST_STEP"))
	if err != nil {
		panic(err)
	}
	n := 0
	step := func(name string) {
		if last == 0 {
			fmt.Println("step", name)
		}
		if n++; n == last {
			fmt.Println("at", name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // not one instruction further
		}
	}
	if err := victim(dir, step); err != nil {
		fmt.Println("victim:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// victim does a bit of everything and says on standard output what it was told
// is durable.
func victim(dir string, step func(string)) error {
	s, err := open(dir, Options{TestOnlyStep: step, Readers: 1}, append(migrations(), `CREATE TABLE later (x INTEGER) STRICT`))
	if err != nil {
		return err
	}
	ctx := context.Background()
	run := &Run{Principal: "uid:1", Plan: []byte("{}")}
	if err := s.Update(ctx, func(tx *Tx) error {
		ses := &Session{Principal: "uid:1"}
		if err := tx.CreateSession(ses); err != nil {
			return err
		}
		run.Session = ses.ID
		return tx.CreateRun(run)
	}); err != nil {
		return err
	}
	fmt.Println("run", run.ID)
	var e Event
	if err := s.Update(ctx, func(tx *Tx) (err error) {
		e, err = tx.AppendEvent(run.ID, "k", []byte("1"))
		return err
	}); err != nil {
		return err
	}
	fmt.Println("event", run.ID, e.Seq)
	a, err := s.PutArtifact(ctx, run.ID, "text/plain", strings.NewReader("one"))
	if err != nil {
		return err
	}
	fmt.Println("artifact", a.Digest)
	if err := s.Update(ctx, func(tx *Tx) error { return tx.ReleaseArtifacts(run.ID) }); err != nil {
		return err
	}
	fmt.Println("released")
	if _, _, err := s.SweepArtifacts(ctx); err != nil {
		return err
	}
	return s.Close()
}

// TestCrash kills a process at every durable step and reopens what it left: the
// store is sound, all that was acknowledged is there, and it goes on.
func TestCrash(t *testing.T) {
	template := filepath.Join(t.TempDir(), "store") // of schema 1, so that the victim migrates
	s := openStore(t, template, Options{})
	fillStore(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var names []string // of the steps of a victim that lives
	if died := crashOnce(t, template, 0, &names); died {
		t.Fatal("killed at no step")
	}
	t.Run("at", func(t *testing.T) {
		for _, i := range sample.Steps(names) {
			t.Run(strconv.Itoa(i+1), func(t *testing.T) {
				t.Parallel()
				if !crashOnce(t, template, i+1, nil) {
					t.Errorf("there is no step %d", i+1)
				}
			})
		}
	})
	for _, want := range []string{"copied", "migrating", "migrated", "begun", "applied", "committed", "artifact_created", "artifact_written",
		"artifact_synced", "artifact_renamed", "artifact_durable", "artifact_recorded", "artifacts_forgotten", "artifact_removed"} {
		if !slices.Contains(names, want) {
			t.Errorf("the step %q was never reached", want)
		}
	}
}

// crashOnce runs a victim on a copy of the template, and judges what it leaves.
func crashOnce(t *testing.T, template string, step int, names *[]string) (died bool) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(dir, os.DirFS(template)); err != nil {
		t.Fatal(err)
	}
	tighten(t, dir)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PALYRA_TEST_CRASH="+dir, "PALYRA_TEST_STEP="+strconv.Itoa(step))
	out, err := cmd.Output()
	ee, died := errors.AsType[*exec.ExitError](err)
	if died && ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || err != nil && !died {
		t.Fatalf("victim: %v: %s", err, out)
	}
	judge(t, dir, string(out), names)
	if t.Failed() {
		t.Errorf("it said: %s", out)
	}
	return died
}

// judge opens what a victim left.
func judge(t *testing.T, dir, said string, names *[]string) {
	t.Helper()
	s, err := open(dir, Options{Readers: 1}, append(migrations(), `CREATE TABLE later (x INTEGER) STRICT`))
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	check(t, s)
	if err := s.CheckArtifacts(context.Background()); err != nil {
		t.Error(err)
	}
	if b, err := os.Stat(filepath.Join(dir, fmt.Sprintf("before-schema-%d-from-%d.db", len(migrations())+1, len(migrations())))); err != nil || b.Mode().Perm() != 0o600 {
		t.Errorf("the copy from before the migration: %v", err)
	}
	released := strings.Contains(said, "released")
	run := ""
	for line := range strings.Lines(said) {
		f := strings.Fields(line)
		switch f[0] {
		case "step":
			*names = append(*names, f[1])
		case "run":
			run = f[1]
			see(t, s, func(tx *Tx) (*Run, error) { return tx.Run(run) })
		case "event":
			if n := see(t, s, func(tx *Tx) (uint64, error) { return tx.LastEvent(f[1]) }); fmt.Sprint(n) < f[2] {
				t.Errorf("event %s was acknowledged, the last is %d", f[2], n)
			}
		case "artifact":
			d, err := canon.ParseDigest(f[1])
			if err != nil {
				t.Fatal(err)
			}
			_, err = View(context.Background(), s, func(tx *Tx) (*Artifact, error) { return tx.artifact(d) })
			// After the release, which may be durable without having been said, it may go.
			if err != nil && !(fault.KindOf(err) == fault.NotFound && (released || !held(t, s, d, run))) {
				t.Errorf("artifact %s was acknowledged: %v", d, err)
			}
		}
	}
	// Whoever comes next can work.
	fillStore(t, s)
	check(t, s)
}

func held(t *testing.T, s *Store, d canon.Digest, run string) bool {
	t.Helper()
	return see(t, s, func(tx *Tx) (bool, error) { return tx.HoldsArtifact(d, run) })
}

// TestMigrate brings an old database forward, keeps what was, refuses what is
// newer, and leaves everything as it was when a step fails.
func TestMigrate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, err := open(dir, Options{}, migrations()[:1]) // as the first Palyra made it
	if err != nil {
		t.Fatal(err)
	}
	ses := &Session{Principal: "uid:1000"}
	r := &Run{ID: ident.New(ident.Run), Principal: ses.Principal, Version: 1}
	do(t, s, func(tx *Tx) error {
		if err := tx.CreateSession(ses); err != nil {
			return err
		}
		r.Session = ses.ID
		_, err := tx.insert("create run", r.Principal, `INSERT INTO runs (id, session, principal, state, reason, plan, budget_calls, budget_wall, budget_bytes,
			use_calls, use_wall, use_bytes, key, version, created, started, ended) VALUES (?, ?, ?, 'pending', '', CAST('{}' AS BLOB), 1, 1, 1, 0, 0, 0, '', 1, 1, 0, 0)`,
			r.ID, r.Session, r.Principal)
		tx.pays(r.ID, r.Principal)
		return err
	})
	r = fillRun(t, s, r)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	check(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	now := migrations()
	bad := append(now, `CREATE TABLE a (x INTEGER) STRICT`, `CREATE TABLE b (x INTEGER) STRICT; CREATE NONSENSE`)
	if s, err := open(dir, Options{}, bad); err == nil {
		t.Fatal("a step that fails", s.Close())
	}
	good := append(bad[:len(now)+1:len(now)+1], `ALTER TABLE a ADD COLUMN y TEXT`)
	s, err = open(dir, Options{}, good)
	if err != nil {
		t.Fatal(err)
	}
	check(t, s)
	if got := see(t, s, func(tx *Tx) (*Run, error) { return tx.Run(r.ID) }); got.Version != r.Version {
		t.Errorf("the run: %+v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir, Options{})
	wants(t, err, fault.BadState, "schema_too_new")
	if fault.HintOf(err) == "" {
		t.Error("no hint what to do about a newer schema")
	}
	// The copy is a store of its own, as it was.
	old := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(old, 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("before-schema-%d-from-%d.db", len(good), len(now))))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(old, dbFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, old, Options{})
	see(t, s, func(tx *Tx) (*Run, error) { return tx.Run(r.ID) })
}

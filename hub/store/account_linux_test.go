package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/ident"
	"palyra/internal/sample"
)

// account is what OnWritten was told.
func account(s *Store) map[string]int64 {
	told := make(map[string]int64)
	s.OnWritten(func(who string, n int64) { told[who] += n })
	return told
}

// size is how many bytes of pages the database uses.
func size(t testing.TB, s *Store) int64 {
	t.Helper()
	return see(t, s, func(tx *Tx) (n int64, err error) {
		_, err = tx.row("measure", `SELECT (SELECT page_count FROM pragma_page_count) - (SELECT freelist_count FROM pragma_freelist_count)`, nil, &n)
		return n * 4096, err
	})
}

// TestAccount: what is told of each kind of row is within a factor of two of what
// the database grows by, and is its principal's.
func TestAccount(t *testing.T) {
	const who = "uid:1000"
	rows := int64(sample.Of(1000, 3000))
	text := func(n int) []byte { return []byte(`"` + strings.Repeat("x", n) + `"`) }
	var generation uint64
	kinds := []struct {
		name string
		one  func(tx *Tx, s *Store, r *Run, i int) error // of a run that there is
	}{
		{"session", func(tx *Tx, _ *Store, _ *Run, _ int) error { return tx.CreateSession(&Session{Principal: who}) }},
		{"label", func(tx *Tx, _ *Store, r *Run, i int) error {
			origins := call.Origins()
			if i%len(origins) == 0 {
				n := &Session{Principal: who}
				if err := tx.CreateSession(n); err != nil {
					return err
				}
				r.Session = n.ID
			}
			return tx.JoinInputs(r.Session, who, call.Input{Origin: origins[i%len(origins)], Tool: "http.fetch", Run: r.ID, Step: i, Time: tx.now})
		}},
		{"memory", func(tx *Tx, _ *Store, r *Run, _ int) error {
			return tx.AddMemories([]Memory{{ID: ident.New(ident.Memory), Principal: who, Scope: MemoryOfPrincipal, Session: r.Session, Source: "agent",
				Origins: []string{"model", "web"}, Created: tx.now, Expires: tx.now.Add(time.Hour), Sealed: text(600)}}, MemoryBounds{})
		}},
		{"usage", func(tx *Tx, _ *Store, r *Run, i int) error {
			return tx.CountUsage(r.Session, who, Usage{Day: int64(20000 + i), Model: "main", Turns: 1, Input: 12000, Output: 300, Cost: 52000})
		}},
		{"run", func(tx *Tx, _ *Store, r *Run, _ int) error {
			n := &Run{Session: r.Session, Principal: who, Plan: text(200), IdempotencyKey: ident.New("k")}
			if err := tx.CreateRun(n); err != nil {
				return err
			}
			n.State, n.Reason = RunFailed, "step_failed"
			return tx.UpdateRun(n)
		}},
		{"large run", func(tx *Tx, _ *Store, r *Run, _ int) error {
			return tx.CreateRun(&Run{Session: r.Session, Principal: who, Plan: text(6000)})
		}},
		{"step", func(tx *Tx, _ *Store, r *Run, i int) error {
			if i%200 == 0 { // each counts those before it
				n := &Run{Session: r.Session, Principal: who, Plan: []byte("{}")}
				if err := tx.CreateRun(n); err != nil {
					return err
				}
				r.ID = n.ID
			}
			n := &Step{Run: r.ID, Index: i % 200, Tool: "process.run", State: StepRunning, Input: text(40), Output: []byte(`{"from":12}`)}
			if err := tx.CreateStep(n); err != nil {
				return err
			}
			n.State, n.CallID, n.Capsule, n.OutputDigest, n.Outcome, n.Output = StepDone, ident.New("call"), canon.Sum(nil), canon.Sum(nil), "executed", text(400)
			return tx.UpdateStep(n, StepRunning)
		}},
		{"event", func(tx *Tx, _ *Store, r *Run, _ int) error {
			_, err := tx.AppendEvent(r.ID, "step.decided", text(150))
			return err
		}},
		{"large event", func(tx *Tx, _ *Store, r *Run, _ int) error {
			_, err := tx.AppendEvent(r.ID, "step.ended", text(20000))
			return err
		}},
		{"question", func(tx *Tx, _ *Store, r *Run, _ int) error {
			a := &Approval{Run: r.ID, Session: r.Session, Call: ident.New("call"), Requester: who, Decision: strings.Repeat("d", 32), Request: text(1500),
				Capsule: canon.Sum(nil), PolicySet: canon.Sum(nil), Scope: "once", Expires: time.Now().Add(time.Hour)}
			if err := tx.CreateApproval(a); err != nil {
				return err
			}
			_, err := tx.ResolveApproval(a.ID, a.Version, Resolution{State: ApprovalDenied, Approver: who, Surface: "unix", Detail: "no"})
			return err
		}},
		{"reserved key", func(tx *Tx, _ *Store, _ *Run, i int) error {
			_, err := tx.BeginIdempotent(Idempotency{Principal: who, Key: "createSession " + canon.Sum(fmt.Append(nil, i)).Hex() + strings.Repeat("k", 64), Request: canon.Sum(nil), Expires: time.Now().Add(time.Hour)})
			return err
		}},
		{"answered key", func(tx *Tx, _ *Store, _ *Run, i int) error {
			key := canon.Sum(fmt.Append(nil, i)).Hex()[:16]
			if _, err := tx.BeginIdempotent(Idempotency{Principal: who, Key: key, Request: canon.Sum(nil), Expires: time.Now().Add(time.Hour)}); err != nil {
				return err
			}
			return tx.FinishIdempotent(who, key, text(300))
		}},
		{"artifact", func(tx *Tx, _ *Store, r *Run, i int) error {
			d := canon.Sum(fmt.Append(nil, i))
			if _, err := tx.insert("", who, `INSERT INTO artifacts (digest, size, type, created) VALUES (?, ?, ?, ?)`, d[:], 0, octets, ns(tx.now)); err != nil {
				return err
			}
			return tx.holdArtifact(d, r.ID)
		}},
		{"token", func(_ *Tx, s *Store, _ *Run, i int) error {
			generation++
			t := access.Token{ID: ident.New("tok"), Principal: who, Name: "a token", Hash: canon.Sum(fmt.Append(nil, i)), Created: time.Now(), Expires: time.Now().Add(time.Hour)}
			return s.Access().Apply(context.Background(), access.Change{Generation: generation, Time: time.Now(), Actor: who + " tok_1", Act: "token.create",
				Subject: t.ID, Detail: map[string]string{"name": t.Name, "expires": "2026-01-01T00:00:00Z"}, Tokens: []access.Token{t}})
		}},
		{"passkey", func(_ *Tx, s *Store, _ *Run, i int) error {
			generation++
			p := access.Passkey{ID: ident.New("psk"), Principal: who, Name: "a laptop", Credential: []byte(canon.Sum(fmt.Append(nil, i)).Hex()[:32]), Key: make([]byte, 91), Created: time.Now()}
			return s.Access().Apply(context.Background(), access.Change{Generation: generation, Time: time.Now(), Actor: who + " tok_1", Act: "passkey.add",
				Subject: p.ID, Detail: map[string]string{"key": p.ID}, Passkeys: []access.Passkey{p}})
		}},
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			generation = 0
			s := newStore(t)
			r := newRun(t, s)
			each := k.name == "token" || k.name == "passkey"
			if each { // each is an Update
				raw(t, s, "PRAGMA synchronous = off")
			}
			before, told := size(t, s), account(s)
			for i := 0; i < int(rows); i += 100 {
				if each {
					for j := range 100 {
						if err := k.one(nil, s, r, i+j); err != nil {
							t.Fatal(err)
						}
					}
					continue
				}
				do(t, s, func(tx *Tx) error {
					for j := range 100 {
						if err := k.one(tx, s, r, i+j); err != nil {
							return err
						}
					}
					return nil
				})
			}
			grown, n := size(t, s)-before, told[who]
			t.Logf("%d bytes a row, accounted %d", grown/rows, n/rows)
			if n < grown/2 || n > 2*grown || len(told) != 1 {
				t.Errorf("the database grew by %d bytes, accounted %v", grown, told)
			}
		})
	}
}

// TestAccountDurable: what is undone is told of nobody, and what the daemon
// writes for itself neither.
func TestAccountDurable(t *testing.T) {
	s := newStore(t)
	told := account(s)
	undone := errors.New("undone")
	create := func(who string, err error) func(*Tx) error {
		return func(tx *Tx) error { return errors.Join(tx.CreateSession(&Session{Principal: who}), err) }
	}
	if err := s.Update(t.Context(), create("uid:1", undone)); !errors.Is(err, undone) {
		t.Fatal(err)
	}
	do(t, s, func(tx *Tx) error { return tx.PutSetting(&Setting{Key: "k", Value: []byte("1")}) })
	raw(t, s, "CREATE TEMP TRIGGER no BEFORE INSERT ON main.sessions WHEN new.principal = 'uid:2' BEGIN SELECT raise(ABORT, 'no'); END")
	if err := s.Update(t.Context(), create("uid:2", nil)); err == nil {
		t.Fatal("it was written")
	}
	if len(told) != 0 {
		t.Errorf("told %v", told)
	}
	do(t, s, func(tx *Tx) error { return errors.Join(create("uid:3", nil)(tx), create("uid:4", nil)(tx)) })
	one := maps.Clone(told)
	if one["uid:3"] == 0 || one["uid:3"] != one["uid:4"] || len(one) != 2 {
		t.Errorf("told %v", one)
	}
}

// TestAccountAlways: a row that is on no account can't be written.
func TestAccountAlways(t *testing.T) {
	s := newStore(t)
	for _, text := range []string{`INSERT INTO sessions (id) VALUES ('x')`, insertInto + "nothing VALUES (1)"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", text)
				}
			}()
			_ = s.Update(t.Context(), func(tx *Tx) error {
				if strings.Contains(text, "nothing") {
					_, err := tx.insert("", "uid:1", text)
					return err
				}
				_, err := tx.exec("", text)
				return err
			})
		}()
	}
}

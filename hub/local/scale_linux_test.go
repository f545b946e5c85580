package local

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// BenchmarkStart is a start over 10,000 members, 100,000 tokens and 100,000 past
// approvals: kernel, store and hub, until calls can be made. MiB is what the heap
// holds then.
func BenchmarkStart(b *testing.B) {
	base := b.TempDir()
	fill(b, base)
	var m runtime.MemStats
	for b.Loop() {
		h, err := open(b.Context(), base, bin(b), nil)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&m)
		if err := errors.Join(h.Close(b.Context()), h.st.Close(), h.k.Close()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MiB")
}

// fill makes the state that BenchmarkStart opens.
func fill(b *testing.B, base string) {
	ctx := context.Background()
	if err := os.Mkdir(filepath.Join(base, "work"), 0o755); err != nil {
		b.Fatal(err)
	}
	st, err := store.Open(filepath.Join(base, "store"), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	c := access.Change{Generation: 1, Time: time.Now(), Actor: "uid:0", Act: "fill", Subject: "all"}
	for i := range 10_000 {
		c.Members = append(c.Members, access.Member{Principal: fmt.Sprintf("user:person-%d", i), Role: access.Owner, AddedBy: "uid:0", Changed: time.Now(), Version: 1})
	}
	c.Members = append(c.Members, access.Member{Principal: peer(uint32(os.Geteuid())), Role: access.Owner, AddedBy: "uid:0", Changed: time.Now(), Version: 1})
	for i := range 100_000 {
		sum := canon.Sum(fmt.Append(nil, i))
		c.Tokens = append(c.Tokens, access.Token{ID: "tok_" + hex.EncodeToString(sum[:16]), Principal: c.Members[i%10_000].Principal, Name: "t", Hash: sum,
			Scopes: access.Operator.Permissions(), Created: time.Now(), Expires: time.Now().Add(24 * time.Hour)})
	}
	if err := st.Access().Apply(ctx, c); err != nil {
		b.Fatal(err)
	}
	for done := 0; done < 100_000; {
		err := st.Update(ctx, func(tx *store.Tx) error {
			for range 5000 {
				a := &store.Approval{Requester: "user:person-1", Decision: "d", Request: []byte(`{"text":"` + strings.Repeat("x", 500) + `"}`), Capsule: canon.Sum([]byte("c")),
					PolicySet: canon.Sum([]byte("p")), Scope: "once", Expires: time.Now().Add(time.Minute)}
				if err := tx.CreateApproval(a); err != nil {
					return err
				}
				if _, err := tx.ResolveApproval(a.ID, 1, store.Resolution{State: store.ApprovalDenied, Approver: "user:person-2"}); err != nil {
					return err
				}
				done++
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWakeUp is the time from the moment at which an answer is on disk to
// the intent of the call that waited for it, and to the end of its program, which
// does nothing: it began before. The cell is one of those that wait.
func BenchmarkWakeUp(b *testing.B) {
	at := map[string]chan time.Time{"approval:answered": make(chan time.Time, 1), "intent": make(chan time.Time, 1), "executed": make(chan time.Time, 1)}
	mark := func(name string) {
		if c := at[name]; c != nil {
			c <- time.Now()
		}
	}
	h := newHouse(b, func(c *Config, k *kernel.Config) {
		c.TestOnlyStep, k.TestOnlyStep = mark, mark
		k.Warm, k.Pool = tier.C, cell.Pool{Cells: 2, Networks: 2}
	})
	alice := h.member(1001, access.Operator)
	session := h.session(alice)
	var intent, ended []time.Duration
	for b.Loop() {
		r, err := hub.StartRun.Do(b.Context(), h, alice, hub.NewRun{Session: session, Steps: []hub.Step{argv("/bin/mkdir", "--version")}})
		if err != nil {
			b.Fatal(err)
		}
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		if _, err := hub.ResolveApproval.Do(b.Context(), h, h.owner, hub.Resolution{ID: h.question(h.owner).ID, Version: 0, Answer: hub.Answer{Approve: true}}); err != nil {
			b.Fatal(err)
		}
		from := <-at["approval:answered"]
		intent, ended = append(intent, (<-at["intent"]).Sub(from)), append(ended, (<-at["executed"]).Sub(from))
		h.ended(alice, r.ID)
	}
	report(b, "-to-intent", intent)
	report(b, "-to-exit", ended)
}

package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"palyra/authz/policy"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/kernel/internal/digests"
)

// seal is sealWith for a process of its own.
func seal(ctx context.Context, p *Proposal, stdin io.Reader, state string, known *digests.Cache) (*sealed, error) {
	hold, err := ownBudgets().Sealed.Take((&Caller{}).owner(), 0)
	if err != nil {
		return nil, err
	}
	return sealWith(ctx, p, stdin, state, known, hold)
}

// holdOperands is Kernel.holdOperands for a process of its own.
func (s *sealed) holdOperands() error {
	return newKernel(Config{}).holdOperands(context.Background(), &Caller{}, s)
}

// givenBack waits until no call holds anything.
func (k *Kernel) givenBack(t *testing.T) {
	t.Helper()
	late := time.After(5 * time.Second)
	for range time.Tick(time.Millisecond) {
		held := int64(0)
		for _, p := range k.Budgets().Pools() {
			held += p.Held()
		}
		if held == 0 {
			return
		}
		select {
		case <-late:
			t.Fatalf("%d are held", held)
		default:
		}
	}
}

// sparse makes an executable of this size, most of which is a hole.
func sparse(t testing.TB, size int64) string {
	t.Helper()
	head, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "big")
	if err := errors.Join(os.WriteFile(name, head, 0o755), os.Truncate(name, size)); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestSealedBudget: the memory of sealed copies is bounded, for each principal and
// in all, with a part that is kept for the owner. It is reserved before a byte is
// copied and held for as long as the call is.
func TestSealedBudget(t *testing.T) {
	const unit = 1 << 20
	k := newKernel(Config{Budgets: NewBudgets(8*unit, 4*unit)}) // 7 are for all
	p := *proposal(sparse(t, 3*unit))
	who := func(id string) *Caller { return &Caller{Principal: policy.LocalUser(id)} }
	owner := who("owner")
	owner.Reserve = true
	var held []*sealed
	for i, c := range []struct {
		who    *Caller
		reason string
	}{
		{who("a"), ""},
		{who("a"), "budget_sealed"}, // its share
		{who("b"), ""},
		{who("c"), "budget_sealed"}, // all of it
		{owner, "budget_sealed"},    // there are 2 left, and it needs 3
	} {
		s, _, err := k.sealAside(t.Context(), c.who, p, nil)
		if fault.ReasonOf(err) != c.reason {
			t.Fatalf("%d: %v, want %q", i, err, c.reason)
		}
		if err == nil {
			held = append(held, s)
		} else if fault.KindOf(err) != fault.Unavailable || fault.HintOf(err) == "" {
			t.Errorf("%d: %v, hint %q", i, fault.KindOf(err), fault.HintOf(err))
		}
	}
	if n := k.Budgets().Sealed.Held(); n != 6*unit {
		t.Errorf("%d bytes are held", n)
	}
	held[0].close()
	held[0].close() // it may be called again
	if n := k.Budgets().Sealed.Held(); n != 3*unit {
		t.Errorf("%d bytes are held", n)
	}
	s, _, err := k.sealAside(t.Context(), owner, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	held[1].close()
	if n, m := k.Budgets().Sealed.Held(), k.Budgets().Sealing.Held(); n != 0 || m != 0 {
		t.Errorf("%d bytes and %d places are held", n, m)
	}
}

// TestSealCanceled: whoever leaves while a large file is hashed is not waited for,
// and the hashing ends.
func TestSealCanceled(t *testing.T) {
	k := newKernel(Config{Budgets: NewBudgets(1<<30, 1<<30)})
	for name, p := range map[string]*Proposal{"program": proposal(sparse(t, 500<<20)), "operand": operandOf(t, 250<<20)} {
		ctx, cancel := context.WithCancel(t.Context())
		var left time.Time
		time.AfterFunc(30*time.Millisecond, func() { left = time.Now(); cancel() })
		_, _, err := k.sealAside(ctx, &Caller{Principal: policy.LocalUser("a")}, *p, nil)
		if d := time.Since(left); left.IsZero() || fault.KindOf(err) != fault.Canceled || d > 500*time.Millisecond {
			t.Errorf("%s: %v, %v after its caller left", name, err, d)
		}
		k.givenBack(t)
	}
}

func operandOf(t *testing.T, size int64) *Proposal {
	big := sparse(t, size)
	p := proposal("/bin/cat", filepath.Base(big))
	p.Workspace = filepath.Dir(big)
	return p
}

// TestSealPanics: a bug in what reads foreign files is the caller's, who may be
// behind a request that recovers, and nothing stays held.
func TestSealPanics(t *testing.T) {
	k := newKernel(Config{TestOnlyStep: func(string) { panic("bug") }})
	func() {
		defer func() {
			if v := recover(); v != "bug" {
				t.Errorf("got %v", v)
			}
		}()
		k.sealAside(t.Context(), &Caller{Principal: policy.LocalUser("a")}, *proposal("/bin/true"), nil)
	}()
	k.givenBack(t)
}

// TestSealHangs: a file system that does not answer keeps neither the caller nor
// more than one place of its share.
func TestSealHangs(t *testing.T) {
	hang, entered := make(chan struct{}), make(chan struct{}, 1)
	k := newKernel(Config{TestOnlyStep: func(name string) {
		if name == "sealing" {
			entered <- struct{}{}
			<-hang
		}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	who := &Caller{Principal: policy.LocalUser("a")}
	go func() { <-entered; cancel() }()
	if _, _, err := k.sealAside(ctx, who, *proposal("/bin/true"), nil); fault.KindOf(err) != fault.Canceled {
		t.Errorf("%v", err)
	}
	if n := k.Budgets().Sealing.Held(); n != 1 {
		t.Errorf("%d places while it hangs", n)
	}
	close(hang)
	k.givenBack(t)
}

// TestFilesBudget: descriptors of sealed operands are bounded, for each principal
// and in all, and held until the call is over.
func TestFilesBudget(t *testing.T) {
	dir := t.TempDir()
	argv := []string{"true"}
	for i := range 3 {
		name := fmt.Sprintf("f%d", i)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		argv = append(argv, name)
	}
	b := NewBudgets(0, 0)
	if l := b.Files.Limits(); l.Each < maxMounted || l.Each > l.Total/2 || l.Reserve == 0 || l.Total > max(4*maxMounted, budget.Files()/2) {
		t.Errorf("by default: %+v", l)
	}
	b.Files = budget.New(budget.Limits{Name: "files", Total: 10, Each: 5, Reserve: 3})
	k := newKernel(Config{Budgets: b})
	p := *proposal(argv...)
	p.Workspace = dir
	var held []*sealed
	for i, c := range []struct{ who, reason string }{
		{"a", ""}, {"a", "budget_files"}, {"b", ""}, {"c", "budget_files"},
	} {
		who := &Caller{Principal: policy.LocalUser(c.who)}
		s, _, err := k.sealAside(t.Context(), who, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, s)
		if err := k.holdOperands(t.Context(), who, s); fault.ReasonOf(err) != c.reason {
			t.Errorf("%d: %v, want %q", i, err, c.reason)
		}
	}
	if n := b.Files.Held(); n != 6 {
		t.Errorf("%d descriptors are held", n)
	}
	for _, s := range held {
		s.close()
	}
	k.givenBack(t)
}

package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/authz/policy"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel/internal/digests"
	"palyra/kernel/internal/pin"
)

func seal(ctx context.Context, p *Proposal, stdin io.Reader, state string, known *digests.Cache) (*sealed, error) {
	hold, err := ownBudgets().Sealed.Take((&Caller{}).owner(), 0)
	if err != nil {
		return nil, err
	}
	return sealWith(ctx, p, stdin, state, known, hold)
}

func (s *sealed) holdOperands() error {
	return newKernel(Config{}).holdOperands(context.Background(), &Caller{}, s)
}

// givenBack waits until no call holds anything.
func (k *Kernel) givenBack(t *testing.T) {
	t.Helper()
	late := time.After(time.Minute)
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

// TestSealedBudget: the memory of sealed copies is bounded for each principal and in all, with
// a reserve for the owner. It's reserved before a byte is copied and held as long as the call.
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
		{who("a"), "budget"}, // its share
		{who("b"), ""},
		{who("c"), "budget"}, // all of it
		{owner, "budget"},    // 2 are left, and it needs 3
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
	one := pin.Memory(3*unit) + perByte*int64(len(held[0].bytes))
	if n := k.Budgets().Sealed.Held(); n != 2*one {
		t.Errorf("%d bytes are held", n)
	}
	held[0].close()
	held[0].close() // it may be called again
	if n := k.Budgets().Sealed.Held(); n != one {
		t.Errorf("%d bytes are held", n)
	}
	s, _, err := k.sealAside(t.Context(), owner, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	held[1].close()
	if n := k.Budgets().Sealed.Held(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	for k.Budgets().Sealing.Held() != 0 { // a sealing call gives its place back after its answer
		runtime.Gosched()
	}
}

// TestSealCanceled: a caller that leaves while a large file is hashed isn't waited for, and the
// hashing ends: it uses less of the processor than half of the file takes.
func TestSealCanceled(t *testing.T) {
	k := newKernel(Config{Budgets: NewBudgets(1<<30, 1<<30)})
	program, operand := sparse(t, 500<<20), sparse(t, 250<<20)
	began := used(t)
	canon.Sum(make([]byte, 125<<20))
	half := used(t) - began
	for name, p := range map[string]*Proposal{program: proposal(program), operand: operandOf(operand)} {
		for err := error(nil); err == nil; { // again if it ended before its caller could leave
			ctx, cancel := context.WithCancel(t.Context())
			over, left := make(chan struct{}), make(chan time.Duration, 1)
			go func() {
				for !closed(over) && !holds(t, name) {
					runtime.Gosched()
				}
				left <- used(t)
				cancel()
			}()
			var s *sealed
			s, _, err = k.sealAside(ctx, &Caller{Principal: policy.LocalUser("a")}, *p, nil)
			close(over)
			if err == nil {
				s.close()
			} else if fault.KindOf(err) != fault.Canceled {
				t.Errorf("%s: %v", name, err)
			}
			k.givenBack(t)
			if more := used(t) - <-left; err != nil && more > half {
				t.Errorf("%s: %v of the processor after its caller left, half of it takes %v", name, more, half)
			}
		}
	}
}

// used is the processor time that this process has used.
func used(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// holds tells whether this process has the file open.
func holds(t *testing.T, name string) bool {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Error(err)
	}
	return slices.ContainsFunc(fds, func(fd string) bool {
		to, err := os.Readlink(fd)
		return err == nil && to == name
	})
}

func operandOf(big string) *Proposal {
	p := proposal("/bin/cat", filepath.Base(big))
	p.Workspace = filepath.Dir(big)
	return p
}

// TestSealPanics: a bug in reading foreign files panics on the caller's goroutine, where a
// surface may recover, and nothing stays held.
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

// TestSealHangs: a file system that doesn't answer keeps neither the caller nor more than one
// place of its share.
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

// TestFilesBudget: descriptors of sealed operands are bounded for each principal and in all,
// and held until the call is over.
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
		{"a", ""}, {"a", "budget"}, {"b", ""}, {"c", "budget"},
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

// TestSealedPages: small files count as the memory that they take. A copy of one byte is a page
// and an inode.
func TestSealedPages(t *testing.T) {
	const n = 100
	ws := t.TempDir()
	p := proposal("true")
	p.Workspace = ws
	for i := range n {
		name := fmt.Sprintf("f%d", i)
		put(t, ws+"/"+name, "x"[:i%2], 0o644) // every other one is empty
		p.Argv = append(p.Argv, name)
	}
	page := int64(os.Getpagesize())
	least := int64(n/2)*page + n*1<<10
	for _, c := range []struct {
		sealed int64
		reason string
	}{{2 * least, ""}, {least / 2, "budget"}} {
		k := newKernel(Config{Budgets: newBudgets(c.sealed, c.sealed, 0)})
		who := &Caller{Principal: localUser()}
		s, _, err := k.sealAside(t.Context(), who, *p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.holdOperands(t.Context(), who, s); fault.ReasonOf(err) != c.reason {
			t.Errorf("%d bytes for %d files: %v, want %q", c.sealed, n, err, c.reason)
		}
		if held := k.Budgets().Sealed.Held(); c.reason == "" && held < least {
			t.Errorf("%d bytes are counted for %d files, which hold %d", held, n, least)
		}
		s.close()
	}
	p = proposal("cat")
	p.Stdin = StdinSealed
	k := newKernel(Config{})
	s, _, err := k.sealAside(t.Context(), &Caller{Principal: localUser()}, *p, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if held := k.Budgets().Sealed.Held(); held < page {
		t.Errorf("%d bytes are counted for a standard input of one", held)
	}
}

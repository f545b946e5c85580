package budget

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"palyra/internal/fault"
)

func TestTake(t *testing.T) {
	p := New(Limits{Name: "sealed", Total: 10, Each: 6, Reserve: 2})
	a, root := Owner{Name: "a"}, Owner{Name: "root", Reserve: true}
	var holds []*Hold
	for _, tt := range []struct {
		owner Owner
		n     int64
		says  string // why not; "": it may
	}{
		{a, 5, ""},
		{a, 2, "holds its share"},
		{a, 1, ""},
		{Owner{Name: "b"}, 3, "all of it is in use"}, // but the reserve
		{Owner{Name: "b"}, 2, ""},
		{Owner{Name: "c"}, 1, "all of it is in use"},
		{root, 2, ""},
		{root, 1, "all of it is in use"},
	} {
		h, err := p.Take(tt.owner, tt.n)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Fatalf("%s takes %d: got %v", tt.owner.Name, tt.n, err)
		}
		if err != nil {
			if k, r := fault.KindOf(err), fault.ReasonOf(err); k != fault.Unavailable || r != "budget" {
				t.Fatalf("got %v %q", k, r)
			}
			continue
		}
		holds = append(holds, h)
	}
	for _, h := range holds {
		h.Release()
		h.Release()
	}
	if p.Held() != 0 || len(p.owners) != 0 || p.Refused() != 4 {
		t.Fatalf("afterwards: held %d, owners %v, refused %d", p.Held(), p.owners, p.Refused())
	}
	(*Hold)(nil).Release()
}

// TestAccounts: what holds an owner's name without the reserve leaves the owner's
// share alone, in the pool and in its line.
func TestAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Limits{Name: "x", Total: 8, Each: 4, Reserve: 4, Line: 2})
		token, root := Owner{Name: "root"}, Owner{Name: "root", Reserve: true}
		if _, err := p.Take(token, 4); err != nil {
			t.Fatal(err)
		}
		go p.Wait(t.Context(), token, 1)
		synctest.Wait()
		h, err := p.Take(root, 4)
		if err != nil {
			t.Fatal(err)
		}
		var waited error
		go func() { _, waited = p.Wait(t.Context(), root, 1) }()
		synctest.Wait()
		h.Release()
		synctest.Wait()
		if waited != nil || p.owners[root] != 1 || p.owners[token] != 4 {
			t.Errorf("%v, %v", waited, p.owners)
		}
	})
}

func TestGrow(t *testing.T) {
	p := New(Limits{Name: "x", Total: 4})
	h, err := p.Take(Owner{Name: "a"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Grow(4); err != nil {
		t.Fatal(err)
	}
	if err := h.Grow(1); err == nil {
		t.Fatal("grew beyond the pool")
	}
	h.Release()
	if p.Held() != 0 {
		t.Fatalf("held %d", p.Held())
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New(Limits{Name: "x", Total: 4, Each: 3, Line: 2})
		first, _ := p.Take(Owner{Name: "a"}, 3)
		if _, err := p.Wait(ctx, Owner{Name: "a"}, 4); fault.ReasonOf(err) != "budget" {
			t.Fatalf("more than can ever fit: %v", err)
		}
		got := make(chan string, 2)
		var second *Hold
		go func() { second, _ = p.Wait(ctx, Owner{Name: "b"}, 2); got <- "b" }()
		synctest.Wait()
		go func() {
			if _, err := p.Wait(ctx, Owner{Name: "a"}, 3); fault.KindOf(err) == fault.Canceled {
				got <- "canceled"
			}
		}()
		synctest.Wait()
		if _, err := p.Wait(ctx, Owner{Name: "c"}, 2); fault.ReasonOf(err) != "budget" {
			t.Fatalf("a full line: %v", err)
		}
		if _, err := p.Wait(ctx, Owner{Name: "a"}, 2); fault.ReasonOf(err) != "budget" {
			t.Fatalf("more than half of a line: %v", err)
		}
		first.Release()
		if who := <-got; who != "b" {
			t.Fatalf("%s was first", who)
		}
		cancel()
		if who := <-got; who != "canceled" {
			t.Fatal(who)
		}
		second.Release()
		if p.Held() != 0 || len(p.line) != 0 {
			t.Fatalf("held %d, %d in line", p.Held(), len(p.line))
		}
	})
}

// TestKeep: what is left to a request is given back when that ends, and at once
// where there is none.
// TestTurns: where one owner's share is all there is, the others' requests don't wait behind all of
// that owner's.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Limits{Name: "x", Total: 1, Line: 16})
		a, b := Owner{Name: "a"}, Owner{Name: "b"}
		now, err := p.Take(a, 1)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		holds := make(chan *Hold)
		wait := func(o Owner) {
			go func() {
				h, err := p.Wait(t.Context(), o, 1)
				if err != nil {
					t.Error(err)
				}
				got = append(got, o.Name)
				holds <- h
			}()
			synctest.Wait()
		}
		for _, o := range []Owner{a, a, a, b, b} {
			wait(o)
		}
		for range 5 {
			now.Release()
			now = <-holds
		}
		if s := strings.Join(got, ""); s != "babaa" {
			t.Errorf("served %s, want babaa", s)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go p.Wait(ctx, b, 1)
		synctest.Wait()
		cancel()
		synctest.Wait()
		now.Release()
		if len(p.turns) != 0 || p.Held() != 0 {
			t.Errorf("afterwards: %v, held %d", p.turns, p.Held())
		}
	})
}

func TestKeep(t *testing.T) {
	p := New(Limits{Name: "x", Total: 4})
	take := func() *Hold {
		h, err := p.Take(Owner{Name: "a"}, 2)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	ctx, end := Request(t.Context())
	take().Keep(ctx)()
	take().Keep(t.Context())()
	if p.Held() != 2 {
		t.Errorf("held %d while the request goes on", p.Held())
	}
	end()
	take().Keep(ctx)() // too late: the caller's own
	if p.Held() != 0 {
		t.Errorf("held %d", p.Held())
	}
}

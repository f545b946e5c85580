package stage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/internal/git"
)

// blockedBy is blocked by its definition.
func blockedBy(c *comparison, name string) bool {
	for _, r := range []*git.Refs{c.hostRefs, c.layerRefs} {
		for other := range r.Names {
			if strings.HasPrefix(other, name+"/") || strings.HasPrefix(name, other+"/") {
				return true
			}
		}
	}
	return false
}

func TestBlocked(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	name := func() string {
		s := "refs/heads"
		for range 1 + rng.IntN(4) {
			s += "/" + string(rune('a'+rng.IntN(3)))
		}
		return s
	}
	n := 0
	for range 200 {
		c := &comparison{host: &repo{nil, -1, -1}, hostRefs: &git.Refs{Names: map[string]git.Ref{}}, layerRefs: &git.Refs{Names: map[string]git.Ref{}}}
		for range rng.IntN(6) {
			c.hostRefs.Names[name()], c.layerRefs.Names[name()] = git.Ref{}, git.Ref{}
		}
		c.layerRefs.Names[name()+"/"+strings.Repeat("x/", 4000)] = git.Ref{}
		for range 20 {
			ref := name()
			if got, want := c.blocked(ref), blockedBy(c, ref); got != want {
				t.Fatalf("%s among %v and %v: %v", ref, c.hostRefs.Names, c.layerRefs.Names, got)
			} else if got {
				n++
			}
		}
	}
	if n == 0 {
		t.Error("none was blocked")
	}
}

// TestManyRefs: the refs that would stay are bounded, and looking at them ends with the reading.
func TestManyRefs(t *testing.T) {
	const id = "0123456789012345678901234567890123456789"
	p := newPair(t)
	for name, text := range map[string]string{"HEAD": "ref: refs/heads/main\n", "config": "[core]\n", "refs/heads/main": id + "\n"} {
		put(t, p.low, ".git/"+name, text)
	}
	refs := func(n int) {
		var b strings.Builder
		b.WriteString(id + " refs/tags/a\n")
		for i := range n {
			fmt.Fprintf(&b, "%s refs/tags/a/%d\n", id, i)
		}
		put(t, p.up, ".git/packed-refs", b.String())
	}
	refs(maxLeft - 1)
	l, err := p.read(t, Limits{})
	must(t, err)
	if len(l.Left) != maxLeft {
		t.Errorf("%d refs stay, want %d", len(l.Left), maxLeft)
	}
	refs(maxLeft + 1)
	l, err = p.read(t, Limits{})
	must(t, err)
	if len(l.Left) != 1 || !l.Left[0].big {
		t.Errorf("%d refs stay", len(l.Left))
	}
	// The reader's end is seen between two refs.
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &comparison{r: &reader{ctx: ctx}, host: &repo{nil, -1, -1}, hostRefs: &git.Refs{}, layerRefs: &git.Refs{Names: map[string]git.Ref{"refs/tags/x": {Odd: "odd"}}}}
	over := fault.New(fault.Canceled, "canceled", "read", nil)
	cancel(over)
	if err := c.goesOn(); !errors.Is(err, over) {
		t.Errorf("after its end: %v", err)
	}
}

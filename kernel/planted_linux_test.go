package kernel

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/kernel/internal/planted"
)

// TestPlanted: the receipt lists a program's traps. A call without a folder to write to has no
// such list.
func TestPlanted(t *testing.T) {
	policies := t.TempDir()
	os.Chmod(policies, 0o755)
	put(t, policies+"/all.cedar", `@id("all") permit (principal, action, resource);`, 0o644)
	h := openHouse(t, Config{PolicyDir: policies})
	ws := t.TempDir()
	put(t, ws+"/.envrc", "was there", 0o644)
	put(t, ws+"/.npmrc", "", 0o644)
	put(t, ws+"/tick", "", 0o644)
	passTick(t)
	p := proposal("/bin/sh", "-c", `mkdir -p .git/hooks sub && echo x >.git/hooks/pre-commit && chmod 755 .git/hooks/pre-commit &&
		echo >>.npmrc && ln -s /etc/passwd out && ln -s .. sub/in && ln .npmrc sub/n && mv tick 'a
b'; exit 0`)
	p.Workspace = ws
	o := h.call(p, IO{})
	if o.Outcome != receipt.Executed || o.Planted == nil {
		t.Fatalf("%s, planted %v, %v", o.Outcome, o.Planted, o.Error)
	}
	var got []string
	for _, f := range o.Planted.Found {
		got = append(got, f.Kind+" "+f.Path)
	}
	want := []string{"hook .git/hooks/pre-commit", "hard_link .npmrc", "package .npmrc", "symlink out", "hard_link sub/n"}
	if !slices.Equal(got, want) || len(o.Planted.Incomplete) > 0 {
		t.Errorf("planted %q, incomplete %v; want %q", got, o.Planted.Incomplete, want)
	}
	if in := h.verify(o).Statement.Predicate.Planted; in == nil || !slices.Equal(in.Found, o.Planted.Found) {
		t.Errorf("the receipt says %+v", in)
	}

	passTick(t)
	p = proposal("/bin/true")
	p.Workspace = ws
	if o = h.call(p, IO{}); o.Planted == nil || len(o.Planted.Found) != 0 || o.Planted.Looked == 0 {
		t.Errorf("by true: %+v", o.Planted)
	}
	p.WorkspaceReadOnly = true
	if o = h.call(p, IO{}); o.Planted != nil {
		t.Errorf("read-only: %+v", o.Planted)
	}
	if o = h.call(proposal("/bin/true"), IO{}); o.Planted != nil {
		t.Errorf("private: %+v", o.Planted)
	}
	h.audit()
}

// passTick waits until files' present times are past. The clock of file times ticks, and
// changes in the tick in which a call begins may be the call's.
func passTick(t *testing.T) {
	t.Helper()
	name := t.TempDir() + "/tick"
	var began time.Time
	for end := time.Now().Add(time.Minute); ; {
		put(t, name, "", 0o644)
		st, err := os.Stat(name)
		if err != nil || time.Now().After(end) {
			t.Fatal("the clock of files stands still", err)
		}
		if began.IsZero() {
			began = st.ModTime()
		}
		if st.ModTime().Sub(began) > 50*time.Millisecond {
			return
		}
	}
}

// TestPlantedStopped: stopping a call doesn't wait for a look through a large workspace.
func TestPlantedStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	if l := lookLimits(ctx); l != (planted.Limits{}) {
		t.Errorf("a call that ended by itself: %+v", l)
	}
	stop()
	if l := lookLimits(ctx); l != (planted.Limits{Time: cut}) {
		t.Errorf("a call that was stopped: %+v", l)
	}
}

// TestPlantedTooLong: a statement that a long list would make too large is recorded without the
// list.
func TestPlantedTooLong(t *testing.T) {
	fits := receipt.Predicate{Planted: &receipt.Planted{Kinds: []receipt.KindCount{{Kind: "hook", Count: 1}},
		Found: []receipt.Finding{{Path: strings.Repeat("x", 100), Kind: "hook", Mode: "100644"}}}}
	tooLong := fault.New(fault.Usage, "too_large", "sign receipt", receipt.ErrTooLarge)
	less, again := withoutList(fits, tooLong)
	if !again || len(less.Planted.Found) != 0 || len(less.Planted.Kinds) != 1 || len(fits.Planted.Found) != 1 {
		t.Errorf("%t, %+v", again, less.Planted)
	}
	if _, again = withoutList(less, tooLong); again {
		t.Error("tried without end")
	}
	for _, err := range []error{nil, fault.New(fault.Unavailable, "not_ready", "append", nil), fmt.Errorf("x")} {
		if _, again = withoutList(fits, err); again {
			t.Errorf("tried again after %v", err)
		}
	}
	if _, again = withoutList(receipt.Predicate{}, tooLong); again {
		t.Error("tried again without anything planted")
	}
}

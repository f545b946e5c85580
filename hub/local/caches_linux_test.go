package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/isolate/cache"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// TestCachesGo: a HOME goes with its session, that of a single call with the call; other caches go
// when no call has used them for long, and the journal knows.
func TestCachesGo(t *testing.T) {
	work, policies := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(policies, "all.cedar"), []byte("@id(\"all\")\npermit (principal, action, resource);\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	change := func(_ *Config, k *kernel.Config) {
		k.PolicyDir = policies
		k.Tools = tool.New(tool.Config{Program: filepath.Join(bin(t), "palyra-tool"), Workspaces: map[string]tool.Workspace{
			"src": {Path: work, Declared: &kernel.Declared{Caches: []string{"go", "home"}}}}})
	}
	h := newHouse(t, change)
	left := func() (names []string) {
		list, err := cache.List(h.k.StateDir())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			names = append(names, c.Name+" "+c.Owner.Session)
		}
		return names
	}
	want := func(when string, names ...string) {
		t.Helper()
		got := strings.Join(left(), ", ")
		for _, n := range names {
			if !strings.Contains(got, n) {
				t.Errorf("%s: %q lacks %q", when, got, n)
			}
		}
		if len(left()) != len(names) {
			t.Errorf("%s: %q, want %q", when, got, names)
		}
	}
	one, two := h.session(h.owner), h.session(h.owner)
	h.in(h.owner, one, "process.run", sh(`test "$HOME" = /caches/home && echo x >~/f && echo x >$GOCACHE/f`), false)
	h.in(h.owner, one, "process.run", sh(`cat ~/f $GOCACHE/f`), false)
	h.in(h.owner, two, "process.run", sh(`test ! -e ~/f && cat $GOCACHE/f`), false)
	h.in(h.owner, "", "process.run", sh(`test ! -e ~/f`), false)
	want("a call's own session is over", "go ", "home "+one, "home "+two)
	if _, err := hub.EndSession.Do(t.Context(), h, h.owner, hub.SessionChange{ID: one}); err != nil {
		t.Fatal(err)
	}
	want("one has ended", "go ", "home "+two)

	if err := h.Retain(t.Context(), Keep{Caches: time.Hour}); err != nil {
		t.Fatal(err)
	}
	want("nothing is old", "go ", "home "+two)
	// A session that another process ended, or one whose HOME was in use.
	used, err := cache.Take(h.k.StateDir(), cache.Owner{Principal: "x", Workspace: work, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Session: one}, "home")
	if err != nil {
		t.Fatal(err)
	}
	want("one is back", "go ", "home "+one, "home "+two)
	before := len(h.sweeps())
	if err := h.Retain(t.Context(), Keep{}); err != nil {
		t.Fatal(err)
	}
	want("in use", "go ", "home "+one, "home "+two)
	used.Close()
	if err := h.Retain(t.Context(), Keep{}); err != nil {
		t.Fatal(err)
	}
	want("one's again", "go ", "home "+two)
	if err := h.Retain(t.Context(), Keep{Caches: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	want("all are old")
	if found := h.sweeps(); len(found) <= before || !strings.Contains(found[len(found)-1]["statement"], `"caches":"2"`) {
		t.Errorf("the journal knows of %v", found)
	}
}

package cache

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate"
)

func owner() Owner {
	return Owner{Principal: `Palyra::User::"alice"`, Workspace: "/srv/w", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
}

func take(t *testing.T, state string, o Owner, name string) *Cache {
	t.Helper()
	c, err := Take(state, o, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestOwners: any number of calls share a cache, and those of another owner or name have another.
func TestOwners(t *testing.T) {
	state := t.TempDir()
	first := take(t, state, owner(), "go")
	if again := take(t, state, owner(), "go"); again.ID != first.ID {
		t.Errorf("%s and %s", first.ID, again.ID)
	}
	seen := map[string]bool{first.ID: true}
	for _, change := range []func(*Owner){
		func(o *Owner) { o.Principal = `Palyra::User::"bob"` }, func(o *Owner) { o.Workspace = "/srv/w2" },
		func(o *Owner) { o.Principal, o.Workspace = `Palyra::User::"alice"/`, "srv/w" },
		func(o *Owner) { o.GID++ },
	} {
		o := owner()
		change(&o)
		if os.Geteuid() != 0 && o.GID != owner().GID {
			continue
		}
		c := take(t, state, o, "go")
		if seen[c.ID] {
			t.Errorf("%+v has the cache %s too", o, c.ID)
		}
		seen[c.ID] = true
	}
	if c := take(t, state, owner(), "npm"); seen[c.ID] {
		t.Error("another name, the same cache")
	}
	list, err := List(state)
	if err != nil || len(list) != len(seen)+1 {
		t.Errorf("%d listed, %v", len(list), err)
	}
}

// TestSession: a session's cache is no other session's, and goes with it unless a call uses it.
func TestSession(t *testing.T) {
	state := t.TempDir()
	of := func(session string) Owner {
		o := owner()
		o.Session = session
		return o
	}
	one, two, none := take(t, state, of("one"), "home"), take(t, state, of("two"), "home"), take(t, state, owner(), "home")
	if one.ID == two.ID || one.ID == none.ID || two.ID == none.ID {
		t.Error(one.ID, two.ID, none.ID)
	}
	if err := EndSession(state, "one"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(state, Folder, one.ID)); err != nil {
		t.Errorf("in use: %v", err)
	}
	one.Close()
	if err := errors.Join(EndSession(state, "one"), EndSession(state, "never"), EndSession(state, "")); err != nil {
		t.Error(err)
	}
	list, err := List(state)
	if err != nil || len(list) != 2 || list[0].Owner.Session+list[1].Owner.Session != "two" {
		t.Errorf("left %+v, %v", list, err)
	}
}

// TestHeld: what a call leaves counts for its principal, from when it gives the cache up.
func TestHeld(t *testing.T) {
	state := t.TempDir()
	held := func(who string) int64 {
		n, err := Held(state, who)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	me := owner().Principal
	if n := held(me); n != 0 {
		t.Errorf("%d before any", n)
	}
	c, other := take(t, state, owner(), "go"), owner()
	other.Principal = "b"
	take(t, state, other, "go").Close()
	if err := os.WriteFile(filepath.Join(state, Folder, c.ID, dataName, "f"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if n := held(me); n < 1<<20 || n > 2<<20 || held("b") > 1<<16 {
		t.Errorf("%d, another %d", n, held("b"))
	}
	// A call that died has written nothing down.
	if err := os.Remove(filepath.Join(state, Folder, c.ID, useFile)); err != nil {
		t.Fatal(err)
	}
	if n := held(me); n < 1<<20 {
		t.Errorf("%d after a crash", n)
	}
	if os.Geteuid() == 0 {
		return // who sees all
	}
	data := filepath.Join(state, Folder, c.ID, dataName)
	if err := errors.Join(os.Mkdir(data+"/hidden", 0), os.Remove(data+"/f")); err != nil {
		t.Fatal(err)
	}
	if n := held(me); n < isolate.CacheBytes {
		t.Errorf("%d, with a folder that can't be seen", n)
	}
}

// TestRemove: what a call uses stays; what a program left is removed, whatever it is, and nothing
// that it leads to.
func TestRemove(t *testing.T) {
	state, away := t.TempDir(), t.TempDir()
	c := take(t, state, owner(), "go")
	if err := Remove(state, c.ID); fault.ReasonOf(err) != "locked" {
		t.Errorf("in use: %v", err)
	}
	c.Close()
	data := filepath.Join(state, Folder, c.ID, dataName)
	err := errors.Join(os.WriteFile(away+"/kept", nil, 0o600), os.Symlink(away, data+"/link"), os.MkdirAll(data+"/a/b", 0o755), os.Chmod(data+"/a", 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := Remove(state, c.ID); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(away + "/kept"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(state, Folder)); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	for _, id := range []string{c.ID, "..", ".", "", "../caches", ".new-1", "/etc", "a/b"} {
		if err := Remove(state, id); fault.ReasonOf(err) != "not_found" {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestDamaged: a folder that is no cache is refused, listed and removed.
func TestDamaged(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"no file": func(dir string) error { return os.Remove(dir + "/" + infoFile) },
		"garbage": func(dir string) error { return os.WriteFile(dir+"/"+infoFile, []byte("{"), 0o600) },
		"another's": func(dir string) error {
			return os.WriteFile(dir+"/"+infoFile, []byte(`{"made":"2026-01-01T00:00:00Z","name":"npm","owner":{"gid":0,"principal":"","uid":0,"workspace":""},"version":1}`), 0o600)
		},
		"no data": func(dir string) error { return os.RemoveAll(dir + "/" + dataName) },
		"data is a link": func(dir string) error {
			return errors.Join(os.RemoveAll(dir+"/"+dataName), os.Symlink("/", dir+"/"+dataName))
		},
	} {
		state := t.TempDir()
		c := take(t, state, owner(), "go")
		c.Close()
		if err := damage(filepath.Join(state, Folder, c.ID)); err != nil {
			t.Fatal(err)
		}
		if c, err := Take(state, owner(), "go"); fault.KindOf(err) != fault.BadState {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		if list, err := List(state); err != nil || len(list) != 1 {
			t.Errorf("%s: %v, %v", name, list, err)
		}
		if err := Remove(state, c.ID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{"go": true, "a-1": true, "": false, "-a": false, "..": false, "a/b": false, "A": false, "ü": false,
		"abcdefghijklmnopqrstuvwxyzabcdefg": false} {
		if err := isolate.CheckCache(name); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, want := range map[string]string{"go": "GOCACHE=/caches/go GOTMPDIR=/caches/go", "mine": "", "home": "HOME=/caches/home", "tmp": ""} {
		if got := strings.Join(isolate.CacheVariables(name), " "); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

package cache

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// TestFill: a cache gets files and folders that it hasn't, keeps those that an earlier call left, and
// a link of such a call leads nowhere else. As root they are the owner's.
func TestFill(t *testing.T) {
	state, outside := t.TempDir(), t.TempDir()
	c, err := Take(state, Owner{Principal: "p", Workspace: "/w", UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}, "home")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if os.Geteuid() == 0 {
		c.Owner.UID, c.Owner.GID = 65534, 65534
	}
	dir := filepath.Join(state, Folder, c.ID, dataName)
	if err := os.WriteFile(filepath.Join(dir, "kept"), []byte("an earlier call's"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range [][2]string{{outside, "out"}, {filepath.Join(outside, "file"), "dangling"}} {
		if err := os.Symlink(link[0], filepath.Join(dir, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Fill([]File{{"kept", "ours"}, {"a/b/new", "ours"}, {"a/other", "ours"}, {"dangling", "ours"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Fill([]File{{"out/file", "ours"}}); err == nil {
		t.Error("a file is made through a link that leads out")
	}
	for name, want := range map[string]string{"kept": "an earlier call's", "a/b/new": "ours", "a/other": "ours"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if names, err := os.ReadDir(outside); err != nil || len(names) > 0 {
		t.Errorf("outside are %v, %v", names, err)
	}
	for _, name := range []string{"a", "a/b", "a/b/new"} {
		uid, err := ownerOf(filepath.Join(dir, name))
		if err != nil || uid != c.Owner.UID {
			t.Errorf("%s belongs to %s, %v", name, strconv.Itoa(int(uid)), err)
		}
	}
}

func ownerOf(path string) (uint32, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	return fi.Sys().(*syscall.Stat_t).Uid, nil
}

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
)

// TestOlderRegistry puts an older copy of the store in place, as a former member would, or
// one whose token has been revoked since: palyrad doesn't start.
func TestOlderRegistry(t *testing.T) {
	h := newHouse(t, nil)
	h.member(1001, access.Admin)
	h.stop()
	old := filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(old, os.DirFS(filepath.Join(h.base, "store"))); err != nil {
		t.Fatal(err)
	}
	h.reopen(nil)
	if _, err := hub.RemoveMember.Do(t.Context(), h, h.owner, hub.MemberRemoval{Principal: "uid:1001", Version: 0}); err != nil {
		t.Fatal(err)
	}
	h.call(h.owner, step("palyra.echo", obj{"text": "later"}))
	h.stop()
	now := filepath.Join(h.base, "store")
	if err := errors.Join(os.Rename(now, now+".new"), os.CopyFS(now, os.DirFS(old))); err != nil {
		t.Fatal(err)
	}
	chmod(t, now)
	if _, err := open(context.Background(), h.base, bin(t), nil); fault.ReasonOf(err) != "rolled_back" || fault.KindOf(err) != fault.Integrity {
		t.Errorf("an older registry: %v", err)
	}
	// The newest one is taken.
	if err := errors.Join(os.RemoveAll(now), os.Rename(now+".new", now)); err != nil {
		t.Fatal(err)
	}
	h.reopen(nil)
	if h.access.Role("uid:1001") != "" {
		t.Error("the removed member is back")
	}
}

// chmod gives a copy the modes that a store has.
func chmod(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRolledBack: an older copy of the store in the place of the newest is
// refused if it lacks a change of the registry, and taken if it lacks none.
func TestRolledBack(t *testing.T) {
	h := newHouse(t, nil)
	copies := t.TempDir()
	keep := func(name string) { // as it is after an orderly end
		t.Helper()
		h.stop()
		if err := os.CopyFS(filepath.Join(copies, name), os.DirFS(filepath.Join(h.base, "store"))); err != nil {
			t.Fatal(err)
		}
		h.reopen(nil)
	}
	put := func(name string) {
		t.Helper()
		dir := filepath.Join(h.base, "store")
		err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(filepath.Join(copies, name))))
		if err != nil {
			t.Fatal(err)
		}
		chmod(t, dir)
	}
	h.call(h.owner, argv("true"))
	keep("before")
	h.member(4242, access.Operator)
	keep("member")
	for i := range 3 { // entries that are no changes
		h.call(h.owner, argv("echo", fmt.Sprint(i)))
	}
	h.stop()
	for _, test := range []struct{ name, want string }{{"before", "rolled_back"}, {"member", ""}} {
		put(test.name)
		got, err := open(context.Background(), h.base, bin(t), nil)
		if err == nil {
			if m, err := hub.ListMembers.Do(t.Context(), got, h.owner, hub.None{}); err != nil || len(m.Items) < 2 {
				t.Errorf("the copy %q: %+v, %v", test.name, m, err)
			}
			h.Hub = got
			h.crash() // steps of the calls are missing
		}
		if fault.ReasonOf(err) != test.want || err != nil && (fault.KindOf(err) != fault.Integrity || fault.HintOf(err) == "") {
			t.Errorf("the copy %q: %v", test.name, err)
		}
	}
}

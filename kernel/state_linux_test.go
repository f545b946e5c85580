package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

func TestStateRefused(t *testing.T) {
	base := t.TempDir()
	dir := func(name string, mode os.FileMode) string {
		d := base + "/" + name
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, mode); err != nil {
			t.Fatal(err)
		}
		return d
	}
	os.Symlink(dir("target", 0o700), base+"/link")
	cases := []struct {
		name, reason string
	}{
		{"relative", "state_io: not absolute"},
		{"", "state_io: not absolute"},
		{dir("open", 0o755), "unsafe_file: mode is 0755"},
		{dir("group", 0o750), "unsafe_file: mode is 0750"},
		{base + "/link", "bad_file"},
		{put(t, base+"/file", "", 0o600), "state_io"},
		{"/proc/palyra", "state_missing"},
	}
	if os.Geteuid() == 0 {
		d := dir("foreign", 0o700)
		if err := os.Chown(d, 1234, 1234); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, struct{ name, reason string }{d, "unsafe_file: belongs to user"})
	} else {
		cases = append(cases, struct{ name, reason string }{"/palyra-state", "permission_denied"})
	}
	for _, c := range cases {
		k, err := Open(t.Context(), Config{StateDir: c.name, CellPath: "/none"})
		if fault.KindOf(err) != fault.BadState || !says(err, c.reason) {
			t.Errorf("%q: got %v (%s)", c.name, err, fault.ReasonOf(err))
		}
		if err == nil {
			k.Close()
		}
	}
}

func TestStateIsPrivate(t *testing.T) {
	h := openHouse(t, Config{})
	h.call(proposal("true"), IO{})
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(h.dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p == h.dir+"/trust" {
			return filepath.SkipDir // public, in a private folder
		}
		fi, err := d.Info()
		if err == nil && d.IsDir() && fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %v", p, fi.Mode())
		}
		if err == nil && filepath.Base(filepath.Dir(p)) == "keys" && fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v", p, fi.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestStateShared: two kernels share a state directory. Each calls, lists and proves the
// other's entries. Neither takes the other's running call for an orphan.
func TestStateShared(t *testing.T) {
	running, release := make(chan struct{}), make(chan struct{})
	cfg := withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) {
		close(running)
		<-release
		return nil, fault.New(fault.Internal, "x", "run", nil)
	})
	a := openHouse(t, cfg)
	var wg sync.WaitGroup
	wg.Go(func() {
		if o, err := a.Call(t.Context(), *proposal("true"), IO{}); err != nil || o.Outcome != receipt.Failed {
			t.Errorf("%+v, %v", o, err)
		}
	})
	<-running
	b := openHouse(t, Config{StateDir: a.dir, testOnlyStart: noCell})
	for _, k := range []*house{b, a} {
		if err := k.CloseOrphans(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, err := k.JournalStatus(t.Context()); err != nil || fmt.Sprint(s.Open) != "[0]" {
			t.Errorf("open: %v, %v", s.Open, err)
		}
	}
	o, err := b.Call(t.Context(), *proposal("true"), IO{})
	if err != nil || o.LogIndex != 1 {
		t.Fatalf("%+v, %v", o, err)
	}
	if _, err := a.Receipt(t.Context(), 1); err != nil {
		t.Errorf("receipt of a call of the other: %v", err)
	}
	close(release)
	wg.Wait()
	if _, err := b.JournalProof(t.Context(), 2); err != nil {
		t.Errorf("proof for a call of the other: %v", err)
	}
	if r, err := b.Audit(); err != nil || r.Intents != 1 || r.Results != 2 || len(r.Orphans) != 0 || r.Outcomes[receipt.OutcomeUnknown] != 0 {
		t.Errorf("audit: %+v, %v", r, err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Call(t.Context(), *proposal("true"), IO{}); !says(err, "not_ready: the kernel is closed") {
		t.Errorf("a closed kernel: %v", err)
	}
	if o, err := b.Call(t.Context(), *proposal("true"), IO{}); err != nil || o.LogIndex != 3 {
		t.Errorf("%+v, %v", o, err)
	}
}

// noCell stands for a host on which no program can run.
func noCell(context.Context, tier.Tier, grant.Key) (runner, error) {
	return nil, fault.New(fault.Refused, "no_cell", "start palyra-cell", nil)
}

// TestOrphanOfAnother: a kernel that was open all the time closes the intent of a dead process,
// once, and not that of a running call.
func TestOrphanOfAnother(t *testing.T) {
	a := openHouse(t, Config{testOnlyStart: noCell})
	b := openHouse(t, Config{StateDir: a.dir, testOnlyStart: noCell})
	intent := func() *call {
		t.Helper()
		s, err := seal(t.Context(), proposal("true"), nil, b.dir, b.state.digests)
		if err != nil {
			t.Fatal(err)
		}
		c := newCall(b.Kernel, &Caller{}, s, proposal("true"), nil)
		t.Cleanup(c.close)
		c.decided(policy.Request{}, policy.Decision{Effect: policy.Allow})
		if err := c.intend(t.Context(), func() {}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	gone, going := intent(), intent()
	gone.over()
	for range 2 {
		if err := a.CloseOrphans(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, err := a.JournalStatus(t.Context()); err != nil || fmt.Sprint(s.Open) != "[1]" || s.Size != 3 {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	// The running call's own result closes its intent.
	if _, err := going.end(t.Context(), receipt.Failed, nil); err != nil {
		t.Error(err)
	}
	going.over()
	// a has closed the intent that b still takes for open.
	if err := b.state.closeOrphans(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := gone.end(t.Context(), receipt.Failed, nil); !errors.Is(err, journal.ErrNotOpen) {
		t.Errorf("a second result: %v", err)
	}
	if r := a.audit(); r.Intents != 2 || r.Results != 2 || len(r.Orphans) != 0 || r.Outcomes[receipt.OutcomeUnknown] != 1 {
		t.Errorf("audit: %+v", r)
	}
}

// TestStateMadeOnce: of several first users of a directory, one makes it, and all have the same
// keys.
func TestStateMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "state")
	var wg sync.WaitGroup
	var mu sync.Mutex
	origins := make(map[string]int) // guarded by mu
	for range 8 {
		wg.Go(func() {
			s, err := openState(t.Context(), dir, journal.Options{}, keyring.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			origins[s.trust().VKey()]++
			mu.Unlock()
			if err := s.close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(origins) != 1 {
		t.Errorf("%d sets of keys: %v", len(origins), origins)
	}
	// Exclusive work keeps others out, and they get an error.
	g, err := durable.OpenGate(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if ok, err := g.Try(durable.Exclusive); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := openState(ctx, dir, journal.Options{}, keyring.Options{}); fault.KindOf(err) != fault.Timeout {
		t.Errorf("got %v", err)
	}
}

// TestStateDamaged: Open or the oracle finds each private file that is broken, and never
// repairs one in silence.
func TestStateDamaged(t *testing.T) {
	for _, name := range []string{"keys/att.key", "keys/log.key", "trust/att.pub", "trust/log.vkey", "journal/wal", "journal/checkpoint"} {
		t.Run(name, func(t *testing.T) {
			h := openHouse(t, Config{})
			h.call(proposal("true"), IO{})
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			f := h.dir + "/" + name
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2] ^= 1
			if err := os.WriteFile(f, b, 0o600); err != nil {
				t.Fatal(err)
			}
			k, err := Open(t.Context(), Config{StateDir: h.dir, CellPath: "/none"})
			if fault.KindOf(err) != fault.Integrity {
				t.Errorf("got %v", err)
			}
			if err == nil {
				k.Close()
			}
		})
	}
}

func TestPolicyRefused(t *testing.T) {
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	put(t, dir+"/bad.cedar", "permit (principal, action == Palyra::Action::\"fly\", resource);", 0o644)
	state := filepath.Join(t.TempDir(), "state")
	if _, err := Open(t.Context(), Config{StateDir: state, PolicyDir: dir}); err == nil {
		t.Error("an unknown action passed")
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("a state directory was left behind")
	}
}

// TestDiskFull: without an intent on disk nothing runs, and work resumes when there is room.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("palyra-test", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	var ran int
	cfg := withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) { ran++; return nil, nil })
	cfg.StateDir = dir + "/state"
	h := openHouse(t, cfg)
	h.call(proposal("true"), IO{})
	f, err := os.Create(dir + "/filler")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err = nil; err == nil; {
		_, err = f.Write(make([]byte, 512))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	var full int
	for range 20 { // the log's last page may still have room
		o, err := h.Call(t.Context(), *proposal("true"), IO{})
		if err == nil {
			continue
		}
		full++
		if fault.KindOf(err) != fault.Unavailable || fault.ReasonOf(err) != "disk_full" {
			t.Errorf("got %v, %v", o, err)
		}
	}
	if full == 0 {
		t.Fatal("the disk was never full")
	}
	before := ran
	if _, err := h.Call(t.Context(), *proposal("true"), IO{}); err == nil || ran != before {
		t.Errorf("ran without an intent: %v", err)
	}
	if _, err := h.Call(t.Context(), *proposal("/bin/sh"), IO{}); err == nil {
		t.Error("a denial without a record passed for a recorded one")
	}
	if err := os.Remove(dir + "/filler"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	h.call(proposal("true"), IO{})
	// A result that could not be written is an orphan until the next Open.
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	again := openHouse(t, cfg)
	if r := again.audit(); len(r.Orphans) != 0 || r.Intents != ran {
		t.Errorf("ran %d times, audit: %+v", ran, r)
	}
}

// TestResultLost: the program ran and its result could not be logged. The outcome comes back
// with the error, and the next Open closes the intent.
func TestResultLost(t *testing.T) {
	var h *house
	cfg := withFake(func(_ *isolate.Spec, f *isolate.Files) (*isolate.Result, error) {
		fmt.Fprint(f.Stdout, "done\n")
		if err := h.state.journal.Close(); err != nil {
			t.Error(err)
		}
		return nil, fault.New(fault.Internal, "x", "run", nil)
	})
	h = openHouse(t, cfg)
	var out bytes.Buffer
	o, err := h.Call(t.Context(), *proposal("true"), IO{Stdout: &out})
	if err == nil || o == nil || o.Outcome != receipt.Failed || o.Receipt != nil || out.String() != "done\n" {
		t.Fatalf("%+v, %v", o, err)
	}
	h.Close()
	cfg.StateDir = h.dir
	again := openHouse(t, cfg)
	if r := again.audit(); r.Outcomes[receipt.OutcomeUnknown] != 1 || len(r.Orphans) != 0 {
		t.Errorf("audit: %+v", r)
	}
}

// TestStateWithoutJournal: keys never begin a second log of the same name.
func TestStateWithoutJournal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s, err := openState(t.Context(), dir, journal.Options{}, keyring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "journal"), filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	if s, err := openState(t.Context(), dir, journal.Options{}, keyring.Options{}); !says(err, "state_missing: journal") || fault.HintOf(err) == "" {
		t.Errorf("keys without their journal: %v, %v", s, err)
	}
	if err := os.Rename(filepath.Join(dir, "gone"), filepath.Join(dir, "journal")); err != nil {
		t.Fatal(err)
	}
	if s, err = openState(t.Context(), dir, journal.Options{}, keyring.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	// A first use that ended between keys and journal goes on.
	for _, name := range []string{"journal", "trust"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = openState(t.Context(), dir, journal.Options{}, keyring.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"palyra/crypt/receipt"
	sealing "palyra/crypt/seal"
	"palyra/internal/fault"
	"palyra/internal/sample"
)

// TestRotateLog: receipts made before, during and after a rotation of the log's key verify with
// one trust directory, in every process that has the directory open.
func TestRotateLog(t *testing.T) {
	h := openHouse(t, Config{})
	other := openHouse(t, Config{StateDir: h.dir})
	before := h.call(proposal("/bin/true"), IO{})
	old := copyTrust(t, h.dir)
	if k := h.LogKeys(); len(k.Keys) != 1 || k.Current().VKey != old.VKey() {
		t.Errorf("keys before: %+v", k)
	}
	k, err := h.RotateLogKey(t.Context(), "test", true)
	if err != nil {
		t.Fatal(err)
	}
	if len(k.Keys) != 2 || k.Pending() == nil || k.Current().VKey != old.VKey() {
		t.Errorf("keys with one introduced: %+v", k)
	}
	between := copyTrust(t, h.dir)
	during := other.call(proposal("/bin/true"), IO{})
	third := openHouse(t, Config{StateDir: h.dir}) // opens with one introduced
	_, note := noted(t, third.Kernel)

	if k, err = other.RotateLogKey(t.Context(), "test", false); err != nil {
		t.Fatal(err)
	}
	if len(k.Keys) != 2 || k.Pending() != nil || k.Current().VKey == old.VKey() || *k.Keys[0].To != k.Keys[1].From {
		t.Errorf("keys after: %+v", k)
	}
	after := h.call(proposal("/bin/true"), IO{}) // a process that didn't rotate
	_, later := noted(t, third.Kernel)
	again, err := third.Receipt(t.Context(), before.LogIndex)
	if err != nil {
		t.Fatal(err)
	}
	now := trustIn(t, h.dir)
	for name, b := range map[string][]byte{"before": before.Receipt, "introduced": during.Receipt, "note": note, "after": after.Receipt,
		"later": later, "the old entry, proved again": again} {
		if _, err := receipt.Verify(b, now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := receipt.Verify(before.Receipt, old); err != nil {
		t.Errorf("control: before, with the trust from before: %v", err)
	}
	if _, err := receipt.Verify(after.Receipt, old); fault.ReasonOf(err) != "receipt_key" || !errors.Is(err, receipt.ErrKeyUnknown) {
		t.Errorf("after, with the trust from before: %v", err)
	}
	if _, err := receipt.Verify(after.Receipt, between); err != nil {
		t.Errorf("after, with the trust from the overlap: %v", err)
	}
	for name, trust := range map[string]*receipt.Trust{"old": old, "between": between, "now": now} {
		rep, err := receipt.Audit(h.JournalDir(), trust)
		if err != nil || len(rep.LogKeys) != 2 || rep.LogKeys[1].Trusted != (name != "old") || rep.LogKeys[1].From != k.Keys[1].From {
			t.Errorf("audit with the %s trust: %+v, %v", name, rep, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(h.dir, "keys", "log-next.key")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a next key is left: %v", err)
	}
	for _, x := range []*house{h, other, third} {
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Both kinds, in turn.
	h = openHouse(t, Config{StateDir: h.dir})
	for _, rotate := range []rotation{h.RotateKey, h.RotateLogKey, h.RotateKey, h.RotateLogKey} {
		if _, err := rotate(t.Context(), "test", false); err != nil {
			t.Fatal(err)
		}
		out := h.call(proposal("/bin/true"), IO{})
		if _, err := receipt.Verify(out.Receipt, trustIn(t, h.dir)); err != nil {
			t.Error(err)
		}
	}
	if r := h.audit(); len(r.Keys) != 3 || len(r.LogKeys) != 4 {
		t.Errorf("keys: %+v, %+v", r.Keys, r.LogKeys)
	}
}

// TestRotateLogPublished: a process that knows the next key as introduced reads a journal whose
// published checkpoint is by that key, also where the files don't have it in force yet.
func TestRotateLogPublished(t *testing.T) {
	for _, behind := range []bool{false, true} {
		h := openHouse(t, Config{CellPath: "/nonexistent"})
		noted(t, h.Kernel)
		if _, err := h.RotateLogKey(t.Context(), "test", true); err != nil {
			t.Fatal(err)
		}
		other := openHouse(t, Config{StateDir: h.dir, CellPath: "/nonexistent"})
		keys := filepath.Join(h.dir, "keys")
		was := filepath.Join(t.TempDir(), "keys")
		if err := os.CopyFS(was, os.DirFS(keys)); err != nil {
			t.Fatal(err)
		}
		if _, err := h.RotateLogKey(t.Context(), "test", false); err != nil {
			t.Fatal(err)
		}
		if err := h.state.journal.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if behind { // as a crash behind key_begun leaves them
			for _, name := range []string{"log.key", "log-next.key", "log.json"} {
				b, err := os.ReadFile(filepath.Join(was, name))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(keys, name), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, b := noted(t, other.Kernel)
		now := openHouse(t, Config{StateDir: h.dir, CellPath: "/nonexistent"})
		noted(t, now.Kernel)
		if _, err := receipt.Verify(b, trustIn(t, h.dir)); err != nil || now.LogKeys().Pending() != nil {
			t.Errorf("behind %t: %v, %+v", behind, err, now.LogKeys())
		}
		if r := now.audit(); len(r.LogKeys) != 2 {
			t.Errorf("audit: %+v", r)
		}
	}
}

// TestRotateLogMeanwhile: processes append while others replace keys of both kinds.
func TestRotateLogMeanwhile(t *testing.T) {
	h := openHouse(t, Config{CellPath: "/nonexistent"})
	noted(t, h.Kernel)
	others := []*house{h, openHouse(t, Config{StateDir: h.dir, CellPath: "/nonexistent"}), openHouse(t, Config{StateDir: h.dir, CellPath: "/nonexistent"})}
	var wg sync.WaitGroup
	for n, o := range others {
		wg.Go(func() {
			for range 10 {
				i, err := o.Record(t.Context(), Act{Act: "test.note", Principal: "test"})
				if err == nil {
					_, err = o.Receipt(t.Context(), i)
				}
				if err != nil {
					t.Errorf("%d: %v", n, err)
				}
			}
		})
		for _, rotate := range []rotation{o.RotateLogKey, o.RotateKey} {
			wg.Go(func() {
				if _, err := rotate(t.Context(), "test", false); err != nil {
					t.Errorf("rotate %d: %v", n, err)
				}
			})
		}
	}
	wg.Wait()
	for _, o := range others {
		_, b := noted(t, o.Kernel)
		if _, err := receipt.Verify(b, trustIn(t, h.dir)); err != nil {
			t.Error(err)
		}
	}
	for _, o := range others[1:] {
		o.Close()
	}
	if r := h.audit(); len(r.Keys) != 4 || len(r.LogKeys) != 4 || r.Acts != 1+30+3+2*6 {
		t.Errorf("audit: %+v", r)
	}
}

// TestRotateLogCrash kills a process at each step of a rotation of the log's key, beside another
// that has the directory open. The old key is in force afterwards or the new one, everything
// acknowledged verifies, and the next rotation works.
func TestRotateLogCrash(t *testing.T) {
	base := t.TempDir()
	v := victim{State: base + "/count", RotateLog: true}
	steps, got, _ := v.run(t)
	if len(got) != 2 {
		t.Fatalf("without a crash: %+v", got)
	}
	for _, want := range []string{"keys:next:durable 1", "key_introduced 1", "key_begun 1", "keys:log.json:renamed 1", "keys:log.json:renamed 2", "keys:log-keys.json:written 2",
		"keys:trusted_root.json:renamed 2", "keys:public:synced 2", "keys:log.vkey:durable 1", "keys:promoted 1"} {
		if !strings.Contains(strings.Join(steps, "\n"), want) {
			t.Errorf("step %q was never reached: %q", want, steps)
		}
	}
	steps = slices.DeleteFunc(steps, func(s string) bool {
		return strings.HasPrefix(s, "publish:") || strings.HasPrefix(s, "create:") // the journal's own crash tests have them
	})
	some := sample.Steps(steps)
	t.Logf("%d steps of %d", len(some), len(steps))
	for _, i := range some {
		s := steps[i]
		for _, beside := range []bool{i%2 == 0, i%2 != 0}[:sample.Of(1, 2)] { // a sample alternates
			t.Run(fmt.Sprintf("%s beside %t", s, beside), func(t *testing.T) {
				t.Parallel() // they wait for the disk
				at := strings.LastIndexByte(s, ' ')
				v := v
				v.Step, v.State = s[:at], fmt.Sprintf("%s/%d-%t", base, i, beside)
				fmt.Sscan(s[at+1:], &v.Nth)
				first := openHouse(t, Config{StateDir: v.State, CellPath: "/nonexistent"})
				old := first.LogKeys().Current().VKey
				if !beside {
					first.Close()
				}
				_, got, _ := v.run(t)
				h := first
				if !beside {
					h = openHouse(t, Config{StateDir: v.State, CellPath: "/nonexistent"})
				}
				_, note := noted(t, h.Kernel)
				now := openHouse(t, Config{StateDir: v.State, CellPath: "/nonexistent"})
				trust := trustIn(t, v.State)
				if _, err := receipt.Verify(note, trust); err != nil {
					t.Errorf("the next entry: %v", err)
				}
				for _, x := range got {
					b, err := h.Receipt(t.Context(), x.Index)
					if err == nil {
						_, err = receipt.Verify(b, trust)
					}
					if err != nil {
						t.Errorf("entry %d, which was acknowledged: %v", x.Index, err)
					}
				}
				// Whichever key is in force, files and journal agree.
				k := now.LogKeys()
				if in := k.Current().VKey; in != trust.VKey() || in != now.state.journal.Key() || in != h.state.journal.Key() || (in == old) != (len(k.Keys) == 1 || k.Pending() != nil) {
					t.Errorf("in force %s (old %s), trusted %s, keys %d", in, old, trust.VKey(), len(k.Keys))
				}
				was := len(k.Keys)
				if k.Pending() != nil {
					was-- // it is the one that comes
				}
				after, err := h.RotateLogKey(t.Context(), "test", false)
				if err != nil || len(after.Keys) != was+1 || after.Pending() != nil {
					t.Fatalf("the next rotation: %+v, %v; there were %d", after, err, was)
				}
				_, again := noted(t, now.Kernel)
				if _, err := receipt.Verify(again, trustIn(t, v.State)); err != nil {
					t.Errorf("after the next rotation: %v", err)
				}
				now.Close()
				if r := h.audit(); len(r.LogKeys) != was+1 {
					t.Errorf("audit: %+v", r)
				}
			})
		}
	}
}

// TestRotateSealedLog: the next key of a sealed log is sealed as the one before.
func TestRotateSealedLog(t *testing.T) {
	unlock, to, _ := keeper(t)
	h := openHouse(t, Config{Unlock: unlock, CellPath: "/nonexistent"})
	noted(t, h.Kernel)
	if err := h.SealKeys(t.Context(), "test", []*sealing.PublicKey{to}); err != nil {
		t.Fatal(err)
	}
	other := openHouse(t, Config{StateDir: h.dir, Unlock: unlock, CellPath: "/nonexistent"})
	if _, err := h.RotateLogKey(t.Context(), "test", true); err != nil {
		t.Fatal(err)
	}
	if p := h.PlainKeys(); len(p) != 0 {
		t.Errorf("plain while one is introduced: %v", p)
	}
	if _, err := h.RotateLogKey(t.Context(), "test", false); err != nil {
		t.Fatal(err)
	}
	_, b := noted(t, other.Kernel)
	if _, err := receipt.Verify(b, trustIn(t, h.dir)); err != nil || len(h.PlainKeys()) != 0 {
		t.Errorf("after: %v, plain %v", err, h.PlainKeys())
	}
	h.audit()
}

// TestLogKeyPutBack: keys/ from before a rotation signs nothing more, and a journal from before it
// isn't continued.
func TestLogKeyPutBack(t *testing.T) {
	h := openHouse(t, Config{CellPath: "/nonexistent"})
	noted(t, h.Kernel)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	was := filepath.Join(t.TempDir(), "was")
	if err := os.CopyFS(was, os.DirFS(h.dir)); err != nil {
		t.Fatal(err)
	}
	h = openHouse(t, Config{StateDir: h.dir, CellPath: "/nonexistent"})
	if _, err := h.RotateLogKey(t.Context(), "test", false); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ folder, reason string }{{"keys", "state_missing"}, {"journal", "journal_rolled_back"}} {
		dir := filepath.Join(t.TempDir(), "state")
		if err := os.CopyFS(dir, os.DirFS(h.dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, c.folder)); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(dir, c.folder), os.DirFS(filepath.Join(was, c.folder))); err != nil {
			t.Fatal(err)
		}
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error { // CopyFS gives others access
			if err != nil || strings.Contains(path, "trust") {
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
		if _, err := Open(t.Context(), Config{StateDir: dir}); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s from before: %v", c.folder, err)
		}
	}
}

package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/isolate"
)

// noted logs an act and returns its receipt.
func noted(t testing.TB, k *Kernel) (uint64, []byte) {
	t.Helper()
	i, err := k.Record(t.Context(), Act{Act: "test.note", Principal: "test"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := k.Receipt(t.Context(), i)
	if err != nil {
		t.Fatal(err)
	}
	return i, b
}

// trustIn loads the trust directory of a state directory.
func trustIn(t testing.TB, dir string) *receipt.Trust {
	t.Helper()
	trust, err := receipt.LoadTrust(filepath.Join(dir, "trust"))
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// copyTrust keeps the trust directory as it is now.
func copyTrust(t testing.TB, dir string) *receipt.Trust {
	t.Helper()
	to := filepath.Join(t.TempDir(), "trust")
	if err := os.CopyFS(to, os.DirFS(filepath.Join(dir, "trust"))); err != nil {
		t.Fatal(err)
	}
	trust, err := receipt.LoadTrust(to)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// TestRotate: receipts made before, during and after a rotation verify with one trust directory,
// in the process that rotates and in another that has the directory open.
func TestRotate(t *testing.T) {
	h := openHouse(t, Config{})
	other := openHouse(t, Config{StateDir: h.dir})
	before := h.call(proposal("/bin/true"), IO{})
	old := copyTrust(t, h.dir)
	if k := h.Keys(); len(k.Keys) != 1 || k.Current().Hint != old.KeyHint() {
		t.Errorf("keys before: %+v", k)
	}

	k, err := h.RotateKey(t.Context(), "test", true)
	if err != nil {
		t.Fatal(err)
	}
	if len(k.Keys) != 2 || k.Pending() == nil || k.Current().Hint != old.KeyHint() {
		t.Errorf("keys with one introduced: %+v", k)
	}
	between := trustIn(t, h.dir)
	during := other.call(proposal("/bin/true"), IO{})
	third := openHouse(t, Config{StateDir: h.dir}) // opens with one introduced
	_, note := noted(t, third.Kernel)

	if k, err = other.RotateKey(t.Context(), "test", false); err != nil {
		t.Fatal(err)
	}
	if len(k.Keys) != 2 || k.Pending() != nil || k.Current().Hint == old.KeyHint() || k.Keys[0].To == nil || *k.Keys[0].To != k.Keys[1].From {
		t.Errorf("keys after: %+v", k)
	}
	after := h.call(proposal("/bin/true"), IO{}) // a process that didn't rotate
	_, later := noted(t, third.Kernel)
	now := trustIn(t, h.dir)
	for name, b := range map[string][]byte{"before": before.Receipt, "introduced": during.Receipt, "note": note, "after": after.Receipt, "later": later} {
		if _, err := receipt.Verify(b, now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if v, err := receipt.Verify(after.Receipt, now); err != nil || v.KeyHint != k.Current().Hint {
		t.Errorf("after: signed by %+v, %v", v, err)
	}
	// A stranger's copy from before doesn't know the new key; one with the introduction does.
	if _, err := receipt.Verify(after.Receipt, old); fault.ReasonOf(err) != "receipt_key" || !errors.Is(err, receipt.ErrKeyUnknown) {
		t.Errorf("with the trust from before: %v", err)
	}
	if _, err := receipt.Verify(after.Receipt, between); err != nil {
		t.Errorf("with the trust from the overlap: %v", err)
	}
	for name, trust := range map[string]*receipt.Trust{"old": old, "between": between, "now": now} {
		rep, err := receipt.Audit(h.JournalDir(), trust)
		if err != nil || len(rep.Keys) != 2 || rep.Keys[1].Trusted != (name != "old") || rep.Keys[1].From != k.Keys[1].From {
			t.Errorf("audit with the %s trust: %+v, %v", name, rep, err)
		}
	}
	// An entry of the old key by any process's read.
	if b, err := third.Receipt(t.Context(), before.LogIndex); err != nil {
		t.Error(err)
	} else if v, err := receipt.Verify(b, now); err != nil || v.KeyHint != old.KeyHint() {
		t.Errorf("the old entry: %+v, %v", v, err)
	}
	if _, err := os.Lstat(filepath.Join(h.dir, "keys", "att-next.key")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a next key is left: %v", err)
	}
	for _, x := range []*house{h, other, third} {
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	h = openHouse(t, Config{StateDir: h.dir})
	for range 3 {
		if _, err := h.RotateKey(t.Context(), "test", false); err != nil {
			t.Fatal(err)
		}
		h.call(proposal("/bin/true"), IO{})
	}
	if r := h.audit(); len(r.Keys) != 5 {
		t.Errorf("keys: %+v", r.Keys)
	}
}

// TestRotateMeanwhile: calls that are under way during rotations, in several processes' worth of
// kernels, keep their intents and results.
func TestRotateMeanwhile(t *testing.T) {
	running, release := make(chan struct{}), make(chan struct{})
	h := openHouse(t, withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) {
		close(running)
		<-release
		return nil, fault.New(fault.Internal, "x", "run", nil)
	}))
	var out *Outcome
	done := make(chan error)
	go func() {
		var err error
		out, err = h.Call(t.Context(), *proposal("true"), IO{})
		done <- err
	}()
	<-running
	others := []*house{h, openHouse(t, Config{StateDir: h.dir}), openHouse(t, Config{StateDir: h.dir})}
	var wg sync.WaitGroup
	for n, o := range others {
		wg.Go(func() {
			for range 10 {
				if _, err := o.Record(t.Context(), Act{Act: "test.note", Principal: "test"}); err != nil {
					t.Errorf("%d: %v", n, err)
				}
			}
		})
	}
	for range 2 {
		for n, o := range others {
			wg.Go(func() {
				if _, err := o.RotateKey(t.Context(), "test", false); err != nil {
					t.Errorf("rotate %d: %v", n, err)
				}
			})
		}
	}
	wg.Wait()
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	h.verify(out)
	for _, o := range others[1:] {
		o.Close()
	}
	if r := h.audit(); len(r.Keys) != 7 || len(r.Orphans) != 0 || r.Outcomes[receipt.Failed] != 1 || r.Acts != 30+2*6 {
		t.Errorf("audit: %+v", r)
	}
}

type rotation func(ctx context.Context, principal string, introduce bool) (*keyring.History, error)

// rotateAsVictim logs an act, rotates and logs another.
func rotateAsVictim(k *Kernel, rotate rotation) error {
	note := func() error {
		i, err := k.Record(context.Background(), Act{Act: "test.note", Principal: "test"})
		b, _ := json.Marshal(told{Outcome: "", Index: i})
		fmt.Printf("told %s\n", b)
		return err
	}
	if err := note(); err != nil {
		return err
	}
	if _, err := rotate(context.Background(), "test", false); err != nil {
		return err
	}
	if err := note(); err != nil {
		return err
	}
	return k.Close()
}

// TestRotateCrash kills a process at each step of a rotation, beside another that has the
// directory open. The old key is in force afterwards or the new one, everything acknowledged
// verifies, and the next rotation works.
func TestRotateCrash(t *testing.T) {
	base := t.TempDir()
	v := victim{State: base + "/count", Rotate: true}
	steps, got, _ := v.run(t)
	if len(got) != 2 {
		t.Fatalf("without a crash: %+v", got)
	}
	for _, want := range []string{"keys:next:durable 1", "key_introduced 1", "key_begun 1", "keys:att.json:renamed 1", "keys:att.json:renamed 2", "keys:keys.json:written 2",
		"keys:public:synced 2", "keys:att.pub:durable 1", "keys:promoted 1"} {
		if !strings.Contains(strings.Join(steps, "\n"), want) {
			t.Errorf("step %q was never reached: %q", want, steps)
		}
	}
	steps = slices.DeleteFunc(steps, func(s string) bool {
		return strings.HasPrefix(s, "publish:") || strings.HasPrefix(s, "create:") // the journal's own crash tests have them
	})
	for _, i := range sample.Steps(steps) {
		s := steps[i]
		for _, beside := range []bool{i%2 == 0, i%2 != 0}[:sample.Of(1, 2)] { // a sample alternates
			t.Run(fmt.Sprintf("%s beside %t", s, beside), func(t *testing.T) {
				t.Parallel() // they wait for the disk
				at := strings.LastIndexByte(s, ' ')
				v := v
				v.Step, v.State = s[:at], fmt.Sprintf("%s/%d-%t", base, i, beside)
				fmt.Sscan(s[at+1:], &v.Nth)
				first := openHouse(t, Config{StateDir: v.State, CellPath: "/nonexistent"})
				old := first.Keys().Current().Hint
				if !beside {
					first.Close()
				}
				_, got, _ := v.run(t)
				h := first
				if !beside {
					h = openHouse(t, Config{StateDir: v.State, CellPath: "/nonexistent"})
				}
				_, note := noted(t, h.Kernel)
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
				// Whichever key is in force, files, journal and this process agree.
				now := openHouse(t, Config{StateDir: v.State, CellPath: "/nonexistent"})
				k := now.Keys()
				if in := k.Current().Hint; in != trust.KeyHint() || in != h.Keys().Current().Hint || (in == old) != (len(k.Keys) == 1 || k.Pending() != nil) {
					t.Errorf("in force %s (old %s), trusted %s, keys %d", in, old, trust.KeyHint(), len(k.Keys))
				}
				was := len(k.Keys)
				if k.Pending() != nil {
					was-- // it is the one that comes
				}
				after, err := h.RotateKey(t.Context(), "test", false)
				if err != nil || len(after.Keys) != was+1 || after.Pending() != nil {
					t.Fatalf("the next rotation: %+v, %v; there were %d", after, err, was)
				}
				_, again := noted(t, now.Kernel)
				if _, err := receipt.Verify(again, trustIn(t, v.State)); err != nil {
					t.Errorf("after the next rotation: %v", err)
				}
				now.Close()
				if r := h.audit(); len(r.Keys) != was+1 {
					t.Errorf("audit: %+v", r)
				}
			})
		}
	}
}

// TestStrangeKey: a key that the journal doesn't introduce signs nothing.
func TestStrangeKey(t *testing.T) {
	h, strange := openHouse(t, Config{CellPath: "/nonexistent"}), openHouse(t, Config{CellPath: "/nonexistent"})
	noted(t, h.Kernel)
	h.Close()
	b, err := os.ReadFile(filepath.Join(strange.dir, "keys", "att.key"))
	if err == nil {
		err = os.WriteFile(filepath.Join(h.dir, "keys", "att.key"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{StateDir: h.dir}); fault.ReasonOf(err) != "trust_corrupt" {
		t.Errorf("another key: %v", err)
	}
	// Even if the public half goes with it.
	if err := os.Remove(filepath.Join(h.dir, "trust", "att.pub")); err != nil {
		t.Fatal(err)
	}
	k := openHouse(t, Config{StateDir: h.dir, CellPath: "/nonexistent"})
	if _, err := k.Record(t.Context(), Act{Act: "test.note", Principal: "test"}); fault.ReasonOf(err) != "key_corrupt" {
		t.Errorf("an entry of another key: %v", err)
	}
	if _, err := k.RotateKey(t.Context(), "test", false); err == nil {
		t.Error("another key introduced its successor")
	}
	var names []string
	files, _ := os.ReadDir(filepath.Join(h.dir, "keys"))
	for _, f := range files {
		names = append(names, f.Name())
	}
	if got := fmt.Sprint(names); got != "[att.key log.key plain.json]" {
		t.Errorf("keys: %s", got)
	}
}

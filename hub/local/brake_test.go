package local

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"palyra/internal/fault"
	"palyra/kernel"
)

// disk is store and journal under a brake.
type disk struct {
	mu    sync.Mutex
	err   error         // of both; guarded by mu
	hang  chan struct{} // both wait for it; nil: they don't; guarded by mu
	row   bool          // guarded by mu
	acts  []kernel.Act  // guarded by mu
	allow []bool        // what the engine was told; guarded by mu
}

func (d *disk) wait() error {
	d.mu.Lock()
	hang, err := d.hang, d.err
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return err
}

func (d *disk) becomes(err error, hang chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.hang = err, hang
}

// brake opens one over the file in dir, as Open does.
func (d *disk) brake(t *testing.T, dir string) *brake {
	t.Helper()
	b, err := openBrake(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	b.allow = func(on bool) { d.allow = append(d.allow, on) }
	b.row = func(_ context.Context, on bool) error {
		err := d.wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if err == nil {
			d.row = on
		}
		return err
	}
	b.record = func(_ context.Context, a kernel.Act) (uint64, error) {
		err := d.wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if err == nil {
			d.acts = append(d.acts, a)
		}
		return uint64(len(d.acts)), err
	}
	b.start(d.row)
	return b
}

func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// pull is a stop as Hub.Stop makes one.
func pull(b *brake) []string {
	o := &owed{Principal: "uid:7", Surface: "unix", Time: time.Unix(1, 0).UTC()}
	turn, _ := b.engage(o, true)
	pending := b.await(within(time.Second), turn, nil)
	a := b.logLater(&stopAct{owed: o, act: o.act(nil)})
	return append(pending, b.await(within(time.Second), 0, a)...)
}

// TestBrakeWithoutDisk: while store and journal refuse or hang a stop is in the
// file, is in force after a crash, and comes into both in the end, once.
func TestBrakeWithoutDisk(t *testing.T) {
	for name, d := range map[string]*disk{"refuse": {err: errors.New("full")}, "hang": {hang: make(chan struct{})}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				hang := d.hang
				if hang != nil { // of this bubble
					hang = make(chan struct{})
					d.hang = hang
				}
				b := d.brake(t, dir)
				for range 2 {
					if got := pull(b); !slices.Equal(got, []string{pendingStore, pendingJournal}) || !b.denies() {
						t.Errorf("pending %q, denies %v", got, b.denies())
					}
				}
				// Another process finds the file, whatever state the first one left.
				later := &disk{}
				again := later.brake(t, dir)
				synctest.Wait()
				if !again.denies() || !later.row {
					t.Errorf("after a crash: denies %v, row %v", again.denies(), later.row)
				}
				if len(later.acts) != 1 || later.acts[0].Principal != "uid:7" || later.acts[0].Detail["recovered"] != "true" {
					t.Errorf("after a crash: %+v", later.acts)
				}
				again.close()
				// And this one goes on when it can.
				d.becomes(nil, nil)
				if hang != nil {
					close(hang)
				}
				<-time.After(time.Minute)
				synctest.Wait()
				d.mu.Lock()
				if !d.row || len(d.acts) != 2 {
					t.Errorf("in the end: row %v, %d acts", d.row, len(d.acts))
				}
				d.mu.Unlock()
				b.close()
			})
		})
	}
}

// TestBrakeRelease: a stop is lifted when store and file say so, and not before.
func TestBrakeRelease(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		b := d.brake(t, dir)
		if got := pull(b); len(got) > 0 || !d.row || !slices.Equal(d.allow, []bool{false}) {
			t.Fatalf("pending %q, row %v, told %v", got, d.row, d.allow)
		}
		d.becomes(errors.New("full"), nil)
		if err := b.release(within(time.Minute), b.since()); fault.ReasonOf(err) != "io_error" || !b.denies() {
			t.Errorf("on a full disk: %v, denies %v", err, b.denies())
		}
		hang := make(chan struct{})
		d.becomes(nil, hang)
		met := make(chan error)
		go func() { met <- b.release(within(time.Minute), b.since()) }()
		synctest.Wait()
		if got := pull(b); slices.Contains(got, pendingMark) {
			t.Errorf("a stop meets a resume: pending %q", got)
		}
		d.becomes(nil, nil)
		close(hang)
		if err := <-met; fault.ReasonOf(err) != "changed" || !b.denies() {
			t.Errorf("a resume that met a stop: %v, denies %v", err, b.denies())
		}
		since := b.since()
		// A second stop, before the resume lifts the first.
		b.engage(nil, false)
		if err := b.release(within(time.Minute), since); fault.ReasonOf(err) != "changed" || !b.denies() {
			t.Errorf("a resume that a stop overtook: %v, denies %v", err, b.denies())
		}
		if err := b.release(within(time.Minute), b.since()); err != nil || b.denies() {
			t.Errorf("%v, denies %v", err, b.denies())
		}
		b.close()
		if b = d.brake(t, dir); b.denies() || d.row {
			t.Errorf("after a resume and a restart: denies %v, row %v", b.denies(), d.row)
		}
		b.close()
	})
}

// TestBrakeFile: what cannot be read is a stop, and so is what the store of an
// older version says.
func TestBrakeFile(t *testing.T) {
	for name, c := range map[string]struct {
		file string // "-": none
		row  bool
		want bool
	}{
		"new": {"-", false, false}, "older": {"-", true, true}, "empty": {"", false, true}, "garbage": {"no", false, true},
		"another version": {`{"version":2,"deny_new":false}`, false, true}, "off": {`{"version":1,"deny_new":false}`, false, false},
		"the store": {`{"version":1,"deny_new":false}`, true, true}, "on": {`{"version":1,"deny_new":true}`, false, true},
	} {
		dir := t.TempDir()
		if c.file != "-" {
			if err := os.WriteFile(filepath.Join(dir, brakeFile), []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d := &disk{row: c.row}
		b := d.brake(t, dir)
		if got := b.denies(); got != c.want {
			t.Errorf("%s: denies %v", name, got)
		}
		if pending := b.await(within(10*time.Second), 1, nil); len(pending) > 0 {
			t.Errorf("%s: %q", name, pending)
		}
		b.close()
		d2 := &disk{}
		if b = d2.brake(t, dir); b.denies() != c.want {
			t.Errorf("%s: after a restart without the store it denies: %v", name, b.denies())
		}
		b.close()
	}
}

// TestRowBetweenActs: the store has a stop before the journal has all that came
// before it, however fast others come.
func TestRowBetweenActs(t *testing.T) {
	b, err := openBrake(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	more := func(n int) {
		for range n {
			b.logLater(&stopAct{act: kernel.Act{Act: "stop", Principal: "uid:1", Detail: map[string]string{}}})
		}
	}
	b.allow = func(bool) {}
	rowed, recorded := false, 0
	b.row = func(context.Context, bool) error { rowed = true; return nil }
	b.record = func(context.Context, kernel.Act) (uint64, error) {
		if recorded++; recorded == 1 {
			b.engage(&owed{Principal: "uid:0"}, true)
		} else if !rowed {
			t.Fatal("another act is written first")
		}
		return 0, nil
	}
	more(8)
	if err := b.scribe(t.Context()); err != nil || !rowed || recorded != 8 {
		t.Errorf("%v, row %v, %d acts", err, rowed, recorded)
	}
	b.close()
}

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/isolate/knob"
	"palyra/kernel/internal/digests"
	"palyra/kernel/internal/ring"
)

// state is an open state directory. Several processes may have it open:
//
//	lock       shared while a process uses the directory; exclusive while one makes it
//	live       has a locked byte for each call that is under way; see live
//	keys/      private keys, 0600
//	trust/     their public halves, for verifiers of receipts
//	journal/   the log of intents and results
//	rotating   locked by a process that replaces a key
//	digests    digests of large files of the system; computed again when lost
//	placeholders  digests of placeholders, by which later calls that have one are known; see uses.go
type state struct {
	dir     string
	boot    string // this host's boot id, "" for none
	lock    *durable.Gate
	live    *durable.Live           // calls of this process whose result isn't durable yet, by call id
	keys    keyring.Options         // how the keys are opened
	held    atomic.Pointer[signers] // the keys, as this process last saw them; see rotate.go
	journal *journal.Journal

	firstPlain bool // see Kernel.FirstPlain

	digests *digests.Cache

	placeholders *ring.Ring
	observe      func(Event) // Config.Observe
}

// makePatience bounds the wait for a process that makes the state directory.
const makePatience = 10 * time.Second

// openState opens dir, and makes it and its keys on first use.
func openState(ctx context.Context, dir string, o journal.Options, keys keyring.Options) (_ *state, err error) {
	op := fmt.Sprintf("open state directory %q", dir)
	if !filepath.IsAbs(dir) {
		return nil, fault.New(fault.BadState, "state_io", op, errors.New("the path is not absolute")).
			WithHint("give the absolute path of the state directory")
	}
	if err := durable.MkdirAll0700(dir); err != nil {
		return nil, durable.Fault(op, err)
	}
	if err := durable.CheckOwn(dir, filepath.Join("keys", "att.key")); err != nil {
		return nil, err
	}
	keys.Origin = knob.LogOrigin
	s := &state{dir: dir, boot: bootID(), keys: keys}
	s.digests = digests.New(filepath.Join(dir, "digests"), s.boot)
	s.placeholders = ring.New(filepath.Join(dir, "placeholders"))
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.lock, err = durable.OpenGate(filepath.Join(dir, "lock")); err != nil {
		return nil, err
	}
	if s.live, err = durable.OpenLive(filepath.Join(dir, "live")); err != nil {
		return nil, err
	}
	return s, s.enter(ctx, o)
}

// enter opens the directory's content under a share of its lock. On first use one process makes
// the content under all of the lock; the others wait for it.
func (s *state) enter(ctx context.Context, o journal.Options) error {
	for until := time.Now().Add(makePatience); ; {
		if err := s.lock.Take(ctx, durable.Shared, time.Until(until)); err != nil {
			return err
		}
		if s.made() {
			return s.open(ctx, o)
		}
		if alone, err := s.lock.Try(durable.Exclusive); err != nil {
			return err
		} else if alone {
			if err := s.open(ctx, o); err != nil {
				return err
			}
			// Between exclusive and shared another process may look in; it finds the directory
			// made.
			return s.lock.Take(ctx, durable.Shared, makePatience)
		}
		// Another process looks too, or makes it, or uses it although something is missing.
		if time.Now().After(until) {
			return fault.New(fault.Busy, "locked", fmt.Sprintf("make state directory %q", s.dir), errors.New("it is not complete, and another process uses it")).
				WithHint("end the other Palyra on this state directory; the next one says what is missing")
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// made reports whether the first use is complete: the write-ahead file is made last.
func (s *state) made() bool {
	for _, name := range []string{"keys", filepath.Join("journal", "wal")} {
		if _, err := os.Lstat(filepath.Join(s.dir, name)); err != nil {
			return false
		}
	}
	return true
}

func (s *state) open(ctx context.Context, o journal.Options) (err error) {
	op := fmt.Sprintf("open state directory %q", s.dir)
	ring, err := keyring.OpenOptions(s.dir, s.keys)
	if err != nil {
		return err
	}
	if ring.Log().Origin() == knob.Origin && knob.Build == "" {
		return fault.New(fault.BadState, "state_io", op, fmt.Errorf("its log is called %q", knob.Origin)).
			WithHint("a build with " + knob.Tag + " made it, whose receipts prove nothing: use another directory")
	}
	s.hold(ring)
	s.firstPlain = ring.FirstPlain()
	o.Follows = receipt.Follows
	o.Keys = s.logKeys(ring)
	if s.journal, err = journal.Open(filepath.Join(s.dir, "journal"), ring.Log(), o); err != nil {
		return err
	}
	if ring.Next() != nil || ring.NextLog() != nil { // a rotation is prepared, is under way, or was interrupted
		return s.renew(ctx, nil)
	}
	return nil
}

func (s *state) close() error {
	if s == nil {
		return nil
	}
	var err error
	if s.journal != nil {
		_ = s.digests.Save() // without it the next process hashes again
		err = s.journal.Close()
	}
	_ = s.live.Close() // nothing is buffered in it
	if s.lock != nil {
		if alone, _ := s.lock.Try(durable.Exclusive); alone {
			_ = s.digests.Sweep() // of a killed process
		}
		if cerr := s.lock.Close(); err == nil {
			err = cerr
		}
	}
	return err
}

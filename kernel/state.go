package kernel

import (
	"fmt"
	"path/filepath"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/isolate/knob"
	"palyra/kernel/internal/digests"
)

// state is an open state directory:
//
//	lock       held as long as this process uses it: one Palyra at a time
//	keys/      private keys, 0600
//	trust/     their public halves, for whoever verifies receipts
//	journal/   the log of intents and results
//	digests    digests of large files of the system; made again when lost
type state struct {
	dir     string
	boot    string // this host's boot id, "" if it has none
	lock    *durable.FileLock
	ring    *keyring.Ring
	trust   *receipt.Trust
	journal *journal.Journal
	digests *digests.Cache
}

// openState opens dir, and makes it and its keys on first use.
func openState(dir string, o journal.Options) (_ *state, err error) {
	op := fmt.Sprintf("open state directory %q", dir)
	if !filepath.IsAbs(dir) {
		return nil, fault.New(fault.BadState, "state_not_absolute", op, nil)
	}
	if err := durable.MkdirAll0700(dir); err != nil {
		return nil, durable.Fault(op, err)
	}
	if err := durable.CheckOwn(dir, filepath.Join("keys", "att.key")); err != nil {
		return nil, err
	}
	s := &state{dir: dir, boot: bootID()}
	s.digests = digests.New(filepath.Join(dir, "digests"), s.boot)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.lock, err = durable.Lock(filepath.Join(dir, "lock")); err != nil {
		return nil, err
	}
	if s.ring, err = keyring.OpenOptions(dir, keyring.Options{Origin: knob.LogOrigin}); err != nil {
		return nil, err
	}
	if s.ring.Log().Origin() == knob.Origin && knob.Build == "" {
		return nil, fault.New(fault.BadState, "state_of_test_build", op, fmt.Errorf("its log is called %q", knob.Origin)).
			WithHint("a build with " + knob.Tag + " made it, whose receipts prove nothing: use another directory")
	}
	s.trust = receipt.TrustIn(s.ring)
	s.journal, err = journal.Open(filepath.Join(dir, "journal"), s.ring.Log(), o)
	return s, err
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
	if s.lock != nil {
		if uerr := s.lock.Unlock(); err == nil {
			err = uerr
		}
	}
	return err
}

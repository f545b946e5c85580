package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"palyra/crypt/keyring/backend/record"
	"palyra/crypt/seal"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// lockFile is held by a process that changes the record.
const lockFile = "backend.lock"

// LoadRecorded returns the identity that the record of the vault in dir names. Without a record its
// error is fs.ErrNotExist, as it is for a place without an identity.
func LoadRecorded(ctx context.Context, dir string) (seal.Identity, error) {
	r, err := recorded(dir)
	if err != nil {
		return nil, err
	}
	id, err := Load(ctx, *r.At)
	if err == nil {
		return id, nil
	}
	// Another process may have moved the identity since the record was read.
	if now, e := recorded(dir); e == nil && *now.At != *r.At {
		return Load(ctx, *now.At)
	}
	return nil, err
}

// recorded reads a record that has a place.
func recorded(dir string) (*record.Record, error) {
	r, err := record.Read(dir)
	if err == nil && r.At == nil {
		return nil, fault.New(fault.BadState, "state_missing", fmt.Sprintf("open vault %q", dir), errors.New("its making was interrupted")).
			WithHint("palyra vault init begins again")
	}
	return r, err
}

// Keeper changes the record of one vault, and holds its lock. It's for one goroutine.
//
// A place that may hold a copy of the identity is always in the record: before the copy is written,
// and until it is removed. So after a crash at any step At opens the vault, and Also is the one
// place to clean.
type Keeper struct {
	dir  string
	lock *durable.FileLock
	rec  *record.Record // nil: there is none
	step func(string)
}

// Take takes the lock of the vault's folder dir, which is made if it's missing. It doesn't wait:
// a lock that another process holds is fault.Busy.
func Take(dir string) (*Keeper, error) { return take(dir, asking.step) }

func take(dir string, step func(string)) (*Keeper, error) {
	if err := durable.MkdirAll0700(dir); err != nil {
		return nil, durable.Fault(fmt.Sprintf("make %q", dir), err)
	}
	l, err := durable.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	k := &Keeper{dir: dir, lock: l, step: step}
	if err = durable.RemoveTempsOf(filepath.Join(dir, record.Name)); err == nil {
		k.rec, err = record.Read(dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, l.Unlock())
	}
	return k, nil
}

// Close gives the lock back.
func (k *Keeper) Close() error { return k.lock.Unlock() }

func (k *Keeper) manner() manner { return manner{ask: true, step: k.step} }

// put makes r the record; nil removes it.
func (k *Keeper) put(r *record.Record) error {
	err := error(nil)
	if r == nil {
		err = record.Remove(k.dir)
		k.step("unrecorded")
	} else {
		err = r.Write(k.dir, k.step)
	}
	if err == nil {
		k.rec = r
	}
	return err
}

// settle removes the copy that an interrupted change left.
func (k *Keeper) settle(ctx context.Context) error {
	if k.rec == nil || k.rec.Also == nil {
		return nil
	}
	if err := drop(ctx, *k.rec.Also, k.manner()); err != nil {
		return err
	}
	k.step("removed")
	if k.rec.At == nil {
		return k.put(nil)
	}
	return k.put(&record.Record{At: k.rec.At, Beside: k.rec.Beside})
}

// allowed refuses a plain identity beside the vault that it opens, unless beside allows it.
func allowed(dir string, p record.Place, beside bool) (bool, error) {
	// The vault is a folder of the state directory, which has the journal, too.
	if !p.Beside(dir, filepath.Dir(dir)) {
		return false, nil
	}
	if !beside {
		return false, fault.New(fault.BadState, "unsafe_file", fmt.Sprintf("keep identity in %s", p), errors.New("it would lie beside what it opens")).
			WithHint("name a file outside the state directory, or say --allow-beside")
	}
	return true, nil
}

// Init makes an identity, keeps it at p (whose Recipient it sets) and records that, for a vault
// that is to be made in the folder. An identity that the service manager gave, or that an
// interrupted Init has kept at p, is taken instead. allowBeside lets a plain identity lie in the
// state directory.
func (k *Keeper) Init(ctx context.Context, p record.Place, allowBeside bool) (_ *seal.IdentityKey, err error) {
	beside, err := allowed(k.dir, p, allowBeside)
	if err != nil {
		return nil, err
	}
	if err := k.settle(ctx); err != nil {
		return nil, err
	}
	if k.rec != nil {
		if at := k.rec.At; at.Backend != p.Backend || at.Name != p.Name && at.Backend == record.File {
			return nil, fault.New(fault.BadState, "exists", fmt.Sprintf("make vault %q", k.dir), fmt.Errorf("an interrupted vault init has kept an identity in %s", at)).
				WithHint("name that: --backend " + string(at.Backend))
		}
		return load(ctx, *k.rec.At)
	}
	id, err := given(ctx, p)
	if err != nil {
		return nil, err
	}
	adopted := id != nil
	if !adopted {
		if id, err = seal.NewIdentity(); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			id.Wipe()
		}
	}()
	pub, err := id.Recipient("owner")
	if err != nil {
		return nil, err
	}
	p.Recipient = pub.ID()
	if !adopted {
		if err := k.free(ctx, p); err != nil {
			return nil, err
		}
		if err := k.put(&record.Record{Also: &p, Beside: beside}); err != nil {
			return nil, err
		}
		if err := keep(ctx, p, id, k.manner()); err != nil {
			return nil, errors.Join(err, k.settle(ctx))
		}
		k.step("kept")
	}
	return id, k.put(&record.Record{At: &p, Beside: beside})
}

// given returns the identity that the service manager gave to this process, nil if p isn't that.
func given(ctx context.Context, p record.Place) (*seal.IdentityKey, error) {
	s, err := open(p.Backend, asking)
	if err != nil {
		return nil, err
	}
	if c, ok := s.(credential); ok && c.given() {
		return load(ctx, p)
	}
	return nil, nil
}

// free refuses a name that is taken, before the record says that it's ours to remove.
func (k *Keeper) free(ctx context.Context, p record.Place) error {
	s, err := open(p.Backend, asking)
	if err != nil {
		return err
	}
	b, err := s.read(ctx, p.Name)
	clear(b)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = fault.New(fault.BadState, "exists", fmt.Sprintf("keep identity in %s", p), errors.New("one is there already")).
			WithHint("move it away, or name another place")
	}
	return err
}

// Forget takes back what Init did, for a vault that wasn't made.
func (k *Keeper) Forget(ctx context.Context) error {
	if k.rec == nil || k.rec.At == nil {
		return k.settle(ctx)
	}
	if isGiven(*k.rec.At) {
		return k.put(nil)
	}
	if err := k.put(&record.Record{Also: k.rec.At, Beside: k.rec.Beside}); err != nil {
		return err
	}
	return k.settle(ctx)
}

// isGiven reports whether the service manager gave the identity at p to this process, which can't
// remove it.
func isGiven(p record.Place) bool {
	s, err := open(p.Backend, asking)
	if err != nil {
		return false
	}
	c, ok := s.(credential)
	return ok && c.given()
}

// Migrate moves the identity of the vault to p, whose Recipient it sets. It begins by finishing
// what an interrupted Migrate left, and is done then if the identity is at p. from is where it was
// found if no record says so.
//
// The steps: record that p may hold a copy, write it, read it back, record it as the place and the
// old one as that of a copy, remove that, record the removal.
func (k *Keeper) Migrate(ctx context.Context, from *record.Place, p record.Place, allowBeside bool) error {
	beside, err := allowed(k.dir, p, allowBeside)
	if err != nil {
		return err
	}
	if err := k.settle(ctx); err != nil {
		return err
	}
	old := from
	wasBeside := false
	if k.rec != nil {
		old, wasBeside = k.rec.At, k.rec.Beside
	}
	if old == nil {
		return fault.New(fault.BadState, "state_missing", fmt.Sprintf("move the identity of vault %q", k.dir), errors.New("no backend is recorded")).
			WithHint("--key FILE names the identity's file")
	}
	if old.Backend == p.Backend && (old.Name == p.Name || p.Backend != record.File) && k.rec != nil {
		return nil // done, maybe by the Migrate that was interrupted
	}
	id, err := load(ctx, *old)
	if err != nil {
		return err
	}
	defer id.Wipe()
	pub, err := id.Recipient("owner")
	if err != nil {
		return err
	}
	was := *old
	was.Recipient, p.Recipient = pub.ID(), pub.ID()
	if was == p {
		return k.put(&record.Record{At: &p, Beside: beside})
	}
	if isGiven(p) { // the service manager's: compared, and not written
		back, err := load(ctx, p)
		if err != nil {
			return err
		}
		back.Wipe()
	} else {
		if err := k.free(ctx, p); err != nil {
			return err
		}
		if err := k.put(&record.Record{At: &was, Also: &p, Beside: wasBeside || beside}); err != nil {
			return err
		}
		if err := keep(ctx, p, id, k.manner()); err != nil {
			return errors.Join(err, k.settle(ctx))
		}
		k.step("kept")
	}
	if isGiven(was) {
		return k.put(&record.Record{At: &p, Beside: beside})
	}
	if err := k.put(&record.Record{At: &p, Also: &was, Beside: beside}); err != nil {
		return err
	}
	return k.settle(ctx)
}

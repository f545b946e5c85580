// Package backend keeps the identity that opens a vault: in a private file, in the keyring of the
// desktop or of the system, or in a file that the system encrypted. docs/formats/vault.md has the
// file in which the vault's folder says which (package record).
//
//	id, err := backend.Load(ctx, place)               // who opens the vault
//	id, err := backend.LoadRecorded(ctx, dir)         // the same, from the record in dir
//	place, passed, err := backend.Choose(ctx, candidates)
//	k, err := backend.Take(dir)                       // to change the record
//	id, err := k.Init(ctx, place, false)              // makes and keeps one
//	err := k.Migrate(ctx, nil, place, false)
//
// # Contract
//
// A backend is used after a round trip alone ([Try]): a random value is written, read back, removed
// and gone. Then it is recorded, and no function takes another one instead: a keyring that is
// locked, absent or silent is an error that names it.
//
// What is written is read back before it's recorded. What is read is an identity of the digest that
// the record has, so a keyring that answers with another one is found out before the vault is
// opened. Every wait is bounded by the context, and by [patience] for each answer.
//
// Load opens sockets, reads files and may start a program (systemd-creds, security). palyrad calls
// it before it confines itself.
//
// # What it does not protect against
//
// Each program of the user can ask an unlocked keyring for what this one asks. The identity passes
// through memory of others: the bus, the keyring's daemon, the programs named above. A file that
// was removed may be read from its disk.
package backend

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"palyra/crypt/keyring/backend/record"
	"palyra/crypt/seal"
	"palyra/internal/fault"
)

// Bounds.
const (
	patience = 10 * time.Second // for one answer of a keyring or program
	prompted = 2 * time.Minute  // for a person
	maxValue = 4096             // bytes of what is kept
)

// store is one backend. Names are a place's; values are lines of text without their newline.
type store interface {
	// write keeps a value under a name that isn't taken, durably.
	write(ctx context.Context, name string, value []byte) error
	// read returns the value. Without one the error is fs.ErrNotExist.
	read(ctx context.Context, name string) ([]byte, error)
	// remove removes the value, and what an interrupted write of it left.
	remove(ctx context.Context, name string) error
}

// manner is how a backend is used.
type manner struct {
	ask  bool         // it may put a question to the person at the desktop
	step func(string) // called after each change to the disk
}

var asking = manner{ask: true, step: func(string) {}}

// open returns a backend of this platform.
func open(k record.Kind, m manner) (store, error) {
	switch k {
	case record.File:
		return files{m.step}, nil
	case record.SecretService:
		return secretService(m.ask)
	case record.SystemdCreds:
		return systemdCreds()
	case record.Keychain:
		return keychain()
	case record.DPAPI:
		return dpapi()
	}
	return nil, fault.New(fault.Usage, "invalid_input", "find backend", fmt.Errorf("there is no %q", k))
}

// elsewhere says that a backend is another system's.
func elsewhere(k record.Kind, system string) error {
	return fault.New(fault.Unsupported, "platform_unsupported", fmt.Sprintf("use backend %s", k), errors.New("it is for "+system))
}

// Auto stands for the first of [Automatic] that passes.
const Auto = "auto"

// Automatic returns the backends to try where a person named none, in this order. A credential that
// the service manager gave to this process stands alone. Else systemd-creds is left out: its key is
// the host's, and its place one for all users.
func Automatic() []record.Kind {
	if Given() {
		return []record.Kind{record.SystemdCreds}
	}
	var out []record.Kind
	for _, k := range []record.Kind{record.SecretService, record.Keychain, record.DPAPI, record.File} {
		if _, err := open(k, asking); err == nil {
			out = append(out, k)
		}
	}
	return out
}

// Load returns the identity at p. If p names a recipient, it's that recipient's.
func Load(ctx context.Context, p record.Place) (seal.Identity, error) {
	id, err := load(ctx, p)
	if err != nil {
		return nil, err // not a nil *IdentityKey in the interface
	}
	return id, nil
}

func load(ctx context.Context, p record.Place) (*seal.IdentityKey, error) {
	op := "read identity from " + p.String()
	s, err := open(p.Backend, asking)
	if err != nil {
		return nil, err
	}
	b, err := s.read(ctx, p.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Mark(fault.New(fault.BadState, "state_missing", op, errors.New("there is none")).
			WithHint("--key FILE and --passphrase FILE open the vault for another recipient; a backup of the keyring may have it"), fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	defer clear(b)
	return parse(op, p, b)
}

// parse reads an identity, and compares it with the one that belongs there.
func parse(op string, p record.Place, b []byte) (*seal.IdentityKey, error) {
	line := append(bytes.TrimSuffix(bytes.Clone(b), []byte("\n")), '\n')
	defer clear(line)
	id, err := seal.ParseIdentity(line)
	if err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, errors.New("it is no identity"))
	}
	if p.Recipient.IsZero() {
		return id, nil
	}
	pub, err := id.Recipient("owner")
	if err == nil && pub.ID() != p.Recipient {
		err = fault.New(fault.Integrity, "key_corrupt", op, errors.New("it is another identity than the one that was kept there"))
	}
	if err != nil {
		id.Wipe()
		return nil, err
	}
	return id, nil
}

// keep writes an identity to p and reads it back.
func keep(ctx context.Context, p record.Place, id *seal.IdentityKey, m manner) error {
	s, err := open(p.Backend, m)
	if err != nil {
		return err
	}
	line := id.Encode()
	defer clear(line)
	if err := s.write(ctx, p.Name, bytes.TrimSuffix(line, []byte("\n"))); err != nil {
		return err
	}
	back, err := load(ctx, p)
	if err != nil {
		return err
	}
	back.Wipe()
	return nil
}

// drop removes the identity at p. Another identity that is there now stays.
func drop(ctx context.Context, p record.Place, m manner) error {
	s, err := open(p.Backend, m)
	if err != nil {
		return err
	}
	b, err := s.read(ctx, p.Name)
	defer clear(b)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.remove(ctx, p.Name) // an interrupted write may have left something
	case err != nil:
		return err
	}
	id, err := parse("", p, b)
	if err != nil {
		return nil // not ours
	}
	id.Wipe()
	return s.remove(ctx, p.Name)
}

// Try makes a round trip through a backend: a random value is written beside p, read back, removed
// and gone. The keyring may ask the person at the desktop to unlock it.
func Try(ctx context.Context, p record.Place) error { return try(ctx, p, asking) }

func try(ctx context.Context, p record.Place, m manner) error {
	op := fmt.Sprintf("try backend %s", p.Backend)
	s, err := open(p.Backend, m)
	if err != nil {
		return err
	}
	if c, ok := s.(credential); ok && c.given() {
		return c.try(ctx)
	}
	name, value := trial(p), []byte(rand.Text()+rand.Text())
	if err := s.write(ctx, name, value); err != nil {
		_ = s.remove(ctx, name) // a part of it may be there, and it's random
		return err
	}
	back, err := s.read(ctx, name)
	if err == nil && !bytes.Equal(back, value) {
		err = fault.New(fault.Integrity, "bad_answer", op, errors.New("it gave back another value than it was given"))
	}
	if err = errors.Join(err, s.remove(ctx, name)); err != nil {
		return err
	}
	if _, err := s.read(ctx, name); !errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Integrity, "bad_answer", op, errors.Join(errors.New("a value that was removed is still there"), err))
	}
	return nil
}

// trial is a name for a round trip: beside the real one where that is a path.
func trial(p record.Place) string {
	if strings.ContainsAny(p.Name, `/\`) {
		return p.Name + ".try-" + rand.Text()
	}
	return "try-" + rand.Text()
}

// Passed is a candidate that failed its round trip, and why.
type Passed struct {
	Place record.Place
	Why   error
}

// Choose returns the first of the candidates that passes its round trip, and those before it. It
// asks no person: a locked keyring doesn't pass.
func Choose(ctx context.Context, candidates []record.Place) (record.Place, []Passed, error) {
	var passed []Passed
	for _, p := range candidates {
		err := try(ctx, p, manner{step: asking.step})
		if err == nil {
			return p, passed, nil
		}
		if ctx.Err() != nil {
			return record.Place{}, passed, err
		}
		passed = append(passed, Passed{p, err})
	}
	if len(passed) == 0 {
		return record.Place{}, nil, fault.New(fault.Usage, "invalid_input", "choose backend", errors.New("there is no candidate"))
	}
	return record.Place{}, passed, passed[len(passed)-1].Why
}

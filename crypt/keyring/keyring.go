// Package keyring holds the keys of one state directory.
//
// There are two, and each does one thing: the [AttestationKey] (ECDSA P-256) signs in-toto
// statements, the [LogKey] (Ed25519) signs checkpoints of the journal. [Open] makes them on
// first use. Afterwards it refuses them if anything about them is wrong: owner, mode, type,
// spelling, or a missing one.
//
//	ring, err := keyring.Open(stateDir)
//	e, err := receipt.SignEntry(ring.Attestation(), statement)
//	j, err := journal.Open(filepath.Join(stateDir, "journal"), ring.Log(), journal.Options{})
//
// The files, all below the state directory:
//
//	keys/att.key             PKCS #8 in PEM, mode 0600
//	keys/log.key             signed-note signer key, one line, mode 0600
//	trust/att.pub            SubjectPublicKeyInfo in PEM
//	trust/log.vkey           signed-note verifier key, one line
//	trust/trusted_root.json  the log's key as Sigstore tools want it
//
// keys/ appears in one piece or not at all: Open makes it beside its place and renames it.
// A rotation of the attestation key adds att-next.key and att.json to keys/, and keys.json and an
// att-….pub for each key to trust/ ([History], rotate.go); one of the log's key log-next.key and
// log.json, and log-keys.json and a log-….vkey for each.
//
// trust/ holds nothing secret and is all that a stranger needs. Open makes it again if it
// is missing, and refuses it if it differs from the keys.
//
// Private keys may be sealed for recipients (sealed.go), or lie plain under a name (plain.go).
//
// The package doesn't protect against a reader of plain keys, who can sign as this installation.
// It wipes what it read of files; the parsed keys stay on the heap, unlocked, for as long as the
// process may sign, since package crypto keeps copies of its own. Docs: docs/formats/keys.md.
package keyring

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/crypt/seal"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// The names below a state directory.
const (
	keysDir  = "keys"
	trustDir = "trust"

	journalDir = "journal"
	attFile    = "att.key"
	logFile    = "log.key"
)

// maxKeyFile bounds a key file, in bytes.
const maxKeyFile = 4096

// Ring is the keys of one state directory, immutable after Open.
type Ring struct {
	att     *AttestationKey
	log     *LogKey
	next    *AttestationKey // nil: none is prepared
	history *History        // nil: there was one key only

	nextLog    *LogKey
	logHistory *History

	plain []string          // names of key files that aren't sealed
	first bool              // see FirstPlain
	to    []*seal.PublicKey // for whom the attestation key is sealed
	logTo []*seal.PublicKey // for whom the log's is
	names [][2]string       // of sealed files, with the name in each
}

// Attestation returns the key that signs statements.
func (r *Ring) Attestation() *AttestationKey { return r.att }

// Log returns the key that signs the journal's checkpoints.
func (r *Ring) Log() *LogKey { return r.log }

// Options are the choices of the first Open of a state directory.
type Options struct {
	// Origin names the log in its checkpoints: a bare host name, never resolved.
	// Default: 16 hexadecimal digits of the log key's digest and
	// ".palyra.local", so that two installations never share one. It cannot be
	// changed later: it is part of the key's identity.
	Origin string
	// Unlock is called, at most once, if keys are sealed. Open wipes the identity. nil: sealed
	// keys are refused.
	Unlock Unlock
	// By is the principal that lets keys lie plain by their first use (plain.go).
	By string
}

// Open opens the keys of the state directory dir, and makes directory and keys
// on first use. Errors are fault.BadState (owner, mode, a missing file),
// fault.Integrity (a key that does not parse, public halves that do not match)
// or fault.Unavailable (disk full).
func Open(dir string) (*Ring, error) { return OpenOptions(dir, Options{}) }

// OpenOptions is Open with choices for the first use. On the first use its caller makes
// sure that no other process opens the directory.
func OpenOptions(dir string, o Options) (*Ring, error) {
	op := fmt.Sprintf("open keys in %q", dir)
	if err := durable.MkdirAll0700(dir); err != nil {
		return nil, durable.Fault(op, err)
	}
	if err := durable.CheckPrivate(dir); err != nil {
		return nil, err
	}
	keys := filepath.Join(dir, keysDir)
	if _, err := os.Lstat(keys); errors.Is(err, os.ErrNotExist) {
		if err := create(dir, o); err != nil {
			return nil, durable.Fault(op, err)
		}
	} else if err != nil {
		return nil, durable.Fault(op, err)
	}
	id, wipe := unlocker(o.Unlock)
	defer wipe()
	r, err := loadStill(dir, keys, id)
	if err != nil {
		return nil, err
	}
	if o.Origin != "" && r.log.origin != o.Origin {
		return nil, fault.New(fault.BadState, "key_corrupt", op,
			fmt.Errorf("the log is called %q, not %q", r.log.origin, o.Origin))
	}
	if err := withJournal(op, dir); err != nil {
		return nil, err
	}
	if err := r.told(dir, o); err != nil {
		return nil, err
	}
	err = r.exportTrust(filepath.Join(dir, trustDir))
	for range retries {
		if err == nil {
			return r, nil
		}
		// Another process may have rotated the key meanwhile.
		now, lerr := loadStill(dir, keys, id)
		if lerr != nil || now.next == nil && now.nextLog == nil && bytes.Equal(now.att.spki, r.att.spki) && now.log.VKey() == r.log.VKey() {
			return nil, err
		}
		now.first = r.first
		r, err = now, now.exportTrust(filepath.Join(dir, trustDir))
	}
	return nil, err
}

// retries bounds how often a rotation by another process has Open look again.
const retries = 8

// loadStill is load for files that a rotation by another process may change meanwhile.
func loadStill(dir, keys string, id func() (seal.Identity, error)) (r *Ring, err error) {
	var key, history string
	for range retries {
		if r, err = load(keys, id); err != nil {
			return nil, err
		}
		att := r.history == nil || r.next != nil || bytes.Equal(r.history.Current().SPKI, r.att.spki)
		log := r.logHistory == nil || r.nextLog != nil || r.logHistory.Current().VKey == r.log.VKey()
		if att && log {
			return r, nil
		}
		key, history = attFile, historyFile
		if att {
			key, history = logFile, logHistoryFile
		}
	}
	return nil, fault.New(fault.Integrity, "key_corrupt", fmt.Sprintf("open keys in %q", dir), fmt.Errorf("%s isn't the key that %s has in force", key, history)).
		WithHint("restore keys/ from a backup that was made since the last rotation")
}

// withJournal refuses keys without the folder of the journal that they signed: another log
// of the same name would have other entries of the same numbers. The first use makes that
// folder between keys/ and trust/.
func withJournal(op, dir string) error {
	journal := filepath.Join(dir, journalDir)
	if _, err := os.Lstat(journal); !errors.Is(err, os.ErrNotExist) {
		return durable.Fault(op, err)
	}
	switch _, err := os.Lstat(filepath.Join(dir, trustDir)); {
	case errors.Is(err, os.ErrNotExist):
		return durable.Fault(op, durable.MkdirAll0700(journal))
	case err != nil:
		return durable.Fault(op, err)
	}
	return fault.New(fault.BadState, "state_missing", op, errors.New("there are keys but no journal")).
		WithHint("restore journal/ from a backup; to begin a new one, begin a new state directory")
}

// load reads both keys; a directory with only one was tampered with, since
// create makes them together. It reads what rotations add, too.
func load(keys string, id func() (seal.Identity, error)) (*Ring, error) {
	if err := durable.CheckPrivate(keys); err != nil {
		return nil, err
	}
	var r Ring
	for _, k := range []struct {
		name  string
		parse func([]byte) error
	}{
		// Before att.key, which takes its place: it is in one of the two, or else it was renamed
		// between the two looks, and att.key is it.
		{nextFile, func(b []byte) (err error) { r.next, err = parseAttestationKey(b); return }},
		{attFile, func(b []byte) (err error) { r.att, err = parseAttestationKey(b); return }},
		{logNextFile, func(b []byte) (err error) { r.nextLog, err = parseLogKey(b); return }},
		{logFile, func(b []byte) (err error) { r.log, err = parseLogKey(b); return }},
		{historyFile, func(b []byte) (err error) { r.history, err = parseHistoryOf(b, false); return }},
		{logHistoryFile, func(b []byte) (err error) { r.logHistory, err = parseHistoryOf(b, true); return }},
	} {
		path := filepath.Join(keys, k.name)
		limit := int64(maxSealed)
		history := k.name == historyFile || k.name == logHistoryFile
		if history {
			limit = maxHistory
		}
		b, err := durable.ReadPrivate(path, limit)
		if errors.Is(err, os.ErrNotExist) && (history || k.name == nextFile || k.name == logNextFile) {
			continue
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil, fault.New(fault.BadState, "state_missing", fmt.Sprintf("open key %q", path), err).
				WithHint("restore it from a backup; with a new key nothing that was signed before can be continued")
		}
		if err != nil {
			return nil, err
		}
		if !history {
			if b, err = r.plainKey(path, b, id); err != nil {
				return nil, err
			}
			defer clear(b)
			if len(b) > maxKeyFile {
				return nil, fault.New(fault.Integrity, "key_corrupt", fmt.Sprintf("parse key %q", path), errors.New("too long for a key"))
			}
		}
		if err := k.parse(b); err != nil {
			return nil, fault.New(fault.Integrity, "key_corrupt", fmt.Sprintf("parse key %q", path), err)
		}
	}
	if err := r.checkOrigin(); err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", fmt.Sprintf("open keys in %q", keys), err)
	}
	if err := r.checkNames(); err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", fmt.Sprintf("open keys in %q", keys), err)
	}
	if r.next != nil && bytes.Equal(r.next.spki, r.att.spki) {
		r.next = nil
	}
	if r.nextLog != nil && r.nextLog.VKey() == r.log.VKey() {
		r.nextLog = nil
	}
	return &r, nil
}

// checkOrigin refuses a key or a history of another log.
func (r *Ring) checkOrigin() error {
	if r.nextLog != nil && r.nextLog.origin != r.log.origin {
		return fmt.Errorf("%s is of another log", logNextFile)
	}
	if r.logHistory != nil && !strings.HasPrefix(r.logHistory.Keys[0].VKey, r.log.origin+"+") {
		return fmt.Errorf("%s is of another log", logHistoryFile)
	}
	return nil
}

// create makes both keys in a folder beside keys/ and renames it into place. Of two
// processes that do so at the same time one wins as a whole.
func create(dir string, o Options) (err error) {
	if _, err := os.Lstat(filepath.Join(dir, journalDir)); err == nil {
		return fault.New(fault.BadState, "state_missing", fmt.Sprintf("open keys in %q", dir),
			errors.New("there is a journal but no keys")).
			WithHint("restore keys/ from a backup, or move the journal away to begin a new one")
	}
	att, err := newAttestationKey()
	if err != nil {
		return err
	}
	log, err := newLogKey(o.Origin)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "."+keysDir+"-"+rand.Text())
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp)
		}
	}()
	ab, err := att.encode()
	if err != nil {
		return err
	}
	for name, b := range map[string][]byte{attFile: ab, logFile: log.encode()} {
		if err := durable.WriteFile(filepath.Join(tmp, name), b, 0o600); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, filepath.Join(dir, keysDir)); err != nil {
		if _, lerr := os.Lstat(filepath.Join(dir, keysDir)); lerr == nil {
			return os.RemoveAll(tmp) // another process was first; its keys count
		}
		return err
	}
	return durable.SyncDir(dir)
}

// validOrigin accepts host names of letters, digits, hyphens and dots, lower
// case. Sigstore verifiers compare it with the host part of a URL, and one of
// them uses it as a regular expression.
func validOrigin(s string) error {
	if len(s) == 0 || len(s) > 253 {
		return fmt.Errorf("origin of %d characters, want 1 to 253", len(s))
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			slices.ContainsFunc([]byte(label), func(c byte) bool {
				return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-'
			}) {
			return fmt.Errorf("origin %q is no bare lower-case host name", s)
		}
	}
	return nil
}

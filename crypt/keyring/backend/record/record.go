// Package record says where the identity that opens a vault is kept: a small file in the vault's
// folder. docs/formats/vault.md specifies it.
//
//	r, err := record.Read(dir)      // errors.Is(err, fs.ErrNotExist): none is recorded
//	id, err := backend.Load(ctx, *r.At)
//
// It links no backend, so that a program can report what is recorded and open nothing.
//
// # What it does not protect against
//
// The file is no secret and isn't signed. A person who can write to the vault's folder can point it
// elsewhere, and keep the vault shut: an identity that is no recipient's opens nothing.
package record

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Name is the file in the vault's folder.
const Name = "backend"

// maxFile bounds the file, in bytes: two places with a path each.
const maxFile = 16 << 10

// Kind names a backend.
type Kind string

// The backends.
const (
	File          Kind = "file"           // a private file
	SecretService Kind = "secret-service" // the desktop's keyring, over D-Bus
	SystemdCreds  Kind = "systemd-creds"  // a credential that systemd encrypted
	Keychain      Kind = "macos-keychain"
	DPAPI         Kind = "dpapi" // a file that Windows encrypted for the user
)

// Kinds returns every backend.
func Kinds() []Kind { return []Kind{File, SecretService, SystemdCreds, Keychain, DPAPI} }

// Place is where an identity is kept.
type Place struct {
	Backend Kind `json:"backend"`
	// Name is the path of the file, or the name of the item or credential.
	Name string `json:"name"`
	// Recipient is the digest of the identity's public key. Zero, in a place that no record
	// names, takes any identity.
	Recipient canon.Digest `json:"recipient"`
}

// String names the place for people.
func (p Place) String() string { return fmt.Sprintf("%s %q", p.Backend, p.Name) }

func (p *Place) check() error {
	switch {
	case !slices.Contains(Kinds(), p.Backend):
		return fmt.Errorf("no backend %q", p.Backend)
	case p.Name == "" || len(p.Name) > 4096 || strings.ContainsFunc(p.Name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("name: want 1 to 4096 bytes without control characters")
	case (p.Backend == File || p.Backend == DPAPI) && !filepath.IsAbs(p.Name):
		return errors.New("name: want an absolute path")
	case p.Recipient.IsZero():
		return errors.New("no recipient")
	}
	return nil
}

// Record is what the file says. At least one of At and Also is there.
type Record struct {
	Version int `json:"version"` // 1
	// At is where the identity is. Null: vault init was interrupted before it was kept.
	At *Place `json:"at"`
	// Also may have a copy, which is to be removed: it was being written, or left.
	Also *Place `json:"also"`
	// Beside says that the owner lets a plain identity lie in the state directory.
	Beside bool `json:"beside"`
}

// Read reads the record of the vault in dir. Without one its error is fs.ErrNotExist.
func Read(dir string) (*Record, error) {
	path := filepath.Join(dir, Name)
	b, err := durable.ReadPrivate(path, maxFile)
	if err != nil {
		return nil, err
	}
	r, err := parse(b)
	if err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", fmt.Sprintf("read %q", path), err).
			WithHint("--key FILE and --passphrase FILE open the vault without it")
	}
	return r, nil
}

func parse(b []byte) (*Record, error) {
	r := new(Record)
	if err := canon.Decode(b, r, canon.Limits{Bytes: maxFile}); err != nil {
		return nil, err
	}
	if again, err := canon.Marshal(r); err != nil || !bytes.Equal(again, b) || r.Version != 1 {
		return nil, errors.New("not the one spelling of a record of version 1")
	}
	if r.At == nil && r.Also == nil {
		return nil, errors.New("it names no place")
	}
	for _, p := range []*Place{r.At, r.Also} {
		if p == nil {
			continue
		}
		if err := p.check(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Write replaces the record of the vault in dir, durably. step is called after each change to the
// disk.
func (r *Record) Write(dir string, step func(string)) error {
	r.Version = 1
	b, err := canon.Marshal(r)
	if err == nil {
		_, err = parse(b)
	}
	op := fmt.Sprintf("write %q", filepath.Join(dir, Name))
	if err != nil {
		return fault.New(fault.Usage, "invalid_input", op, err)
	}
	return durable.Fault(op, durable.WriteFileSteps(filepath.Join(dir, Name), b, 0o600, step))
}

// Remove removes the record of the vault in dir.
func Remove(dir string) error {
	path := filepath.Join(dir, Name)
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = durable.SyncDir(dir)
	}
	return durable.Fault(fmt.Sprintf("remove %q", path), err)
}

// Beside reports whether the identity at p can be read by whoever has a copy of one of dirs: it's a
// plain file below it.
func (p Place) Beside(dirs ...string) bool {
	if p.Backend != File {
		return false
	}
	file := real(p.Name)
	return slices.ContainsFunc(dirs, func(dir string) bool {
		dir = real(dir)
		return file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
	})
}

// real is path without links, as far as it exists.
func real(path string) string {
	path = filepath.Clean(path)
	for at, rest := path, ""; ; {
		if r, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(r, rest)
		}
		up := filepath.Dir(at)
		if up == at {
			return path
		}
		at, rest = up, filepath.Join(filepath.Base(at), rest)
	}
}

// Warnings says what is wrong with where the identity is. dirs have what it opens.
func (r *Record) Warnings(dirs ...string) []string {
	var out []string
	if r.At == nil {
		return append(out, "making the vault was interrupted: palyra vault init begins again")
	}
	if r.At.Beside(dirs...) {
		out = append(out, "the identity lies beside the vault: a copy of the state directory opens itself. palyra vault migrate-backend moves it")
	}
	if r.Also != nil {
		out = append(out, fmt.Sprintf("a copy of the identity may be left in %s: palyra vault migrate-backend --to %s removes it", r.Also, r.At.Backend))
	}
	return out
}

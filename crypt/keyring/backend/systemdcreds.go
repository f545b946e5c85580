package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"palyra/crypt/keyring/backend/record"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Credential is the name under which a unit of systemd gets the identity:
// LoadCredentialEncrypted=palyra-vault.
const Credential = "palyra-vault"

// credential is a backend whose value the service manager may have given to this process.
type credential interface {
	given() bool
	try(ctx context.Context) error
}

var _ credential = creds{}

// creds keeps a value in a file that systemd-creds(1) encrypts under a key of the host, of its TPM,
// or both. The key is root's: with systemd before 256 only root can use the program. A service gets
// the value in $CREDENTIALS_DIRECTORY, decrypted by the manager before it starts, and then this
// backend reads that and nothing else: it needs no program and can't write.
type creds struct{ program string }

// at returns the file that the service manager gave, "" if none.
func (creds) at() string {
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if !filepath.IsAbs(dir) {
		return ""
	}
	path := filepath.Join(dir, Credential)
	if _, err := os.Lstat(path); err != nil {
		return ""
	}
	return path
}

func (c creds) given() bool { return c.at() != "" }

// Given reports whether the service manager gave an identity to this process.
func Given() bool { return creds{}.given() }

// try is the round trip of a value that was given: it can be read.
func (c creds) try(ctx context.Context) error {
	b, err := c.read(ctx, Credential)
	clear(b)
	return err
}

// userFlag has systemd-creds ask the manager for a key of this user's, which systemd 256 has.
func userFlag(args ...string) []string {
	if os.Geteuid() != 0 {
		args = append(args, "--user")
	}
	return args
}

func (c creds) write(ctx context.Context, name string, value []byte) error {
	op := fmt.Sprintf("encrypt credential %q", name)
	switch {
	case c.given():
		return fault.New(fault.BadState, "read_only", op, errors.New("the service manager gave it, and it can't be changed from here"))
	case !filepath.IsAbs(name):
		return notGiven(op)
	case c.program == "":
		return absent(op, errors.New("there is no systemd-creds"), "systemd 250 or newer has it")
	}
	if _, err := os.Lstat(name); err == nil {
		return fault.New(fault.BadState, "exists", op, errors.New("the file is there already")).WithHint("move it away")
	}
	out, err := run(ctx, op, value, c.program, append([]string{"encrypt", "--name=" + Credential}, append(userFlag(), "-", "-")...)...)
	if err != nil {
		return unusable(op, err)
	}
	if len(out) == 0 || bytes.Contains(out, value) {
		return fault.New(fault.Integrity, "bad_answer", op, errors.New("systemd-creds didn't encrypt it"))
	}
	if err := durable.MkdirAll0700(filepath.Dir(name)); err != nil {
		return durable.Fault(op, err)
	}
	return durable.Fault(op, durable.WriteFile(name, out, 0o600))
}

func (c creds) read(ctx context.Context, name string) ([]byte, error) {
	op := fmt.Sprintf("decrypt credential %q", name)
	if path := c.at(); path != "" {
		b, err := os.ReadFile(path) // systemd's own mode: 0400, and an ACL for the unit's user
		if err == nil && len(b) > maxValue {
			clear(b)
			err = fault.New(fault.BadState, "too_large", op, fmt.Errorf("more than %d bytes", maxValue))
		}
		if err != nil {
			return nil, durable.Fault(op, err)
		}
		return trimLine(b), nil
	}
	if !filepath.IsAbs(name) {
		return nil, notGiven(op)
	}
	sealed, err := durable.ReadPrivate(name, maxOutput)
	if err != nil {
		return nil, err
	}
	if c.program == "" {
		return nil, absent(op, errors.New("there is no systemd-creds"), "systemd 250 or newer has it")
	}
	out, err := run(ctx, op, sealed, c.program, append([]string{"decrypt", "--name=" + Credential}, append(userFlag(), "-", "-")...)...)
	if err != nil {
		return nil, unusable(op, err)
	}
	if len(out) > maxValue {
		clear(out)
		return nil, fault.New(fault.Integrity, "bad_answer", op, fmt.Errorf("more than %d bytes", maxValue))
	}
	return trimLine(out), nil
}

func (c creds) remove(_ context.Context, name string) error {
	if !filepath.IsAbs(name) {
		return nil // of the service manager
	}
	op := fmt.Sprintf("remove credential %q", name)
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if e := durable.RemoveTempsOf(name); !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
		if err == nil {
			err = durable.SyncDir(filepath.Dir(name))
		}
	}
	return durable.Fault(op, err)
}

func notGiven(op string) error {
	return absent(op, errors.New("the service manager gave this process none"),
		"run it in a unit that has LoadCredentialEncrypted="+Credential+", as palyra-vault@.service")
}

// unusable is a program that failed, which says why.
func unusable(op string, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	hint := "systemd-creds setup makes the host's key"
	if os.Geteuid() != 0 {
		hint = "before systemd 256 only root can; give it to a unit: LoadCredentialEncrypted=" + Credential
	}
	return absent(op, err, hint)
}

// absent is a keyring that isn't there, or doesn't work. Its cause can't be asked for: a socket or
// program that doesn't exist is no value that doesn't.
func absent(op string, err error, hint string) error {
	return fault.New(fault.Unavailable, "keyring_unavailable", op, errors.New(err.Error())).WithHint(hint)
}

// CredentialPlace is where systemd-creds keeps the identity for this process: in what the service
// manager gave it, or else in the folder of encrypted credentials of the system, or of the user
// whose configuration lies in config.
func CredentialPlace(config string) record.Place {
	name := Credential
	if !Given() {
		name = "/etc/credstore.encrypted/" + Credential
		if os.Geteuid() != 0 {
			name = filepath.Join(config, "credstore.encrypted", Credential)
		}
	}
	return record.Place{Backend: record.SystemdCreds, Name: name}
}

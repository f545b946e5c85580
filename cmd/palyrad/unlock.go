package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"palyra/crypt/keyring"
	"palyra/crypt/seal"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// maxIdentity bounds the file of an identity, in bytes.
const maxIdentity = 4096

// readIdentity reads the identity that key of the configuration names.
func readIdentity(key, path string, getenv func(string) string) (*seal.IdentityKey, error) {
	read := durable.ReadPrivate
	// systemd makes credentials readable for the unit's user alone, with an ACL that shows in
	// their mode; systemd.exec(5).
	if dir := getenv("CREDENTIALS_DIRECTORY"); filepath.IsAbs(dir) && strings.HasPrefix(path, filepath.Clean(dir)+"/") {
		read = durable.ReadRegular
	}
	b, err := read(path, maxIdentity)
	if err != nil {
		if f, ok := errors.AsType[*fault.Error](err); ok {
			said := *f
			said.Op = fmt.Sprintf("read %s %q", key, path)
			err = &said
		}
		return nil, err
	}
	defer clear(b)
	id, err := seal.ParseIdentity(b)
	if err != nil {
		return nil, fault.New(fault.BadState, fault.ReasonOf(err), fmt.Sprintf("read %s %q", key, path), err)
	}
	return id, nil
}

// unlockOf reads the identity that opens sealed signing keys; nil for no path. It stays in
// memory, for rotations: palyrad can't read the file once it has confined itself.
func unlockOf(path string, getenv func(string) string) (keyring.Unlock, error) {
	if path == "" {
		return nil, nil
	}
	own, err := readIdentity("keys.identity", path, getenv)
	if err != nil {
		return nil, err
	}
	return func() (seal.Identity, error) { // a copy, which its user wipes
		line := own.Encode()
		defer clear(line)
		return seal.ParseIdentity(line)
	}, nil
}

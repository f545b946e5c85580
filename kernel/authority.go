package kernel

import (
	"bytes"

	"palyra/crypt/ca"
	"palyra/crypt/keyring"
)

// keyFiles keeps the keys of the certificate authority as the signing keys of the state directory
// are kept: plain, or sealed for the same recipients.
type keyFiles struct{ s *state }

var _ ca.Keeper = keyFiles{}

// KeyFiles returns how the certificate authority of the state directory keeps its keys.
func (k *Kernel) KeyFiles() ca.Keeper { return keyFiles{k.state} }

// Seal implements ca.Keeper. Another process may have sealed the signing keys, so it looks again.
func (f keyFiles) Seal(purpose, name string, plain []byte) ([]byte, error) {
	r, err := f.s.reopen()
	if err != nil {
		return nil, err
	}
	if to := r.Recipients(); len(to) > 0 {
		return keyring.SealFile(purpose, name, plain, to)
	}
	return bytes.Clone(plain), nil
}

// Open implements ca.Keeper.
func (f keyFiles) Open(path, purpose string, content []byte) ([]byte, string, error) {
	return keyring.OpenFile(path, purpose, content, f.s.keys.Unlock)
}

// FirstPlain reports whether Open found the signing keys plain, or made them so, without a word
// about it, and recorded that its principal lets them lie so. Whoever asked for it has to be told.
func (k *Kernel) FirstPlain() bool { return k.state.firstPlain }

// Acknowledged returns who let the private keys lie plain; nil if there is no such word.
func (k *Kernel) Acknowledged() (*keyring.Acknowledgement, error) {
	return keyring.Acknowledged(k.state.dir)
}

// PlainKeys returns the files of private keys that aren't sealed, as paths below the state
// directory.
func (k *Kernel) PlainKeys() []string {
	var out []string
	for _, n := range k.state.held.Load().ring.Plain() {
		out = append(out, "keys/"+n)
	}
	return append(out, ca.Plain(k.state.dir)...)
}

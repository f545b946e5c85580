package keyring

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// A private key may be sealed for recipients (package seal) instead of lying there plain. The
// file has the same name:
//
//	{"version":1,"name":"…","recipients":[stanza, …],"value":"…"}
//
// and a newline, as canonical JSON. name is the public half: the hint of an attestation key, the
// verifier key of the log's. value is sealed under a key that the stanzas wrap, with the purpose
// of the key's kind and that name, so that no file opens in another's place. It holds the plain
// file, and the recipients' lines, for whom the next key is sealed, too.
const (
	sealedVersion = 1
	// The purposes of seal.Context.
	purposeAttestation = "keys/attestation"
	purposeLog         = "keys/log"

	maxSealed = 128 << 10 // bytes of a sealed key's file
)

// MaxRecipients bounds for how many the keys are sealed.
const MaxRecipients = 8

type sealedFile struct {
	Version    int            `json:"version"` // sealedVersion
	Name       string         `json:"name"`
	Recipients []*seal.Stanza `json:"recipients"`
	Value      []byte         `json:"value"`
}

type sealedValue struct {
	Key        []byte          `json:"key"` // the plain file
	Recipients []recipientLine `json:"recipients"`
}

type recipientLine struct {
	Label string `json:"label"`
	Line  string `json:"line"`
}

// Unlock returns an identity that opens sealed keys. Its caller wipes it.
type Unlock func() (seal.Identity, error)

func isSealed(b []byte) bool { return bytes.HasPrefix(b, []byte("{")) }

func purposeOf(file string) string {
	if placeOf(file) == logFile {
		return purposeLog
	}
	return purposeAttestation // the next one takes the place of the one in force
}

func sealContext(purpose, name string) seal.Context {
	return seal.Context{Purpose: purpose, Name: name, Version: sealedVersion}
}

// OpenFile returns the plain content of a private key's file, which the caller wipes, and the name
// that it was sealed under, "" if it wasn't. The caller compares that with the key.
func OpenFile(path, purpose string, content []byte, unlock Unlock) (plain []byte, name string, err error) {
	if !isSealed(content) {
		return bytes.Clone(content), "", nil
	}
	id, wipe := unlocker(unlock)
	defer wipe()
	with, err := id()
	if err != nil {
		return nil, "", err
	}
	plain, name, _, err = unsealKey(path, purpose, content, with)
	return plain, name, err
}

// SealFile returns the sealed form of a private key's plain file. The purpose is of its kind alone,
// the name is its public half's.
func SealFile(purpose, name string, plain []byte, to []*seal.PublicKey) ([]byte, error) {
	op := fmt.Sprintf("seal a key for %s", purpose)
	if len(to) == 0 || len(to) > MaxRecipients {
		return nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("%d recipients, want 1 to %d", len(to), MaxRecipients))
	}
	kek := seal.NewKey()
	defer kek.Wipe()
	c := sealContext(purpose, name)
	f := sealedFile{Version: sealedVersion, Name: name, Recipients: []*seal.Stanza{}}
	v := sealedValue{Key: plain, Recipients: []recipientLine{}}
	for _, r := range to {
		s, err := r.Wrap(kek, c)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(f.Recipients, func(o *seal.Stanza) bool { return o.Label == s.Label || o.ID == s.ID }) {
			return nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("recipient %q is there twice", s.Label))
		}
		f.Recipients = append(f.Recipients, s)
		v.Recipients = append(v.Recipients, recipientLine{s.Label, string(r.Encode())})
	}
	inner, err := canon.Marshal(&v)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	defer clear(inner)
	if f.Value, err = seal.Seal(kek, c, inner); err != nil {
		return nil, err
	}
	b, err := canon.Marshal(&f)
	return append(b, '\n'), err
}

// unsealKey opens what SealFile returned, and returns the plain file, which the caller wipes, and
// the public half's name.
func unsealKey(path, purpose string, b []byte, id seal.Identity) (plain []byte, name string, to []*seal.PublicKey, err error) {
	op := fmt.Sprintf("open sealed key %q", path)
	corrupt := func(err error) error { return fault.New(fault.Integrity, "key_corrupt", op, err) }
	var f sealedFile
	if err := canon.Decode(b, &f, canon.Limits{Bytes: maxSealed}); err != nil {
		return nil, "", nil, corrupt(errors.New("neither a plain key nor a sealed one"))
	}
	again, err := canon.Marshal(&f)
	if err != nil || !bytes.Equal(append(again, '\n'), b) || f.Version != sealedVersion || len(f.Recipients) == 0 || len(f.Recipients) > MaxRecipients {
		return nil, "", nil, corrupt(errors.New("another version, or not in its canonical encoding"))
	}
	c := sealContext(purpose, f.Name)
	for _, s := range f.Recipients {
		kek, err := id.Unwrap(s, c)
		if errors.Is(err, seal.ErrOther) {
			continue
		}
		if err != nil {
			return nil, "", nil, corrupt(err)
		}
		defer kek.Wipe()
		value, err := seal.Open(kek, c, f.Value)
		if err != nil {
			return nil, "", nil, corrupt(err)
		}
		defer value.Wipe()
		var v sealedValue
		if err := canon.Decode(value.Bytes(), &v, canon.Limits{Bytes: maxSealed}); err != nil {
			return nil, "", nil, corrupt(errors.New("it holds no key"))
		}
		for i, l := range v.Recipients {
			p, err := seal.ParseRecipient(l.Label, []byte(l.Line))
			if err == nil && (len(v.Recipients) != len(f.Recipients) || f.Recipients[i].Label != l.Label || f.Recipients[i].ID != p.ID()) {
				err = errors.New("its recipients aren't those that it was sealed for")
			}
			if err != nil {
				clear(v.Key)
				return nil, "", nil, corrupt(err)
			}
			to = append(to, p)
		}
		return v.Key, f.Name, to, nil
	}
	return nil, "", nil, fault.New(fault.Denied, "keys_locked", op, errors.New("the identity is none of its recipients'")).
		WithHint("name the identity: palyra --key FILE, palyrad keys.identity")
}

// Plain returns the names of the private keys that lie plain in keys/, sorted.
func (r *Ring) Plain() []string { return slices.Clone(r.plain) }

// Recipients returns for whom the keys are sealed; none if the attestation key is plain.
func (r *Ring) Recipients() []*seal.PublicKey { return slices.Clone(r.to) }

// named is a private key with its file and the name of its public half.
type named struct {
	file, name string
	encode     func() ([]byte, error)
}

func (r *Ring) private() []named {
	out := []named{{attFile, r.att.Hint(), r.att.encode}, {logFile, r.log.VKey(), func() ([]byte, error) { return r.log.encode(), nil }}}
	if r.next != nil {
		out = append(out, named{nextFile, r.next.Hint(), r.next.encode})
	}
	if k := r.nextLog; k != nil {
		out = append(out, named{logNextFile, k.VKey(), func() ([]byte, error) { return k.encode(), nil }})
	}
	return out
}

// Seal writes the private keys of the state directory dir sealed for recipients, or plain if
// there are none (see Acknowledge), one file after the other. A crash leaves some as they were,
// which open all the same. Its caller holds the state directory's lock for rotations. The content
// that was there before may stay on the disk's free blocks, in snapshots and in backups. step is
// called after each change.
func (r *Ring) Seal(dir string, to []*seal.PublicKey, step func(string)) error {
	for _, k := range r.private() {
		b, err := k.content(to)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, keysDir, k.file)
		err = durable.WriteFileSteps(path, b, 0o600, func(s string) { step("seal:" + k.file + ":" + s) })
		clear(b)
		if err != nil {
			return durable.Fault(fmt.Sprintf("write key %q", path), err)
		}
	}
	if len(to) == 0 {
		return nil
	}
	return withdraw(dir)
}

// content returns the content of a key's file for recipients.
func (k *named) content(to []*seal.PublicKey) ([]byte, error) {
	b, err := k.encode()
	if err != nil || len(to) == 0 {
		return b, err
	}
	defer clear(b)
	return SealFile(purposeOf(k.file), k.name, b, to)
}

// placeOf returns the file whose place a key's file is in, or takes.
func placeOf(file string) string {
	switch file {
	case nextFile:
		return attFile
	case logNextFile:
		return logFile
	}
	return file
}

// plainKey returns the plain content of the key file at path, which the caller wipes.
func (r *Ring) plainKey(path string, b []byte, id func() (seal.Identity, error)) ([]byte, error) {
	file := filepath.Base(path)
	if !isSealed(b) {
		r.plain = append(r.plain, file)
		slices.Sort(r.plain)
		return b, nil
	}
	with, err := id()
	if err != nil {
		return nil, err
	}
	plain, name, to, err := unsealKey(path, purposeOf(file), b, with)
	if err != nil {
		return nil, err
	}
	if placeOf(file) == logFile {
		r.logTo = to
	} else {
		r.to = to
	}
	r.names = append(r.names, [2]string{file, name})
	return plain, nil
}

// checkNames refuses a sealed key whose file has another name than its public half.
func (r *Ring) checkNames() error {
	for _, n := range r.names {
		for _, k := range r.private() {
			if k.file == n[0] && k.name != n[1] {
				return fmt.Errorf("%s is sealed under the name of another key", k.file)
			}
		}
	}
	return nil
}

// unlocker calls unlock once, and refuses without one.
func unlocker(unlock Unlock) (id func() (seal.Identity, error), wipe func()) {
	var got seal.Identity
	return func() (seal.Identity, error) {
			if got != nil {
				return got, nil
			}
			if unlock == nil {
				return nil, fault.New(fault.Denied, "keys_locked", "open signing keys", errors.New("they are sealed, and no identity was given")).
					WithHint("palyra: --key FILE; palyrad: the key keys.identity of its configuration")
			}
			id, err := unlock()
			if err != nil {
				return nil, err // id may be a nil pointer
			}
			got = id
			return got, nil
		}, func() {
			if got != nil {
				got.Wipe()
			}
		}
}

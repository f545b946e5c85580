package keyring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Plain keys lie so under a name: keys/plain.json says by whom, since when and how. The process
// that makes keys, or finds plain ones without the file, writes it before it uses them, and
// Ring.FirstPlain is then true. palyra keys unseal writes it over; palyra keys seal removes it.
const plainFile = "plain.json"

const maxPlain = 4 << 10 // bytes of plainFile

// How plain keys came to lie so.
const (
	FirstUse = "first_use" // they were made so, or found so without a word about it
	Asked    = "asked"     // palyra keys unseal
)

// Acknowledgement says who let the private keys lie plain.
type Acknowledgement struct {
	Version int    `json:"version"` // 1
	By      string `json:"by"`      // the principal, as receipts name it
	Time    string `json:"time"`    // RFC 3339
	How     string `json:"how"`     // FirstUse or Asked
}

// Acknowledged returns who let the keys of the state directory dir lie plain, nil if there is no
// such word.
func Acknowledged(dir string) (*Acknowledgement, error) {
	path := filepath.Join(dir, keysDir, plainFile)
	b, err := durable.ReadPrivate(path, maxPlain)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var a Acknowledgement
	if err := canon.Decode(b, &a, canon.Limits{Bytes: maxPlain}); err != nil || a.Version != 1 || a.By == "" || a.How != FirstUse && a.How != Asked {
		return nil, fault.New(fault.Integrity, "key_corrupt", fmt.Sprintf("parse %q", path), errors.New("it doesn't say who let the keys lie plain")).
			WithHint("palyra keys unseal says so again, palyra keys seal seals the keys")
	}
	return &a, nil
}

// acknowledge writes that the keys in the folder keys lie plain by the word of by.
func acknowledge(keys, by, how string) error {
	path := filepath.Join(keys, plainFile)
	op := fmt.Sprintf("write %q", path)
	b, err := canon.Marshal(&Acknowledgement{Version: 1, By: by, Time: time.Now().UTC().Format(time.RFC3339), How: how})
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	return durable.Fault(op, durable.WriteFile(path, append(b, '\n'), 0o600))
}

// Acknowledge records that by asked for plain keys in the state directory dir. Call it before the
// keys are written plain.
func Acknowledge(dir, by string) error { return acknowledge(filepath.Join(dir, keysDir), by, Asked) }

// withdraw removes the word for plain keys, once none is left.
func withdraw(dir string) error {
	keys := filepath.Join(dir, keysDir)
	err := os.Remove(filepath.Join(keys, plainFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = durable.SyncDir(keys)
	}
	return durable.Fault(fmt.Sprintf("seal keys of %q", dir), err)
}

// told makes sure that plain keys lie so under a name.
func (r *Ring) told(dir string, o Options) error {
	if len(r.plain) == 0 {
		return nil
	}
	keys := filepath.Join(dir, keysDir)
	if _, err := os.Lstat(filepath.Join(keys, plainFile)); !errors.Is(err, fs.ErrNotExist) {
		return durable.Fault(fmt.Sprintf("open keys in %q", dir), err)
	}
	r.first = true
	return acknowledge(keys, o.by(), FirstUse)
}

func (o *Options) by() string {
	if o.By == "" {
		return "unknown"
	}
	return o.By
}

// FirstPlain reports whether this Open found the keys plain without a word about it, and so became
// their first use. Its caller says so to its user.
func (r *Ring) FirstPlain() bool { return r.first }

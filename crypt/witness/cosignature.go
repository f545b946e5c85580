package witness

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// algCosignature is the type of an Ed25519 key for cosignatures (C2SP tlog-cosignature).
const algCosignature = 0x04

// Key is a witness's own, with which it cosigns and does nothing else. It prints as its public
// half.
type Key struct {
	_    [0]func() // not comparable
	priv ed25519.PrivateKey
	name string
}

// Public is the public half of a Key.
type Public struct {
	Name string
	Key  ed25519.PublicKey
}

// Name returns the name of a device as a witness of its hub's log.
func Name(origin, device string) string { return origin + "/device/" + device }

// NewKey makes a key for a witness of this name.
func NewKey(name string) (*Key, error) {
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make witness key: %w", err)
	}
	return &Key{priv: priv, name: name}, checkName(name)
}

func checkName(s string) error {
	if s == "" || len(s) > 512 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '+' || r > '~' }) {
		return errors.New("witness key: want a name of visible ASCII without +")
	}
	return nil
}

const signerPrefix = "PRIVATE+" + "KEY+" // in two pieces: scanners look for the whole

// Encode returns the private half as a signed-note signer key, one line.
func (k *Key) Encode() []byte {
	return fmt.Appendf(nil, "%s%s+%08x+%s\n", signerPrefix, k.name, k.Public().id(),
		base64.StdEncoding.EncodeToString(append([]byte{algCosignature}, k.priv.Seed()...)))
}

// ParseKey accepts exactly what Encode writes. Its errors hold no key material.
func ParseKey(b []byte) (*Key, error) {
	s, ok := strings.CutPrefix(string(b), signerPrefix)
	f := strings.SplitN(strings.TrimSuffix(s, "\n"), "+", 3)
	if !ok || len(f) != 3 {
		return nil, errors.New("witness key: want one line PRIVATE+KEY+name+hash+key")
	}
	raw, err := base64.StdEncoding.DecodeString(f[2])
	if err != nil || len(raw) != 1+ed25519.SeedSize || raw[0] != algCosignature {
		return nil, errors.New("witness key: want the base64 of an Ed25519 seed for cosignatures")
	}
	k := &Key{priv: ed25519.NewKeyFromSeed(raw[1:]), name: f[0]}
	if checkName(k.name) != nil || !bytes.Equal(k.Encode(), b) {
		return nil, errors.New("witness key: hash or encoding does not match the key")
	}
	return k, nil
}

// Public returns the public half.
func (k *Key) Public() *Public {
	return &Public{Name: k.name, Key: k.priv.Public().(ed25519.PublicKey)}
}

// Format prints the public half, whatever the verb.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.Public().VKey())) }

func (p *Public) id() uint32 {
	h := sha256.Sum256(append(append([]byte(p.Name), '\n', algCosignature), p.Key...))
	return binary.BigEndian.Uint32(h[:])
}

// VKey returns the verifier key, as C2SP signed-note writes it.
func (p *Public) VKey() string {
	return fmt.Sprintf("%s+%08x+%s", p.Name, p.id(), base64.StdEncoding.EncodeToString(append([]byte{algCosignature}, p.Key...)))
}

// ParseVKey is the inverse of VKey.
func ParseVKey(s string) (*Public, error) {
	f := strings.SplitN(s, "+", 3)
	if len(f) != 3 {
		return nil, errors.New("parse witness key: want name+hash+key")
	}
	raw, err := base64.StdEncoding.DecodeString(f[2])
	if err != nil || len(raw) != 1+ed25519.PublicKeySize || raw[0] != algCosignature {
		return nil, errors.New("parse witness key: want the base64 of an Ed25519 public key for cosignatures")
	}
	p := &Public{Name: f[0], Key: raw[1:]}
	if err := checkName(p.Name); err != nil {
		return nil, err
	}
	if p.VKey() != s {
		return nil, errors.New("parse witness key: hash or encoding does not match the key")
	}
	return p, nil
}

// message is what a cosignature signs, of a note's text.
func message(at int64, text []byte) []byte {
	return append(fmt.Appendf(nil, "cosignature/v1\ntime %d\n", at), text...)
}

// Cosign returns a checkpoint, which the caller has verified, with a cosignature behind the log's
// signature: the statement that at this time it was the largest that the witness knew to be
// consistent.
//
// Abuse: a cosignature of a checkpoint that the witness didn't compare hides a fork from those who
// rely on it.
func (k *Key) Cosign(checkpoint []byte, at time.Time) ([]byte, error) {
	text, _, ok := bytes.Cut(checkpoint, []byte("\n\n"))
	if !ok || at.Unix() < 0 {
		return nil, errors.New("cosign checkpoint: want a signed note, and a time since 1970")
	}
	line := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, k.Public().id()), uint64(at.Unix()))
	line = append(line, ed25519.Sign(k.priv, message(at.Unix(), append(bytes.Clone(text), '\n')))...)
	return fmt.Appendf(bytes.Clone(checkpoint), "\u2014 %s %s\n", k.name, base64.StdEncoding.EncodeToString(line)), nil
}

// Cosigned is what a witness said.
type Cosigned struct {
	Checkpoint
	Note []byte // the checkpoint without the cosignature
	Time time.Time
}

// Open verifies a checkpoint of a log with one cosignature, by p. It's exact: the note as the log
// signed it, then one line.
func (p *Public) Open(cosigned []byte, log Keys) (*Cosigned, error) {
	note, name, at, sig, err := split(cosigned)
	if err != nil {
		return nil, fmt.Errorf("open cosignature: %w", err)
	}
	c := &Cosigned{Note: note, Time: time.Unix(at, 0).UTC()}
	if c.Checkpoint, err = log.Open(note); err != nil {
		return nil, err
	}
	text, _, _ := bytes.Cut(note, []byte("\n\n"))
	if name != p.Name || binary.BigEndian.Uint32(sig) != p.id() {
		return nil, fmt.Errorf("open cosignature: it's by the key %08x of %.200q, want %08x of %q", binary.BigEndian.Uint32(sig), name, p.id(), p.Name)
	}
	if !ed25519.Verify(p.Key, message(at, append(bytes.Clone(text), '\n')), sig[12:]) {
		return nil, errors.New("open cosignature: it doesn't verify")
	}
	return c, nil
}

// split takes the last line off a cosigned checkpoint, and reads it.
func split(b []byte) (note []byte, name string, at int64, sig []byte, err error) {
	i := bytes.LastIndex(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	line, ok := strings.CutPrefix(string(b[i+1:]), "\u2014 ")
	name, text, two := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	if !ok || !two || i < 0 {
		return nil, "", 0, nil, errors.New("want a checkpoint and a line \u2014 name base64")
	}
	sig, err = base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(sig) != 4+8+ed25519.SignatureSize || "\u2014 "+name+" "+base64.StdEncoding.EncodeToString(sig)+"\n" != string(b[i+1:]) {
		return nil, "", 0, nil, errors.New("not an Ed25519 cosignature in its one spelling")
	}
	seconds := binary.BigEndian.Uint64(sig[4:])
	if seconds > math.MaxInt64 {
		return nil, "", 0, nil, errors.New("its time is " + strconv.FormatUint(seconds, 10))
	}
	return b[:i+1], name, int64(seconds), sig, nil
}

package witness

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Checkpoint is the statement that a log signs: at this size it had this root.
type Checkpoint struct {
	Origin string
	Size   uint64
	Root   [32]byte
}

// LogKey is a key of a log, and the size of the last checkpoint that it may sign; 0: any.
type LogKey struct {
	VKey string `json:"vkey"`
	To   uint64 `json:"to,omitempty"`
}

// Keys are the keys of one log, oldest first.
type Keys []LogKey

// ErrSigner is in the error for a checkpoint that none of the keys signed.
var ErrSigner = errors.New("not signed by a key of the log")

const (
	algLog  = 0x01 // Ed25519, of a log
	maxSize = 1 << 53
)

// parseLogKey reads a signed-note verifier key of a log.
func parseLogKey(vkey string) (name string, pub ed25519.PublicKey, id [4]byte, err error) {
	f := strings.SplitN(vkey, "+", 3)
	if len(f) != 3 {
		return "", nil, id, errors.New("log key: want name+hash+key")
	}
	raw, err := base64.StdEncoding.DecodeString(f[2])
	if err != nil || len(raw) != 1+ed25519.PublicKeySize || raw[0] != algLog {
		return "", nil, id, errors.New("log key: want the base64 of an Ed25519 public key")
	}
	h := sha256.Sum256(append([]byte(f[0]+"\n"), raw...))
	copy(id[:], h[:])
	if fmt.Sprintf("%s+%x+%s", f[0], id, base64.StdEncoding.EncodeToString(raw)) != vkey {
		return "", nil, id, errors.New("log key: hash or encoding does not match the key")
	}
	return f[0], raw[1:], id, nil
}

// Open parses a signed note and checks that one of the keys signed it, in its time. It takes the
// form alone that package journal writes.
func (ks Keys) Open(note []byte) (c Checkpoint, err error) {
	bad := func(err error) (Checkpoint, error) { return Checkpoint{}, fmt.Errorf("open checkpoint: %w", err) }
	l := strings.Split(string(note), "\n")
	if len(l) != 6 || l[3] != "" || l[5] != "" {
		return bad(errors.New("want three lines, an empty one and one signature"))
	}
	c.Origin = l[0]
	if c.Size, err = strconv.ParseUint(l[1], 10, 64); err != nil || c.Size > maxSize || strconv.FormatUint(c.Size, 10) != l[1] {
		return bad(errors.New("size is no decimal number in canonical form"))
	}
	root, err := base64.StdEncoding.Strict().DecodeString(l[2])
	if err != nil || len(root) != len(c.Root) {
		return bad(errors.New("root is no base64 of a SHA-256 digest"))
	}
	copy(c.Root[:], root)
	text, ok := strings.CutPrefix(l[4], "\u2014 "+c.Origin+" ")
	sig, err := base64.StdEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(sig) != 4+ed25519.SignatureSize || base64.StdEncoding.EncodeToString(sig) != text {
		return bad(errors.New("want one Ed25519 signature by its origin"))
	}
	for _, k := range ks {
		name, pub, id, err := parseLogKey(k.VKey)
		if err != nil {
			return bad(err)
		}
		if name != c.Origin || string(id[:]) != string(sig[:4]) {
			continue
		}
		if !ed25519.Verify(pub, []byte(strings.Join(l[:3], "\n")+"\n"), sig[4:]) {
			return bad(errors.New("the signature does not verify"))
		}
		if k.To != 0 && c.Size > k.To {
			return bad(fmt.Errorf("its key ended at size %d, and this is size %d", k.To, c.Size))
		}
		return c, nil
	}
	return bad(fmt.Errorf("%w: by %08x of %.200q", ErrSigner, binary.BigEndian.Uint32(sig), c.Origin))
}

func leafHash(leaf []byte) [32]byte { return sha256.Sum256(append([]byte{0}, leaf...)) }

func nodeHash(left, right [32]byte) [32]byte {
	return sha256.Sum256(append(append([]byte{1}, left[:]...), right[:]...))
}

// verifyInclusion is RFC 9162 §2.1.3.2.
func verifyInclusion(leaf [32]byte, index, size uint64, hashes [][32]byte, root [32]byte) error {
	if index >= size {
		return errors.New("verify inclusion: the index is beyond the size")
	}
	fn, sn, r := index, size-1, leaf
	for _, p := range hashes {
		if sn == 0 {
			return errors.New("verify inclusion: too many hashes")
		}
		if fn&1 == 1 || fn == sn {
			r = nodeHash(p, r)
			for fn&1 == 0 && fn != 0 {
				fn, sn = fn>>1, sn>>1
			}
		} else {
			r = nodeHash(r, p)
		}
		fn, sn = fn>>1, sn>>1
	}
	if sn != 0 || r != root {
		return errors.New("verify inclusion: the hashes don't lead to the root")
	}
	return nil
}

// verifyConsistency is RFC 9162 §2.1.4.2, for sizes 0 < first < second.
func verifyConsistency(first, second uint64, hashes [][32]byte, firstRoot, secondRoot [32]byte) error {
	bad := errors.New("verify consistency: the hashes don't lead to both roots")
	if first == 0 || first >= second {
		return errors.New("verify consistency: the sizes aren't those of two logs")
	}
	if bits.OnesCount64(first) == 1 {
		hashes = append([][32]byte{firstRoot}, hashes...)
	}
	if len(hashes) == 0 {
		return bad
	}
	fn, sn := first-1, second-1
	for fn&1 == 1 {
		fn, sn = fn>>1, sn>>1
	}
	fr, sr := hashes[0], hashes[0]
	for _, c := range hashes[1:] {
		if sn == 0 {
			return bad
		}
		if fn&1 == 1 || fn == sn {
			fr, sr = nodeHash(c, fr), nodeHash(c, sr)
			for fn&1 == 0 && fn != 0 {
				fn, sn = fn>>1, sn>>1
			}
		} else {
			sr = nodeHash(sr, c)
		}
		fn, sn = fn>>1, sn>>1
	}
	if sn != 0 || fr != firstRoot || sr != secondRoot {
		return bad
	}
	return nil
}

package oracle

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	flog "github.com/transparency-dev/formats/log"
	fproof "github.com/transparency-dev/formats/proof"
	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"github.com/transparency-dev/tessera/api"
	"github.com/transparency-dev/tessera/client"
	"github.com/transparency-dev/tessera/fsck"
	"golang.org/x/mod/sumdb/note"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
)

// house is a state directory with a journal of receipts.
type house struct {
	dir   string
	ring  *keyring.Ring
	j     *journal.Journal
	envs  []*receipt.Envelope
	leafs [][]byte
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{dir: filepath.Join(t.TempDir(), "state")}
	var err error
	if h.ring, err = keyring.Open(h.dir); err != nil {
		t.Fatal(err)
	}
	h.open(t)
	return h
}

func (h *house) journalDir() string { return filepath.Join(h.dir, "journal") }

func (h *house) open(t *testing.T) {
	t.Helper()
	var err error
	if h.j, err = journal.Open(h.journalDir(), h.ring.Log(), journal.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.j.Close() })
}

// grow appends signed statements until the journal has n entries.
func (h *house) grow(t *testing.T, n int) {
	t.Helper()
	for len(h.leafs) < n {
		i := len(h.leafs)
		e, err := receipt.SignEntry(h.ring.Attestation(), receipt.NewStatement(receipt.Predicate{
			Version: receipt.PredicateVersion, CallID: fmt.Sprint("call-", i), Time: "2026-11-21T09:00:00Z", Tool: "process.run",
			Capsule:  receipt.Capsule{Digest: canon.Sum([]byte("capsule")), Argv: []string{"true"}},
			Decision: receipt.Decision{Effect: "deny", Reason: "policy_denied"}, Outcome: receipt.Denied,
		}, canon.Digest{}, canon.Digest{}))
		if err != nil {
			t.Fatal(err)
		}
		env, err := receipt.ParseEnvelope(e.Content())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.j.Append(context.Background(), journal.Entry{Leaf: e.Leaf(), Content: e.Content()}); err != nil {
			t.Fatal(err)
		}
		h.envs, h.leafs = append(h.envs, env), append(h.leafs, e.Leaf())
	}
}

func (h *house) verifier(t *testing.T) note.Verifier {
	t.Helper()
	v, err := note.NewVerifier(h.ring.Log().VKey())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// runFsck is tessera's fsck over the directory. It is given a deadline: it has
// been seen to wait for ever where a resource is broken.
func (h *house) runFsck(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	v := h.verifier(t)
	f := fsck.New(v.Name(), v, &client.FileFetcher{Root: h.journalDir()}, func(b []byte) ([][]byte, error) {
		var eb api.EntryBundle
		if err := eb.UnmarshalText(b); err != nil {
			return nil, err
		}
		var out [][]byte
		for _, e := range eb.Entries {
			out = append(out, rfc6962.DefaultHasher.HashLeaf(e))
		}
		return out, nil
	}, fsck.Opts{N: 2})
	done := make(chan error, 1)
	go func() { done <- f.Check(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errors.New("fsck hangs")
	}
}

// root computes the root of the first n leaves with transparency-dev's compact
// ranges.
func (h *house) root(t *testing.T, n int) []byte {
	t.Helper()
	r := (&compact.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}).NewEmptyRange(0)
	for _, l := range h.leafs[:n] {
		if err := r.Append(rfc6962.DefaultHasher.HashLeaf(l), nil); err != nil {
			t.Fatal(err)
		}
	}
	root, err := r.GetRootHash(nil)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// TestFsck has tessera check the published tree at sizes around those of
// tiles, reopening in between.
func TestFsck(t *testing.T) {
	h := newHouse(t)
	for _, n := range []int{1, 2, 255, 256, 257, 511, 512, 700} {
		h.grow(t, n)
		if err := h.j.Close(); err != nil {
			t.Fatal(err)
		}
		if err := h.runFsck(t); err != nil {
			t.Fatalf("size %d: %v", n, err)
		}
		h.open(t)
	}
	// And it does find what is wrong.
	for _, name := range []string{"tile/0/001", "tile/entries/000", "tile/1/000.p/2", "tile/0/002.p/188", "tile/entries/002.p/188", "checkpoint"} {
		path := filepath.Join(h.journalDir(), filepath.FromSlash(name))
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := h.runFsck(t); err == nil {
			t.Errorf("fsck accepts a damaged %s", name)
		}
		if _, err := journal.Check(h.journalDir(), journal.OneKey(h.ring.Log().VKey())); err == nil {
			t.Errorf("journal.Check accepts a damaged %s", name)
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMerkle compares roots, inclusion and consistency proofs with
// transparency-dev/merkle.
func TestMerkle(t *testing.T) {
	h := newHouse(t)
	const size = 600
	old := make(map[int][]byte)
	for n := 1; n <= size; n += 23 {
		h.grow(t, n)
		cp, err := h.j.Checkpoint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, rest, _, err := flog.ParseCheckpoint(cp, h.ring.Log().Origin(), h.verifier(t))
		if err != nil || len(rest) != 0 {
			t.Fatalf("checkpoint of size %d: %v, rest %q", n, err, rest)
		}
		if want := h.root(t, n); c.Size != uint64(n) || !bytes.Equal(c.Hash, want) {
			t.Fatalf("checkpoint of size %d says %d and root %x, want %x", n, c.Size, c.Hash, want)
		}
		old[n] = c.Hash
	}
	h.grow(t, size)
	if err := h.j.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	root := h.root(t, size)
	for i := range size {
		p, err := h.j.Prove(t.Context(), uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		leaf := rfc6962.DefaultHasher.HashLeaf(h.leafs[i])
		if err := proof.VerifyInclusion(rfc6962.DefaultHasher, p.Index, p.Size, leaf, slicesOf(p.Hashes), root); err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
		var tp fproof.TLogProof
		if err := tp.Unmarshal(p.Text()); err != nil {
			t.Errorf("tlog-proof of entry %d: %v", i, err)
		} else if tp.Index != p.Index || !slices.Equal(tp.Hashes, p.Hashes) || !bytes.Equal(tp.Checkpoint, p.Checkpoint) || !bytes.Equal(tp.Marshal(), p.Text()) {
			t.Errorf("tlog-proof of entry %d reads as another", i)
		}
	}
	for n, was := range old {
		c, err := h.j.ProveConsistency(t.Context(), uint64(n))
		if err != nil {
			t.Fatal(err)
		}
		if err := proof.VerifyConsistency(rfc6962.DefaultHasher, c.Old, c.Size, slicesOf(c.Hashes), was, root); err != nil {
			t.Errorf("consistency with size %d: %v", n, err)
		}
	}
}

func slicesOf(hs [][32]byte) [][]byte {
	out := make([][]byte, len(hs))
	for i := range hs {
		out[i] = hs[i][:]
	}
	return out
}

// ecdsaVerifier is a dsse.Verifier over the standard library.
type ecdsaVerifier struct{ pub *ecdsa.PublicKey }

func (v ecdsaVerifier) Verify(_ context.Context, data, sig []byte) error {
	d := sha256.Sum256(data)
	if !ecdsa.VerifyASN1(v.pub, d[:], sig) {
		return errors.New("signature does not verify")
	}
	return nil
}
func (v ecdsaVerifier) KeyID() (string, error)   { return "", nil }
func (v ecdsaVerifier) Public() crypto.PublicKey { return v.pub }

// TestDSSE reads and verifies our envelopes with secure-systems-lab's library.
func TestDSSE(t *testing.T) {
	h := newHouse(t)
	h.grow(t, 3)
	pub, err := x509.ParsePKIXPublicKey(h.ring.Attestation().SPKI())
	if err != nil {
		t.Fatal(err)
	}
	v, err := dsse.NewEnvelopeVerifier(ecdsaVerifier{pub.(*ecdsa.PublicKey)})
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range h.envs {
		if got, want := keyring.PAEDigest(e.PayloadType, e.Payload), sha256.Sum256(dsse.PAE(e.PayloadType, e.Payload)); got != want {
			t.Errorf("PAE of envelope %d differs", i)
		}
		var env dsse.Envelope
		if err := json.Unmarshal(e.Encode(), &env); err != nil {
			t.Fatal(err)
		}
		if _, payload, err := v.VerifyAndDecode(context.Background(), &env); err != nil || !bytes.Equal(payload, e.Payload) {
			t.Errorf("envelope %d: %v", i, err)
		}
		env.PayloadType = "application/x"
		if _, err := v.Verify(context.Background(), &env); err == nil {
			t.Error("verifies under another payload type")
		}
	}
}

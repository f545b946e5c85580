package kernel

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"palyra/crypt/vault"
	"palyra/internal/canon"
)

// TestVaultLedger: whatever was asked before, the ledger knows the root that a look at all entries
// finds.
func TestVaultLedger(t *testing.T) {
	h := openHouse(t, Config{})
	l := vaultLedger{h.Kernel}
	r := rand.New(rand.NewPCG(1, 2))
	for epoch := range uint64(40) {
		switch r.IntN(3) {
		case 0:
			if err := l.Commit(t.Context(), vault.Root{Vault: "v", Epoch: epoch, Digest: canon.Sum([]byte(strconv.FormatUint(epoch, 10)))}); err != nil {
				t.Fatal(err)
			}
		case 1:
			if _, err := h.Record(t.Context(), Act{Act: "test", Principal: "p"}); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			size := h.state.journal.Size()
			from := r.Uint64N(size + 1)
			got, n, err := l.Newest(t.Context(), from)
			if err != nil || n != size {
				t.Fatalf("from %d: %d entries of %d, %v", from, n, size, err)
			}
			want, _, err := vault.Newest(h.state.journal.Entries(from, size), h.state.trust())
			if err != nil || (got == nil) != (want == nil) || got != nil && *got != *want {
				t.Fatalf("from %d of %d: %v, want %v (%v)", from, size, got, want, err)
			}
		}
	}
	if known := &h.vaultRoots; known.root == nil || known.size == 0 {
		t.Errorf("nothing is known: %+v", known.root)
	}
}

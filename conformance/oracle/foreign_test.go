package oracle

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/rfc6962"
	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/api"
	"github.com/transparency-dev/tessera/client"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"

	"palyra/crypt/journal"
)

// testdataKey is the public key of the log in tessera's testdata, as its
// build_log.sh says.
const testdataKey = "example.com/log/testdata+33d7b496+AeHTu4Q3hEIMHNqc6fASMsq3rKNx280NI+oO5xCFkkSx"

// TestTesseraTestdata reads the log that tessera ships for its own tests: every
// entry in every size that it had, and every size as a beginning of every later.
func TestTesseraTestdata(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/transparency-dev/tessera").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	root := filepath.Join(strings.TrimSpace(string(dir)), "testdata", "log")
	leaves := bundle(t, filepath.Join(root, "tile", "entries", "000.p", "15"))
	if len(leaves) != 15 {
		t.Fatalf("%d entries", len(leaves))
	}
	roots := make(map[uint64][32]byte)
	for n := uint64(1); n <= 15; n++ {
		b, err := os.ReadFile(filepath.Join(root, fmt.Sprintf("checkpoint.%d", n)))
		if err != nil {
			t.Fatal(err)
		}
		cp, err := journal.OpenCheckpoint(b, testdataKey)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := journal.OpenCheckpoint(bytes.Replace(b, []byte("testdata\n"), []byte("testdatb\n"), 1), testdataKey); err == nil {
			t.Errorf("checkpoint of size %d under another name is accepted", n)
		}
		var c api.EntryBundle // only to say that bundles of each size read alike
		raw, err := os.ReadFile(filepath.Join(root, "tile", "entries", "000.p", fmt.Sprint(n)))
		if err != nil || c.UnmarshalText(raw) != nil || len(c.Entries) != int(n) {
			t.Fatalf("bundle of size %d: %v", n, err)
		}
		if roots[n] = rootOf(t, leaves[:n]); cp.Origin != "example.com/log/testdata" || cp.Size != n || cp.Root != roots[n] {
			t.Errorf("checkpoint of size %d: %+v", n, cp)
		}
	}
	checkForeign(t, &client.FileFetcher{Root: root}, leaves, roots)
}

// TestTesseraPOSIX has tessera write a log of two complete tiles with its POSIX
// driver, under a name that we take, and holds it to our verifier: checkpoint,
// proofs, and the whole directory, to which we add what only our journal has: a
// write-ahead file without records, and contents, which are empty.
func TestTesseraPOSIX(t *testing.T) {
	const size = 512
	dir := t.TempDir()
	secret, public, err := note.GenerateKey(rand.Reader, "foreign.palyra.test")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	driver, err := posix.New(ctx, posix.Config{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	appender, shutdown, reader, err := tessera.NewAppender(ctx, driver, tessera.NewAppendOptions().
		WithCheckpointSigner(signer).WithBatching(64, 10*time.Millisecond).WithCheckpointInterval(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	await := tessera.NewPublicationAwaiter(ctx, reader.ReadCheckpoint, 50*time.Millisecond)
	futures := make([]tessera.IndexFuture, size)
	for i := range futures {
		futures[i] = appender.Add(ctx, tessera.NewEntry(fmt.Appendf(nil, "foreign leaf %d", i)))
	}
	for _, f := range futures {
		if _, _, err := await.Await(ctx, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	cp, err := os.ReadFile(filepath.Join(dir, "checkpoint"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := journal.OpenCheckpoint(cp, public)
	if err != nil {
		t.Fatalf("tessera's checkpoint: %v\n%s", err, cp)
	}
	leaves := append(bundle(t, filepath.Join(dir, "tile", "entries", "000")), bundle(t, filepath.Join(dir, "tile", "entries", "001"))...)
	if c.Size != size || c.Origin != "foreign.palyra.test" || len(leaves) != size || c.Root != rootOf(t, leaves) {
		t.Fatalf("checkpoint %+v, %d leaves", c, len(leaves))
	}
	roots := make(map[uint64][32]byte)
	for _, n := range []uint64{1, 2, 3, 255, 256, 257, 400, 511, 512} {
		roots[n] = rootOf(t, leaves[:n])
	}
	checkForeign(t, &client.FileFetcher{Root: dir}, leaves, roots)

	ours := filepath.Join(t.TempDir(), "journal")
	adopt(t, dir, ours, cp, c)
	r, err := journal.Check(ours, journal.OneKey(public))
	if err != nil {
		t.Fatalf("tessera's directory: %v", err)
	}
	if r.Size != size || r.Sealed != size || r.Published != size || r.Root != c.Root || len(r.Notes) != 0 {
		t.Errorf("tessera's directory: %+v", r)
	}
	for _, name := range []string{"tile/0/000", "tile/0/001", "tile/1/000.p/2", "tile/entries/000", "tile/entries/001", "checkpoint"} {
		path := filepath.Join(ours, filepath.FromSlash(name))
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)/3] ^= 4
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := journal.Check(ours, journal.OneKey(public)); err == nil {
			t.Errorf("a foreign log with a damaged %s is accepted", name)
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// adopt copies what readers see of a log of complete tiles and adds what our
// journal keeps beside it, as docs/formats/journal.md has it.
func adopt(t *testing.T, from, to string, cp []byte, c journal.Checkpoint) {
	t.Helper()
	for _, dir := range []string{"tile/0", "tile/1/000.p", "tile/entries", "content"} {
		if err := os.MkdirAll(filepath.Join(to, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"checkpoint", "tile/0/000", "tile/0/001", "tile/1/000.p/2", "tile/entries/000", "tile/entries/001"} {
		b, err := os.ReadFile(filepath.Join(from, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(to, filepath.FromSlash(name)), b)
	}
	castagnoli := func(b []byte) []byte {
		return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	}
	for i := range c.Size / 256 {
		b := binary.BigEndian.AppendUint64([]byte("PJC1"), 256*i)
		for range 256 {
			b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // length and checksum of nothing
		}
		write(t, filepath.Join(to, "content", fmt.Sprintf("%03d", i)), castagnoli(b))
	}
	// A tree of 512 entries is one perfect subtree, its root.
	wal := binary.BigEndian.AppendUint64([]byte("PALYRAW1saltsalt"), c.Size)
	wal = append(binary.BigEndian.AppendUint16(wal, 1), c.Root[:]...)
	wal = binary.BigEndian.AppendUint32(wal, 0)
	wal = append(binary.BigEndian.AppendUint16(wal, uint16(len(cp))), cp...)
	write(t, filepath.Join(to, "wal"), castagnoli(wal))
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkForeign verifies proofs that tessera's client builds from tiles with our
// verifier: each entry in each of the sizes, and each size in each later one;
// and that ours refuses each with a bit changed.
func checkForeign(t *testing.T, f *client.FileFetcher, leaves [][]byte, roots map[uint64][32]byte) {
	t.Helper()
	inclusions, consistencies := 0, 0
	for n, root := range roots {
		pb, err := client.NewProofBuilder(t.Context(), n, f.ReadTile)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			hs, err := pb.InclusionProof(t.Context(), i)
			if err != nil {
				t.Fatal(err)
			}
			p := journal.Proof{Index: i, Size: n, Root: root, Hashes: arrays(hs)}
			if err := p.Verify(leaves[i]); err != nil {
				t.Errorf("entry %d in %d: %v", i, n, err)
			}
			if p.Verify(append([]byte("x"), leaves[i]...)) == nil {
				t.Errorf("another entry %d in %d is accepted", i, n)
			}
			if len(p.Hashes) > 0 {
				if p.Hashes[int(i)%len(p.Hashes)][i%32] ^= 1; p.Verify(leaves[i]) == nil {
					t.Errorf("a changed proof of entry %d in %d is accepted", i, n)
				}
			}
			inclusions++
		}
		for old, was := range roots {
			if old > n {
				continue
			}
			hs, err := pb.ConsistencyProof(t.Context(), old, n)
			if err != nil {
				t.Fatal(err)
			}
			c := journal.Consistency{Old: old, Size: n, Hashes: arrays(hs)}
			if err := c.Verify(was, root); err != nil {
				t.Errorf("%d in %d: %v", old, n, err)
			}
			was[3] ^= 1
			if c.Verify(was, root) == nil {
				t.Errorf("another beginning of size %d of %d is accepted", old, n)
			}
			consistencies++
		}
	}
	t.Logf("%d inclusion and %d consistency proofs of a foreign log verified", inclusions, consistencies)
}

func arrays(hs [][]byte) (out [][32]byte) {
	for _, h := range hs {
		out = append(out, [32]byte(h))
	}
	return out
}

func bundle(t *testing.T, path string) [][]byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b api.EntryBundle
	if err := b.UnmarshalText(raw); err != nil {
		t.Fatal(err)
	}
	return b.Entries
}

func rootOf(t *testing.T, leaves [][]byte) [32]byte {
	t.Helper()
	r := (&compact.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}).NewEmptyRange(0)
	for _, l := range leaves {
		if err := r.Append(rfc6962.DefaultHasher.HashLeaf(l), nil); err != nil {
			t.Fatal(err)
		}
	}
	root, err := r.GetRootHash(nil)
	if err != nil {
		t.Fatal(err)
	}
	return [32]byte(root)
}

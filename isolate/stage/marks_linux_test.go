package stage

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"fmt"
	"strings"
	"testing"
	"time"
)

// object writes a loose git object below a .git folder, and returns its name.
func object(t testing.TB, folder, kind string, data []byte) [20]byte {
	t.Helper()
	whole := fmt.Appendf(nil, "%s %d\x00%s", kind, len(data), data)
	id := sha1.Sum(whole)
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	z.Write(whole) // to memory
	must(t, z.Close())
	put(t, folder, fmt.Sprintf(".git/objects/%x/%x", id[:1], id[1:]), b.String())
	return id
}

// TestMarksCount: a layer's commit names a file with a long path in a few bytes. The marks of such
// files count toward the limit of names, as the list's own do: beyond it the commit stays.
func TestMarksCount(t *testing.T) {
	p := newPair(t)
	put(t, p.low, ".git/HEAD", "ref: refs/heads/main\n")
	put(t, p.low, ".git/config", "[core]\n\trepositoryformatversion = 0\n")
	commit := func(folder string, files int) string {
		blob := object(t, folder, "blob", []byte("x"))
		var tree strings.Builder
		for i := range files {
			fmt.Fprintf(&tree, "100644 f%06d\x00%s", i, blob[:])
		}
		id := object(t, folder, "tree", []byte(tree.String()))
		for _, name := range []string{".husky", strings.Repeat("d", 255), strings.Repeat("d", 255)} {
			id = object(t, folder, "tree", fmt.Appendf(nil, "40000 %s\x00%s", name, id[:]))
		}
		return fmt.Sprintf("%x\n", object(t, folder, "commit", fmt.Appendf(nil, "tree %x\nauthor u <u@example.org> 1 +0000\n\ntext\n", id)))
	}
	put(t, p.low, ".git/refs/heads/main", commit(p.low, 1))
	put(t, p.up, ".git/refs/heads/main", commit(p.up, 500))
	up, low := p.open(t)
	limits := Limits{Names: 1 << 20}
	l, err := Read(context.Background(), up, low, time.Now(), limits)
	if err != nil || l.Git == nil || len(l.Git.Paths) != 499 {
		t.Fatalf("within the limit: %+v, %v", l, err)
	}
	limits.Names = 200 << 10
	l, err = Read(context.Background(), up, low, time.Now(), limits)
	if err != nil || l.Git != nil || len(l.Left) != 1 || !l.Left[0].big || !strings.Contains(l.Left[0].Why, "more files to look at") {
		t.Errorf("beyond it: %+v, %v", l, err)
	}
}

package git

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// loosely writes a loose object and returns its name.
func loosely(t testing.TB, folder string, x Object) ID {
	t.Helper()
	id := x.ID()
	at := filepath.Join(folder, loose(id))
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	fmt.Fprintf(z, "%s %d\x00%s", x.Type, len(x.Data), x.Data)
	if err := errors.Join(z.Close(), os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	return id
}

// deep makes a commit with so many files, all of one content, in a folder that lies so deep.
func deep(t testing.TB, folder string, files, depth int) ID {
	t.Helper()
	blob := loosely(t, folder, Object{Blob, []byte("x")})
	var b strings.Builder
	for i := range files {
		fmt.Fprintf(&b, "100644 f%06d\x00%s", i, blob[:])
	}
	tree := loosely(t, folder, Object{Tree, []byte(b.String())})
	for range depth {
		tree = loosely(t, folder, Object{Tree, fmt.Appendf(nil, "40000 %s\x00%s", strings.Repeat("d", 255), tree[:])})
	}
	return loosely(t, folder, Object{Commit, fmt.Appendf(nil, "tree %s\nauthor u <u@example.org> 1 +0000\n\ntext\n", tree)})
}

// TestDifferBounds: a tree of few bytes has a path of many for each of its files. Paths are bounded,
// and the end of the reading is the end of the comparison in the middle of a folder, too.
func TestDifferBounds(t *testing.T) {
	top := t.TempDir()
	o := NewObjects(dir(top), &Budget{Left: 1 << 20})
	defer o.Close()
	count := 0
	ctx, cancel := context.WithCancel(context.Background())
	tell := func(string) error { count++; return nil }
	if err := NewWalk(ctx, o, o, Bounds{}).Differ(ID{}, deep(t, top, 3, 15), tell); err != nil || count != 3 {
		t.Errorf("paths of 3847 bytes: %v, %d are told", err, count)
	}
	count = 0
	if err := NewWalk(ctx, o, o, Bounds{}).Differ(ID{}, deep(t, top, 3, 16), tell); !errors.Is(err, ErrTooLarge) || count != 0 {
		t.Errorf("paths of 4103 bytes: %v, %d are told", err, count)
	}
	err := NewWalk(ctx, o, o, Bounds{}).Differ(ID{}, deep(t, top, 1000, 1), func(string) error { count++; cancel(); return nil })
	if !errors.Is(err, context.Canceled) || count != 1 {
		t.Errorf("ended at the first: %v, %d are told", err, count)
	}
}
